"""Solves whose steps are a native program around linearizations of Python."""

import dataclasses
import itertools

import pytest
import torch

import mslsq
from mslsq.errors import SolveInterrupted
from mslsq.front import plans
from mslsq.native.called_back import CalledBackSolves
from mslsq.native.store import Store
from mslsq.solvers import native_steps, steps_program
from mslsq.solvers.steps_program import StepsProgram

T = torch.linspace(0, 2, 12, dtype=torch.float64)
Y = 2 * torch.exp(-1.3 * T) + 0.05 * torch.cos(9 * T)


class Reads:
    """A residual that counts its evaluations where no key holds that, and fails at one of them."""

    def __init__(self, dtype: torch.dtype = torch.float64, error: type[BaseException] = ZeroDivisionError):
        self.t, self.y, self.error = T.to(dtype), Y.to(dtype), error
        self.evaluations, self.fails = itertools.count(1), []

    def __call__(self, x):
        if next(self.evaluations) in self.fails:
            raise self.error
        return x[0] * torch.exp(-x[1] * self.t) - self.y

    def failing_after(self, number: int) -> "Reads":
        self.fails = [next(self.evaluations) + number]
        return self


class Decay(mslsq.CostFunction):
    def residual(self, x, y):
        import math  # noqa: F401  what imports may read anything

        return x[0] * torch.exp(-x[1] * T) - y


@pytest.fixture
def taken(monkeypatch):
    """Whether solves of this test ran on a program; it is compiled at once, and taken in the first solve."""
    runs = []
    solve_one, program = CalledBackSolves.solve_one, StepsProgram.program

    def counted(self, *arguments, **options):
        runs.append(self)
        return solve_one(self, *arguments, **options)

    def at_once(self, *arguments):
        self.note_seconds(10.0)
        program(self, *arguments)
        self.wait(120.0)
        return program(self, *arguments)

    monkeypatch.setattr(CalledBackSolves, "solve_one", counted)
    monkeypatch.setattr(StepsProgram, "program", at_once)
    monkeypatch.setattr(native_steps, "COMPARED_BEFORE", 0)
    monkeypatch.setattr(Store, "has_sign", lambda *_: False)  # what other processes have compared
    forget_all(monkeypatch)
    return runs


def python(solver):
    return dataclasses.replace(solver, native="never", trace="never")


def start(dtype=torch.float64):
    return torch.tensor([1.0, 0.3], dtype=dtype)


SOLVERS = [mslsq.LevenbergMarquardt(), mslsq.GaussNewton(), mslsq.Dogleg()]
IDENTITY = mslsq.LevenbergMarquardt(scaling="identity")


def same_way(found, expected, relative):
    assert int(found.status) == int(expected.status)
    assert int(found.num_steps) == int(expected.num_steps)
    torch.testing.assert_close(found.value, expected.value, rtol=relative, atol=relative)
    steps = int(found.num_steps) + 1
    for name in ("cost", "step_norm"):
        ours, theirs = getattr(found.history, name)[:steps], getattr(expected.history, name)[:steps]
        torch.testing.assert_close(ours, theirs, rtol=1e-4 + relative, atol=1e3 * torch.finfo(ours.dtype).eps)
    assert torch.equal(found.history.accepted[:steps], expected.history.accepted[:steps])


@pytest.mark.parametrize("solver", [pytest.param(x, marks=pytest.mark.slow) for x in SOLVERS] + [IDENTITY], ids=repr)
def test_takes_the_steps_that_python_takes(taken, solver):
    found = mslsq.least_squares(Reads(), start(), solver=solver)
    assert len(taken) == 2  # compared, and taken
    same_way(found, mslsq.least_squares(Reads(), start(), solver=python(solver)), 1e-9)


@pytest.mark.slow
def test_takes_the_steps_of_float32_and_of_poses(taken):
    same_way(
        mslsq.least_squares(Reads(torch.float32), start(torch.float32)),
        mslsq.least_squares(Reads(torch.float32), start(torch.float32), solver=python(mslsq.LevenbergMarquardt())),
        1e-4,
    )
    points = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pose = mslsq.SE3.exp(torch.tensor([0.3, -0.2, 0.5, 0.4, 0.1, -0.6], dtype=torch.float64))
    moved = pose.act(points)

    class Points(mslsq.CostFunction):
        def residual(self, x: mslsq.SE3, points):
            import math  # noqa: F401

            return (x.act(points) - moved).reshape(-1)

    pose_variable = mslsq.Variable("pose", mslsq.SE3)
    values = {"pose": mslsq.SE3.identity(dtype=torch.float64)}
    problem = mslsq.Problem(Points(pose_variable, points=mslsq.Shared(points)))
    solvers = mslsq.LevenbergMarquardt(), python(mslsq.LevenbergMarquardt())
    found, expected = [mslsq.solve(problem, values, solver=solver) for solver in solvers]
    assert len(taken) == 4
    assert int(found.num_steps) == int(expected.num_steps)
    torch.testing.assert_close(found.value["pose"].matrix(), pose.matrix(), rtol=1e-10, atol=1e-10)


