"""Which unknowns each entry of a tensor depends on: one set per entry, as the rows of a boolean CSR matrix."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

Sets = Any
"""A `csr_array` (entries of a tensor, unknowns) of bool; indices of every row sorted, none twice. (SciPy's stubs do not
know its shape.)"""

LARGEST = 30_000_000
"""Numbers in one pattern, at most: 120 MB of indices. A Jacobian with more is not worth compressing, or has an
operation in it whose sparsity is not known."""


def csr(*args: Any, **options: Any) -> Any:
    """SciPy's `csr_array`. Its sparse matrices take longer to import than all of mslsq, 130 ms to 60, so only who has
    one big residual waits for them."""
    from scipy.sparse import csr_array

    return csr_array(*args, **options)


class TooDenseError(ValueError):
    """A pattern has more entries than anybody wants to store."""


def singletons(count: int, start: int, columns: int) -> Sets:
    """Entry i depends on unknown start + i alone."""
    return _made(np.arange(start, start + count, dtype=np.int32), np.arange(count + 1), columns)


def empty(count: int, columns: int) -> Sets:
    """Nothing depends on anything."""
    return _made(np.zeros(0, np.int32), np.zeros(count + 1, np.int64), columns)


def take(sets: Sets, rows: Int[ndarray, "entries"]) -> Sets:
    """The sets of these rows, in order; repeated ones are allowed, -1 is the empty set."""
    starts, lengths = sets.indptr[rows], np.diff(sets.indptr)[rows] if sets.shape[0] else np.zeros(len(rows), int)
    lengths = np.where(rows < 0, 0, lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    _check(total)
    begins = ends - lengths
    source = np.repeat(starts - begins, lengths) + np.arange(total)
    return _made(sets.indices[source], np.concatenate(([0], ends)), sets.shape[1])


def union(one: Sets, other: Sets) -> Sets:
    """Row by row."""
    if one is other:
        return one
    _check(one.nnz + other.nnz)
    return csr(one + other)


def united(sets: Sets, groups: Int[ndarray, "entries"], count: int) -> Sets:
    """One set per group of rows: the union of its members. A group of -1 is none."""
    members = np.flatnonzero(groups >= 0)
    table = csr((np.ones(len(members), bool), (groups[members], members)), shape=(count, sets.shape[0]))
    return product(table, sets)


def product(table: Bool[Any, "rows entries"], sets: Sets) -> Sets:
    """Row i of the result is the union of the sets in row i of the table."""
    _check(int(np.diff(sets.indptr)[table.indices].sum()))
    result = csr(table @ sets)
    result.sort_indices()
    return result


def stacked(parts: list[Sets]) -> Sets:
    """The sets of several tensors, one after the other."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.nnz for part in parts)])
    ends = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=False)]
    return _made(np.concatenate([part.indices for part in parts]), np.concatenate(([0], *ends)), parts[0].shape[1])


def _made(indices: ndarray, indptr: ndarray, columns: int) -> Sets:
    return csr((np.ones(len(indices), bool), indices, indptr), shape=(len(indptr) - 1, columns))


def _check(total: int) -> None:
    if total > LARGEST:
        raise TooDenseError(f"a pattern of {total:,} entries")
