"""JᵀJ and Hessians that are never put together: products straight from the blocks of every term.

A term is the same small matrix for each of its lanes: (batch, rows, tangent, lanes) blocks of a Jacobian, or (batch,
tangent, tangent, lanes) of a Hessian, standing on `columns` (tangent, lanes) of the whole. The numbers of all terms lie
one after the other in a flat (batch, values). Memory is linear in the number of blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.kernels import Kernel, run_on
from mslsq.levels import kept_tensors
from mslsq.linear.block_products import repeats
from mslsq.linear.iterative.block_inverse import BlockInverse
from mslsq.linear.iterative.linear_operators import Matrices, Operator, Vectors, damped
from mslsq.linear.memo import Memo

_by_jacobian = Kernel("jacobian_product", "nnnTnnnnnlTT")
_by_hessian = Kernel("hessian_product", "nnnTnnnnlTT")


@dataclass(frozen=True, eq=False)
class TermBlocks:
    """Where the blocks of one term stand."""

    rows: int
    """Of a block of the Jacobian."""
    columns: Int[np.ndarray, "tangent lanes"]
    """The column of every entry of the joint tangent; the number of columns for what is held fixed."""
    slots: tuple[tuple[int, int, Int[np.ndarray, "lanes"]], ...]
    """Per variable of the term: where its tangent begins, its dimension, and the number of the block in each lane,
    -1 where that is held fixed."""
    shared: bool
    """Do all lanes stand on the same columns? Then the blocks of a Hessian have been added up to one."""


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Where the blocks of all terms stand."""

    block_sizes: Int[np.ndarray, "blocks"]
    terms: tuple[TermBlocks, ...]
    memo: Memo = field(default_factory=Memo, repr=False)

    @property
    def num_columns(self) -> int:
        return int(self.block_sizes.sum())

    def squared_column_norms(self, values: Matrices) -> Float[Tensor, "batch columns"]:
        """The diagonal of JᵀJ."""
        plan, sizes = self.plan_on(values.device, hessian=False)
        n = self.num_columns
        total = values.new_zeros(len(values), n + 1)
        for term, twice in zip(terms(values, plan, sizes), self._twice, strict=True):
            matrix, columns = term.matrix, term.columns
            total = total.index_add(1, columns.reshape(-1), (matrix * matrix).sum(1).flatten(1))
            for one, other, width, lanes in twice:
                # Both are the same block: its columns add up, (a + b)² = a² + b² + 2ab.
                at = torch.from_numpy(lanes).to(values.device)
                a, b = (matrix[:, :, first : first + width, at] for first in (one, other))
                total = total.index_add(1, columns[one : one + width, at].reshape(-1), 2 * (a * b).sum(1).flatten(1))
        return total[:, :n]

    def plan_on(self, device: torch.device, hessian: bool) -> tuple[list[Tensor], list[int]]:
        """What `JacobianBlocks` and `HessianBlocks` are made from, on a device; made once."""

        def make() -> tuple[list[Tensor], list[int]]:
            arrays, sizes = self.plan(hessian)
            return kept_tensors(arrays, device), sizes

        return self.memo.once(("plan", hessian, device), make)

    @cached_property
    def _twice(self) -> list[list[tuple[int, int, int, np.ndarray]]]:
        """Per term the pairs of slots that are the same block in some lanes: two beginnings, dimension, lanes."""
        found = []
        for term in self.terms:
            pairs = []
            for (one, width, a), (other, _, b) in combinations(term.slots, 2):
                lanes = np.flatnonzero((a == b) & (a >= 0))
                if lanes.size:
                    pairs.append((one, other, width, lanes))
            found.append(pairs)
        return found

    def plan(self, hessian: bool) -> tuple[list[np.ndarray], list[int]]:
        """The same as arrays."""
        starts = np.cumsum(self.block_sizes) - self.block_sizes
        sizes, group = np.unique(self.block_sizes, return_inverse=True)
        within, arrays = np.zeros(len(self.block_sizes), np.int64), []
        for k, size in enumerate(sizes.tolist()):
            members = np.flatnonzero(group == k)
            within[members] = np.arange(members.size)
            arrays.append(starts[members][:, None] + np.arange(size))
        numbers = [len(sizes), len(self.terms)]
        for term in self.terms:
            tangent, lanes = term.columns.shape
            lanes = 1 if hessian and term.shared else lanes
            numbers += [tangent if hessian else term.rows, tangent, lanes, len(term.slots)]
            arrays.append(term.columns[:, :lanes])
            for start, width, blocks in term.slots:
                blocks = blocks[:lanes]
                k = int(group[blocks.max()]) if (blocks >= 0).any() else -1
                count = int((group == k).sum())
                numbers += [start, width, k]
                arrays.append(np.where(blocks >= 0, within[np.maximum(blocks, 0)], count))
        return [np.ascontiguousarray(array) for array in arrays], numbers


