"""Files that hold several rasters: `archive.npz:key` is one array, `stack.tif:3` one page (from 0), or by its name
(TIFF's PageName), `stack.tif:all` every page as a map of its own. Without such an ending a stack is refused: no page is
taken for the whole file.

tifffile writes an array of three or four rasters, of which nothing is said, as the colour planes of one page, the
fourth as alpha. `stack.tif:all` takes such planes apart, `stack.tif:colours` says that they are colours.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mslsq.alignment.kinds import RasterError
from mslsq.validation import suggestion

ENDING = re.compile(r"(?P<file>.*\.(?:npz|tiff?)):(?P<key>[^:\\]+)", re.IGNORECASE | re.DOTALL)
ALL, COLOURS = "all", "colours"
PAGE_NAME, SOFTWARE = 285, 305
"""Tags of TIFF."""

RGB, SEPARATE = 2, 2
"""TIFF's photometric interpretation, and its planar configuration."""


class Choice(NamedTuple):
    """The number of a page, and of one of its planes where that is meant."""

    page: int
    plane: int | None = None


def split(path: str | Path) -> tuple[Path, str | None]:
    """The file, and which of its rasters is meant; None where nothing is said."""
    found = None if Path(path).exists() else ENDING.fullmatch(str(path))
    return (Path(path), None) if found is None else (Path(found["file"]), found["key"])


def every_page(path: str) -> list[str]:
    """Of `stack.tif:all` each page, `stack.tif:0` and so on; any other path is itself.

    Raises:
        RasterError: the file cannot be read as TIFF.
    """
    file, key = split(path)
    if key != ALL or file.suffix.lower() == ".npz":
        return [path]
    import tifffile

    try:
        with tifffile.TiffFile(file.expanduser()) as tiff:
            return [f"{file}:{number}" for number in range(_planes(tiff) or len(images(tiff)))]
    except (OSError, tifffile.TiffFileError) as error:
        raise RasterError(f"{path}: the pages of {file} cannot be read ({error}).") from error


def images(tiff: Any) -> list[int]:
    """The numbers of pages that are rasters, not overviews, thumbnails or masks."""
    pages = list(tiff.pages)
    return [0, *(number for number, page in enumerate(pages[1:], 1) if not (page.is_reduced or page.is_mask))]


def masks_of(tiff: Any, number: int) -> list[int]:
    """The numbers of the masks of a page: those between it and the next raster."""
    following = [other for other in images(tiff) if other > number]
    end = following[0] if following else len(tiff.pages)
    pages = list(tiff.pages)
    return [other for other in range(number + 1, end) if pages[other].is_mask and not pages[other].is_reduced]


def chosen(file: Path, tiff: Any, key: str | None) -> Choice:
    """The page that is meant.

    Raises:
        RasterError: the file has several and none is named, or not the one that is; or pages that only its description
            knows of.
    """
    numbers = images(tiff)
    described = _described(tiff)
    names = [_name(tiff.pages[number]) for number in numbers]
    if described > len(numbers):
        raise RasterError(
            f"{file}: this file holds {described} pictures in {len(numbers)} page{'s' * (len(numbers) > 1)}, as ImageJ "
            "stores large stacks, and tifffile with truncate=True. Save it with a page for each."
        )
    planes = _planes(tiff)
    if planes and key is not None and key != COLOURS:
        return Choice(numbers[0], _numbered(file, key, planes, []))
    if key is None or (planes and key == COLOURS):
        if len(numbers) == 1:
            return Choice(0)
        raise RasterError(
            f"{file}: one raster is expected, this file holds {len(numbers)} pictures. Name the one that you mean, as "
            f"'{file}:0'{_by_name(file, names)}, or every one as '{file}:{ALL}'. If they are bands of one raster, save "
            "them as a single page (tifffile: planarconfig='separate')."
        )
    if names.count(key) == 1:
        return Choice(numbers[names.index(key)])
    return Choice(numbers[_numbered(file, key, len(numbers), names)])


