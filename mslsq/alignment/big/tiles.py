"""Which tiles of an overlap are read: those that determine the transform best, spread over the overlap.

Candidates lie evenly in a grid of cells. Of each the normal equations JᵀJ of its own gradients are the information
that it holds about the warp, gain and bias (Fisher's, over the noise's variance). The first half of the tiles are the
best of every cell, so that no part of the overlap is believed unseen; the others are taken one by one, each where log
det of the sum grows most (a D-optimal design, V. Fedorov, "Theory of optimal experiments", 1972).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment.measures import project

SIDE = 256
"""Pixels of a tile, at the factor that it is read with."""

CANDIDATES = 3
"""Times the tiles that are used, which are read to see what they hold."""

PROBES = 5
"""Points along either side of a tile that are asked whether both maps hold data there."""

FILLED = 0.5
"""Share of these points."""


@dataclass(frozen=True)
class Ground:
    """A reduced mask, and the factor of its pixels."""

    mask: Bool[Tensor, "height width"]
    factor: int

    def holds(self, pixels: Float[Tensor, "n 2"]) -> Bool[Tensor, " n"]:
        """Do pixels (x, y) of the file lie on data?"""
        height, width = self.mask.shape
        at = ((pixels - (self.factor - 1) / 2) / self.factor).round()
        inside = ((at >= 0) & (at < at.new_tensor([width, height]))).all(-1)
        column, row = torch.where(inside[:, None], at, 0.0).long().unbind(-1)
        return inside & self.mask[row, column]


def in_overlap(
    size: tuple[int, int],
    factor: int,
    transform: Float[Tensor, "3 3"],
    own: Ground,
    other: Ground,
    side: int = SIDE,
) -> tuple[Int[np.ndarray, "n 2"], int]:
    """Rows and columns of the tiles of a map that lie on data of both, and how many tiles the map has.

    `size` is that of the map reduced by `factor`, tiles have `side` pixels of it; `transform` takes its file's pixels
    to those of the other's.
    """
    rows, columns = (max(1, -(-length // side)) for length in size)
    steps = (torch.arange(PROBES, dtype=torch.float64, device="cpu") + 0.5) / PROBES * side
    y = (torch.arange(rows, dtype=torch.float64, device="cpu")[:, None] * side + steps).reshape(-1)
    x = (torch.arange(columns, dtype=torch.float64, device="cpu")[:, None] * side + steps).reshape(-1)
    kept = []
    for row in range(rows):  # a row of tiles at a time: a large raster has millions of points
        part = y[row * PROBES : (row + 1) * PROBES]
        grid = torch.stack([x.repeat(PROBES), part.repeat_interleave(len(x))], -1) * factor
        both = own.holds(grid) & other.holds(project(transform, grid).nan_to_num(-1e9))
        share = both.reshape(PROBES, columns, PROBES).double().mean((0, 2))
        kept += [(row, column) for column in (share >= FILLED).nonzero()[:, 0].tolist()]
    return np.array(kept, dtype=int).reshape(-1, 2), rows * columns


def cells_of(tiles: Int[np.ndarray, "n 2"], count: int) -> Int[np.ndarray, " n"]:
    """The cell of each tile: a grid of about `count` cells over the overlap."""
    low, high = tiles.min(0), tiles.max(0) + 1
    extent = high - low
    across = max(1, round(math.sqrt(count * extent[1] / extent[0])))
    grid = np.array([max(1, round(count / across)), across])
    at = np.minimum((tiles - low) * grid // extent, grid - 1)
    return at[:, 0] * grid[1] + at[:, 1]


def candidates(tiles: Int[np.ndarray, "n 2"], count: int) -> Int[np.ndarray, " m"]:
    """Indices of the tiles that are read to see what they hold: alike from every cell, by chance within one."""
    most = CANDIDATES * count
    if len(tiles) <= most:
        return np.arange(len(tiles))
    random = np.random.default_rng(0)
    order, cell = random.permutation(len(tiles)), cells_of(tiles, max(1, count // 2)).tolist()
    turn = np.zeros(len(tiles), dtype=int)
    seen: dict[int, int] = {}
    for index in order.tolist():  # the first of every cell, then the second of every cell ...
        number = seen.get(cell[index], -1) + 1
        turn[index] = seen[cell[index]] = number
    return np.sort(order[np.argsort(turn[order], kind="stable")][:most])


def chosen(
    information: Float[np.ndarray, "n unknowns unknowns"], cells: Int[np.ndarray, " n"], count: int
) -> Int[np.ndarray, " m"]:
    """Indices of the candidates that are used, at most `count`; those that hold nothing are not."""
    size = information.shape[-1]
    lengths = np.sqrt(np.einsum("nuu->u", information).clip(1e-300))
    scaled = information / np.outer(lengths, lengths)
    worth = np.einsum("nuu->n", scaled) > 0
    waiting = np.flatnonzero(worth)
    if len(waiting) <= count:
        return waiting
    total, taken = 1e-6 * np.eye(size), []
    for cell in dict.fromkeys(cells[waiting].tolist()):
        if len(taken) >= count / 2:
            break
        best, total = _best(scaled, total, waiting[cells[waiting] == cell])
        taken.append(best)
    while len(taken) < count:
        best, total = _best(scaled, total, np.setdiff1d(waiting, taken))
        taken.append(best)
    return np.sort(np.array(taken))


def _best(scaled: np.ndarray, total: np.ndarray, among: np.ndarray) -> tuple[int, np.ndarray]:
    """The one with which log det of the sum is largest, and the sum."""
    gains = np.linalg.slogdet(total + scaled[among])[1]
    best = int(among[np.argmax(gains)])
    return best, total + scaled[best]
