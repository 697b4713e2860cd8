"""Kinds of pairs that the network of `metric="learned"` was not trained on, for `metrics.py --kinds`.

In training (`scripts/training/modalities.py`) two modalities are two curves of one picture, or two values of a region.
Here they are two bands, two lights on one relief, a picture and a drawing of it, a picture and a map of classes, and
negatives under noise that multiplies or is half as strong as the signal. Scenes are of one half, as in `metric_pairs`.
"""

import numpy as np
import scipy.ndimage
from metric_pairs import COLOURS, REAL, Kind, Random, Raster, half_of, negative, raster
from truth_scenes import fractal, normalised

from mslsq.alignment.learned.appearance import other_band
from mslsq.alignment.learned.pairs import bundled

Scene = tuple[str, Raster, Raster]


def picture(half: str, random: Random) -> tuple[str, Raster]:
    name = str(random.choice([name for name in REAL if half_of(name) == half]))
    return name, raster(name)


def bands(half: str, random: Random) -> Scene:
    """Two bands of a picture, of which one is partly taken away from the other."""
    name = str(random.choice([name for name in COLOURS if half_of(name) == half]))
    one, other = other_band(bundled(name), random)
    return name, normalised(one), normalised(other)


def relief(half: str, random: Random) -> Scene:
    """A terrain, or a picture taken for one, with the sun in two places 60 to 180 degrees apart."""
    name, heights = picture(half, random)
    if half == "claim" and random.random() < 0.5:
        name, heights = "terrain", fractal(320, random)
    down, right = np.gradient(scipy.ndimage.gaussian_filter(heights, 1.5))
    steep = 1.0 / max(np.hypot(down, right).std(), 1e-9)
    first = random.uniform(0, 2 * np.pi)
    lights = []
    for azimuth in (first, first + random.choice((-1, 1)) * random.uniform(np.pi / 3, np.pi)):
        toward = np.cos(azimuth) * right + np.sin(azimuth) * down
        lights.append((1 + steep * toward) / np.sqrt(1 + steep**2 * (right**2 + down**2)))
    one, other = (normalised(np.clip(light, -0.5, None)) for light in lights)
    return name, one, other


def drawing(half: str, random: Random) -> Scene:
    """A picture, and dark lines where it changes."""
    name, image = picture(half, random)
    down, right = np.gradient(scipy.ndimage.gaussian_filter(image, 1.2))
    edge = np.hypot(down, right)
    line = 1 / (1 + np.exp(-8 * (edge / np.quantile(edge, 0.85) - 1)))
    return name, image, normalised(scipy.ndimage.gaussian_filter(1 - line, 0.7))


def classes(half: str, random: Random) -> Scene:
    """A picture, and a map of four classes of its values, in colours of their own."""
    name, image = picture(half, random)
    smooth = scipy.ndimage.gaussian_filter(image, 1.5)
    which = np.digitize(smooth, np.quantile(smooth, (0.25, 0.5, 0.75)))
    colours = random.permutation(np.array([0.0, 0.35, 0.65, 1.0]))
    return name, image, scipy.ndimage.gaussian_filter(colours[which], 0.8)


def speckled(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    """A negative under speckle of four looks."""
    return reference, (0.2 + negative(reference, moving, random)[1]) * random.gamma(4.0, 0.25, moving.shape)


def sobel(half: str, random: Random) -> Scene:
    """A picture, and how steep it is."""
    name, image = picture(half, random)
    smooth = scipy.ndimage.gaussian_filter(image, 0.8)
    return name, image, normalised(np.hypot(scipy.ndimage.sobel(smooth, 0), scipy.ndimage.sobel(smooth, 1)))


def two_maps_of_classes(half: str, random: Random) -> Scene:
    """Five classes of a picture's values, in two lists of colours."""
    name, image = picture(half, random)
    smooth = scipy.ndimage.gaussian_filter(image, 1.2)
    which = np.digitize(smooth, np.quantile(smooth, (0.2, 0.4, 0.6, 0.8)))
    one, other = (scipy.ndimage.gaussian_filter(random.permutation(np.linspace(0, 1, 5))[which], 0.8) for _ in "ab")
    return name, one, other


def printed(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    """A negative as it is printed: dots on a grid 4 px apart that is turned, large where it is dark."""
    angle, (y, x) = random.uniform(0.2, 1.3), np.mgrid[: moving.shape[0], : moving.shape[1]] * (np.pi / 2)
    cos, sin = np.cos(angle), np.sin(angle)
    screen = 0.5 + 0.25 * (np.cos(cos * x + sin * y) + np.cos(cos * y - sin * x))
    return reference, 1 / (1 + np.exp(-12 * (negative(reference, moving, random)[1] - screen)))


def low_light(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    """A negative of which few photons were counted: 6 in the mean, at most 12."""
    return reference, random.poisson(12 * np.maximum(negative(reference, moving, random)[1], 0)) / 12


LATER: dict[str, Kind] = {
    "sobel": Kind(scene=sobel),
    "two maps of classes": Kind(scene=two_maps_of_classes),
    "printed negative": Kind(change=printed),
    "negative of few photons": Kind(change=low_light),
}
"""Kinds that were made after all constants had been chosen."""

UNSEEN: dict[str, Kind] = {
    "bands": Kind(scene=bands),
    "relief": Kind(scene=relief),
    "drawing": Kind(scene=drawing),
    "classes": Kind(scene=classes),
    "speckled negative": Kind(change=speckled),
    "noisy negative": Kind(change=negative, noise=-0.5),
    **LATER,
}
