"""Derivatives of a problem of a user's own code, all of whose end is recorded and none of it native: calls are answered
at once, with the derivatives of Python."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.front import repeated_problem, solve
from mslsq.solvers.whole_solves import SolveProspect
from tests.front.answers import noted

F64 = torch.float64
T = torch.linspace(0, 2, 15, dtype=F64, device="cpu")
RECORDED = mslsq.LevenbergMarquardt(trace="always", native="never")
PYTHON = mslsq.LevenbergMarquardt(trace="never", native="never")


class Curve(mslsq.CostFunction):
    """a·exp(b·t) − y."""

    def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.exp(p[1] * t) - y


def problem() -> mslsq.Problem:
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    return mslsq.Problem(Curve(p, t=mslsq.Shared(T), y=mslsq.Shared(torch.ones_like(T)), name="curve"))


def data(k: int) -> Tensor:
    return (1.0 + 0.1 * k) * torch.exp(-0.7 * T) + 0.1 * torch.cos(9 * T)


def solved(stated: mslsq.Problem, y: Tensor, solver: Any, adjoint: Any = None) -> Tensor:
    start = {"p": torch.tensor([1.0, 0.0], dtype=F64, device="cpu")}
    return mslsq.solve(stated, start, {"curve": {"y": y}}, solver=solver, adjoint=adjoint).value["p"]


def derivatives(stated: mslsq.Problem, y: Tensor, solver: Any, adjoint: Any = None) -> list[Tensor]:
    """Solution, gradient, and a row of the second derivatives of a combination of its numbers."""
    y = y.clone().requires_grad_()
    p = solved(stated, y, solver, adjoint)
    (first,) = torch.autograd.grad(p[0] * p[1], y, create_graph=True)
    (second,) = torch.autograd.grad(first[3], y)
    return [p.detach(), first.detach(), second]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was answered at once."""
    return noted(monkeypatch, repeated_problem)


METHODS = [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg]
ADJOINTS = [(mslsq.Implicit(), 1000), (mslsq.Unrolled(), 1000), (mslsq.Unrolled(), 3)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("adjoint", "max_steps"), ADJOINTS, ids=["implicit", "unrolled", "three steps"])
def test_calls_that_are_answered_at_once_have_the_derivatives_of_python(
    answers: list[bool], method: Any, adjoint: Any, max_steps: int
):
    recorded = method(trace="always", native="never", max_steps=max_steps)
    python = method(trace="never", native="never", max_steps=max_steps)
    stated = problem()
    for k in range(3):
        derivatives(stated, data(k), recorded, adjoint)
    for k in range(3, 6):
        found = derivatives(stated, data(k), recorded, adjoint)
        assert answers[-1]
        expected = derivatives(problem(), data(k), python, adjoint)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_steps_are_differentiated_in_the_start_too(answers: list[bool]):
    stated, y, found = problem(), data(2), []
    for k in range(5):
        start = torch.tensor([1.0, 0.01 * k], dtype=F64, device="cpu").requires_grad_()
        for solver in (RECORDED, PYTHON):
            solver = dataclasses.replace(solver, max_steps=2)
            solution = mslsq.solve(stated, {"p": start}, {"curve": {"y": y}}, solver=solver, adjoint=mslsq.Unrolled())
            found.append((torch.autograd.grad(solution.value["p"].sum(), start)[0], solution.differentiable))
    assert any(answers)
    for (ours, is_ours), (theirs, is_theirs) in zip(found[::2], found[1::2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
        assert is_ours and is_theirs
    assert found[0][0].abs().max() > 1e-3  # two steps do not forget where they began


def test_a_gradient_in_other_data_than_before_is_stated_and_right(answers: list[bool]):
    stated = problem()
    for k in range(4):
        derivatives(stated, data(k), RECORDED)
    assert answers[-1]
    start, found = {"p": torch.tensor([1.0, 0.0], dtype=F64, device="cpu")}, []
    for solver in (RECORDED, PYTHON):
        t, y = T.clone().requires_grad_(), data(1).requires_grad_()
        value = mslsq.solve(stated, start, {"curve": {"y": y, "t": t}}, solver=solver).value["p"]
        found.append(torch.autograd.grad(value.sum(), (t, y)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_a_problem_without_a_derivative_is_stated_and_says_so(answers: list[bool], monkeypatch: pytest.MonkeyPatch):
    stated = problem()
    for k in range(4):
        derivatives(stated, data(k), RECORDED)
    states = []
    plain = solve.stated
    monkeypatch.setattr(solve, "stated", lambda *given: states.append(1) or plain(*given))
    y = torch.zeros_like(T).requires_grad_()  # a = 0, where b has no influence
    with pytest.warns(mslsq.errors.NotDifferentiableWarning):
        value = solved(stated, y, RECORDED)
    assert states and not answers[-1]
    (gradient,) = torch.autograd.grad(value.sum(), y)
    assert gradient.isnan().all()


def test_steps_are_not_held_up_by_a_program_of_the_whole_solve(answers: list[bool], monkeypatch: pytest.MonkeyPatch):
    """Which leaves no steps, and is never begun by solves that are differentiated so."""
    monkeypatch.setattr(SolveProspect, "is_due", True)
    stated = problem()
    for k in range(5):
        derivatives(stated, data(k), RECORDED, mslsq.Unrolled())
    assert answers[-1]
