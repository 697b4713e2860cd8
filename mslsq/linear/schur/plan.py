"""Where every number of the elimination comes from and goes to, once per structure.

Blocks that do not touch each other (the points of a bundle adjustment) have a block-diagonal part V of the matrix

    [U   W] [x]   [b]
    [Wᵀ  V] [y] = [c]

which is factored block by block, V = L Lᵀ. With Y = W L⁻ᵀ the kept unknowns solve (U − Y Yᵀ) x = b − Y L⁻¹c and the
eliminated ones follow: y = L⁻ᵀ(L⁻¹c − Yᵀx).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.independent_kinds import blocks_of
from mslsq.linear.memo import Memo

PADDING = 8
"""Numbers at the end of Y and L that vectors of the kernels read beyond the last block."""


@dataclass(frozen=True, eq=False)
class Pivots:
    """The eliminated blocks of one size k."""

    size: int
    source: Int[ndarray, "pivots"]
    """Where the values hold the diagonal block, k × k by rows."""
    column: Int[ndarray, "pivots"]
    """The first unknown."""
    triangle: Int[ndarray, "pivots"]
    """Where the work array holds L, k × k by rows."""
    right: Int[ndarray, "pivots"]
    """Where the eliminated unknowns, one block after the other, hold L⁻¹c."""


@dataclass(frozen=True, eq=False)
class Edges:
    """The blocks of W between kept blocks of size a and eliminated ones of size k."""

    kept_size: int
    size: int
    source: Int[ndarray, "edges"]
    """Where the values hold the block."""
    transposed: bool
    """Does it lie there by rows of the kept block, a × k? Otherwise k × a."""
    triangle: Int[ndarray, "edges"]
    right: Int[ndarray, "edges"]
    pivot_column: Int[ndarray, "edges"]
    """The first unknown of the eliminated block."""
    column: Int[ndarray, "edges"]
    """The first unknown of the kept block in the reduced system."""
    target: Int[ndarray, "edges"]
    """Where the work array holds Yᵀ, k × a by rows."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The products Y_i Y_jᵀ, a × b through k, sorted by the block of the reduced matrix they are subtracted from."""

    height: int
    size: int
    width: int
    left: Int[ndarray, "pairs"]
    right: Int[ndarray, "pairs"]
    """Where the work array holds the factors."""
    start: Int[ndarray, "targets+1"]
    target: Int[ndarray, "targets"]
    """Numbers of the stored blocks of the reduced structure."""


@dataclass(frozen=True, eq=False)
class SchurPlan:
    """The elimination of some blocks of a structure."""

    structure: BlockStructure
    names: tuple[str, ...]
    """The kinds of variables that are eliminated."""
    eliminated: Int[ndarray, "eliminated"]
    kept: Int[ndarray, "kept"]
    """Numbers of blocks."""
    kept_unknowns: Int[ndarray, "reduced"]
    """The unknowns of the reduced system, in order."""
    reduced: BlockStructure | None
    """None where nothing is kept."""
    pivots: tuple[Pivots, ...]
    edges: tuple[Edges, ...]
    pairs: tuple[Pairs, ...]
    kept_source: Int[ndarray, "kept_pairs"]
    """Where the values hold the blocks of U."""
    kept_target: Int[ndarray, "kept_pairs"]
    """Numbers of the stored blocks of the reduced structure."""
    work_size: int
    """Numbers of Y and L together, and padding."""
    memo: Memo = field(default_factory=Memo, repr=False)

    @property
    def num_reduced(self) -> int:
        """Unknowns that are left."""
        return len(self.kept_unknowns)

    @property
    def num_eliminated(self) -> int:
        """Unknowns that are eliminated."""
        return self.structure.num_unknowns - self.num_reduced


