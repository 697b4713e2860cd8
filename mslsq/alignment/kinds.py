"""What a raster is once its file is decoded: its bands, where it holds data, and the kind of file it was."""

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mslsq.alignment.coordinates.ros import RosMap

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
TIFF_SUFFIXES = (".tif", ".tiff")
ARRAY_SUFFIXES = (".npy", ".npz")
YAML_SUFFIXES = (".yaml", ".yml")
SUFFIXES = IMAGE_SUFFIXES + TIFF_SUFFIXES + ARRAY_SUFFIXES + YAML_SUFFIXES


class RasterError(ValueError):
    """A file that cannot be read as a raster, with the reason and what to try."""


@dataclass(frozen=True)
class Storage:
    """How the pixels of a TIFF lie in it."""

    compression: str = "adobe_deflate"
    """As tifffile names it; of those without loss."""
    predictor: bool = False
    tile: tuple[int, int] | None = None
    """Rows and columns; None for strips."""


@dataclass(frozen=True)
class Kind:
    """How a raster was stored: enough to write another one like it."""

    suffix: str
    dtype: np.dtype
    alpha: bool = False
    nodata: float | int | None = None
    """A number that `dtype` holds, as it holds it: float32 rounds -9999.9."""
    channels_last: bool = False
    geotags: tuple[tuple[Any, ...], ...] = ()
    colours: bool = False
    """Are the first three bands red, green and blue?"""
    metadata: str | None = None
    """What GDAL needs to read the values in their units: scale, offset, unit."""

    storage: Storage = Storage()
    """Of a TIFF."""
    ros: RosMap | None = None
    """Of a map of ROS: `nodata` is the grey of cells that are unknown."""

    @property
    def unit(self) -> str:
        """Of the values, as GDAL's metadata have it; empty where nothing is said."""
        found = re.search(r'role="unittype"[^>]*>([^<]+)<', self.metadata or "")
        return html.unescape(found[1]).strip() if found else ""

    @property
    def scaling(self) -> tuple[float, float]:
        """Scale and offset that take the numbers of the file to their unit, as GDAL's metadata have them; those of the
        first band. 1 and 0 where nothing is said."""
        of = lambda role: re.search(rf'role="{role}"[^>]*>([^<]+)<', self.metadata or "")  # noqa: E731
        scale, offset = of("scale"), of("offset")
        return float(scale[1]) if scale else 1.0, float(offset[1]) if offset else 0.0


class Decoded(NamedTuple):
    """What a decoder returns: bands (channels, height, width) in the file's own type without alpha, and where they
    hold data (height, width)."""

    bands: np.ndarray
    known: np.ndarray
    kind: Kind


def all_known(bands: np.ndarray) -> np.ndarray:
    """The mask of a raster without holes."""
    return np.ones(bands.shape[1:], dtype=bool)


def rgb_of_inks(file: Path, bands: np.ndarray) -> np.ndarray:
    """Red, green and blue of cyan, magenta, yellow and black (none 0, all the type's largest): (1 - c)(1 - k).

    Gain and bias of brightness mean nothing to inks, so that pictures in inks are read, and written, as RGB.
    """
    if not np.issubdtype(bands.dtype, np.unsignedinteger) or len(bands) != 4:
        raise RasterError(f"{file}: {len(bands)} inks of {bands.dtype} are not read; convert the picture to RGB.")
    full = float(np.iinfo(bands.dtype).max)
    return np.rint((full - bands[:3]) * (full - bands[3]) / full).astype(bands.dtype)


def upright(array: np.ndarray, orientation: int) -> np.ndarray:
    """(..., height, width) turned as the orientation of EXIF and TIFF (tag 274) says that it is to be seen."""
    if orientation in (5, 6, 7, 8):
        array = array.swapaxes(-1, -2)
    if orientation in (2, 3, 6, 7):
        array = array[..., ::-1]
    if orientation in (3, 4, 7, 8):
        array = array[..., ::-1, :]
    return array
