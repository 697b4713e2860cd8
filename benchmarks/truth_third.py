"""Scenes of the third claim of `alignment_truth.py`, half of them with areas that are exactly flat.

They have been looked at, and belong to the half "choose".
"""

import matplotlib.cbook
import numpy as np
import scipy.ndimage
from truth_flat import brushed, soft
from truth_scenes import grains

Raster = np.ndarray
Random = np.random.Generator


# ---- with flat areas


def maze(size: int, random: Random) -> Raster:
    """Walls along a grid, each there or not."""
    pitch = int(random.integers(7, 13))
    count = size // pitch + 2
    page = np.zeros((count * pitch, count * pitch))
    for row, column in np.argwhere(random.random((count, count)) < 0.5):
        page[row * pitch : row * pitch + 2, column * pitch : (column + 1) * pitch + 2] = 1.0
    for row, column in np.argwhere(random.random((count, count)) < 0.5):
        page[row * pitch : (row + 1) * pitch + 2, column * pitch : column * pitch + 2] = 1.0
    y, x = random.integers(0, pitch, 2)
    return soft(1 - page[y : y + size, x : x + size])


def chart(size: int, random: Random) -> Raster:
    """Curves of measured series over a ruled ground."""
    x = np.arange(0.0, size, 2.0)
    strokes = []
    for _ in range(int(random.integers(3, 9))):
        walk = np.cumsum(random.standard_normal(len(x))) * random.uniform(1.0, 4.0) + random.uniform(0, size)
        strokes.append(np.stack([x, walk], 1))
    pitch, start = int(random.integers(20, 40)), random.uniform(0, 20)
    ruled = [np.array([[0.0, y], [size, y]]) for y in np.arange(start, size, pitch)]
    return soft(1 - np.maximum(brushed(size, strokes, 2), 0.3 * brushed(size, ruled, 1)))


def staves(size: int, random: Random) -> Raster:
    """Sheet music: five lines again and again, and notes on them."""
    page = np.zeros((size, size))
    top = int(random.integers(0, 12))
    while top < size:
        for line in range(5):
            page[min(top + 4 * line, size - 1)] = 1.0
        x = random.uniform(4, 14)
        while x < size - 6:
            row, column = top + 2 * int(random.integers(-1, 10)), int(x)
            page[max(row - 1, 0) : row + 2, column : column + 4] = 1.0
            page[max(row - 10, 0) : max(row, 0), column + 3] = 1.0
            x += random.uniform(7, 18)
        top += 34
    return soft(1 - page)


def camouflage(size: int, random: Random) -> Raster:
    """Four colours by the signs of two smooth fields."""
    one, other = (grains(size, random.uniform(4, 9), random) > 0.2 for _ in range(2))
    return soft(random.permutation([0.0, 0.3, 0.6, 1.0])[2 * one + other])


def hatching(size: int, random: Random) -> Raster:
    """An engraving: parallel lines, as wide as what they show is dark."""
    y, x = np.mgrid[:size, :size]
    angle, pitch = random.uniform(0, np.pi), random.uniform(4.0, 7.0)
    phase = (np.cos(angle) * x + np.sin(angle) * y) / pitch % 1.0
    return soft(phase < 0.5 + 0.2 * grains(size, random.uniform(6, 14), random))


def lightning(size: int, random: Random) -> Raster:
    """Bright branches on black."""
    strokes, tips = [], [(random.uniform(0, size, 2), random.uniform(0, 2 * np.pi)) for _ in range(3)]
    while tips and len(strokes) < 60:
        at, heading = tips.pop()
        points = [at]
        for _ in range(int(random.integers(4, 12))):
            heading += 0.5 * random.standard_normal()
            points.append(points[-1] + 6 * np.array([np.cos(heading), np.sin(heading)]))
            if random.random() < 0.2:
                tips.append((points[-1], heading + random.choice([-0.8, 0.8])))
        strokes.append(np.array(points))
    return soft(brushed(size, strokes, 1))


