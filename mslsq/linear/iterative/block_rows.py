"""JᵀJ and Hessians that are never put together: products straight from the blocks of every term.

A term is the same small matrix for each of its lanes: (batch, rows, tangent, lanes) blocks of a Jacobian, or (batch,
tangent, tangent, lanes) of a Hessian, standing on `columns` (tangent, lanes) of the whole. The numbers of all terms lie
one after the other in a flat (batch, values). Memory is linear in the number of blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.kernels import Kernel, run_on
from mslsq.linear.block_products import Matrices, Vectors, repeats
from mslsq.linear.iterative.block_inverse import BlockInverse
from mslsq.linear.iterative.linear_operators import Operator, damped
from mslsq.linear.memo import Memo
from mslsq.linear.operator_plan import OperatorPlan, on_device

_by_jacobian = Kernel("jacobian_product", "nnnTnnnnnlTT")
_by_hessian = Kernel("hessian_product", "nnnTnnnnlTT")


@dataclass(frozen=True, eq=False)
class SlotPlan(OperatorPlan):
    """One variable of a term, or consecutive components of one."""

    start: int
    """Where its tangent begins."""
    width: int
    group: int
    """Of blocks of one size, -1 where all of its own are held fixed."""
    at: Int[Tensor, "lanes"]
    """The number of each block within the group; one past the last for those held fixed."""


@dataclass(frozen=True, eq=False)
class TermPlan(OperatorPlan):
    """Where the blocks of one term stand."""

    rows: int
    columns: Int[Tensor, "tangent lanes"]
    """The column of every entry of the joint tangent; the number of columns for what is held fixed."""
    slots: tuple[SlotPlan, ...]


@dataclass(frozen=True, eq=False)
class RowsPlan(OperatorPlan):
    """Where the blocks of all terms stand."""

    groups: tuple[Int[Tensor, "blocks size"], ...]
    """The columns of all free blocks, by their size."""
    terms: tuple[TermPlan, ...]


class Twice(NamedTuple):
    """Two variables of a term that are the same block in some lanes."""

    one: int
    other: int
    """Where their tangents begin."""
    width: int
    lanes: Int[Tensor, "lanes"]


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The blocks of J of all terms, on one device. Made by `block_rows`."""

    num_columns: int
    jacobian: RowsPlan
    hessian: RowsPlan
    """Of a Hessian's blocks: those of a term whose lanes share their variables have been added up to one."""
    twice: tuple[tuple[Twice, ...], ...]
    """Per term."""
    memo: Memo = field(default_factory=Memo, repr=False)
    """What solves have found about these blocks."""

    def squared_column_norms(self, values: Matrices) -> Float[Tensor, "batch columns"]:
        """The diagonal of JᵀJ."""
        total = values.new_zeros(len(values), self.num_columns + 1)
        for term, twice in zip(terms(values, self.jacobian), self.twice, strict=True):
            matrix, columns = term.matrix, term.plan.columns
            total = total.index_add(1, columns.reshape(-1), (matrix * matrix).sum(1).flatten(1))
            for one, other, width, lanes in twice:
                # Both are the same block: its columns add up, (a + b)² = a² + b² + 2ab.
                a, b = (matrix[:, :, first : first + width, lanes] for first in (one, other))
                at = columns[one : one + width, lanes].reshape(-1)
                total = total.index_add(1, at, 2 * (a * b).sum(1).flatten(1))
        return total[:, : self.num_columns]


class TermBlocks(NamedTuple):
    """What `block_rows` is told of a term."""

    rows: int
    """Of a block of the Jacobian."""
    columns: Int[np.ndarray, "tangent lanes"]
    """As in `TermPlan`."""
    slots: tuple[tuple[int, int, Int[np.ndarray, "lanes"]], ...]
    """Per variable of the term, or consecutive components of one: where they begin in the joint tangent, how many they
    are, and the number of the block in each lane, -1 where they are held fixed."""
    shared: bool
    """Do all lanes stand on the same columns?"""


def block_rows(block_sizes: Int[np.ndarray, "blocks"], parts: Sequence[TermBlocks], device: torch.device) -> BlockRows:
    """Where the blocks of these terms stand, for free blocks of these sizes."""
    starts = np.cumsum(block_sizes) - block_sizes
    sizes, group = np.unique(block_sizes, return_inverse=True)
    within, groups = np.zeros(len(block_sizes), np.int64), []
    for k, size in enumerate(sizes.tolist()):
        members = np.flatnonzero(group == k)
        within[members] = np.arange(members.size)
        groups.append(on_device(starts[members][:, None] + np.arange(size), device))

    def slot(start: int, width: int, blocks: np.ndarray) -> SlotPlan:
        k = int(group[blocks.max()]) if (blocks >= 0).any() else -1
        at = np.where(blocks >= 0, within[np.maximum(blocks, 0)], int((group == k).sum()))
        return SlotPlan(start, width, k, on_device(at, device))

    def plan(hessian: bool) -> RowsPlan:
        made = []
        for term in parts:
            columns = term.columns[:, :1] if hessian and term.shared else term.columns
            slots = (slot(start, width, blocks[: columns.shape[1]]) for start, width, blocks in term.slots)
            rows = len(columns) if hessian else term.rows
            made.append(TermPlan(rows, on_device(columns, device), tuple(slots)))
        return RowsPlan(tuple(groups), tuple(made))

    return BlockRows(int(block_sizes.sum()), plan(False), plan(True), tuple(_twice(term, device) for term in parts))


