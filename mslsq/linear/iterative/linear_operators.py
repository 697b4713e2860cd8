"""Symmetric matrices as conjugate gradients see them: products and preconditioners, from tensors and a plan.

Each operator is made from the numbers of a matrix (batch, values), a damping (batch, columns) or none, and a plan that
says where the numbers stand. So all of it fits behind one operator of PyTorch that can be recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linear.block_products import BlockProduct, Matrices, Vectors, product, symmetric_product_of
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.iterative.block_inverse import BlockInverse
from mslsq.linear.iterative.conjugate_gradients import any_of
from mslsq.linear.operator_plan import OperatorPlan, on_device


class Operator:
    """Base: x ↦ (A + diag(damping)) x and r ↦ M⁻¹ r for vectors (entries, columns), the entries a multiple of the
    batch."""

    kind: ClassVar[str]
    """What a recorded graph calls it."""
    Plan: ClassVar[type[OperatorPlan]]
    precondition: Callable[[Vectors], Vectors]
    definite: Bool[Tensor, "batch"]
    """Were the blocks that the preconditioner inverts positive definite?"""

    def __init__(self, values: Matrices, damping: Tensor | None, plan: Any, jacobi: bool):
        raise NotImplementedError

    def multiply(self, x: Vectors) -> Vectors:
        raise NotImplementedError

    def is_wanted(self, active: Bool[Tensor, "entries"]) -> bool:
        """Is another product wanted, for the entries that are still to be solved?"""
        return any_of(active)

    def goes_on(self, entries: Bool[Tensor, "entries"]) -> bool:
        """Is there an entry for which the iteration is to be begun again?"""
        return any_of(entries)

    def reduced(self, rhs: Vectors) -> Vectors:
        """The right-hand side of the system that is iterated on."""
        return rhs

    def expanded(self, x: Vectors, rhs: Vectors) -> Vectors:
        """The solution of the whole system from that of the reduced one."""
        return x


@dataclass(frozen=True, eq=False)
class DiagonalBlocks(OperatorPlan):
    """Blocks on the diagonal, of one size."""

    places: Int[Tensor, "count size size"]
    """Where the values hold their entries, the upper triangle mirroring the lower."""
    columns: Int[Tensor, "count size"]

    def of(self, values: Matrices, damping: Tensor | None) -> Float[Tensor, "batch count size size"]:
        """The blocks, damped."""
        blocks = values[:, self.places]
        return blocks if damping is None else blocks + torch.diag_embed(damping[:, self.columns])


@dataclass(frozen=True, eq=False)
class FormedPlan(OperatorPlan):
    """Where the stored blocks of A stand."""

    product: BlockProduct
    diagonal: Int[Tensor, "columns"]
    groups: tuple[DiagonalBlocks, ...]

    @classmethod
    def of(cls, structure: BlockStructure) -> "FormedPlan":
        """The plan of a structure; made once."""

        def make() -> FormedPlan:
            groups = diagonal_groups(structure, np.arange(len(structure.block_sizes)), structure.starts)
            return cls(symmetric_product_of(structure), structure.diagonal_index, groups)

        return structure.memo.once("formed", make)


class Formed(Operator):
    """A by its blocks, preconditioned by the inverses of the blocks on the diagonal (or of the diagonal)."""

    kind, Plan = "formed", FormedPlan

    def __init__(self, values: Matrices, damping: Tensor | None, plan: FormedPlan, jacobi: bool):
        self._values, self._damping, self._product = values, damping, plan.product
        if jacobi:
            diagonal = values[:, plan.diagonal]
            diagonal = diagonal if damping is None else diagonal + damping
            everywhere = torch.arange(diagonal.shape[1], device=values.device)[:, None]
            inverse = BlockInverse([diagonal[..., None, None]], [everywhere])
        else:
            blocks = [group.of(values, damping) for group in plan.groups]
            inverse = BlockInverse(blocks, [group.columns for group in plan.groups])
        self.precondition, self.definite = inverse, inverse.definite

    def multiply(self, x: Vectors) -> Vectors:
        return damped(product(self._values, x, self._product), x, self._damping)


def damped(product: Vectors, x: Vectors, damping: Float[Tensor, "batch columns"] | None) -> Vectors:
    """product + damping · x."""
    if damping is None:
        return product
    if len(x) != len(damping):
        damping = damping.repeat_interleave(len(x) // len(damping), 0)
    return torch.addcmul(product, damping, x)


def diagonal_groups(
    structure: BlockStructure, chosen: Int[np.ndarray, "blocks"], starts: Int[np.ndarray, "blocks"]
) -> tuple[DiagonalBlocks, ...]:
    """The chosen diagonal blocks, by size; `starts` are the first columns of all blocks."""
    own = structure.offsets[structure.rows == structure.cols]
    groups = []
    for size in np.unique(structure.block_sizes[chosen]).tolist():
        blocks = chosen[structure.block_sizes[chosen] == size]
        r, c = np.arange(size)[:, None], np.arange(size)
        places = own[blocks][:, None, None] + np.maximum(r, c) * size + np.minimum(r, c)
        arrays = places, starts[blocks][:, None] + np.arange(size)
        groups.append(DiagonalBlocks(*(on_device(array, structure.device) for array in arrays)))
    return tuple(groups)
