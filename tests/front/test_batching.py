"""A batch by `in_dims` or by `torch.func.vmap` equals solving one by one, and its entries do not notice each other."""

import threading

import pytest
import torch
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import mslsq
from mslsq import Status

F64 = torch.float64
T = torch.linspace(0, 1, 20, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
FIGURES = ("cost", "status", "num_steps", "num_evaluations")


def fits(count: int, seed: int = 0, noise: float = 0.02) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    p = torch.tensor([2.0, -1.5, 0.3], dtype=F64) + 0.4 * torch.randn(count, 3, generator=generator, dtype=F64)
    return torch.stack([model(q, T) for q in p]) + noise * torch.randn(count, 20, generator=generator, dtype=F64)


def model(p, t):
    return p[0] * torch.exp(p[1] * t) + p[2]


def residual(p, t, y):
    return model(p, t) - y


def assert_same_solutions(batch, singles):
    """The same decisions, and values equal but for the order in which sums are taken."""
    values = torch.stack([single.value for single in singles])
    assert torch.allclose(batch.value.reshape(values.shape), values, rtol=1e-10, atol=1e-12)
    for figure in FIGURES:
        expected = torch.stack([getattr(single, figure) for single in singles])
        got = getattr(batch, figure).reshape(expected.shape)
        assert torch.allclose(got, expected, rtol=1e-9) if got.is_floating_point() else torch.equal(got, expected)


def named(solver):
    return f"{type(solver).__name__}-{solver.linear_solver}-{solver.early_stop}-{solver.native}"


# Bits are compared: all calls on the same code.
SOLVERS = [
    mslsq.LevenbergMarquardt(native="never"),
    mslsq.Dogleg(native="never"),
    mslsq.GaussNewton(native="never"),
    mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR(), native="never"),
    mslsq.LevenbergMarquardt(early_stop=False, max_steps=25, native="never"),
    mslsq.LevenbergMarquardt(native="wait"),
]


# ---- least_squares -------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS, ids=named)
def test_in_dims_equal_one_by_one(solver):
    y = fits(7)
    batch = mslsq.least_squares(residual, START, (T, y), in_dims=(None, None, 0), solver=solver)
    assert_same_solutions(batch, [mslsq.least_squares(residual, START, (T, one), solver=solver) for one in y])


@pytest.mark.parametrize("solver", SOLVERS, ids=named)
def test_vmap_around_the_solve_equals_in_dims(solver):
    y = fits(7)
    batch = mslsq.least_squares(residual, START, (T, y), in_dims=(None, None, 0), solver=solver)
    mapped = vmap(lambda y: mslsq.least_squares(residual, START, (T, y), solver=solver))(y)
    assert torch.equal(mapped.value, batch.value)
    for figure in FIGURES:
        assert torch.equal(getattr(mapped, figure), getattr(batch, figure))
    assert torch.equal(mapped.history.accepted, batch.history.accepted)


def test_nested_vmap_and_vmap_of_a_batch():
    y = fits(6).reshape(2, 3, 20)
    singles = [mslsq.least_squares(residual, START, (T, one)) for one in y.reshape(6, 20)]
    nested = vmap(vmap(lambda y: mslsq.least_squares(residual, START, (T, y))))(y)
    assert nested.value.shape == (2, 3, 3)
    assert_same_solutions(nested, singles)
    outer = vmap(lambda y: mslsq.least_squares(residual, START, (T, y), in_dims=(None, None, 0)))(y)
    assert_same_solutions(outer, singles)


def test_nested_vmap_over_different_arguments_is_the_grid():
    y, starts = fits(2), torch.stack((START, START + 0.3, START - 0.2))
    grid = vmap(lambda y: vmap(lambda x0: mslsq.least_squares(residual, x0, (T, y)))(starts))(y)
    singles = [mslsq.least_squares(residual, x0, (T, one)) for one in y for x0 in starts]
    assert_same_solutions(grid, singles)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_may_be_the_batch(axis):
    y = fits(5)
    batch = mslsq.least_squares(residual, START, (T, y.movedim(0, axis)), in_dims=(None, None, axis))
    assert_same_solutions(batch, [mslsq.least_squares(residual, START, (T, one)) for one in y])
    mapped = vmap(lambda y: mslsq.least_squares(residual, START, (T, y)), in_dims=axis)(y.movedim(0, axis))
    assert torch.equal(mapped.value, batch.value)


