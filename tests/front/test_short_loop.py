"""Prepared pose graphs take a loop of their own around recorded steps: it ends where the loop of every solve ends."""

import dataclasses

import pytest
import torch

import mslsq
from mslsq import pytree
from mslsq.linear import Cholesky
from mslsq.solution import History
from mslsq.solvers import short_loop

F64 = torch.float64
COUNT = 9
RECORDED = {"trace": "always", "linear_solver": Cholesky()}  # too large for a program of whole solves
SOLVERS = [mslsq.LevenbergMarquardt(**RECORDED), mslsq.GaussNewton(**RECORDED), mslsq.Dogleg(**RECORDED)]


def ring(seed=0, dtype=F64, **options):
    """Poses on a circle, measured all the way round, and a start that is off."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.arange(COUNT, dtype=dtype) * (2 * torch.pi / COUNT)
    truth = mslsq.SE2.from_xyt(torch.stack((4 * torch.cos(angle), 4 * torch.sin(angle), angle), -1))
    first, second = torch.arange(COUNT), (torch.arange(COUNT) + 1) % COUNT
    noise = 0.05 * torch.randn(COUNT, 3, generator=generator, dtype=dtype)
    measured = mslsq.SE2(truth.storage[first]).inverse() @ mslsq.SE2(truth.storage[second])
    pose = mslsq.Variable("pose", mslsq.SE2, count=COUNT)
    between = mslsq.Between(pose[first], pose[second], measured=measured.retract(noise), **options)
    start = truth.retract(0.1 * torch.randn(COUNT, 3, generator=generator, dtype=dtype))
    return mslsq.Problem(between, pose.fixed([0])), {"pose": start}


@pytest.fixture
def loops(monkeypatch):
    """What the loop has come to in each call."""
    found, solve = [], short_loop.ShortLoop.solve

    def noted(self, *arguments):
        found.append(solve(self, *arguments))
        return found[-1]

    monkeypatch.setattr(short_loop.ShortLoop, "solve", noted)
    return found


def same_solutions(found, expected, rtol=1e-11):
    for name in ("cost", "status", "num_steps", "num_evaluations", "gradient_norm", "differentiable"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=rtol, atol=1e-9, msg=name)
    for name, column in zip(History.__dataclass_fields__, expected.history.columns, strict=True):
        torch.testing.assert_close(getattr(found.history, name), column, rtol=1e-6, atol=1e-9, equal_nan=True, msg=name)
    torch.testing.assert_close(found.value["pose"].storage, expected.value["pose"].storage, rtol=rtol, atol=1e-11)
    assert bool(found.adjoint_residual.isnan()) and found.active == () and found.weights == {}
    assert found.multipliers == {} and found.violation == ()


@pytest.mark.parametrize("solver", SOLVERS)
def test_prepared_graphs_end_as_the_front_door_says(loops, solver):
    problem, start = ring()
    solve = mslsq.prepared(problem, start, solver=solver)
    for k in range(4):
        moved = {"pose": start["pose"].retract(torch.full((COUNT, 3), 0.02 * k, dtype=F64))}
        expected = mslsq.solve(problem, moved, solver=dataclasses.replace(solver, trace="never"))
        same_solutions(solve(moved), expected)
    assert len(loops) == 3 and all(one is not None for one in loops)


def test_data_and_weights_are_read_in_every_call(loops):
    problem, start = ring(
        weight=mslsq.SqrtInformation(torch.eye(3, dtype=F64).repeat(COUNT, 1, 1)), loss=mslsq.Huber(0.1)
    )
    other, _ = ring(seed=1)
    data = {"between": {"measured": other["between"].measured}}
    solve, given = (
        mslsq.prepared(problem, start, solver=SOLVERS[0]),
        mslsq.prepared(problem, start, data, solver=SOLVERS[0]),
    )
    python = mslsq.LevenbergMarquardt(trace="never")
    for k in range(3):
        with torch.no_grad():
            problem["between"].weight.value.mul_(1 + k)
        same_solutions(solve(start), mslsq.solve(problem, start, solver=python))
        same_solutions(given(start, data), mslsq.solve(problem, start, data, solver=python))
    assert len(loops) == 4 and all(one is not None for one in loops)


def test_a_solution_without_steps_is_not_the_start_itself(loops):
    problem, start = ring()
    at = mslsq.solve(problem, start).value
    solve = mslsq.prepared(problem, at, solver=mslsq.LevenbergMarquardt(max_steps=0, **RECORDED))
    solve(at)
    found = solve(at)
    before = at["pose"].storage.clone()
    found.value["pose"].storage.zero_()
    assert torch.equal(at["pose"].storage, before) and loops[-1] is not None
    assert int(found.num_steps) == 0 and found.history.cost.shape == (1,)


def test_a_solution_that_is_not_read_keeps_no_matrices(loops):
    problem, start = ring()
    solve = mslsq.prepared(problem, start, solver=SOLVERS[0])
    solve(start)
    solve(start)
    last = loops[-1]
    kept = [last.cost, last.status, last.num_steps, *(x for record in last.records for x in record)]
    assert len(last.records) > 2 and sum(x.untyped_storage().nbytes() for x in kept) < 100 * len(kept)


def test_steps_that_run_out_are_said(loops):
    problem, start = ring()
    few = mslsq.LevenbergMarquardt(max_steps=2, **RECORDED)
    solve = mslsq.prepared(problem, start, solver=few)
    solve(start)
    found = solve(start)
    same_solutions(found, mslsq.solve(problem, start, solver=dataclasses.replace(few, trace="never")))
    assert int(found.status) == mslsq.Status.MAX_STEPS and loops[-1] is not None


def test_a_gradient_of_zero_is_warned_of(loops):
    class Nothing(mslsq.CostFunction):
        def residual(self, pose, y):
            return y + 0 * pose.storage[:2]

    pose = mslsq.Variable("pose", mslsq.SE2, count=COUNT)
    problem = mslsq.Problem(Nothing(pose[torch.arange(COUNT)], y=torch.ones(COUNT, 2, dtype=F64)))
    _, start = ring()
    solve = mslsq.prepared(problem, start, solver=SOLVERS[0])
    for _ in range(3):
        with pytest.warns(UserWarning, match="no influence"):
            solve(start)
    assert loops == [None, None]


@pytest.mark.parametrize("after", [0, 2])
def test_an_interrupt_has_the_best_point(loops, monkeypatch, after):
    problem, start = ring()
    solve = mslsq.prepared(problem, start, solver=SOLVERS[0])
    solve(start)
    recorded = solve._fixed.task.pinned.plan.execution.graphs["step"]
    taken, run = [], recorded._call

    def interrupted(*tensors):
        taken.append(1)
        if len(taken) > after:
            raise KeyboardInterrupt
        return run(*tensors)

    monkeypatch.setattr(recorded, "_call", interrupted)
    with pytest.raises(mslsq.errors.SolveInterrupted) as caught:
        solve(start)
    found = caught.value.solution
    few = mslsq.LevenbergMarquardt(max_steps=after, trace="never", linear_solver=Cholesky())
    torch.testing.assert_close(
        found.value["pose"].storage, mslsq.solve(problem, start, solver=few).value["pose"].storage
    )
    assert int(found.status) == mslsq.Status.INTERRUPTED and int(found.num_steps) == after
    assert int(found.history.cost.isfinite().sum()) == after + 1


def test_derivatives_and_transforms_take_the_long_way(loops):
    problem, start = ring()
    solve = mslsq.prepared(problem, start, {"between": {"measured": problem["between"].measured}}, solver=SOLVERS[0])

    def end(measured):
        return solve(start, {"between": {"measured": measured}}).value["pose"].storage.sum()

    measured = problem["between"].measured.detach().clone()
    for _ in range(3):
        end(measured)
    assert len(loops) == 2
    leaf = measured.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(end(leaf), leaf)
    assert len(loops) == 2
    torch.testing.assert_close(torch.func.grad(end)(measured), gradient)
    direction = torch.randn(measured.shape, generator=torch.Generator().manual_seed(3), dtype=F64)
    difference = (end(measured + 1e-6 * direction) - end(measured - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-5, atol=1e-7)


def test_float32_and_inference_mode_are_solved_alike(loops):
    problem, start = ring(dtype=torch.float32)
    solve = mslsq.prepared(problem, start, solver=SOLVERS[0])
    solve(start)
    with torch.inference_mode():
        found = solve(start)
    expected = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(trace="never"))
    torch.testing.assert_close(found.value["pose"].storage, expected.value["pose"].storage, rtol=1e-4, atol=1e-4)
    assert found.value["pose"].storage.dtype == torch.float32
    assert len(pytree.leaves(found)) == len(pytree.leaves(expected))
