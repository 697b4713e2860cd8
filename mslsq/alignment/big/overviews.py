"""Overviews: reduced copies inside of a GeoTIFF, from which viewers, GDAL, and `align_files` read a large raster."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mslsq.alignment.big.files import rasterio_here, small_cache
from mslsq.alignment.big.whole import whole_rasters
from mslsq.alignment.kinds import TIFF_SUFFIXES

SIDE = 2048
"""Pixels along the longer side, up to which a raster has none: one screen shows it."""

SMALLEST = 256
"""Pixels along the longer side of the last one."""

CHANGED = "changed"
"""The name of the one file whose numbers have no mean."""


def build_overviews(path: str | Path, means: bool = True) -> list[int]:
    """Put overviews into a GeoTIFF, each half of the one before, until its longer side is 256 pixels or less; none
    where that of the raster is 2,048 or less. The file is changed in place: call it on one that is not yet whole.

    Args:
        path: of the file.
        means: of blocks of pixels; otherwise the nearest pixel, for counts and classes.

    Returns:
        The factors.
    """
    rasterio = rasterio_here()
    # the mask of a file stays inside of it, too
    with small_cache(), rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as dataset:
        factors = factors_for((dataset.height, dataset.width))
        if factors:
            resampling: Any = rasterio.enums.Resampling
            dataset.build_overviews(factors, resampling.average if means else resampling.nearest)
    return factors


def factors_for(size: tuple[int, int]) -> list[int]:
    """Of a raster of this height and width: 2, 4, 8 and so on."""
    factors: list[int] = []
    while max(size) > SIDE and (not factors or max(size) > SMALLEST * factors[-1]):
        factors.append(2 ** (len(factors) + 1))
    return factors


def add_overviews(paths: Iterable[Path]) -> None:
    """`build_overviews` of all large GeoTIFFs among some files, each of which is replaced when it is whole again; of
    the one that is named `CHANGED` by the nearest pixels.

    Raises:
        RasterError: rasterio is missing.
        NotWrittenError: the disk is full; the file is there without overviews.
    """
    rasterio = rasterio_here()
    for path in paths:
        if path.suffix.lower() not in TIFF_SUFFIXES:
            continue
        with small_cache(), rasterio.open(path) as dataset:
            wanted = factors_for((dataset.height, dataset.width)) and not dataset.overviews(1)
        if wanted:
            with whole_rasters(path) as (temporary,):
                shutil.copyfile(path, temporary)
                build_overviews(temporary, path.stem != CHANGED)
