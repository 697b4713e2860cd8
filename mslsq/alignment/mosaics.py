"""Mosaics with known truth: maps cut from one raster, around a ring or on a grid, each with a warp of its own.

Every map is one quintic-spline sampling of the raster (as in `synthetic`), with gain, bias and noise of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mslsq.alignment.synthetic import random_transform, warp_from_base

__all__ = ["Mosaic", "cut", "ring"]


@dataclass(frozen=True)
class Mosaic:
    """Maps and the truth between them: `transforms[i]` takes a pixel of map 0 to one of map i, and map 0 ≈ `gain[i]` ·
    map i + `bias[i]`."""

    maps: list[Float[Tensor, "height width"]]
    transforms: Float[Tensor, "maps 3 3"]
    gain: Float[Tensor, " maps"]
    bias: Float[Tensor, " maps"]


def ring(count: int, radius: float, middle: tuple[float, float]) -> Float[np.ndarray, "maps 2"]:
    """Middles (x, y) of maps around a circle."""
    angle = 2 * np.pi * np.arange(count) / count
    return np.stack([middle[0] + radius * np.cos(angle), middle[1] + radius * np.sin(angle)], -1)


def cut(
    base: Shaped[np.ndarray, "height width"],
    middles: Sequence[Sequence[float]] | np.ndarray,
    size: int,
    seed: int,
    model: str = "sim2",
    noise: float = 0.01,
    degrees: float = 5.0,
    tilt: float = 0.0,
    drift: float = 0.0,
) -> Mosaic:
    """Maps of `size`² of a raster with values in [0, 1], each about one of the `middles` (x, y).

    The warps about them are random members of `model`: rotation up to ±`degrees`, scale 0.95 to 1.05. Gain 0.7 to 1.3,
    bias ±0.15 and white noise (a share of the range) act on every map but the first, which has noise alone. Beyond the
    raster its mirror image is seen. Errors of the model, which no member of it describes: `tilt`, a slope of the
    values of each map from border to border (a share of the range), and `drift`, a smooth displacement that bends
    straight lines by that many pixels.
    """
    random = np.random.default_rng(seed)
    maps, transforms, gains, biases = [], [], [], []
    for index, (x, y) in enumerate(middles):
        warp = random_transform(model, size, random, shift=0.0, degrees=degrees)
        scale = random.uniform(0.95, 1.05) / np.sqrt(abs(np.linalg.det(warp[:2, :2])))
        if model not in ("translation", "se2"):
            centre = (size - 1) / 2
            shrink = np.array([[scale, 0, centre * (1 - scale)], [0, scale, centre * (1 - scale)], [0, 0, 1.0]])
            warp = shrink @ warp
        place = np.array([[1, 0, (size - 1) / 2 - x], [0, 1, (size - 1) / 2 - y], [0, 0, 1.0]])
        whole = warp @ place
        seen = (
            warp_from_base(base, (0, 0), whole, (size, size)) if drift == 0 else _bent(base, whole, size, random, drift)
        )
        gain, bias = (random.uniform(0.7, 1.3), random.uniform(-0.15, 0.15)) if index else (1.0, 0.0)
        slope = np.linspace(-0.5, 0.5, size) * tilt * random.choice([-1, 1])
        values = gain * (seen + (slope[:, None] if random.integers(2) else slope)) + bias
        maps.append(torch.from_numpy(values + gain * noise * random.standard_normal((size, size))))
        transforms.append(whole)
        gains.append(1 / gain)
        biases.append(-bias / gain)
    first = np.linalg.inv(transforms[0])
    relative = np.stack([transform @ first for transform in transforms])
    relative = relative / relative[:, 2:, 2:]
    return Mosaic(
        maps, torch.from_numpy(relative), torch.from_numpy(np.array(gains)), torch.from_numpy(np.array(biases))
    )


def _bent(
    base: Shaped[np.ndarray, "height width"],
    transform: Shaped[np.ndarray, "3 3"],
    size: int,
    random: np.random.Generator,
    drift: float,
) -> Shaped[np.ndarray, "size size"]:
    """`warp_from_base` with a bow of `drift` pixels along both axes, of random sign."""
    y, x = np.mgrid[0:size, 0:size].astype(np.float64)
    bow = 1 - (2 * np.arange(size) / (size - 1) - 1) ** 2 - 2 / 3  # of mean 0
    x = x + random.uniform(-drift, drift) * bow[:, None]
    y = y + random.uniform(-drift, drift) * bow
    source = np.linalg.inv(transform) @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    at = [source[1] / source[2], source[0] / source[2]]
    return scipy.ndimage.map_coordinates(base, at, order=5, mode="mirror").reshape(size, size)
