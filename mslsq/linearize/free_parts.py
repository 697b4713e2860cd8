"""Blocks of which some components are held: the others, as runs of consecutive ones."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Run(NamedTuple):
    """Consecutive components of a tangent that move."""

    first: int
    """Where they begin in the tangent..."""
    width: int
    place: int
    """... and among the components that move, which are all that a matrix stores."""

    @property
    def single(self) -> "list[Run]":
        """One component each."""
        return [Run(self.first + k, 1, self.place + k) for k in range(self.width)]


Kinds = list[tuple[Int[np.ndarray, "members"], list[Run]]]
"""Which blocks, ascending, have the same components free, and which those are; without blocks that are held whole."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """The blocks of one variable of a term, in every lane."""

    numbers: Int[np.ndarray, "lanes"]
    """Of the block in the normal equations, -1 where all of it is held."""
    places: Int[np.ndarray, "tangent lanes"]
    """Of every component among those of its block that move; -1 where it is held."""
    kinds: Kinds
    """By lanes."""

    @property
    def tangent(self) -> int:
        return len(self.places)

    @property
    def widths(self) -> Int[np.ndarray, "lanes"]:
        """How many components of each block move."""
        return self.places.max(0, initial=-1) + 1


def lanes_of(numbers: Int[np.ndarray, "lanes"], free: Bool[np.ndarray, "*lanes tangent"]) -> Lanes:
    """The lanes of a variable whose components are `free`, of one block for all lanes or by lane."""
    tangent = free.shape[-1]
    free = np.broadcast_to(free, (len(numbers), tangent))
    if _is_whole(free):  # no array of all lanes
        places = np.broadcast_to(np.arange(tangent)[:, None], (tangent, len(numbers)))
    else:
        places = np.where(free, np.cumsum(free, 1) - 1, -1).T
    return Lanes(numbers, places, runs_by_kind(free))


def runs_by_kind(free: Bool[np.ndarray, "blocks tangent"]) -> Kinds:
    """The blocks by the components that move."""
    if _is_whole(free):
        blocks = np.flatnonzero(free.any(1))
        return [(blocks, [Run(0, free.shape[1], 0)])] if len(blocks) else []
    patterns, kind = np.unique(free, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    return [(np.flatnonzero(kind == k), _runs(pattern)) for k, pattern in enumerate(patterns) if pattern.any()]


def _is_whole(free: Bool[np.ndarray, "blocks tangent"]) -> bool:
    """Is each block free or held as a whole?"""
    return bool((free == free[:, :1]).all())


def _runs(pattern: Bool[np.ndarray, "tangent"]) -> list[Run]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], pattern, [False])).astype(np.int8)))
    widths = edges[1::2] - edges[::2]
    places = np.cumsum(widths) - widths
    return [Run(int(f), int(w), int(p)) for f, w, p in zip(edges[::2], widths, places, strict=True)]
