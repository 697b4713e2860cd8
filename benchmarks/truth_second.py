"""Scenes of the second claim of `alignment_truth.py`, half of them with areas that are exactly flat.

They have been looked at, and belong to the half "choose".
"""

import importlib.util
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import scipy.ndimage
from scipy.spatial import KDTree
from truth_flat import brushed, eight_bits, soft

Raster = np.ndarray
Random = np.random.Generator


# ---- with flat areas


def schematic(size: int, random: Random) -> Raster:
    """Boxes on a grid of 8 px, and wires between them that run along it."""
    cells = size // 8
    strokes, middles = [], []
    for _ in range(int(cells**2 * random.uniform(0.03, 0.06))):
        x, y = 8.0 * random.integers(0, cells, 2)
        w, h = 8.0 * random.integers(1, 4, 2)
        strokes.append(np.array([[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]]))
        middles.append((x + 8 * random.integers(0, 2), y))
    for (x, y), (u, v) in zip(middles, random.permutation(middles), strict=True):
        strokes.append(np.array([[x, y], [x, v], [u, v]]))
    return soft(1 - brushed(size, strokes, int(random.integers(1, 3))))


def contours(size: int, random: Random) -> Raster:
    """Lines of equal height."""
    field = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), random.uniform(8, 16), mode="wrap")
    steps = np.floor(random.uniform(3, 6) * field / field.std())
    line = (steps != np.roll(steps, 1, 0)) | (steps != np.roll(steps, 1, 1))
    return soft(1.0 - line)


def fields(size: int, random: Random) -> Raster:
    """Land use: the cells around random points in five colours."""
    points = random.uniform(0, size, (int(size**2 * random.uniform(0.002, 0.006)), 2))
    nearest = KDTree(points).query(np.indices((size, size)).reshape(2, -1).T)[1]
    return soft(random.choice([0.0, 0.2, 0.5, 0.7, 1.0], len(points))[nearest].reshape(size, size))


def objects(size: int, random: Random) -> Raster:
    """A mask of ellipses, of which some touch."""
    y, x = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for _ in range(int(size**2 * random.uniform(0.0008, 0.002))):
        (u, v), angle = random.uniform(0, size, 2), random.uniform(0, np.pi)
        long, wide = random.uniform(3.0, 12.0, 2)
        along = (x - u) * np.cos(angle) + (y - v) * np.sin(angle)
        across = (y - v) * np.cos(angle) - (x - u) * np.sin(angle)
        image[(along / long) ** 2 + (across / wide) ** 2 < 1] = 1.0
    return image


def handwriting(size: int, random: Random) -> Raster:
    """Lines of loops on white paper."""
    strokes = []
    for top in range(8, size, 18):
        x = random.uniform(0, 6)
        while x < size:
            count = int(random.integers(12, 40))
            along = x + np.cumsum(random.uniform(0.2, 2.2, count))
            height = 5 * np.sin(np.cumsum(random.uniform(0.4, 1.4, count))) * random.uniform(0.4, 1, count)
            lean = along - 0.4 * height
            strokes.append(np.stack([lean, top + height], 1))
            x = along[-1] + random.uniform(5, 10)
    return soft(1 - brushed(size, strokes, 1))


def city(size: int, random: Random) -> Raster:
    """Lit streets from space: bright lines of lamps that meet, on black."""
    centre = random.uniform(0.2 * size, 0.8 * size, 2)
    light = np.zeros((size, size))
    for _ in range(int(random.integers(5, 14))):
        at, heading = centre.copy(), random.uniform(0, 2 * np.pi)
        for _ in range(int(random.integers(6, 30))):
            heading += 0.3 * random.standard_normal()
            at = at + random.uniform(3, 7) * np.array([np.cos(heading), np.sin(heading)])
            x, y = at.astype(int)
            if 0 <= x < size and 0 <= y < size:
                light[y, x] += random.uniform(2, 8)
    return eight_bits(np.minimum(scipy.ndimage.gaussian_filter(light, 1.0), 1.0))


def modules(size: int, random: Random) -> Raster:
    """A printed code: black and white squares on a grid."""
    side = int(random.integers(4, 8))
    count = size // side + 2
    code = np.kron(random.integers(0, 2, (count, count)), np.ones((side, side)))
    y, x = random.integers(0, side, 2)
    return soft(code[y : y + size, x : x + size])


# ---- without


