"""Every rotation and every shift of one plan on another, by a likelihood ratio of their cells.

For two cells that show the same place, walls fall on walls far more often than by chance, and rarely on free space.
With walls in a tenth of what is known and half of them drawn alike in both maps, the logarithms of the ratio P(both) /
P(one) P(other) are about 1.8 for two walls, 0.05 for two free cells and -0.7 for a wall and a free cell. An unknown
cell says nothing. (Elfes, "Occupancy grids", 1989, has the same independence of cells.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.fft import next_fast_len
from torch import Tensor

from mslsq.alignment.grids import inside, pixel_grid, similarity_about, translation
from mslsq.alignment.measures import corners, project
from mslsq.alignment.occupancy.cells import Cells, proximity

BOTH_WALL, BOTH_FREE, CONFLICT = 2.0, 0.1, -0.7
"""What two cells say. Kept from the derivation, not fitted."""

ROTATIONS = 120
"""3° apart: at the ends of a map of 160 cells half a step is two cells."""

APART = 0.15
"""Of the diagonal of what is known: placements nearer than this are one, turned or moved a little."""

ALONE = 4
"""Shifts that are looked at where the plan does not turn."""

MARGIN = 2
"""Cells around what is known that are correlated as well."""


@dataclass(frozen=True)
class Candidate:
    """A placement (pixels of the reference to pixels of the map) and its likelihood ratio."""

    score: float
    matrix: Float[Tensor, "3 3"]


@dataclass(frozen=True)
class _Cut:
    """What is known of a plan, and where its first cell lies."""

    wall: Float[Tensor, "height width"]
    free: Float[Tensor, "height width"]
    corner: tuple[int, int]
    """(x, y) in cells."""

    @staticmethod
    def of(cells: Cells) -> "_Cut":
        top, bottom, left, right = cells.box
        rows = slice(max(top - MARGIN, 0), bottom + MARGIN + 1)
        columns = slice(max(left - MARGIN, 0), right + MARGIN + 1)
        wall = proximity(cells.distance[rows, columns], 1.0).float()
        return _Cut(wall, cells.free[rows, columns].float(), (columns.start, rows.start))


def own_score(cells: Cells) -> float:
    """What a plan scores on itself: what any placement of it can."""
    cut = _Cut.of(cells)
    likes = BOTH_WALL * cut.wall.square() + BOTH_FREE * cut.free.square()
    return float((likes + 2 * CONFLICT * cut.wall * cut.free).sum())


def ranked(reference: Cells, moving: Cells, turns: bool) -> list[Candidate]:
    """The best placements, no two of them near each other."""
    fixed, cut = _Cut.of(reference), _Cut.of(moving)
    angles = [2 * math.pi * k / ROTATIONS for k in range(ROTATIONS)] if turns else [0.0]
    like, factor = reference.distance, reference.factor
    grow = torch.diag(like.new_tensor([factor, factor, 1.0]))
    to_cut = translation(-fixed.corner[0], -fixed.corner[1], like)
    out = []
    diagonal = _known_corners(reference)[1] / factor
    for score, matrix in _correlated(fixed, cut, angles, diagonal, like):
        placed = translation(*cut.corner, like) @ matrix @ to_cut
        out.append(Candidate(score, grow @ placed @ torch.linalg.inv(grow)))
    return distinct(sorted(out, key=lambda candidate: -candidate.score), reference)


def apart(one: Float[Tensor, "3 3"], other: Float[Tensor, "3 3"], reference: Cells) -> float:
    """How far two placements put the corners of what is known of the reference from each other, of its diagonal."""
    at, diagonal = _known_corners(reference)
    return float((project(one, at) - project(other, at)).norm(dim=-1).mean()) / diagonal


def _known_corners(reference: Cells) -> tuple[Float[Tensor, "4 2"], float]:
    top, bottom, left, right = (entry * reference.factor for entry in reference.box)
    at = corners(bottom - top + 1, right - left + 1, reference.distance) + reference.distance.new_tensor([left, top])
    return at, math.hypot(bottom - top, right - left)


def distinct(candidates: Sequence[Candidate], reference: Cells) -> list[Candidate]:
    """In order, without those that put what is known of the reference near an earlier one's place."""
    at, diagonal = _known_corners(reference)
    least = APART * diagonal
    kept: list[tuple[Candidate, Tensor]] = []
    for candidate in candidates:
        where = project(candidate.matrix, at)
        if all(float((where - other).norm(dim=-1).mean()) > least for _, other in kept):
            kept.append((candidate, where))
    return [candidate for candidate, _ in kept]


def _correlated(
    fixed: _Cut, moving: _Cut, angles: Sequence[float], diagonal: float, like: Tensor
) -> list[tuple[float, Float[Tensor, "3 3"]]]:
    """For every angle the best shifts: their scores, and matrices between the cuts' cells.

    Two of each angle, near each other perhaps: the angles beside it have others. Of one angle alone those apart.
    """
    height, width = moving.wall.shape
    side = math.ceil(math.hypot(height, width))
    shape = [int(next_fast_len(size + side - 1, real=True) or 0) for size in fixed.wall.shape]
    wall, free = (torch.fft.rfft2(part, s=shape).conj() for part in (fixed.wall, fixed.free))
    # Of the sum of four products, two transforms of the moving plan and one back are enough.
    for_wall, for_free = BOTH_WALL * wall + CONFLICT * free, BOTH_FREE * free + CONFLICT * wall
    grid = pixel_grid(side, side, like)
    everywhere = torch.ones_like(moving.wall, dtype=torch.bool)
    found, middle = [], ((side - 1) / 2, (side - 1) / 2)
    for angle in angles:
        turn = similarity_about(middle, ((width - 1) / 2, (height - 1) / 2), angle, 1.0, like)
        points = project(turn, grid)
        valid = inside(points, everywhere)
        x, y = points[:, 0].round().long().clamp(0, width - 1), points[:, 1].round().long().clamp(0, height - 1)
        turned = [(part[y, x] * valid).reshape(side, side) for part in (moving.wall, moving.free)]
        spectra = [torch.fft.rfft2(part, s=shape) for part in turned]
        scores = torch.fft.irfft2(for_wall * spectra[0] + for_free * spectra[1], s=shape)
        across, shifts = (4, 2) if len(angles) > 1 else (math.ceil(APART * diagonal), ALONE)
        for _ in range(shifts):
            row, column = divmod(int(scores.argmax()), shape[1])
            # Entry [dy, dx] compares cell u of the reference with cell u + d of the canvas; negative ones have wrapped.
            down, right = (n if n < side else n - size for n, size in zip((row, column), shape, strict=True))
            found.append((float(scores[row, column]), turn @ translation(right, down, like)))
            beside = torch.arange(-across, across + 1, device="cpu")
            near = [(beside + n) % size for n, size in zip((row, column), shape, strict=True)]
            scores[near[0][:, None], near[1][None, :]] = -torch.inf
    return found
