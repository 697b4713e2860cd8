"""The plan for one big residual: pattern, colours, and which products of entries add up to which entry of JᵀJ."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.linearize.compressed.coloring import neighbours
from mslsq.linearize.compressed.compression import Compression, compression_of, symmetric_compression_of
from mslsq.linearize.compressed.dependence import Dependence
from mslsq.linearize.compressed.sets import Sets, TooDenseError, csr, union, united

MOST_PRODUCTS = 20_000_000
"""Products in JᵀJ, at most: with the indices of their plan half a gigabyte."""


Entries = Float[Tensor, "1 entries lanes"]
Rows = Float[Tensor, "1 rows lanes"]
Tangent = Float[Tensor, "1 columns lanes"]


@dataclass(frozen=True, eq=False)
class CompressedPlan:
    """What is known of a sparse residual before any number. Entries of J are in row-major order, those of the normal
    equations the lower triangle in row-major order."""

    sets: Sets
    """(rows, columns) bool; columns are the entries of the joint tangent of all unknowns."""
    gram: Sets
    """(columns, columns) bool, the pattern of JᵀJ, which is that of the Hessian too."""
    jacobian: Compression
    pinned: Mapping[str, Tensor]
    """The inputs whose values the pattern hangs on, as they were."""
    pairs: int
    """How many leading pairs of rows are parts of one complex entry; their patterns are equal."""
    device: torch.device
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.sets.shape[0]

    @property
    def columns(self) -> int:
        return self.sets.shape[1]

    @cached_property
    def hessian(self) -> Compression:
        """Colours for the exact Hessian; found when derivatives are first taken."""
        return symmetric_compression_of(self.gram, self.device, self.dtype)

    @cached_property
    def lower(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of the entries of the lower triangle of JᵀJ."""
        row = np.repeat(np.arange(self.columns), np.diff(self.gram.indptr))
        kept = row >= self.gram.indices
        return row[kept], self.gram.indices[kept].astype(np.int64)

    @cached_property
    def entry_rows(self) -> Int[Tensor, "entries"]:
        """The row of every entry of J."""
        return self._tensor(np.repeat(np.arange(self.rows), np.diff(self.sets.indptr)))

    @cached_property
    def entry_columns(self) -> Int[Tensor, "entries"]:
        """The column of every entry of J."""
        return self._tensor(self.sets.indices)

    @cached_property
    def partners(self) -> Int[Tensor, "entries"]:
        """For every entry in a row that is part of a complex one, its fellow in the other part; else itself."""
        rows = np.repeat(np.arange(self.rows), np.diff(self.sets.indptr))
        shift = np.where(rows % 2 == 0, 1, -1) * np.diff(self.sets.indptr)[rows]
        own = np.arange(len(rows))
        return self._tensor(np.where(rows < 2 * self.pairs, own + shift, own))

    @cached_property
    def products(self) -> tuple[Int[Tensor, "products"], Int[Tensor, "products"], Int[Tensor, "products"]]:
        """Which two entries of J each product is of, and the entry of the lower triangle that it belongs to."""
        lengths, starts = np.diff(self.sets.indptr), self.sets.indptr[:-1].astype(np.int64)
        row = np.repeat(np.arange(self.rows), lengths)
        position = np.arange(len(row)) - starts[row]
        ends = np.cumsum(position + 1)
        first = np.repeat(np.arange(len(row)), position + 1)
        second = starts[row[first]] + np.arange(len(first)) - (ends - position - 1)[first]
        columns = self.sets.indices.astype(np.int64)
        keys = self.lower[0] * self.columns + self.lower[1]
        target = np.searchsorted(keys, columns[first] * self.columns + columns[second])
        order = np.argsort(target, kind="stable")  # sums in one place of memory after the other
        return self._tensor(first[order]), self._tensor(second[order]), self._tensor(target[order])

    # ---- the products that a layout takes (`linearize.layouts`)

    def pulled(self, jacobian: Entries, u: Rows) -> Tangent:
        """Jᵀu of every lane."""
        return _added(jacobian * self.spread(u), self.entry_columns, self.columns)

    def pushed(self, jacobian: Entries, v: Tangent) -> Rows:
        """J v of every lane."""
        return _added(jacobian * _taken(v, self.entry_columns), self.entry_rows, self.rows)

    def squared(self, jacobian: Entries) -> Float[Tensor, "1 lower lanes"]:
        """The lower triangle of JᵀJ of every lane."""
        one, other, place = self.products
        products = _taken(jacobian, one) * _taken(jacobian, other)
        return _added(products, place, len(self.lower[0]))

    def hessian_times(self, hessian: Float[Tensor, "lower"], v: Float[Tensor, "columns"]) -> Tensor:
        """H v of one lane."""
        row, column = (torch.from_numpy(part).to(v.device) for part in self.lower)
        product = torch.zeros_like(v).index_add(0, row, hessian * v[column])
        off = row != column
        return product.index_add(0, column[off], (hessian * v[row])[off])

    def spread(self, by_row: Rows) -> Entries:
        """A number of every row, for each of the row's entries."""
        return _taken(by_row, self.entry_rows)

    def along(self, residual: Rows, jacobian: Entries, pairs: int) -> Entries:
        """rᵀJ over the group that each row belongs to: two of the leading `pairs`, or itself."""
        own, partners = self.spread(residual) * jacobian, self.partners
        both = (partners != torch.arange(len(partners), device=partners.device))[:, None]
        return own + torch.where(both, _taken(own, partners), 0)

    # ---- what a solve asks

    def summary(self) -> str:
        """In words."""
        mode = "forward" if self.jacobian.forward else "reverse"
        return (
            f"one residual of {self.rows:,} x {self.columns:,} with {self.sets.nnz:,} non-zeros in the Jacobian, from "
            f"{self.jacobian.colors} derivatives ({mode} mode)"
        )

    def components(self) -> tuple[np.ndarray, np.ndarray]:
        """The connected part of every column, and the sizes of the parts."""
        from scipy.sparse.csgraph import connected_components  # see `csr`

        _, labels = connected_components(self.gram, directed=False)
        return labels, np.bincount(labels)

    def differs(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Have inputs changed that the pattern hangs on? None where there are none."""
        found = [
            # Two numbers that are not numbers are no difference.
            ((inputs[name] != before) & ~((inputs[name] != inputs[name]) & (before != before))).any()
            for name, before in self.pinned.items()
        ]
        return torch.stack(found).any() if found else None

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


def _added(
    products: Float[Tensor, "1 products lanes"], places: Int[Tensor, "products"], count: int
) -> Float[Tensor, "1 count lanes"]:
    """The sum at every place."""
    flat = _flat(products)
    return flat.new_zeros(count, *flat.shape[1:]).index_add(0, places, flat).reshape(1, count, -1)


def _taken(numbers: Float[Tensor, "1 numbers lanes"], places: Int[Tensor, "taken"]) -> Float[Tensor, "1 taken lanes"]:
    """The number at every place."""
    return _flat(numbers).index_select(0, places).reshape(1, len(places), -1)


def _flat(numbers: Float[Tensor, "1 numbers lanes"]) -> Tensor:
    """One axis is added up, and taken from, twice as fast as two, and two twice as fast as three."""
    return numbers[0, :, 0] if numbers.shape[2] == 1 else numbers[0]


def compressed_plan_of(
    dependence: Dependence, pairs: int, inputs: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> CompressedPlan:
    """Colour a pattern and plan its normal equations.

    Raises:
        TooDenseError: JᵀJ takes more products than a plan holds (long rows).
    """
    sets = dependence.sets
    if pairs:
        # Both parts of a complex entry in the same columns: a robust loss mixes them.
        own = np.arange(sets.shape[0])
        groups = np.where(own < 2 * pairs, own // 2, own - pairs)
        joint = united(sets, groups, sets.shape[0] - pairs)
        sets = union(sets, csr(joint[groups]))
        sets.sort_indices()
    lengths = np.diff(sets.indptr).astype(np.int64)
    if int((lengths * (lengths + 1) // 2).sum()) > MOST_PRODUCTS:
        raise TooDenseError(
            f"row {int(lengths.argmax())} of the residual depends on {int(lengths.max()):,} unknowns, which couples "
            "all of them"
        )
    everywhere = csr(
        (np.ones(sets.shape[1], bool), np.arange(sets.shape[1]), np.arange(sets.shape[1] + 1)),
        shape=(sets.shape[1],) * 2,
    )
    gram = union(neighbours(sets), everywhere)  # the diagonal is there whatever happens: damping adds to it
    pinned = {name: inputs[name].detach().clone() for name in sorted(dependence.pinned)}
    return CompressedPlan(sets, gram, compression_of(sets, device, dtype), pinned, pairs, device, dtype)
