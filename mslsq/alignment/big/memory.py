"""How much memory a run may take, and what that leaves for tiles."""

import re

from mslsq.alignment.options import AlignmentOptionError

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "M": 10**6, "G": 10**9}

BASE = 1_000_000_000
"""Bytes: the process itself with PyTorch (0.4 GB), and `align` on reduced rasters of a million pixels (0.5 GB)."""

PER_TILE = 10_000_000
"""Bytes: a tile of 256 x 256 pixels with its counterpart, the pyramids and splines of both, in float64."""

PER_PIXEL = 100
"""Bytes that `align` and the files that a run writes take per pixel of maps that are read whole (81 were measured, of
two maps of 4096 x 4096), beside `PROCESS`."""

PROCESS = 500_000_000

FEWEST_TILES = 16


def bytes_of(memory: str | float) -> int:
    """A number of bytes, or a text like "4GB" or "1.5 GiB".

    Raises:
        AlignmentOptionError: it is neither, or less than 1.1 GB.

    >>> bytes_of("4GB")
    4000000000
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", str(memory))
    unit = "" if found is None else found[2].upper()
    try:
        number = float(found[1]) * UNITS.get(unit, 1 if unit in ("", "B") else float("nan")) if found else float("nan")
    except ValueError:
        number = float("nan")
    least = BASE + FEWEST_TILES * PER_TILE
    if not number >= least:
        raise AlignmentOptionError(
            f"memory={memory!r}: a size like '4GB' is expected, of at least {least / 1e9:.1f} GB."
        )
    return int(min(number, 1e18))


def affordable_tiles(memory: int, asked: int) -> int:
    """How many tiles fit, at most as many as are asked for."""
    return min(asked, (memory - BASE) // PER_TILE)


def fits_whole(pixels: int, memory: int) -> bool:
    """May maps with this number of pixels in all be read whole?"""
    return PROCESS + PER_PIXEL * pixels <= memory
