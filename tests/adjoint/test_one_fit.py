"""Derivatives of one fit that its native program answers at once: those of Python, and refused where those are."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad

import mslsq
from mslsq.adjoint import DerivativeOrderError
from tests.adjoint.test_ends import NATIVE, PYTHON, START, TIGHT, T, Uses, data, decay, uses, weighted  # noqa: F401
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER


def solve(t: Tensor, y: Tensor, solver: Any = NATIVE, residual: Any = decay, **options: Any) -> mslsq.Solution:
    return mslsq.least_squares(residual, START, (t, y), solver=solver, **options)


def gradients(y: Tensor, solver: Any = NATIVE, **options: Any) -> tuple[Tensor, ...]:
    t, y = T.clone().requires_grad_(), y.clone().requires_grad_()
    return torch.autograd.grad(weighted(solve(t, y, solver, **options).value), (t, y))


def test_the_gradient_of_a_fit_that_is_answered_at_once_is_that_of_python(uses: Uses):  # noqa: F811
    for y in data(4):  # stated, then answered at once
        found, expected = gradients(y), gradients(y, PYTHON)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    assert uses.taken()["direct"] >= 3


def test_value_and_figures_are_those_of_a_solve_without_derivatives(uses: Uses):  # noqa: F811
    y = data(1)[0]
    for _ in range(3):
        found, plain = solve(T, y.clone().requires_grad_()), solve(T, y)
    assert uses.taken()["direct"]
    assert found.value.shape == START.shape and found.value.requires_grad and found.cost.requires_grad
    assert torch.equal(found.value, plain.value) and torch.equal(found.cost, plain.cost)
    for name in ("status", "num_steps", "num_evaluations", "gradient_norm", "differentiable"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name
    for one, other in zip(found.history.columns, plain.history.columns, strict=True):
        assert torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0))
    assert float(found.adjoint_residual) < 1e-12


def test_its_cost_and_its_second_derivatives_are_exact(uses: Uses):  # noqa: F811
    y = data(1)[0]
    for _ in range(2):
        gradients(y)
    assert uses.taken()["direct"]
    own = y.clone().requires_grad_()
    found = solve(T, own)
    (both,) = torch.autograd.grad(weighted(found.value) + 3 * found.cost, own)
    plain = y.clone().requires_grad_()
    right = solve(T, plain, PYTHON)
    (expected,) = torch.autograd.grad(weighted(right.value) + 3 * right.cost, plain)
    torch.testing.assert_close(both, expected, rtol=1e-7, atol=1e-9)
    own = y.clone().requires_grad_()
    (first,) = torch.autograd.grad(weighted(solve(T, own).value), own, create_graph=True)
    (second,) = torch.autograd.grad(weighted(first), own, create_graph=True)
    twice = grad(lambda y: weighted(grad(lambda y: weighted(solve(T, y, PYTHON).value))(y)))(y)
    torch.testing.assert_close(second.detach(), twice, rtol=1e-7, atol=1e-9)
    with pytest.raises(DerivativeOrderError, match="Derivative number 3"):
        weighted(second).backward()


def saddle(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return torch.stack([p[0] * p[0] - 1 + 0 * t.sum(), p[1] * p[1] + y[0], p[2] - y[1]])


def test_where_there_is_no_minimum_there_is_no_derivative(uses: Uses):  # noqa: F811
    """From p₁ = 0 the solve stays there: of p₁² + y₀ with y₀ < 0 that is a maximum."""
    start = torch.tensor([1.5, 0.0, 0.0], dtype=F64)

    def gradient(first: float, solver: Any) -> Tensor:
        y = torch.full((12,), first, dtype=F64).requires_grad_()
        found = mslsq.least_squares(saddle, start, (T, y), solver=solver)
        return torch.autograd.grad(found.value[2], y)[0]

    for _ in range(3):
        assert gradient(0.5, NATIVE)[1] == 1
    assert uses.taken()["direct"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for solver in (NATIVE, PYTHON):
            assert gradient(-0.5, solver).isnan().all()
            assert gradient(0.5, solver)[1] == 1


def test_what_has_not_converged_is_refused(uses: Uses):  # noqa: F811
    hurried = mslsq.LevenbergMarquardt(native="wait", **{**TIGHT, "max_steps": 2})
    y = data(1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            assert all(x.isnan().all() for x in gradients(y, hurried))


def test_what_the_residual_holds_has_a_gradient_too(uses: Uses):  # noqa: F811
    scale = torch.tensor(2.0, dtype=F64, requires_grad=True)

    def scaled(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return scale * p[0] * torch.exp(p[1] * t) + p[2] - y

    y = data(1)[0]
    for _ in range(3):
        (found,) = torch.autograd.grad(solve(T, y, residual=scaled).value[0], scale)
    assert uses.taken()["direct"]
    torch.testing.assert_close(found, -solve(T, y, residual=scaled).value[0].detach() / 2, rtol=1e-7, atol=1e-9)
