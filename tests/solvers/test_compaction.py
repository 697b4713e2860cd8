"""What is left of a batch goes on alone, and the answer does not show it."""

import pytest
import torch

import mslsq
from mslsq import linear
from mslsq.solvers import compaction
from mslsq.solvers.compaction import Batch

F64 = torch.float64
T = torch.linspace(0, 3, 12, dtype=F64)


def exponential(p, y):
    return p[0] * torch.exp(p[1] * T) + p[2] - y


def fits(count, hard):
    """Exponentials, of which the `hard` are straight lines: a valley without end."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.rand(3, count, 1, generator=generator, dtype=F64)
    y = (1 + a) * torch.exp(-(0.5 + b) * T) + c
    y[hard] = 0.3 * T + 0.002 * T**3
    return y, torch.tensor([1.0, -1.0, 0.0], dtype=F64).repeat(count, 1)


@pytest.fixture
def parts(monkeypatch):
    """Small batches shrink too; the sizes of the parts that were taken."""
    sizes, part = [], Batch.part

    def counted(self, places):
        sizes.append(len(places))
        return part(self, places)

    monkeypatch.setattr(Batch, "part", counted)
    monkeypatch.setattr(compaction, "LEAST", 0)
    return sizes


def in_one(monkeypatch):
    monkeypatch.setattr(compaction, "LEAST", float("inf"))


METHODS = [
    mslsq.LevenbergMarquardt(max_steps=120, native="never"),
    mslsq.Dogleg(max_steps=120, native="never"),
    mslsq.LevenbergMarquardt(max_steps=60, native="never", trace="always"),
    mslsq.LevenbergMarquardt(max_steps=60, native="never", trace="never"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", METHODS, ids=["lm", "dogleg", "recorded", "eager"])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_answer_is_that_of_the_whole_batch(solver, bounded, parts, monkeypatch):
    y, starts = fits(24, [3, 17, 20])
    lower = torch.tensor([-torch.inf, -torch.inf, -99.0], dtype=F64)
    limits = (lower, -lower) if bounded else None

    def solve():
        return mslsq.least_squares(exponential, starts, (y,), in_dims=0, solver=solver, bounds=limits)

    found = solve()
    assert parts and max(parts) <= 8
    taken = len(parts)
    in_one(monkeypatch)
    expected = solve()
    assert len(parts) == taken
    assert torch.equal(found.status, expected.status) and torch.equal(found.num_steps, expected.num_steps)
    assert torch.equal(found.num_evaluations, expected.num_evaluations)
    torch.testing.assert_close(found.cost, expected.cost, rtol=1e-9, atol=1e-24)
    easy = found.num_steps < 30
    torch.testing.assert_close(found.value[easy], expected.value[easy], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.history.cost, expected.history.cost, rtol=1e-7, atol=1e-24, equal_nan=True)
    assert torch.equal(found.history.accepted, expected.history.accepted)


def test_a_prepared_call_shrinks_too(parts):
    y, starts = fits(24, [3, 17])
    solver = mslsq.LevenbergMarquardt(max_steps=60, native="never")
    call = mslsq.prepared(exponential, starts, (y,), in_dims=0, solver=solver)
    call(starts, (y,))
    parts.clear()
    found = call(starts, (y,))
    assert parts
    expected = mslsq.least_squares(exponential, starts, (y,), in_dims=0, solver=solver)
    assert torch.equal(found.num_steps, expected.num_steps)
    torch.testing.assert_close(found.cost, expected.cost, rtol=1e-9, atol=1e-24)


def test_derivatives_are_those_of_the_whole_batch(parts, monkeypatch):
    y, starts = fits(16, [5])
    y[5] = 2 * torch.exp(-0.02 * T) + 1  # reached in the end
    solver = mslsq.LevenbergMarquardt(max_steps=300, native="never")

    def gradient():
        data = y.clone().requires_grad_()
        solution = mslsq.least_squares(exponential, starts, (data,), in_dims=0, solver=solver)
        assert bool((solution.status != int(mslsq.Status.MAX_STEPS)).all())
        return torch.autograd.grad(solution.value.sum(), data)[0]

    found = gradient()
    assert parts
    in_one(monkeypatch)
    torch.testing.assert_close(found, gradient(), rtol=1e-5, atol=1e-6)


def test_a_callback_sees_the_whole_batch(parts):
    y, starts = fits(24, [3])
    seen = []

    def callback(info):
        seen.append((info.cost.shape, info.status.shape, int((info.status == int(mslsq.Status.RUNNING)).sum())))
        return len(seen) > 40

    solver = mslsq.LevenbergMarquardt(max_steps=200, native="never", callback=callback)
    solution = mslsq.least_squares(exponential, starts, (y,), in_dims=0, solver=solver)
    assert parts and {shape for both in seen for shape in both[:2]} == {(24,)}
    assert [count for *_, count in seen] == sorted((count for *_, count in seen), reverse=True)
    assert int(solution.status[3]) == int(mslsq.Status.INTERRUPTED) or int(solution.num_steps[3]) == 40


def test_a_problem_that_breaks_late_leaves_its_neighbours_alone(parts):
    """One of the two that are left is not finite after some steps."""
    y, starts = fits(16, [2, 9])

    def residual(p, y, limit):
        return exponential(p, y) + torch.where(p[1].abs() < limit, torch.nan, 0.0)

    limit = torch.zeros(16, dtype=F64)
    limit[9] = 0.2
    solver = mslsq.LevenbergMarquardt(max_steps=60, native="never")
    solution = mslsq.least_squares(residual, starts, (y, limit), in_dims=0, solver=solver)
    alone = mslsq.least_squares(residual, starts[2], (y[2], limit[2]), solver=solver)
    assert parts and bool(solution.value.isfinite().all())
    torch.testing.assert_close(solution.cost[2], alone.cost, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    "solver_of_steps", [linear.Cholesky(), linear.SparseCholesky(), linear.QR(), linear.ConjugateGradient()]
)
def test_every_storage_shrinks(solver_of_steps, parts, monkeypatch):
    """Graphs of angles, one of which is held by a cubic: Gauss-Newton's steps to it are thirds of the way."""
    generator = torch.Generator().manual_seed(1)
    count, nodes = 8, 12
    turns = torch.randn(count, nodes - 1, 1, generator=generator, dtype=F64)
    angles = 0.1 * torch.randn(count, nodes, 1, generator=generator, dtype=F64)
    cubic = (torch.arange(count) == 4).to(F64)[:, None].expand(count, nodes)
    solver = mslsq.LevenbergMarquardt(max_steps=100, native="never", linear_solver=solver_of_steps)

    @mslsq.cost
    def between(a, b, turn):
        return torch.cat((torch.sin(b - a - turn), 1 - torch.cos(b - a - turn)))

    @mslsq.cost
    def prior(a, cubic):
        return 0.1 * torch.where(cubic > 0, (a - 1) ** 3, a - 1)

    a, order = mslsq.Variable("angle", mslsq.Euclidean(1), count=nodes), torch.arange(nodes)
    costs = [
        between(a[order[:-1]], a[order[1:]], turn=turns[0], name="between"),
        prior(a[order], cubic=cubic[0], name="prior"),
    ]
    problem = mslsq.Problem(*costs)

    def solve():
        data = {"between": {"turn": turns}, "prior": {"cubic": cubic}}
        return mslsq.solve(problem, {"angle": angles}, data, in_dims=(0, 0), solver=solver).cost

    found = solve()
    in_one(monkeypatch)
    expected = solve()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-15)
    assert parts


def test_a_graph_of_a_part_that_goes_stale_is_seen(parts):
    """The hidden factor changes between calls; what was recorded of the part must not pass for the residual."""
    y, starts = fits(16, [5])
    hidden = {"factor": 1.0}

    class Opaque:
        def __call__(self):
            return hidden["factor"]

    factor = Opaque()

    def residual(p, y):
        return exponential(p, factor() * y)

    solver = mslsq.LevenbergMarquardt(max_steps=80, native="never", trace="always")
    for value in (1.0, 1.0, 1.5, 1.5, 1.0):
        hidden["factor"] = value
        found = mslsq.least_squares(residual, starts, (y,), in_dims=0, solver=solver)
        r = torch.func.vmap(residual)(found.value, y)
        torch.testing.assert_close(found.cost, 0.5 * r.square().sum(1), rtol=1e-9, atol=1e-20)
    assert parts
