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

from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.iterative.block_inverse import BlockInverse
from mslsq.linear.iterative.block_products import product, symmetric_plan, symmetric_product, transposed

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


class Reduced(Operator):
    """The Schur complement S = B − E C⁻¹ Eᵀ of blocks that do not touch each other, never formed; preconditioned by
    the inverses of its own diagonal blocks (Agarwal, Snavely, Seitz, Szeliski, "Bundle adjustment in the large",
    2010: implicit Schur, SCHUR_JACOBI)."""

    HEAD: ClassVar[int] = 6

    @staticmethod
    def plan(structure: BlockStructure, eliminated: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
        """The plan for eliminating these blocks ((blocks,) bool)."""
        number = np.where(eliminated, np.cumsum(eliminated), np.cumsum(~eliminated)) - 1  # among its own kind
        starts = _starts_within(structure, eliminated)
        heights, widths = structure.block_sizes[structure.rows], structure.block_sizes[structure.cols]
        is_row, is_col = eliminated[structure.rows], eliminated[structure.cols]
        own = structure.rows == structure.cols
        if (is_row & is_col & ~own).any():
            raise ValueError("the blocks to eliminate touch each other")
        table = np.stack(
            (
                starts[structure.rows],
                starts[structure.cols],
                heights,
                widths,
                structure.offsets,
                widths,
                np.ones_like(widths),
            ),
            1,
        )
        kept = ~is_row & ~is_col
        crossing = is_row != is_col
        # E has the kept blocks as rows.
        coupling = np.where(is_row[:, None], table[:, [1, 0, 3, 2, 4, 6, 5]], table)[crossing]
        kept_number = number[np.where(is_row, structure.cols, structure.rows)][crossing]
        gone_number = number[np.where(is_row, structure.rows, structure.cols)][crossing]
        column = np.repeat(eliminated, structure.block_sizes)
        plan = [
            table[kept & ~own],
            table[kept & own],
            coupling,
            np.flatnonzero(~column),
            np.flatnonzero(column),
            np.concatenate((np.flatnonzero(~column), np.flatnonzero(column))).argsort(),
        ]
        groups = {True: [], False: []}
        place = np.zeros(len(eliminated), np.int64)  # of a block within the group of its size
        for size, places, _ in diagonal_groups(structure):
            for side in (False, True):
                blocks = np.flatnonzero((structure.block_sizes == size) & (eliminated == side))
                if blocks.size:
                    among = np.flatnonzero(structure.block_sizes == size)
                    place[blocks] = np.arange(blocks.size)
                    columns = starts[blocks][:, None] + np.arange(size)
                    groups[side].append((size, places[np.isin(among, blocks)], columns))
        by_number = {side: place[eliminated == side] for side in (False, True)}
        for side in (False, True):
            for _, places, columns in groups[side]:
                plan += [places, columns]
        for height, _, _ in groups[False]:
            for width, _, _ in groups[True]:
                pairs = np.flatnonzero((coupling[:, 2] == height) & (coupling[:, 3] == width))
                part = coupling[pairs]
                r, c = np.arange(height)[:, None], np.arange(width)
                plan += [
                    part[:, 4, None, None] + r * part[:, 5, None, None] + c * part[:, 6, None, None],
                    by_number[False][kept_number[pairs]],
                    by_number[True][gone_number[pairs]],
                ]
        return plan, [len(groups[False]), len(groups[True])]

    def __init__(self, values: Matrices, damping: Tensor | None, plan: list[Tensor], sizes: list[int], jacobi: bool):
        self._values = values
        self._below, self._diagonal, self._coupling, self._kept, self._gone, self._back = plan[: self.HEAD]
        self._back_coupling = transposed(self._coupling)
        kept_damping, gone_damping = (None if damping is None else damping[:, c] for c in (self._kept, self._gone))
        self._damping = kept_damping
        num_kept, num_gone = sizes
        rest = plan[self.HEAD :]
        kept_places, kept_columns = rest[0 : 2 * num_kept : 2], rest[1 : 2 * num_kept : 2]
        rest = rest[2 * num_kept :]
        gone_places, gone_columns = rest[0 : 2 * num_gone : 2], rest[1 : 2 * num_gone : 2]
        pairs = rest[2 * num_gone :]
        self._inverse = BlockInverse(damped_blocks(values, gone_damping, gone_places, gone_columns), gone_columns)
        blocks = damped_blocks(values, kept_damping, kept_places, kept_columns)
        for k in range(num_kept):
            for g in range(num_gone):
                entries, kept, gone = pairs[:3]
                pairs = pairs[3:]
                coupling = values[:, entries]
                lost = coupling @ self._inverse.inverses[g][:, gone] @ coupling.mT
                blocks[k] = blocks[k].index_add(1, kept, lost, alpha=-1)
        self.precondition = BlockInverse(blocks, kept_columns)
        self.definite = self._inverse.definite

    def multiply(self, x: Vectors) -> Vectors:
        own = damped(symmetric_product(self._values, x, self._below, self._diagonal), x, self._damping)
        return own - self._through(self._inverse(self._across(x)))

    def _across(self, x: Vectors) -> Vectors:
        """Eᵀ x."""
        return product(self._values, x, self._back_coupling, len(self._gone))

    def _through(self, z: Vectors) -> Vectors:
        """E z."""
        return product(self._values, z, self._coupling, len(self._kept))

    def reduced(self, rhs: Vectors) -> Vectors:
        return rhs[:, self._kept] - self._through(self._inverse(rhs[:, self._gone]))

    def expanded(self, x: Vectors, rhs: Vectors) -> Vectors:
        gone = self._inverse(rhs[:, self._gone] - self._across(x))
        return torch.cat((x, gone), 1)[:, self._back]


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


def _starts_within(structure: BlockStructure, eliminated: np.ndarray) -> np.ndarray:
    """The first column of every block among the columns of its own side."""
    starts = np.zeros(len(eliminated), np.int64)
    for side in (False, True):
        sizes = structure.block_sizes[eliminated == side]
        starts[eliminated == side] = np.cumsum(sizes) - sizes
    return starts
