"""Pairs of twelve kinds for `metrics.py`, cut from real rasters and drawn textures, with the similarity between them.

A scene belongs to one half by a hash of its name: metrics and thresholds are chosen on "choose", figures are claimed on
"claim". A pair is a function of (kind, half, number) alone.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.ndimage
from truth_scenes import OTHERS, grains, normalised, photograph, print_, raster_of, tiles, tower

from mslsq.alignment.learned.appearance import other_band, other_curve
from mslsq.alignment.learned.pairs import bundled, weakest_slope
from mslsq.alignment.synthetic import NAMES, warp_from_base

Raster = np.ndarray
Random = np.random.Generator

COLOURS = ("astronaut", "coffee", "hubble", "retina", "chelsea.png", "rocket.jpg", "ihc.png", "motorcycle_left.png",
           "grace_hopper.jpg")  # fmt: skip
"""Pictures of which two bands are compared."""

DETAIL = 0.005
"""A pair is drawn again while either map, before noise, has less slope than this across its weaker direction, at 2 px
blur, as a share of its range per pixel: a clear sky holds nothing to align by."""


def half_of(name: str) -> str:
    """The half that a scene belongs to.

    >>> half_of("camera") == half_of("camera")
    True
    """
    picture = SAME.get(name, name.split(".")[0])
    return ("choose", "claim")[zlib.crc32(f"metrics {picture}".encode()) % 2]


SAME = {"tissue": "ihc", "portrait": "grace_hopper", "bricks": "brick", "motorcycle": "motorcycle_left"}
"""Names of what is a scene by another name."""


@lru_cache(maxsize=64)
def raster(name: str) -> Raster:
    """A real raster in [0, 1], low-passed by 0.8 px."""
    return photograph(name) if name in OTHERS else raster_of(name)


REAL = tuple(name for name in (*NAMES, *OTHERS) if name not in ("cat", "clock", "coins"))
"""Of 300 pixels and more on each side."""

TEXTURES: dict[str, Callable[[int, Random], Raster]] = {
    "bricks": lambda size, random: cut(raster("brick"), size, random),
    "facade": tiles,
    "page": print_,
    "tower": tower,
    "grass": lambda size, random: cut(raster("grass"), size, random),
    "weave": lambda size, random: weave(size, random),
    "checks": lambda size, random: checks(size, random),
    "gravel": lambda size, random: cut(raster("gravel"), size, random),
}
"""What repeats itself."""


def cut(image: Raster, size: int, random: Random) -> Raster:
    """A square, or the whole short side."""
    height, width = image.shape[:2]
    y, x = random.integers(0, max(height - size, 0) + 1), random.integers(0, max(width - size, 0) + 1)
    return image[y : y + size, x : x + size]


def weave(size: int, random: Random) -> Raster:
    """Threads over and under each other, each a little different."""
    y, x = np.mgrid[:size, :size] * (2 * np.pi / random.uniform(9, 14))
    return normalised(np.sin(x) * np.sin(y) + 0.5 * np.sin(x + y) + 0.3 * grains(size, 2.0, random))


def checks(size: int, random: Random) -> Raster:
    """A chessboard with stains."""
    period = random.uniform(20, 32)
    y, x = np.mgrid[:size, :size]
    board = np.sign(np.sin(2 * np.pi * x / period) * np.sin(2 * np.pi * y / period))
    return normalised(scipy.ndimage.gaussian_filter(board, 1.0) + 0.4 * grains(size, 4.0, random))


@dataclass(frozen=True)
class MetricPair:
    """`transform` takes a reference pixel (x, y, 1) to a pixel of the moving map; NaN is no data."""

    name: str
    kind: str
    reference: Raster
    moving: Raster
    transform: Raster


@dataclass(frozen=True)
class Kind:
    """How far the maps of a kind are from each other, and what becomes of their values.

    `change` is given both maps, in [0, 1], and returns them.
    """

    change: Callable[[Raster, Raster, Random], tuple[Raster, Raster]] | None = None
    degrees: float = 10.0
    scale: float = 1.1
    overlap: tuple[float, float] = (0.6, 1.0)
    noise: float = 0.01
    """Of the range; below 0, of the standard deviation of each map."""
    moved: float = 0.0
    """Share of the scene that is elsewhere in the moving map."""
    scene: Callable[[str, Random], tuple[str, Raster, Raster]] | None = None
    """Given a half: the name of a scene, and what each map sees of it; None for `scene`."""


def similarity(kind: Kind, size: int, random: Random) -> Raster:
    """A warp about the centre of the reference whose overlap is that of the kind."""
    c = (size - 1) / 2
    for _ in range(10_000):
        angle = np.deg2rad(random.uniform(-kind.degrees, kind.degrees))
        scale = kind.scale ** random.uniform(-1, 1)
        reach = 0.12 * size if kind.overlap[1] == 1.0 else 0.8 * size
        shift = random.uniform(-reach, reach, 2)
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        linear = np.array([[cos, -sin], [sin, cos]])
        transform = np.eye(3)
        transform[:2, :2], transform[:2, 2] = linear, c + shift - linear @ (c, c)
        if kind.overlap[0] <= overlap_of(transform, size) <= kind.overlap[1]:
            return transform
    raise RuntimeError(f"no warp has an overlap of {kind.overlap}")


def overlap_of(transform: Raster, size: int) -> float:
    """The share of the smaller map, in the reference's pixels, that both have."""
    y, x = np.mgrid[:size:4, :size:4].reshape(2, -1)
    at = transform @ np.stack([x, y, np.ones(x.size)])
    common = ((at[:2] >= 0) & (at[:2] <= size - 1)).all(0).mean()
    return float(common / min(1.0, 1 / abs(np.linalg.det(transform[:2, :2]))))


