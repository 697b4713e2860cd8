"""A GeoTIFF's tags: the affine map of its pixels and the code of its CRS, as GDAL reads them.

OGC GeoTIFF 1.1 (19-008r4): tie points are of pixel corners where the raster type is PixelIsArea, of pixel centres where
it is PixelIsPoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mslsq.alignment.coordinates.georeference import CORNER_TO_CENTRE

PIXEL_SCALE, TIE_POINTS, MATRIX, GEOKEYS = 33550, 33922, 34264, 34735
"""Tags."""

RASTER_TYPE, GEOGRAPHIC, PROJECTED = 1025, 2048, 3072
"""Keys of the GeoKey directory."""

IS_POINT, USER_DEFINED = 2, 32767

Geotags = Sequence[tuple[Any, ...]]
"""(tag, type, count, value) of each."""


def values_of(geotags: Geotags) -> dict[int, Any]:
    """The values by tag."""
    return {code: value for code, _, _, value in geotags}


def keys_of(geotags: Geotags) -> dict[int, int]:
    """The short entries of the GeoKey directory (key, place, count, value), four numbers each behind a header."""
    directory = list(values_of(geotags).get(GEOKEYS, ()))
    entries = [directory[i : i + 4] for i in range(4, len(directory) - 3, 4)]
    return {key: value for key, place, _, value in entries if place == 0}


def is_point(geotags: Geotags) -> bool:
    """Do tie points lie on centres of pixels?"""
    return keys_of(geotags).get(RASTER_TYPE) == IS_POINT


def matrix_of(geotags: Geotags) -> Float[np.ndarray, "3 3"] | None:
    """Pixel centres (x, y, 1) to the world; None where there is no affine map (none at all, or control points)."""
    found = _as_written(values_of(geotags))
    if found is None:
        return None
    return found if is_point(geotags) else found @ CORNER_TO_CENTRE


def _as_written(tags: Mapping[int, Any]) -> Float[np.ndarray, "3 3"] | None:
    scale, ties = tags.get(PIXEL_SCALE, (0.0, 0.0)), tags.get(TIE_POINTS, ())
    if len(scale) >= 2 and scale[0] != 0 and scale[1] != 0 and len(ties) >= 6:
        column, row, _, x, y = ties[:5]
        # Rows go south whatever the sign is, as in GDAL: files with a negative scale mean the same.
        along, down = float(scale[0]), -abs(float(scale[1]))
        return np.array([[along, 0, x - column * along], [0, down, y - row * down], [0, 0, 1]], dtype=np.float64)
    if MATRIX in tags and len(tags[MATRIX]) == 16:
        m = np.array(tags[MATRIX], dtype=np.float64).reshape(4, 4)
        return np.array([[m[0, 0], m[0, 1], m[0, 3]], [m[1, 0], m[1, 1], m[1, 3]], [0, 0, 1]])
    return None


def crs_code(geotags: Geotags) -> int | None:
    """The CRS's EPSG code; 0 where a CRS is described without one, None where there is no CRS."""
    keys = keys_of(geotags)
    for key in (PROJECTED, GEOGRAPHIC):
        if key in keys:
            return keys[key] if 1024 <= keys[key] < USER_DEFINED else 0
    return None


def moved(geotags: Geotags, left: float, top: float) -> tuple[tuple[Any, ...], ...]:
    """The tags of the raster whose first pixel is (left, top) of this one."""
    out = []
    for code, kind, count, value in geotags:
        if code == TIE_POINTS:
            points = np.array(value, dtype=np.float64).reshape(-1, 6) - [left, top, 0, 0, 0, 0]
            value = tuple(points.ravel().tolist())
        elif code == MATRIX:
            m = np.array(value, dtype=np.float64).reshape(4, 4)
            m[:, 3] += left * m[:, 0] + top * m[:, 1]
            value = tuple(m.ravel().tolist())
        out.append((code, kind, count, value))
    return tuple(out)