def cloth(size: int, random: Random) -> Raster:
    """A weave of threads of their own shades."""
    y, x = np.mgrid[: size + 16, : size + 16] + random.uniform(0, 8, (2, 1, 1))
    pitch = random.uniform(5.0, 9.0)
    over = np.sin(np.pi * x / pitch) * np.sin(np.pi * y / pitch)
    warp, weft = (scipy.ndimage.gaussian_filter1d(random.standard_normal(size + 16), pitch / 3) for _ in range(2))
    shade = np.where(over > 0, warp[None, :], weft[:, None])
    image = np.abs(over) + 0.6 * shade + 0.2 * random.standard_normal(shade.shape)
    return scipy.ndimage.gaussian_filter(image, 1.0)[8:-8, 8:-8]


def waves(size: int, random: Random) -> Raster:
    """A sea: waves of like length around one direction."""
    y, x = np.mgrid[:size, :size]
    heading, image = random.uniform(0, 2 * np.pi), np.zeros((size, size))
    for _ in range(40):
        angle, length = heading + 0.35 * random.standard_normal(), random.uniform(8.0, 25.0)
        phase = 2 * np.pi * ((np.cos(angle) * x + np.sin(angle) * y) / length + random.random())
        image += np.sqrt(length) * np.sin(phase)
    return np.exp(0.6 * image / image.std())


def cracks(size: int, random: Random) -> Raster:
    """Dry mud: dark joints between plates, on a rough ground."""
    points = random.uniform(-10, size + 10, (int(size**2 * random.uniform(0.002, 0.008)), 2))
    near = KDTree(points).query(np.indices((size, size)).reshape(2, -1).T, k=2)[0]
    joint = np.exp(-((near[:, 1] - near[:, 0]).reshape(size, size) ** 2) / 4)
    rough = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), 1.0)
    return 1 - 0.7 * joint + 0.3 * rough


def cluster(size: int, random: Random) -> Raster:
    """A globular cluster: stars that crowd around a middle."""
    count, image = int(random.integers(100, 600)), np.zeros((size, size))
    middle, spread = random.uniform(0.3 * size, 0.7 * size, 2), size * random.uniform(0.1, 0.3)
    at = (middle + spread * random.standard_t(3, (count, 2))).astype(int)
    bright = random.pareto(1.5, count).clip(0, 30)
    for (x, y), light in zip(at, bright, strict=True):
        if 0 <= x < size and 0 <= y < size:
            image[y, x] += light
    return scipy.ndimage.gaussian_filter(image, 1.1) + 0.01 * random.standard_normal((size, size))


def shells(size: int, random: Random) -> Raster:
    """Membranes under a fluorescence microscope: rings of like size, and the noise of counting."""
    y, x = np.mgrid[:size, :size]
    light = np.full((size, size), 0.05)
    for _ in range(int(size**2 * random.uniform(0.001, 0.002))):
        (u, v), radius = random.uniform(0, size, 2), random.uniform(6.0, 9.0)
        light += np.exp(-((np.hypot(x - u, y - v) - radius) ** 2) / 3)
    return random.poisson(80 * light) / 80.0


def fog(size: int, random: Random) -> Raster:
    """Headlights in fog: few lights with wide halos, and a sensor's noise."""
    image = np.zeros((size, size))
    y, x = np.mgrid[:size, :size]
    for _ in range(int(random.integers(4, 16))):
        u, v = random.uniform(0, size, 2)
        away = np.hypot(x - u, y - v)
        image += np.exp(-away / random.uniform(8.0, 20.0)) + 2 * np.exp(-((away / 2) ** 2))
    return np.minimum(image, 2.0) + 0.01 * random.standard_normal((size, size))


def villa() -> Raster:
    """A photograph out of gtsam's wheel."""
    found = importlib.util.find_spec("gtsam")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("The photograph is in gtsam: pip install 'mslsq[benchmark]'.")
    image = iio.imread(Path(found.origin).parent / "Data/Balbianello/BalbianelloMedium-3.jpg") / 255.0
    return scipy.ndimage.gaussian_filter(image @ np.array([0.2126, 0.7152, 0.0722]), 0.8, mode="mirror")


def part_of_villa(size: int, random: Random) -> Raster:
    raster = villa()
    y, x = (int(random.integers(0, side - size + 1)) for side in raster.shape)
    return raster[y : y + size, x : x + size]


def two_parts_of_villa(size: int, random: Random) -> tuple[Raster, Raster]:
    """Its left and its right, the one a negative every other time."""
    raster = villa()
    y, z = (int(random.integers(0, raster.shape[0] - size + 1)) for _ in range(2))
    one, other = raster[y : y + size, :size], raster[z : z + size, -size:]
    return (one, other) if random.integers(2) else (one, 1 - other)
