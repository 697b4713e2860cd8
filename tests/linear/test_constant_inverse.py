"""The inverse of a constant factor is differentiated and mapped as the solve that it stands for."""

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

from mslsq.linear.differentiable_inverse import constant_inverse

F64 = torch.float64


def foreign(factor: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """A solve that PyTorch cannot look into, given A itself: (batch, n, n) and (batch, n, k)."""
    return torch.from_numpy(torch.linalg.solve(factor, rhs).detach().numpy())


def systems(batch: int = 3, n: int = 4, k: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(batch, n, n, generator=generator, dtype=F64)
    return root @ root.mT + torch.eye(n, dtype=F64), torch.randn(batch, n, k, generator=generator, dtype=F64)


def test_derivatives_of_both_modes_and_orders_are_those_of_the_inverse():
    matrix, rhs = systems()
    torch.autograd.gradcheck(
        lambda b: constant_inverse(foreign, matrix, b), rhs.requires_grad_(), check_forward_ad=True
    )
    torch.autograd.gradgradcheck(lambda b: constant_inverse(foreign, matrix, b), rhs)


@pytest.mark.parametrize("in_dims", [(None, 0), (None, 3), (0, None), (0, 0), (2, 1)])
def test_a_mapped_axis_is_more_right_hand_sides_or_a_larger_batch(in_dims):
    matrices, sides = zip(*(systems(batch=3) for _ in range(5)), strict=True)
    matrices = torch.stack([(1 + i) * matrix for i, matrix in enumerate(matrices)])
    sides = torch.stack([(2 + i) * side for i, side in enumerate(sides)])
    given = [
        tensor[0] if dim is None else tensor.movedim(0, dim)
        for tensor, dim in zip((matrices, sides), in_dims, strict=True)
    ]
    mapped = vmap(lambda a, b: constant_inverse(foreign, a, b), in_dims)(*given)
    for i in range(5):
        a, b = (tensor[0 if dim is None else i] for tensor, dim in zip((matrices, sides), in_dims, strict=True))
        torch.testing.assert_close(mapped[i], torch.linalg.solve(a, b))


def test_jacobians_are_the_inverse_itself():
    matrix, rhs = systems(batch=1, k=1)
    for transform in (jacrev, jacfwd):
        jacobian = transform(lambda b: constant_inverse(foreign, matrix, b))(rhs)
        torch.testing.assert_close(jacobian[0, :, 0, 0, :, 0], torch.linalg.inv(matrix[0]))


def test_second_derivatives_in_forward_mode_twice():
    """PyTorch turns forward mode off inside of a function's own derivative, and with it the outer of two transforms."""
    matrix, rhs = systems(batch=1, n=2, k=1)

    def energy(b):
        return (constant_inverse(foreign, matrix, b) ** 2).sum() / 2

    inverse = torch.linalg.inv(matrix[0])
    hessian = jacfwd(jacfwd(energy))(rhs).reshape(2, 2)
    torch.testing.assert_close(hessian, inverse @ inverse)
