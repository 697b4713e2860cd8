"""The one number of a GeoTIFF that stands for "no data": read, compared and written as the file's type holds it."""

from dataclasses import replace

import numpy as np

from mslsq.alignment.kinds import TIFF_SUFFIXES, Decoded, Kind, RasterError

FLOAT32_MAX = float(np.finfo(np.float32).max)
NANS = ("nan", "-nan", "+nan", "1.#qnan", "-1.#ind", "1.#ind", "-1.#qnan")
"""How programs, some of them on Windows, write that it is none."""
TOLERANCE = 1e-10
"""Relative, for float64, as GDAL has it: texts have fewer digits than numbers."""


def parse_nodata(text: str, dtype: np.dtype) -> float | int | None:
    """The nodata value of a file of this type, or None where no pixel can have it (-9999 of unsigned integers).

    Raises:
        RasterError: the text is no number, so it does not say which pixels it means.
    """
    text = text.strip("\x00 \t\r\n").lower()
    if not text:
        return None
    try:
        number = float("nan") if text in NANS else float(text)
    except ValueError:
        raise RasterError(f"its nodata value {text!r} is no number; set one with gdal_edit.py -a_nodata") from None
    if np.issubdtype(dtype, np.integer):
        if not np.isfinite(number) or number != int(number):
            return None
        try:
            whole = int(text)  # float64 has no 2**63 - 1
        except ValueError:
            whole = int(number)
        limits = np.iinfo(dtype)
        return whole if limits.min <= whole <= limits.max else None
    if _is_float32_max(number):
        number = np.sign(number) * FLOAT32_MAX
    with np.errstate(over="ignore"):
        held = float(np.array(number).astype(dtype))
    return held if np.isfinite(held) or np.isnan(held) else None


def is_nodata(bands: np.ndarray, kind: Kind) -> np.ndarray:
    """Which pixels of (channels, height, width) are no data.

    A colour picture's are those of which every band has the value, as black is in (0, 0, 0) but not in (0, 80, 120);
    of other rasters those of which any band has it.
    """
    nodata = kind.nodata
    if nodata is None or nodata != nodata:  # NaN: masked with all that is not finite
        return np.zeros(bands.shape[1:], dtype=bool)
    equal = _equal(bands, nodata)
    return np.asarray(equal.all(0) if kind.colours else equal.any(0))


def also_nodata(decoded: Decoded, number: float | None) -> Decoded:
    """The same with one more number for no data, which the file does not name. A TIFF that names none has it from here
    on, so that copies of it say so."""
    bands, known, kind = decoded
    held = None if number is None else parse_nodata(text_of(number), bands.dtype)
    if held is None:
        return decoded
    said = replace(kind, nodata=held)
    return Decoded(
        bands, known & ~is_nodata(bands, said), said if kind.nodata is None and kind.suffix in TIFF_SUFFIXES else kind
    )


def _equal(bands: np.ndarray, nodata: float | int) -> np.ndarray:
    """Which numbers are meant by the text of the tag."""
    if np.issubdtype(bands.dtype, np.floating) and _is_float32_max(nodata):
        return np.abs(bands / FLOAT32_MAX - np.sign(nodata)) < 1e-5
    if bands.dtype == np.float64:
        return np.abs(bands - nodata) <= TOLERANCE * abs(nodata)
    return bands == np.array(nodata, dtype=bands.dtype)


def _is_float32_max(nodata: float | int) -> bool:
    """Float32's largest number, "no data" of many programs, is written with six digits or more: -3.40282e+38."""
    return abs(abs(nodata) / FLOAT32_MAX - 1) < 1e-5


def beside_nodata(bands: np.ndarray, known: np.ndarray, kind: Kind) -> np.ndarray:
    """The same bands, with data that rounding made equal to nodata moved to the next number, as GDAL's warp does: a
    reader would take them for holes."""
    lost = known & is_nodata(bands, kind)
    nodata = kind.nodata
    if nodata is None or not lost.any():
        return bands
    if np.issubdtype(bands.dtype, np.integer):
        beside = nodata + 1 if nodata < np.iinfo(bands.dtype).max else nodata - 1
    elif bands.dtype == np.float64:
        beside = nodata * (1 - 4 * TOLERANCE) or np.finfo(np.float64).tiny
    else:
        beside = np.nextafter(np.array(nodata, bands.dtype), np.array(0 if nodata else 1, bands.dtype))
    first = bands[:1] if kind.colours else bands  # one band that differs is enough for a colour
    moved = np.where(lost & _equal(first, nodata), np.array(beside, bands.dtype), first)
    return np.concatenate([moved, bands[1:]]) if kind.colours else moved


def text_of(nodata: float | int) -> str:
    """The number with all its digits: 17 bring a float64 back."""
    return str(nodata) if isinstance(nodata, int) else f"{nodata:.17g}"
