"""Kinds of pairs without a match that have a layout in common, or a part of the picture: two sheets of one form.

Written on 2026-11-29, before any rule was run on them, and looked at since: they belong to "choose".
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.ndimage
import skimage.data
from truth_forms import around_the_middle, soft
from truth_fourth import turned
from truth_ninth import image_at
from truth_scenes import Pair, grains, other_rasters, photographs
from truth_shared import signs

Raster = np.ndarray
Random = np.random.Generator


def written(page: Raster, line: Raster, top: int, left: int, shade: float = 0.1) -> None:
    """Ink on a page, as far as it fits."""
    part = page[top : top + line.shape[0], left : left + line.shape[1]]
    part[line[: part.shape[0], : part.shape[1]] > 0] = shade


def shifted(page: Raster, random: Random, by: int = 4) -> Raster:
    """As it lay in a scanner: moved by some pixels."""
    y, x = random.integers(-by, by + 1, 2)
    return np.roll(page, (int(y), int(x)), (0, 1))


def tables(size: int, random: Random) -> Pair:
    """Two sheets of one form: the same rules and the same words at their head, other entries."""
    rows, columns, head = int(random.integers(5, 8)), int(random.integers(2, 4)), signs(random, 10, 9)
    words = [signs(random, int(random.integers(2, 4)), 9) for _ in range(columns)]
    top, left, high, wide = 16, 4, (size - 24) / rows, (size - 10) / columns

    def sheet() -> Raster:
        page = np.ones((size, size))
        written(page, head, 4, 8)
        for row in range(rows + 1):
            page[int(top + row * high), left : left + int(columns * wide)] = 0.3
        for column in range(columns + 1):
            page[top : top + int(rows * high), min(int(left + column * wide), size - 1)] = 0.3
        for column in range(columns):
            written(page, words[column], top + 3, int(left + column * wide) + 3)
            for row in range(1, rows):
                if random.random() < 0.8:
                    entry = signs(random, int(random.integers(1, max(2, int(wide) // 9))), 9)
                    written(page, entry, int(top + row * high) + 3, int(left + column * wide) + 3)
        return soft(shifted(page, random), random)

    return sheet(), sheet()


def storeys(size: int, random: Random) -> Pair:
    """Two floors of one building: outer walls, columns and the stairs lie above each other, the rooms do not."""
    low, far = (int(n) for n in random.integers(6, 14, 2)), (int(n) for n in size - random.integers(6, 14, 2))
    (top, left), (bottom, right) = low, far
    stairs = random.integers([top + 4, left + 4], [bottom - 26, right - 20])
    pitch = int(random.integers(24, 36))

    def floor() -> Raster:
        page = np.full((size, size), 0.6)
        page[top:bottom, left:right] = 1.0
        for _ in range(int(random.integers(5, 10))):
            at, long = random.integers([top, left], [bottom, right]), int(random.integers(15, 60))
            if random.random() < 0.5:
                page[at[0] : at[0] + 2, at[1] : min(at[1] + long, right)] = 0.0
            else:
                page[at[0] : min(at[0] + long, bottom), at[1] : at[1] + 2] = 0.0
        for v in range(top, bottom, pitch):
            for u in range(left, right, pitch):
                page[v : v + 3, u : u + 3] = 0.0
        page[top : top + 2, left:right] = page[bottom - 2 : bottom, left:right] = 0.0
        page[top:bottom, left : left + 2] = page[top:bottom, right - 2 : right] = 0.0
        v, u = stairs
        page[v : v + 24, u : u + 16] = 1.0
        page[v : v + 24 : 3, u : u + 16] = page[v : v + 24, [u, u + 15]] = 0.2
        return soft(shifted(page, random), random)

    return floor(), floor()


def codes(size: int, random: Random) -> Pair:
    """Two square codes of one version: the finder patterns in three corners and the timing are alike, the data not."""
    side = int(random.choice([21, 25, 29]))
    module, places = int((size - 12) // side), [(0, 0), (0, side - 7), (side - 7, 0)]

    def code() -> Raster:
        bits = (random.random((side, side)) < 0.5).astype(np.float64)
        bits[6, :] = bits[:, 6] = np.arange(side) % 2
        for v, u in places:
            bits[max(v - 1, 0) : v + 8, max(u - 1, 0) : u + 8] = 1
            bits[v : v + 7, u : u + 7] = 0
            bits[v + 1 : v + 6, u + 1 : u + 6] = 1
            bits[v + 2 : v + 5, u + 2 : u + 5] = 0
        page, first = np.ones((size, size)), random.integers(2, size - module * side - 1, 2)
        page[first[0] : first[0] + module * side, first[1] : first[1] + module * side] = np.kron(
            bits, np.ones((module, module))
        )
        return soft(0.1 + 0.8 * page + 0.05 * grains(size, 10.0, random), random)

    return code(), code()


def chests(size: int, random: Random) -> Pair:
    """X-rays of two chests: lungs, spine, ribs and a heart of about the same shape, vessels of each one's own."""
    count, bow = int(random.integers(6, 9)), random.uniform(0.15, 0.3)

    def chest() -> Raster:
        at = around_the_middle(size, random)
        x, y = turned(size, at, random.uniform(-0.05, 0.05))
        x, y = x / size * random.uniform(0.95, 1.05), y / size * random.uniform(0.95, 1.05)
        image = 0.75 - 0.1 * y
        for side in (-1, 1):
            lung = np.hypot((x - 0.21 * side) / 0.17, (y - 0.02) / 0.4)
            image -= 0.45 / (1 + np.exp(12 * (lung - 1)))
        for rib in np.linspace(-0.42, 0.42, count):
            curve = rib + bow * (2 * x) ** 2 - 0.3 * np.abs(x) + random.normal(0, 0.004)
            image += 0.08 * np.exp(-(((y - curve) / 0.014) ** 2))
        image += 0.3 * np.exp(-((x / 0.05) ** 2)) * (1 + 0.15 * np.sin(2 * np.pi * y / 0.07))
        heart = np.hypot((x - 0.06) / random.uniform(0.12, 0.16), (y - 0.14) / random.uniform(0.13, 0.17))
        image += 0.3 / (1 + np.exp(14 * (heart - 1)))
        image += 0.04 * np.abs(grains(size, 1.2, random)) * grains(size, 4.0, random)
        return soft(image, random, 0.015)

    return chest(), chest()


