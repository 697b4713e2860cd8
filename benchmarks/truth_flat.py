"""Scenes with areas that are exactly flat, as drawings, plans, masks, maps of classes, pages and night pictures have.

Those of pairs with a match go through `eight_bits` or `two_values` after they are sampled, so that what is flat in the
scene is flat, to the bit, in both maps.
"""

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import scipy.ndimage
import skimage.data

Raster = np.ndarray
Random = np.random.Generator


def eight_bits(raster: Raster) -> Raster:
    """Rounded to 256 steps of its range."""
    low = raster.min()
    return np.round(255 * (raster - low) / max(np.ptp(raster), 1e-12)) / 255


def two_values(raster: Raster) -> Raster:
    """A mask: above the middle of its range or not."""
    return (raster > 0.5 * (raster.min() + raster.max())).astype(np.float64)


def soft(raster: Raster) -> Raster:
    """A scanner's or a renderer's edges."""
    return eight_bits(scipy.ndimage.gaussian_filter(raster.astype(np.float64), 0.7))


def brushed(size: int, strokes: list[Raster], width: int) -> Raster:
    """Lines through points (x, y), white on black."""
    page = np.zeros((size, size))
    for stroke in strokes:
        steps = np.linalg.norm(np.diff(stroke, axis=0), axis=1)
        for (x, y), (u, v), long in zip(stroke[:-1], stroke[1:], steps, strict=True):
            along = np.linspace(0, 1, 2 * int(np.ceil(long)) + 2)
            column, row = np.round(x + along * (u - x)).astype(int), np.round(y + along * (v - y)).astype(int)
            on = (column >= 0) & (column < size) & (row >= 0) & (row < size)
            page[row[on], column[on]] = 1.0
    return scipy.ndimage.maximum_filter(page, width)


def drawing(size: int, random: Random) -> Raster:
    """Straight lines and circles, dark on paper."""
    strokes = [random.uniform(0, size, (2, 2)) for _ in range(int(random.integers(4, 14)))]
    around = np.linspace(0, 2 * np.pi, 60)[:, None] + np.array([0, np.pi / 2])
    for _ in range(int(random.integers(3, 10))):
        strokes.append(random.uniform(0, size, 2) + random.uniform(4, size / 4) * np.sin(around))
    return soft(1 - brushed(size, strokes, 2))


def mask(size: int, random: Random) -> Raster:
    """Where a smooth field is high."""
    field = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), random.uniform(4, 10), mode="wrap")
    return (field > np.quantile(field, random.uniform(0.4, 0.85))).astype(np.float64)


def classes(size: int, random: Random) -> Raster:
    """A smooth field in four classes, whose numbers have no order."""
    field = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), random.uniform(3, 8), mode="wrap")
    colours = random.permutation([0.0, 0.35, 0.65, 1.0])
    return soft(colours[np.digitize(field, np.quantile(field, (0.25, 0.5, 0.75)))])


def page(size: int, random: Random) -> Raster:
    """A part of a scanned page, its paper made white."""
    return _part(sheet(), size, random)


def two_pages(size: int, random: Random) -> tuple[Raster, Raster]:
    """The left and the right of it."""
    whole = sheet()
    middle = whole.shape[1] // 2
    return _part(whole[:, : middle - 4], size, random), _part(whole[:, middle + 4 :], size, random)


def sheet() -> Raster:
    """The page, its paper white."""
    raster = iio.imread(Path(skimage.data.__file__).parent / "text.png").astype(np.float64) / 255
    return np.minimum(raster / scipy.ndimage.percentile_filter(raster, 80, 25), 0.85)


def _part(raster: Raster, size: int, random: Random) -> Raster:
    """A square of it, and beyond its border its mirror image."""
    height, width = raster.shape
    raster = np.pad(raster, ((0, max(0, size - height)), (0, max(0, size - width))), mode="reflect")
    y, x = (int(random.integers(0, side - size + 1)) for side in raster.shape)
    return soft(raster[y : y + size, x : x + size])


def dark_street(size: int, random: Random) -> Raster:
    """Lamps on black."""
    light = np.zeros((size, size))
    count = int(size**2 * random.uniform(0.0005, 0.002))
    y, x = random.integers(0, size, (2, count))
    light[y, x] = random.uniform(20.0, 100.0, count)
    return eight_bits(np.minimum(scipy.ndimage.gaussian_filter(light, random.uniform(1.0, 2.0)), 1.0))
