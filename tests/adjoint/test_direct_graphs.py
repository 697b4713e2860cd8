"""Derivatives of problems whose solve, look and pullback are recorded: no statement stands between the calls, and they
are those of Python, of differences, and refused where those are."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mslsq
from mslsq.adjoint import DerivativeOrderError
from mslsq.front import repeated_problem
from mslsq.solvers.short_loop import ShortLoop
from tests.adjoint.test_around_programs import (
    COSINES,
    COUNT,
    MEASURED,
    PROBLEM,
    PYTHON,
    START,
    TIGHT,
    I,
    J,
    OwnBetween,
)
from tests.front.answers import noted
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
NATIVE = mslsq.LevenbergMarquardt(native="wait", trace="always", **TIGHT)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call that may be answered at once was."""
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    return noted(monkeypatch, repeated_problem)


def data(measured: Tensor) -> Any:
    return {"between": {"measured": measured}}


def solve(measured: Tensor, solver: Any = NATIVE, **options: Any) -> mslsq.Solution:
    return mslsq.solve(PROBLEM, {"pose": START}, data(measured), solver=solver, **options)


def loss(measured: Tensor, solver: Any = NATIVE) -> Tensor:
    return (COSINES * solve(measured, solver).value["pose"].storage).sum()


def shifted(k: int) -> Tensor:
    """Other measurements: further from what can be met with every call."""
    return mslsq.SE3(MEASURED).retract(0.01 * k * torch.ones(len(I), 6, dtype=F64)).storage


def gradient(measured: Tensor, solver: Any = NATIVE) -> Tensor:
    measured = measured.clone().requires_grad_()
    return torch.autograd.grad(loss(measured, solver), measured)[0]


def known() -> None:
    for _ in range(3):
        gradient(MEASURED)


@pytest.mark.slow
def test_gradients_of_calls_that_are_answered_at_once_are_those_of_python_and_of_differences(answers: list[bool]):
    known()
    for k in range(3):
        found, expected = gradient(shifted(k)), gradient(shifted(k), PYTHON)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
        assert answers[-2]
    at, along = shifted(2), torch.randn(len(I), 7, generator=torch.Generator().manual_seed(3), dtype=F64)
    assert float(solve(at).cost) > 1.0  # residuals are far from zero
    step = 1e-4  # with 1e-5 the rounding of the solve is the larger error, where registers are of 32 bytes
    slope = (loss(at + step * along, PYTHON) - loss(at - step * along, PYTHON)) / (2 * step)
    torch.testing.assert_close((gradient(at) * along).sum(), slope, rtol=1e-5, atol=1e-8)
    assert answers[-1]


