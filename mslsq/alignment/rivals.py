"""Is a placement the only one? Its score beside that of every other shift and rotation of the map.

In a wall of bricks, a row of windows or between two pictures of lamps many placements fit about as well. One of them is
the best, and its detail may agree in every block; that it is the true one is luck. So the map is laid on the reference
as it was placed, and from there moved by every shift at once (`shifts.shift_scores`): the placement must stand out from
all other peaks. And an arc slides along itself: the rim of a cup, or of a cell, was laid on itself 18 to 93 px from
where it belongs, at another rotation, and no shift fitted as well. So the map is turned from where it lies, too.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.canvas import Canvas, seen_on
from mslsq.alignment.grids import similarity_about
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


TURNS = tuple(float(turn) for turn in range(20, 341, 10))
"""Degrees by which the map is turned: nearer rotations are the placement's own, as the detail of a level agrees there
still."""

SYMMETRIES = 360 / 2, 360 / 3, 360 / 5, 360 / 7
"""Degrees: what looks the same turned by 360° / n does so turned by 360° / p, for a prime p that divides n. So these
tell all n up to 10, and of the larger ones all but 11, 13 and the like."""

NEARER = 5.0, 2.5, 1.25
"""Degrees by which the best of them is turned further, or back, step by step: where even a rival fits well (the next
petal of a flower), degrees decide the score."""

ALIKE = math.atanh(0.98)
"""A higher score counts as this beside other rotations: what is the same agrees no better where it lies between samples
and is a degree off."""


class Standing(NamedTuple):
    """The score of a placement, and that of the best other shift or rotation with where that would lay the map."""

    score: float
    rival: float
    shift: tuple[float, float]
    """Where the rival lies: (x, y) in pixels of the finest level, by which it moves the map in the reference."""
    turn: float = 0.0
    """Degrees by which it turns the map before."""
    about: tuple[float, float] = (0.0, 0.0)
    """What it turns the map about: (x, y) in pixels of the finest level of the reference."""
    factor: int = 1
    """Pixels of the finest level to a sample of the level it was found on."""

    @property
    def lead(self) -> float:
        """By how much the placement scores more than any other shift: 1 is twice as much, or `PLAIN` more."""
        return (self.score - self.rival) / min(max(self.rival, 0.01), PLAIN)


def standing(reference: Level, moving: Level, matrix: Float[Tensor, "3 3"], min_overlap: float) -> Standing:
    """How far a placement stands out. `matrix` takes pixels of this level of the reference to those of the map."""
    largest = LARGEST * max(*reference.size, *moving.size)
    canvas = _canvas_around(moving, matrix, reference, largest)
    values, known = _laid(moving, matrix, canvas)
    # In single precision: a score is compared, never differentiated.
    image = whitened(Level(values.float(), known, moving.factor))
    scores = shift_scores(reference, image[None], known.to(image.dtype)[None], min_overlap)[0]
    down, right = _moves(scores.shape, canvas, reference.size)
    own = _own_score(scores, down, right)
    row, column, rival = _best_peak(scores, down, right)
    shift = -float(right[column]) * reference.factor, -float(down[row]) * reference.factor
    return Standing(own, rival, shift, factor=reference.factor)


def turned(
    reference: Level, moving: Level, matrix: Float[Tensor, "3 3"], min_overlap: float, turns: Sequence[float] = TURNS
) -> Standing:
    """How far a placement stands out from the same map at other rotations, wherever it fits best there."""
    square, middle = _square_around(moving, matrix, reference, LARGEST * max(*reference.size, *moving.size))

    def scored(turns: Sequence[float]) -> Tensor:
        about = [similarity_about(middle, middle, math.radians(turn), 1.0, matrix) for turn in turns]
        lying = [_laid(moving, matrix @ turn, square) for turn in about]
        images = torch.stack([whitened(Level(values.float(), known, moving.factor)) for values, known in lying])
        return shift_scores(reference, images, torch.stack([known for _, known in lying]).to(images.dtype), min_overlap)

    def best(scores: Tensor, turns: Sequence[float]) -> tuple[float, float, int, int]:
        most = int(scores.amax((-2, -1)).argmax())
        row, column = divmod(int(scores[most].argmax()), scores.shape[-1])
        return float(scores[most, row, column]), turns[most], row, column

    scores = scored((0.0, *turns))
    shape = scores.shape[1:]
    factor, (down, right) = reference.factor, _moves(shape, square, reference.size)
    own = _own_score(scores[0], down, right)
    found = best(scores[1:], turns)
    for step in NEARER if turns is TURNS else ():
        further = [other for other in (found[1] - step, found[1] + step) if TURNS[0] <= other <= TURNS[-1]]
        found = max(found, best(scored(further), further))
    rival, turn, row, column = found
    shift = -float(right[column]) * factor, -float(down[row]) * factor
    return Standing(min(own, ALIKE), rival, shift, turn, (middle[0] * factor, middle[1] * factor), factor)


def _corners_of(
    moving: Level, matrix: Float[Tensor, "3 3"], reference: Level
) -> tuple[Float[np.ndarray, " 4"], Float[np.ndarray, " 4"]]:
    """x and y of the corners of a placed map, in the reference; the reference's own where one has no place there."""
    height, width = moving.size
    inverse = np.linalg.inv(matrix.numpy(force=True).astype(np.float64))
    x, y, depth = inverse @ np.array([[0, width - 1, width - 1, 0], [0, 0, height - 1, height - 1], [1, 1, 1, 1]])
    if (depth > 1e-9).all():
        return x / depth, y / depth
    rows, columns = reference.size
    return np.array([0.0, columns - 1]), np.array([0.0, rows - 1])


