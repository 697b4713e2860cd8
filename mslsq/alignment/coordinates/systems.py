"""Coordinate reference systems, by pyproj where two differ."""

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from mslsq.alignment.coordinates.georeference import GeoreferenceError, UnknownSystemError
from mslsq.alignment.coordinates.reading import INSTALL

WGS84 = (6378137.0, 6356752.314245179)
"""Metres: the half axes of its ellipsoid."""

DEGREES = ("EPSG:4326", "OGC:CRS84", "EPSG:4269", "EPSG:4258")
"""What is known to count in degrees where pyproj is not installed."""


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


def metres_of(crs: str | None, at: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
    """Metres east and north of one unit of a CRS along X and Y at (X, Y): of a degree on its ellipsoid there, of a foot
    0.3048; of a projection the metres of its map. 1 where no CRS is said.

    Raises:
        GeoreferenceError: a text that names no CRS, or a latitude beyond the poles.
    """
    geographic, unit, sides = _axes(crs)
    if not geographic:
        return np.full(2, unit)
    latitude = float(at[1]) * unit
    if not abs(latitude) < np.pi / 2:
        raise GeoreferenceError(f"{str(crs)[:80]!r} counts in degrees, and {at[1]:g} is no latitude.")
    return unit * _radii(latitude, *sides)


def in_degrees(crs: str | None) -> bool:
    """Are the units of this CRS angles?"""
    return _axes(crs)[0]


def _axes(crs: str | None) -> tuple[bool, float, tuple[float, float]]:
    """Whether a CRS has longitude and latitude, its unit in radians or metres, and its ellipsoid's half axes in
    metres; of its text alone where pyproj is not installed."""
    if crs is None:
        return False, 1.0, WGS84
    try:
        import pyproj  # noqa: F401
    except ImportError:
        text = crs.upper().replace(" ", "")
        geographic = text in DEGREES or text.startswith(("GEOGCS", "GEOGCRS"))
        return geographic, np.pi / 180 if geographic else 1.0, WGS84
    system = _system(crs)
    ellipsoid = system.ellipsoid
    sides = WGS84 if ellipsoid is None else (ellipsoid.semi_major_metre, ellipsoid.semi_minor_metre)
    unit = system.axis_info[0].unit_conversion_factor if system.axis_info else 1.0
    return bool(system.is_geographic), float(unit), sides


def _radii(latitude: float, major: float, minor: float) -> Float[np.ndarray, "2"]:
    """Of curvature, in metres: of the circle of latitude, and of the meridian."""
    eccentricity = 1 - (minor / major) ** 2
    root = np.sqrt(1 - eccentricity * np.sin(latitude) ** 2)
    return np.array([np.cos(latitude) * major / root, major * (1 - eccentricity) / root**3])


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
        raise UnknownSystemError(f"{crs[:80]!r} names no coordinate reference system ({error}).") from None
    return system.sub_crs_list[0] if system.is_compound else system  # heights are no concern of a place


@lru_cache(maxsize=64)
def _transformer(source: str, target: str) -> Any:
    pyproj = _pyproj()
    try:
        return pyproj.Transformer.from_crs(_system(source), _system(target), always_xy=True)
    except pyproj.exceptions.ProjError as error:
        raise UnknownSystemError(f"there is no way from {source[:80]!r} to {target[:80]!r} ({error}).") from None