def test_value_and_figures_are_those_of_a_stated_solve_with_derivatives(answers: list[bool]):
    known()
    found = solve(MEASURED.clone().requires_grad_())
    assert answers[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_problem, "answered", lambda call: None)
        stated = solve(MEASURED.clone().requires_grad_())
    one, other = found.value["pose"].storage, stated.value["pose"].storage
    assert one.requires_grad and other.requires_grad and found.cost.requires_grad
    assert torch.equal(one, other)
    for name in ("cost", "status", "num_steps", "num_evaluations", "gradient_norm", "differentiable"):
        assert torch.equal(getattr(found, name), getattr(stated, name)), name
    for one, other in zip(found.history.columns, stated.history.columns, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert float(found.adjoint_residual) < 1e-12


def test_the_cost_and_second_derivatives_are_exact(answers: list[bool]):
    known()
    own, plain = MEASURED.clone().requires_grad_(), MEASURED.clone().requires_grad_()
    found, right = solve(own), solve(plain, PYTHON)
    assert answers[-2]
    both = [(COSINES * s.value["pose"].storage).sum() + 3 * s.cost for s in (found, right)]
    torch.testing.assert_close(
        *(torch.autograd.grad(x, at)[0] for x, at in zip(both, (own, plain), strict=True)), rtol=1e-7, atol=1e-9
    )
    along = torch.linspace(-1, 1, MEASURED.numel(), dtype=F64).view_as(MEASURED)
    own = MEASURED.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(own), own, create_graph=True)
    assert answers[-1]
    (second,) = torch.autograd.grad((first * along).sum(), own, create_graph=True)
    step = 1e-4  # as above; differences of gradients hold up to 4e-6 of rounding there, by what ran before
    expected = (gradient(MEASURED + step * along, PYTHON) - gradient(MEASURED - step * along, PYTHON)) / (2 * step)
    torch.testing.assert_close(second.detach(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(DerivativeOrderError, match="Derivative number 3"):
        (second * along).sum().backward()


@pytest.mark.slow
def test_other_ways_to_differentiate_go_their_own_way(answers: list[bool]):
    known()
    with torch.no_grad():
        assert not solve(MEASURED.clone().requires_grad_()).value["pose"].storage.requires_grad
    assert answers[-1]
    assert not solve(MEASURED).value["pose"].storage.requires_grad
    assert answers[-1]
    expected, count = gradient(MEASURED, PYTHON), len(answers)
    torch.testing.assert_close(torch.func.grad(loss)(MEASURED), expected, rtol=1e-7, atol=1e-9)
    tangent = torch.linspace(-1, 1, MEASURED.numel(), dtype=F64).view_as(MEASURED)
    slope = torch.func.jvp(loss, (MEASURED,), (tangent,))[1]
    torch.testing.assert_close(slope, (expected * tangent).sum(), rtol=1e-7, atol=1e-9)
    both = torch.func.vmap(loss)(torch.stack((MEASURED, shifted(1))))
    torch.testing.assert_close(both, torch.stack([loss(MEASURED, PYTHON), loss(shifted(1), PYTHON)]))
    assert len(answers) == count + 2  # of the last two alone it was asked


def test_the_start_of_what_is_held_keeps_its_derivative(answers: list[bool]):
    known()
    start, plain = (START.storage.clone().requires_grad_() for _ in range(2))
    for at, solver in ((start, NATIVE), (plain, PYTHON)):
        found = mslsq.solve(PROBLEM, {"pose": mslsq.SE3(at)}, data(MEASURED.clone().requires_grad_()), solver=solver)
        (COSINES * found.value["pose"].storage).sum().backward()
    assert start.grad is not None and plain.grad is not None and start.grad[0].abs().max() > 0
    torch.testing.assert_close(start.grad, plain.grad, rtol=1e-7, atol=1e-9)


def test_data_written_over_before_the_backward_pass_are_an_error(answers: list[bool]):
    known()
    measured = MEASURED.clone().requires_grad_()
    found = loss(measured)
    assert answers[-1]
    with torch.no_grad():
        measured += 0.1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()


class Scaled(OwnBetween):
    def __init__(self, *variables: Any, **options: Any):
        super().__init__(*variables, **options)
        self.gain = nn.Parameter(torch.ones((), dtype=F64))
        self.factor = 1.0

    def residual(self, a: mslsq.SE3, b: mslsq.SE3, measured: mslsq.SE3) -> Tensor:
        return self.factor * self.gain * super().residual(a, b, measured).sin()


@pytest.mark.slow
def test_a_layer_is_answered_at_once_and_what_its_costs_hold_is_heeded(answers: list[bool]):
    """Its parameter's gradient, too; a number that is changed, and solves that fail, as in the first call."""
    pose = mslsq.Variable("pose", mslsq.SE3, count=COUNT)
    cost = Scaled(pose[I], pose[J], measured=mslsq.SE3(MEASURED), weight=3.0, name="between")
    prior = mslsq.Prior(pose[[5]], target=START[[5]], name="prior")
    problem = mslsq.Problem(cost, prior, pose.fixed([0]))

    def gradients(solver: Any, max_steps: int = 100) -> tuple[Tensor, ...]:
        layer = mslsq.LeastSquaresLayer(problem, solver=replace(solver, max_steps=max_steps))
        measured = MEASURED.clone().requires_grad_()
        found = layer({"pose": START}, data(measured))
        return torch.autograd.grad((COSINES * found.value["pose"].storage).sum(), (measured, cost.gain))

    def assert_right() -> None:
        for one, other in zip(gradients(NATIVE), gradients(PYTHON), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)

    for _ in range(4):
        assert_right()
    assert answers[-2]
    cost.factor = 0.5
    assert_right()
    assert not answers[-2]
    for _ in range(2):
        assert_right()
    assert answers[-2]
    with torch.no_grad():
        cost.gain.mul_(1.5)
    assert_right()
    assert answers[-2]
    for _ in range(3):
        assert all(not g.any() for g in gradients(NATIVE, max_steps=1))


def test_an_interrupted_solve_has_no_derivative(answers, monkeypatch):
    solver = replace(NATIVE, on_interrupt="return")
    for k in range(6):
        measured = shifted(k).requires_grad_()
        solve(measured, solver).value["pose"].storage.sum().backward()
    assert answers[-1]
    plain = ShortLoop.solve_to_differentiate

    def broken_off(*given: Any) -> Any:
        found = plain(*given)
        assert found is not None
        return found[0]._replace(interrupted=True), found[1]

    monkeypatch.setattr(ShortLoop, "solve_to_differentiate", broken_off)
    measured = shifted(1).requires_grad_()
    solution = solve(measured, solver)
    assert answers[-1]
    solution.value["pose"].storage.sum().backward()
    assert measured.grad is not None
    assert bool(measured.grad.isnan().all())
