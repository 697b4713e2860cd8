"""A Schur complement that is never formed, as conjugate gradients see it."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mslsq.linear.block_products import BlockProduct, Matrices, Vectors, block_product, block_table, product, transposed
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.iterative.block_inverse import BlockInverse
from mslsq.linear.iterative.linear_operators import DiagonalBlocks, Operator, damped, diagonal_groups
from mslsq.linear.operator_plan import OperatorPlan, on_device


@dataclass(frozen=True, eq=False)
class Coupling(OperatorPlan):
    """The blocks of E between kept blocks of one size and eliminated ones of one size."""

    kept_group: int
    gone_group: int
    entries: Int[Tensor, "pairs height width"]
    """Where the values hold them."""
    kept: Int[Tensor, "pairs"]
    gone: Int[Tensor, "pairs"]
    """Which blocks of their groups."""


@dataclass(frozen=True, eq=False)
class ImplicitSchurPlan(OperatorPlan):
    """Where B, C and E stand."""

    own: BlockProduct
    """B x."""
    across: BlockProduct
    """Eᵀ x."""
    through: BlockProduct
    """E z."""
    kept: Int[Tensor, "kept"]
    gone: Int[Tensor, "eliminated"]
    """The columns on each side."""
    back: Int[Tensor, "columns"]
    """Where each column is among those of both sides."""
    kept_groups: tuple[DiagonalBlocks, ...]
    gone_groups: tuple[DiagonalBlocks, ...]
    couplings: tuple[Coupling, ...]

    @classmethod
    def of(cls, structure: BlockStructure, eliminated: Bool[np.ndarray, "blocks"]) -> "ImplicitSchurPlan":
        """The plan for eliminating these blocks; made once."""
        return structure.memo.once(("implicit", eliminated.tobytes()), partial(_plan, structure, eliminated))


def _plan(structure: BlockStructure, eliminated: Bool[np.ndarray, "blocks"]) -> ImplicitSchurPlan:
    sizes, device = structure.block_sizes, structure.device
    is_row, is_col = eliminated[structure.rows], eliminated[structure.cols]
    own = structure.rows == structure.cols
    if (is_row & is_col & ~own).any():
        raise ValueError("the blocks to eliminate touch each other")
    starts, within = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)  # within its side, and its group
    for side in (False, True):
        starts[eliminated == side] = np.cumsum(sizes[eliminated == side]) - sizes[eliminated == side]
        for size in np.unique(sizes):
            group = np.flatnonzero((sizes == size) & (eliminated == side))
            within[group] = np.arange(len(group))
    table, crossing, kept = block_table(structure, starts), is_row != is_col, ~is_row & ~is_col
    # E has the kept blocks as rows.
    coupling = np.where(is_row[:, None], transposed(table), table)[crossing]
    kept_block = np.where(is_row, structure.cols, structure.rows)[crossing]
    gone_block = np.where(is_row, structure.rows, structure.cols)[crossing]
    column = np.repeat(eliminated, sizes)
    numbers = [np.where(column == side, np.cumsum(column == side) - 1, -1) for side in (False, True)]
    columns = [np.flatnonzero(column == side) for side in (False, True)]

    def between(to: int, of: int, *tables: np.ndarray) -> BlockProduct:
        """The part of A from one side to one side, 0 the kept one."""
        entries = partial(structure.entries_between, numbers[to], numbers[of])
        return block_product(len(columns[to]), tables, entries, device)

    couplings = []
    heights, widths = (np.unique(sizes[eliminated == side]).tolist() for side in (False, True))
    for k, height in enumerate(heights):
        for g, width in enumerate(widths):
            pairs = np.flatnonzero((coupling[:, 2] == height) & (coupling[:, 3] == width))
            at, by_row, by_column = coupling[pairs, 4:, None, None].swapaxes(0, 1)
            entries = at + np.arange(height)[:, None] * by_row + np.arange(width) * by_column
            arrays = entries, within[kept_block[pairs]], within[gone_block[pairs]]
            couplings.append(Coupling(k, g, *(on_device(array, device) for array in arrays)))
    kept_columns, gone_columns = columns
    groups = (diagonal_groups(structure, np.flatnonzero(eliminated == side), starts) for side in (False, True))
    return ImplicitSchurPlan(
        between(0, 0, table[kept & ~own], table[kept & own]),
        between(1, 0, transposed(coupling)),
        between(0, 1, coupling),
        on_device(kept_columns, device),
        on_device(gone_columns, device),
        on_device(np.concatenate(columns).argsort(), device),
        *groups,
        couplings=tuple(couplings),
    )


class ImplicitSchur(Operator):
    """The Schur complement S = B − E C⁻¹ Eᵀ of blocks that do not touch each other, never formed; preconditioned by
    the inverses of its own diagonal blocks (Agarwal, Snavely, Seitz, Szeliski, "Bundle adjustment in the large",
    2010: implicit Schur, SCHUR_JACOBI)."""

    kind, Plan = "implicit_schur", ImplicitSchurPlan

    def __init__(self, values: Matrices, damping: Tensor | None, plan: ImplicitSchurPlan, jacobi: bool):
        self._values, self._plan = values, plan
        kept_damping, gone_damping = (None if damping is None else damping[:, c] for c in (plan.kept, plan.gone))
        self._damping = kept_damping
        gone_blocks = [group.of(values, gone_damping) for group in plan.gone_groups]
        self._inverse = BlockInverse(gone_blocks, [group.columns for group in plan.gone_groups])
        blocks = [group.of(values, kept_damping) for group in plan.kept_groups]
        for part in plan.couplings:
            coupling = values[:, part.entries]
            lost = coupling @ self._inverse.inverses[part.gone_group][:, part.gone] @ coupling.mT
            blocks[part.kept_group] = blocks[part.kept_group].index_add(1, part.kept, lost, alpha=-1)
        self.precondition = BlockInverse(blocks, [group.columns for group in plan.kept_groups])
        self.definite = self._inverse.definite

    def multiply(self, x: Vectors) -> Vectors:
        own = damped(product(self._values, x, self._plan.own), x, self._damping)
        return own - self._through(self._inverse(self._across(x)))

    def _across(self, x: Vectors) -> Vectors:
        return product(self._values, x, self._plan.across)

    def _through(self, z: Vectors) -> Vectors:
        return product(self._values, z, self._plan.through)

    def reduced(self, rhs: Vectors) -> Vectors:
        return rhs[:, self._plan.kept] - self._through(self._inverse(rhs[:, self._plan.gone]))

    def expanded(self, x: Vectors, rhs: Vectors) -> Vectors:
        gone = self._inverse(rhs[:, self._plan.gone] - self._across(x))
        return torch.cat((x, gone), 1)[:, self._plan.back]
