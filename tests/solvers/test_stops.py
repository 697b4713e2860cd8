"""Stops from outside: a clock, Ctrl-C. What was found by then is kept, and nothing claims to have converged."""

import signal
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.errors import SolveInterrupted
from mslsq.native import whole_solves as running
from mslsq.solvers import run
from tests.native.functions import NEEDS_COMPILER
from tests.native.slices import in_small_parts

F64 = torch.float64
T = torch.linspace(0, 2, 20, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)


def decay(p: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(p[1] * T) + p[2] - y


def measured(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.rand(3, count, 1, generator=generator, dtype=F64)
    noise = torch.randn(count, 20, generator=generator, dtype=F64)
    return (0.5 + 1.5 * a) * torch.exp((-2 + 1.5 * b) * T) + 2 * c - 1 + 0.01 * noise


def fits(y: Tensor, **options: Any) -> mslsq.Solution:
    return mslsq.least_squares(decay, START, (y,), in_dims=(None, 0), solver=mslsq.LevenbergMarquardt(**options))


def interrupting(step: int) -> Any:
    """A callback that interrupts as Ctrl-C does."""

    def callback(info: Any) -> None:
        if info.step == step:
            signal.raise_signal(signal.SIGINT)

    return callback


@pytest.mark.parametrize("trace", ["always", "never"])
def test_a_time_budget_ends_the_solve_after_the_step_in_which_it_is_spent(monkeypatch, trace):
    ticks = iter(range(10_000))
    monkeypatch.setattr(run.time, "perf_counter", lambda: float(next(ticks)))
    y = measured(7)
    stopped = fits(y, time_budget=6.5, trace=trace, native="never")
    monkeypatch.undo()
    steps = int(stopped.num_steps.max())
    assert 0 < steps < 7
    same = fits(y, max_steps=steps, trace=trace, native="never")
    assert torch.equal(stopped.value, same.value)
    running_still = same.status == mslsq.Status.MAX_STEPS
    assert bool(running_still.any())
    assert torch.equal(stopped.status == mslsq.Status.TIME_BUDGET, running_still)
    assert "time_budget" in stopped.message() and not bool(stopped.converged[running_still].any())


def test_a_budget_that_is_not_spent_changes_nothing():
    y = measured(7)
    assert torch.equal(fits(y, time_budget=1e6, native="never").value, fits(y, native="never").value)
    with pytest.raises(mslsq.errors.SolverOptionError, match="time_budget"):
        mslsq.GaussNewton(time_budget=0)
    with pytest.raises(mslsq.errors.SolverOptionError, match="on_interrupt"):
        mslsq.GaussNewton(on_interrupt="stop")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("trace", ["always", "never"])
def test_an_interrupt_has_the_best_point_so_far(trace):
    y = measured(7)
    y[2] = torch.nan
    options = {"trace": trace, "native": "never"}
    with pytest.raises(SolveInterrupted) as caught:
        fits(y, callback=interrupting(3), **options)
    same, found = fits(y, max_steps=3, **options), caught.value.solution
    assert isinstance(caught.value, KeyboardInterrupt)
    assert torch.equal(found.value, same.value) and torch.equal(found.num_steps, same.num_steps)
    assert torch.equal(found.history.cost[:, :4].nan_to_num(-1), same.history.cost.nan_to_num(-1))
    assert int(found.status[2]) == mslsq.Status.NON_FINITE
    assert set(found.status.tolist()) == {int(mslsq.Status.INTERRUPTED), int(mslsq.Status.NON_FINITE)}
    returned = fits(y, callback=interrupting(3), on_interrupt="return", **options)
    assert torch.equal(returned.status, found.status) and torch.equal(returned.value, found.value)
    good = [0, 1, 3, 4, 5, 6]
    again = mslsq.least_squares(decay, returned.value[good], (y[good],), in_dims=(0, 0))
    torch.testing.assert_close(again.value, fits(y[good]).value, rtol=1e-6, atol=1e-8)


def test_an_interrupt_within_a_step_leaves_the_point_before_it():
    count = 0

    def residual(p: Tensor, y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        if count == 9:
            signal.raise_signal(signal.SIGINT)
        return decay(p, y)

    solver = mslsq.LevenbergMarquardt(trace="never", ftol=0, xtol=0, gtol=0, max_steps=100)
    with pytest.raises(SolveInterrupted) as caught:
        mslsq.least_squares(residual, START, (measured(1)[0],), solver=solver)
    found = caught.value.solution
    steps = int(found.num_steps)
    assert 0 < steps < 100 and found.history.cost[: steps + 1].isfinite().all()
    assert float(found.cost) == float(found.history.cost[steps])
    assert float(0.5 * decay(found.value, measured(1)[0]).square().sum()) == pytest.approx(float(found.cost))


def test_a_layer_always_raises_and_so_does_a_transform():
    @mslsq.cost
    def near(x: mslsq.Euclidean, at: Tensor) -> Tensor:
        return torch.exp(x) - at

    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(near(x, at=torch.tensor([[2.0, 3.0]], dtype=F64), name="near"))
    solver = mslsq.LevenbergMarquardt(callback=interrupting(1), on_interrupt="return")
    start = {"x": torch.zeros(2, dtype=F64)}
    assert int(mslsq.solve(problem, start, solver=solver).status) == mslsq.Status.INTERRUPTED
    with pytest.raises(SolveInterrupted):
        mslsq.LeastSquaresLayer(problem, solver=solver)(start)
    with pytest.raises(KeyboardInterrupt) as caught:
        torch.vmap(
            lambda y: mslsq.least_squares(decay, START, (y,), solver=mslsq.GaussNewton(callback=interrupting(1)))
        )(measured(3))
    assert not isinstance(caught.value, SolveInterrupted)


@NEEDS_COMPILER
def test_an_interrupt_in_a_slice_leaves_the_later_slices_where_they_began(monkeypatch):
    y = measured(200)
    options = {"native": "wait", "max_steps": 60}
    whole = fits(y, **options)
    in_small_parts(monkeypatch, 60)
    monkeypatch.setattr(running, "AT_ONCE", 50)
    found = fits(y, on_interrupt="return", **options)
    rest = found.status == mslsq.Status.INTERRUPTED
    assert 50 <= int(rest.sum()) < 200 and bool(rest[-50:].all())
    assert torch.equal(found.value[~rest], whole.value[~rest])
    assert torch.equal(found.value[rest], START.expand(int(rest.sum()), 3))
    assert torch.equal(found.cost[rest], whole.history.cost[rest, 0])


@NEEDS_COMPILER
def test_of_a_native_solve_what_is_done_is_kept_and_the_rest_is_where_it_began(monkeypatch):
    y = measured(200)
    options = {"native": "wait", "max_steps": 60}
    whole = fits(y, **options)
    in_small_parts(monkeypatch, 40)
    found = fits(y, on_interrupt="return", **options)
    monkeypatch.undo()
    rest = found.status == mslsq.Status.INTERRUPTED
    assert 0 < int(rest.sum()) < 200
    assert torch.equal(found.value[~rest], whole.value[~rest]) and torch.equal(found.status[~rest], whole.status[~rest])
    assert torch.equal(found.value[rest], START.expand(int(rest.sum()), 3))
    assert torch.equal(found.cost[rest], whole.history.cost[rest, 0]) and not bool(found.num_steps[rest].any())
    assert torch.equal(found.history.cost[rest, 0], found.cost[rest])
    assert bool(found.history.cost[rest, 1:].isnan().all())
