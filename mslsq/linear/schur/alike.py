"""Eliminated blocks that couple with the same kept blocks, as points do that are seen from the same cameras.

Of a set of them Y Yᵀ is the product of one tall matrix with itself: half the loads of products block by block, and
fewer additions to memory. Sets are formed within a piece of the elimination, whose Y stay in a core's own cache: with
points in an order of sets W would be read out of order, which costs more than sets save where W is larger than the
caches (22,106 points seen four times: 2.4 ms became 2.8 to 3.2).
"""

import heapq
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

from mslsq.linear.block_structure import starts_of
from mslsq.linear.cost_models import padded, speed

FEWEST_OF_SET = 12
"""The same of all pieces together: sums of a set must be worth their way to each block of the reduced matrix."""

WIDEST = 256
"""Columns that Yᵀ of a set may have: its sums, of 512 KB then, stay in a core's own cache."""

LONGEST_REGISTER = 8
"""Numbers of the longest registers there are."""

LONGEST_WAIT = 64
"""Pieces for which the sums of a set are kept until there are more of it: after that they are taken off the matrix."""


def fewest() -> int:
    """Eliminated blocks of a piece that must be alike to go together: the wider the registers, the more is gained."""
    return max(3, 16 // speed().register)


@dataclass(frozen=True)
class Couplings:
    """The couplings between eliminated and kept blocks, sorted by the eliminated one."""

    pivot: Int[ndarray, "edges"]
    """The number of the eliminated block..."""
    other: Int[ndarray, "edges"]
    """... and of the kept one."""
    across: Bool[ndarray, "edges"]
    """Is it stored as (kept, eliminated)?"""
    widths: Int[ndarray, "edges"]
    """The size of the kept block."""
    depths: Int[ndarray, "eliminated"]
    """The sizes of the eliminated blocks."""

    @property
    def first(self) -> Int[ndarray, "eliminated+1"]:
        """Where the couplings of each eliminated block begin."""
        return starts_of(np.bincount(self.pivot, minlength=len(self.depths)))

    def sums(self, numbers: Int[ndarray, "edges"]) -> Int[ndarray, "eliminated"]:
        """The sums of what belongs to each eliminated block."""
        return np.bincount(self.pivot, numbers, len(self.depths)).astype(np.int64)

    def models(self) -> Int[ndarray, "eliminated"]:
        """For every eliminated block the first that is like it: of its size, coupled with the same blocks, which are
        stored in the same way."""
        first, code = self.first, 2 * self.other + self.across
        # They are told apart by sums of random numbers, and then compared.
        number = np.random.default_rng(0).integers(0, 2**63, int(code.max(initial=0)) + 1, dtype=np.uint64)
        total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(number[code], dtype=np.uint64)))
        keys = (total[first[1:]] - total[first[:-1]]) ^ self.depths.astype(np.uint64)
        _, representative, key = np.unique(keys, return_index=True, return_inverse=True)
        model = representative[key]
        same = (np.diff(first)[model] == np.diff(first)) & (self.depths[model] == self.depths)
        at = first[model[self.pivot]] + np.arange(len(code)) - first[self.pivot]
        same[self.pivot[code[np.minimum(at, len(code) - 1)] != code]] = False
        return np.where(same, model, np.arange(len(model)))


@dataclass(frozen=True)
class Clusters:
    """Eliminated blocks of one piece that are alike, in the order of the pieces."""

    of_block: Int[ndarray, "eliminated"]
    """The cluster of every eliminated block, -1 for those that have none."""
    piece: Int[ndarray, "clusters"]
    """The piece that a cluster is in..."""
    set: Int[ndarray, "clusters"]
    """... and the set whose sums it is added to: all that are alike, but for long waits..."""
    last: Bool[ndarray, "clusters"]
    """... and is it the last one of that set?"""

    @property
    def firsts(self) -> Int[ndarray, "clusters"]:
        """The first block of each cluster."""
        numbers, index = np.unique(self.of_block, return_index=True)
        return index[numbers >= 0]

    @property
    def counts(self) -> Int[ndarray, "clusters"]:
        """How many blocks each cluster has."""
        return np.bincount(self.of_block[self.of_block >= 0], minlength=len(self.piece))

    @property
    def blocks_of_sets(self) -> Int[ndarray, "sets"]:
        """A block of each set."""
        found = np.empty(int(self.set.max(initial=-1)) + 1, np.int64)
        found[self.set] = self.firsts
        return found

    def slots(self, some: Bool[ndarray, "clusters"]) -> Int[ndarray, "sets"]:
        """Which of several sums each set uses that has these clusters: those of a set that is done go to the next."""
        slots: dict[int, int] = {}
        free, used = [], 0
        for own, is_last in zip(self.set[some].tolist(), self.last[some].tolist(), strict=True):
            if own not in slots:
                slots[own] = heapq.heappop(free) if free else used
                used = max(used, slots[own] + 1)
            if is_last:
                heapq.heappush(free, slots[own])
        return np.array([slots[own] for own in sorted(slots)], np.int64)


