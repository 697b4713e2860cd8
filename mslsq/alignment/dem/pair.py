"""Two elevation models as they are compared: tensors, masks, and the map from pixels to metres; wrong arguments are
refused here."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.coordinates import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.systems import in_degrees, metres_of, same_system
from mslsq.alignment.dem.blunders import blunders
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.slots import Slots
from mslsq.alignment.undeclared import undeclared

SAME_SIZE = 1e-6
"""Relative difference of pixel sizes that is rounding of a file's header."""

SMALLEST_SIDE = 8
"""Pixels: a model with a shorter side has no terrain to compare."""

LOWEST, HIGHEST = -500.0, 9000.0
"""Metres: between them an even number that lies apart may be a lake, or a roof; zero is none of mountains."""


@dataclass(frozen=True)
class Pair:
    """Both models in float64 with holes as zeros, and true where they have data that are no blunders.

    `metres` (2, 2) takes a step in pixels (column, row) to one in metres (east, north). `offset` (2,) is the pixel of
    `dem` at the place of the reference's first pixel, were there no shift. `stable` is true where terrain may be used.
    `header` is that of `dem`, None where there is none. With `slots` the rasters are parts of larger ones.
    """

    reference: Float[Tensor, "height width"]
    known: Bool[Tensor, "height width"]
    stable: Bool[Tensor, "height width"]
    dem: Float[Tensor, "rows columns"]
    dem_known: Bool[Tensor, "rows columns"]
    metres: Float[np.ndarray, "2 2"]
    offset: Float[np.ndarray, "2"]
    header: Georeference | None = None
    slots: Slots | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the whole reference."""
        return (self.known.shape[0], self.known.shape[1]) if self.slots is None else self.slots.size

    @property
    def thinning(self) -> float:
        """Pixels of the overlap for which one that is stored stands."""
        return 1.0 if self.slots is None else self.slots.thinning

    def places(self, pixels: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Stored pixels (column, row) as those of the whole reference."""
        return pixels if self.slots is None else self.slots.places(pixels)

    @property
    def pixel(self) -> float:
        """Metres: the side of a square of a pixel's area."""
        return float(np.sqrt(abs(np.linalg.det(self.metres))))

    def to_metres(self, pixels: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """A step (columns, rows) as one east and north."""
        return self.metres @ pixels

    def to_pixels(self, metres: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """A step east and north as one in (columns, rows)."""
        return np.linalg.solve(self.metres, metres)


def pair_of(
    reference: Any,
    dem: Any,
    pixel_size: float | Sequence[float] | None,
    georeferences: Sequence[Georeference] | None,
    mask: Any,
    dem_mask: Any,
) -> Pair:
    """What `coregister` was given, checked.

    Raises:
        CoregistrationError: see there.
    """
    one, known = _raster("reference", reference)
    other, dem_known = _raster("dem", dem)
    metres, offset = geometry(pixel_size, georeferences, one.shape)
    header = None if georeferences is None else georeferences[1]
    stable = _mask("mask", mask, one.shape)
    if dem_mask is not None:
        dem_known = dem_known & _mask("dem_mask", dem_mask, other.shape)
    zero = one.new_zeros(())
    known, dem_known = known & ~blunders(one, known), dem_known & ~blunders(other, dem_known)
    _declared("reference", one, known)
    _declared("dem", other, dem_known)
    return Pair(
        torch.where(known, one, zero), known, stable, torch.where(dem_known, other, zero), dem_known, metres, offset,
        header,
    )  # fmt: skip


def _raster(name: str, given: Any) -> tuple[Float[Tensor, "height width"], Bool[Tensor, "height width"]]:
    if isinstance(given, str | PathLike):
        raise CoregistrationError(
            f"coregister: {name} is a path ({given}); coregister takes rasters in memory, coregister_files takes files."
        )
    masked = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else None
    try:
        values = torch.as_tensor(np.ma.getdata(given) if masked is not None else given, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise CoregistrationError(f"coregister: {name} is no array of numbers ({error}).") from None
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2 or values.is_complex():
        raise CoregistrationError(
            f"coregister: {name} must be a raster of elevations, (height, width), not {tuple(values.shape)} of "
            f"{values.dtype}; choose one band."
        )
    if min(values.shape) < SMALLEST_SIDE:
        raise CoregistrationError(
            f"coregister: {name} has {values.shape[0]} x {values.shape[1]} pixels; at least {SMALLEST_SIDE} along each "
            "side are needed."
        )
    values = values.detach().to(torch.float64)
    known = values.isfinite()
    if masked is not None:
        known = known & ~torch.from_numpy(masked.reshape(values.shape))
    if not bool(known.any()):
        raise CoregistrationError(
            f"coregister: {name} has no data: every pixel is NaN, infinite or masked. Read it with its own nodata."
        )
    return values, known


def _declared(name: str, values: Float[Tensor, "height width"], known: Bool[Tensor, "height width"]) -> None:
    """Refuse a number for no data that no header names: a border of it is beyond what a loss leaves out."""
    found = undeclared(values[None], known)
    if found is not None and (not LOWEST <= found.number <= HIGHEST or found.number == 0.0):
        raise CoregistrationError(
            f"coregister: {found.words(name)} Name it (nodata= where files are read, "
            f"gdal_edit.py -a_nodata), or make it NaN: np.where({name} == {found.number:.8g}, np.nan, {name})."
        )


def _mask(name: str, given: Any, shape: torch.Size) -> Bool[Tensor, "height width"]:
    if given is None:
        return torch.ones(shape, dtype=torch.bool, device="cpu")
    mask = torch.as_tensor(given, device="cpu")
    if mask.shape != shape:
        raise CoregistrationError(
            f"coregister: {name} has the shape {tuple(mask.shape)}, its raster {tuple(shape)}; a mask has a value per "
            "pixel, true where terrain is stable."
        )
    return mask.bool()


def geometry(
    pixel_size: float | Sequence[float] | None, georeferences: Sequence[Georeference] | None, shape: Sequence[int]
) -> tuple[Float[np.ndarray, "2 2"], Float[np.ndarray, "2"]]:
    """Metres per pixel, and the pixel of the second raster at the place of the reference's first one.

    Raises:
        CoregistrationError: pixels of no size, of different sizes, two CRS, or nothing is said.
    """
    if georeferences is not None:
        return _of_georeferences(georeferences, pixel_size, shape)
    if pixel_size is None:
        raise CoregistrationError(
            "coregister: give pixel_size=(dx, dy) in metres (rows go south), or georeferences=(of reference, of dem)."
        )
    return np.diag([1.0, -1.0]) * _sizes(pixel_size), np.zeros(2)


def _sizes(given: float | Sequence[float]) -> Float[np.ndarray, "2"]:
    try:
        sizes = np.broadcast_to(np.asarray(given, dtype=np.float64), (2,))
    except (TypeError, ValueError):
        raise CoregistrationError(f"coregister: pixel_size must be a number or (dx, dy), not {given!r}.") from None
    if not (np.isfinite(sizes).all() and (sizes > 0).all()):
        raise CoregistrationError(
            f"coregister: pixel_size={given!r} must be positive and finite, in metres; rows are taken to go south."
        )
    return sizes


def _of_georeferences(
    georeferences: Sequence[Georeference], pixel_size: float | Sequence[float] | None, shape: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Of a CRS in degrees metres are those at the reference's middle, or a pixel has the size that is given."""
    if len(georeferences) != 2 or not all(isinstance(one, Georeference) for one in georeferences):
        raise CoregistrationError("coregister: georeferences must be two Georeference objects: reference's, dem's.")
    first, second = georeferences
    try:
        same = same_system(first.crs, second.crs)
        crs = first.crs or second.crs
        middle = first.to_world([[(shape[1] - 1) / 2, (shape[0] - 1) / 2]])[0]
        unit = metres_of(crs, middle)
    except GeoreferenceError as error:
        raise CoregistrationError(f"coregister: {error}") from None
    if not same:
        raise CoregistrationError(
            f"coregister: the reference is in {_short(first.crs)}, dem in {_short(second.crs)}; reproject one, for "
            "example with gdalwarp -t_srs ... -tr ... -r cubic."
        )
    if not same_pixels(first, second):
        raise CoregistrationError(
            f"coregister: the reference has pixels of {_sides(first)}, dem of {_sides(second)} (or they are turned "
            "differently); resample one onto the other's pixel size first, for example with gdalwarp -tr ... -r cubic."
        )
    linear = first.matrix[:2, :2]
    offset = np.linalg.solve(linear, first.matrix[:2, 2] - second.matrix[:2, 2])
    if pixel_size is None:
        return unit[:, None] * linear, offset
    if not in_degrees(crs):
        raise CoregistrationError("coregister: give pixel_size or georeferences, not both; they say the same.")
    return np.sign(linear) * np.diag(_sizes(pixel_size)), offset


def same_pixels(one: Georeference, other: Georeference) -> bool:
    """Have two rasters pixels of one size and direction?"""
    linear = one.matrix[:2, :2]
    return bool(np.abs(linear - other.matrix[:2, :2]).max() <= SAME_SIZE * np.abs(linear).max())


def _sides(georeference: Georeference) -> str:
    along, down = georeference.pixel_size
    return f"{along:g} x {down:g}"


def _short(crs: str | None) -> str:
    return "no CRS" if crs is None else crs if len(crs) < 40 else f"{crs[:37]}..."