def blobs(shape: tuple[int, ...], share: float, random: Random, width: float = 8.0) -> np.ndarray:
    """A mask that is true in patches which make up this share."""
    field = scipy.ndimage.gaussian_filter(random.standard_normal(shape), width, mode="wrap")
    return field > np.quantile(field, 1 - share)


def negative(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    return reference, 1 - moving


def gamma(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    """A power of 2 to 4, or one over that."""
    return reference, np.clip(moving, 0, 1) ** (2.0 ** (random.choice((-1, 1)) * random.uniform(1, 2)))


def lit(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    """Each under a lamp and a shade of its own: a smooth factor between 0.4 and 2.5, and a slope."""

    def one(image: Raster) -> Raster:
        field = scipy.ndimage.gaussian_filter(random.standard_normal(image.shape), 0.25 * len(image), mode="reflect")
        y, x = np.mgrid[-1 : 1 : image.shape[0] * 1j, -1 : 1 : image.shape[1] * 1j]
        a, b = random.uniform(-0.3, 0.3, 2)
        return image * 2.5 ** (2 * normalised(field) - 1) + a * x + b * y

    return one(reference), one(moving)


def holes(reference: Raster, moving: Raster, random: Random) -> tuple[Raster, Raster]:
    """Half of the moving map is not known."""
    return reference, np.where(blobs(moving.shape, 0.5, random), np.nan, moving)


KINDS: dict[str, Kind] = {
    "easy": Kind(),
    "any rotation": Kind(degrees=180.0),
    "scale 0.5 to 2": Kind(scale=2.0),
    "overlap 15 to 40 %": Kind(overlap=(0.15, 0.4)),
    "signal to noise 1": Kind(noise=-1.0),
    "inverted": Kind(change=negative),
    "gamma": Kind(change=gamma),
    "illumination": Kind(change=lit),
    "multi-modal": Kind(),
    "30 % moving": Kind(moved=0.3),
    "50 % missing": Kind(change=holes),
    "repeated texture": Kind(),
}


def scene(kind: str, half: str, random: Random) -> tuple[str, Raster, Raster]:
    """Its name, and what the reference and the moving map see of it: the same raster, or two modalities of one."""
    if kind == "repeated texture":
        name = str(random.choice([name for name in TEXTURES if half_of(name) == half]))
        image = normalised(TEXTURES[name](320, random))
        return name, image, image
    if kind == "multi-modal" and random.random() < 0.5:
        name = str(random.choice([name for name in COLOURS if half_of(name) == half]))
        one, other = other_band(bundled(name), random)
        return name, normalised(one), normalised(other)
    name = str(random.choice([name for name in REAL if half_of(name) == half]))
    image = raster(name)
    return name, image, normalised(other_curve(image, random)) if kind == "multi-modal" else image


def pair(kind: str, half: str, number: int, size: int = 128, how: Kind | None = None) -> MetricPair:
    """Pair `number` of a kind and half; of a kind that is not in `KINDS`, say `how` it is."""
    how = how or KINDS[kind]
    random = np.random.default_rng([zlib.crc32(kind.encode()), half == "claim", number])
    for _ in range(1000):
        found = candidate(kind, how, half, random, size)
        if found is not None:
            name, reference, moving, transform = found
            return MetricPair(f"{kind}, {name}, {number}", kind, reference, moving, transform)
    raise RuntimeError(f"no pair of kind {kind!r} holds anything to align")


def candidate(kind: str, how: Kind, half: str, random: Random, size: int) -> tuple[str, Raster, Raster, Raster] | None:
    """A pair, or None where one of its maps shows next to nothing."""
    name, one, other = how.scene(half, random) if how.scene else scene(kind, half, random)
    transform = similarity(how, size, random)
    x, y = (int(random.integers(0, extent - size + 1)) for extent in one.shape[::-1])
    reference = one[y : y + size, x : x + size]
    moving = warp_from_base(other, (x, y), transform, (size, size))
    if min(weakest_slope(reference), weakest_slope(moving)) < DETAIL:
        return None
    if how.moved:
        away = transform.copy()
        away[:2, 2] += 0.12 * size * np.array([np.cos(a := random.uniform(0, 2 * np.pi)), np.sin(a)])
        there = warp_from_base(other, (x, y), away, (size, size))
        moving = np.where(blobs(moving.shape, how.moved, random), there, moving)
    if how.change is not None:
        reference, moving = how.change(reference, moving, random)
    moving = random.uniform(0.7, 1.3) * moving + random.uniform(-0.15, 0.15)
    sigmas = [how.noise if how.noise > 0 else -how.noise * float(np.nanstd(image)) for image in (reference, moving)]
    reference, moving = (
        image + sigma * random.standard_normal(image.shape)
        for image, sigma in zip((reference, moving), sigmas, strict=True)
    )
    return name, reference, moving, transform


def without_match(kind: str, half: str, number: int, size: int = 128, how: Kind | None = None) -> MetricPair:
    """The reference of one pair of this kind, and the moving map of another, of another scene."""
    one = pair(kind, half, 2 * number, size, how)
    later = 2 * number + 1
    while (other := pair(kind, half, later, size, how)).name.split(", ")[1] == one.name.split(", ")[1]:
        later += 2
    return MetricPair(f"{one.name} / {other.name}", kind, one.reference, other.moving, np.full((3, 3), np.nan))
