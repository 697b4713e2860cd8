"""The symbolic analysis of a Schur complement, once per structure.

Blocks that do not touch each other (the points of a bundle adjustment) have a block-diagonal part V of the matrix

    [U   W] [x]   [b]
    [Wᵀ  V] [y] = [c]

which is factored block by block, V = L Lᵀ. With Y = W L⁻ᵀ the kept unknowns solve (U − Y Yᵀ) x = b − Y L⁻¹c and the
eliminated ones follow: y = L⁻ᵀ(L⁻¹c − Yᵀx).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from mslsq.kernels import run_on
from mslsq.linear.block_structure import CPU, BlockStructure, analyze, present, sorted_keys, starts_of
from mslsq.linear.independent_kinds import blocks_of
from mslsq.linear.operator_plan import on_device
from mslsq.linear.schur.alike import (
    Clusters,
    Couplings,
    FactorPlaces,
    clusters_of,
    places_of,
    rows_of,
)
from mslsq.linear.schur.reduced import Reduced, Way, way_of
from mslsq.linear.schur.tables import Alike, Edges, Kept, Pairs, Pivots, SchurTables, are_small

CACHED = 60_000
"""Numbers of the factors Y (480 KB) that stay in a core's own cache while products of them are formed."""

MOST_NUMBERS = 2**31
"""Numbers of Y that a piece may have, so that half of an integer says where a factor is."""

