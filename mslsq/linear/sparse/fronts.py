"""Where the fronts of a factorisation stand in memory: panels, padded places, entries, and rows inside a parent."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from mslsq.kernels import Kernel
from mslsq.linear.block_structure import starts_of

TILE = 8
"""What rows and columns of fronts are padded to."""

# columns of the table of fronts
WIDTH, PADDED, BELOW, PADDED_BELOW, LD, PANEL, UPDATE, UPDATE_LD, FIRST = range(9)

_update_stacks = Kernel("update_stacks", "nllll")


class Numbering(NamedTuple):
    """The blocks in the order of their elimination, front by front; fronts in a postorder of their tree."""

    order: Int[ndarray, "n"]
    """The block at every place."""
    size: Int[ndarray, "n"]
    """Its unknowns."""
    front: Int[ndarray, "n"]
    """Its front."""
    up: Int[ndarray, "fronts"]
    """The parent of every front, negative for a root."""
    below: Int[ndarray, "fronts"]
    """Unknowns in the rows below its panel."""
    keys: Int[ndarray, "rows"]
    """front · n + place of the block, for every row of blocks below a panel, ascending."""


class Rows(NamedTuple):
    """The rows of blocks below the panels, by front."""

    front: Int[ndarray, "rows"]
    block: Int[ndarray, "rows"]
    """Its place in the numbering."""
    height: Int[ndarray, "rows"]
    local: Int[ndarray, "rows"]
    """Its first row, counted from the end of the panel."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A numbering whose numbers have their places."""

    numbering: Numbering
    fronts: Int[ndarray, "fronts 9"]
    size: int
    """Numbers of all panels, padding included."""
    stack: int
    """Room for update matrices."""
    places: Int[ndarray, "fronts+1"]
    """The first padded place of every front; the last place of all is always zero."""
    local: Int[ndarray, "n"]
    """The first row of every block inside its own panel."""
    rows: Rows

    @classmethod
    def of(cls, numbering: Numbering) -> "Placed":
        count, n = numbering.up.size, numbering.order.size
        width = np.bincount(numbering.front, weights=numbering.size, minlength=count).astype(np.int64)
        padded, padded_below = _padded(width), _padded(numbering.below)
        ld, update_ld = _staggered(padded + padded_below), _staggered(padded_below)
        panels, places = starts_of(ld * padded), starts_of(padded)
        update, stack = _stacks(numbering.up, update_ld * padded_below)
        named = {WIDTH: width, PADDED: padded, BELOW: numbering.below, PADDED_BELOW: padded_below, LD: ld}
        named |= {PANEL: panels[:-1], UPDATE: update, UPDATE_LD: update_ld, FIRST: places[:-1]}
        fronts = np.stack([named[column] for column in range(len(named))], 1).astype(np.int64)

        before = starts_of(numbering.size)[:-1]
        local = before - before[np.searchsorted(numbering.front, np.arange(count))][numbering.front]
        row_front, row_block = numbering.keys // n, numbering.keys % n
        height = numbering.size[row_block]
        row_local = starts_of(height)[:-1] - starts_of(numbering.below)[:-1][row_front]
        rows = Rows(row_front, row_block, height, row_local)
        return cls(numbering, fronts, int(panels[-1]), stack, places, local, rows)

    @property
    def tallest(self) -> int:
        """Rows of the largest front."""
        return int((self.fronts[:, PADDED] + self.fronts[:, PADDED_BELOW]).max())

    def position(self, front: Int[ndarray, "some"], block: Int[ndarray, "some"]) -> Int[ndarray, "some"]:
        """The row of blocks inside fronts."""
        below: ndarray | int = 0
        keys = self.numbering.keys
        if keys.size:
            found = np.searchsorted(keys, front * self.numbering.order.size + block)
            below = self.rows.local[np.minimum(found, keys.size - 1)]
        is_own = self.numbering.front[block] == front
        return np.where(is_own, self.local[block], self.fronts[front, PADDED] + below)

    def unknowns(self, first: Int[ndarray, "n+1"]) -> Int[ndarray, "places"]:
        """The unknown at every place of the padded elimination order, −1 for padding."""
        numbering = self.numbering
        scalar = np.full(self.places[-1] + 1, -1, np.int64)
        within = _counted(numbering.size)
        scalar[np.repeat(self._block_places, numbering.size) + within] = (
            np.repeat(first[numbering.order], numbering.size) + within
        )
        return scalar

    def places_below(self) -> tuple[Int[ndarray, "fronts+1"], Int[ndarray, "rows"]]:
        """Where the places of every front's rows below its panel begin, and those places."""
        rows, start = self.rows, starts_of(self.fronts[:, PADDED_BELOW])
        places, within = np.full(start[-1], self.places[-1], np.int32), _counted(rows.height)
        places[np.repeat(start[rows.front] + rows.local, rows.height) + within] = (
            np.repeat(self._block_places[rows.block], rows.height) + within
        )
        return start, places

    def entries(
        self, rows: Int[ndarray, "pairs"], columns: Int[ndarray, "pairs"], offsets: Int[ndarray, "pairs"]
    ) -> tuple[Int[ndarray, "fronts+1"], Int[ndarray, "pairs 6"]]:
        """Blocks of the matrix by front: source, strides by row and by column, height, width, target in the factor."""
        place, size = inverse(self.numbering.order), self.numbering.size
        i, j = place[rows].astype(np.int64), place[columns].astype(np.int64)
        upright, low, high = i >= j, np.minimum(i, j), np.maximum(i, j)
        front = self.numbering.front[low]
        target = self.fronts[front, PANEL] + self.local[low] * self.fronts[front, LD] + self.position(front, high)
        strides = np.where(upright, size[j], 1), np.where(upright, 1, size[j])
        entries = np.stack((offsets, *strides, size[high], size[low], target), 1)[np.argsort(front, kind="stable")]
        return starts_of(np.bincount(front, minlength=len(self.fronts))), entries

    def runs(self) -> tuple[Int[ndarray, "fronts+1"], Int[ndarray, "runs 3"]]:
        """Consecutive rows of a front inside its parent: first row, row in the parent, length; none across the border
        between panel and update matrix."""
        rows, up = self.rows, self.numbering.up
        target = self.position(up[rows.front], rows.block)
        joined = (
            (target[1:] == target[:-1] + rows.height[:-1])
            & (rows.front[1:] == rows.front[:-1])
            & (target[1:] != self.fronts[up[rows.front[1:]], PADDED])
        )
        heads = np.flatnonzero(np.concatenate((np.ones(min(1, target.size), bool), ~joined)))
        lengths = np.add.reduceat(rows.height, heads) if heads.size else rows.height
        runs = np.stack((rows.local[heads], target[heads], lengths), 1)
        return starts_of(np.bincount(rows.front[heads], minlength=len(self.fronts))), runs

    @property
    def _block_places(self) -> Int[ndarray, "n"]:
        """The first padded place of every block."""
        return self.places[self.numbering.front] + self.local