def roads(size: int, random: Random) -> Raster:
    """A town's map: streets of two widths between blocks of two colours, and a river."""
    edges = [np.cumsum(random.uniform(12, 34, size // 10)) - 20 for _ in range(2)]
    y, x = np.mgrid[:size, :size] + 6.0 * np.stack([grains(size, 40.0, random) for _ in range(2)])
    row, column = (np.searchsorted(edge, at) for edge, at in zip(edges, (y, x), strict=True))
    park = random.random((size, size)) < 0.2
    town = np.where(park[row % size, column % size], 0.7, 0.9)
    for edge, at in zip(edges, (y, x), strict=True):
        for place in edge:
            town[np.abs(at - place) < random.choice([1.0, 2.5])] = 0.3
    town[np.abs(grains(size, 30.0, random)) < 0.05] = 0.0
    return soft(town)


# ---- without


def wood(size: int, random: Random) -> Raster:
    """Rings of a trunk that was sawn along, and fibres."""
    y, x = np.mgrid[:size, :size] / size
    bent = x + 0.15 * grains(size, (size / 3, size / 8), random) + 0.1 * y
    rings = np.sin(2 * np.pi * random.uniform(6, 14) * bent + 1.5 * grains(size, (40.0, 6.0), random))
    return rings + 0.4 * grains(size, (6.0, 0.8), random)


def leaves(size: int, random: Random) -> Raster:
    """Discs of all sizes that cover each other (the dead leaves model)."""
    y, x = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for _ in range(int(size**2 / 40)):
        (u, v), radius = random.uniform(-10, size + 10, 2), min(3.0 * (1 + random.pareto(2.0)), 40.0)
        top, left = max(int(v - radius), 0), max(int(u - radius), 0)
        part = slice(top, max(int(v + radius) + 2, 0)), slice(left, max(int(u + radius) + 2, 0))
        disc = (x[part] - u) ** 2 + (y[part] - v) ** 2 < radius**2
        image[part][disc] = random.random()
    return scipy.ndimage.gaussian_filter(image, 0.8)


def ridges(size: int, random: Random) -> Raster:
    """A finger's print: ridges of one width whose direction turns."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
    ring = np.exp(-(((frequency - 1 / random.uniform(7, 11)) / 0.012) ** 2))
    field = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) * ring).real
    return np.tanh(2 * field / field.std())


def craters(size: int, random: Random) -> Raster:
    """Bowls of all sizes under a low sun."""
    y, x = np.mgrid[:size, :size]
    height = 2.0 * grains(size, 12.0, random)
    for _ in range(int(size**2 * random.uniform(0.002, 0.006))):
        (u, v), radius = random.uniform(0, size, 2), min(2.0 * (1 + random.pareto(1.6)), 30.0)
        away = np.hypot(x - u, y - v) / radius
        height += radius * (0.25 * np.exp(-(((away - 1) / 0.25) ** 2)) - 0.4 * np.exp(-((away / 0.8) ** 4)))
    sun = random.uniform(0, 2 * np.pi)
    down, right = np.gradient(height)
    return scipy.ndimage.gaussian_filter(np.tanh(np.cos(sun) * right + np.sin(sun) * down), 0.7)


def smoke(size: int, random: Random) -> Raster:
    """Wisps: a spectrum steeper than that of clouds, folded."""
    folded = sum(
        weight * np.abs(grains(size, sigma, random)) for weight, sigma in ((1, 20.0), (0.5, 10.0), (0.25, 5.0))
    )
    return np.exp(-folded)


def snow(size: int, random: Random) -> Raster:
    """Flakes before a dark ground: streaks of one direction, near ones large and dim."""
    image = 0.2 * grains(size, 15.0, random)
    fall = random.uniform(-0.6, 0.6)
    for _ in range(int(size**2 * random.uniform(0.001, 0.004))):
        (u, v), near = random.uniform(-5, size + 5, 2), random.uniform(0.8, 3.0)
        reach = np.arange(-12, 13)
        rows, columns = int(v) + reach, int(u) + reach
        inside = np.ix_((rows >= 0) & (rows < size), (columns >= 0) & (columns < size))
        along = reach[:, None] * np.cos(fall) + reach[None, :] * np.sin(fall)
        across = reach[None, :] * np.cos(fall) - reach[:, None] * np.sin(fall)
        flake = np.exp(-((across / near) ** 2) - (along / (2 * near)) ** 2) / near
        image[np.ix_(rows[inside[0][:, 0]], columns[inside[1][0]])] += flake[inside]
    return image


def sea_floor() -> Raster:
    """Heights of the earth's surface, out of matplotlib's wheel, four samples for one."""
    with np.load(matplotlib.cbook.get_sample_data("topobathy.npz", asfileobj=False)) as file:
        heights = np.asarray(file["topo"], dtype=np.float64)
    return scipy.ndimage.gaussian_filter(scipy.ndimage.zoom(heights / 1000.0, 4), 0.8, mode="mirror")


def part_of_sea_floor(size: int, random: Random) -> Raster:
    raster = sea_floor()
    size = min(size, *raster.shape)
    y, x = (int(random.integers(0, side - size + 1)) for side in raster.shape)
    return raster[y : y + size, x : x + size]


def two_parts_of_sea_floor(size: int, random: Random) -> tuple[Raster, Raster]:
    """From the left and from the right, with a gap between them."""
    raster = sea_floor()
    height, width = raster.shape
    side = min(size, width // 2 - 8, height)
    y, z = random.integers(0, height - side + 1, 2)
    return raster[y : y + side, :side], raster[z : z + side, -side:]
