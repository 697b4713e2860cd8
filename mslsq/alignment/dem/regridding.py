"""Rasters of another CRS or pixel size on the pixels of the reference, before a comparison."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.coordinates import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.systems import same_system, transformed
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.pair import same_pixels
from mslsq.alignment.dem.result import sampled_at
from mslsq.alignment.grids import block_means
from mslsq.alignment.pyramid import gaussian_kernel
from mslsq.alignment.sampling import convolve_axis

NODES = 65
"""Along each side of a raster: of the grid that says where it is in the other CRS."""

AROUND = 1.0
"""Sides of the reference beyond it that are kept: a header may be wrong."""

COARSER = 1.1
"""Pixels of a raster in one of the reference, beyond which it is smoothed: it would alias."""


class Finer(NamedTuple):
    """How many pixels of a raster one of another one is wide and high there."""

    along: float
    down: float

    @property
    def whole(self) -> int:
        """By what power of two the raster is reduced first: none of its sides is coarser than the other's then."""
        return 2 ** max(0, math.floor(math.log2(min(self))))

    def over(self, factor: float) -> "Finer":
        """Of the raster reduced by a factor."""
        return Finer(self.along / factor, self.down / factor)


def comparable(first: Georeference, second: Georeference) -> bool:
    """Have two models one CRS, and pixels of one size and direction?"""
    return same_system(first.crs, second.crs) and same_pixels(first, second)


def resampled_words(first: str, second: str, of: Georeference, to: Georeference) -> str:
    """What was done to the model `second`."""
    return f"{second} was resampled to the pixels of {first} (cubic): from {_pixels(of)} to {_pixels(to)}."


def _pixels(header: Georeference) -> str:
    along, down = header.pixel_size
    named = "" if header.crs is None else f" in {header.crs if len(header.crs) < 20 else 'its CRS'}"
    return f"{along:.6g} x {down:.6g}{named}"


def on_pixels_of(
    first: Georeference, shape: tuple[int, int], values: Float[np.ndarray, "rows columns"], second: Georeference
) -> tuple[Float[np.ndarray, "rows columns"], Georeference]:
    """A raster on pixels of the reference's size and CRS, around the reference, and where it lies then.

    Args:
        first: of the reference.
        shape: of the reference.
        values: NaN where there are no data.
        second: of the raster.

    Raises:
        CoregistrationError: the two lie apart, or there is no way between their CRS.
    """
    rows, columns = values.shape
    here, size = lattice_around(first, shape, second, (rows, columns))
    return resampled(values, second, here, size), here


def lattice_around(
    first: Georeference, shape: tuple[int, int], second: Georeference, size: tuple[int, int]
) -> tuple[Georeference, tuple[int, int]]:
    """Where pixels of the reference's size and CRS lie that hold a raster of `second` and `size`, and their height and
    width; what is far from the reference is left out.

    Raises:
        CoregistrationError: the two lie apart, or there is no way between their CRS.
    """
    rows, columns = size
    x, y = np.meshgrid(np.linspace(-0.5, columns - 0.5, NODES), np.linspace(-0.5, rows - 0.5, NODES))
    there = places(np.stack([x.ravel(), y.ravel()], -1), second, first)
    there, side = there[np.isfinite(there).all(-1)], np.array([shape[1], shape[0]])
    low, high = (there.min(0), there.max(0)) if len(there) else (side * 1e9, side * 1e9)
    low = np.maximum(np.floor(low), -np.floor(AROUND * side)).astype(int)
    high = np.minimum(np.ceil(high), side - 1 + np.floor(AROUND * side)).astype(int)
    if (high <= low).any():
        raise CoregistrationError(
            "coregister: the two models lie apart, farther than the reference is large; are their CRS the right ones?"
        )
    return first.moved(float(low[0]), float(low[1])), (int(high[1] - low[1]) + 1, int(high[0] - low[0]) + 1)