FEWEST_PAIRS, FEWER_PAIRS = 16, 8
"""Products that must on average go to a block at once for its sum in registers to pay: in one piece or two, and in
more. (BAL 49-7776, of whose seven pieces each had 1 MB of Y: 0.94 of the time with 14 on a Zen 3, whose second caches
have half of that, and 0.92 with AVX-512 on an Emerald Rapids, whose caches have twice that.)"""


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
    gone, kernels = blocks_of(structure, kinds, names), run_on(structure.device)
    eliminated, kept = np.flatnonzero(gone), np.flatnonzero(~gone)
    number = np.where(gone, np.cumsum(gone), np.cumsum(~gone)) - 1  # of every block among its own
    coupling, on = _coupling(structure, gone, number), partial(on_device, device=structure.device)
    kept_starts, depths = starts_of(structure.block_sizes[kept]), structure.block_sizes[eliminated]
    kept_unknowns = np.repeat(structure.starts[kept] - kept_starts[:-1], np.diff(kept_starts))
    kept_unknowns = kept_unknowns + np.arange(kept_starts[-1])
    widths = structure.block_sizes[kept][coupling.other]
    couplings = Couplings(coupling.pivot, coupling.other, coupling.across, widths, depths)
    triangles, rights = starts_of(depths**2), starts_of(depths)

    # Blocks that are alike fill the same blocks of the reduced matrix.
    together = kernels and are_small(*(int(sizes.max(initial=0)) for sizes in (widths, depths, widths)))
    rows = rows_of(couplings, kernels)
    models = couplings.models() if together else np.arange(len(eliminated))
    sides, filled = _pairs(coupling, couplings.first, np.unique(models)), np.zeros(0, np.int64)
    reduced, chosen, matrix_size = None, "dense", 0
    stays: tuple[Kept, ...] = ()
    if len(kept):
        inside = np.flatnonzero(~gone[structure.rows] & ~gone[structure.cols])
        stored = number[structure.rows[inside]], number[structure.cols[inside]]
        reduced = _reduced(structure, kept, stored, [coupling.other[side] for side in sides])
        chosen = way_of(reduced, asked, kernels)
        places = _places(reduced, dense=chosen == "dense")
        matrix_size = reduced.num_unknowns**2 if chosen == "dense" else reduced.num_values
        filled = reduced.numbers_of(*(coupling.other[side] for side in sides))
        stays = tuple(_kept_tables(structure, reduced, places, inside, stored, structure.starts[kept]))

    degrees = np.diff(couplings.first)
    products, blocks = int((degrees * (degrees + 1) // 2).sum()), len(present(filled, matrix_size))
    piece = _pieces(starts_of(couplings.sums(rows.numbers)), products, blocks)
    num_pieces = int(piece.max(initial=0)) + 1
    clusters = clusters_of(couplings, models, piece)
    factors = places_of(couplings, rows, piece, clusters.of_block)
    begin = starts_of(np.bincount(piece, factors.numbers, num_pieces).astype(np.int64))
    within = factors.targets - begin[piece[coupling.pivot]]

    def begins(pieces: ndarray) -> ndarray:
        return np.searchsorted(pieces, np.arange(num_pieces + 1))

    diagonal = structure.offsets[structure.rows == structure.cols]
    among, pivots = np.empty(len(eliminated), np.int64), {}
    for (k,), here in _groups(depths):
        among[here] = np.arange(len(here))
        arrays = diagonal[eliminated[here]], structure.starts[eliminated[here]], triangles[here], rights[here]
        pivots[k] = Pivots(k, *map(on, (*arrays, begins(piece[here]))))
    edges = []
    for (a, k, across), here in _groups(widths, depths[coupling.pivot], coupling.across):
        p, by = coupling.pivot[here], (1, k) if across else (a, 1)
        source, column = structure.offsets[coupling.block[here]], kept_starts[coupling.other[here]]
        target = within[here] | factors.strides[here] << 32
        arrays = among[p], source, triangles[p], rights[p], column, target, begins(piece[p])
        edges.append(Edges(a, k, *by, list(pivots).index(k), *map(on, arrays)))
    lost: tuple[Pairs, ...] = ()
    alike: tuple[Alike, ...] = ()
    if reduced is not None:
        alone, of_sets = (
            _Pairs(*sides, reduced.numbers_of(*(coupling.other[side] for side in sides)))
            for some in (np.flatnonzero(clusters.of_block < 0), clusters.blocks_of_sets)
            for sides in [_pairs(coupling, couplings.first, some)]
        )
        lost = tuple(_pair_tables(reduced, places, coupling, alone, depths, within, rows.distance, piece, begins))
        alike = tuple(_alike_tables(places, couplings, of_sets, clusters, factors, begin, begins))
    tables = SchurTables(
        *(structure.num_unknowns, len(kept_unknowns), matrix_size, int(triangles[-1]), int(begin[-1])),
        *(int(np.diff(begin).max()), num_pieces, on(kept_unknowns), on(begin[:-1])),
        *(tuple(pivots.values()), tuple(edges), lost, alike, stays),
    )
    tables = tables.in_one_piece() if kernels else tables
    return SchurPlan(structure, names, on(eliminated), reduced, chosen, tables, kernels)


class _Coupling(NamedTuple):
    """The stored blocks of W, sorted by the eliminated block that they belong to."""

    block: Int[ndarray, "edges"]
    across: Bool[ndarray, "edges"]
    """Is it stored as (kept, eliminated)?"""
    pivot: Int[ndarray, "edges"]
    """The number of the eliminated block among the eliminated ones..."""
    other: Int[ndarray, "edges"]
    """... and of the kept one among the kept ones."""


def _coupling(structure: BlockStructure, gone: Bool[ndarray, "blocks"], number: Int[ndarray, "blocks"]) -> _Coupling:
    block = np.flatnonzero(gone[structure.rows] != gone[structure.cols])
    row, col = structure.rows[block], structure.cols[block]
    across = gone[col]
    pivot, other = number[np.where(across, col, row)], number[np.where(across, row, col)]
    order = np.argsort(pivot, kind="stable")
    return _Coupling(block[order], across[order], pivot[order], other[order])


class _Pairs(NamedTuple):
    """Pairs of edges at one eliminated block, the one with the later kept block first."""

    left: Int[ndarray, "pairs"]
    right: Int[ndarray, "pairs"]
    block: Int[ndarray, "pairs"]
    """The stored block of the reduced matrix that the product goes to."""


def _pairs(
    coupling: _Coupling, first_edge: Int[ndarray, "eliminated+1"], some: Int[ndarray, "some"]
) -> tuple[Int[ndarray, "pairs"], Int[ndarray, "pairs"]]:
    """All pairs of edges at each of some eliminated blocks, the one with the later kept block first."""
    left, right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for (degree,), here in _groups(np.diff(first_edge)[some]):
        first = first_edge[some[here], None]
        i, j = _triangle(degree)
        left.append((first + i).ravel())
        right.append((first + j).ravel())
    one, two = np.concatenate(left), np.concatenate(right)
    swap = coupling.other[one] < coupling.other[two]
    return np.where(swap, two, one), np.where(swap, one, two)


def _reduced(structure: BlockStructure, kept: ndarray, stored: tuple[ndarray, ndarray], filled: list[ndarray]):
    """The structure of the reduced matrix: the blocks of U, and those that pairs of edges fill."""
    keys = present(filled[0] * len(kept) + filled[1], len(kept) ** 2)
    rows, cols = (np.concatenate(part) for part in zip(stored, (keys // len(kept), keys % len(kept)), strict=True))
    return analyze(structure.block_sizes[kept], rows, cols, device=structure.device)


class _Places(NamedTuple):
    start: Int[ndarray, "blocks"]
    """Where each stored block of the reduced matrix begins..."""
    stride: Int[ndarray, "blocks"]
    """... and the distance of its rows."""


def _places(reduced: BlockStructure, dense: bool) -> _Places:
    """Dense by rows, or by stored blocks."""
    if not dense:
        return _Places(reduced.offsets, reduced.block_sizes[reduced.cols])
    n, (row, col) = reduced.num_unknowns, (reduced.starts[reduced.rows], reduced.starts[reduced.cols])
    return _Places(row * n + col, np.full(len(row), n))


def _pair_tables(
    reduced: BlockStructure,
    places: _Places,
    coupling: _Coupling,
    pairs: _Pairs,
    depths: ndarray,
    within: Int[ndarray, "edges"],
    strides: ndarray,
    piece_of: Int[ndarray, "eliminated"],
    begins: Callable[[ndarray], ndarray],
) -> Iterator[Pairs]:
    left, right, block = pairs
    piece = piece_of[coupling.pivot[left]]
    rows, cols = reduced.rows[block], reduced.cols[block]
    sizes = reduced.block_sizes[rows], depths[coupling.pivot[left]], reduced.block_sizes[cols]
    for (a, k, b), here in _groups(*sizes):
        keys, order = sorted_keys(piece[here] * len(reduced.rows) + block[here])
        here, first = here[order], np.flatnonzero(np.diff(keys, prepend=-1))
        to, of = np.unique(block[here[first]], return_inverse=True)
        factors, start = within[left[here]] | within[right[here]] << 32, np.append(first, len(here))
        arrays = factors, start, of, places.start[to], places.stride[to], begins(piece[here[first]])
        by_left, by_right = int(strides[left[here[0]]]), int(strides[right[here[0]]])
        yield Pairs(a, k, b, by_left, by_right, *(on_device(array, reduced.device) for array in arrays))


def _alike_tables(
    places: _Places,
    couplings: Couplings,
    pairs: _Pairs,
    clusters: Clusters,
    factors: FactorPlaces,
    begin: Int[ndarray, "pieces+1"],
    begins: Callable[[ndarray], ndarray],
) -> Iterator[Alike]:
    """Args: pairs: those of the first block of each set."""
    blocks, first, counts = clusters.blocks_of_sets, clusters.firsts, clusters.counts
    sizes = couplings.depths[blocks], factors.width[blocks], factors.numbers[blocks] // couplings.depths[blocks]
    set_of_block = np.full(len(couplings.depths), -1)
    set_of_block[blocks] = np.arange(len(blocks))
    set_of_pair, local = set_of_block[couplings.pivot[pairs.left]], np.empty(len(blocks), np.int64)
    column = factors.targets - factors.start[couplings.pivot]
    for (k, width, stride), here in _groups(*sizes):
        local[here] = np.arange(len(here))
        some, own = np.isin(clusters.set, here), np.flatnonzero(np.isin(set_of_pair, here))
        own, slots = own[np.argsort(set_of_pair[own], kind="stable")], clusters.slots(some)
        left, right, block = (part[own] for part in pairs)
        start = factors.start[first[some]] - begin[clusters.piece[some]]
        arrays = start, counts[some], local[clusters.set[some]], clusters.last[some].astype(np.int64)
        arrays += slots, np.searchsorted(local[set_of_pair[own]], np.arange(len(here) + 1)), column[left], column[right]
        arrays += couplings.widths[left], couplings.widths[right], places.start[block], places.stride[block]
        arrays += (begins(clusters.piece[some]),)
        yield Alike(k, width, stride, int(slots.max()) + 1, *(on_device(array, CPU) for array in arrays))


def _pieces(factor: Int[ndarray, "eliminated+1"], products: int, blocks: int) -> Int[ndarray, "eliminated"]:
    """The piece of every eliminated block, given where its Y begin: all products of one piece are formed while its Y
    are in the cache. Fewer pieces where that would leave few pairs of one to a block of the reduced matrix."""
    wanted, blocks = factor[-1] // CACHED, max(blocks, 1)
    count = min(wanted, products // (FEWEST_PAIRS * blocks))
    if count > 1:
        count = min(wanted, products // (FEWER_PAIRS * blocks))
    return factor[:-1] * max(count, 1 + factor[-1] // MOST_NUMBERS) // (factor[-1] + 1)


def _kept_tables(
    structure: BlockStructure,
    reduced: BlockStructure,
    places: _Places,
    inside: ndarray,
    stored: tuple[ndarray, ndarray],
    starts: ndarray,
) -> Iterator[Kept]:
    rows, cols = stored
    block = reduced.numbers_of(rows, cols)
    for (a, b, own), here in _groups(reduced.block_sizes[rows], reduced.block_sizes[cols], rows == cols):
        target = block[here]
        arrays = structure.offsets[inside[here]], places.start[target], places.stride[target], starts[rows[here]]
        yield Kept(a, b, own, *(on_device(array, reduced.device) for array in arrays))


def _groups(*columns: ndarray) -> Iterator[tuple[tuple[int, ...], Int[ndarray, "here"]]]:
    """The different rows of a table of sizes, in order, and where each stands."""
    if not len(columns[0]):
        return
    bases = [int(column.max()) + 1 for column in columns]
    code = columns[0].astype(np.int64)
    for column, base in zip(columns[1:], bases[1:], strict=True):
        code = code * base + column
    # One number per row: sorting rows as such takes 90 ms for the 123,086 pairs of BAL 49-7776.
    numbers = present(code, math.prod(bases))
    for number in numbers.tolist():
        here = np.flatnonzero(code == number) if len(numbers) > 1 else np.arange(len(code))
        yield tuple(int(x) for x in np.unravel_index(number, bases)), here


def _triangle(degree: int) -> tuple[Int[ndarray, "pairs"], Int[ndarray, "pairs"]]:
    """Row and column of every entry of a lower triangle, row by row."""
    counts = np.arange(1, degree + 1)
    row = np.repeat(counts - 1, counts)
    return row, np.arange(len(row)) - (row * (row + 1) >> 1)
