"""TIFF and GeoTIFF by tifffile: bands of any real type, alpha, nodata, GDAL's masks, georeference."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from mslsq.alignment.kinds import Decoded, Kind, RasterError, Storage, rgb_of_inks, upright
from mslsq.alignment.nodata import is_nodata, parse_nodata, text_of
from mslsq.alignment.stacks import chosen, images, masks_of, refuse_guessed_colours

NODATA_TAG = 42113  # GDAL_NODATA, an ASCII number
METADATA_TAG = 42112  # GDAL_METADATA, XML
ORIENTATION_TAG = 274
GEOTAGS = (33550, 33922, 34264, 34735, 34736, 34737)  # pixel scale, tie points, matrix, the GeoKey directory's three
UNITS = re.compile(r'<Item [^>]*role="(?:scale|offset|unittype)"[^>]*>[^<]*</Item>')

LOSSLESS = ("none", "packbits", "lzw", "adobe_deflate", "deflate", "lzma", "zstd")
"""What is written as it was read; all else (JPEG, WebP, LERC may lose digits) as deflate."""
PREDICTED = ("lzw", "adobe_deflate", "deflate", "zstd", "lzma")
SIDE = 16
"""Tiles have multiples of this."""

MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE, MASK, INKS, YCBCR = 0, 1, 2, 3, 4, 5, 6
"""Tag 262, what the numbers of a pixel mean."""
ASSOCIATED, UNASSOCIATED = 1, 2
"""Tag 338: a band beside the colours is alpha, and the colours are multiplied by it or not; all others are data."""


def read_tiff(file: Path, key: str | None = None) -> Decoded:
    """The one raster of a file, or the page that `key` names; overviews and thumbnails are passed over, masks are
    taken."""
    import tifffile

    with tifffile.TiffFile(file) as tiff:
        pages: list[Any] = list(tiff.pages)
        number, plane = chosen(file, tiff, key)
        page, several = pages[number], len(images(tiff)) > 1
        array, axes = _pixels(file, page), str(page.axes)
        if axes not in ("YX", "YXS", "SYX"):
            raise RasterError(f"{file}: a raster of bands is expected, page {number} has axes {axes}, {array.shape}.")
        last = axes == "YXS"
        array = array.transpose(2, 0, 1) if last else (array[None] if axes == "YX" else array)
        refuse_guessed_colours(file, tiff, array, key)
        decoded = _decode(file, page, array if plane is None else array[[plane]], last, plane is not None)
        masks = [_pixels(file, pages[other]) for other in masks_of(tiff, number)]
        orientation = _orientation(page)
    sidecar = file.with_name(file.name + ".msk")  # where GDAL puts a mask that is not inside
    if sidecar.exists() and not several:
        masks.append(tifffile.imread(sidecar, key=0))
    known = decoded.known
    for mask in masks:
        if mask.shape != array.shape[1:]:
            raise RasterError(f"{file}: its mask has shape {mask.shape}, the raster {array.shape[1:]}.")
        known = known & (upright(mask, orientation) != 0)
    return decoded._replace(known=known)


def _pixels(file: Path, page: Any) -> np.ndarray:
    try:
        return page.asarray()
    except ValueError as error:
        if "imagecodecs" not in str(error):
            raise
        raise RasterError(
            f"{file}: this TIFF is compressed with {page.compression.name}, which needs the package imagecodecs: "
            "pip install imagecodecs (it is part of pip install 'mslsq[align]')."
        ) from error


def _decode(file: Path, page: Any, array: np.ndarray, last: bool, plane: bool) -> Decoded:
    """Bands as numbers that may be compared and interpolated; `plane`: one of several, which is no colour."""
    array, full = _numbers(file, array, page)
    nodata = _nodata(file, page, array.dtype)
    array, alpha = _alpha(page, array, full)
    photometric, holes = MIN_IS_BLACK if plane else int(page.photometric), nodata is not None
    colours = photometric in (RGB, INKS, YCBCR) and len(array) >= 3
    known = ~is_nodata(array, Kind(".tif", array.dtype, nodata=nodata, colours=colours))
    if alpha is not None:
        known &= alpha >= full / 2
    if photometric == MIN_IS_WHITE and full > 1:
        array = (full - array).astype(array.dtype)  # as it is to be seen, bright where it is bright
        nodata = None if nodata is None else int(full - nodata)
    elif photometric == PALETTE:
        array, nodata, colours = _colours(page.colormap, array), None, True
    elif photometric == INKS:
        array, nodata = rgb_of_inks(file, array), None
    elif photometric not in (MIN_IS_BLACK, RGB, MASK) and not (photometric == YCBCR and page.compression in (6, 7)):
        raise RasterError(
            f"{file}: the numbers are colours in {page.photometric.name}, which are not compared; convert it to RGB."
        )
    tags = page.tags
    geotags = tuple((t.code, int(t.dtype), t.count, t.value) for t in map(tags.get, GEOTAGS) if t is not None)
    orientation = _orientation(page)
    if geotags and orientation != 1:
        raise RasterError(
            f"{file}: georeferenced and to be seen turned (orientation {orientation}), of which every program makes "
            "something else; rewrite it with orientation 1 (gdal_translate)."
        )
    units = UNITS.findall(str(tags[METADATA_TAG].value)) if METADATA_TAG in tags else []
    kind = Kind(
        ".tif",
        array.dtype,
        alpha is not None or (holes and nodata is None),
        nodata,
        last and len(array) > 1,
        geotags,
        colours,
        f"<GDALMetadata>{''.join(units)}</GDALMetadata>" if units else None,
        _storage(page),
    )
    return Decoded(upright(array, orientation), upright(known, orientation), kind)


def _storage(page: Any) -> Storage:
    """How another raster like this one is stored."""
    name = page.compression.name.lower()
    tile = (int(page.tilelength), int(page.tilewidth)) if page.is_tiled else None
    if tile is not None and (tile[0] % SIDE or tile[1] % SIDE):
        tile = None
    return Storage(name, int(page.predictor) > 1, tile) if name in LOSSLESS else Storage(tile=tile)


def _orientation(page: Any) -> int:
    tag = page.tags.get(ORIENTATION_TAG)
    return 1 if tag is None else int(tag.value)


def _numbers(file: Path, array: np.ndarray, page: Any) -> tuple[np.ndarray, float]:
    """Real numbers in this machine's byte order, and what a full alpha is among them."""
    if array.dtype == bool or page.bitspersample == 1:
        return (array != 0).astype(np.uint8) * np.uint8(255), 255.0  # as Pillow has pictures of one bit
    if np.issubdtype(array.dtype, np.integer):
        bits = page.bitspersample - (1 if np.issubdtype(array.dtype, np.signedinteger) else 0)
        return array.astype(array.dtype.newbyteorder("=")), float(2**bits - 1)
    if not np.issubdtype(array.dtype, np.floating):
        raise RasterError(f"{file}: real numbers are expected, not {array.dtype}.")
    return array.astype(array.dtype.newbyteorder("=")), 1.0