def schur_plan(
    structure: BlockStructure, kinds: Mapping[str, Int[ndarray, "count"]], names: tuple[str, ...]
) -> SchurPlan:
    """Plan the elimination of all blocks of these kinds, which do not touch each other."""
    rows, cols, sizes, offsets = structure.rows, structure.cols, structure.block_sizes, structure.offsets
    gone = blocks_of(structure, kinds, names)
    eliminated, kept = np.flatnonzero(gone), np.flatnonzero(~gone)
    number = np.where(gone, np.cumsum(gone), np.cumsum(~gone)) - 1  # of every block among its own
    starts = structure.starts
    kept_starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[kept])))
    kept_unknowns = np.repeat(starts[kept] - kept_starts[:-1], sizes[kept]) + np.arange(kept_starts[-1])

    # Every block of W, sorted by the eliminated block that it belongs to.
    mixed = np.flatnonzero(gone[rows] != gone[cols])
    by_row = gone[rows[mixed]]  # stored as (eliminated, kept)
    pivot = number[np.where(by_row, rows[mixed], cols[mixed])]
    order = np.argsort(pivot, kind="stable")
    mixed, by_row, pivot = mixed[order], by_row[order], pivot[order]
    other = number[np.where(by_row, cols[mixed], rows[mixed])]

    heights, depths = sizes[kept][other], sizes[eliminated][pivot]
    targets = _starts(heights * depths)
    triangles = targets[-1] + _starts(sizes[eliminated] ** 2)
    rights = _starts(sizes[eliminated])

    diagonal = np.empty(len(sizes), np.int64)
    diagonal[rows[rows == cols]] = offsets[rows == cols]
    pivots = []
    for k in np.unique(sizes[eliminated]):
        here = np.flatnonzero(sizes[eliminated] == k)
        blocks = eliminated[here]
        pivots.append(Pivots(int(k), diagonal[blocks], starts[blocks], triangles[here], rights[here]))
    edges = []
    for a, k, lies in _combinations(heights, depths, ~by_row):
        here = np.flatnonzero((heights == a) & (depths == k) & (~by_row == lies))
        p = pivot[here]
        edges.append(
            Edges(
                kept_size=a,
                size=k,
                source=offsets[mixed[here]],
                transposed=bool(lies),
                triangle=triangles[p],
                right=rights[p],
                pivot_column=starts[eliminated[p]],
                column=kept_starts[other[here]],
                target=targets[here],
            )
        )

    # All pairs of edges at one eliminated block.
    left, right = _pairs_within(pivot, len(eliminated))
    swap = other[left] < other[right]
    left, right = np.where(swap, right, left), np.where(swap, left, right)
    inside = np.flatnonzero(~gone[rows] & ~gone[cols])
    reduced = None
    pairs: list[Pairs] = []
    kept_target = np.zeros(0, np.int64)
    if len(kept):
        keys = np.unique(other[left] * len(kept) + other[right])
        reduced = analyze(
            sizes[kept],
            np.concatenate((number[rows[inside]], keys // len(kept))),
            np.concatenate((number[cols[inside]], keys % len(kept))),
        )
        kept_target = _stored(reduced, number[rows[inside]], number[cols[inside]])
        block = _stored(reduced, other[left], other[right])
        for a, k, b in _combinations(heights[left], depths[left], heights[right]):
            here = np.flatnonzero((heights[left] == a) & (depths[left] == k) & (heights[right] == b))
            here = here[np.argsort(block[here], kind="stable")]
            target, first = np.unique(block[here], return_index=True)
            pairs.append(Pairs(a, k, b, targets[left[here]], targets[right[here]], np.append(first, len(here)), target))
    return SchurPlan(
        structure,
        names,
        eliminated,
        kept,
        kept_unknowns,
        reduced,
        tuple(pivots),
        tuple(edges),
        tuple(pairs),
        offsets[inside],
        kept_target,
        int(triangles[-1]) + PADDING,
    )


def _starts(counts: Int[ndarray, "parts"]) -> Int[ndarray, "parts+1"]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))


def _combinations(*columns: ndarray) -> list[tuple[int, ...]]:
    """The different rows of a table of sizes, in order."""
    if not len(columns[0]):
        return []
    bases = [int(column.max()) + 1 for column in columns]
    code = np.zeros(len(columns[0]), np.int64)
    for column, base in zip(columns, bases, strict=True):
        code = code * base + column
    # One number per row: sorting rows as such takes 90 ms for the 123,086 pairs of BAL 49-7776.
    return [tuple(int(x) for x in np.unravel_index(number, bases)) for number in np.unique(code)]


def _pairs_within(group: Int[ndarray, "edges"], count: int) -> tuple[Int[ndarray, "pairs"], Int[ndarray, "pairs"]]:
    """All pairs (i, j), i >= j, of members of one group; the edges are sorted by group."""
    start = np.searchsorted(group, np.arange(count + 1))
    degree = np.diff(start)
    left, right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for d in np.unique(degree):
        first = start[:-1][degree == d, None]
        i, j = np.tril_indices(d)
        left.append((first + i).ravel())
        right.append((first + j).ravel())
    return np.concatenate(left), np.concatenate(right)


def _stored(structure: BlockStructure, rows: ndarray, cols: ndarray) -> Int[ndarray, "pairs"]:
    """The numbers of stored blocks (rows >= cols)."""
    return np.searchsorted(structure._keys, rows * len(structure.block_sizes) + cols)
