"""Which pairs of maps may overlap: looked for on one coarse level, or computed from transforms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment import starts
from mslsq.alignment.candidates import SEARCH_SIDE
from mslsq.alignment.joint.links import DECISIVE
from mslsq.alignment.linking import Linker
from mslsq.alignment.measures import common_share, project
from mslsq.alignment.pyramid import Level, depth

TURNS = 36
"""Rotations that are looked at, 10° apart: enough to rank pairs by, and to start a refinement from."""

SAMPLES = 24
"""Along the longer side of a map, of the grid that a predicted overlap is counted on."""


@dataclass(frozen=True)
class Candidate:
    """A pair of maps that may overlap, how well they correlate on the coarse level, and where."""

    fixed: int
    moving: int
    score: float
    """As `starts.Start.score`."""
    transforms: list[Float[Tensor, "3 3"]]
    """The best first, then other peaks that are nearly as high."""


PEAKS = 3
"""Of the correlation of a pair: in a periodic map the true one need not be the highest."""


def coarse_levels(linker: Linker, usable: Sequence[int]) -> dict[int, Level]:
    """One level of every map, of the same factor: the finest on which all have sides up to `SEARCH_SIDE`."""
    longest = max(max(linker.map(i).mask.shape) for i in usable)
    shortest = min(min(linker.map(i).mask.shape) for i in usable)
    count = depth(shortest, shortest) if linker.levels == "auto" else int(linker.levels)
    at = min(count - 1, max(0, math.ceil(math.log2(longest / SEARCH_SIDE))))
    return {i: linker.pyramid(i, count, linker.units(usable[0], i)[1])[at] for i in usable}


def screened(
    linker: Linker, levels: dict[int, Level], pairs: Sequence[tuple[int, int]], turned: bool
) -> list[Candidate]:
    """The best shifts of every pair by masked correlation, over all rotations if `turned`; best score first."""
    angles = [(2 * math.pi * k / TURNS, 1.0) for k in range(TURNS)] if turned else [(0.0, 1.0)]
    least = 0.5 * linker.options.min_overlap
    found = []
    for fixed, moving in pairs:
        one, other = levels[fixed], levels[moving]
        peaks = starts.correlate_turned(one, other, angles, least, 1 if turned else PEAKS)
        peaks = sorted(peaks, key=lambda entry: -entry[0])[:PEAKS]
        high = [matrix for score, matrix in peaks if score >= DECISIVE * peaks[0][0]]
        grow = torch.diag(high[0].new_tensor([one.factor, one.factor, 1.0]))
        found.append(Candidate(fixed, moving, peaks[0][0], [grow @ m @ torch.linalg.inv(grow) for m in high]))
    return sorted(found, key=lambda candidate: -candidate.score)


def predicted_overlap(linker: Linker, fixed: int, moving: int, transform: Float[Tensor, "3 3"]) -> float:
    """The share of the smaller map's area of data that both have in common under a transform, from some pixels."""
    one, other = linker.map(fixed).mask, linker.map(moving).mask
    stride = max(1, max(one.shape) // SAMPLES)
    known = one[::stride, ::stride]
    pixels = starts.pixel_grid(*known.shape, like=transform) * stride
    common = known.reshape(-1) & starts.inside(project(transform, pixels), other)
    own, others = (int(mask.count_nonzero()) / stride**2 for mask in (one, other))
    return common_share(transform, pixels, common, own, others)
