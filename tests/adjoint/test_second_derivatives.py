"""Operations that PyTorch does not differentiate in forward mode, or only once, under a derivative of a solution."""

import pytest
import torch
import torch.nn.functional as F

import mslsq
from mslsq.problem.errors import SecondDerivativeError
from tests.differences import differences

F64 = torch.float64


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


A, IMAGE, GRID = numbers(6, 2, seed=0), numbers(1, 1, 8, 8, seed=1), 0.5 * numbers(1, 6, 1, 2, seed=2).tanh()


def sampled(x, d):
    grid = (0.1 * x).view(1, 1, 1, 2) + GRID
    return torch.cat([F.grid_sample(IMAGE, grid, align_corners=True).reshape(-1) - d, 0.3 * x])


def huber(x, d):
    shifted = A @ x + 2 * torch.arange(6, dtype=F64)
    return torch.cat([F.huber_loss(shifted, torch.zeros_like(shifted), reduction="none") - d, 0.1 * x])


def gated(x, d):
    return torch.cat([F.glu(A @ x) - d[:3], 0.1 * x])


def distances(x, d):
    return torch.cat([torch.cdist(A, x[None]).reshape(-1) - d, 0.1 * x])


def slope(residual, x, d):
    """The gradient of the cost: plain autograd, once, for torch 2.9 has no second derivative of `grid_sample`."""
    at = x.clone().requires_grad_()
    return torch.autograd.grad(0.5 * (residual(at, d) ** 2).sum(), at)[0]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("trace", ["never", "always"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("residual", [sampled, huber, gated])
def test_the_derivative_equals_that_of_differences_of_plain_gradients(residual, batched, trace):
    d = 0.3 * numbers(6, seed=3)
    data = (torch.stack([d, d + 0.1]) if batched else d).requires_grad_()
    solver = mslsq.LevenbergMarquardt(trace=trace, ftol=1e-15, gtol=1e-13)
    start = torch.tensor([0.3, 0.2], dtype=F64)
    in_dims = (None, 0) if batched else None
    solution = mslsq.least_squares(residual, start, args=(data,), in_dims=in_dims, solver=solver)
    assert solution.differentiable.all()
    (found,) = torch.autograd.grad(solution.value.sum(), data)
    for x, lane, mine in zip(
        solution.value.detach().reshape(-1, 2), data.detach().reshape(-1, 6), found.reshape(-1, 6), strict=True
    ):
        hessian = differences(lambda at, own=lane: slope(residual, at, own), x).mT
        crossed = differences(lambda own, at=x: slope(residual, at, own), lane).mT
        expected = -(crossed @ torch.linalg.inv(hessian)).sum(1)
        assert torch.allclose(mine, expected, rtol=1e-6, atol=1e-9)


def test_an_operation_that_has_no_second_derivative_is_named():
    d = torch.rand(6, generator=torch.Generator().manual_seed(4), dtype=F64).requires_grad_()
    try:
        solution = mslsq.least_squares(distances, torch.tensor([0.3, 0.2], dtype=F64), args=(d,))
    except SecondDerivativeError as error:
        assert "_cdist_backward" in str(error)
        assert "Detached()" in str(error)
    else:  # written with other operations by then
        assert solution.differentiable
    detached = mslsq.least_squares(distances, torch.tensor([0.3, 0.2], dtype=F64), args=(d,), adjoint=mslsq.Detached())
    assert detached.converged
