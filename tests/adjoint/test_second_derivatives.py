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


def good_or_kinked(x, d):
    """A smooth problem for d < 1.5, one that ends at a kink for others."""
    return torch.stack([torch.where(d > 1.5, 1 + (x[0] - d).abs(), x[0] ** 3 - d), 0.5 * (x[0] - 5)])


@pytest.mark.filterwarnings("ignore::mslsq.errors.NotDifferentiableWarning")
@pytest.mark.parametrize("outer", [torch.func.jacfwd, torch.func.jacrev])
@pytest.mark.parametrize("inner", [torch.func.jacfwd, torch.func.jacrev])
def test_a_problem_without_a_derivative_has_no_second_one_either(outer, inner):
    # A constant NaN has the derivative zero: forward mode on top gave a Hessian of zeros.
    def value(d):
        return mslsq.least_squares(good_or_kinked, torch.ones(1, dtype=F64), (d[0],)).value[0]

    good, kinked = torch.tensor([[1.0], [2.0]], dtype=F64)
    assert outer(inner(value))(kinked).isnan().all()
    assert torch.allclose(outer(inner(value))(good), differences(torch.func.grad(value), good), atol=1e-6)


@pytest.mark.filterwarnings("ignore::mslsq.errors.NotDifferentiableWarning")
def test_a_problem_without_a_derivative_leaves_the_second_ones_of_its_batch_alone():
    def values(d):
        return mslsq.least_squares(good_or_kinked, torch.ones(1, dtype=F64), (d,), in_dims=(None, 0)).value[:, 0]

    d = torch.tensor([1.0, 2.0], dtype=F64)
    alone = torch.func.hessian(lambda d: values(d)[0])(d[:1])[0, 0]
    second = torch.func.hessian(values)(d)
    assert torch.allclose(second[0, 0, 0], alone) and second[1, 1, 1].isnan()
    assert torch.func.hessian(lambda d: values(d)[0])(d)[0, 0].isfinite()

    def scaled(scale):
        found = mslsq.least_squares(
            lambda x, d, s: good_or_kinked(x, d) + torch.stack([s[0], 0 * s[0]]),
            torch.ones(1, dtype=F64),
            (d, scale),
            in_dims=(None, 0, None),
        )
        return found.value[0, 0] + 0 * found.value[:1].sum()

    shared = torch.tensor([0.1], dtype=F64)
    assert torch.func.hessian(scaled)(shared).isfinite().all()
