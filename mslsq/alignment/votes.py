"""Where does each small block lie best, of all places? Its vote, for a placement or for another.

Blocks of another modality agree weakly, and of a scene in which things have moved many not at all: how well they do so
says little then. That a block agrees best where it was laid, of all the places in the map, says much: by chance one in
a thousand does. So every block of the reference is compared with the map, as it was placed, at every shift, as features
are matched, and counts where it agrees best. As of the inliers of a sample consensus (Fischler and Bolles, 1981) it is
their number that speaks, beyond the unknowns of the warp, an edge that runs on from one block into the next is counted
once (`mslsq.alignment.apertures`), and the placement must have several times the votes that any other has: what moved
together votes for one other place, and where a texture repeats, votes go to many.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment.apertures import independent
from mslsq.alignment.evidence import SHOWS, Compared, compared_in
from mslsq.alignment.pair_level import DETAIL_SIGMA, PairLevel
from mslsq.alignment.pyramid import masked_blur

SIDE, PATCH = 8, 12
"""Samples: blocks are those of `mslsq.alignment.consensus`, and a little is seen around each to know it by."""

NEAR = 1
"""Samples: a vote as near as this to where the block was laid is for the placement."""

OWN = 4
"""Samples: as far as this from it, votes are for no other place."""

ENOUGH = 20.0
"""Votes beyond the unknowns of the warp. Of 300 placements of maps without a match those of windows at night, each on
another, had up to 16, and all others 9 at most (the half "choose" of `benchmarks/alignment_truth.py`)."""

TIMES = 2.0
"""The votes of any other place, that a placement must have."""

LARGEST = 150
"""Side in samples of the level that votes: all places of all blocks take n² operations (0.1 s)."""


class Votes(NamedTuple):
    """How many blocks of a level lie best where they were laid."""

    own: float
    """What no other one of them has said (`apertures.independent`)."""
    count: int
    """All of them."""
    rival: int
    """The most for any other place."""
    blocks: int
    """That were asked."""


def voting_level(levels: Sequence[PairLevel], first: int) -> PairLevel:
    """The finest level from `first` on that is no larger than `LARGEST`."""
    small = (level for level in levels[first:] if max(level.grid) <= LARGEST)
    return next(small, levels[-1])


def elected(level: PairLevel, matrix: Float[Tensor, "3 3"], unknowns: int) -> bool:
    """Has the placement votes enough, and more than twice those of any other place?"""
    found = votes(level, matrix)
    return found.own >= ENOUGH + unknowns and found.count >= TIMES * found.rival


def votes(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Votes:
    """The votes under a warp; the level keeps the last ones."""
    return level.kept("votes", matrix, partial(_counted, level))


def _counted(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Votes:
    sampled, valid = level.look(matrix)
    seen = valid.reshape(level.grid)
    one, other = (_detail(values.reshape(-1, *level.grid), seen) for values in (level.planes, sampled.T))
    blocks = compared_in(level, matrix, SIDE)
    shifts, asked = _best_shifts(one, other, seen, blocks)
    if not len(asked):
        return Votes(0.0, 0, 0, 0)
    away = np.abs(shifts).max(1)
    own = away <= NEAR
    figures = blocks.slopes[asked], blocks.at[asked], own.astype(np.float64)
    return Votes(independent(*figures), int(own.sum()), _most_alike(shifts[away > OWN]), len(asked))


def _detail(
    values: Float[Tensor, "channels height width"], known: Bool[Tensor, "height width"]
) -> Float[Tensor, "channels height width"]:
    """What a Gaussian takes away, zero where nothing is known; single precision, as it is only compared."""
    zero = torch.zeros_like(values)
    values = torch.where(known, values, zero)
    return torch.where(known, values - masked_blur(values, known, DETAIL_SIGMA)[0], zero).float()


def _best_shifts(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    known: Bool[Tensor, "height width"],
    blocks: Compared,
) -> tuple[Int[np.ndarray, "asked 2"], Int[np.ndarray, " asked"]]:
    """Of the blocks whose patch both maps know: (rows, columns) to where in the other map it agrees best; and which
    blocks they are."""
    height, width = known.shape
    if min(height, width) < PATCH or not len(blocks.at):
        return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)
    corner = blocks.at.astype(np.int64) * SIDE - (PATCH - SIDE) // 2
    within = ((corner >= 0) & (corner + PATCH <= (height, width))).all(1)
    columns = width - PATCH + 1
    place = np.where(within, corner @ (columns, 1), 0)
    whole = (_patches(known[None].to(one.dtype)).amin((1, 2)) > 0).numpy(force=True)
    asked, places = np.flatnonzero(within & whole[place]), np.flatnonzero(whole)
    if not len(asked):
        return np.empty((0, 2), dtype=np.int64), asked
    other_patches = _patches(other)[places]
    least = SHOWS * float(_centred(other_patches).norm(dim=1).mean())
    agreement = _unit(_patches(one)[place[asked]]) @ _unit(other_patches, least).T
    best = places[agreement.argmax(1).numpy(force=True)]
    return np.stack(np.divmod(best, columns), 1) - corner[asked], asked


def _patches(values: Float[Tensor, "channels height width"]) -> Float[Tensor, "places channels samples"]:
    """Every patch of a raster, row by row."""
    return values.unfold(1, PATCH, 1).unfold(2, PATCH, 1).flatten(1, 2).flatten(2).movedim(1, 0)


def _centred(patches: Float[Tensor, "places channels samples"]) -> Float[Tensor, "places all"]:
    """Less the mean of each channel."""
    return (patches - patches.mean(-1, keepdim=True)).flatten(1)


def _unit(patches: Float[Tensor, "places channels samples"], least: float = 0.0) -> Float[Tensor, "places all"]:
    """Centred and of unit length, but for those that are shorter than the `least`."""
    centred = _centred(patches)
    return centred / centred.norm(dim=1, keepdim=True).clamp(min=max(least, 1e-12))


def _most_alike(shifts: Int[np.ndarray, "n 2"]) -> int:
    """The most shifts that lie within `NEAR` of one place."""
    if not len(shifts):
        return 0
    least = shifts.min(0)
    counts = np.zeros(shifts.max(0) - least + 1 + 2 * NEAR, dtype=np.int64)
    for down in range(2 * NEAR + 1):
        for right in range(2 * NEAR + 1):
            np.add.at(counts, tuple((shifts - least + (down, right)).T), 1)
    return int(counts.max())
