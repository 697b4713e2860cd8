"""Coordinate reference systems, by pyproj where two differ."""

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from mslsq.alignment.coordinates.georeference import GeoreferenceError
from mslsq.alignment.coordinates.reading import INSTALL


def same_system(one: str | None, other: str | None) -> bool:
    """Are coordinates of the one those of the other? A CRS that is not said is taken to be the other's.

    Raises:
        GeoreferenceError: a text that names no CRS, or pyproj is needed and not there.
    """
    if one is None or other is None or one == other:
        return True
    return _system(one).equals(_system(other), ignore_axis_order=True)


def transformed(points: Float[np.ndarray, "n 2"], source: str, target: str) -> Float[np.ndarray, "n 2"]:
    """(X, Y) of one CRS in another, east or longitude first in both; inf where that has none.

    Raises:
        GeoreferenceError: a text that names no CRS, two between which there is no way, or pyproj is not there.
    """
    return np.stack(_transformer(source, target).transform(points[:, 0], points[:, 1]), -1)


def unit_of(crs: str | None) -> str:
    """The unit of a CRS's axes in words; "units" where that is not known."""
    if crs is None:
        return "units"
    try:
        axes = _system(crs).axis_info
    except GeoreferenceError:
        return "units"
    return axes[0].unit_name if axes else "units"


def _pyproj() -> Any:
    try:
        import pyproj
    except ImportError:
        raise GeoreferenceError(
            f"maps of several coordinate reference systems need pyproj: {INSTALL}, or leave the georeferences out."
        ) from None
    return pyproj


@lru_cache(maxsize=64)
def _system(crs: str) -> Any:
    pyproj = _pyproj()
    try:
        system = pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise GeoreferenceError(f"{crs[:80]!r} names no coordinate reference system ({error}).") from None
    return system.sub_crs_list[0] if system.is_compound else system  # heights are no concern of a place


@lru_cache(maxsize=64)
def _transformer(source: str, target: str) -> Any:
    pyproj = _pyproj()
    try:
        return pyproj.Transformer.from_crs(_system(source), _system(target), always_xy=True)
    except pyproj.exceptions.ProjError as error:
        raise GeoreferenceError(f"there is no way from {source[:80]!r} to {target[:80]!r} ({error}).") from None
