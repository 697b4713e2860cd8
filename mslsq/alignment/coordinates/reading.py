"""A raster's georeference from what lies in its file and beside it, in GDAL's order: .aux.xml, tags, world file."""

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float

from mslsq.alignment.coordinates.georeference import CORNER_TO_CENTRE, Georeference, GeoreferenceError
from mslsq.alignment.coordinates.tags import Geotags, crs_code, matrix_of

INSTALL = "pip install 'mslsq[geo]'"
TAGS = "the GeoTIFF's tags"
"""What a georeference of those is from."""
ORIENTATION = 274
"""EXIF's tag."""


class Found(NamedTuple):
    """The georeference, or None, and what is to be said of a header that is not used."""

    georeference: Georeference | None
    note: str = ""


class _Part(NamedTuple):
    matrix: Float[np.ndarray, "3 3"] | None = None
    crs: str | None = None
    source: str = ""


def read_georeference(file: Path, geotags: Geotags = ()) -> Found:
    """What says where a raster lies. A header that is damaged is not used, and the note says why.

    The first place that has a geotransform gives it, the first that has a CRS gives that.
    """
    try:
        parts = [_from_sidecar(file), _from_tags(file, geotags), _from_world_file(file)]
        placed = next((part for part in parts if part.matrix is not None), None)
        matrix = None if placed is None else placed.matrix
        if placed is None or matrix is None or np.array_equal(matrix, CORNER_TO_CENTRE):  # what GDAL has for "none"
            return Found(None)
        if _turned(file):
            raise GeoreferenceError(f"{placed.source} is of the picture as it is stored, which is to be seen turned.")
        crs = next((part.crs for part in parts if part.crs is not None), None)
        return Found(Georeference(matrix, crs, placed.source))
    except GeoreferenceError as error:
        return Found(None, f"its georeference is not used: {error}")


def _from_sidecar(file: Path) -> _Part:
    """GDAL's persistent metadata."""
    path = file.with_name(file.name + ".aux.xml")
    if not path.exists():
        return _Part()
    try:
        root = ElementTree.parse(path).getroot()
        text, crs = root.findtext("GeoTransform"), root.findtext("SRS")
        matrix = None if text is None else Georeference.from_geotransform(_numbers(text.split(","), 6)).matrix
    except (ElementTree.ParseError, ValueError, OSError) as error:
        raise GeoreferenceError(f"{path.name} cannot be read ({error}).") from None
    return _Part(matrix, crs or None, path.name)


def _from_tags(file: Path, geotags: Geotags) -> _Part:
    if not geotags:
        return _Part()
    code = crs_code(geotags)
    crs = f"EPSG:{code}" if code else _described_crs(file) if code == 0 else None
    return _Part(matrix_of(geotags), crs, TAGS)


def _described_crs(file: Path) -> str | None:
    """A CRS that a GeoTIFF describes without a code, as WKT."""
    try:
        import rasterio
    except ImportError:
        raise GeoreferenceError(f"its CRS has no EPSG code, and needs rasterio to be read: {INSTALL}.") from None
    with rasterio.open(file) as dataset:
        return dataset.crs.to_wkt() if dataset.crs else None


def _from_world_file(file: Path) -> _Part:
    """Six lines: the step along a row (X, Y), the step down a column (X, Y), the centre of the first pixel (X, Y)."""
    suffix = file.suffix.lstrip(".")
    endings = [f".{suffix[0]}{suffix[-1]}w", f".{suffix}w", ".wld"] if suffix else []
    for ending in dict.fromkeys(one for name in endings for one in (name, name.lower(), name.upper())):
        path = file.with_suffix(ending)
        if path.exists():
            break
    else:
        return _Part()
    try:
        a, d, b, e, c, f = _numbers(path.read_text("utf-8").split(), 6)
    except (ValueError, OSError) as error:
        raise GeoreferenceError(f"the world file {path.name} cannot be read ({error}).") from None
    crs = file.with_suffix(".prj")
    text = crs.read_text("utf-8").strip() if crs.exists() else ""
    return _Part(np.array([[a, b, c], [d, e, f], [0, 0, 1.0]]), text or None, f"the world file {path.name}")


def _numbers(texts: list[str], count: int) -> list[float]:
    if len(texts) != count:
        raise ValueError(f"{count} numbers are expected, it has {len(texts)}")
    return [float(text) for text in texts]


def _turned(file: Path) -> bool:
    """Does EXIF say that a picture is to be seen turned? Of TIFF `tiff.read_tiff` has asked."""
    if file.suffix.lower() not in (".jpg", ".jpeg", ".png", ".webp"):
        return False
    from PIL import Image

    with Image.open(file) as picture:
        return picture.getexif().get(ORIENTATION, 1) != 1