def by_parent(up: Int[ndarray, "fronts"]) -> tuple[Int[ndarray, "fronts+1"], Int[ndarray, "children"]]:
    """Where the children of every front begin, and the children."""
    inner = np.flatnonzero(up >= 0)
    return starts_of(np.bincount(up[inner], minlength=up.size)), inner[np.argsort(up[inner], kind="stable")]


def inverse(order: Int[ndarray, "n"]) -> Int[ndarray, "n"]:
    """The permutation that undoes one."""
    places = np.empty_like(order)
    places[order] = np.arange(order.size, dtype=order.dtype)
    return places


def _stacks(up: Int[ndarray, "fronts"], needs: Int[ndarray, "fronts"]) -> tuple[Int[ndarray, "fronts"], int]:
    """Where the update matrices lie, on two stacks one behind the other, and the room for both."""
    place, room = np.empty(up.size, np.int64), np.empty(1, np.int64)
    _update_stacks(up.size, up, needs, place, room)
    return place, int(room[0])


def _padded(count):
    return (count + TILE - 1) // TILE * TILE


def _staggered(ld):
    """An odd multiple of 8: columns at a distance of a power of two would share cache sets."""
    return np.where((ld // TILE % 2 == 1) | (ld < 128), ld, ld + TILE)


def _counted(counts: Int[ndarray, "n"]) -> Int[ndarray, "sum"]:
    """0, 1, ... up to each of these counts in turn."""
    return np.arange(counts.sum()) - np.repeat(starts_of(counts)[:-1], counts)