def slices(size: int, random: Random) -> Pair:
    """Two depths of one body, far enough apart that the tissue is another: the outline and some bones run through."""
    at, (high, wide) = around_the_middle(size, random), size * random.uniform(0.36, 0.46, 2)
    bones = [(random.uniform(-0.6, 0.6, 2), random.uniform(0.06, 0.14)) for _ in range(int(random.integers(1, 4)))]

    def slice_() -> Raster:
        grow = random.uniform(0.98, 1.02)
        x, y = turned(size, at, 0.0)
        x, y = x / (wide * grow), y / (high * grow)
        away = np.hypot(x, y)
        tissue = np.digitize(grains(size, 5.0, random), [-0.7, 0.3, 1.0]) / 3
        image = np.where(away < 0.92, 0.25 + 0.35 * tissue, 0.6)
        for (u, v), radius in bones:
            image[np.hypot(x - u, y - v) < radius] = 1.0
        return soft(np.where(away < 1, image, 0.02), random, 0.02)

    return slice_(), slice_()


def dashboards(size: int, random: Random) -> Pair:
    """Two roads from one car: the bonnet, a mirror and a sticker lie at the same pixels, with a little shake."""
    fields = other_rasters(size, random) if random.random() < 0.5 else photographs(size, random)
    high = random.uniform(0.12, 0.3) * size
    y, x = np.mgrid[:size, :size]
    bonnet = y > size - high + random.uniform(0.2, 0.6) * ((x - size / 2) / (size / 2)) ** 2 * high
    shine = 0.25 + 0.1 * np.cos(x / random.uniform(6, 15)) + 0.05 * grains(size, 4.0, random)
    u, v, (a, b) = random.uniform(0.2, 0.8) * size, random.uniform(0.05, 0.12) * size, random.uniform(8, 18, 2)
    mirror = np.hypot((x - u) / a, (y - v) / (0.5 * b)) < 1
    sticker = image_at(signs(random, int(random.integers(3, 6)), 9), size)

    def seen(image: Raster) -> Raster:
        square = image_at(image, size)
        square = np.where(bonnet, shine + 0.15 * np.roll(square[::-1], int(high), 0), square)
        square = np.where(mirror, 0.1, square)
        square[size - 14 : size - 5, 4:60] -= 0.2 * sticker[:9, :56]
        return soft(shifted(square, random, 1)[: image.shape[0], : image.shape[1]], random)

    return seen(fields[0]), seen(fields[1])


