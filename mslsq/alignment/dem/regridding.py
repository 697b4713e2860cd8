"""Rasters of another CRS or pixel size on the pixels of the reference, before a comparison."""

import numpy as np
import torch
from jaxtyping import Float

from mslsq.alignment.coordinates import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.systems import same_system, transformed
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.pair import same_pixels
from mslsq.alignment.dem.result import sampled_at
from mslsq.alignment.pyramid import masked_blur

NODES = 65
"""Along each side of a raster: of the grid that says where it is in the other CRS."""

AROUND = 1.0
"""Sides of the reference beyond it that are kept: a header may be wrong."""

COARSER = 1.1
"""Pixels of a raster in one of the reference, beyond which it is smoothed: it would alias."""


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
    x, y = np.meshgrid(np.linspace(-0.5, columns - 0.5, NODES), np.linspace(-0.5, rows - 0.5, NODES))
    try:
        world = second.to_world(np.stack([x.ravel(), y.ravel()], -1))
        if not same_system(first.crs, second.crs):
            assert first.crs is not None and second.crs is not None
            world = transformed(world, second.crs, first.crs)
    except GeoreferenceError as error:
        raise CoregistrationError(f"coregister: {error}") from None
    there = first.to_pixel(world[np.isfinite(world).all(-1)])
    size = np.array([shape[1], shape[0]])
    low, high = (there.min(0), there.max(0)) if len(there) else (size * 1e9, size * 1e9)
    low = np.maximum(np.floor(low), -np.floor(AROUND * size)).astype(int)
    high = np.minimum(np.ceil(high), size - 1 + np.floor(AROUND * size)).astype(int)
    if (high <= low).any():
        raise CoregistrationError(
            "coregister: the two models lie apart, farther than the reference is large; are their CRS the right ones?"
        )
    here = first.moved(float(low[0]), float(low[1]))
    return resampled(values, second, here, (int(high[1] - low[1]) + 1, int(high[0] - low[0]) + 1)), here


def resampled(
    values: Float[np.ndarray, "rows columns"],
    source: Georeference,
    target: Georeference,
    shape: tuple[int, int],
    nearest: bool = False,
) -> Float[np.ndarray, "height width"]:
    """A raster on the pixels of another, by the cubic spline or the nearest pixel; NaN where it has no data.

    Raises:
        CoregistrationError: there is no way between the two CRS.
    """
    places = torch.from_numpy(_places(source, target, shape))
    if nearest:
        rows, columns = values.shape
        column, row = (places + 0.5).floor().nan_to_num(-1).clamp(-1, max(rows, columns)).long().unbind(-1)
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        found = torch.from_numpy(values)[row.clamp(0, rows - 1), column.clamp(0, columns - 1)]
        return torch.where(inside, found, torch.nan).reshape(shape).numpy()
    raster = torch.from_numpy(np.ascontiguousarray(values))
    known = raster.isfinite()
    middle = (shape[0] // 2) * shape[1] + shape[1] // 2
    finer = float((places[middle] - places[middle - 1]).norm())
    if finer > COARSER:
        blurred, _ = masked_blur(torch.where(known, raster, 0.0)[None], known, 0.5 * (finer**2 - 1) ** 0.5)
        raster = torch.where(known, blurred[0], torch.nan)
    return sampled_at(raster, places.nan_to_num(-1e6)).reshape(shape).numpy()


def _places(source: Georeference, target: Georeference, shape: tuple[int, int]) -> Float[np.ndarray, "n 2"]:
    """Of every pixel of `target` in `source`, NaN where the CRS has none. Each one exactly: GDAL's warp interpolates
    between places that are up to an eighth of a pixel off, which is seen as a field of shifts."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    world = target.to_world(np.stack([x.ravel(), y.ravel()], -1))
    try:
        if not same_system(source.crs, target.crs):
            assert source.crs is not None and target.crs is not None
            world = transformed(world, target.crs, source.crs)
    except GeoreferenceError as error:
        raise CoregistrationError(f"coregister: {error}") from None
    return source.to_pixel(np.where(np.isfinite(world), world, np.nan))


def same_grid(one: Georeference, other: Georeference) -> bool:
    """Are the pixels of two rasters the same ones?"""
    return (
        same_system(one.crs, other.crs)
        and same_pixels(one, other)
        and bool(np.abs(one.to_pixel(other.to_world([[0.0, 0.0]]))).max() < 0.01)
    )
