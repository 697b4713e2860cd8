"""Scenes and pairs of scenes for `alignment_truth.py` that thresholds were chosen on (`truth_kinds.py` lists them)."""

from collections.abc import Callable
from pathlib import Path

import imageio.v3 as iio
import matplotlib.cbook
import numpy as np
import scipy.ndimage
import skimage.data

from mslsq.alignment.synthetic import NAMES, base_raster

Raster = np.ndarray
Random = np.random.Generator
Pair = tuple[Raster, Raster]


def normalised(raster: Raster) -> Raster:
    return (raster - raster.min()) / np.ptp(raster)


def raster_of(name: str) -> Raster:
    return normalised(scipy.ndimage.gaussian_filter(base_raster(name), 0.8, mode="mirror"))


def crop(raster: Raster, size: int, random: Random) -> Raster:
    height, width = raster.shape
    y, x = random.integers(0, height - size + 1), random.integers(0, width - size + 1)
    return raster[y : y + size, x : x + size]


def grains(size: int, sigma: float | tuple[float, float], random: Random) -> Raster:
    """White noise under a Gaussian of that width (down, across), standardised."""
    field = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), sigma, mode="wrap")
    return (field - field.mean()) / field.std()


def slope(size: int, random: Random) -> Raster:
    """A plane of random direction with a gentle bend, 0 to 1."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    a, b, c, d = random.standard_normal(4)
    return normalised(a * x + b * y + 0.3 * (c * x * y + d * x**2))


def spots(
    size: int, random: Random, count: int, widths: tuple[float, float], brightness: Callable[[int], Raster]
) -> Raster:
    """Gaussian spots at random places."""
    image, margin = np.zeros((size, size)), 6.0
    at = random.uniform(-margin, size + margin, (count, 2))
    for (x, y), width, bright in zip(at, random.uniform(*widths, count), brightness(count), strict=True):
        reach = int(np.ceil(4 * width))
        left, top = max(int(x) - reach, 0), max(int(y) - reach, 0)
        right, bottom = min(int(x) + reach + 1, size), min(int(y) + reach + 1, size)
        if left < right and top < bottom:
            v, u = np.mgrid[top:bottom, left:right]
            image[top:bottom, left:right] += bright * np.exp(-((u - x) ** 2 + (v - y) ** 2) / (2 * width**2))
    return image


def stars(size: int, random: Random) -> Raster:
    """A field of stars: few bright ones, many faint ones, on a sky that glows."""
    count = int(size**2 * random.uniform(0.002, 0.006))
    field = spots(size, random, count, (1.0, 1.4), lambda n: 0.05 * random.pareto(1.2, n).clip(0, 40))
    return field + 0.3 * slope(size, random)


def cells(size: int, random: Random) -> Raster:
    """Fluorescence: blobs of one size, and the noise of counting."""
    count = int(size**2 * random.uniform(0.001, 0.003))
    light = spots(size, random, count, (3.0, 6.0), lambda n: random.uniform(0.5, 1.0, n)) + 0.1
    return random.poisson(100 * light) / 100.0


def night(size: int, random: Random) -> Raster:
    """Lamps that saturate, their halos, and a dark street."""
    lamps = spots(size, random, int(random.integers(6, 30)), (1.0, 3.0), lambda n: random.uniform(1.0, 5.0, n))
    glow = scipy.ndimage.gaussian_filter(lamps, 12.0)
    return np.minimum(lamps + 2.0 * glow + 0.05 * slope(size, random), 1.0)


def tiles(size: int, random: Random) -> Raster:
    """A facade: one window again and again, each a little different."""
    period = int(random.integers(14, 30))
    window = scipy.ndimage.gaussian_filter(random.standard_normal((period, period)), 2.0, mode="wrap")
    count = size // period + 2
    wall = np.tile(window / window.std(), (count, count))
    y, x = random.integers(0, period, 2)
    return wall[y : y + size, x : x + size] + 0.3 * grains(size, 2.0, random)


def other_rasters(size: int, random: Random) -> Pair:
    one, other = random.choice(NAMES, 2, replace=False)
    return crop(raster_of(one), size, random), crop(raster_of(other), size, random)


def inverted_rasters(size: int, random: Random) -> Pair:
    one, other = other_rasters(size, random)
    return one, 1 - other


def no_overlap(size: int, random: Random) -> Pair:
    """Two ends of one raster."""
    raster = raster_of(str(random.choice([name for name in NAMES if name != "elevation"])))
    height, width = raster.shape
    side = min(size, min(height, width) // 2 - 8)
    if random.integers(2):
        return raster[:side, :side], raster[-side:, -side:]
    return raster[:side, -side:], raster[-side:, :side]


def two_of(scene: Callable[[int, Random], Raster]) -> Callable[[int, Random], Pair]:
    return lambda size, random: (scene(size, random), scene(size, random))


def one_sky(size: int, random: Random) -> Pair:
    """Other scenes under the same gradient, which most of their energy is in."""
    sky = 3.0 * slope(size, random)
    one, other = other_rasters(size, random)
    return one + sky, other + sky


def one_camera(size: int, random: Random) -> Pair:
    """Other scenes, each darker towards the corners, with the same rows of a sensor in them."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    dark, rows = 1 - 0.5 * (x**2 + y**2), 0.02 * random.standard_normal((size, 1))
    one, other = other_rasters(size, random)
    return one * dark + rows, other * dark + rows


