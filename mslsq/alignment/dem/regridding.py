"""Rasters of another CRS or pixel size on the pixels of the reference, by GDAL's warp, before a comparison.

Cubic, over as many pixels of the raster as one of the reference has: finer models are averaged, nothing aliases.
"""

import numpy as np
from jaxtyping import Float

from mslsq.alignment.coordinates import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.reading import INSTALL
from mslsq.alignment.coordinates.systems import same_system, transformed
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.pair import same_pixels

NODES = 65
"""Along each side of a raster: of the grid that says where it is in the other CRS."""

AROUND = 1.0
"""Sides of the reference beyond it that are kept: a header may be wrong."""

ANY = "EPSG:3857"
"""The CRS of rasters that say none, or the same: no coordinate is changed."""


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
        CoregistrationError: the two lie apart, rasterio is missing, or there is no way between the CRS.
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
    """A raster on the pixels of another, NaN where it has no data.

    Raises:
        CoregistrationError: rasterio is missing, or cannot do it.
    """
    try:
        from rasterio import Affine
        from rasterio.crs import CRS
        from rasterio.errors import CRSError, RasterioError
        from rasterio.warp import Resampling, reproject
    except ImportError:
        raise CoregistrationError(
            f"coregister: rasters of different pixels or CRS need rasterio to be brought together: {INSTALL}."
        ) from None
    same = same_system(source.crs, target.crs)
    out = np.full(shape, np.nan)
    try:
        reproject(
            np.ascontiguousarray(values), out,
            src_transform=Affine.from_gdal(*source.geotransform), dst_transform=Affine.from_gdal(*target.geotransform),
            src_crs=CRS.from_user_input(ANY if same else source.crs),
            dst_crs=CRS.from_user_input(ANY if same else target.crs),
            src_nodata=np.nan, dst_nodata=np.nan, resampling=Resampling.nearest if nearest else Resampling.cubic,
        )  # fmt: skip
    except (CRSError, RasterioError) as error:
        raise CoregistrationError(f"coregister: a raster cannot be resampled ({error}).") from error
    return out


def same_grid(one: Georeference, other: Georeference) -> bool:
    """Are the pixels of two rasters the same ones?"""
    return (
        same_system(one.crs, other.crs)
        and same_pixels(one, other)
        and bool(np.abs(one.to_pixel(other.to_world([[0.0, 0.0]]))).max() < 0.01)
    )
