"""A stale graph is a wrong answer: what changes after a residual was recorded is noticed."""

# Attributes are changed behind the back of the types: that is what is tested.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

import dataclasses
import os
import subprocess
import sys
import types
import warnings

import pytest
import torch
from torch import nn

import mslsq
from mslsq.linearize.plan_cache import PlanCache
from mslsq.tracing.capture import CaptureError
from mslsq.tracing.inplace import InPlaceResidualWarning
from mslsq.tracing.recording import NoCompilerWarning

F64 = torch.float64
T = torch.linspace(0, 1, 12, dtype=F64)
Y = 2 * torch.exp(-1.5 * T) + 0.1 * torch.cos(30 * T)
START = torch.tensor([1.0, -1.0], dtype=F64)
# The method whose step is recorded fastest; to the end, so that robust problems have derivatives too.
RECORDED = mslsq.GaussNewton(trace="always", ftol=1e-14, xtol=1e-14, max_steps=200)
EAGER = mslsq.GaussNewton(trace="never", ftol=1e-14, xtol=1e-14, max_steps=200)

FACTOR = 1.0
CURVE = torch.ones(12, dtype=F64)
SETTINGS = types.ModuleType("settings")


def scaled(p, factor):
    return factor * p[0] * torch.exp(p[1] * T) - Y


def solve(residual, solver=RECORDED, start=START, **options):
    return mslsq.least_squares(residual, start, solver=solver, **options)


def assert_fresh(residual, previous, start=START, **options):
    """The recorded solve equals the eager one, and is another than before the change."""
    now, eager = solve(residual, start=start, **options), solve(residual, EAGER, start=start, **options)
    assert torch.allclose(now.value, eager.value, rtol=1e-9)
    assert float((now.cost - eager.cost).abs().max()) <= 1e-10 * float(eager.cost.abs().max())
    assert torch.equal(now.num_steps, eager.num_steps)
    assert not torch.allclose(now.value.double().sum(), previous.value.double().sum(), rtol=1e-6)


# ---- replay is the same answer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "linear"),
    [
        (mslsq.LevenbergMarquardt, mslsq.linear.Cholesky()),
        (mslsq.Dogleg, mslsq.linear.Cholesky()),
        (mslsq.GaussNewton, mslsq.linear.QR()),
    ],
)
def test_replay_equals_eager(solver, linear):
    y = torch.stack((Y, Y + 0.3 * T, 2 * Y))

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    recorded, eager = (
        solve(residual, solver(linear_solver=linear, trace=trace), args=(y,), in_dims=(None, 0))
        for trace in ("always", "never")
    )
    assert torch.allclose(recorded.value, eager.value, rtol=1e-12)
    assert torch.equal(recorded.status, eager.status)
    assert torch.equal(recorded.num_steps, eager.num_steps)
    assert torch.equal(recorded.history.accepted, eager.history.accepted)


def test_a_recorded_step_does_not_run_the_users_python():
    """So the tests below do not pass because nothing was recorded."""
    calls = []

    def residual(p):
        calls.append(1)
        return scaled(p, 1.0)

    def run():
        calls.clear()
        steps = int(solve(residual, dataclasses.replace(RECORDED, native="never")).num_steps)
        return len(calls), steps

    run()
    count, steps = run()
    assert steps > 3
    assert count == 2  # the comparisons at the start and at the solution
    assert int(solve(residual, EAGER).num_steps) == steps


def test_recording_waits_until_it_pays():
    """A solve of a few steps is not worth the second that recording costs."""
    calls = []

    def residual(p):
        calls.append(1)
        return scaled(p, 1.0)

    for _ in range(2):
        calls.clear()
        steps = int(solve(residual, mslsq.LevenbergMarquardt(native="never")).num_steps)
        assert len(calls) >= steps + 1