class JacobianBlocks(Operator):
    """JᵀJ from the blocks of J, preconditioned by the inverses of its blocks on the diagonal (or of its diagonal)."""

    def __init__(self, values: Matrices, damping: Tensor | None, plan: list[Tensor], sizes: list[int], jacobi: bool):
        self._values, self._damping, self._plan, self._sizes = values.contiguous(), damping, plan, sizes
        groups = plan[: sizes[0]]
        blocks = [values.new_zeros(len(values), len(g) + 1, g.shape[1], g.shape[1]) for g in groups]
        for term in terms(values, plan, sizes):
            for first, width, group, at in term.slots:
                if group >= 0:
                    own = self._own(term.matrix, first, width).permute(0, 3, 1, 2)
                    blocks[group] = blocks[group].index_add(1, at, own)
        blocks = [block[:, :-1] for block in blocks]
        if damping is not None:
            pairs = zip(blocks, groups, strict=True)
            blocks = [block + torch.diag_embed(damping[:, group]) for block, group in pairs]
        if jacobi:
            blocks = [block.diagonal(dim1=-2, dim2=-1).flatten(1)[..., None, None] for block in blocks]
            groups = [group.reshape(-1, 1) for group in groups]
        inverse = BlockInverse(blocks, groups)
        self.precondition, self.definite = inverse, inverse.definite

    @staticmethod
    def _own(matrix: Tensor, first: int, width: int) -> Float[Tensor, "batch width width lanes"]:
        """What a term adds to the diagonal block of one of its variables."""
        part = matrix[:, :, first : first + width]
        columns = [(part * part[:, :, a : a + 1]).sum(1) for a in range(width)]  # one pass each: no larger tensor
        return torch.stack(columns, 1)

    def multiply(self, x: Vectors) -> Vectors:
        return damped(self.product(self._values, x, self._plan, self._sizes), x, self._damping)

    @classmethod
    def product(cls, values: Matrices, x: Vectors, plan: list[Tensor], sizes: list[int]) -> Vectors:
        padded = torch.cat((x, x.new_zeros(len(x), 1)), 1)
        y = torch.zeros_like(padded)
        values = values.contiguous()
        for term in terms(values, plan, sizes):
            y = cls._added(y, values, term, padded)
        return y[:, :-1]

    @staticmethod
    def _added(y: Vectors, values: Matrices, term: "Term", x: Vectors) -> Vectors:
        """y + JᵀJx of one term."""
        if run_on(x.device):
            sizes = values.shape[1], term.start, term.matrix.shape[1], *term.columns.shape
            _by_jacobian(len(x), repeats(values, x), x.shape[1], values, *sizes, term.columns.contiguous(), x, y)
            return y
        return added_normal(y, term.matrix, term.columns, x)


class HessianBlocks(JacobianBlocks):
    """A symmetric matrix from the symmetric blocks of every term."""

    @staticmethod
    def _own(matrix: Tensor, first: int, width: int) -> Tensor:
        return matrix[:, first : first + width, first : first + width]

    @staticmethod
    def _added(y: Vectors, values: Matrices, term: "Term", x: Vectors) -> Vectors:
        if run_on(x.device):
            sizes = values.shape[1], term.start, *term.columns.shape
            _by_hessian(len(x), repeats(values, x), x.shape[1], values, *sizes, term.columns.contiguous(), x, y)
            return y
        return added_symmetric(y, term.matrix, term.columns, x)


class Term(NamedTuple):
    """The numbers of one term, and where they stand."""

    start: int
    """Where they begin among the values."""
    matrix: Float[Tensor, "batch rows tangent lanes"]
    columns: Int[Tensor, "tangent lanes"]
    slots: list[tuple[int, int, int, Tensor]]
    """Per variable: where its tangent begins, its dimension, the group of its blocks' size (-1 where all are fixed),
    and the number of each block within the group."""


def terms(values: Matrices, plan: list[Tensor], sizes: list[int]) -> Iterator[Term]:
    """The terms of a plan, with views of the values."""
    arrays, numbers, start = iter(plan[sizes[0] :]), iter(sizes[2:]), 0
    for _ in range(sizes[1]):
        rows, tangent, lanes, num_slots = (next(numbers) for _ in range(4))
        stop = start + rows * tangent * lanes
        matrix = values[:, start:stop].reshape(len(values), rows, tangent, lanes)
        columns = next(arrays)
        slots = [(next(numbers), next(numbers), next(numbers), next(arrays)) for _ in range(num_slots)]
        yield Term(start, matrix, columns, slots)
        start = stop


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