def test_raises_what_the_residual_raises(taken):
    residual = Reads()
    mslsq.least_squares(residual, start(), solver=IDENTITY)
    with pytest.raises(ZeroDivisionError):
        mslsq.least_squares(residual.failing_after(9), start(), solver=IDENTITY)


def test_an_interrupt_leaves_the_best_point(taken):
    residual = Reads(error=KeyboardInterrupt)
    mslsq.least_squares(residual, start(), solver=IDENTITY)
    with pytest.raises(SolveInterrupted) as caught:
        mslsq.least_squares(residual.failing_after(9), start(), solver=IDENTITY)
    solution = caught.value.solution
    assert solution.status == mslsq.Status.INTERRUPTED
    costs = solution.history.cost[: int(solution.num_steps) + 1]
    assert len(costs) > 1
    assert solution.cost == costs.min() < costs[0]


@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.Unrolled(), mslsq.Truncated(3)], ids=repr)
def test_derivatives_are_those_of_python_s_steps(taken, adjoint):
    def gradient(solver):
        y = Y.clone().requires_grad_()
        residual = Reads()
        moved = lambda x, y: residual(x) + residual.y - y  # noqa: E731
        found = mslsq.least_squares(moved, start(), (y,), solver=solver, adjoint=adjoint)
        return torch.autograd.grad(found.value.square().sum(), y)[0]

    ours, expected = gradient(IDENTITY), gradient(python(IDENTITY))
    assert taken
    torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)


def test_a_start_that_is_a_minimum_or_not_finite_is_told_as_ever(taken):
    solution = mslsq.least_squares(Reads(), start(), solver=IDENTITY)
    there = mslsq.least_squares(Reads(), solution.value, solver=IDENTITY)
    assert there.converged
    assert int(there.num_steps) <= 1
    nothing = mslsq.least_squares(Reads(), torch.full((2,), torch.nan, dtype=torch.float64), solver=IDENTITY)
    assert nothing.status == mslsq.Status.NON_FINITE


def forget_all(monkeypatch):
    """As in another process."""
    monkeypatch.setattr(steps_program, "_KNOWN", type(steps_program._KNOWN)())
    monkeypatch.setattr(plans, "_KEPT", type(plans._KEPT)())


def test_another_process_finds_the_program_by_its_note(taken, monkeypatch):
    mslsq.least_squares(Reads(), start(), solver=IDENTITY)
    forget_all(monkeypatch)
    monkeypatch.setattr(StepsProgram, "_begin", lambda *_: pytest.fail("it was written again"))
    before = len(taken)
    mslsq.least_squares(Reads(), start(), solver=IDENTITY)
    assert len(taken) == before + 2  # one of the comparison


def test_what_a_process_has_compared_is_taken_in_the_first_solve_of_another(taken, monkeypatch):
    signs = set()
    monkeypatch.setattr(Store, "leave_sign", lambda self, sign: signs.add(sign))
    mslsq.least_squares(Reads(), start(), solver=IDENTITY)
    assert len(signs) == 1
    monkeypatch.setattr(Store, "has_sign", lambda self, sign: sign in signs)
    monkeypatch.setattr(native_steps, "COMPARED_BEFORE", 2)
    forget_all(monkeypatch)
    before = len(taken)
    mslsq.least_squares(Reads(), start(), solver=IDENTITY)
    assert len(taken) == before + 1


def test_the_first_solves_of_a_problem_take_python_s_steps(taken, monkeypatch):
    monkeypatch.setattr(native_steps, "COMPARED_BEFORE", 2)
    problem = mslsq.Problem(Decay(mslsq.Variable("x", mslsq.Euclidean(2)), y=mslsq.Shared(Y)))
    runs = []
    for _ in range(4):
        mslsq.solve(problem, {"x": start()}, solver=IDENTITY)
        runs.append(len(taken))
    assert runs == [0, 0, 2, 3]


class Closed(mslsq.CostFunction):
    def residual(self, x, y):
        return x[0] * torch.exp(-x[1] * T) - y


def test_code_that_is_closed_takes_them_until_whole_solves_are_a_program(taken):
    problem = mslsq.Problem(Closed(mslsq.Variable("x", mslsq.Euclidean(2)), y=mslsq.Shared(Y)))
    expected = mslsq.solve(problem, {"x": start()}, solver=python(IDENTITY))
    runs = []
    for solver in (IDENTITY, IDENTITY, mslsq.LevenbergMarquardt(scaling="identity", native="wait"), IDENTITY):
        found = mslsq.solve(problem, {"x": start()}, solver=solver)
        torch.testing.assert_close(found.value["x"], expected.value["x"], rtol=1e-10, atol=0)
        runs.append(len(taken))
    assert runs[0] < runs[1] == runs[-1]