# ---- what changes is noticed -------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["number", "tensor", "in place", "data"])
def test_a_changed_closure_value(change):
    factor = 1.0 if change == "number" else torch.tensor(1.0, dtype=F64)

    def residual(p):
        return scaled(p, factor)

    before = solve(residual)
    if change == "number":
        factor = 2.0
    elif change == "tensor":
        factor = torch.tensor(2.0, dtype=F64)
    elif change == "in place":
        factor.mul_(2)
    else:
        factor.data = torch.tensor(2.0, dtype=F64)
    assert_fresh(residual, before)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5, dtype=F64))
        self.register_buffer("offset", torch.tensor(0.0, dtype=F64))
        self.power = 1
        self.options = {"shift": 0.0, "list": [0.0]}
        self.drop = nn.Dropout(0.0)

    def forward(self, p):
        shift = self.options["shift"] + self.options["list"][0]
        out = self.factor**self.power * p[0] * torch.exp(p[1] * T) + self.offset + shift - Y
        return 2 * out + 0.5 * p[0] if not self.training else out


CHANGES = {
    "attribute": lambda m: setattr(m, "power", -1) or setattr(m, "training", True),
    "rebound parameter": lambda m: setattr(m, "factor", nn.Parameter(torch.tensor(2.0, dtype=F64))),
    "parameter in place": lambda m: m.factor.data.mul_(2.0),
    "optimiser step": lambda m: m.factor.grad is None and torch.no_grad()(lambda: m.factor.add_(1.0))(),
    "buffer": lambda m: setattr(m, "offset", torch.tensor(0.5, dtype=F64)),
    "entry of a dict": lambda m: m.options.update(shift=0.5),
    "entry of a list in a dict": lambda m: m.options["list"].__setitem__(0, 0.5),
    "eval": lambda m: m.eval(),
    "another forward": lambda m: setattr(m, "forward", types.MethodType(lambda self, p: scaled(p, 2.0), m)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module(change):
    model = Model()
    before = solve(model)
    CHANGES[change](model)
    assert_fresh(model, before)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", ["attribute", "parameter", "eval", "weight", "loss scale"])
def test_a_changed_cost_function(change):
    class Fit(mslsq.CostFunction):
        def __init__(self, *variables, **options):
            super().__init__(*variables, **options)
            self.factor = 1.0

        def residual(self, p, net, y):
            return self.factor * net(p) * (1 if self.training else 2) - y

    torch.manual_seed(0)
    net = nn.Linear(2, 2, bias=False).to(F64)
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    weight = mslsq.Diagonal(torch.rand(8, 2, generator=torch.Generator().manual_seed(1), dtype=F64) + 0.5)
    problem = mslsq.Problem(Fit(p, net=net, y=y, weight=weight, loss=mslsq.Cauchy(1.0)))
    cost = next(iter(problem))

    def run(solver):
        return mslsq.solve(problem, {"p": START}, solver=solver)

    before = run(RECORDED)
    if change == "attribute":
        cost.factor = 3.0
    elif change == "parameter":
        net.weight.data.mul_(2)
    elif change == "eval":
        problem.eval()
    elif change == "weight":
        cost.weight.value = cost.weight.value.flip(0)
    else:
        cost.loss.scale = torch.tensor(0.2, dtype=F64)
    now, eager = run(RECORDED), run(EAGER)
    assert torch.allclose(now.value["p"], eager.value["p"], rtol=1e-9)
    assert not torch.allclose(now.value["p"], before.value["p"], rtol=1e-4)


def test_a_rebound_global(monkeypatch):
    def residual(p):
        return scaled(p, FACTOR) + CURVE

    before = solve(residual)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert_fresh(residual, before)
    before = solve(residual)
    monkeypatch.setitem(globals(), "CURVE", 0.3 * torch.ones(12, dtype=F64))
    assert_fresh(residual, before)
    before = solve(residual)
    CURVE.add_(T)
    assert_fresh(residual, before)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.filterwarnings("ignore::mslsq.tracing.inplace.InPlaceResidualWarning")
def test_an_attribute_of_an_imported_module(in_place):
    """The key holds its value: what was recorded or captured with another one is not used."""
    SETTINGS.factor = 1.0

    def residual(p):
        if not in_place:
            return scaled(p, SETTINGS.factor)
        r = torch.zeros(12, dtype=p.dtype)
        r[:6] = scaled(p, SETTINGS.factor)[:6]
        r[6:] = scaled(p, SETTINGS.factor)[6:]
        return r

    before = solve(residual)
    SETTINGS.factor = 2.0
    blind = solve(residual, dataclasses.replace(RECORDED, early_stop=False, max_steps=20))
    assert_fresh(residual, before)
    fresh = solve(residual, EAGER)
    assert torch.allclose(blind.value, fresh.value, rtol=1e-6) or bool(blind.value.isnan().all())


def test_a_stale_graph_without_early_stopping_is_never_an_answer():
    """It cannot be recorded again without asking the device; then the result is NaN and says so."""
    hidden = torch.Generator()  # an object in C, whose state no key holds
    hidden.manual_seed(1)
    blind = dataclasses.replace(RECORDED, early_stop=False, max_steps=20)

    def residual(p):
        return scaled(p, float(hidden.initial_seed()))

    solve(residual, blind)
    hidden.manual_seed(2)
    solution = solve(residual, blind)
    assert bool(solution.value.isnan().all()) and not bool(solution.converged)


def test_more_rows_than_before():
    SETTINGS.rows = 12

    def residual(p):
        return scaled(p, 1.0)[: SETTINGS.rows]

    before = solve(residual)
    SETTINGS.rows = 5
    assert_fresh(residual, before)


def test_strides_dtype_shape_and_batch_size():
    def residual(p, y):
        return (p[0] * torch.exp(p[1] * T.to(y.dtype)) - y.T).T.reshape(-1)

    square = torch.randn(12, 12, generator=torch.Generator().manual_seed(0), dtype=F64) + 1
    for y in (
        square,
        square.T,
        square[:, :12].clone(),
        square.float(),
        square[:, :7],
        torch.cat((square, square))[::2],
    ):
        start = START.to(y.dtype)
        now, eager = (solve(residual, solver, start, args=(y,)) for solver in (RECORDED, EAGER))
        # float32: two orders of summation, cost near 70
        assert torch.allclose(now.value, eager.value, rtol=1e-9 if y.dtype == F64 else 1e-3)
    for size in (1, 2, 3):
        y = torch.stack([square * (k + 1) for k in range(size)])
        now, eager = (solve(residual, solver, args=(y,), in_dims=(None, 0)) for solver in (RECORDED, EAGER))
        assert now.value.shape == (size, 2)
        assert torch.allclose(now.value, eager.value, rtol=1e-9)


def test_the_default_dtype():
    def residual(p):
        return p - torch.ones(2) / 3  # in the default dtype

    try:
        before = solve(residual)
        torch.set_default_dtype(F64)
        now = solve(residual)
    finally:
        torch.set_default_dtype(torch.float32)
    assert float((before.value - 1 / 3).abs().max()) > 1e-9  # a third in float32
    assert float((now.value - 1 / 3).abs().max()) < 1e-10


def test_other_code_under_the_same_name():
    def make(power):
        if power == 1:
            return lambda p: scaled(p, 1.0)
        return lambda p: scaled(p, 2.0)

    before = solve(make(1))
    assert_fresh(make(2), before)

    def residual(p):
        return scaled(p, 1.0)

    solve(residual)
    residual.__code__ = (lambda p: scaled(p, 3.0)).__code__
    assert_fresh(residual, before)


def test_a_static_argument():
    def residual(p, factor):
        return scaled(p, factor)

    before = solve(residual, args=(1.0,))
    assert_fresh(residual, before, args=(2.0,))


def test_an_attribute_of_an_object_among_the_arguments():
    settings = types.SimpleNamespace(factor=1.0)

    def residual(p, settings):
        return scaled(p, settings.factor)

    before = solve(residual, args=(settings,))
    settings.factor = 2.0
    assert_fresh(residual, before, args=(settings,))


def test_other_fixed_blocks_and_indices():
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=3)
    pull = mslsq.cost(lambda x, y: x - y)
    y = torch.tensor([[1.0], [2.0]], dtype=F64)
    damped = mslsq.LevenbergMarquardt(trace="always")  # in the last case nothing pulls block 1
    start = {"x": torch.zeros(3, 1, dtype=F64)}
    for index, fixed in (([0, 1], 2), ([0, 2], 1), ([0, 2], 0)):
        problem = mslsq.Problem(pull(x[index], y=y, name="pull"), x.fixed(fixed))
        for _ in range(2):
            value = mslsq.solve(problem, start, solver=damped).value["x"][:, 0]
            expected = torch.zeros(3, dtype=F64)
            expected[index] = y[:, 0]
            expected[fixed] = 0
            assert torch.allclose(value, expected)


def test_a_lambda_written_again_for_every_call_is_recognised():
    calls = []

    def run(factor):
        calls.clear()
        solve(lambda p: calls.append(1) or scaled(p, factor), dataclasses.replace(RECORDED, native="never"))
        return len(calls)

    tensor = torch.tensor(1.0, dtype=F64)
    run(tensor)
    assert run(tensor * 2) == 2


def test_the_cache_keeps_the_plans_used_last():
    cache = PlanCache(size=2)
    plans = {name: object() for name in "abc"}
    cache.put("a", plans["a"])
    cache.put("b", plans["b"])
    assert cache.get("a") is plans["a"]
    cache.put("c", plans["c"])
    assert cache.get("b") is None and cache.get("a") is plans["a"] and cache.get("c") is plans["c"]
    cache.drop("a")
    assert cache.get("a") is None


# ---- compile -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 5])
def test_compiled_equals_eager(batch):
    y = torch.stack([Y * (k + 1) for k in range(batch)])

    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    solvers = (mslsq.GaussNewton(compile=True), EAGER)
    compiled, eager = (solve(residual, solver, args=(y,), in_dims=(None, 0)) for solver in solvers)
    assert torch.allclose(compiled.value, eager.value, rtol=1e-9)
    assert torch.equal(compiled.status, eager.status)


CACHED = """
import torch, mslsq
from torch._dynamo.utils import counters
i = torch.randperm(40, generator=torch.Generator().manual_seed(SEED))
seen = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
x = mslsq.Variable("x", mslsq.Euclidean(1), count=40)
@mslsq.cost
def sine(a, b, *, seen):
    return (a.sin() + b).reshape(1) - seen
start = torch.zeros(40, 1, dtype=seen.dtype)
problem = mslsq.Problem(sine(x[i], x[torch.arange(40)], seen=seen[:, None]), mslsq.Prior(x, target=start))
solvers = [mslsq.LevenbergMarquardt(compile=compile) for compile in (True, False)]
values = [mslsq.solve(problem, {"x": start}, solver=solver).value["x"] for solver in solvers]
print(float((values[0] - values[1]).abs().max()), counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.slow
def test_another_process_takes_the_compiled_graph_from_disk_and_its_own_numbers(tmp_path):
    """The same graph with other indices and other data: the code may come from the cache, nothing else."""
    outcomes = []
    for seed in (1, 1, 2):
        program = CACHED.replace("SEED", str(seed))
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        difference, hits = done.stdout.split()
        assert float(difference) < 1e-9
        outcomes.append(int(hits))
    assert outcomes[0] == 0 and outcomes[1] > 0


def test_without_a_compiler_compile_says_so_once_and_works(monkeypatch):
    monkeypatch.setattr("mslsq.tracing.recording.compiler_available", lambda: False)

    def residual(p):
        return scaled(p, 1.0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = solve(residual, mslsq.GaussNewton(compile=True))
        second = solve(residual, mslsq.GaussNewton(compile=True))
    said = [warning for warning in caught if issubclass(warning.category, NoCompilerWarning)]
    assert len(said) == 1
    assert "C++ compiler" in str(said[0].message) and "replayed" in str(said[0].message)
    assert torch.allclose(first.value, solve(residual, EAGER).value, rtol=1e-9)
    assert torch.equal(second.value, first.value)


# ---- in place ----------------------------------------------------------------------------------------

PAIRS = [(0, 1), (0, 2), (1, 2)]


def theseus_650(x, ratios):
    """The residual of Theseus issue 650 as it was written: maps m_i with measured ratios, all pairs into one vector."""
    cells = x.shape[-1] // 3
    error = torch.zeros(len(PAIRS) * cells, dtype=x.dtype)
    for k, (i, j) in enumerate(PAIRS):
        m_i, m_j = x[i * cells : (i + 1) * cells], x[j * cells : (j + 1) * cells]
        error[k * cells : (k + 1) * cells] = ratios[k] * m_i - m_j
    return torch.cat((error, x[:cells] - 1))


def out_of_place(x, ratios):
    cells = x.shape[-1] // 3
    m = x.reshape(3, cells)
    error = [ratios[k] * m[i] - m[j] for k, (i, j) in enumerate(PAIRS)]
    return torch.cat([*error, m[0] - 1])


def test_the_in_place_residual_of_theseus_650_is_right_with_one_warning():
    ratios = 1 + torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    start = torch.ones(15, dtype=F64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solutions = [
            mslsq.least_squares(theseus_650, start, (ratios,), in_dims=(None, 0), solver=solver)
            for solver in (EAGER, EAGER, EAGER)
        ]
    said = [str(warning.message) for warning in caught if issubclass(warning.category, InPlaceResidualWarning)]
    assert len(said) == 1
    assert "error[k * cells : (k + 1) * cells] =" in said[0] and "torch.cat" in said[0]
    expected = mslsq.least_squares(out_of_place, start, (ratios,), in_dims=(None, 0), solver=EAGER)
    for solution in solutions:
        assert torch.allclose(solution.value, expected.value, rtol=1e-9)
        assert torch.equal(solution.num_steps, expected.num_steps)


def test_the_in_place_residual_of_theseus_650_in_a_cost_function():
    ratios = 1 + torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)

    class InPlace(mslsq.CostFunction):
        def residual(self, x, ratios):
            return theseus_650(x, ratios)

    class OutOfPlace(mslsq.CostFunction):
        def residual(self, x, ratios):
            return out_of_place(x, ratios)

    x = mslsq.Variable("x", mslsq.Euclidean(15), count=4)
    start = {"x": torch.ones(4, 15, dtype=F64)}
    with pytest.warns(InPlaceResidualWarning, match="in_place"):
        solution = mslsq.solve(mslsq.Problem(InPlace(x, ratios=ratios)), start)
    expected = mslsq.solve(mslsq.Problem(OutOfPlace(x, ratios=ratios)), start)
    assert torch.allclose(solution.value["x"], expected.value["x"], rtol=1e-9)


@pytest.mark.filterwarnings("ignore::mslsq.tracing.inplace.InPlaceResidualWarning")
def test_the_gradient_through_an_in_place_residual_is_that_of_the_other():
    ratios = 1 + torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    start = torch.ones(15, dtype=F64)
    solver = mslsq.LevenbergMarquardt(ftol=0, xtol=0, gtol=1e-12)
    gradients = [
        torch.func.grad(lambda r, f=f: mslsq.least_squares(f, start, (r,), solver=solver).value.square().sum())(ratios)
        for f in (theseus_650, out_of_place)
    ]
    assert torch.allclose(*gradients, rtol=1e-7)


def test_a_branch_on_data_is_an_error_that_names_its_line():
    def residual(x, y):
        if x[0] > 0:  # the branch
            return x - y
        return x + y

    with pytest.raises(CaptureError, match=r"torch.where") as caught:
        solve(residual, args=(Y[:2],))
    assert caught.value.line is not None and caught.value.line.text == "if x[0] > 0:  # the branch"
    assert "residual" in str(caught.value)


def test_an_item_is_an_error_that_names_its_line_in_a_cost_function_too():
    @mslsq.cost
    def scaled_by_number(x, y):
        factor = y.sum().item() * x[0].item()
        return factor * x - y

    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    problem = mslsq.Problem(scaled_by_number(x, y=torch.ones(3, 2, dtype=F64)))
    with pytest.raises(CaptureError, match=r"scaled_by_number(.|\n)*\.item\(\)") as caught:
        mslsq.solve(problem, {"x": torch.ones(3, 2, dtype=F64)})
    assert caught.value.line is not None and "x[0].item()" in caught.value.line.text


def test_an_item_of_what_is_the_same_for_all_blocks_is_an_error_as_well():
    """It would be a constant in the graph."""

    def residual(x, y):
        return x * float(y.sum()) - y

    with pytest.raises(CaptureError, match="float"):
        solve(residual, args=(torch.ones(3, 2, dtype=F64) * T[:3, None],), in_dims=(None, 0))
