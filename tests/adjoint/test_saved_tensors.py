"""Where the tensors saved for backward are kept elsewhere (checkpointing, on the CPU), derivatives are the same."""

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import mslsq

F64 = torch.float64
T = torch.linspace(0, 1, 16, dtype=F64)
Y = 2 * torch.exp(-1.5 * T) + 0.3 + 0.05 * torch.sin(40 * T)
WEIGHTS = torch.tensor([1.0, 2.0, -1.0], dtype=F64)


def solved(y, trace="always", adjoint=None):
    return mslsq.least_squares(
        lambda p, t, y: p[0] * torch.exp(p[1] * t) + p[2] - y,
        torch.tensor([1.0, -1.0, 0.0], dtype=F64),
        args=(T, y),
        solver=mslsq.LevenbergMarquardt(trace=trace),
        adjoint=adjoint,
    ).value


def rate(y, trace="always"):
    return (solved(y, trace) * WEIGHTS).sum() + torch.sin(y).sum()


def gradient(function, y=Y, **options):
    y = y.clone().requires_grad_()
    return torch.autograd.grad(function(y), y, **options)[0]


@pytest.mark.parametrize("trace", ["always", "never"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_solve_has_the_same_gradient(use_reentrant, trace):
    expected = gradient(lambda y: rate(y, trace))
    y = Y.clone().requires_grad_()
    checkpoint(lambda y: rate(2 * y - y, trace), y, use_reentrant=use_reentrant).backward()
    assert torch.allclose(y.grad, expected, rtol=1e-9, atol=1e-12)


def test_a_solve_that_is_recorded_between_forward_and_recomputation_is_no_error(monkeypatch):
    from mslsq.linearize import trace

    def residual(x, y):
        return torch.cat([torch.exp(x) - y, 0.1 * x])

    def solution(y):
        return mslsq.least_squares(residual, torch.zeros(3, dtype=F64), args=(y,)).value.sum()

    at = torch.tensor([1.5, 2.0, 3.0], dtype=F64)
    expected = gradient(solution, at)
    y = at.clone().requires_grad_()
    out = checkpoint(solution, y, use_reentrant=False)
    monkeypatch.setattr(trace, "TRACE_SECONDS", 0.0)
    monkeypatch.setattr(trace, "TRACE_CALLS", 0)
    out.backward()
    assert torch.allclose(y.grad, expected, rtol=1e-8)


@pytest.mark.parametrize("trace", ["always", "never"])
def test_second_derivatives_through_a_checkpoint(trace):
    def second(function):
        y = Y.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(y), y, create_graph=True)
        return torch.autograd.grad((first * Y).sum(), y)[0]

    expected = second(lambda y: rate(y, trace))
    found = second(lambda y: checkpoint(lambda y: rate(y, trace), y, use_reentrant=False))
    assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("trace", ["always", "never"])
def test_backward_twice_with_retain_graph(trace):
    y = Y.clone().requires_grad_()
    out = rate(y, trace)
    first = torch.autograd.grad(out, y, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(out, y)[0], first)
    out = checkpoint(lambda y: rate(y, trace), y, use_reentrant=False)
    for retained in (True, False):
        again = torch.autograd.grad(out, y, retain_graph=retained)[0]
        assert torch.allclose(again, first, rtol=1e-12, atol=0)


@pytest.mark.parametrize("hooks", [save_on_cpu, lambda: saved_tensors_hooks(torch.clone, torch.clone)])
@pytest.mark.parametrize("trace", ["always", "never"])
@pytest.mark.parametrize("backward_inside", [False, True])
def test_hooks_on_saved_tensors_change_nothing_and_are_still_there_afterwards(hooks, trace, backward_inside):
    expected = gradient(lambda y: rate(y, trace))
    y = Y.clone().requires_grad_()
    with hooks():
        out = rate(y, trace)
        before = torch._C._autograd._top_saved_tensors_default_hooks(True)
        assert before is not None
        if backward_inside:
            out.backward()
    if not backward_inside:
        out.backward()
    assert torch.allclose(y.grad, expected, rtol=1e-12, atol=0)
