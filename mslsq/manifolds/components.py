"""Vectors and small matrices put together from parts, in the order in memory that the parts have.

Of many elements at once, (batch, components), every operation is a few long sweeps over memory where the batch is
innermost there, and a loop of three steps per element where the components are: 2.1 ms instead of 14 for residuals and
Jacobians of 4949 relative poses in space. PyTorch's elementwise operations keep the order of what they are given;
`cat`, `stack`, `cross` and products of matrices do not, these do. Where the components are innermost, and for a single
element, they are PyTorch's own.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["cat", "cat_matrices", "cross", "matmul", "stack"]


def batch_is_innermost(x: Float[Tensor, "*batch components"]) -> bool:
    """Are these vectors along one batch axis, which is contiguous in memory?"""
    return x.ndim == 2 and x.stride(0) == 1 and x.stride(1) >= x.shape[0] > 1


def matrix_batch_is_innermost(x: Float[Tensor, "*batch rows columns"]) -> bool:
    """Are these matrices along one batch axis, which is contiguous in memory?"""
    if x.ndim != 3 or x.stride(0) != 1 or x.shape[0] == 1:
        return False
    return all(size == 1 or stride >= x.shape[0] for size, stride in zip(x.shape[1:], x.stride()[1:], strict=True))


def cat(parts: list[Tensor], like: Tensor | None = None) -> Float[Tensor, "*batch components"]:
    """Vectors one after the other, in the order in memory of the first or of `like` (one of a single component has
    either)."""
    if batch_is_innermost(parts[0] if like is None else like):
        return torch.cat([part.T for part in parts]).T
    return torch.cat(parts, -1)


def cat_matrices(parts: list[Tensor], dim: int) -> Float[Tensor, "*batch rows columns"]:
    """Matrices beside (-1) or below (-2) each other, in the order in memory of the first."""
    if matrix_batch_is_innermost(parts[0]):
        return torch.cat([part.movedim(0, -1) for part in parts], dim - 1).movedim(-1, 0)
    return torch.cat(parts, dim)


def stack(parts: list[Tensor], like: Float[Tensor, "*batch components"]) -> Float[Tensor, "*batch parts"]:
    """Vectors of these components, in the order in memory of `like`."""
    return torch.stack(parts).T if batch_is_innermost(like) else torch.stack(parts, -1)


def cross(a: Float[Tensor, "*batch 3"], b: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    """The cross product with broadcasting batches (`torch.linalg.cross` wants equal numbers of dimensions)."""
    innermost = batch_is_innermost(a) or batch_is_innermost(b)
    if a.ndim != b.ndim:
        a, b = torch.broadcast_tensors(a, b)
    if innermost and a.ndim == 2:
        return torch.linalg.cross(a.T, b.T, dim=0).T
    return torch.linalg.cross(a, b, dim=-1)


def matmul(a: Float[Tensor, "*batch rows inner"], b: Float[Tensor, "*batch inner columns"]) -> Tensor:
    """The product of matrices; where the batch is innermost, a sweep for every entry of the inner axis: 0.3 ms instead
    of 2.3 for 4949 products of 6 x 6."""
    if not (matrix_batch_is_innermost(a) or matrix_batch_is_innermost(b)):
        return a @ b
    total = a[..., :, 0, None] * b[..., 0, None, :]
    for k in range(1, a.shape[-1]):
        total = torch.addcmul(total, a[..., :, k, None], b[..., k, None, :])
    return total
