"""Symmetric matrices as conjugate gradients see them: products and preconditioners, from tensors alone.

Each operator is made from the numbers of a matrix (batch, values), a damping (batch, columns) or none, and a plan: a
list of tensors and a list of integers that say where the numbers stand, worked out once per structure. So all of it
fits behind one operator of PyTorch that can be recorded.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_products import symmetric_plan, symmetric_product
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.iterative.block_inverse import BlockInverse

Matrices = Float[Tensor, "batch values"]
Vectors = Float[Tensor, "entries columns"]


class Operator:
    """Base: x ↦ (A + diag(damping)) x and r ↦ M⁻¹ r for vectors (entries, columns), the entries a multiple of the
    batch."""

    precondition: Callable[[Vectors], Vectors]
    definite: Bool[Tensor, "batch"]
    """Were the blocks that the preconditioner inverts positive definite?"""

    def __init__(self, values: Matrices, damping: Tensor | None, plan: list[Tensor], sizes: list[int], jacobi: bool):
        raise NotImplementedError

    def multiply(self, x: Vectors) -> Vectors:
        raise NotImplementedError

    @classmethod
    def product(cls, values: Matrices, x: Vectors, plan: list[Tensor], sizes: list[int]) -> Vectors:
        """A x alone."""
        raise NotImplementedError

    def reduced(self, rhs: Vectors) -> Vectors:
        """The right-hand side of the system that is iterated on."""
        return rhs

    def expanded(self, x: Vectors, rhs: Vectors) -> Vectors:
        """The solution of the whole system from that of the reduced one."""
        return x


class Formed(Operator):
    """A by its blocks, preconditioned by the inverses of the blocks on the diagonal (or of the diagonal)."""

    HEAD: ClassVar[int] = 3

    @staticmethod
    def plan(structure: BlockStructure) -> tuple[list[np.ndarray], list[int]]:
        """Where the numbers stand."""
        below, diagonal = symmetric_plan(structure)
        plan = [below, diagonal, structure.diagonal_index]
        for _, places, columns in diagonal_groups(structure):
            plan += [places, columns]
        return plan, []

    def __init__(self, values: Matrices, damping: Tensor | None, plan: list[Tensor], sizes: list[int], jacobi: bool):
        self._values, self._damping = values, damping
        self._below, self._diagonal, diagonal_index = plan[: self.HEAD]
        places, columns = plan[self.HEAD :: 2], plan[self.HEAD + 1 :: 2]
        if jacobi:
            diagonal = values[:, diagonal_index]
            diagonal = diagonal if damping is None else diagonal + damping
            everywhere = torch.arange(diagonal.shape[1], device=values.device)[:, None]
            inverse = BlockInverse([diagonal[..., None, None]], [everywhere])
        else:
            inverse = BlockInverse(damped_blocks(values, damping, places, columns), columns)
        self.precondition, self.definite = inverse, inverse.definite

    def multiply(self, x: Vectors) -> Vectors:
        return damped(symmetric_product(self._values, x, self._below, self._diagonal), x, self._damping)

    @classmethod
    def product(cls, values: Matrices, x: Vectors, plan: list[Tensor], sizes: list[int]) -> Vectors:
        return symmetric_product(values, x, plan[0], plan[1])


def damped(product: Vectors, x: Vectors, damping: Float[Tensor, "batch columns"] | None) -> Vectors:
    """product + damping · x."""
    if damping is None:
        return product
    if len(x) != len(damping):
        damping = damping.repeat_interleave(len(x) // len(damping), 0)
    return torch.addcmul(product, damping, x)


def damped_blocks(
    values: Matrices, damping: Tensor | None, places: list[Tensor], columns: list[Tensor]
) -> list[Float[Tensor, "batch count size size"]]:
    """The diagonal blocks by groups of one size, damped."""
    blocks = [values[:, place] for place in places]
    if damping is None:
        return blocks
    return [block + torch.diag_embed(damping[:, column]) for block, column in zip(blocks, columns, strict=True)]


def diagonal_groups(structure: BlockStructure) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Per size of diagonal block: the size, the places of the entries in the values (count, size, size), the upper
    triangle mirroring the lower, and the columns (count, size)."""
    own = structure.offsets[structure.rows == structure.cols]
    groups = []
    for size in np.unique(structure.block_sizes).tolist():
        blocks = np.flatnonzero(structure.block_sizes == size)
        r, c = np.arange(size)[:, None], np.arange(size)
        within = np.maximum(r, c) * size + np.minimum(r, c)
        columns = structure.starts[:-1][blocks][:, None] + np.arange(size)
        groups.append((size, own[blocks][:, None, None] + within, columns))
    return groups