# ---- kinds of an earlier claim, which have been looked at


def photograph(name: str) -> Raster:
    """A picture of scikit-image's or matplotlib's wheel that `mslsq.alignment.synthetic` does not use."""
    if name == "portrait":
        image = iio.imread(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    else:
        image = iio.imread(Path(skimage.data.__file__).parent / PHOTOGRAPHS[name])
    image = image.astype(np.float64) / 255.0
    grey = image if image.ndim == 2 else image[..., :3] @ np.array([0.2126, 0.7152, 0.0722])
    return normalised(scipy.ndimage.gaussian_filter(grey, 0.8, mode="mirror"))


PHOTOGRAPHS = {
    "cat": "chelsea.png",
    "rocket": "rocket.jpg",
    "tissue": "ihc.png",
    "motorcycle": "motorcycle_left.png",
    "coins": "coins.png",
    "cell": "cell.png",
    "clock": "clock_motion.png",
}
OTHERS = (*PHOTOGRAPHS, "portrait")
LARGE = tuple(name for name in OTHERS if name not in ("cat", "clock", "coins"))


def photographs(size: int, random: Random) -> Pair:
    one, other = random.choice(OTHERS, 2, replace=False)
    return crop(photograph(one), size, random), crop(photograph(other), size, random)


def negatives(size: int, random: Random) -> Pair:
    """A photograph, and the negative of another."""
    one, other = photographs(size, random)
    return one, 1 - other


def apart(size: int, random: Random) -> Pair:
    """Two parts of one photograph with a gap between them."""
    raster = photograph(str(random.choice([name for name in OTHERS if name != "coins"])))
    height, width = raster.shape
    side = min(size, max(height, width) // 2 - 8, min(height, width))
    y, z = random.integers(0, min(height, width) - side + 1, 2)
    if width >= height:
        return raster[y : y + side, :side], raster[z : z + side, -side:]
    return raster[:side, y : y + side], raster[-side:, z : z + side]


def terraces(size: int, random: Random) -> Raster:
    """A bent slope in whole steps, as 8 bits of a deep range leave it."""
    steps = int(random.integers(8, 40))
    return np.round(steps * slope(size, random)) / steps


def speckle(size: int, random: Random) -> Raster:
    """Radar: a smooth scene that noise multiplies."""
    return np.exp(0.2 * grains(size, 10.0, random)) * random.gamma(4.0, 0.25, (size, size))


def fractal(size: int, random: Random) -> Raster:
    """Terrain: a spectrum that falls with the square of the frequency."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(2 * size), np.fft.fftfreq(2 * size)))
    frequency[0, 0] = np.inf
    noise = np.fft.fft2(random.standard_normal((2 * size, 2 * size)))
    return normalised(np.fft.ifft2(noise / frequency**2).real[:size, :size])


def print_(size: int, random: Random) -> Raster:
    """A page: lines of signs out of one alphabet, dark on light."""
    alphabet = scipy.ndimage.gaussian_filter(np.random.default_rng(26).random((26, 9, 6)), (0, 0.8, 0.8)) > 0.5
    page = np.zeros((size + 32, size + 32))
    for y in range(2, size + 18, 14):
        for x in range(2, size + 22, 8):
            if random.random() > 0.17:
                page[y : y + 9, x : x + 6] = alphabet[random.integers(26)]
    y, x = random.integers(0, 16, 2)
    return 1 - scipy.ndimage.gaussian_filter(page, 0.7)[y : y + size, x : x + size]


def tower(size: int, random: Random, pitch: int = 16, width: int = 6) -> Raster:
    """A house at night: some of the windows of a regular front are lit."""
    count = size // pitch + 2
    front = np.zeros((count * pitch, count * pitch))
    for row, column in np.argwhere(random.random((count, count)) < random.uniform(0.2, 0.6)):
        light = random.uniform(0.6, 1.0)
        front[row * pitch : row * pitch + width + 2, column * pitch : column * pitch + width] = light
    y, x = random.integers(0, pitch, 2)
    return scipy.ndimage.gaussian_filter(front, 0.8)[y : y + size, x : x + size] + 0.02 * slope(size, random)


def towers(size: int, random: Random) -> Pair:
    """Two houses with the same windows."""
    pitch, width = int(random.integers(12, 20)), int(random.integers(4, 8))
    return tower(size, random, pitch, width), tower(size, random, pitch, width)


def galaxies(size: int, random: Random) -> Raster:
    """A deep field: elongated blobs of all sizes, some stars."""
    image = 0.3 * stars(size, random)
    y, x = np.mgrid[:size, :size]
    for _ in range(int(size**2 * random.uniform(0.0008, 0.0025))):
        (u, v), angle, flat = random.uniform(0, size, 2), random.uniform(0, np.pi), random.uniform(0.3, 1.0)
        along = (x - u) * np.cos(angle) + (y - v) * np.sin(angle)
        across = (y - v) * np.cos(angle) - (x - u) * np.sin(angle)
        radius = np.sqrt(along**2 + (across / flat) ** 2) / random.uniform(1.0, 4.0)
        image += 0.1 * min(1 + random.pareto(1.5), 20.0) * np.exp(-radius)
    return image


def filaments(size: int, random: Random) -> Raster:
    """Fluorescent threads, and the noise of counting."""
    image = np.zeros((size, size))
    for _ in range(int(random.integers(8, 30))):
        heading, at = random.uniform(0, 2 * np.pi), random.uniform(0, size, 2)
        for _ in range(4 * size):
            heading += 0.08 * random.standard_normal()
            at = at + 0.5 * np.array([np.cos(heading), np.sin(heading)])
            row, column = at.astype(int)
            if 0 <= row < size and 0 <= column < size:
                image[row, column] += 1.0
    light = scipy.ndimage.gaussian_filter(image, 1.5)
    return random.poisson(60 * (light / light.max() + 0.05)) / 60.0


def plan(size: int, random: Random) -> Raster:
    """A floor plan: thin dark walls between rooms, doors, free space, and unknown cells around."""
    free = np.full((size, size), 0.5)
    outer = random.integers(4, size // 4, 4)
    top, left, bottom, right = outer[0], outer[1], size - outer[2], size - outer[3]
    free[top:bottom, left:right] = 1.0

    def divide(top: int, left: int, bottom: int, right: int) -> None:
        height, width = bottom - top, right - left
        if max(height, width) < random.integers(20, 60):
            return
        if height > width:
            cut = int(random.integers(top + height // 4, bottom - height // 4 + 1))
            door = int(random.integers(left, max(right - 6, left + 1)))
            free[cut : cut + 2, left:right] = 0.0
            free[cut : cut + 2, door : door + 6] = 1.0
            divide(top, left, cut, right)
            divide(cut, left, bottom, right)
        else:
            cut = int(random.integers(left + width // 4, right - width // 4 + 1))
            door = int(random.integers(top, max(bottom - 6, top + 1)))
            free[top:bottom, cut : cut + 2] = 0.0
            free[door : door + 6, cut : cut + 2] = 1.0
            divide(top, left, bottom, cut)
            divide(top, cut, bottom, right)

    divide(*(int(n) for n in (top, left, bottom, right)))
    return scipy.ndimage.gaussian_filter(free, 0.7)