def _numbered(file: Path, key: str, count: int, names: Sequence[str]) -> int:
    if key.isascii() and key.isdigit() and int(key) < count:
        return int(key)
    raise RasterError(
        f"{file}: there is no page {key!r}; it has the pages 0 to {count - 1}{_named(names)}.{suggestion(key, names)}"
    )


def refuse_guessed_colours(file: Path, tiff: Any, planes: np.ndarray, key: str | None) -> None:
    """Are planes colours because a writer meant it? tifffile guesses it of three or four rasters in one array. Whole
    numbers in three planes are taken for the colours that every program shows; a fourth plane would mask the others.

    Raises:
        RasterError: nothing says what they are.
    """
    if key is not None or not _guessed(tiff):
        return
    full = float(np.iinfo(planes.dtype).max) if np.issubdtype(planes.dtype, np.integer) else 1.0
    written = not _shaped(tiff.pages[0])  # by a program that says more than tifffile does by itself
    if written and (len(planes) == 3 or float(((planes[3] == 0) | (planes[3] == full)).mean()) > 0.5):
        return
    raise _unclear(file, len(planes))


def refuse_unclear_colours(file: Path) -> None:
    """The same without a look at the pixels.

    Raises:
        RasterError: nothing says what they are.
    """
    import tifffile

    try:
        with tifffile.TiffFile(file) as tiff:
            unclear = _shaped(tiff.pages[0]) and _guessed(tiff)
    except (OSError, tifffile.TiffFileError):
        return  # GDAL reads, or refuses, what tifffile does not
    if unclear:
        raise _unclear(file, unclear)


def _unclear(file: Path, planes: int) -> RasterError:
    return RasterError(
        f"{file}: its {planes} planes are marked as red, green, blue{' and alpha' * (planes == 4)}, which is what "
        f"tifffile.imwrite makes of a stack of as many rasters. Say which they are: '{file}:{ALL}' or '{file}:0' if "
        f"they are rasters, '{file}:{COLOURS}' if they are colours. (To write a stack, give imwrite "
        "photometric='minisblack'.)"
    )


def _guessed(tiff: Any) -> int:
    """How many planes may be colours, or alpha, by a guess alone."""
    planes, page = _planes(tiff), tiff.pages[0]
    alpha = planes == 4 and 0 not in map(int, page.extrasamples)
    return planes if alpha or (planes == 3 and np.issubdtype(page.dtype, np.floating)) else 0


def _planes(tiff: Any) -> int:
    """How many planes of colours tifffile has written in the one page of a file; 0 of any other."""
    if len(images(tiff)) != 1:
        return 0
    page = tiff.pages[0]
    software = page.tags.get(SOFTWARE)
    written = software is not None and str(software.value).startswith("tifffile")
    colours = int(page.photometric) == RGB and int(page.planarconfig) == SEPARATE and page.axes == "SYX"
    return int(page.samplesperpixel) if written and colours and page.samplesperpixel in (3, 4) else 0


def _described(tiff: Any) -> int:
    """Pictures that descriptions speak of, as of ImageJ and of tifffile, whose pages need not be there."""
    count = int((tiff.imagej_metadata or {}).get("images", 1))
    first = tiff.pages[0]
    if _shaped(first) and len(tiff.pages) == 1:
        shape = json.loads(first.description)["shape"]
        count = max(count, math.prod(shape) // max(first.size, 1))
    return count


def _shaped(page: Any) -> bool:
    """Does a page hold what tifffile writes of an array of which nothing is said?"""
    return str(page.description).startswith('{"shape":')


def _name(page: Any) -> str:
    tag = page.tags.get(PAGE_NAME)
    return "" if tag is None else str(tag.value)


def _by_name(file: Path, names: Sequence[str]) -> str:
    first = next(filter(None, names), "")
    return f", or '{file}:{first}'" if first else ""


def _named(names: Sequence[str]) -> str:
    given = [name for name in names if name]
    return f", named {', '.join(given[:10])}{', ...' if len(given) > 10 else ''}" if given else ""
