"""Reading and writing rasters: PNG and JPEG, 8 and 16 bit, TIFF and GeoTIFF with nodata, npy and npz.

What a file holds is read as it is or refused with a reason, before anything is aligned; nothing is rounded, masked or
left out in silence.

A file becomes values in float64, a mask of valid pixels and its `Kind`, which is what is needed to write another
raster of the same kind. Files are written beside their place and renamed, so that a file that exists is never
half-written.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.reading import read_georeference
from mslsq.alignment.coordinates.ros import decoded as decoded_ros
from mslsq.alignment.coordinates.ros import read_yaml
from mslsq.alignment.kinds import (
    ARRAY_SUFFIXES,
    SUFFIXES,
    TIFF_SUFFIXES,
    YAML_SUFFIXES,
    Decoded,
    Kind,
    RasterError,
    all_known,
)
from mslsq.alignment.nodata import also_nodata, beside_nodata
from mslsq.alignment.pictures import LARGEST_SIDE, read_picture, write_picture
from mslsq.alignment.stacks import split
from mslsq.alignment.tiff import read_tiff, write_tiff
from mslsq.replacing import replacing

__all__ = ["Kind", "Raster", "RasterError", "read_raster", "writable", "write_raster"]

LARGEST_WHOLE = 2**53
"""Up to here float64 holds all whole numbers."""


@dataclass(frozen=True)
class Raster:
    """`values` (channels, height, width) in the file's own units, without alpha; `mask` is true on data."""

    name: str
    values: Float[Tensor, "channels height width"]
    mask: Bool[Tensor, "height width"]
    kind: Kind = field(repr=False)
    georeference: Georeference | None = None
    note: str = ""
    """What is to be said of a georeference that is damaged."""
    beside: tuple[Path, ...] = field(default=(), repr=False)
    """Other files that were read: the picture of a ROS map."""
    path: Path | None = field(default=None, repr=False)
    """The file itself."""

    def luminance(self) -> Float[Tensor, "1 height width"]:
        """One channel to align by: Rec. 709 luminance of three bands, the mean of any other number. Of a map of ROS,
        walls are dark, whatever its own greys are."""
        if self.kind.ros is not None:
            return self.kind.ros.walls_dark(self.values.mean(0, keepdim=True))
        if self.values.shape[0] == 3:
            return torch.einsum("chw,c->hw", self.values, self.values.new_tensor([0.2126, 0.7152, 0.0722]))[None]
        return self.values.mean(0, keepdim=True)


def read_raster(path: str | Path, nodata: float | None = None) -> Raster:
    """Read one file. `archive.npz:key` chooses an array of an npz, `stack.tif:3` a page of a TIFF (from 0, or by its
    name), `map.yaml` is a map of ROS.

    Alpha (below one half), nodata, GDAL's masks and numbers that are not finite become false in the mask. Pictures
    are read upright and in colours: the orientation of EXIF, palettes, inks and inverted grey are applied. `nodata`
    is one more number for no data, which the file does not name (of colours, where all bands have it).

    Raises:
        RasterError: the file is missing, empty, of an unknown type, damaged, not one raster, or of a kind that cannot
            be read without loss.
    """
    file, key = split(path)
    file = file.expanduser()
    suffix = file.suffix.lower()
    if not file.exists():
        raise RasterError(f"{file}: there is no such file. Paths are relative to {Path.cwd()}.")
    if file.is_dir():
        raise RasterError(f"{file}: this is a directory, not a raster; give its files, or a pattern: '{file}/*.tif'.")
    if suffix not in SUFFIXES:
        raise RasterError(f"{file}: files of type {suffix or '(none)'} are not read; {', '.join(SUFFIXES)} are.")
    if file.stat().st_size == 0:
        raise RasterError(f"{file}: the file is empty (0 bytes).")
    if suffix in YAML_SUFFIXES:
        return _read_ros(file)
    try:
        if suffix in TIFF_SUFFIXES:
            decoded = read_tiff(file, key)
        elif suffix in ARRAY_SUFFIXES:
            decoded = _read_array(file, key)
        else:
            decoded = read_picture(file)
    except RasterError:
        raise
    except Exception as error:  # decoders raise anything at all on damaged files
        raise RasterError(f"{file}: cannot be read as a {suffix} raster ({type(error).__name__}: {error}).") from error
    raster = _raster(file, also_nodata(decoded, nodata))
    if key is None or suffix not in TIFF_SUFFIXES:
        return raster
    return replace(raster, name=f"{file.name}:{key}", path=None)  # a header of the file would be one of all pages


