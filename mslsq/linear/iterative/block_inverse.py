"""Inverses of many small symmetric blocks, applied to vectors: what block-Jacobi preconditioners are made of."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Blocks = Float[Tensor, "batch count size size"]


class BlockInverse:
    """x ↦ M⁻¹ x for a block-diagonal M, given by groups of blocks of one size each.

    Args:
        blocks: per group (batch, count, size, size), symmetric.
        columns: per group (count, size), the columns that each block stands on. All columns together are each there
            once.
    """

    def __init__(self, blocks: list[Blocks], columns: Sequence[Int[Tensor, "count size"]]):
        self._columns = columns
        made = [inverted(group) for group in blocks]
        self.inverses = [inverse for inverse, _ in made]
        self.definite: Bool[Tensor, "batch"] = torch.stack([sound.all(-1) for _, sound in made]).all(0)
        """Were all blocks of an entry positive definite? Those that were not count by their diagonals."""
        order = torch.cat([group.reshape(-1) for group in columns])
        self._back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))

    def __call__(self, x: Float[Tensor, "entries columns"]) -> Float[Tensor, "entries columns"]:
        """M⁻¹ x; the entries are a multiple of the batch, that many vectors for each M in turn."""
        parts = [
            _applied(inverse, x[:, columns]).flatten(1)
            for inverse, columns in zip(self.inverses, self._columns, strict=True)
        ]
        return (torch.cat(parts, 1) if len(parts) > 1 else parts[0])[:, self._back]


def inverted(blocks: Blocks) -> tuple[Blocks, Bool[Tensor, "batch count"]]:
    """The inverses of symmetric blocks, and which were positive definite; of the others the inverse diagonal."""
    factor, info = torch.linalg.cholesky_ex(blocks)
    sound = (info == 0) & torch.isfinite(factor).all(-1).all(-1)
    eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    inverse = torch.cholesky_inverse(torch.where(sound[..., None, None], factor, eye))
    diagonal = blocks.diagonal(dim1=-2, dim2=-1)
    usable = (diagonal > 0) & torch.isfinite(diagonal)
    instead = torch.diag_embed(1 / torch.where(usable, diagonal, 1))
    return torch.where(sound[..., None, None], inverse, instead), sound


def _applied(inverse: Blocks, x: Float[Tensor, "entries count size"]) -> Float[Tensor, "entries count size"]:
    repeat = len(x) // max(len(inverse), 1)
    if repeat == 1:
        return (inverse @ x[..., None])[..., 0]
    together = x.unflatten(0, (len(inverse), repeat)).movedim(1, -1)
    return (inverse @ together).movedim(-1, 1).flatten(0, 1)
