"""The cells of an occupancy map: walls, free space and the unknown, on a grid as coarse as such maps drift."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.ndimage
import scipy.signal
import scipy.stats
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.metrics import Occupancy
from mslsq.alignment.prepared import Prepared
from mslsq.alignment.pyramid import Level

ACROSS = 160
"""Cells along the longer side of what is known of the larger map. Maps of four buildings had drifted by 1 to 2 % of
that side (the best rigid fit leaves 5 to 25 px of it), two or three cells."""

FARTHEST = 16.0
"""Cells: walls farther away than this are all the same."""

BINS = 64
"""Of the histogram that tells unknown cells from free ones."""

LIGHT = 0.92
"""Of the range: free space is at least as light. (Unknown cells are at 0.5, 0.8 in ROS's maps, 0.88 in drawn ones.)"""

FEW = 0.005
"""Share of the pixels below which a value is not that of unknown cells."""

REST = 0.005
"""Share of the known pixels that may lie outside of the box on each side: specks far from the building."""

CHANCE = 0.95
"""Of noise, how much is left out at least."""

LEAST_REACH = 3
"""Pixels around a wall, at least, within which there must be others."""


@dataclass(frozen=True)
class Plan:
    """A map's pixels by what they are, as arrays of truth."""

    wall: Bool[np.ndarray, "height width"]
    free: Bool[np.ndarray, "height width"]

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """First and last row, first and last column of what is known, but for a few specks."""
        known = self.wall | self.free
        ends = []
        for axis in (1, 0):
            share = np.cumsum(known.sum(axis)) / max(int(known.sum()), 1)
            ends += [int(np.searchsorted(share, REST)), int(np.searchsorted(share, 1 - REST))]
        return ends[0], ends[1], ends[2], ends[3]

    @property
    def side(self) -> int:
        """The longer side of the box in pixels."""
        top, bottom, left, right = self.box
        return max(bottom - top, right - left) + 1

    def without_specks(self, factor: int) -> "Plan":
        """Without noise of single pixels, each of which would make a cell of `factor` pixels a wall: a pixel of a wall
        has more walls around it than noise has by chance, or as many as half a line one pixel thin. How much noise
        there is, pixels say that have none around."""
        reach = max(factor, LEAST_REACH)
        steps = np.arange(-reach, reach + 1)
        disc = (np.hypot(steps[:, None], steps) <= reach).astype(np.float32)
        around = np.rint(scipy.signal.oaconvolve(self.wall.astype(np.float32), disc, mode="same")) - 1
        alone = int((self.wall & (around <= 0)).sum()) / max(int((self.wall | self.free).sum()), 1)
        expected = alone * disc.sum()
        for _ in range(8):  # of Poisson's noise of density d, d exp(-d area) is alone
            expected = min(alone * disc.sum() * math.exp(expected), 1.0)
        by_chance = float(scipy.stats.poisson.ppf(CHANCE, expected)) if alone else -1.0
        return replace(self, wall=self.wall & (around > min(by_chance, reach - 2)))

    def usable(self) -> bool:
        """Are there walls and free space?"""
        return bool(self.wall.any() and self.free.any())


def plan_of(prepared: Prepared, metric: Occupancy) -> Plan:
    """What every pixel is: dark walls, light free space; all else, and what is masked, is unknown."""
    values, known = prepared.values.mean(0).numpy(force=True), prepared.mask.numpy(force=True)
    low, high = float(values[known].min()), float(values[known].max())
    light = (values - low) / (high - low)
    free = metric.free if metric.free is not None else _free_from(light[known], metric.wall)
    return Plan(known & (light < metric.wall), known & (light > free))


def without_unknown(prepared: Prepared, metric: Occupancy) -> Prepared:
    """The map with a mask of its walls and free space alone. How far a robot has seen is no property of a building:
    in a row of equal rooms the borders of the unknown agree where the rooms do not."""
    plan = plan_of(prepared, metric)
    mask = torch.from_numpy(plan.wall | plan.free).to(prepared.mask.device)
    values = torch.where(mask, prepared.values, torch.zeros_like(prepared.values))
    spread, mean = torch.std_mean(values[:, mask])
    return Prepared(values, mask, (float(mean), float(spread)))


def _free_from(light: Float[np.ndarray, " n"], wall: float) -> float:
    """The lightness that free cells exceed: half way from the most frequent light value to the most frequent one
    between it and the walls, if there is one."""
    share, edges = np.histogram(light, BINS, (0.0, 1.0))
    share, middles = share / max(len(light), 1), 0.5 * (edges[:-1] + edges[1:])
    bright = int(np.argmax(np.where(middles >= LIGHT, share, -1.0)))
    between = np.where((middles > wall) & (middles < middles[bright] - 2.5 / BINS), share, -1.0)
    peak = int(np.argmax(between))
    if between[peak] < FEW:
        return 0.5 * (wall + middles[bright])
    return float(0.5 * (middles[peak] + middles[bright]))


@dataclass(frozen=True)
class Cells:
    """One plan on the coarse grid; cell (i, j) is pixel (i · factor, j · factor) of the map and its surroundings."""

    factor: int
    distance: Float[Tensor, "height width"]
    """To the nearest wall, in cells."""
    free: Float[Tensor, "height width"]
    """Share of free pixels under a Gaussian of one cell, none where walls are."""
    known: Bool[Tensor, "height width"]
    """Is anything known within a cell?"""
    box: tuple[int, int, int, int]
    """First and last row, first and last column of what is known."""

    @staticmethod
    def of(plan: Plan, factor: int, like: Tensor) -> "Cells":
        # Of all pixels only those around what is known need distances.
        (height, width), (top, bottom, left, right) = plan.wall.shape, plan.box
        margin = math.ceil(FARTHEST) * factor
        rows = slice(max(top - margin, 0) // factor * factor, min(bottom + margin + 1, height))
        columns = slice(max(left - margin, 0) // factor * factor, min(right + margin + 1, width))
        wall, free = plan.wall[rows, columns], plan.free[rows, columns]
        every = slice(None, None, factor)
        distance = np.asarray(scipy.ndimage.distance_transform_edt(~wall))[every, every] / factor
        around = np.asarray(scipy.ndimage.distance_transform_edt(~(wall | free)))[every, every] <= factor
        light = scipy.ndimage.gaussian_filter(free.astype(np.float32), factor)[every, every]
        shape = -(-height // factor), -(-width // factor)
        first = rows.start // factor, columns.start // factor

        def whole(part: np.ndarray, outside: float) -> Tensor:
            out = np.full(shape, outside)
            out[first[0] : first[0] + part.shape[0], first[1] : first[1] + part.shape[1]] = part
            return torch.from_numpy(out).to(like)

        box = top // factor, -(-bottom // factor), left // factor, -(-right // factor)
        near = whole(np.minimum(distance, FARTHEST), FARTHEST)
        open_space = whole(light, 0.0) * (1 - proximity(near, 1.0))
        return Cells(factor, near, open_space, whole(around, 0.0) > 0.5, box)

    @property
    def walls(self) -> Bool[Tensor, "height width"]:
        """The cells that a wall passes through."""
        return self.distance <= 0.5

    def level(self, width: float) -> Level:
        """How near walls are, in a form for least squares: smooth ridges along the walls, where something is known."""
        return Level(proximity(self.distance, width)[None], self.known, self.factor)


def proximity(distance: Float[Tensor, "*any"], width: float) -> Float[Tensor, "*any"]:
    """exp(-d² / 2 width²), 1 on a wall and 0 far from one."""
    return torch.exp(-0.5 * (distance / width).square())