def resampled(
    values: Float[np.ndarray, "rows columns"], source: Georeference, target: Georeference, shape: tuple[int, int]
) -> Float[np.ndarray, "height width"]:
    """A raster on the pixels of another, by the cubic spline; NaN where it has no data.

    Raises:
        CoregistrationError: there is no way between the two CRS.
    """
    finer = finer_than(source, target, shape)
    factor = finer.whole
    if factor > 1:
        known = np.isfinite(values)
        reduced, known = block_means(np.where(known, values, 0.0)[None], known, factor)
        values, source = np.where(known, reduced[0], np.nan), source.reduced(factor)
    at = torch.from_numpy(places(pixels(shape), target, source))
    return sampled(torch.from_numpy(np.ascontiguousarray(values)), at, finer.over(factor)).reshape(shape).numpy()


def sampled(values: Float[Tensor, "rows columns"], at: Float[Tensor, "n 2"], finer: Finer) -> Float[Tensor, " n"]:
    """A raster at places (column, row) of it by the cubic spline, smoothed along an axis where it is `finer`."""
    known = values.isfinite()
    total, share = torch.where(known, values, torch.zeros_like(values)), known.to(values.dtype)
    for axis, ratio in ((-1, finer.along), (-2, finer.down)):
        if ratio > COARSER:
            kernel = gaussian_kernel(reach(ratio), values)
            total, share = (convolve_axis(one, kernel, axis, "zero") for one in (total, share))
    smooth = torch.where(known, total / share.clamp(min=1e-6), torch.full_like(values, float("nan")))
    return sampled_at(smooth, at.nan_to_num(-1e6))


def reach(ratio: float) -> float:
    """Pixels: sigma of the Gaussian that makes a raster as coarse as pixels of `ratio` of its own."""
    return 0.5 * math.sqrt(max(ratio**2 - 1, 0.0))


def nearest(values: Float[np.ndarray, "rows columns"], at: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    """A raster's pixels nearest to places (column, row) of it, NaN outside of it."""
    rows, columns = values.shape
    near = np.floor(np.nan_to_num(at, nan=-1e6) + 0.5)
    inside = np.asarray(((near >= 0) & (near < [columns, rows])).all(-1))
    column, row = np.where(inside[:, None], near, 0).astype(int).T
    return np.where(inside, values[row, column], np.nan)


def finer_than(source: Georeference, target: Georeference, shape: tuple[int, int]) -> Finer:
    """How much finer than `target` a raster of `source` is in the middle of a raster of `shape`; 1 where the CRS has no
    place for that."""
    middle = np.array([shape[1] // 2, shape[0] // 2]) + np.array([[0, 0], [1, 0], [0, 1]])
    here, along, down = places(middle, target, source)
    found = np.hypot(along - here, down - here)
    return Finer(*found.tolist()) if np.isfinite(found).all() else Finer(1.0, 1.0)


def pixels(shape: tuple[int, int]) -> Float[np.ndarray, "n 2"]:
    """All pixels (column, row) of a raster, row by row."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    return np.stack([x.ravel(), y.ravel()], -1).astype(np.float64)


def places(points: Float[np.ndarray, "n 2"], source: Georeference, target: Georeference) -> Float[np.ndarray, "n 2"]:
    """Pixels of `source` as those of `target`, NaN where the CRS has none. Each one exactly: GDAL's warp interpolates
    between places that are up to an eighth of a pixel off, which is seen as a field of shifts.

    Raises:
        CoregistrationError: there is no way between the two CRS.
    """
    world = source.to_world(points)
    try:
        if not same_system(source.crs, target.crs):
            assert source.crs is not None and target.crs is not None
            world = transformed(world, source.crs, target.crs)
    except GeoreferenceError as error:
        raise CoregistrationError(f"coregister: {error}") from None
    return target.to_pixel(np.where(np.isfinite(world), world, np.nan))


def same_grid(one: Georeference, other: Georeference) -> bool:
    """Are the pixels of two rasters the same ones?"""
    return (
        same_system(one.crs, other.crs)
        and same_pixels(one, other)
        and bool(np.abs(one.to_pixel(other.to_world([[0.0, 0.0]]))).max() < 0.01)
    )
