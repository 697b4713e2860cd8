"""Overlapping maps with known truth, cut from real rasters that come inside Python wheels (nothing is downloaded).

The base raster is low-passed by 0.8 px (it would alias otherwise); the reference is an integer crop of it, the moving
map ONE quintic-spline sampling through the true warp, so that no estimator's own interpolator is favoured. Both get
white noise, the moving map a gain and a bias.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mslsq.validation import suggestion

BASE_SIGMA = 0.8
MODELS = ("translation", "se2", "sim2", "affine", "homography")


@dataclass(frozen=True)
class Pair:
    """Two overlapping maps and the truth between them.

    `transform` takes a reference pixel (x, y, 1) to a pixel of the moving map; reference ≈ `gain` · moving + `bias`.
    """

    name: str
    reference: Float[Tensor, "height width"]
    moving: Float[Tensor, "height width"]
    transform: Float[Tensor, "3 3"]
    gain: float
    bias: float


def _scikit_image(file: str) -> Shaped[np.ndarray, "height width"]:
    """One image out of scikit-image's wheel, as luminance in [0, 1]. Read by path: its loaders could start a
    download."""
    import imageio.v3 as iio
    import skimage.data

    path = Path(skimage.data.__file__).parent / file
    if not path.is_file():
        raise FileNotFoundError(
            f"This scikit-image does not carry {file}; versions 0.24 to 0.26 do: `pip install 'mslsq[align]'`."
        )
    image = np.asarray(iio.imread(path), dtype=np.float64) / 255.0
    return image if image.ndim == 2 else image[..., :3] @ np.array([0.2126, 0.7152, 0.0722])


def _elevation() -> Shaped[np.ndarray, "height width"]:
    """The Jacksboro fault elevation model out of matplotlib's wheel, scaled to [0, 1]."""
    import matplotlib.cbook

    archive: Any = matplotlib.cbook.get_sample_data("jacksboro_fault_dem.npz")
    with archive:
        height = archive["elevation"].astype(np.float64)
    return (height - height.min()) / (height.max() - height.min())


IMAGES = {
    "camera": "camera.png",
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "moon": "moon.png",
    "hubble": "hubble_deep_field.jpg",
    "retina": "retina.jpg",
    "coffee": "coffee.png",
}
NAMES = (*IMAGES, "elevation")
"""Photographs, textures, astronomy, medicine and an elevation model."""


def base_raster(name: str) -> Shaped[np.ndarray, "height width"]:
    """A real raster, luminance or height in [0, 1], float64.

    >>> base_raster("elevation").shape
    (344, 403)
    """
    if name != "elevation" and name not in IMAGES:
        raise ValueError(f"There is no bundled raster {name!r}; there are {', '.join(NAMES)}.{suggestion(name, NAMES)}")
    if name == "elevation":
        return _elevation()
    raster = _scikit_image(IMAGES[name])
    # The retina is a disc on black: a crop of its corner would hold nothing to align.
    return raster[350:1061, 350:1061] if name == "retina" else raster


def random_transform(
    model: str, size: int, random: np.random.Generator, shift: float = 20.0, degrees: float = 10.0
) -> Shaped[np.ndarray, "3 3"]:
    """A random warp of `model` about the centre of a `size`² reference, reference pixel to moving pixel.

    Shift up to ±`shift` px, rotation ±`degrees`, scale 0.9 to 1.1, shear ±0.05, perspective ±5 % at the border.
    """
    freedom = MODELS.index(model)
    centre = (size - 1) / 2
    x, y = random.uniform(-shift, shift, 2)
    angle = np.deg2rad(random.uniform(-degrees, degrees)) if freedom >= 1 else 0.0
    scale = random.uniform(0.9, 1.1) if freedom >= 2 else 1.0
    shear = random.uniform(-0.05, 0.05, 2) if freedom >= 3 else np.zeros(2)
    perspective = random.uniform(-0.05, 0.05, 2) / centre if freedom >= 4 else np.zeros(2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = scale * rotation @ np.array([[1 + shear[0], shear[1]], [0, 1 - shear[0]]])
    about_centre = np.eye(3)
    about_centre[:2, :2] = linear
    about_centre[:2, 2] = x, y
    about_centre[2, :2] = perspective
    to_centre = np.array([[1, 0, -centre], [0, 1, -centre], [0, 0, 1.0]])
    transform = np.linalg.inv(to_centre) @ about_centre @ to_centre
    return transform / transform[2, 2]


def warp_from_base(
    base: Shaped[np.ndarray, "height width"],
    corner: tuple[int, int],
    transform: Shaped[np.ndarray, "3 3"],
    shape: tuple[int, int],
) -> Shaped[np.ndarray, "h w"]:
    """The map whose pixel T·u shows what reference pixel u shows, where the reference starts at `corner` (x, y) of the
    base."""
    height, width = shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    source = np.linalg.inv(transform) @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    source = source[:2] / source[2]
    sampled = scipy.ndimage.map_coordinates(
        base, [source[1] + corner[1], source[0] + corner[0]], order=5, mode="mirror"
    )
    return sampled.reshape(height, width)


def make_pair(
    name: str, model: str, seed: int, size: int = 256, noise: float = 0.01, shift: float = 20.0, degrees: float = 10.0
) -> Pair:
    """A random pair of `size`² maps (the raster's short side, where that is less).

    The moving map may show scenery beyond the base, which is mirrored there: the reference never sees it.
    Noise is a share of the base raster's range; gain 0.7 to 1.3 and bias ±0.15 act on the moving map, and the pair's
    `gain` and `bias` are their inverse (what takes the moving map's values back to the reference's).

    >>> pair = make_pair("elevation", "sim2", seed=0, size=128)
    >>> tuple(pair.reference.shape), tuple(pair.transform.shape)
    ((128, 128), (3, 3))
    """
    random = np.random.default_rng(seed)
    base = scipy.ndimage.gaussian_filter(base_raster(name), BASE_SIGMA, mode="mirror")
    base = (base - base.min()) / (base.max() - base.min())
    height, width = base.shape
    size = min(size, height, width)
    corner = int(random.integers(0, width - size + 1)), int(random.integers(0, height - size + 1))
    transform = random_transform(model, size, random, shift, degrees)
    gain, bias = random.uniform(0.7, 1.3), random.uniform(-0.15, 0.15)
    reference = base[corner[1] : corner[1] + size, corner[0] : corner[0] + size]
    moving = gain * warp_from_base(base, corner, transform, (size, size)) + bias
    reference = reference + noise * random.standard_normal(reference.shape)
    moving = moving + noise * random.standard_normal(moving.shape)
    return Pair(
        f"{name}-{model}-{seed}",
        torch.from_numpy(reference),
        torch.from_numpy(moving),
        torch.from_numpy(transform),
        1.0 / gain,
        -bias / gain,
    )


def benchmark_pairs(per_model: int = 20, size: int = 256) -> list[tuple[str, Pair]]:
    """(model, pair): ten rasters in turn, another seed for every draw. Twenty per model are the hundred of the
    benchmark."""
    return [
        (model, make_pair(NAMES[draw % len(NAMES)], model, seed=1000 * MODELS.index(model) + draw, size=size))
        for model in MODELS
        for draw in range(per_model)
    ]