def _nodata(file: Path, page: Any, dtype: np.dtype) -> float | int | None:
    stored = page.tags.get(NODATA_TAG)
    if stored is None:
        return None
    try:
        return parse_nodata(str(stored.value), dtype)
    except RasterError as error:
        raise RasterError(f"{file}: {error}.") from None


def _alpha(page: Any, array: np.ndarray, full: float) -> tuple[np.ndarray, np.ndarray | None]:
    """Bands without alpha, and alpha: only what the file says is alpha; near infrared is a fourth band too."""
    extra = [int(what) for what in page.extrasamples]
    places = [i for i, what in enumerate(extra, len(array) - len(extra)) if what in (ASSOCIATED, UNASSOCIATED)]
    if not places or len(array) == 1:
        return array, None
    alpha = array[places[0]]
    bands = np.delete(array, places[0], axis=0)
    if extra[places[0] - len(array)] == ASSOCIATED:
        shown = alpha > 0
        whole = np.divide(full * bands.astype(np.float64), alpha, out=np.zeros(bands.shape), where=shown)
        integer = np.issubdtype(array.dtype, np.integer)
        bands = (np.rint(np.minimum(whole, full)) if integer else whole).astype(array.dtype)
    return bands, alpha


def _colours(table: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Red, green and blue of the entries of a palette, which are 8 bits stretched to 16 in most files."""
    table = table.astype(np.uint16)
    shades = table[:, array[0]]
    if (table % 257 == 0).all():
        return (shades // 257).astype(np.uint8)
    return (shades >> 8).astype(np.uint8) if (table % 256 == 0).all() else shades


def write_tiff(file: Path, array: np.ndarray, kind: Kind, geotags: tuple[tuple[Any, ...], ...]) -> None:
    """(height, width), (height, width, bands) or (bands, height, width), as `kind` says; alpha is the last band."""
    import tifffile

    extra = [(*tag, True) for tag in geotags]
    for tag, text in (
        (NODATA_TAG, None if kind.nodata is None else text_of(kind.nodata)),
        (METADATA_TAG, kind.metadata),
    ):
        if text is not None:
            extra.append((tag, 2, len(text) + 1, text, True))
    options: dict[str, Any] = {"extratags": extra, "metadata": None, "tile": kind.storage.tile}
    options["compression"] = None if kind.storage.compression == "none" else kind.storage.compression
    if kind.storage.predictor and kind.storage.compression in PREDICTED:
        options["predictor"] = True
    bands = 1 if array.ndim == 2 else array.shape[-1 if kind.channels_last else 0]
    colours = 3 if kind.colours and bands >= 3 else 1
    options["photometric"] = "rgb" if colours == 3 else "minisblack"
    if bands > 1:
        options["planarconfig"] = "contig" if kind.channels_last else "separate"
    if bands > colours:
        options["extrasamples"] = ["unspecified"] * (bands - colours - kind.alpha) + ["unassalpha"] * kind.alpha
    tifffile.imwrite(file, array, **options)
