"""Is a placement the only one? Its score beside that of every other shift of the map.

In a wall of bricks, a row of windows or between two pictures of lamps many placements fit about as well. One of them is
the best, and its detail may agree in every block; that it is the true one is luck. So the map is laid on the reference
as it was placed, and from there moved by every shift at once (`shifts.shift_scores`): the placement must stand out from
all other peaks.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.canvas import Canvas, canvas_around, seen_on
from mslsq.alignment.passes import warped
from mslsq.alignment.pyramid import Level
from mslsq.alignment.shifts import shift_scores, whitened
from mslsq.kernels import Kernel, may_read

_BEST_PEAK = Kernel("best_peak", "nnTddnld")

LOBE = 2
"""Pixels of the level: peaks as near to the placement as this are its own."""

PLAIN = 0.8
"""A score higher by this counts as twice as high, whatever the rival's: scores are Fisher's z, and where even a rival
fits well (the next window of a facade) the difference tells, not the ratio. Chosen on the half "choose" of
`benchmarks/alignment_truth.py`, with the lead of 1.3 that is asked."""

LARGEST = 4
"""Times the longer side of both maps: what a canvas has at most, should a homography spread the map over the plane."""


class Standing(NamedTuple):
    """The score of a placement, and that of the best other shift with where that would lay the map."""

    score: float
    rival: float
    shift: tuple[float, float]
    """Where the rival lies: (x, y) in pixels of the finest level, by which it moves the map in the reference."""

    @property
    def lead(self) -> float:
        """By how much the placement scores more than any other shift: 1 is twice as much, or `PLAIN` more."""
        return (self.score - self.rival) / min(max(self.rival, 0.01), PLAIN)


def standing(reference: Level, moving: Level, matrix: Float[Tensor, "3 3"], min_overlap: float) -> Standing:
    """How far a placement stands out. `matrix` takes pixels of this level of the reference to those of the map."""
    largest = LARGEST * max(*reference.size, *moving.size)
    canvas = canvas_around([moving.size], [matrix], reference.size, largest)
    values, known = _laid(moving, matrix, canvas)
    # In single precision: a score is compared, never differentiated.
    image = whitened(Level(values.float(), known, moving.factor))
    fixed = Level(reference.raster.float(), reference.mask, reference.factor)
    scores = shift_scores(fixed, image[None], known.to(image.dtype)[None], min_overlap)[0]
    # Entry [dy, dx] compares pixel u of the reference with pixel u + d of the canvas, which lies at u + d + its
    # (left, top) in the reference: the placement itself is where that sum is zero.
    starts = canvas.top, canvas.left
    down, right = (
        _shifts(count, start, side) for count, start, side in zip(scores.shape, starts, reference.size, strict=True)
    )
    near = [torch.from_numpy(np.flatnonzero(np.abs(shifts) <= 1)) for shifts in (down, right)]
    own = float(scores[near[0][:, None], near[1]].max())
    row, column, rival = _best_peak(scores, down, right)
    shift = -float(right[column]) * reference.factor, -float(down[row]) * reference.factor
    return Standing(own, rival, shift)


def _laid(
    moving: Level, matrix: Float[Tensor, "3 3"], canvas: Canvas
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """The map as it lies on the canvas, and where it has data."""
    coefficients = moving.coefficients
    if not may_read(coefficients, matrix):
        return seen_on(canvas, coefficients, moving.mask, matrix)
    shape = canvas.height, canvas.width
    everywhere = torch.ones(canvas.height * canvas.width, dtype=torch.bool)
    geometry = torch.tensor([canvas.left, canvas.top, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    values, known = warped(coefficients, moving.mask, shape, everywhere, geometry, matrix)
    return values.reshape(-1, *shape), known.reshape(shape)


def _best_peak(
    scores: Float[Tensor, "rows columns"], down: Float[np.ndarray, " rows"], right: Float[np.ndarray, " columns"]
) -> tuple[int, int, float]:
    """Row, column and score of the highest peak that is not the placement's own; -1 if there is none."""
    if may_read(scores):
        found, score = np.zeros(2, dtype=np.int64), np.empty(1)
        _BEST_PEAK(*scores.shape, scores.contiguous(), down, right, LOBE, found, score)
        return int(found[0]), int(found[1]), float(score[0])
    wrapped = torch.nn.functional.pad(scores[None, None], (LOBE,) * 4, mode="circular")
    peaks = scores >= torch.nn.functional.max_pool2d(wrapped, 2 * LOBE + 1, 1)[0, 0]
    away = torch.from_numpy(down[:, None] ** 2 + right**2 > LOBE**2).to(scores.device)
    others = torch.where(peaks & away, scores, torch.full_like(scores, -1.0))
    row, column = divmod(int(others.argmax()), len(right))
    return row, column, float(others[row, column])


def _shifts(count: int, start: int, side: int) -> Float[np.ndarray, " count"]:
    """What each entry of the scores along one axis moves the map by; negative shifts have wrapped around."""
    least = start - (side - 1)
    return (np.arange(count, dtype=np.float64) + start - least) % count + least
