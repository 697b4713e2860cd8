"""The active constraints at a point, and what systems of the point and the multipliers together take of them."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver


class ActiveRows(NamedTuple):
    """A, of every problem; zero rows for constraints that are not active."""

    rows: Float[Tensor, "batch rows columns"]
    """A."""
    solved: Float[Tensor, "batch rows columns"]
    """A K⁻¹, with the Hessian K of what is minimised."""
    complement: Float[Tensor, "batch rows rows"]
    """(A K⁻¹ Aᵀ)⁻¹; the identity where the rows depend on each other."""
    mask: Bool[Tensor, "batch rows"]


class FoundRows(NamedTuple):
    """Active constraints, and what was found out about them."""

    active: ActiveRows
    regular: Bool[Tensor, "batch"]
    """Are the active rows independent?"""
    own: Float[Tensor, "batch rows"]
    """a K⁻¹ aᵀ of every row, active or not."""


def active_rows(
    linear: LinearSolver,
    factor: Tensor,
    every: Float[Tensor, "batch rows columns"],
    mask: Bool[Tensor, "batch rows"],
) -> FoundRows:
    """What there is of the active rows among all.

    Args:
        factor: of K, by `linear`.
        every: the Jacobian of all constraints.
        mask: which are active.
    """
    count, eps = every.shape[1], torch.finfo(every.dtype).eps
    inverse = linear.solve_factored_rows(factor, every)
    own = (every * inverse).sum(-1)
    rows, solved = torch.where(mask[..., None], every, 0), torch.where(mask[..., None], inverse, 0)
    counts = mask & (own > 0)
    # In units in which each row by itself has a one here: what depends on each other shows in the pivots.
    scale = torch.where(counts, torch.where(counts, own, 1).rsqrt(), 1)
    schur = (rows * scale[..., None]) @ (solved * scale[..., None]).mT
    schur = torch.where(torch.diag_embed(~counts), 1, 0.5 * (schur + schur.mT))
    eye = torch.eye(count, dtype=every.dtype, device=every.device)
    finite = torch.isfinite(schur).all(-1).all(-1)
    lower, info = torch.linalg.cholesky_ex(torch.where(finite[:, None, None], schur, eye))
    pivots = lower.diagonal(dim1=-2, dim2=-1) ** 2
    regular = finite & (info == 0) & (pivots > 1e3 * eps * count).all(-1) & ~(mask & ~counts).any(-1)
    complement = torch.cholesky_inverse(torch.where(regular[:, None, None], lower, eye))
    active = ActiveRows(rows, solved, scale[..., None] * complement * scale[:, None], mask)
    return FoundRows(active, regular, own)


def times(matrix: Float[Tensor, "batch a b"], vector: Float[Tensor, "batch b"]) -> Float[Tensor, "batch a"]:
    """The product per problem."""
    return (matrix @ vector[..., None])[..., 0]