def test_the_start_alone_may_be_mapped():
    y, starts = fits(1)[0], START + 0.2 * torch.arange(4, dtype=F64)[:, None]
    singles = [mslsq.least_squares(residual, x0, (T, y)) for x0 in starts]
    assert_same_solutions(mslsq.least_squares(residual, starts, (T, y), in_dims=(0, None, None)), singles)
    assert_same_solutions(vmap(lambda x0: mslsq.least_squares(residual, x0, (T, y)))(starts), singles)


def test_one_problem_in_a_batch_keeps_its_axis():
    y = fits(1)
    batch = mslsq.least_squares(residual, START, (T, y), in_dims=(None, None, 0))
    assert batch.value.shape == (1, 3) and batch.status.shape == (1,)
    assert_same_solutions(batch, [mslsq.least_squares(residual, START, (T, y[0]))])


def test_manifold_elements_and_pytrees_are_mapped_by_structures_of_in_dims():
    generator = torch.Generator().manual_seed(0)
    truth = mslsq.SO3.exp(torch.randn(4, 3, generator=generator, dtype=F64))
    points = torch.randn(6, 3, generator=generator, dtype=F64)
    moved = truth[:, None].act(points)
    start = {"r": mslsq.SO3.exp(torch.zeros(3, dtype=F64)), "t": torch.zeros(4, 3, dtype=F64)}

    def registration(x, data):
        return x["r"].act(data["points"]) + x["t"] - data["moved"]

    solution = mslsq.least_squares(
        registration,
        start,
        ({"points": points, "moved": moved},),
        in_dims=({"r": None, "t": 0}, {"points": None, "moved": 0}),
    )
    assert solution.value["r"].shape == (4,)
    assert torch.allclose(solution.value["r"].local(truth), torch.zeros(4, 3, dtype=F64), atol=1e-6)
    one = {**start, "t": start["t"][0]}
    mapped = vmap(lambda moved: mslsq.least_squares(registration, one, ({"points": points, "moved": moved},)))
    assert torch.allclose(mapped(moved).value["r"].storage, solution.value["r"].storage, atol=1e-12)


def test_captured_tensors_are_mapped_by_vmap():
    y = fits(3)

    def fit(y):
        def closed(p):
            return model(p, T) - y

        return mslsq.least_squares(closed, START)

    assert_same_solutions(vmap(fit)(y), [mslsq.least_squares(residual, START, (T, one)) for one in y])


def test_ragged_problems_by_masks():
    y = fits(4)
    counts = torch.tensor([20, 12, 7, 15])
    mask = torch.arange(20) < counts[:, None]
    padded = torch.where(mask, y, torch.nan)

    def masked(p, t, y, mask):
        return torch.where(mask, model(p, t) - torch.where(mask, y, 0), 0)

    batch = mslsq.least_squares(masked, START, (T, padded, mask), in_dims=(None, None, 0, 0))
    singles = [
        mslsq.least_squares(residual, START, (T[:n], one[:n])) for n, one in zip(counts.tolist(), y, strict=True)
    ]
    assert_same_solutions(batch, singles)


