"""Kinds of scenes for a later claim of `metric="auto"`, without a form in common.

Written on 2026-11-28, when all rules had been fixed, and before any of them had been aligned.
"""

import numpy as np
import scipy.ndimage
from scipy.spatial import KDTree
from truth_flat import soft
from truth_fourth import turned
from truth_scenes import Random, Raster, grains


def frost(size: int, random: Random) -> Raster:
    """Ferns of ice on a window: stems that branch at 60 degrees, and their branches again."""
    pane = np.zeros((size, size))

    def stem(at: Raster, heading: float, long: float, depth: int) -> None:
        bend, steps = random.uniform(-0.01, 0.01), np.arange(0, long, 0.5)
        headings = heading + bend * steps
        path = at + 0.5 * np.cumsum(np.stack([np.cos(headings), np.sin(headings)], 1), 0)
        inside = ((path > 0) & (path < size - 1)).all(1)
        np.add.at(pane, tuple(path[inside].astype(int).T[::-1]), 1.0 / (1 + depth))
        if depth < 2:
            for k in range(8, len(path), int(random.integers(7, 12))):
                for side in (-1, 1):
                    stem(path[k], headings[k] + side * np.pi / 3, 0.4 * long * (1 - k / len(path)), depth + 1)

    for _ in range(int(random.integers(3, 8))):
        stem(random.uniform(0, size, 2), random.uniform(0, 2 * np.pi), random.uniform(40, 120), 0)
    return np.minimum(scipy.ndimage.gaussian_filter(pane, 0.9), 1.0) + 0.2 * grains(size, 15.0, random)


def marbling(size: int, random: Random) -> Raster:
    """Marbled paper: bands of colour that combs have drawn through."""
    y, x = np.mgrid[:size, :size].astype(np.float64)
    for _ in range(6):
        angle, wave = random.uniform(0, np.pi), random.uniform(15, 50)
        across = x * np.cos(angle) + y * np.sin(angle) + 4 * random.standard_normal()
        drawn = random.uniform(5, 14) * np.sin(2 * np.pi * across / wave + random.uniform(0, 6))
        x, y = x - drawn * np.sin(angle), y + drawn * np.cos(angle)
    colours = scipy.ndimage.gaussian_filter1d(random.random(4096), 2.5) * 4
    return scipy.ndimage.gaussian_filter(colours[(np.abs(x + 0.3 * y) * 2).astype(int) % 4096], 0.8)


def fringes(size: int, random: Random) -> Raster:
    """An interferogram: fringes of a smooth height, with the noise of the phase."""
    height = grains(size, size / random.uniform(5, 9), random) * random.uniform(5, 12)
    return np.cos(height + 0.4 * random.standard_normal((size, size)))


def straws(size: int, random: Random) -> Raster:
    """Straws of one width thrown on each other, each lit along its middle."""
    heap = np.full((size, size), 0.2)
    for _ in range(int(size**2 * random.uniform(0.004, 0.008))):
        along, across = turned(size, random.uniform(0, size, 2), random.uniform(0, np.pi))
        inside = (np.abs(along) < random.uniform(8, 30)) & (np.abs(across) < 2)
        heap[inside] = random.uniform(0.4, 1.0) * (1 - (across[inside] / 2.6) ** 2)
    return scipy.ndimage.gaussian_filter(heap, 0.7) + 0.02 * random.standard_normal((size, size))