def _twice(term: TermBlocks, device: torch.device) -> tuple[Twice, ...]:
    found = []
    for (one, width, a), (other, _, b) in combinations(term.slots, 2):
        lanes = np.flatnonzero((a == b) & (a >= 0))
        if lanes.size:
            found.append(Twice(one, other, width, on_device(lanes, device)))
    return tuple(found)


class Term(NamedTuple):
    """The numbers of one term, and where they stand."""

    start: int
    """Where they begin among the values."""
    matrix: Float[Tensor, "batch rows tangent lanes"]
    plan: TermPlan


def terms(values: Matrices, plan: RowsPlan) -> Iterator[Term]:
    """The terms of a plan, with views of the values."""
    start = 0
    for term in plan.terms:
        tangent, lanes = term.columns.shape
        stop = start + term.rows * tangent * lanes
        yield Term(start, values[:, start:stop].reshape(len(values), term.rows, tangent, lanes), term)
        start = stop


class JacobianBlocks(Operator):
    """JᵀJ from the blocks of J, preconditioned by the inverses of its blocks on the diagonal (or of its diagonal)."""

    kind, Plan = "jacobian", RowsPlan

    def __init__(self, values: Matrices, damping: Tensor | None, plan: RowsPlan, jacobi: bool):
        self._values, self._damping, self._plan, groups = values.contiguous(), damping, plan, plan.groups
        blocks = [values.new_zeros(len(values), len(g) + 1, g.shape[1], g.shape[1]) for g in groups]
        for term in terms(values, plan):
            for slot in term.plan.slots:
                if slot.group >= 0:
                    own = self._own(term.matrix, slot.start, slot.width).permute(0, 3, 1, 2)
                    blocks[slot.group] = blocks[slot.group].index_add(1, slot.at, own)
        blocks = self._of_all([block[:, :-1] for block in blocks])
        if damping is not None:
            pairs = zip(blocks, groups, strict=True)
            blocks = [block + torch.diag_embed(damping[:, group]) for block, group in pairs]
        if jacobi:
            blocks = [block.diagonal(dim1=-2, dim2=-1).flatten(1)[..., None, None] for block in blocks]
            groups = tuple(group.reshape(-1, 1) for group in groups)
        inverse = BlockInverse(blocks, groups)
        self.precondition, self.definite = inverse, inverse.definite

    def _of_all(self, blocks: list[Tensor]) -> list[Tensor]:
        """The blocks on the diagonal of the whole matrix, from those that the values make."""
        return blocks

    @staticmethod
    def _own(matrix: Tensor, first: int, width: int) -> Float[Tensor, "batch width width lanes"]:
        """What a term adds to the diagonal block of one of its variables."""
        part = matrix[:, :, first : first + width]
        columns = [(part * part[:, :, a : a + 1]).sum(1) for a in range(width)]  # one pass each: no larger tensor
        return torch.stack(columns, 1)

    def multiply(self, x: Vectors) -> Vectors:
        return damped(self.product(self._values, x, self._plan), x, self._damping)

    @classmethod
    def product(cls, values: Matrices, x: Vectors, plan: RowsPlan) -> Vectors:
        """A x alone."""
        padded = torch.cat((x, x.new_zeros(len(x), 1)), 1)
        y = torch.zeros_like(padded)
        values = values.contiguous()
        for term in terms(values, plan):
            y = cls._added(y, values, term, padded)
        return y[:, :-1]

    @staticmethod
    def _added(y: Vectors, values: Matrices, term: Term, x: Vectors) -> Vectors:
        """y + JᵀJx of one term."""
        if run_on(x.device):
            sizes = values.shape[1], term.start, term.plan.rows, *term.plan.columns.shape
            _by_jacobian(len(x), repeats(values, x), x.shape[1], values, *sizes, term.plan.columns, x, y)
            return y
        return added_normal(y, term.matrix, term.plan.columns, x)


class HessianBlocks(JacobianBlocks):
    """A symmetric matrix from the symmetric blocks of every term."""

    kind = "hessian"

    @staticmethod
    def _own(matrix: Tensor, first: int, width: int) -> Tensor:
        return matrix[:, first : first + width, first : first + width]

    @staticmethod
    def _added(y: Vectors, values: Matrices, term: Term, x: Vectors) -> Vectors:
        if run_on(x.device):
            sizes = values.shape[1], term.start, *term.plan.columns.shape
            _by_hessian(len(x), repeats(values, x), x.shape[1], values, *sizes, term.plan.columns, x, y)
            return y
        return added_symmetric(y, term.matrix, term.plan.columns, x)


def added_normal(y: Vectors, matrix: Tensor, columns: Tensor, x: Vectors) -> Vectors:
    """y + JᵀJx for J (batch, rows, tangent, lanes), in operations of PyTorch."""
    images = (matrix[:, None] * _gathered(matrix, columns, x)[:, :, None]).sum(3)
    back = (matrix[:, None] * images[:, :, :, None]).sum(2)
    return y.index_add(1, columns.reshape(-1), back.flatten(0, 1).flatten(1))


def added_symmetric(y: Vectors, matrix: Tensor, columns: Tensor, x: Vectors) -> Vectors:
    """y + Hx for H (batch, tangent, tangent, lanes), in operations of PyTorch."""
    images = (matrix[:, None] * _gathered(matrix, columns, x)[:, :, None]).sum(3)
    return y.index_add(1, columns.reshape(-1), images.flatten(0, 1).flatten(1))


def _gathered(matrix: Tensor, columns: Tensor, x: Vectors) -> Float[Tensor, "batch repeat tangent lanes"]:
    columns = columns.expand(-1, matrix.shape[3])
    return x[:, columns].unflatten(0, (len(matrix), len(x) // max(len(matrix), 1)))