def calendars(size: int, random: Random) -> Pair:
    """Two months of one calendar: the grid, the names of the days and a border are alike, pictures and entries not."""
    rows, columns, days = 5, 7, signs(random, 7, 9)
    wide, pictures = (size - 8) / columns, photographs(size, random)
    head = int(size * random.uniform(0.3, 0.45))
    high = (size - head - 14) / rows

    def month(picture: Raster) -> Raster:
        page = np.ones((size, size))
        page[4:head, 4 : size - 4] = image_at(picture, size)[4:head, 4 : size - 4]
        for column in range(columns):
            written(page, days[:, 8 * column : 8 * column + 8], head + 2, int(4 + column * wide) + 3)
        first = int(random.integers(7))
        for day in range(31):
            row, column = divmod(first + day, columns)
            if row < rows and random.random() < 0.9:
                digits = signs(random, 1, 9)
                written(page, digits, int(head + 13 + row * high), int(4 + column * wide) + 4, 0.3)
        page[[2, size - 3], 2 : size - 2] = page[2 : size - 2, [2, size - 3]] = 0.2
        for column in range(1, columns):
            page[head + 2 : size - 3, int(4 + column * wide)] = 0.7
        return soft(shifted(page, random), random)

    return month(pictures[0]), month(pictures[1])


def plates(size: int, random: Random) -> Pair:
    """Two number plates of one land before two cars: the border, the arms and the bolts are alike, the signs not."""
    high, wide, cars = size * random.uniform(0.16, 0.22), size * random.uniform(0.4, 0.46), other_rasters(size, random)
    arms = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), 2.0) > 0.02

    def plate(car: Raster) -> Raster:
        image = image_at(0.15 + 0.5 * car, size)
        at = around_the_middle(size, random, 0.08)
        along, across = turned(size, at, random.uniform(-0.03, 0.03))
        beyond = np.maximum(np.abs(along) - wide, np.abs(across) - high)
        image = np.where(beyond < 0, 0.95, image)
        image[np.abs(beyond + 2.5) < 0.9] = 0.1
        rows, columns = (np.clip(part + size / 2, 0, size - 1).astype(int) for part in (across, along))
        shield = np.hypot(along + 0.7 * wide, across) < 0.55 * high
        image = np.where(shield, np.where(arms[rows, columns], 0.2, 0.7), image)
        for side in (-1, 1):
            image[np.hypot(along - side * 0.3 * wide, across - 0.75 * high) < 1.6] = 0.2
        line = image_at(signs(random, 6, 18), size)
        inside = (along > -0.45 * wide) & (along < 0.9 * wide) & (np.abs(across) < 9)
        letters = line[np.clip(across + 9, 0, 17).astype(int), np.clip(along + 0.45 * wide, 0, size - 1).astype(int)]
        image = np.where(inside & (letters > 0), 0.05, image)
        return soft(image, random)

    return plate(cars[0]), plate(cars[1])


def faces(size: int, random: Random) -> Pair:
    """Faces of two people (Labeled Faces in the Wild, as scikit-image ships a part), enlarged from 25 pixels."""
    portraits = np.load(Path(skimage.data.__file__).parent / "lfw_subset.npy")[:100]
    chosen = random.choice(100, 2, replace=False)
    one, other = (np.asarray(scipy.ndimage.zoom(portraits[k].astype(np.float64), size / 25, order=3)) for k in chosen)
    return soft(one, random), soft(other, random)


LAYOUTS: dict[str, Callable[[int, Random], Pair]] = {
    "tables": tables,
    "storeys": storeys,
    "codes": codes,
    "chests": chests,
    "slices": slices,
    "dashboards": dashboards,
    "calendars": calendars,
    "plates": plates,
    "faces": faces,
}