def orchard(size: int, random: Random) -> Raster:
    """Trees in rows from above, each with its crown and its shadow; some are missing."""
    pitch, turn, (y, x) = random.uniform(9, 15), random.uniform(0, np.pi / 2), np.mgrid[:size, :size]
    rows, columns = np.mgrid[-30:30, -30:30] * pitch
    at = np.stack(
        [np.cos(turn) * columns - 1.2 * np.sin(turn) * rows, np.sin(turn) * columns + 1.2 * np.cos(turn) * rows], -1
    )
    at = at.reshape(-1, 2) + size / 2 + random.uniform(0, pitch, 2) + 0.06 * pitch * random.standard_normal((3600, 2))
    at = at[(random.random(3600) < 0.85) & (at > -20).all(1) & (at < size + 20).all(1)]
    crowns, image = random.uniform(0.22, 0.5, len(at)) * pitch, 0.6 + 0.08 * grains(size, 4.0, random)
    for off, shade in ((0.3 * pitch, 0.25), (0.0, 0.45)):
        away, nearest = map(np.asarray, KDTree(at + off).query(np.stack([x, y], -1)))
        image = np.where(away < crowns[nearest], shade + 0.1 * grains(size, 1.0, random), image)
    return scipy.ndimage.gaussian_filter(image, 0.7)


def dies(size: int, random: Random) -> Raster:
    """A chip under a microscope: blocks of cells in rows, and lines between them."""
    die = np.full((size, size), 0.5)

    def divide(top: int, left: int, bottom: int, right: int) -> None:
        height, width = bottom - top, right - left
        if max(height, width) > random.integers(14, 60) and max(height, width) > 13:
            down = height > width
            long = height if down else width
            cut = int(random.integers(long // 4 + 1, 3 * long // 4))
            divide(top, left, *((top + cut, right) if down else (bottom, left + cut)))
            divide(*((top + cut, left) if down else (top, left + cut)), bottom, right)
            return
        period, (y, x) = int(random.integers(3, 9)), np.mgrid[top + 1 : bottom - 1, left + 1 : right - 1]
        along = (y if random.integers(2) else x) % period
        die[top + 1 : bottom - 1, left + 1 : right - 1] = random.uniform(0.2, 0.8) + 0.2 * (along < period / 2)

    divide(0, 0, size, size)
    return soft(die)


def stained(size: int, random: Random) -> Raster:
    """A window of coloured glass: panes, each with a slow change of its own, and lead between them."""
    y, x = np.mgrid[:size, :size]
    at = random.uniform(-10, size + 10, (int(size**2 * random.uniform(0.002, 0.005)), 2))
    away, nearest = map(np.asarray, KDTree(at).query(np.stack([x, y], -1), k=2))
    pane = random.random(len(at))[nearest[..., 0]] + 0.15 * grains(size, 5.0, random)
    return scipy.ndimage.gaussian_filter(np.where(away[..., 1] - away[..., 0] < 2.0, 0.0, pane), 0.7)


def sponge(size: int, random: Random) -> Raster:
    """The spongy inside of a bone: a net of struts around holes of many sizes."""
    field = grains(size, 3.0, random) + 0.7 * grains(size, 6.0, random)
    strut = np.exp(-((field / random.uniform(0.25, 0.45)) ** 2))
    return strut * (0.7 + 0.3 * np.clip(grains(size, 10.0, random), -1, 1)) + 0.05 * random.standard_normal(
        (size, size)
    )


def showers(size: int, random: Random) -> Raster:
    """A weather radar: showers in seven classes, on nothing."""
    rain = 2.5 * grains(size, 8.0, random) + 1.2 * grains(size, 2.5, random) - random.uniform(1.0, 2.5)
    return np.clip(np.ceil(rain), 0, 7) / 7.0


def caustics(size: int, random: Random) -> Raster:
    """Light on the floor of a pool: rays that waves have bent, counted where they fall."""
    many = 3 * size
    y, x = np.mgrid[:many, :many] / 3.0
    wave = scipy.ndimage.gaussian_filter(random.standard_normal((many, many)), 12.0, mode="wrap")
    down, right = np.gradient(wave / wave.std() * random.uniform(60, 140))
    fallen = np.histogram2d((y + down).ravel(), (x + right).ravel(), bins=size, range=[[0, size], [0, size]])[0]
    return np.log1p(scipy.ndimage.gaussian_filter(fallen, 0.8))
