"""Plain `backward()` from recorded graphs: the same derivatives as every other way, paid for when it comes."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacrev

import mslsq
from mslsq.adjoint import DerivativeOrderError
from mslsq.linearize import trace
from tests.adjoint import test_transforms as matrix

F64 = torch.float64
T = matrix.T
TIGHT = mslsq.LevenbergMarquardt(trace="always", **matrix.TIGHT)
WEIGHTS = matrix.WEIGHTS


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch):
    """Solvers that record as soon as that pays record now."""
    monkeypatch.setattr(trace, "TRACE_SECONDS", 0.0)


def is_lazy(output: torch.Tensor) -> bool:
    """Does the derivative of this tensor wait for backward?"""
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "PullbackBackward":
            return True
        waiting.extend(before for before, _ in node.next_functions)
    return False


def fit(y, adjoint=None, solver=TIGHT):
    return mslsq.least_squares(matrix.decay, matrix.START, (T, y), solver=solver, adjoint=adjoint)


def exact(y):
    """The gradient by `torch.func`, that is by chord steps."""
    return grad(lambda y: (fit(y).value * WEIGHTS).sum())(y)


CASES = [case for case in matrix.CASES if case.__name__ not in ("unrolled", "truncated")]
QUICK = ("args", "cost_value", "layer_parameters")


@pytest.mark.parametrize("transform", ["backward", "double_backward"])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c.__name__ in QUICK else [pytest.mark.slow]) for c in CASES]
)
def test_backward_through_recorded_graphs_equals_differences_of_values(case, transform):
    apply, expected, tolerance = matrix.TRANSFORMS[transform]
    found, truth = apply(case), expected(matrix.TRUTHS[case.__name__])
    assert float((found - truth).abs().max()) <= tolerance * max(1.0, float(truth.abs().max()))


def test_the_derivative_waits_for_backward_and_is_that_of_the_chord_steps():
    y = matrix.Y.clone().requires_grad_()
    solution = fit(y)
    assert is_lazy(solution.value)
    (found,) = torch.autograd.grad((solution.value * WEIGHTS).sum(), y, retain_graph=True)
    assert torch.allclose(found, exact(matrix.Y), rtol=1e-9, atol=1e-12)
    (again,) = torch.autograd.grad((solution.value * WEIGHTS).sum(), y)
    assert torch.equal(again, found)


def test_a_cotangent_of_the_cost_is_used_too():
    y = matrix.Y.clone().requires_grad_()
    solution = fit(y)
    (found,) = torch.autograd.grad((solution.value * WEIGHTS).sum() + 3 * solution.cost, y)
    alone = grad(lambda y: (fit(y).value * WEIGHTS).sum() + 3 * fit(y).cost)(matrix.Y)
    assert torch.allclose(found, alone, rtol=1e-9, atol=1e-12)
    y.grad = None
    fit(y).cost.backward()
    assert torch.allclose(y.grad, grad(lambda y: fit(y).cost)(matrix.Y), rtol=1e-9, atol=1e-12)


def test_a_batch_with_shared_inputs_and_one_given_twice():
    y = torch.stack([matrix.Y, matrix.Y + 0.1, matrix.Y.flip(0)]).requires_grad_()
    t = T.clone().requires_grad_()

    def residual(p, t, u, y):
        return p[0] * torch.exp(p[1] * t) + p[2] + 0.1 * torch.sin(u) - y

    def total(t, y):
        return (
            mslsq.least_squares(residual, matrix.START, (t, t, y), in_dims=(None, None, None, 0), solver=TIGHT).value
            * WEIGHTS
        ).sum()

    value = total(t, y)
    assert is_lazy(value)
    found = torch.autograd.grad(value, (t, y))
    expected = grad(total, argnums=(0, 1))(t.detach(), y.detach())
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-8, atol=1e-10)
    # the second derivative tells the two places of t apart as well
    (first,) = torch.autograd.grad(total(t, y), t, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), t)
    assert torch.allclose(second, hessian(lambda t: total(t, y.detach()))(t.detach()).sum(1), rtol=1e-6, atol=1e-8)


def test_the_gradients_of_every_output_at_once():
    """`is_grads_batched` runs the backward pass inside a vmap."""
    y = matrix.Y.clone().requires_grad_()
    value = fit(y).value
    (found,) = torch.autograd.grad(value, y, torch.eye(3, dtype=F64), is_grads_batched=True)
    assert torch.allclose(found, jacrev(lambda y: fit(y).value)(matrix.Y), rtol=1e-9, atol=1e-12)
    functional = torch.autograd.functional.hessian(lambda y: (fit(y).value * WEIGHTS).sum(), matrix.Y, vectorize=True)
    expected = hessian(lambda y: (fit(y).value * WEIGHTS).sum())(matrix.Y)
    assert torch.allclose(functional, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("order", [1, 2])
def test_backward_beyond_the_order_raises(order):
    y = matrix.Y.clone().requires_grad_()
    value = fit(y, mslsq.Implicit(order=order)).value
    assert is_lazy(value)
    for _ in range(order):
        (value,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    with pytest.raises(DerivativeOrderError, match=f"Derivative number {order + 1}"):
        value.sum().backward()


def test_third_backward_passes_are_right_with_order_three():
    def scalar(d, order):
        return (
            mslsq.least_squares(
                matrix.decay, matrix.START, (T, matrix.data(d)), solver=TIGHT, adjoint=mslsq.Implicit(order=order)
            ).value
            * WEIGHTS
        ).sum()

    d = matrix.AT.clone().requires_grad_()
    value = scalar(d, 3)
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sum(), d, create_graph=True)
    third = torch.func.jacfwd(hessian(lambda d: scalar(d, 3)))(matrix.AT).sum((0, 1))
    assert torch.allclose(value, third, rtol=1e-7, atol=1e-7)


def test_writing_into_the_solution_does_not_change_where_the_derivative_is_taken():
    y = matrix.Y.clone().requires_grad_()
    solution = fit(y)
    loss = (solution.value * WEIGHTS).sum()
    with torch.no_grad():
        solution.value.data.mul_(7)
    loss.backward()
    assert torch.allclose(y.grad, exact(matrix.Y), rtol=1e-9, atol=1e-12)


def test_writing_into_the_data_before_backward_is_an_error_not_a_wrong_number():
    y = matrix.Y.clone().requires_grad_()
    scaled = y * 1.0
    loss = fit(scaled).value.sum()
    with torch.no_grad():
        scaled.add_(1.0)
    with pytest.raises(RuntimeError, match=r"modified.* inplace"):
        loss.backward()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2.0

    def forward(self, t):
        return self.factor * t


@pytest.mark.parametrize("create_graph", [False, True])
def test_an_attribute_that_changes_before_backward_does_not_change_the_derivative(create_graph):
    """The graphs are those of the solve: what the user's function has become since has no say."""
    module = Scaled()

    def solved(y):
        return mslsq.least_squares(
            lambda p, y: p[0] * torch.exp(p[1] * module(T)) - y, matrix.START[:2], (y,), solver=TIGHT
        ).value

    expected = jacrev(lambda y: solved(y).sum())(matrix.Y)
    y = matrix.Y.clone().requires_grad_()
    value = solved(y)
    assert is_lazy(value)
    module.factor = 5.0
    (found,) = torch.autograd.grad(value.sum(), y, create_graph=create_graph)
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("failed", ["nan", "zero"])
def test_beside_problems_that_failed_backward_waits_and_is_that_of_the_others_alone(failed):
    nothing = torch.full_like(matrix.Y, torch.nan)
    rows = torch.stack([nothing, matrix.Y, matrix.Y + 0.1 * T.cos()])

    def derivatives(rows, with_cost, failed):
        """First derivatives in shared and own data, and one of the former."""
        t, y = T.clone().requires_grad_(), rows.clone().requires_grad_()
        adjoint = mslsq.Implicit(failed=failed)
        found = mslsq.least_squares(
            matrix.decay, matrix.START, (t, y), in_dims=(None, None, 0), solver=TIGHT, adjoint=adjoint
        )
        assert is_lazy(found.value)
        good = found.differentiable
        total = (found.value[good] * WEIGHTS).sum() + (found.cost[good].sum() if with_cost else 0)
        first = torch.autograd.grad(total, (t, y), retain_graph=True)
        again = torch.autograd.grad(total, (t, y), create_graph=True)
        for one, other in zip(first, again, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-8, atol=1e-10, equal_nan=True)
        second = torch.autograd.grad((again[0] * T.sin()).sum(), t)[0]
        return *first, second

    for with_cost in (False, True):
        of_t, of_y, second = derivatives(rows, with_cost, failed)
        right_t, right_y, right = derivatives(rows[1:], with_cost, failed)
        torch.testing.assert_close(of_t, right_t, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(of_y[1:], right_y, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(second, right, rtol=1e-7, atol=1e-8)
        assert bool(of_y[0].isnan().all()) if failed == "nan" else not of_y[0].any()


def test_what_cannot_wait_is_attached_at_once():
    """A batch of which all failed, further Gauss–Newton chord steps, nothing recorded."""
    y = torch.full((2, len(matrix.Y)), torch.nan, dtype=F64).requires_grad_()
    failed = mslsq.least_squares(matrix.decay, matrix.START, (T, y), in_dims=(None, None, 0), solver=TIGHT).value
    assert not is_lazy(failed)
    one = matrix.Y.clone().requires_grad_()
    assert not is_lazy(fit(one, mslsq.Implicit(hessian="gauss_newton")).value)
    assert is_lazy(fit(one, mslsq.Implicit(hessian="gauss_newton", order=1)).value)
    assert not is_lazy(fit(one, solver=dataclasses.replace(TIGHT, trace="never")).value)


@pytest.mark.slow
def test_where_fixed_blocks_are_data_nothing_waits():
    held = mslsq.SE2.exp(torch.zeros(5, 3, dtype=F64)).storage.requires_grad_()
    assert not is_lazy(mslsq.solve(matrix.SE2_LOOP, {"pose": held}, solver=TIGHT).value["pose"])


def test_nothing_is_paid_without_derivatives(monkeypatch):
    def refuse(*args):
        raise AssertionError("a Hessian was computed that was not asked for")

    monkeypatch.setattr("mslsq.adjoint.judging.Judgement._hessian", refuse)
    assert not fit(matrix.Y).value.requires_grad
    with torch.no_grad():
        assert not fit(matrix.Y.clone().requires_grad_()).value.requires_grad
    with pytest.raises(AssertionError, match="was not asked for"):
        fit(matrix.Y.clone().requires_grad_())


@pytest.mark.slow
def test_compiled_graphs_give_the_same_gradient():
    y = matrix.Y.clone().requires_grad_()
    compiled = dataclasses.replace(TIGHT, compile=True)
    (found,) = torch.autograd.grad((fit(y, solver=compiled).value * WEIGHTS).sum(), y)
    assert torch.allclose(found, exact(matrix.Y), rtol=1e-9, atol=1e-12)