class StorageMode(TorchDispatchMode):
    """The largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


@pytest.mark.parametrize("by", ["in_dims", "vmap"])
def test_what_is_not_mapped_stays_shared_in_memory(by):
    """64 problems look at one big table; 64 copies of it would be 6.4 million numbers."""
    table = torch.linspace(0, 1, 100_000, dtype=F64)
    index = torch.arange(64) * 1000

    def lookup(x, table, i):
        return x - table.index_select(0, i.reshape(1))

    x0, solver = torch.zeros(1, dtype=F64), mslsq.LevenbergMarquardt(max_steps=50)  # a history of 50 records
    with StorageMode() as mode:
        if by == "in_dims":
            solution = mslsq.least_squares(lookup, x0, (table, index), in_dims=(None, None, 0), solver=solver)
        else:
            solution = vmap(lambda i: mslsq.least_squares(lookup, x0, (table, i), solver=solver))(index)
    assert torch.allclose(solution.value[:, 0], table[index])
    assert mode.largest <= table.numel()


# ---- solve ---------------------------------------------------------------------------------------


class Between(mslsq.CostFunction):
    def residual(self, a: mslsq.SE2, b: mslsq.SE2, measured: mslsq.SE2):
        return (measured.inverse() @ (a.inverse() @ b)).log()


def graph(seed: int = 0):
    """A loop of five poses with an inconsistent closing edge."""
    generator = torch.Generator().manual_seed(seed)
    pose = mslsq.Variable("pose", mslsq.SE2, count=5)
    i, j = torch.arange(5), (torch.arange(5) + 1) % 5
    step = torch.tensor([1.0, 0.0, 2 * torch.pi / 5], dtype=F64).expand(5, 3)
    measured = mslsq.SE2.exp(step + 0.05 * torch.randn(5, 3, generator=generator, dtype=F64))
    problem = mslsq.Problem(Between(pose[i], pose[j], measured=measured), pose.fixed(0))
    corners = [mslsq.SE2.exp(torch.zeros(3, dtype=F64))]
    for k in range(4):
        corners.append(corners[-1] @ mslsq.SE2.exp(step[k]))
    corners = mslsq.SE2(torch.stack([corner.storage for corner in corners]))
    start = corners.retract(0.1 * torch.randn(5, 3, generator=generator, dtype=F64))
    return problem, start, measured


@pytest.mark.parametrize("by", ["in_dims", "vmap", "nested"])
def test_a_batch_of_problems_equals_one_by_one(by):
    problem, start, measured = graph()
    generator = torch.Generator().manual_seed(9)
    measured = measured[None].retract(0.1 * torch.randn(4, 5, 3, generator=generator, dtype=F64))
    singles = [mslsq.solve(problem, {"pose": start}, {"between": {"measured": measured[k]}}) for k in range(4)]

    def one(m):
        return mslsq.solve(problem, {"pose": start}, {"between": {"measured": m}})

    if by == "in_dims":
        batch = mslsq.solve(
            problem, {"pose": start}, {"between": {"measured": measured}}, in_dims=(None, {"between": {"measured": 0}})
        )
    elif by == "vmap":
        batch = vmap(one)(measured)
    else:
        batch = vmap(vmap(one))(mslsq.SE2(measured.storage.reshape(2, 2, 5, -1)))
    values = torch.stack([single.value["pose"].storage for single in singles])
    assert isinstance(batch.value["pose"], mslsq.SE2)
    assert torch.allclose(batch.value["pose"].storage.reshape(values.shape), values, rtol=1e-9, atol=1e-10)
    assert torch.equal(batch.status.reshape(-1), torch.stack([single.status for single in singles]))
    assert torch.equal(batch.num_steps.reshape(-1), torch.stack([single.num_steps for single in singles]))


def test_one_tensor_in_two_places_may_be_mapped_in_one_of_them():
    """The start is the very tensor that is a datum, too."""
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=2)

    @mslsq.cost
    def pull(x, towards):
        return x - towards

    own = torch.zeros(2, 2, dtype=F64)
    problem = mslsq.Problem(pull(x, towards=own, name="a"), pull(x, towards=own, name="b"))
    square = torch.arange(8, dtype=F64).reshape(2, 2, 2)
    solution = mslsq.solve(
        problem,
        {"x": square},
        {"a": {"towards": square}, "b": {"towards": square}},
        in_dims=({"x": 0}, {"a": {"towards": 0}, "b": {"towards": 1}}),
    )
    assert torch.allclose(solution.value["x"], (square + square.movedim(1, 0)) / 2)


# ---- neighbours ----------------------------------------------------------------------------------


@pytest.mark.sampled(10)
@pytest.mark.parametrize("solver", SOLVERS, ids=named)
@pytest.mark.parametrize("bad", ["nan", "inf", "nan start", "singular"])
def test_a_bad_problem_does_not_disturb_its_batch_mates(solver, bad):
    y, starts = fits(8), START.expand(8, 3).clone()
    t = T.expand(8, 20).clone()
    broken, broken_starts, broken_t = y.clone(), starts.clone(), t.clone()
    if bad == "nan":
        broken[2, 5] = torch.nan
    elif bad == "inf":
        broken[2] = torch.inf
    elif bad == "nan start":
        broken_starts[2, 1] = torch.nan
    else:
        broken_t[2] = 0.0  # exp(b·0): no influence of b; a and c cannot be told apart
    good = mslsq.least_squares(residual, starts, (t, y), in_dims=0, solver=solver)
    solution = mslsq.least_squares(residual, broken_starts, (broken_t, broken), in_dims=0, solver=solver)
    others = torch.arange(8) != 2
    for name in ("value", "gradient_norm", *FIGURES):
        assert torch.equal(getattr(solution, name)[others], getattr(good, name)[others]), name
    status = Status(int(solution.status[2]))
    if bad != "singular":
        assert status is Status.NON_FINITE
        assert "NaN or infinite" in solution.message() and solution.message().count("1 of 8") >= 1
        assert not bool(solution.converged[2])
    elif isinstance(solver, mslsq.GaussNewton):
        assert status is Status.SINGULAR
        assert "singular" in solution.message()


def test_a_residual_that_overflows_on_the_way_is_only_a_rejected_step():
    """The Gauss–Newton step from this start leads to exp(1000)."""
    y = torch.stack((model(torch.tensor([1.0, 3.0, 0.0], dtype=F64), T),) * 2)
    starts = torch.tensor([[1e-3, 0.0, 1.0], [1.0, 2.9, 0.0]], dtype=F64)
    solver = mslsq.LevenbergMarquardt(initial_damping=1e-12)
    solution = mslsq.least_squares(residual, starts, (T, y), in_dims=(0, None, 0), solver=solver)
    assert bool(torch.isfinite(solution.value).all() & torch.isfinite(solution.cost).all())
    assert bool(solution.converged[1])


def test_a_rejected_step_is_never_convergence():
    """256 fits with growth, y = a·exp(b·x) + c, b in [0.5, 2]: where a rejected step leaves the cost unchanged and
    counts as converged, 95 of them end unsolved, with costs up to 667 (SciPy: 0.0030)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(0, 4, 32, dtype=F64)
    p = torch.stack(
        (
            1 + torch.rand(256, generator=generator, dtype=F64),
            0.5 + 1.5 * torch.rand(256, generator=generator, dtype=F64),
            torch.randn(256, generator=generator, dtype=F64),
        ),
        -1,
    )
    y = torch.stack([model(q, x) for q in p]) + 0.01 * torch.randn(256, 32, generator=generator, dtype=F64)
    start = torch.ones(3, dtype=F64)
    for solver in (mslsq.LevenbergMarquardt(), mslsq.LevenbergMarquardt(initial_damping=1e-10), mslsq.Dogleg()):
        solution = mslsq.least_squares(residual, start, (x, y), in_dims=(None, None, 0), solver=solver)
        # STALLED is honest: with values up to 3000 the cost is rounding noise before ftol is met.
        assert bool((solution.converged | (solution.status == Status.STALLED)).all()), solution.message()
        assert float(solution.cost.max()) < 0.0045  # ½ Σ noise² over 32 points: 0.0016 ± 0.0004
        last = solution.history.accepted.gather(1, solution.num_steps[:, None])[:, 0]
        rise = (solution.history.cost.diff(dim=1) / solution.history.cost[:, :-1]).nan_to_num(0)
        assert float(rise.max()) < 1e-10  # the rounding of a sum of squares of differences of 3000s
        # Without an accepted step no problem converges by its gradient; by the step only where an undamped one is below
        # xtol; by cost only below its rounding.
        before = solution.history.cost.gather(1, (solution.num_steps[:, None] - 1).clamp(min=0))[:, 0]
        assert bool(last[solution.status == Status.GRADIENT_TOLERANCE].all())
        refused = (solution.status == Status.STEP_TOLERANCE) & ~last
        length = solution.history.step_norm.gather(1, solution.num_steps[:, None])[:, 0]
        assert bool((length < 1e-12 * solution.value.norm(dim=-1))[refused].all())
        assert torch.equal(before[~last], solution.cost[~last])


def test_the_result_does_not_depend_on_batch_mates():
    y = fits(9, noise=0.3)
    batch = mslsq.least_squares(residual, START, (T, y), in_dims=(None, None, 0))
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    again = mslsq.least_squares(residual, START, (T, y[shuffled]), in_dims=(None, None, 0))
    assert torch.equal(again.num_steps, batch.num_steps[shuffled])
    assert torch.allclose(again.value, batch.value[shuffled], rtol=1e-12)


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["never", "always"])
def test_four_threads_at_once_get_the_answers_of_one(trace):
    """Forward-mode levels are global to a process: without a lock a fifth of such calls are silently wrong."""
    solver = mslsq.LevenbergMarquardt(trace=trace)
    data = [fits(3, seed) for seed in range(4)]

    def solve(y):
        return mslsq.least_squares(residual, START, (T, y), in_dims=(None, None, 0), solver=solver).value

    expected = [solve(y) for y in data]
    results: dict[tuple[int, int], torch.Tensor] = {}
    errors: list[BaseException] = []

    def work(number):
        try:
            for turn in range(4):
                results[number, turn] = solve(data[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert len(results) == 16
    for (number, _), value in results.items():
        assert torch.allclose(value, expected[number], rtol=1e-12)
