"""Distances between points, in forward mode and with second derivatives: `cdist` and `pdist`.

PyTorch's kernels have neither, and the batching of `cdist`'s derivative is silently wrong (torch 2.13). A distance of
zero has derivative zero, of every order, as in PyTorch.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def cdist(
    x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch m d"], p: float, compute_mode: int | None = None
) -> Float[Tensor, "*batch n m"]:
    """`aten._cdist_forward`."""
    return norm(x.unsqueeze(-2) - y.unsqueeze(-3), p)


def euclidean(x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch n m"]:
    """`aten._euclidean_dist`, `cdist` of more than 25 points: by a product of matrices, with its rounding."""
    x_squared, y_squared = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    left = torch.cat([-2 * x, x_squared, torch.ones_like(x_squared)], -1)
    right = torch.cat([y, torch.ones_like(y_squared), y_squared], -1)
    return root(left @ right.mT)


def pdist(x: Float[Tensor, "n d"], p: float = 2.0) -> Float[Tensor, "pairs"]:
    """`aten._pdist_forward`: each pair once."""
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device).unbind()
    return norm(x.index_select(0, i) - x.index_select(0, j), p)


def norm(difference: Float[Tensor, "*batch d"], p: float) -> Float[Tensor, "*batch"]:
    """‖·‖ₚ of the last axis; p = 0 counts."""
    if difference.shape[-1] == 0:
        return difference.sum(-1)
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return difference.abs().sum(-1)
    if p == 2:
        return root((difference * difference).sum(-1))
    if math.isinf(p):
        return difference.abs().amax(-1)
    powers = difference.abs()
    nowhere = powers == 0
    powers = torch.where(nowhere, 0, torch.where(nowhere, 1, powers) ** p).sum(-1)
    nowhere = powers == 0
    return torch.where(nowhere, 0, torch.where(nowhere, 1, powers) ** (1 / p))


def root(squared: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """√, with 0 and no derivative where nothing positive is below it."""
    nowhere = squared <= 0
    return torch.where(nowhere, 0, torch.where(nowhere, 1, squared).sqrt())
