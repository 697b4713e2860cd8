"""Kinds of scenes for the claim of `metric="auto"`: things of one shape, round things, lattices, traces of a camera.

Written on 2026-11-26, when the rules had been fixed. Those under "without a match alone" hold too little to be found,
or are two scenes with something in common that is no match: an aperture, the blocks of a compression.
"""

import numpy as np
import scipy.fft
import scipy.ndimage
from truth_flat import soft
from truth_scenes import Pair, grains, other_rasters, photographs, slope

Raster = np.ndarray
Random = np.random.Generator


def turned(size: int, at: Raster, angle: float) -> tuple[Raster, Raster]:
    """Coordinates around a point, along and across a direction."""
    y, x = np.mgrid[:size, :size]
    along = (x - at[0]) * np.cos(angle) + (y - at[1]) * np.sin(angle)
    return along, (y - at[1]) * np.cos(angle) - (x - at[0]) * np.sin(angle)


def steepness(raster: Raster) -> Raster:
    """The length of the slope."""
    down, right = np.gradient(raster)
    return np.hypot(down, right)


def gears(size: int, random: Random) -> Raster:
    """Toothed wheels with holes, which look the same turned by a tooth."""
    page = np.full((size, size), 0.2)
    for _ in range(int(size**2 * random.uniform(0.0008, 0.0016))):
        along, across = turned(size, random.uniform(0, size, 2), random.uniform(0, np.pi))
        radius, teeth, shade = random.uniform(6.0, 20.0), int(random.integers(8, 24)), random.uniform(0.5, 1.0)
        away, around = np.hypot(along, across), np.arctan2(across, along)
        rim = radius * (1 + 0.12 * np.sign(np.sin(teeth * around)))
        page[away < rim] = shade
        holes = (np.abs(away - 0.6 * radius) < 0.2 * radius) & (np.cos(int(random.integers(3, 7)) * around) > 0.6)
        page[holes | (away < 0.2 * radius)] = 0.2
    return soft(page)


def dominoes(size: int, random: Random) -> Raster:
    """Stones of one size with pips, thrown on a table."""
    table = np.full((size, size), 0.35)
    for _ in range(int(size**2 * random.uniform(0.0010, 0.0018))):
        along, across = turned(size, random.uniform(0, size, 2), random.uniform(0, np.pi))
        table[(np.abs(along) < 12) & (np.abs(across) < 6)] = 1.0
        table[(np.abs(along) < 0.7) & (np.abs(across) < 5)] = 0.2
        for middle in (-6, 6):
            for u, v in random.permutation([(u, v) for u in (-3, 0, 3) for v in (-3, 0, 3)])[: random.integers(0, 7)]:
                table[np.hypot(along - middle - u, across - v) < 1.2] = 0.0
    return soft(table)


def knitting(size: int, random: Random) -> Raster:
    """Stitches in rows, one like the other, of two yarns in a pattern without order."""
    pitch = random.uniform(7.0, 11.0)
    y, x = np.mgrid[:size, :size] + random.uniform(0, pitch, (2, 1, 1))
    column, row = x / pitch, y / pitch
    lean = np.abs((column % 1.0) - 0.5)
    stitch = np.cos(2 * np.pi * (row + 0.8 * lean)) * np.cos(np.pi * (2 * lean - 0.5))
    yarn = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), 1.2, mode="wrap") > 0
    colour = yarn[(row.astype(int) + 1) % size, column.astype(int) % size]
    return (0.5 + 0.4 * colour) * (1 + 0.5 * stitch) + 0.03 * grains(size, 1.0, random)


def scales(size: int, random: Random) -> Raster:
    """A fish: scales that overlap in rows, each with its own grey."""
    pitch, side = random.uniform(9.0, 15.0), size + 60
    y, x = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for row in range(int(2 * side / pitch)):
        v = row * pitch / 2 - 20
        for column in range(int(side / pitch)):
            u = (column + 0.5 * (row % 2)) * pitch - 20
            top, left = max(int(v - pitch), 0), max(int(u - pitch), 0)
            part = slice(top, max(int(v + pitch), 0)), slice(left, max(int(u + pitch), 0))
            away = np.hypot(x[part] - u, y[part] - v)
            grey = random.uniform(0.4, 0.8)
            image[part] = np.where(away < 0.6 * pitch, grey - 0.3 * (away / pitch) ** 4, image[part])
            image[part] = np.where(np.abs(away - 0.6 * pitch) < 0.8, 0.1, image[part])
    return scipy.ndimage.gaussian_filter(image, 0.7) + 0.03 * grains(size, 1.0, random)


