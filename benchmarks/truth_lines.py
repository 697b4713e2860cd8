"""Scenes of `alignment_truth.py` that hold little but a few lines.

They were part of the fourth claim, have been looked at, and belong to the half "choose". All but rivers are for pairs
without a match alone: they hold too little to say more than one direction of a place, or one part of it.
"""

import numpy as np
import scipy.ndimage
from truth_flat import brushed, soft

Raster = np.ndarray
Random = np.random.Generator


def bent(at: Raster, heading: float, count: int, step: float, turns: float, random: Random) -> Raster:
    """Points of a walk whose heading changes by this angle a step."""
    headings = heading + turns * np.cumsum(random.standard_normal(count))
    return at + step * np.cumsum(np.stack([np.cos(headings), np.sin(headings)], 1), 0)


def rivers(size: int, random: Random) -> Raster:
    """Streams that run together, dark on one ground."""
    heading, strokes = random.uniform(0, 2 * np.pi), []
    for _ in range(int(random.integers(6, 14))):
        at = random.uniform(-0.1 * size, 1.1 * size, 2)
        stream = [at]
        own = heading + random.uniform(-1.2, 1.2)
        for _ in range(int(1.5 * size / 5)):
            near = [s for s in strokes if np.linalg.norm(s - stream[-1], axis=1).min() < 6]
            if near:
                joined = near[0][np.linalg.norm(near[0] - stream[-1], axis=1).argmin()]
                stream.append(joined)
                break
            own += 0.35 * random.standard_normal() - 0.1 * np.sin(own - heading)
            stream.append(stream[-1] + 5 * np.array([np.cos(own), np.sin(own)]))
        strokes.append(np.array(stream))
    return soft(1 - 0.8 * brushed(size, strokes, 2))


def one_line(size: int, random: Random) -> Raster:
    """One bright line that wavers through the dark."""
    start = random.uniform(0, size, 2)
    heading = random.uniform(0, 2 * np.pi)
    ways = [bent(start, heading + half, size // 3, 4.0, 0.15, random) for half in (0.0, np.pi)]
    return soft(brushed(size, [np.concatenate([ways[0][::-1], start[None], ways[1]])], int(random.integers(1, 4))))


def cables(size: int, random: Random) -> Raster:
    """A few cables that hang before the sky, all much the same way."""
    x, strokes = np.arange(-5.0, size + 5, 3.0), []
    tilt, sag = random.uniform(-0.5, 0.5), random.uniform(0.0005, 0.003)
    for _ in range(int(random.integers(2, 5))):
        low = random.uniform(0, size)
        strokes.append(np.stack([x, random.uniform(0, size) + tilt * x - sag * (x - low) ** 2], 1))
    return soft(1 - brushed(size, strokes, 1)) + 0.2 * np.linspace(0, 1, size)[:, None]


def skyline(size: int, random: Random) -> Raster:
    """Roofs, or hills, before an empty sky: one edge from side to side."""
    if random.integers(2):
        heights = np.repeat(random.uniform(0.2, 0.8, size), random.integers(4, 25, size))[:size]
    else:
        heights = 0.5 + 0.15 * scipy.ndimage.gaussian_filter1d(random.standard_normal(size), 8.0, mode="wrap") * 5
    return soft(np.arange(size)[:, None] > size * heights[None, :])


def barcode(size: int, random: Random) -> Raster:
    """Bars of whole widths, from top to bottom."""
    module = int(random.integers(2, 5))
    bars = np.repeat(random.integers(0, 2, size), module)[:size]
    return soft(np.broadcast_to(bars[None, :], (size, size)))


def rails(size: int, random: Random) -> Raster:
    """Two rails that wind side by side, and the noise of a sensor."""
    headings = random.uniform(0, 2 * np.pi) + 0.25 * np.cumsum(0.3 * random.standard_normal(200))
    way = np.stack([np.cos(headings), np.sin(headings)], 1)
    middle = random.uniform(0.3 * size, 0.7 * size, 2) + 3 * (np.cumsum(way, 0) - np.cumsum(way, 0)[100])
    aside = random.uniform(3.0, 8.0) * np.stack([-way[:, 1], way[:, 0]], 1)
    lines = brushed(size, [middle + aside, middle - aside], 2)
    return scipy.ndimage.gaussian_filter(lines, 0.7) + 0.03 * random.standard_normal((size, size))
