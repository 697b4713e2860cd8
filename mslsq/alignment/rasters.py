"""Reading and writing rasters: PNG and JPEG, 8 and 16 bit, TIFF and GeoTIFF with nodata, npy and npz.

A file becomes values in float64, a mask of valid pixels and its `Kind`, which is what is needed to write another
raster of the same kind. Files are written beside their place and renamed, so that a file that exists is never
half-written.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.replacing import replacing as replacing
from mslsq.replacing import write_text as write_text

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
TIFF_SUFFIXES = (".tif", ".tiff")
ARRAY_SUFFIXES = (".npy", ".npz")
SUFFIXES = IMAGE_SUFFIXES + TIFF_SUFFIXES + ARRAY_SUFFIXES

NODATA_TAG = 42113  # GDAL_NODATA, an ASCII number
GEOTAGS = (33550, 33922, 34264, 34735, 34736, 34737)  # pixel scale, tie points, matrix, the GeoKey directory's three


class RasterError(ValueError):
    """A file that cannot be read as a raster, with the reason and what to try."""


@dataclass(frozen=True)
class Kind:
    """How a raster was stored: enough to write another one like it."""

    suffix: str
    dtype: np.dtype
    alpha: bool = False
    nodata: float | None = None
    channels_last: bool = False
    geotags: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class Raster:
    """`values` (channels, height, width) in the file's own units, without alpha; `mask` is true on data."""

    name: str
    values: Float[Tensor, "channels height width"]
    mask: Bool[Tensor, "height width"]
    kind: Kind = field(repr=False)

    def luminance(self) -> Float[Tensor, "1 height width"]:
        """One channel to align by: Rec. 709 luminance of three bands, the mean of any other number."""
        if self.values.shape[0] == 3:
            return torch.einsum("chw,c->hw", self.values, self.values.new_tensor([0.2126, 0.7152, 0.0722]))[None]
        return self.values.mean(0, keepdim=True)


def read_raster(path: str | Path) -> Raster:
    """Read one file. `archive.npz:key` chooses an array of an npz.

    Alpha (below one half), nodata values and numbers that are not finite become false in the mask.

    Raises:
        RasterError: the file is missing, empty, of an unknown type, damaged, or not a raster.
    """
    text, key = str(path), None
    if ".npz:" in text:
        text, key = text.rsplit(":", 1)
    file = Path(text).expanduser()
    suffix = file.suffix.lower()
    if not file.exists():
        raise RasterError(f"{file}: there is no such file. Paths are relative to {Path.cwd()}.")
    if file.is_dir():
        raise RasterError(f"{file}: this is a directory, not a raster; give its files.")
    if suffix not in SUFFIXES:
        raise RasterError(f"{file}: files of type {suffix or '(none)'} are not read; {', '.join(SUFFIXES)} are.")
    if file.stat().st_size == 0:
        raise RasterError(f"{file}: the file is empty (0 bytes).")
    try:
        if suffix in TIFF_SUFFIXES:
            array, kind = _read_tiff(file)
        elif suffix in ARRAY_SUFFIXES:
            array, kind = _read_array(file, key)
        else:
            array, kind = _read_image(file)
    except RasterError:
        raise
    except Exception as error:  # decoders raise anything at all on damaged files
        raise RasterError(f"{file}: cannot be read as a {suffix} raster ({type(error).__name__}: {error}).") from error
    return _raster(file.name, array, kind)


def _raster(name: str, array: np.ndarray, kind: Kind) -> Raster:
    """(channels, height, width) with alpha last → values and mask."""
    if array.size == 0:
        raise RasterError(f"{name}: the raster has no pixels, shape {array.shape}.")
    values = torch.from_numpy(np.ascontiguousarray(array).astype(np.float64))
    mask = torch.ones(values.shape[1:], dtype=torch.bool)
    if kind.alpha:
        half = float(np.iinfo(kind.dtype).max) / 2 if np.issubdtype(kind.dtype, np.integer) else 0.5
        mask, values = values[-1] >= half, values[:-1]
    if kind.nodata is not None and np.isfinite(kind.nodata):
        mask = mask & (values != kind.nodata).all(0)
    return Raster(name, values, mask & values.isfinite().all(0), kind)


def _read_image(file: Path) -> tuple[np.ndarray, Kind]:
    import imageio.v3 as iio

    array = np.asarray(iio.imread(file, index=0 if file.suffix.lower() == ".webp" else None))
    if array.ndim == 2:
        return array[None], Kind(file.suffix.lower(), array.dtype)
    if array.ndim != 3:
        raise RasterError(f"{file}: one picture is expected, this file decodes to shape {array.shape}.")
    kind = Kind(file.suffix.lower(), array.dtype, alpha=array.shape[-1] in (2, 4), channels_last=True)
    return array.transpose(2, 0, 1), kind