def parking(size: int, random: Random) -> Raster:
    """Cars from above in rows between white lines; some places are free."""
    lot = np.full((2 * size, 2 * size), 0.4)
    wide, long = int(random.integers(8, 11)), int(random.integers(16, 20))
    for top in range(0, 2 * size - long, int(1.7 * long)):
        for left in range(0, 2 * size - wide, wide):
            lot[top : top + long, left] = 0.9
            if random.random() < 0.7:
                shade, off = random.uniform(0.0, 1.0), int(random.integers(1, 4))
                lot[top + off : top + off + long - 5, left + 2 : left + wide - 1] = shade
                lot[top + off + 3 : top + off + 6, left + 2 : left + wide - 1] = 0.15
    scene = scipy.ndimage.rotate(lot, random.uniform(0, 90), reshape=False, order=1, mode="reflect")
    y, x = random.integers(size // 2 - 8, size // 2 + 8, 2)
    return scipy.ndimage.gaussian_filter(scene[y : y + size, x : x + size], 0.7) + 0.02 * grains(size, 1.0, random)


def fireworks(size: int, random: Random) -> Raster:
    """Bursts of sparks in a night sky, and the noise of counting."""
    light = np.zeros((size, size))
    for _ in range(int(random.integers(4, 12))):
        middle, reach, sparks = random.uniform(0, size, 2), random.uniform(10, 45), int(random.integers(20, 80))
        steps = np.linspace(0.2, 1.0, 60)
        for angle, far in zip(random.uniform(0, 2 * np.pi, sparks), random.uniform(0.6, 1.0, sparks), strict=True):
            x = middle[0] + reach * far * steps * np.cos(angle)
            y = middle[1] + reach * far * steps * np.sin(angle) + 0.15 * reach * steps**2
            inside = (x > 0) & (x < size - 1) & (y > 0) & (y < size - 1)
            np.add.at(light, (y[inside].astype(int), x[inside].astype(int)), steps[inside])
    light = scipy.ndimage.gaussian_filter(light, 0.8)
    return random.poisson(40 * np.minimum(light, 3.0) + 2) / 40.0


def parquet(size: int, random: Random) -> Raster:
    """Herringbone of equal staves, each with a grain of its own."""
    wide = int(random.integers(5, 8))
    y, x = np.mgrid[:size, :size] + random.integers(0, 40, (2, 1, 1))
    row, column = y // wide, x // wide
    phase = (column - row) % 8
    lying = phase < 4
    stave = np.where(lying, (column - phase) * 1009 + row, (row - (7 - phase)) * 2003 + column)
    grey = np.random.default_rng(int(random.integers(1 << 30))).uniform(0.3, 0.9, 1 << 14)[stave % (1 << 14)]
    across, along = grains(size, (0.8, 6.0), random), grains(size, (6.0, 0.8), random)
    return scipy.ndimage.gaussian_filter(grey + 0.08 * np.where(lying, across, along), 0.7)


def isobars(size: int, random: Random) -> Raster:
    """A weather chart: lines of equal pressure around highs and lows, and a coast below."""
    pressure = grains(size, size / 9, random)
    steps = pressure * random.uniform(3.0, 6.0)
    slopes = steepness(steps) + 1e-6
    away = np.abs(steps - np.round(steps)) / slopes
    land = grains(size, 9.0, random) > 0.4
    return soft(np.where(away < 1.0, 0.0, 1.0 - 0.35 * land))


def pollen(size: int, random: Random) -> Raster:
    """An electron micrograph of round grains with knobs, lit at their rims."""
    image = 0.2 + 0.05 * grains(size, 6.0, random)
    y, x = np.mgrid[:size, :size]
    for _ in range(int(size**2 * random.uniform(0.0012, 0.0025))):
        (u, v), radius = random.uniform(0, size, 2), random.uniform(5.0, 13.0)
        away = np.hypot(x - u, y - v) / radius
        inside = away < 1
        image[inside] = 0.3 + 0.6 * away[inside] ** 4 + 0.1 * grains(size, 1.2, random)[inside]
    return image + 0.03 * random.standard_normal((size, size))


# ---- without a match alone


def suns(size: int, random: Random) -> Raster:
    """A disc that is darker at its limb, with a few spots."""
    away = np.hypot(*turned(size, size / 2 + random.uniform(-0.2 * size, 0.2 * size, 2), 0.0))
    radius = size * random.uniform(0.3, 0.45)
    height = np.sqrt(np.clip(1 - (away / radius) ** 2, 0, None))
    disc = np.where(away < radius, 0.4 + 0.6 * height, 0.0)
    for _ in range(int(random.integers(0, 5))):
        spot = np.hypot(*turned(size, random.uniform(0.2 * size, 0.8 * size, 2), 0.0)) / random.uniform(2.0, 5.0)
        disc *= 1 - 0.6 * np.exp(-(spot**2))
    return scipy.ndimage.gaussian_filter(disc, 1.0) + 0.005 * random.standard_normal((size, size))


def heads(size: int, random: Random) -> Raster:
    """A slice through a head: the skull is an ellipse, what is in it is another's."""
    along, across = turned(size, size / 2 + random.uniform(-8, 8, 2), random.uniform(-0.3, 0.3))
    long, wide = size * random.uniform(0.36, 0.46), size * random.uniform(0.28, 0.36)
    away = np.hypot(along / long, across / wide)
    brain = 0.4 + 0.08 * grains(size, 5.0, random)
    image = np.where(away < 0.92, brain, np.where(away < 1.0, 1.0, 0.0))
    for side in (-1, 1):
        hole = np.hypot(along / (0.3 * long), (across - side * 0.2 * wide) / (0.12 * wide))
        image = np.where(hole < random.uniform(0.7, 1.3), 0.15, image)
    return scipy.ndimage.gaussian_filter(image, 1.0) + 0.02 * random.standard_normal((size, size))


def endoscopes(size: int, random: Random) -> Pair:
    """Other scenes in the round field of one instrument, black around it."""
    away = np.hypot(*turned(size, size / 2 + random.uniform(-5, 5, 2), 0.0))
    field = scipy.ndimage.gaussian_filter((away < random.uniform(0.4, 0.48) * size).astype(np.float64), 0.7)
    one, other = other_rasters(size, random)
    return one * field, other * field


def compressed(size: int, random: Random) -> Pair:
    """Other photographs, of whose blocks of 8 x 8 few cosines are left."""
    kept = np.add.outer(np.arange(8), np.arange(8)) < int(random.integers(2, 5))
    step = random.uniform(0.02, 0.1)

    def pressed(raster: Raster) -> Raster:
        side = min(raster.shape) // 8
        blocks = raster[: 8 * side, : 8 * side].reshape(side, 8, side, 8).swapaxes(1, 2)
        cosines = step * np.round(np.asarray(scipy.fft.dctn(blocks, axes=(2, 3), norm="ortho")) / step) * kept
        return (
            np.asarray(scipy.fft.idctn(cosines, axes=(2, 3), norm="ortho")).swapaxes(1, 2).reshape(8 * side, 8 * side)
        )

    one, other = photographs(size, random)
    return pressed(one), pressed(other)


def crossed(size: int, random: Random) -> Pair:
    """A scene of one kind above, and the negative, the slopes or another curve of one of another kind."""
    kinds = (gears, dominoes, knitting, scales, parking, fireworks, parquet, isobars, pollen)
    one, other = random.choice(len(kinds), 2, replace=False)
    first, second = kinds[one](size, random), kinds[other](size, random)
    second = (second - second.min()) / np.ptp(second)
    slopes = steepness(scipy.ndimage.gaussian_filter(second, 1.0))
    change = int(random.integers(3))
    return first, (1 - second, slopes, np.sin(2 * np.pi * second) + slope(size, random))[change]
