"""A Schur complement that is never formed, as conjugate gradients see it."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mslsq.linear.block_products import block_table, product, symmetric_product, transposed
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.iterative.block_inverse import BlockInverse
from mslsq.linear.iterative.linear_operators import (
    Matrices,
    Operator,
    Vectors,
    damped,
    damped_blocks,
    diagonal_groups,
)


class ImplicitSchur(Operator):
    """The Schur complement S = B − E C⁻¹ Eᵀ of blocks that do not touch each other, never formed; preconditioned by
    the inverses of its own diagonal blocks (Agarwal, Snavely, Seitz, Szeliski, "Bundle adjustment in the large",
    2010: implicit Schur, SCHUR_JACOBI)."""

    HEAD: ClassVar[int] = 6

    @staticmethod
    def plan(structure: BlockStructure, eliminated: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
        """The plan for eliminating these blocks ((blocks,) bool)."""
        number = np.where(eliminated, np.cumsum(eliminated), np.cumsum(~eliminated)) - 1  # among its own kind
        starts = _starts_within(structure, eliminated)
        is_row, is_col = eliminated[structure.rows], eliminated[structure.cols]
        own = structure.rows == structure.cols
        if (is_row & is_col & ~own).any():
            raise ValueError("the blocks to eliminate touch each other")
        table = block_table(structure, starts)
        kept = ~is_row & ~is_col
        crossing = is_row != is_col
        # E has the kept blocks as rows.
        coupling = np.where(is_row[:, None], transposed(table), table)[crossing]
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


def _starts_within(structure: BlockStructure, eliminated: np.ndarray) -> np.ndarray:
    """The first column of every block among the columns of its own side."""
    starts = np.zeros(len(eliminated), np.int64)
    for side in (False, True):
        sizes = structure.block_sizes[eliminated == side]
        starts[eliminated == side] = np.cumsum(sizes) - sizes
    return starts
