"""Pairs of small crops of one real image in two appearances, with the rigid warp between them known.

The images come inside the wheels of scikit-image and Matplotlib. A batch is a function of (seed, number) alone:
training that is resumed sees what it would have seen.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.learned.appearance import CHANGES, CURVES, Bands, blurred, other_band, shadowed, stretched
from mslsq.alignment.synthetic import BASE_SIGMA, base_raster, random_transform

TRAIN = ("camera", "brick", "gravel", "moon", "hubble", "coffee", "chelsea.png", "coins.png", "page.png", "ihc.png",
         "rocket.jpg", "text.png")  # fmt: skip
TEST = ("astronaut", "grass", "retina", "elevation", "motorcycle_left.png", "grace_hopper.jpg")
"""Images, not crops of the same: what is tested has never been seen."""

DETAIL = 0.02
"""A pair is drawn again while the weaker direction of either crop has, at 2 px blur, a root mean square slope below
this (values from 0 to 1, per pixel): in a clear sky, or along one straight edge, there is nothing to align by."""

TRIES = 1000


@dataclass(frozen=True)
class PairBatch:
    """`transform` takes a reference pixel (x, y, 1) to a pixel of the moving crop."""

    reference: Float[Tensor, "batch size size"]
    moving: Float[Tensor, "batch size size"]
    transform: Float[Tensor, "batch 3 3"]
    kinds: tuple[str, ...]
    images: tuple[str, ...]


@dataclass(frozen=True)
class PairSource:
    """How pairs are drawn.

    Args:
        images: names of bundled rasters, or files of scikit-image's and Matplotlib's wheels.
        size: of the crops, pixels.
        model: of the warp: "translation", "se2" or "sim2".
        shift, degrees: of the warp about the crop's centre, each way.
        noise: of both crops, as a share of their range.
    """

    images: tuple[str, ...]
    size: int = 65
    model: str = "se2"
    shift: float = 5.0
    degrees: float = 8.0
    noise: float = 0.01

    def batch(self, count: int, seed: int, number: int) -> PairBatch:
        """Batch `number` of the stream of this seed."""
        random = np.random.default_rng((seed, number))
        drawn = [self._pair(random) for _ in range(count)]
        reference, moving, transform = (np.stack([pair[part] for pair in drawn]) for part in range(3))
        return PairBatch(
            torch.from_numpy(reference).float(),
            torch.from_numpy(moving).float(),
            torch.from_numpy(transform).float(),
            tuple(pair[3] for pair in drawn),
            tuple(pair[4] for pair in drawn),
        )

    def _pair(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, str, str]:
        for _ in range(TRIES):
            detail, fixed, moved, transform, kind, name = self._candidate(random)
            if min(detail, weakest_slope(fixed), weakest_slope(moved)) > DETAIL:
                return fixed, moved, transform, kind, name
        raise ValueError(f"{TRIES} pairs of crops of {', '.join(self.images)} held nothing to align.")

    def _candidate(self, random: np.random.Generator) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, str, str]:
        size = self.size
        name = str(random.choice(self.images))
        bands = bundled(name)
        if min(bands.shape[:2]) < size:
            raise ValueError(f"size={size}: {name} has {bands.shape[1]} x {bands.shape[0]} pixels.")
        transform = random_transform(self.model, size, random, self.shift, self.degrees)
        margin = int(np.ceil(self.shift + 0.25 * size))
        x, y = (int(random.integers(0, extent - size + 1)) for extent in (bands.shape[1], bands.shape[0]))
        rows = mirrored(np.arange(y - margin, y + size + margin), bands.shape[0])
        columns = mirrored(np.arange(x - margin, x + size + margin), bands.shape[1])
        around = bands[rows[:, None], columns[None, :]]
        kind = str(random.choice(CHANGES))
        if kind == "band":
            fixed, moved = other_band(around, random)
        else:
            mix = random.uniform(0.2, 1, bands.shape[-1])
            fixed = around @ (mix / mix.sum())
            moved = CURVES[kind](stretched(fixed), random)
        moved = resampled(moved, transform, margin, size)
        fixed = fixed[margin : margin + size, margin : margin + size]
        # Measured before the shadows fall: their edges lie elsewhere in each of the two.
        detail = min(weakest_slope(stretched(fixed)), weakest_slope(stretched(moved)))
        if kind == "shadow" or random.uniform() < 0.3:
            moved = shadowed(moved, random)
            fixed = shadowed(fixed, random) if kind == "shadow" else fixed
        if random.uniform() < 0.3:
            moved = blurred(moved, random)
        if random.uniform() < 0.5:  # either may be the odd one
            inverse = np.linalg.inv(transform)
            fixed, moved, transform = moved, fixed, inverse / inverse[2, 2]
        both = [stretched(image) + self.noise * random.standard_normal((size, size)) for image in (fixed, moved)]
        return detail, both[0], both[1], transform, kind, name


def weakest_slope(crop: np.ndarray) -> float:
    """The root mean square slope across the direction in which the crop varies least (the structure tensor's smaller
    eigenvalue)."""
    down, right = np.gradient(scipy.ndimage.gaussian_filter(crop, 2.0))
    tensor = [[np.mean(right * right), np.mean(right * down)], [np.mean(right * down), np.mean(down * down)]]
    return float(max(np.linalg.eigvalsh(tensor)[0], 0.0) ** 0.5)


def mirrored(index: np.ndarray, size: int) -> np.ndarray:
    """Indices folded into [0, size) by reflection about the border pixels."""
    folded = np.mod(index, 2 * (size - 1))
    return np.minimum(folded, 2 * (size - 1) - folded)


def resampled(image: np.ndarray, transform: np.ndarray, margin: int, size: int) -> np.ndarray:
    """The crop whose pixel T u shows what pixel u + margin of `image` shows; quintic splines."""
    y, x = np.mgrid[0:size, 0:size].reshape(2, -1).astype(np.float64)
    source = np.linalg.inv(transform) @ np.stack([x, y, np.ones_like(x)])
    at = source[1::-1] / source[2] + margin
    return scipy.ndimage.map_coordinates(image, at, order=5, mode="mirror").reshape(size, size)


@lru_cache(maxsize=32)
def bundled(name: str) -> Bands:
    """A real raster as (height, width, bands) in [0, 1], low-passed by 0.8 px."""
    if "." in name:
        image = read(name)
    elif name in ("astronaut", "coffee", "hubble", "retina"):
        image = read({"hubble": "hubble_deep_field.jpg", "retina": "retina.jpg"}.get(name, f"{name}.png"))
        image = image[350:1061, 350:1061] if name == "retina" else image
    else:
        image = base_raster(name)
    image = image[..., None] if image.ndim == 2 else image[..., :3]
    image = scipy.ndimage.gaussian_filter(image, (BASE_SIGMA, BASE_SIGMA, 0), mode="mirror")
    return (image - image.min()) / (image.max() - image.min())


def read(file: str) -> np.ndarray:
    """A picture out of the wheels, by path: the packages' own loaders could start a download."""
    import imageio.v3 as iio
    import matplotlib
    import skimage.data

    folders = [Path(skimage.data.__file__).parent, Path(matplotlib.get_data_path()) / "sample_data"]
    for folder in folders:
        if (folder / file).is_file():
            return np.asarray(iio.imread(folder / file), dtype=np.float64) / 255.0
    raise FileNotFoundError(f"Neither scikit-image nor Matplotlib carries {file} here: `pip install 'mslsq[align]'`.")