def _read_tiff(file: Path) -> tuple[np.ndarray, Kind]:
    import tifffile

    with tifffile.TiffFile(file) as tiff:
        page = tiff.pages[0]
        array, axes, tags = page.asarray(), page.axes, page.tags  # pyright: ignore
        stored = tags.get(NODATA_TAG)
        geotags = [(t.code, int(t.dtype), t.count, t.value) for t in map(tags.get, GEOTAGS) if t is not None]
        extra = bool(getattr(page, "extrasamples", ()))
    nodata = None
    if stored is not None:
        try:
            nodata = float(str(stored.value).strip("\x00 "))
        except ValueError:
            nodata = None
    last = axes.endswith("S") and array.ndim == 3
    if array.ndim == 2:
        array = array[None]
    elif last:
        array = array.transpose(2, 0, 1)
    elif array.ndim != 3:
        raise RasterError(f"{file}: a raster of bands is expected, the first page has axes {axes}, {array.shape}.")
    kind = Kind(".tif", array.dtype, extra and array.shape[0] in (2, 4), nodata, last, tuple(geotags))
    return _real(file, array), kind


def _read_array(file: Path, key: str | None) -> tuple[np.ndarray, Kind]:
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        array = loaded
    else:
        with loaded:
            rasters = [name for name in loaded.files if loaded[name].ndim in (2, 3)]
            if key is None and len(rasters) == 1:
                key = rasters[0]
            if key is None or key not in loaded.files:
                raise RasterError(
                    f"{file}: holds the arrays {loaded.files}, of which {rasters} are rasters; "
                    f"choose one as '{file}:{rasters[0] if rasters else 'name'}'."
                )
            array = loaded[key]
    if array.ndim not in (2, 3):
        raise RasterError(f"{file}: shape (H, W), (C, H, W) or (H, W, C) is expected, not {array.shape}.")
    array = _real(file, array)
    # An axis of at most four entries at the end and a longer one in front: channels last, as pictures have them.
    last = array.ndim == 3 and array.shape[-1] <= 4 < array.shape[0]
    kind = Kind(".npy", array.dtype, channels_last=last)
    if array.ndim == 2:
        return array[None], kind
    return (array.transpose(2, 0, 1) if last else array), kind


def _real(file: Path, array: np.ndarray) -> np.ndarray:
    if array.dtype == bool:
        return array.astype(np.uint8)
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise RasterError(f"{file}: real numbers are expected, not {array.dtype}.")
    return array


def write_raster(
    path: str | Path,
    values: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    kind: Kind,
    geotags: tuple[tuple[Any, ...], ...] = (),
) -> Path:
    """Write a raster of this `kind`; the suffix of `path` is replaced by the kind's. Returns the path written.

    Integers are rounded and clipped to their range. Where the mask is false: alpha 0 where the kind has alpha, else
    its nodata value, else NaN (floats) or 0 (integers). `geotags` are the georeference of the *grid* the values are on.
    """
    path = Path(path).with_suffix(kind.suffix)
    integer = np.issubdtype(kind.dtype, np.integer)
    outside = kind.nodata if kind.nodata is not None else (0.0 if integer else float("nan"))
    array = torch.where(mask, values, torch.full_like(values, outside)).cpu().numpy()
    if kind.alpha:
        full = float(np.iinfo(kind.dtype).max) if integer else 1.0
        array = np.concatenate([array, mask.cpu().numpy()[None] * full])
    if integer:
        limits = np.iinfo(kind.dtype)
        array = np.clip(np.rint(np.nan_to_num(array)), limits.min, limits.max)
    array = array.astype(kind.dtype)
    array = array.transpose(1, 2, 0) if kind.channels_last else (array[0] if array.shape[0] == 1 else array)
    with replacing(path) as temporary:
        if kind.suffix in TIFF_SUFFIXES:
            _write_tiff(temporary, array, kind, geotags)
        elif kind.suffix in ARRAY_SUFFIXES:
            np.save(temporary, array)
        else:
            import imageio.v3 as iio

            quality: dict[str, Any] = {"quality": 95} if kind.suffix in (".jpg", ".jpeg") else {}
            iio.imwrite(temporary, array, **quality)
    return path


def _write_tiff(file: Path, array: np.ndarray, kind: Kind, geotags: tuple[tuple[Any, ...], ...]) -> None:
    import tifffile

    extra = [(*tag, True) for tag in geotags]
    if kind.nodata is not None:
        text = f"{kind.nodata:g}"
        extra.append((NODATA_TAG, 2, len(text) + 1, text, True))
    options: dict[str, Any] = {"extratags": extra, "metadata": None, "compression": "zlib"}
    if array.ndim == 3 and kind.channels_last and array.shape[-1] in (3, 4):
        options |= {"photometric": "rgb"} | ({"extrasamples": ["unassalpha"]} if kind.alpha else {})
    else:
        options |= {"photometric": "minisblack"}
        if array.ndim == 3:
            options |= {"planarconfig": "contig" if kind.channels_last else "separate"}
    tifffile.imwrite(file, array, **options)
