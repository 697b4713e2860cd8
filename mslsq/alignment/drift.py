"""Has a map drifted? Then parts of it fit better elsewhere, and the place is not known to what its pixels' noise says.

A robust solve lays one part of a bent map on the reference exactly; there the detail agrees, and residuals are small.
Plans of one building, bent by 1 to 6 px, were 2 to 18 px off with standard errors of 0.004 to 0.17 px. So where some
part agrees less than the whole, all parts are moved by themselves, from a coarse level to the finest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.evidence import FAINTEST, evidence, loudest
from mslsq.alignment.grids import frame_corners
from mslsq.alignment.measures import middle_of
from mslsq.alignment.pair_level import DETAIL_SIGMA, PairLevel
from mslsq.alignment.pyramid import masked_blur

THIRDS = 3
"""Parts along either side of the overlap whose blocks are compared with all blocks."""

LESS = 0.2
"""By which the median correlation of the blocks of one third is less than that of all, where a map may have drifted."""

EVEN = 0.03
"""The same of a placement all of whose parts agree, noise apart: of true ones it was 0.006 at most on the level below
the one that starts are searched on (noise of 1 and 5 %), of plans and photographs that are bent by a pixel 0.03 to
0.08."""

QUARTERS = 4
"""Parts along either side of the overlap that are moved by themselves."""

SIDE = 128
"""Samples: the search begins on the first level whose longer side is no more, with parts of 32 × 32."""

REACH = 8
"""Samples of that level by which a part is moved at most; on every finer one by `FINER`."""

FINER = 2

FITS = 0.6
"""Correlation of a part that is found. Of 32 × 32 samples behind a prefilter the best of 289 shifts reaches 0.4 by
chance."""

BETTER = 0.1
"""By which a part correlates more where it fits better than where it is."""

MANY = 3
"""Parts that fit better elsewhere, where it is the map that has drifted, and not a thing that has moved."""


class Moved(NamedTuple):
    """Parts that are found somewhere: their middles in the reference and by how much they are off, in pixels (x, y)."""

    middles: Float[Tensor, "parts 2"]
    shifts: Float[Tensor, "parts 2"]


def drift(levels: Sequence[PairLevel], matrix: Float[Tensor, "3 3"], first: int) -> float:
    """The root mean square of how far the corners are off, as the parts have it, in pixels; 0 without drift.

    An affine function of the place is fitted to the parts' shifts, and what it leaves is added. `first` is the finest
    level whose detail is asked.
    """
    if _unevenness(levels[first], matrix) <= LESS:
        return 0.0
    moved = _moved(levels, matrix)
    if int((moved.shifts.abs().amax(-1) > 0).count_nonzero()) < MANY:
        return 0.0
    frame = levels[0].frame
    design = _affine((moved.middles - frame.centre) / frame.half)
    fitted = torch.linalg.lstsq(
        design.mT @ design + 0.1 * torch.eye(3, device="cpu").to(design), design.mT @ moved.shifts
    ).solution
    corners = _affine(frame_corners(frame)) @ fitted
    left = moved.shifts - design @ fitted
    return float((corners.square().sum(-1).mean() + left.square().sum(-1).mean()).sqrt())


def _affine(points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 3"]:
    return torch.cat([torch.ones_like(points[:, :1]), points], -1)


def even(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> bool:
    """Do all parts agree as well as the whole, but for noise? Where noise takes more of some parts, as of what is dark
    between lamps, with what it takes of every block given back, and without blocks of which it leaves hardly any."""
    if _unevenness(level, matrix) <= EVEN + 1 - evidence(level, matrix).reliability:
        return True
    seen = loudest(level, matrix)
    tell = seen.reliability >= FAINTEST
    whole, least = _whole_and_least((seen.correlation + 1 - seen.reliability)[tell], seen.at[tell])
    return 2 * int(np.count_nonzero(tell)) >= len(tell) and bool(min(whole, 1.0) - least <= EVEN)


def _unevenness(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> float:
    """By how much the blocks of some part agree less than all do."""
    seen = loudest(level, matrix)
    whole, least = _whole_and_least(seen.correlation, seen.at)
    return whole - least


def _whole_and_least(agreement: Float[np.ndarray, " blocks"], at: Float[np.ndarray, "blocks 2"]) -> tuple[float, float]:
    """The medians of all blocks, and of those of the part that has the least."""
    if not len(agreement):
        return 0.0, 0.0
    low, high = at.min(0), at.max(0) + 1
    part = ((at - low) * THIRDS / (high - low)).astype(np.int64) @ np.array([THIRDS, 1])
    medians = [middle_of(one) for one in (agreement[part == n] for n in range(THIRDS**2)) if len(one) > 1]
    whole = middle_of(agreement)
    return whole, min(medians, default=whole)


def _moved(levels: Sequence[PairLevel], matrix: Float[Tensor, "3 3"]) -> Moved:
    """Every part where it fits best, from the level where the search begins to the finest."""
    begin = next((k for k, level in enumerate(levels) if max(level.grid) <= SIDE), len(levels) - 1)
    finest = levels[0].frame
    box = _box(levels[begin], matrix)
    middles, shifts = [], []
    for row in range(QUARTERS):
        for column in range(QUARTERS):
            cell = torch.tensor([[row, column], [row + 1, column + 1]], device="cpu") / QUARTERS
            place = box[0] + cell.to(box) * (box[1] - box[0])
            off = finest.centre.new_zeros(2)
            for position in range(begin, -1, -1):
                found = _best(levels[position], matrix, place, off, REACH if position == begin else FINER)
                if found is None:
                    break
                off = found
            else:
                middles.append(place.mean(0).flip(0))
                shifts.append(off)
    none = finest.centre.new_zeros(0, 2)
    return Moved(torch.stack(middles), torch.stack(shifts)) if middles else Moved(none, none)


def _box(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Float[Tensor, "2 2"]:
    """The first and the last (row, column) of the overlap, in pixels of the finest level."""
    where = level.look(matrix)[1].reshape(level.grid).nonzero()
    step = level.stride * level.factor
    return (
        torch.stack([where.amin(0), where.amax(0) + 1]).to(level.planes) * step
        if len(where)
        else torch.zeros(2, 2, device="cpu")
    )


def _best(
    level: PairLevel, matrix: Float[Tensor, "3 3"], place: Float[Tensor, "2 2"], off: Float[Tensor, "2"], reach: int
) -> Float[Tensor, "2"] | None:
    """By how much (x, y) the part of the reference at a place is to be moved on the map, near `off`; None if it is not
    found. A part that fits almost as well where it is stays, as along a wall."""
    step = level.stride * level.factor
    one, other, valid = level.kept("details", matrix, lambda at: _details(level, at))
    around = (off.flip(0) / step).round().long()
    (top, left), (bottom, right) = (place / step).round().long().tolist()
    rows, columns = bottom - top, right - left
    if min(rows, columns) < REACH:
        return None
    down, across = int(around[0]), int(around[1])
    window = [top + down - reach, bottom + down + reach, left + across - reach, right + across + reach]
    correlation = _shifted(
        one[:, top:bottom, left:right],
        valid[top:bottom, left:right],
        _cropped(other, *window),
        _cropped(valid[None], *window)[0],
    )
    best = float(correlation.max())
    if best < FITS:
        return None
    y, x = torch.meshgrid(*[torch.arange(-reach, reach + 1, device="cpu")] * 2, indexing="ij")
    y, x = y + down, x + across
    near = (correlation >= best - (BETTER if off.abs().max() == 0 else 0.02)).nonzero()
    shifts = torch.stack([x[near[:, 0], near[:, 1]], y[near[:, 0], near[:, 1]]], -1)
    return shifts[shifts.square().sum(-1).argmin()].to(off) * step


def _details(
    level: PairLevel, matrix: Float[Tensor, "3 3"]
) -> tuple[
    Float[Tensor, "channels height width"], Float[Tensor, "channels height width"], Bool[Tensor, "height width"]
]:
    sampled, valid = level.look(matrix)
    known = valid.reshape(level.grid)
    one, other = (
        torch.where(known, part - masked_blur(part, known, DETAIL_SIGMA)[0], 0.0)
        for part in (values.T.reshape(-1, *level.grid).contiguous() for values in (level.target, sampled))
    )
    return one, other, known


def _cropped(values: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """A window that may reach beyond the border, where it is 0."""
    height, width = values.shape[-2:]
    around = max(-left, 0), max(right - width, 0), max(-top, 0), max(bottom - height, 0)
    inside = values[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    return torch.nn.functional.pad(inside, around)


def _shifted(
    part: Float[Tensor, "channels rows columns"],
    known: Bool[Tensor, "rows columns"],
    window: Float[Tensor, "channels height width"],
    seen: Bool[Tensor, "height width"],
) -> Float[Tensor, "down across"]:
    """The correlation of a part with all that lies in a window, over the samples that both know; -1 where these are
    fewer than half of it."""
    weight = known.to(part.dtype)
    both = torch.nn.functional.conv2d(seen.to(part.dtype)[None, None], weight[None, None])[0, 0]

    def summed(values: Tensor, kernel: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(values[None], kernel[None])[0, 0]

    shown = seen.to(part.dtype).expand_as(window)
    product = summed(window, part)
    energy = summed(shown, part.square()) * summed(window.square(), weight.expand_as(part))
    correlation = product / energy.clamp(min=torch.finfo(part.dtype).tiny).sqrt()
    return torch.where((both >= 0.5 * weight.sum()) & (energy > 0), correlation, -1.0)
