"""Where every number of the elimination comes from and goes to, once per structure.

Blocks that do not touch each other (the points of a bundle adjustment) have a block-diagonal part V of the matrix

    [U   W] [x]   [b]
    [Wᵀ  V] [y] = [c]

which is factored block by block, V = L Lᵀ. With Y = W L⁻ᵀ the kept unknowns solve (U − Y Yᵀ) x = b − Y L⁻¹c and the
eliminated ones follow: y = L⁻ᵀ(L⁻¹c − Yᵀx).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from mslsq.kernels import run_on
from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.independent_kinds import blocks_of
from mslsq.linear.operator_plan import OperatorPlan, on_device
from mslsq.linear.schur.reduced import Reduced, Way, way_of

PADDING = 8
"""Numbers at the end of Y and L that vectors of the kernels read beyond the last block."""

MOST_UNROLLED_PRODUCTS = 4096
"""Up to that many multiplications of vectors of eight in a product of small blocks kernels with the sizes built in are
compiled."""


@dataclass(frozen=True, eq=False)
class Pivots(OperatorPlan):
    """The eliminated blocks of one size k."""

    size: int
    source: Int[Tensor, "pivots"]
    """Where the values hold the diagonal block, k × k by rows."""
    column: Int[Tensor, "pivots"]
    """The first unknown."""
    triangle: Int[Tensor, "pivots"]
    """Where the work array holds L, k × k by rows."""
    right: Int[Tensor, "pivots"]
    """Where the eliminated unknowns, one block after the other, hold L⁻¹c."""


@dataclass(frozen=True, eq=False)
class Edges(OperatorPlan):
    """The blocks of W between kept blocks of size a and eliminated ones of size k."""

    kept_size: int
    size: int
    by_row: int
    by_column: int
    """Entry (k, a) of Wᵀ is at source + k by_row + a by_column."""
    group: int
    """Which of the groups of pivots the eliminated blocks belong to."""
    pivot: Int[Tensor, "edges"]
    """Which of that group."""
    source: Int[Tensor, "edges"]
    """Where the values hold the block."""
    triangle: Int[Tensor, "edges"]
    right: Int[Tensor, "edges"]
    column: Int[Tensor, "edges"]
    """The first unknown of the kept block in the reduced system."""
    target: Int[Tensor, "edges"]
    """Where the work array holds Yᵀ, k × a by rows."""


@dataclass(frozen=True, eq=False)
class Pairs(OperatorPlan):
    """The products Y_i Y_jᵀ, a × b through k, sorted by the block of the reduced matrix they are subtracted from."""

    height: int
    size: int
    width: int
    left: Int[Tensor, "pairs"]
    right: Int[Tensor, "pairs"]
    """Where the work array holds the factors."""
    start: Int[Tensor, "targets+1"]
    target: Int[Tensor, "targets"]
    """Where the reduced matrix holds the blocks..."""
    stride: Int[Tensor, "targets"]
    """... and at what distance their rows."""


@dataclass(frozen=True, eq=False)
class Kept(OperatorPlan):
    """The blocks of U that are stored, of one size a × b."""

    height: int
    width: int
    is_diagonal: int
    source: Int[Tensor, "blocks"]
    """Where the values hold the block."""
    target: Int[Tensor, "blocks"]
    """Where the reduced matrix holds it..."""
    stride: Int[Tensor, "blocks"]
    """... and at what distance its rows."""
    column: Int[Tensor, "blocks"]
    """The first unknown of its rows."""


@dataclass(frozen=True, eq=False)
class SchurTables(OperatorPlan):
    """What both halves of the elimination read."""

    num_unknowns: int
    num_reduced: int
    """Unknowns that are left."""
    matrix_size: int
    """Numbers of the reduced matrix."""
    work_size: int
    """Numbers of Y and L together, and padding."""
    kept_unknowns: Int[Tensor, "reduced"]
    """The unknowns of the reduced system, in order."""
    pivots: tuple[Pivots, ...]
    edges: tuple[Edges, ...]
    pairs: tuple[Pairs, ...]
    kept: tuple[Kept, ...]

    @property
    def num_eliminated(self) -> int:
        """Unknowns that are eliminated."""
        return self.num_unknowns - self.num_reduced

    @cached_property
    def are_unrollable(self) -> bool:
        """Are all blocks small enough for kernels with the sizes built in?"""
        sizes = [(pairs.height, pairs.size, pairs.width) for pairs in self.pairs]
        sizes += [(edges.kept_size, edges.size, 1) for edges in self.edges]
        return all(a * k * -(-b // 8) <= MOST_UNROLLED_PRODUCTS for a, k, b in sizes)


@dataclass(frozen=True, eq=False)
class SchurPlan:
    """The elimination of some blocks of a structure."""

    structure: BlockStructure
    names: tuple[str, ...]
    """The kinds of variables that are eliminated."""
    eliminated: Int[Tensor, "eliminated"]
    """Numbers of their blocks."""
    reduced: BlockStructure | None
    """None where nothing is kept."""
    chosen: Way
    """How the reduced system is solved."""
    tables: SchurTables
    kernels: bool
    """Do kernels work on its device?"""

    @property
    def by_kernels(self) -> bool:
        """Do kernels do both halves? Large blocks go through BLAS."""
        return self.kernels and self.tables.are_unrollable


def schur_plan(
    structure: BlockStructure, kinds: Mapping[str, Int[ndarray, "count"]], names: tuple[str, ...], asked: Reduced
) -> SchurPlan:
    """Plan the elimination of all blocks of these kinds, which do not touch each other.

    Args:
        asked: how the reduced system is to be solved.
    """
    kernels, kept_on = run_on(structure.device), partial(on_device, device=structure.device)
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
    among, pivots = (
        np.empty(len(eliminated), np.int64),
        [],
    )  # `among`: of every eliminated block among those of its size
    pivot_sizes = np.unique(sizes[eliminated]).tolist()
    for k in pivot_sizes:
        here = np.flatnonzero(sizes[eliminated] == k)
        among[here] = np.arange(len(here))
        blocks = eliminated[here]
        arrays = diagonal[blocks], starts[blocks], triangles[here], rights[here]
        pivots.append(Pivots(k, *map(kept_on, arrays)))
    edges = []
    for a, k, lies in _combinations(heights, depths, ~by_row):  # `lies` across, by rows of the kept block
        here = np.flatnonzero((heights == a) & (depths == k) & (~by_row == lies))
        p = pivot[here]
        arrays = (
            *(among[p], offsets[mixed[here]], triangles[p], rights[p]),
            *(kept_starts[other[here]], targets[here]),
        )
        by = (1, k) if lies else (a, 1)
        edges.append(Edges(a, k, *by, pivot_sizes.index(k), *map(kept_on, arrays)))

    # All pairs of edges at one eliminated block.
    left, right = _pairs_within(pivot, len(eliminated))
    swap = other[left] < other[right]
    left, right = np.where(swap, right, left), np.where(swap, left, right)
    inside = np.flatnonzero(~gone[rows] & ~gone[cols])
    reduced, chosen, matrix_size = None, "dense", 0
    pairs: list[Pairs] = []
    stored: list[Kept] = []
    if len(kept):
        keys = np.unique(other[left] * len(kept) + other[right])
        row, col = number[rows[inside]], number[cols[inside]]
        reduced = analyze(
            sizes[kept],
            np.concatenate((row, keys // len(kept))),
            np.concatenate((col, keys % len(kept))),
            device=structure.device,
        )
        chosen = way_of(reduced, asked, kernels)
        place, stride, matrix_size = _places(reduced, dense=chosen == "dense")
        block = _stored(reduced, other[left], other[right])
        for a, k, b in _combinations(heights[left], depths[left], heights[right]):
            here = np.flatnonzero((heights[left] == a) & (depths[left] == k) & (heights[right] == b))
            here = here[np.argsort(block[here], kind="stable")]
            target, first = np.unique(block[here], return_index=True)
            ends = np.append(first, len(here))
            arrays = targets[left[here]], targets[right[here]], ends, place[target], stride[target]
            pairs.append(Pairs(a, k, b, *map(kept_on, arrays)))
        block = _stored(reduced, row, col)
        for a, b, own in _combinations(sizes[kept][row], sizes[kept][col], row == col):
            here = np.flatnonzero((sizes[kept][row] == a) & (sizes[kept][col] == b) & ((row == col) == own))
            arrays = offsets[inside[here]], place[block[here]], stride[block[here]], starts[kept[row[here]]]
            stored.append(Kept(a, b, own, *map(kept_on, arrays)))
    tables = SchurTables(
        *(structure.num_unknowns, len(kept_unknowns), matrix_size, int(triangles[-1]) + PADDING),
        *(kept_on(kept_unknowns), tuple(pivots), tuple(edges), tuple(pairs), tuple(stored)),
    )
    return SchurPlan(structure, names, kept_on(eliminated), reduced, chosen, tables, kernels)


def _places(reduced: BlockStructure, dense: bool) -> tuple[Int[ndarray, "blocks"], Int[ndarray, "blocks"], int]:
    """Where each stored block of the reduced matrix begins, the distance of its rows, and how many numbers there
    are: dense by rows, or by stored blocks."""
    if not dense:
        return reduced.offsets, reduced.block_sizes[reduced.cols], reduced.num_values
    n = reduced.num_unknowns
    return reduced.starts[reduced.rows] * n + reduced.starts[reduced.cols], np.full(len(reduced.rows), n), n * n


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
