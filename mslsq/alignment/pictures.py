"""Pictures by Pillow: PNG of 1 to 16 bits, JPEG, BMP, PGM, PPM and WebP, with what Pillow would leave out or round."""

from pathlib import Path
from typing import Any

import numpy as np

from mslsq.alignment.kinds import Decoded, Kind, RasterError, all_known, rgb_of_inks, upright
from mslsq.alignment.png16 import png_header, read_png16, write_png16

SUFFIXES_OF = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (".jpg", ".jpeg"),
    "BMP": (".bmp",),
    "DIB": (".bmp",),
    "PPM": (".pgm", ".ppm"),
    "WEBP": (".webp",),
}
LARGEST_SIDE = {".jpg": 65535, ".jpeg": 65535, ".webp": 16383}
"""Of what these formats can hold, in pixels."""
ORIENTATION = 274  # the EXIF tag


def read_picture(file: Path) -> Decoded:
    """One picture as it is to be seen: upright, colours instead of palette entries and inks, alpha as the mask."""
    from PIL import Image

    with Image.open(file) as picture:
        if picture.format not in SUFFIXES_OF:
            raise RasterError(f"{file}: the file is a {picture.format}, not a {file.suffix}; rename or convert it.")
        frames = getattr(picture, "n_frames", 1)
        if frames > 1 and picture.format != "MPO":  # telephones put depth and brightness maps behind their photographs
            raise RasterError(f"{file}: one picture is expected, this file holds {frames}; save the one that you mean.")
        array = _pixels(file, picture)
        orientation = picture.getexif().get(ORIENTATION, 1)
    array = upright(array.transpose(2, 0, 1) if array.ndim == 3 else array[None], orientation)
    alpha = len(array) in (2, 4)
    suffix = _suffix(file, picture.format, len(array), alpha)
    kind = Kind(suffix, array.dtype, alpha, channels_last=len(array) > 1, colours=len(array) >= 3)
    if not alpha:
        return Decoded(array, all_known(array), kind)
    return Decoded(array[:-1], array[-1] >= np.iinfo(array.dtype).max / 2, kind)


def _pixels(file: Path, picture: Any) -> np.ndarray:
    """(height, width) or (height, width, bands), 8 or 16 bits; 2 or 4 bands have alpha last."""
    depth = 8
    if picture.format == "PNG":
        header = png_header(file)
        depth = header.depth
        if depth == 16 and header.colour_type != 0:
            return _transparent_colour(read_png16(file), picture.info.get("transparency"))
    mode, key = picture.mode, picture.info.get("transparency")
    if mode in ("P", "PA"):  # numbers of colours
        return np.asarray(picture.convert("RGB" if mode == "P" and key is None else "RGBA"))
    if mode == "CMYK":
        return rgb_of_inks(file, np.asarray(picture).transpose(2, 0, 1)).transpose(1, 2, 0)
    if mode == "1":
        return _transparent_colour(np.asarray(picture.convert("L")), None if key is None else 255 * bool(key))
    if mode == "L" and key is not None:  # in the file's own bits, which Pillow stretches to 8
        return _transparent_colour(np.asarray(picture), key * 255 // (2**depth - 1))
    if picture.format == "PPM" and mode == "RGB" and _largest_value(file) > 255:
        raise RasterError(f"{file}: PPM of 16 bits is not read; convert it to PNG or TIFF.")
    if mode in ("L", "LA", "RGB", "RGBA"):
        return _transparent_colour(np.asarray(picture), key if mode == "RGB" else None)
    if mode.startswith("I"):
        array = np.asarray(picture)
        if array.size and array.min() >= 0 and array.max() <= 65535:
            return _transparent_colour(array.astype(np.uint16), key)
    raise RasterError(f"{file}: pictures of mode {mode} are not read; convert it to RGB or grey.")


def _transparent_colour(array: np.ndarray, key: Any) -> np.ndarray:
    """With an alpha band, where one colour of the file stands for no data (PNG's chunk tRNS)."""
    if key is None:
        return array
    bands = array if array.ndim == 3 else array[..., None]
    seen = (bands != np.array(key, dtype=np.int64)).any(-1, keepdims=True)
    return np.concatenate([bands, np.where(seen, np.iinfo(array.dtype).max, 0).astype(array.dtype)], -1)


def _suffix(file: Path, form: str, bands: int, alpha: bool) -> str:
    """What a picture like this one is written as: by what the file is, not by its name."""
    if form == "PPM":
        return ".pgm" if bands == 1 else ".ppm"
    if alpha and form not in ("PNG", "WEBP"):
        return ".png"  # BMP's fourth band is not read by every program
    own = file.suffix.lower()
    return own if own in SUFFIXES_OF[form] else SUFFIXES_OF[form][0]


def _largest_value(file: Path) -> int:
    """The fourth word of a PPM's header, between comments."""
    with open(file, "rb") as stream:
        words = [word for line in stream.read(4096).split(b"\n") for word in line.split(b"#")[0].split()]
    return int(words[3])


def write_picture(file: Path, array: np.ndarray, suffix: str) -> None:
    """(height, width[, bands]) of uint8 or uint16; all but JPEG hold it without loss."""
    from PIL import Image

    if array.dtype == np.uint16 and array.ndim == 3:
        write_png16(file, array)
        return
    options: dict[str, Any] = {"quality": 95} if suffix in (".jpg", ".jpeg") else {}
    if suffix == ".webp":
        options = {"lossless": True, "exact": True}
    Image.fromarray(np.ascontiguousarray(array)).save(file, **options)