def _raster(file: Path, decoded: Decoded) -> Raster:
    bands, known, kind = decoded
    if bands.size == 0:
        raise RasterError(f"{file.name}: the raster has no pixels, shape {bands.shape}.")
    if bands.dtype.itemsize > 8:
        raise RasterError(f"{file}: numbers of {bands.dtype} lose digits in float64; save it as float64.")
    if bands.dtype in (np.int64, np.uint64):
        data = bands[:, known]
        if data.size and (int(data.max()) > LARGEST_WHOLE or int(data.min()) < -LARGEST_WHOLE):
            raise RasterError(
                f"{file}: whole numbers from {data.min()} to {data.max()} lose digits in float64, which "
                "has them up to 2**53. Subtract a number from all, or name the one that is no data (nodata)."
            )
    values = torch.from_numpy(np.ascontiguousarray(bands).astype(np.float64))
    mask = torch.from_numpy(np.ascontiguousarray(known)) & values.isfinite().all(0)
    return Raster(file.name, values, mask, kind, *read_georeference(file, kind.geotags), path=file)


def _read_ros(file: Path) -> Raster:
    """The picture of a `map.yaml` as greys, unknown cells masked."""
    try:
        said = read_yaml(file)
    except GeoreferenceError as error:
        raise RasterError(str(error)) from None
    picture = read_raster(said.image)
    shown = picture.mask.numpy() if picture.kind.alpha else None
    bands, known = decoded_ros(picture.values.numpy().astype(picture.kind.dtype), shown, said.ros)
    suffix = ".png" if said.ros.mode == "scale" else ".pgm"
    alpha = said.ros.mode == "scale"
    kind = Kind(
        suffix, np.dtype(np.uint8), alpha, None if alpha else said.ros.unknown, channels_last=alpha, ros=said.ros
    )
    values, height = torch.from_numpy(bands), known.shape[0]
    georeference = said.georeference(height)
    return Raster(file.name, values, torch.from_numpy(known), kind, georeference, beside=(said.image,), path=file)


def _read_array(file: Path, key: str | None) -> Decoded:
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
    bands = array[None] if array.ndim == 2 else (array.transpose(2, 0, 1) if last else array)
    return Decoded(bands, all_known(bands), kind)


def _real(file: Path, array: np.ndarray) -> np.ndarray:
    if array.dtype == bool:
        return array.astype(np.uint8)
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise RasterError(f"{file}: real numbers are expected, not {array.dtype}.")
    return array.astype(array.dtype.newbyteorder("="))


def writable(kind: Kind, height: int, width: int) -> Kind:
    """This kind, or the one that is written instead where its format has no pictures of this size."""
    return replace(kind, suffix=".png") if max(height, width) > LARGEST_SIDE.get(kind.suffix, height + width) else kind


def write_raster(
    path: str | Path,
    values: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    kind: Kind,
    geotags: tuple[tuple[Any, ...], ...] = (),
) -> Path:
    """Write a raster of this `kind`; the suffix of `path` is replaced by the kind's. Returns the path written.

    Numbers are rounded and clipped to the range of the type; data that this makes equal to nodata are moved to the next
    number. Where the mask is false: alpha 0 where the kind has alpha, else its nodata value, else NaN (floats) or 0
    (integers). `geotags` are the georeference of the *grid* the values are on.
    """
    path = Path(path)
    path = path.with_name(path.name.removesuffix(path.suffix) + kind.suffix)
    known, array = mask.cpu().numpy(), as_stored(values, mask, kind)
    integer = np.issubdtype(kind.dtype, np.integer)
    if kind.alpha:
        array = np.concatenate(
            [array, np.where(known, np.iinfo(kind.dtype).max if integer else 1, 0).astype(kind.dtype)[None]]
        )
    array = array.transpose(1, 2, 0) if kind.channels_last else (array[0] if array.shape[0] == 1 else array)
    with replacing(path) as temporary:
        if kind.suffix in TIFF_SUFFIXES:
            write_tiff(temporary, array, kind, geotags)
        elif kind.suffix in ARRAY_SUFFIXES:
            with open(temporary, "wb") as stream:
                np.save(stream, array)
        else:
            write_picture(temporary, array, kind.suffix)
    return path


def as_stored(
    values: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], kind: Kind
) -> np.ndarray:
    """The numbers that a file of this kind holds: rounded, clipped, beside nodata where they are data, nodata where
    they are not."""
    integer = np.issubdtype(kind.dtype, np.integer)
    known = mask.cpu().numpy()
    limits: Any = np.iinfo(kind.dtype) if integer else np.finfo(kind.dtype)
    numbers = values.detach().cpu().double().numpy()
    array = _held(np.rint(np.nan_to_num(numbers, posinf=limits.max, neginf=limits.min)) if integer else numbers, limits)
    array = beside_nodata(array, known, kind)
    outside = kind.nodata if kind.nodata is not None else (0 if integer else float("nan"))
    return np.where(known, array, np.array(outside, kind.dtype))


def _held(numbers: np.ndarray, limits: Any) -> np.ndarray:
    """float64 → the type, without wrapping around: 2**63 is the float64 that int64's largest number rounds to."""
    with np.errstate(invalid="ignore"):
        array = np.clip(numbers, float(limits.min), float(limits.max)).astype(limits.dtype)
    if limits.dtype in (np.int64, np.uint64):
        array[numbers >= float(limits.max)] = limits.max
    return array