def clusters_of(
    couplings: Couplings, models: Int[ndarray, "eliminated"], piece: Int[ndarray, "eliminated"]
) -> Clusters:
    """The clusters that are large enough to pay.

    Args:
        models: for every eliminated block the first that is like it.
        piece: the piece that it is in.
    """
    count = len(models)
    columns = couplings.sums(padded(couplings.widths))
    usable = np.flatnonzero((columns > 0) & (columns <= WIDEST))
    keys, cluster, sizes = np.unique(piece[usable] * count + models[usable], return_inverse=True, return_counts=True)
    large = sizes >= fewest()
    own_piece, model = np.divmod(keys, max(count, 1))
    large &= np.bincount(model, np.where(large, sizes, 0), count)[model] >= FEWEST_OF_SET
    number = np.where(large, np.cumsum(large) - 1, -1)
    of_block = np.full(count, -1)
    of_block[usable] = number[cluster]
    own_piece, model = own_piece[large], model[large]
    by_model = np.lexsort((own_piece, model))
    sets = np.empty(len(model), np.int64)
    begins = (np.diff(model[by_model], prepend=-1) != 0) | (np.diff(own_piece[by_model], prepend=0) > LONGEST_WAIT)
    sets[by_model] = np.cumsum(begins) - 1
    last = np.zeros(len(model), bool)
    last[by_model] = np.append(begins[1:], True)[: len(model)]
    return Clusters(of_block, own_piece, sets, last)


@dataclass(frozen=True)
class Rows:
    """The rows of Yᵀ: how far apart they are where it lies by itself, and what it takes then."""

    room: Int[ndarray, "edges"]
    """What a row may write to: up to a whole register, but for a last number that is alone in its own..."""
    distance: Int[ndarray, "edges"]
    """... the distance of rows: less than a row has where the last number of each stands behind all of them..."""
    numbers: Int[ndarray, "edges"]
    """... and all numbers of a Yᵀ."""


def rows_of(couplings: Couplings, kernels: bool) -> Rows:
    """In whole registers, for kernels. Of nine columns (cameras of bundle adjustment, all of them) the ninth stands
    behind the others: four lines of the cache instead of five or six. Where it stands is the same for all instruction
    sets, so that a plan made for one is read by another."""
    widths, depths = couplings.widths, couplings.depths[couplings.pivot]
    whole = padded(widths) if kernels else widths
    room = np.where(widths % speed().register == 1, widths, whole)
    if kernels and bool((widths == LONGEST_REGISTER + 1).all()):
        behind = np.full_like(room, LONGEST_REGISTER)
        return Rows(room, behind, behind * (depths + -(-depths // LONGEST_REGISTER)))
    return Rows(room, whole, whole * depths)


@dataclass(frozen=True)
class FactorPlaces:
    """Where the numbers of Y lie."""

    targets: Int[ndarray, "edges"]
    """Where Yᵀ of a coupling begins..."""
    strides: Int[ndarray, "edges"]
    """... and how far apart its rows are."""
    start: Int[ndarray, "eliminated"]
    """Where the Y of an eliminated block begin..."""
    width: Int[ndarray, "eliminated"]
    """... and, where it is in a cluster, how many columns Yᵀ has."""
    numbers: Int[ndarray, "eliminated"]
    """How many there are of an eliminated block."""


def places_of(
    couplings: Couplings,
    rows: Rows,
    piece: Int[ndarray, "eliminated"],
    cluster: Int[ndarray, "eliminated"],
) -> FactorPlaces:
    """Y of a cluster beside each other in rows that all kept blocks share, those of other eliminated blocks one by one,
    piece after piece.

    In a shared row what is written beyond a block (`Rows.room`) must not fall on one that is there already:
    blocks of one group of tables are written from left to right, between those of two groups room is left.
    """
    pivot, widths, depths, room = couplings.pivot, couplings.widths, couplings.depths, rows.room
    first, shared = couplings.first, cluster[pivot] >= 0
    follows = (np.diff(widths, append=-1) == 0) & (np.diff(couplings.across, append=False) == 0)
    before = starts_of(np.where(shared, np.where(follows, widths, room), rows.numbers))
    within = before[:-1] - before[first[pivot]]
    last, has = first[1:] - 1, np.diff(first) > 0
    width, end = np.zeros(len(depths), np.int64), np.zeros(len(depths), np.int64)
    width[has], end[has] = (within + widths)[last[has]], padded((within + room)[last[has]])
    numbers = np.where(cluster >= 0, end * depths, couplings.sums(rows.numbers))
    order = np.lexsort((np.where(cluster >= 0, cluster, cluster.max(initial=0) + 1), piece))
    start = np.empty(len(depths), np.int64)
    start[order] = starts_of(numbers[order])[:-1]
    return FactorPlaces(start[pivot] + within, np.where(shared, end[pivot], rows.distance), start, width, numbers)
