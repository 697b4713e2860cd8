"""What was recorded is compared with the user's Python at the start and at the solution of every solve."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import mslsq
from mslsq.errors import CaptureError
from mslsq.linearize.agreement import NonDeterministicResidualError
from mslsq.linearize.plan_cache import PlanCache
from mslsq.linearize.rounding import Shaken
from mslsq.linearize.sample import spread
from mslsq.solvers import witness

F64 = torch.float64
RECORDED = mslsq.GaussNewton(trace="always")  # the method whose step is recorded fastest


class Box:
    """A number in a place that no key can see into: the seed of a generator."""

    def __init__(self, value):
        self.generator = torch.Generator()
        self.put(value)

    def put(self, value):
        self.generator.manual_seed(round(1e6 * value))

    def __call__(self):
        return self.generator.initial_seed() / 1e6


def hidden_rate():
    box = Box(0.5)
    t = torch.linspace(0, 3, 30, dtype=F64)

    def residual(p, y):
        return p[0] * torch.exp(-box() * t) - y

    return residual, t, box


@pytest.mark.parametrize("solver", [RECORDED, mslsq.LevenbergMarquardt(trace="always")])
def test_a_change_that_the_start_hides_is_seen_at_the_solution(solver):
    """At the start p = 0 the rate has no influence on any residual."""
    residual, t, box = hidden_rate()
    y = 2 * torch.exp(-0.7 * t)
    for rate in (0.5, 2.0, 1.0):
        box.put(rate)
        solution = mslsq.least_squares(residual, torch.zeros(1, dtype=F64), (y,), solver=solver)
        basis = torch.exp(-rate * t)
        assert torch.allclose(solution.value, (basis @ y / (basis @ basis))[None], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["never", "wait"])
def test_a_change_of_the_derivative_alone_is_seen(native, monkeypatch):
    """The residual is the same for every share; what is called its derivative is not."""
    dropped, box = count_drops(monkeypatch), Box(0.0)

    def residual(p):
        return torch.cat([p - 1, p - 3 - box() * (p - p.detach())])

    solver = mslsq.LevenbergMarquardt(trace="always", native=native)
    for share, changes in ((0.0, 0), (0.0, 0), (0.0, 0), (0.5, 1), (0.5, 1), (0.0, 2)):
        box.put(share)
        mslsq.least_squares(residual, torch.zeros(1, dtype=F64), solver=solver)
        assert len(dropped) == changes


def test_what_goes_stale_again_and_again_is_no_longer_recorded(capsys):
    residual, t, box = hidden_rate()
    y = 2 * torch.exp(-0.7 * t)
    for k in range(5):
        box.put(0.5 + 0.1 * k)
        mslsq.least_squares(residual, torch.zeros(1, dtype=F64), (y,), solver=RECORDED)
    mslsq.least_squares(residual, torch.zeros(1, dtype=F64), (y,), solver=dataclasses.replace(RECORDED, verbose=True))
    assert "unseen" in capsys.readouterr().out


def test_without_early_stopping_a_stale_graph_is_nan_and_says_so():
    box, t = Box(0.5), torch.linspace(0, 3, 30, dtype=F64)
    y = 2 * torch.exp(-0.7 * t)

    def decaying(p, y):  # code of its own: other tests' boxes in this place are no change of it
        return p[0] * torch.exp(-box() * t) - y

    blind = mslsq.GaussNewton(trace="always", early_stop=False, max_steps=20)
    mslsq.least_squares(decaying, torch.zeros(1, dtype=F64), (y,), solver=blind)
    box.put(2.0)
    solution = mslsq.least_squares(decaying, torch.zeros(1, dtype=F64), (y,), solver=blind)
    assert bool(solution.value.isnan().all()) and int(solution.status) == mslsq.Status.NON_FINITE


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("batch", [1, 7])
def test_problems_with_zero_residual_keep_their_graphs(dtype, scale, batch, monkeypatch):
    """Nothing is measured against the residual at the solution, which is rounding."""
    dropped = count_drops(monkeypatch)
    t = torch.linspace(0, 1, 20, dtype=dtype)
    y = scale * torch.stack([(2 + k) * torch.exp(-(1 + 0.1 * k) * t) + 0.3 for k in range(batch)])

    def residual(p, y):
        return scale * (p[0] * torch.exp(p[1] * t) + p[2]) - y

    for _ in range(3):
        mslsq.least_squares(residual, torch.tensor([1, -1, 0], dtype=dtype), (y,), in_dims=(None, 0), solver=RECORDED)
    assert not dropped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("manifold", [mslsq.SE2, pytest.param(mslsq.Sim3, marks=pytest.mark.slow)])
def test_pose_graphs_with_zero_residual_keep_their_graphs(dtype, manifold, monkeypatch):
    dropped = count_drops(monkeypatch)

    class Relative(mslsq.CostFunction):
        def residual(self, a, b, measured):
            return (measured.inverse() @ (a.inverse() @ b)).log()

    torch.manual_seed(0)
    truth = manifold.random(8, dtype=dtype)
    pose, i = mslsq.Variable("pose", manifold, count=8), torch.arange(7)
    j = i + 1
    problem = mslsq.Problem(Relative(pose[i], pose[j], measured=truth[i].between(truth[j])), pose.fixed([0]))
    start = truth.retract(0.05 * torch.randn(8, truth.tangent_dim, dtype=dtype) * (torch.arange(8) > 0)[:, None])
    for _ in range(3):
        mslsq.solve(problem, {"pose": start}, solver=RECORDED)
    assert not dropped


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_problems_keep_their_graphs(dtype, monkeypatch):
    dropped = count_drops(monkeypatch)
    t = torch.linspace(0, 1, 20, dtype=dtype)
    y = 2 * torch.exp(-t) + 0.3
    for _ in range(3):
        mslsq.least_squares(
            lambda p: p[0] * torch.exp(p[1] * t) + p[2] - y,
            torch.tensor([1, -1, 0], dtype=dtype),
            solver=mslsq.LevenbergMarquardt(compile=True),
        )
    assert not dropped


def count_drops(monkeypatch):
    from mslsq.linearize.plan_cache import PlanCache

    dropped, drop = [], PlanCache.drop
    monkeypatch.setattr(PlanCache, "drop", lambda self, key: dropped.append(key) or drop(self, key))
    return dropped


def test_a_residual_that_changes_while_the_solve_runs_is_an_error():
    """Its graph is a random choice of what it was: neither is an answer."""
    box = Box(1.0)

    def drifting(p):
        box.put(box() + 0.5)
        return p - box()

    with pytest.raises(NonDeterministicResidualError, match="drifting"):
        for _ in range(3):
            mslsq.least_squares(drifting, torch.zeros(2, dtype=F64), solver=RECORDED)


@pytest.mark.parametrize(
    "reads",
    [
        lambda y: y.tolist()[0],
        lambda y: float(y[0]),
        lambda y: y[0].item(),
        lambda y: torch.from_dlpack(y)[0],
        lambda y: len(y[y > 0.5]),
        lambda y: (y > 0.5).nonzero().shape[0],
        lambda y: len(torch.unique(y)),
        lambda y: 2.0 if y[0] > 0.5 else 3.0,
        lambda y: torch.masked_select(y, y > 0.5).sum(),
    ],
)
def test_what_reads_values_of_an_argument_is_not_recorded(reads):
    """A graph would keep the values of the call at which it was recorded. Nor is it recorded, but refused, where
    PyTorch itself cannot run it inside of a derivative: 2.9 has no `tolist` there."""
    ones, refused = torch.ones(3), False
    try:
        torch.func.jvp(lambda p: reads(ones) * p, (ones,), (ones,))
    except RuntimeError:
        refused = True
    for k in range(4):
        y = torch.tensor([0.2 + 0.3 * k, 0.7, 0.9 - 0.1 * k], dtype=F64)
        with (
            pytest.raises(CaptureError, match=r"(?s)cannot be captured.*test_witness\.py") if refused else nullcontext()
        ):
            solution = mslsq.least_squares(
                lambda p, y: torch.cat([p - y, reads(y) * p]), torch.zeros(3, dtype=F64), (y,), solver=RECORDED
            )
            assert torch.allclose(solution.value, y / (1 + reads(y) ** 2))


def test_failing_to_record_is_no_error_and_said(capsys):
    def valid_only(p, y):
        ok = ~y.isnan()
        return p[0] - y[ok]

    for missing in (0, 1, 2):
        y = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)
        y[:missing] = torch.nan
        solution = mslsq.least_squares(
            valid_only, torch.zeros(1, dtype=F64), (y,), solver=dataclasses.replace(RECORDED, verbose=True)
        )
        assert torch.allclose(solution.value, y[missing:].mean())
    assert "No graph of the residual is kept" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "call"), [(1, 0), (2, 3), (4, 1), (5, 2), (1000, 7)])
def test_the_lanes_move_on_from_call_to_call(count, call):
    chosen, later = spread(count, call), spread(count, call + 1)
    assert len(chosen) <= 4 and {0, count - 1} <= set(chosen) and max(chosen) < count
    assert count <= 5 or chosen != later


# ---- where PyTorch's own reverse mode is wrong -------------------------------------------------------


DIRECTIONS = torch.tensor([[1.0, 2.0, 0.5], [0.3, -1.0, 2.0]], dtype=F64)


def short_vector(x, t):
    """A vector shorter than 1e-8, where `cosine_similarity` clamps: its cosine is linear there, Σ x t / (1e-8 |t|)."""
    return torch.cat([F.cosine_similarity(x, t, dim=0)[None], 1e7 * (x - 1e-9 * t)])


@pytest.mark.parametrize("trace", ["never", "auto", "always"])
def test_a_clamped_cosine_similarity_has_its_true_derivative(trace):
    """Plain reverse mode of PyTorch moves the clamped norm, and forward mode does not; a neighbour is not clamped.

    The minimum is that of a linear problem: 1e-9 t / 101, and so is its derivative.
    """
    solver = mslsq.LevenbergMarquardt(trace=trace)
    start = DIRECTIONS[0] + 0.3
    for _ in range(4):
        t = DIRECTIONS.clone().requires_grad_()
        solution = mslsq.least_squares(short_vector, start, (t,), in_dims=(None, 0), solver=solver)
        assert bool(solution.converged.all()) and bool(solution.differentiable.all())
        torch.testing.assert_close(solution.value.detach(), 1e-9 * DIRECTIONS / 101, rtol=1e-6, atol=0)
        (gradient,) = torch.autograd.grad(solution.value.sum(), t)
        torch.testing.assert_close(gradient, torch.full_like(DIRECTIONS, 1e-9 / 101), rtol=1e-6, atol=0)


def test_the_operator_itself_is_known_too():
    def residual(x, t):
        return torch.cat([torch.ops.aten.cosine_similarity(x, t, 0)[None], 1e7 * (x - 1e-9 * t)])

    solution = mslsq.least_squares(residual, DIRECTIONS[0] + 0.3, (DIRECTIONS,), in_dims=(None, 0))
    torch.testing.assert_close(solution.value, 1e-9 * DIRECTIONS / 101, rtol=1e-6, atol=0)


def test_one_lane_that_clamps_disturbs_no_other():
    def residual(x, scale, t):
        return torch.cat([F.cosine_similarity(x, t, dim=0)[None] - 0.4, 1e-2 / scale * (x - scale * t)])

    t, scales = DIRECTIONS[0], torch.tensor([1e-9, 1.0], dtype=F64)
    start = torch.tensor([0.5, 0.5, 0.5], dtype=F64) * scales[:, None]
    both = mslsq.least_squares(residual, start, (scales, t), in_dims=(0, 0, None))
    alone = mslsq.least_squares(residual, start[1], (scales[1], t))
    assert bool(both.converged.all())
    torch.testing.assert_close(both.value[1], alone.value, rtol=1e-9, atol=1e-12)
    x = both.value[0].clone()
    step = 1e-13 * torch.eye(3, dtype=F64)
    costs = [[float(residual(x + s * row, scales[0], t).square().sum()) for s in (-1, 0, 1)] for row in step]
    assert all(middle <= min(low, high) for low, middle, high in costs)


def exponential(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def exponential_jacobian(p, t, y):
    growth = torch.exp(p[1] * t)
    return torch.stack((growth, p[0] * t * growth, torch.ones_like(t)), -1)


@pytest.mark.parametrize("jac", [None, exponential_jacobian], ids=["autodiff", "given"])
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_a_lane_that_is_no_number_is_not_taken_for_a_stale_graph(jac, entry):
    """The derivative by p[2] is 1 in reverse mode where p[1] is NaN, and NaN in forward mode: 0 times NaN. In one call
    of three the second lane is among those that are compared."""
    t = torch.linspace(0, 1, 20, dtype=F64)
    y = 2 * torch.exp(-1.5 * t) + 0.3 + 0.1 * torch.cos(9 * t)
    starts = torch.tensor([1.0, -1.0, 0.0], dtype=F64).repeat(8, 1)
    starts[2, entry] = torch.nan
    blind = mslsq.LevenbergMarquardt(trace="always", early_stop=False, max_steps=12)
    for _ in range(7):
        solution = mslsq.least_squares(exponential, starts, (t, y), jac=jac, in_dims=(0, None, None), solver=blind)
        assert solution.status[2] == mslsq.Status.NON_FINITE
        others = torch.arange(8) != 2
        assert bool(solution.value[others].isfinite().all())


def test_a_row_without_the_broken_variable_is_compared_with_a_tolerance(monkeypatch):
    """|J|·|x| is NaN in all rows of a lane with a NaN in x. What has no tolerance would have to be equal to the bit."""
    seen, differ = [], witness._differ

    def spy(old, new, allowed, *asks):
        seen.append(allowed)
        return differ(old, new, allowed, *asks)

    monkeypatch.setattr(witness, "_differ", spy)
    starts = torch.tensor([[1.0, 1.0], [torch.nan, 1.0]], dtype=F64)
    mslsq.least_squares(lambda p: torch.stack((p[0], p[1] - 3)), starts, in_dims=0, solver=RECORDED)
    assert seen and not any(bool(allowed.isnan().any()) for allowed in seen)


def test_a_start_that_is_not_finite_is_no_sign_of_a_change(monkeypatch):
    """Forward mode has NaN in all columns of its Jacobian, reverse mode not in that of an offset."""
    t = torch.linspace(0, 1, 10, dtype=F64)
    starts = torch.tensor([1.0, -1.0, 0.0], dtype=F64).repeat(8, 1)
    starts[2, 1] = torch.nan
    dropped = []
    monkeypatch.setattr(PlanCache, "drop", lambda self, key: dropped.append(key))

    def residual(p, y):
        return p[0] * torch.exp(p[1] * t) + p[2] - y

    for _ in range(4):  # the lanes that are looked at move on
        solution = mslsq.least_squares(residual, starts, (torch.exp(-t),), in_dims=(0, None), solver=RECORDED)
        assert int(solution.status[2]) == int(mslsq.Status.NON_FINITE)
    assert not dropped


def projected(p, t, y):
    """Variable projection by hand: near p[1] = 0 the columns are parallel, and rounding is a million times larger."""
    design = torch.stack([torch.exp(p[1] * t), torch.ones_like(t)], dim=1)
    normal = design.T @ design + 1e-9 * torch.eye(2, dtype=p.dtype)
    linear = torch.cholesky_solve((design.T @ y)[:, None], torch.linalg.cholesky(normal))[:, 0]
    return torch.cat([design @ linear - y, 0.1 * p])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unused", [0, 1])
@pytest.mark.parametrize("steps", [1, 50])
def test_rounding_that_a_nearly_singular_matrix_enlarges_is_no_change(steps, unused, monkeypatch):
    dropped = count_drops(monkeypatch)
    t = torch.linspace(0, 1, 8, dtype=F64)
    start = torch.tensor([1.0, -1.0, 0.5][: 2 + unused], dtype=F64)
    for _ in range(3):
        solver = mslsq.LevenbergMarquardt(max_steps=steps, trace="always")
        solution = mslsq.least_squares(projected, start, (t, 2 - t), solver=solver)
        assert bool(solution.value.isfinite().all())
    assert not dropped


@pytest.mark.parametrize("trace", ["auto", "always"])
def test_rounding_is_known_to_later_solves_that_may_not_ask(trace):
    """Without early stopping a difference makes the answer NaN: how large rounding is, is found when a plan is new."""
    t, start = torch.linspace(0, 1, 8, dtype=F64), torch.tensor([1.0, -1.0], dtype=F64)
    blind = mslsq.LevenbergMarquardt(max_steps=50, trace=trace, early_stop=False)
    for _ in range(6):
        assert bool(mslsq.least_squares(projected, start, (t, 2 - t), solver=blind).value.isfinite().all())


def test_a_change_is_seen_where_rounding_is_large():
    """The same with a hidden factor: a ten-thousandth is far beyond what rounding does."""
    box, t = Box(1.0), torch.linspace(0, 1, 8, dtype=F64)

    def residual(p):
        return projected(p, t, box() * (2 - t + t.square()))

    for factor in (1.0, 1.0001, 1.0):
        box.put(factor)
        found = mslsq.least_squares(residual, torch.tensor([1.0, -1.0], dtype=F64), solver=RECORDED)
        assert float(found.cost) == pytest.approx(0.5 * float(residual(found.value).square().sum()), rel=1e-9)


def test_every_operator_is_shaken_but_not_what_views_show_or_what_is_written():
    x = torch.rand(1000, dtype=F64) + 1
    with Shaken(0):
        doubled, part = 2 * x, x[:10]
        buffer = torch.empty(1000, dtype=F64)
        buffer.copy_(x)
    eps = torch.finfo(F64).eps
    assert torch.equal(part, x[:10]) and torch.equal(buffer, x)
    assert (doubled != 2 * x).double().mean() > 0.9 and float((doubled / x / 2 - 1).abs().max()) < 2.5 * eps


def test_what_jumps_is_not_excused_as_rounding(monkeypatch):
    """The noise of a number next to a step of `floor` is 1: it may excuse 1e4 times what is allowed, and no more."""
    seen, differ = [], witness._differ

    def spy(old, new, allowed, *asks):
        seen.append(allowed)
        return differ(old, new + (1e-3 if len(seen) == 1 else 0), allowed, *asks)

    monkeypatch.setattr(witness, "_differ", spy)

    def residual(p):
        return torch.stack((torch.floor(p[0] * 1.0) + p[0] - 3, p[1] - 1))

    mslsq.least_squares(residual, torch.tensor([2.0, 0.5], dtype=F64), solver=RECORDED)
    room, more = (float(allowed[:, :2].max()) for allowed in seen[:2])  # of the two residuals
    assert more <= 1.0002e4 * room < 1e-6


def test_at_a_kink_the_derivative_of_either_side_counts(monkeypatch):
    """A solve that ends where two sorted numbers are equal up to rounding: their order is not the same everywhere.
    (Such a solve was refused: "the residual changes while the solve runs".)"""
    dropped = count_drops(monkeypatch)
    generator = torch.Generator().manual_seed(6)
    matrix = torch.randn(8, 8, generator=generator, dtype=F64) / 8**0.5
    t, start = torch.randn(8, generator=generator, dtype=F64), 0.5 * torch.randn(8, generator=generator, dtype=F64)

    def residual(x, y):
        h = matrix @ x
        out = torch.zeros(8, dtype=F64)
        out[:] = (0.5 * torch.sort(h).values + 0.4 * h) * (1 + 0.1 * t) - y
        out[0] += 0.1 * x[0]
        return out

    generator.manual_seed(6)
    y = residual(start + 0.5 * torch.randn(8, generator=generator, dtype=F64), torch.zeros(8, dtype=F64))
    y = y + 0.3 * torch.randn(8, generator=generator, dtype=F64)
    solver = mslsq.Dogleg(max_steps=500, ftol=1e-15, xtol=1e-13, gtol=1e-13, native="never")
    with pytest.warns(mslsq.errors.InPlaceResidualWarning):
        solution = mslsq.least_squares(residual, start, (y,), solver=solver)
    assert int(solution.status) == mslsq.Status.STALLED and not bool(solution.differentiable)
    assert float(solution.cost) == pytest.approx(0.5 * float(residual(solution.value, y).square().sum()), rel=1e-12)
    assert not dropped


def test_a_derivative_far_from_both_sides_of_a_kink_is_a_change(monkeypatch):
    """What rounding does there excuses its sides, not all there is."""
    seen, differ = [], witness._differ

    def spy(old, new, allowed, *asks):
        seen.append(allowed)
        wrong = torch.zeros_like(new)
        wrong[2:] = 10.0  # of the derivatives
        return differ(old, new + wrong, allowed, *asks)

    monkeypatch.setattr(witness, "_differ", spy)

    def residual(p):
        q = (p[0] + p[1]) - 1
        return torch.stack((q.abs(), p[1] - 1))

    dropped = count_drops(monkeypatch)
    mslsq.least_squares(residual, torch.tensor([0.0, 1.0], dtype=F64), solver=RECORDED)
    assert dropped
    sides = max(float(allowed[2:].max()) for allowed in seen)
    assert 0.1 < sides < 10.0


def test_a_derivative_that_is_infinite_in_every_mode_is_no_change():
    """Powers with a base of zero: forward mode has NaN in a column where reverse mode has zero."""
    t = torch.linspace(0.1, 2, 8, dtype=F64)
    start = torch.tensor([1.0, 0.0], dtype=F64)
    with pytest.warns(mslsq.errors.NonFiniteDerivativeWarning):
        solution = mslsq.least_squares(lambda p: p[1] ** t * p[0] + p[1] * t - 1, start, solver=RECORDED)
    assert int(solution.status) == mslsq.Status.NON_FINITE
