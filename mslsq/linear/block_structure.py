"""Which blocks a symmetric matrix stores, where, and how it is eliminated: worked out once, for any number of matrices.

>>> import numpy as np
>>> structure = analyze(np.array([2, 2]), rows=np.array([1]), cols=np.array([0]))
>>> structure.num_values  # blocks (0, 0), (1, 0), (1, 1), each by rows
12
>>> structure.diagonal_index.tolist()
[0, 3, 8, 11]

What says which blocks there are is NumPy's, for the analyses; what a step reads are tensors of one device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from mslsq.kernels import available
from mslsq.linear.memo import Memo
from mslsq.linear.operator_plan import OperatorPlan, on_device

if TYPE_CHECKING:
    from mslsq.linear.sparse.elimination import Elimination
    from mslsq.linear.sparse.fronts import Placed

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Entries(OperatorPlan):
    """A matrix entry by entry: where the values hold it, its row and its column."""

    place: Int[Tensor, "entries"]
    row: Int[Tensor, "entries"]
    column: Int[Tensor, "entries"]


@dataclass(frozen=True, eq=False)
class BlockStructure:
    """Which blocks a symmetric matrix stores, where, and how it is eliminated. Made by `analyze`.

    The stored blocks are `(rows[e], cols[e])` with rows >= cols, ordered by row, then column; all diagonal blocks are
    there. Block e is d_i × d_j by rows at `offsets[e]` of the flat values. Of a diagonal block only the lower triangle
    is read.
    """

    block_sizes: Int[ndarray, "blocks"]
    rows: Int[ndarray, "pairs"]
    cols: Int[ndarray, "pairs"]
    offsets: Int[ndarray, "pairs"]
    starts: Int[ndarray, "blocks+1"]  # first unknown of every block
    num_values: int
    device: torch.device = CPU
    """Of the matrices, and of the tensors that are kept for them."""
    memo: Memo = field(default_factory=Memo, repr=False)

    @cached_property
    def elimination(self) -> Elimination:
        """The elimination in a fill-reducing order; planned when it is first asked for."""
        from mslsq.linear.sparse.elimination import eliminated

        found = eliminated(self._placed, self.starts, self.rows, self.cols, self.offsets)
        _ = self.elimination_nanoseconds, self.elimination_size  # all that is asked of the fronts from now on
        self.__dict__.pop("_placed", None)
        return found

    @cached_property
    def elimination_nanoseconds(self) -> float:
        """The time of a factorisation and solve by estimate, for which its fronts need not be planned to the end."""
        from mslsq.linear.sparse.elimination import nanoseconds_of

        return nanoseconds_of(self._placed.fronts)

    @cached_property
    def rough_nanoseconds(self) -> float:
        """That of the first order that is tried: somewhat more, in a third of the time."""
        from mslsq.linear.sparse.elimination import nanoseconds_of, placed

        return nanoseconds_of(placed(self.block_sizes, self.rows, self.cols, attempts=1).fronts)

    @cached_property
    def elimination_size(self) -> int:
        """How many numbers its factor stores, padding included."""
        return self._placed.size

    @cached_property
    def _placed(self) -> Placed:
        from mslsq.linear.sparse.elimination import placed

        return placed(self.block_sizes, self.rows, self.cols)

    @property
    def num_unknowns(self) -> int:
        """N, the sum of the block sizes."""
        return int(self.starts[-1])

    @cached_property
    def diagonal_index(self) -> Int[Tensor, "unknowns"]:
        """Where the values hold the diagonal of A."""
        own = self.offsets[self.rows == self.cols]
        sizes = np.repeat(self.block_sizes, self.block_sizes)
        within = np.arange(self.num_unknowns) - np.repeat(self.starts[:-1], self.block_sizes)
        return on_device(np.repeat(own, self.block_sizes) + within * (sizes + 1), self.device)

    @cached_property
    def entries(self) -> Entries:
        """All of A, both triangles."""
        everywhere = np.arange(self.num_unknowns)
        return self.entries_between(everywhere, everywhere)

    def entries_between(self, rows: Int[ndarray, "unknowns"], columns: Int[ndarray, "unknowns"]) -> Entries:
        """The part of A with the rows and columns that have a number there, -1 for those that are left out."""
        row, column = self.places
        lower, strict = np.flatnonzero(row >= column), np.flatnonzero(row > column)
        place = np.concatenate((lower, strict))
        i = rows[np.concatenate((row[lower], column[strict]))]
        j = columns[np.concatenate((column[lower], row[strict]))]
        inside = (i >= 0) & (j >= 0)
        return Entries(*(on_device(array[inside], self.device) for array in (place, i, j)))

    @property
    def places(self) -> tuple[Int[ndarray, "values"], Int[ndarray, "values"]]:
        """The row and the column of A that every number of the values belongs to."""
        heights, widths = self.block_sizes[self.rows], self.block_sizes[self.cols]
        counts = heights * widths
        within = np.arange(self.num_values) - np.repeat(self.offsets, counts)
        width = np.repeat(widths, counts)
        return np.repeat(self.starts[self.rows], counts) + within // width, np.repeat(
            self.starts[self.cols], counts
        ) + within % width

    def offset_of(self, i: Any, j: Any) -> tuple[Int[ndarray, "..."], Bool[ndarray, "..."]]:
        """Where block (i, j) begins in the values, and whether it lies there transposed, as block (j, i).

        Raises KeyError for a pair that is not stored.
        """
        i, j = np.broadcast_arrays(np.asarray(i, np.int64), np.asarray(j, np.int64))
        n = len(self.block_sizes)
        key = np.maximum(i, j) * n + np.minimum(i, j)
        keys = self._keys
        at = np.minimum(np.searchsorted(keys, key), keys.size - 1)
        missing = (keys[at] != key) | (np.minimum(i, j) < 0) | (np.maximum(i, j) >= n)
        if missing.any():
            first = int(np.flatnonzero(missing.ravel())[0])
            raise KeyError(
                f"block ({i.ravel()[first]}, {j.ravel()[first]}) is not in the structure of {n} blocks and {keys.size} "
                "stored pairs: give every pair that will receive a contribution to analyze()"
            )
        return self.offsets[at], i < j

    def numbers_of(self, rows: Int[ndarray, "pairs"], cols: Int[ndarray, "pairs"]) -> Int[ndarray, "pairs"]:
        """The numbers of blocks that are stored, rows >= cols."""
        keys = rows * len(self.block_sizes) + cols
        end = len(self.block_sizes) ** 2
        if end > 8 * len(keys) + 1024:
            return np.searchsorted(self._keys, keys)
        number = np.empty(end, np.int64)
        number[self._keys] = np.arange(len(self._keys))
        return number[keys]

    @cached_property
    def _keys(self) -> Int[ndarray, "pairs"]:
        return self.rows * len(self.block_sizes) + self.cols


def analyze(
    block_sizes: Int[ndarray, "blocks"],
    rows: Int[ndarray, "pairs"],
    cols: Int[ndarray, "pairs"],
    eliminate: bool = True,
    device: torch.device = CPU,
) -> BlockStructure:
    """Order, eliminate symbolically and plan: once per structure, then any number of `factor` calls.

    `block_sizes` are the unknowns of each block; `rows`, `cols` the block pairs that may be non-zero, in either
    triangle, repeated or not, diagonal pairs optional. With `eliminate=False` the elimination is planned when it is
    first used: it takes longest (9 s for 25,000 costs of 12 random variables each of 5,000), and conjugate gradients
    never do. Raises ValueError for a size below 1 or an index outside.
    """
    sizes = np.ascontiguousarray(block_sizes, np.int64)
    rows, cols = np.asarray(rows, np.int64).ravel(), np.asarray(cols, np.int64).ravel()
    n = sizes.size
    if sizes.ndim != 1 or n == 0 or sizes.min() < 1:
        raise ValueError("block_sizes: expected a vector of at least one block, every size 1 or more")
    if rows.size != cols.size:
        raise ValueError(f"rows and cols name block pairs together: got {rows.size} rows and {cols.size} cols")
    if rows.size and (min(rows.min(), cols.min()) < 0 or max(rows.max(), cols.max()) >= n):
        bad = int(np.flatnonzero((rows < 0) | (cols < 0) | (rows >= n) | (cols >= n))[0])
        raise ValueError(f"pair {bad} is ({rows[bad]}, {cols[bad]}), but there are {n} blocks, numbered from 0")

    diagonal = np.arange(n)
    keys = np.concatenate((np.maximum(rows, cols) * n + np.minimum(rows, cols), diagonal * (n + 1)))
    keys.sort()  # not `np.unique`, which imports NumPy's masked arrays: 15 ms of the first solve of a process
    keys = keys[np.append(True, keys[1:] != keys[:-1])]
    rows, cols = keys // n, keys % n
    offsets = starts_of(sizes[rows] * sizes[cols])
    structure = BlockStructure(sizes, rows, cols, offsets[:-1], starts_of(sizes), int(offsets[-1]), device)
    if eliminate and available():
        _ = structure.elimination
    return structure


def present(numbers: Int[ndarray, "some"], end: int) -> Int[ndarray, "different"]:
    """The different numbers of 0 to `end`, in order. Marked where they are few: `np.unique` takes 3 ms for the 123,086
    pairs of BAL 49-7776, which name 1,200 blocks."""
    if end > 8 * len(numbers) + 1024:
        return np.unique(numbers)
    found = np.zeros(end, np.bool_)
    found[numbers] = True
    return np.flatnonzero(found)


def sorted_keys(keys: Int[ndarray, "some"]) -> tuple[Int[ndarray, "some"], Int[ndarray, "some"]]:
    """Keys in order, and where each stood; equal ones in their order. Numbers are sorted by vectors, which a stable
    `argsort` is not: so each is sorted with its place behind it, if both have room in one."""
    bits = len(keys).bit_length()
    if len(keys) and int(keys.max()) >> (62 - bits):
        order = np.argsort(keys, kind="stable")
        return keys[order], order
    joint = np.sort(keys << bits | np.arange(len(keys)))
    return joint >> bits, joint & ((1 << bits) - 1)


def starts_of(counts: Int[ndarray, "groups"]) -> Int[ndarray, "groups+1"]:
    """Where each of consecutive groups begins, and where the last ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
