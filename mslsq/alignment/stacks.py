"""Files that hold several rasters: `archive.npz:key` is one array, `stack.tif:3` one page (from 0), or by its name
(TIFF's PageName), `stack.tif:all` every page as a map of its own. Without such an ending a stack is refused: no page is
taken for the whole file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mslsq.alignment.kinds import RasterError
from mslsq.validation import suggestion

ENDING = re.compile(r"(?P<file>.*\.(?:npz|tiff?)):(?P<key>[^:\\]+)", re.IGNORECASE | re.DOTALL)
ALL = "all"
PAGE_NAME = 285
"""The tag of TIFF."""


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
            return [f"{file}:{number}" for number in range(len(images(tiff)))]
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


def chosen(file: Path, tiff: Any, key: str | None) -> int:
    """The number of the page that is meant.

    Raises:
        RasterError: the file has several and none is named, or not the one that is.
    """
    numbers = images(tiff)
    frames = max(len(numbers), int((tiff.imagej_metadata or {}).get("images", 1)))
    names = [_name(tiff.pages[number]) for number in numbers]
    if frames > len(numbers):
        raise RasterError(
            f"{file}: this file holds {frames} pictures in one page, as ImageJ stores large stacks. Save it with "
            "a page for each."
        )
    if key is None:
        if frames == 1:
            return 0
        raise RasterError(
            f"{file}: one raster is expected, this file holds {frames} pictures. Name the one that you mean, as "
            f"'{file}:0'{_by_name(file, names)}, or every one as '{file}:{ALL}'. If they are bands of one raster, save "
            "them as a single page (tifffile: planarconfig='separate')."
        )
    if names.count(key) == 1:
        return numbers[names.index(key)]
    if key.isascii() and key.isdigit() and int(key) < frames:
        return numbers[int(key)]
    raise RasterError(
        f"{file}: there is no page {key!r}; it has the pages 0 to {frames - 1}{_named(names)}.{suggestion(key, names)}"
    )


def _name(page: Any) -> str:
    tag = page.tags.get(PAGE_NAME)
    return "" if tag is None else str(tag.value)


def _by_name(file: Path, names: Sequence[str]) -> str:
    first = next(filter(None, names), "")
    return f", or '{file}:{first}'" if first else ""


def _named(names: Sequence[str]) -> str:
    given = [name for name in names if name]
    return f", named {', '.join(given[:10])}{', ...' if len(given) > 10 else ''}" if given else ""