def _canvas_around(moving: Level, matrix: Float[Tensor, "3 3"], reference: Level, largest: int) -> Canvas:
    """Where a placed map lies, as far as it is not beyond `largest` around the reference."""
    sides = []
    for at, size in zip(_corners_of(moving, matrix, reference), reference.size[::-1], strict=True):
        margin = max(0, largest - size) // 2
        begin = max(math.floor(at.min()), -margin)
        sides.append((begin, max(min(math.ceil(at.max()), size - 1 + margin), begin)))
    (left, right), (top, bottom) = sides
    return Canvas(left, top, bottom - top + 1, right - left + 1)


def _square_around(
    moving: Level, matrix: Float[Tensor, "3 3"], reference: Level, largest: int
) -> tuple[Canvas, tuple[float, float]]:
    """Where a placed map lies, however it is turned about its middle; and that middle (x, y), in the reference."""
    x, y = _corners_of(moving, matrix, reference)
    middle = float(x.mean()), float(y.mean())
    reach = math.ceil(min(float(np.hypot(x - middle[0], y - middle[1]).max()), largest / 2)) + 1
    side = 2 * reach + 1
    return Canvas(round(middle[0]) - reach, round(middle[1]) - reach, side, side), middle


def _laid(
    moving: Level, matrix: Float[Tensor, "3 3"], canvas: Canvas
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """The map as it lies on the canvas, and where it has data."""
    coefficients = moving.coefficients
    if not may_read(coefficients, matrix):
        return seen_on(canvas, coefficients, moving.mask, matrix)
    shape = canvas.height, canvas.width
    everywhere = torch.ones(canvas.height * canvas.width, dtype=torch.bool, device="cpu")
    geometry = torch.tensor([canvas.left, canvas.top, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64, device="cpu")
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


def _moves(shape: Sequence[int], canvas: Canvas, size: Sequence[int]) -> list[Float[np.ndarray, " count"]]:
    """What each row and each column of the scores moves the map by; negative shifts have wrapped around.

    Entry [dy, dx] compares pixel u of the reference with pixel u + d of the canvas, which lies at u + d + its (left,
    top) in the reference: the placement itself is where that sum is zero.
    """
    moves = []
    for count, start, side in zip(shape, (canvas.top, canvas.left), size, strict=True):
        least = start - (side - 1)
        moves.append((np.arange(count, dtype=np.float64) + start - least) % count + least)
    return moves


def _own_score(
    scores: Float[Tensor, "rows columns"], down: Float[np.ndarray, " rows"], right: Float[np.ndarray, " columns"]
) -> float:
    """The best score within a pixel of the placement."""
    rows, columns = (np.flatnonzero(np.abs(moves) <= 1) for moves in (down, right))
    return float(scores.numpy(force=True)[np.ix_(rows, columns)].max())
