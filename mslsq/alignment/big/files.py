"""A raster that stays in its file: windows of it, at its own pixels or reduced, through rasterio."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.reading import INSTALL
from mslsq.alignment.grids import block_means
from mslsq.alignment.kinds import TIFF_SUFFIXES, Kind, RasterError
from mslsq.alignment.nodata import is_nodata, parse_nodata, text_of
from mslsq.alignment.stacks import refuse_unclear_colours

CHUNK = 1 << 22
"""Pixels that are decoded at a time when a raster is reduced: 32 MB as float64."""

CACHE = 64
"""Megabytes of decoded blocks that GDAL keeps; its own choice, a twentieth of the machine, would not know the limit."""

AROUND = 32
"""Pixels around what a window shows that a spline needs: its prefilter has forgotten what lies beyond
(`sampling.REACH`)."""

LUMINANCE = 0.2126, 0.7152, 0.0722


def rasterio_here() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import rasterio
    except ImportError:
        raise RasterError(f"rasters are read in windows by rasterio, which is not installed: {INSTALL}.") from None
    return rasterio


def reduced(size: tuple[int, int], factor: int) -> tuple[int, int]:
    """Height and width in blocks of `factor`; a last one that is not whole counts."""
    return -(-size[0] // factor), -(-size[1] // factor)


def factor_for(size: tuple[int, int], most: int) -> int:
    """The least power of two by which a raster is reduced to `most` pixels or fewer."""
    factor = 1
    while math.prod(reduced(size, factor)) > most:
        factor *= 2
    return factor


@contextmanager
def small_cache() -> Iterator[None]:
    """GDAL with a cache that fits into the limit, and no warnings of files without a georeference."""
    rasterio = rasterio_here()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.Env(GDAL_CACHEMAX=CACHE):
            yield


@dataclass(frozen=True)
class RasterFile:
    """A raster in a file, of which nothing is in memory. `RasterFile.open(path)` reads its header."""

    path: Path
    size: tuple[int, int]
    """Height and width."""
    kind: Kind
    """Data type and nodata; the tiles and the compression are in `profile`."""
    bands: tuple[int, ...]
    """Numbers of the bands that hold data, from 1; alpha is not among them."""
    overviews: tuple[int, ...]
    """Factors of the reduced copies in the file."""
    georeference: Georeference | None
    note: str = ""
    """What is to be said of a georeference that is not used."""
    profile: dict[str, Any] = field(default_factory=dict, repr=False)
    """Of rasterio: what another file needs to be stored alike."""
    alpha: int | None = None
    masked: bool = False
    """Does GDAL know a mask beside nodata and alpha?"""
    undeclared: float | int | None = None
    """One more number for no data, which the file does not name."""

    @staticmethod
    def open(path: str | Path, nodata: float | None = None) -> "RasterFile":
        """The header of a file, and one more number for no data, which it does not name.

        Raises:
            RasterError: rasterio is missing, the file is, or it is no raster of real numbers.
        """
        rasterio = rasterio_here()
        path = Path(path).expanduser()
        if not path.exists():
            raise RasterError(f"{path}: there is no such file. Paths are relative to {Path.cwd()}.")
        if path.is_dir():
            raise RasterError(f"{path}: this is a folder; name a file in it.")
        try:
            with small_cache(), rasterio.open(path) as dataset:
                header = _header(path, dataset)
        except rasterio.errors.RasterioError as error:
            raise RasterError(
                f"{path}: it cannot be read in windows ({_plain(error)}). Is it a raster, and whole? If so, save it as "
                "a tiled GeoTIFF (gdal_translate -co TILED=YES)."
            ) from error
        held = None if nodata is None else parse_nodata(text_of(nodata), header.kind.dtype)
        return replace(header, undeclared=held)

    @property
    def name(self) -> str:
        """Of the file, without its folder."""
        return self.path.name

    @property
    def exact_overviews(self) -> tuple[int, ...]:
        """Those whose pixels are whole blocks: of sides that are no multiples GDAL makes blocks of 3.9 pixels, say,
        and the last one would be off by almost one. None where they have means of a number for no data."""
        if self.undeclared is not None:
            return ()
        return tuple(one for one in self.overviews if not any(side % one for side in self.size))

    def reduced(self, factor: int) -> tuple[int, int]:
        """Height and width of the raster reduced by a factor; a last block that is not whole counts."""
        return reduced(self.size, factor)

    def read(
        self, top: int, left: int, height: int, width: int, factor: int = 1
    ) -> tuple[Float[Tensor, "channels height width"], Bool[Tensor, "height width"]]:
        """A window, in pixels of the raster reduced by `factor`: its values in float64, and where they are known.

        A reduced pixel (x, y) is the mean of the data in the block of `factor`² pixels whose first is (factor x,
        factor y), from the largest of `exact_overviews` that divides `factor`, or from all pixels. What lies outside
        of the raster is not known.

        Raises:
            RasterError: the file is damaged there.
        """
        rasterio = rasterio_here()
        values = torch.zeros(len(self.bands), height, width, dtype=torch.float64, device="cpu")
        known = torch.zeros(height, width, dtype=torch.bool, device="cpu")
        overview = max((one for one in self.exact_overviews if factor % one == 0), default=1)
        level = {} if overview == 1 else {"overview_level": self.overviews.index(overview)}
        try:
            with small_cache(), rasterio.open(self.path, **level) as dataset:
                self._fill(dataset, values, known, top, left, factor // overview)
        except rasterio.errors.RasterioError as error:
            raise RasterError(
                f"{self.path}: rows {top * factor} to {(top + height) * factor}, columns {left * factor} to "
                f"{(left + width) * factor} cannot be read ({_plain(error)}); is the file whole? Copy it again, or "
                "save what of it can be read (gdal_translate -srcwin)."
            ) from error
        return values, known

    def grey(
        self, top: int, left: int, height: int, width: int, factor: int = 1
    ) -> tuple[Float[Tensor, "1 height width"], Bool[Tensor, "height width"]]:
        """`read` as one channel to align by: luminance of colours, the mean of other bands."""
        values, known = self.read(top, left, height, width, factor)
        if self.kind.colours:
            return torch.einsum("chw,c->hw", values[:3], values.new_tensor(LUMINANCE))[None], known
        return values.mean(0, keepdim=True), known

    def _fill(self, dataset: Any, values: Tensor, known: Tensor, top: int, left: int, rest: int) -> None:
        """Some rows at a time, so that the whole width of a large raster fits."""
        rows, columns = known.shape
        first, last = max(0, -left), min(columns, -(-dataset.width // rest) - left)
        step = max(1, CHUNK // max(1, (last - first) * rest * rest))
        begin, end = max(0, -top), min(rows, -(-dataset.height // rest) - top)
        if last <= first:
            return
        for row in range(begin, end, step):
            height = min(step, end - row)
            box = (top + row) * rest, (left + first) * rest, height * rest, (last - first) * rest
            part, mask = self._window(dataset, *box)
            if rest > 1:
                part, mask = block_means(part, mask, rest)
            values[:, row : row + height, first:last] = torch.from_numpy(part)
            known[row : row + height, first:last] = torch.from_numpy(mask)

    def _window(
        self, dataset: Any, top: int, left: int, height: int, width: int
    ) -> tuple[Float[np.ndarray, "channels h w"], Bool[np.ndarray, "h w"]]:
        """What of a window lies inside, where it is data; 0 elsewhere."""
        from rasterio.windows import Window

        height, width = min(height, dataset.height - top), min(width, dataset.width - left)
        window = Window(left, top, width, height)  # pyright: ignore[reportCallIssue]
        bands = dataset.read(list(self.bands), window=window)
        mask = ~is_nodata(bands, self.kind)
        if self.undeclared is not None:
            mask &= ~is_nodata(bands, replace(self.kind, nodata=self.undeclared))
        if self.alpha is not None:
            full = np.iinfo(self.kind.dtype).max if np.issubdtype(self.kind.dtype, np.integer) else 1.0
            mask &= dataset.read(self.alpha, window=window) >= full / 2
        elif self.masked:
            mask &= dataset.read_masks(self.bands[0], window=window) > 0
        part = bands.astype(np.float64)
        if not np.issubdtype(bands.dtype, np.integer):
            mask &= np.isfinite(part).all(0)
        if not mask.all():
            part[:, ~mask] = 0.0
        return part, mask


def _header(path: Path, dataset: Any) -> RasterFile:
    from rasterio.enums import ColorInterp, MaskFlags

    _refuse_stacks(path, dataset)
    meanings = list(dataset.colorinterp)
    if ColorInterp.palette in meanings:
        raise RasterError(f"{path}: its numbers are entries of a palette, which have no mean; convert it to RGB.")
    alpha = next((i for i, meaning in enumerate(meanings, 1) if meaning is ColorInterp.alpha), None)
    bands = [int(i) for i in dataset.indexes if i != alpha]
    if not bands:
        raise RasterError(f"{path}: it has no band of data.")
    types = {np.dtype(dataset.dtypes[i - 1]) for i in bands}
    dtype = types.pop() if len(types) == 1 else np.dtype(complex)
    if not (np.issubdtype(dtype, np.integer) or np.issubdtype(dtype, np.floating)):
        raise RasterError(f"{path}: bands of one type of real numbers are expected, not {', '.join(dataset.dtypes)}.")
    colours = len(bands) >= 3 and meanings[0] is ColorInterp.red
    nodata = None if dataset.nodata is None else parse_nodata(text_of(dataset.nodata), dtype)
    kind = Kind(".tif", dtype, nodata=nodata, colours=colours)
    flags = dataset.mask_flag_enums[bands[0] - 1]
    masked = MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags and nodata is None
    georeference, note = _georeference(dataset)
    overviews = tuple(int(one) for one in dataset.overviews(bands[0]))
    profile = dict(dataset.profile) | {"predictor": dataset.tags(ns="IMAGE_STRUCTURE").get("PREDICTOR")}
    profile |= {"scales": dataset.scales, "offsets": dataset.offsets, "units": dataset.units}
    size = dataset.height, dataset.width
    return RasterFile(path, size, kind, tuple(bands), overviews, georeference, note, profile, alpha, masked)


def _refuse_stacks(path: Path, dataset: Any) -> None:
    """GDAL shows the first page of several, and planes that tifffile took for colours as what the file calls them."""
    if len(dataset.subdatasets) > 1:
        raise RasterError(
            f"{path}: one raster is expected, this file holds {len(dataset.subdatasets)}. Write the one that is meant "
            "into a file of its own (gdal_translate)."
        )
    if path.suffix.lower() in TIFF_SUFFIXES:
        refuse_unclear_colours(path)


def _georeference(dataset: Any) -> tuple[Georeference | None, str]:
    if dataset.transform.is_identity:
        return None, ""
    epsg = dataset.crs.to_epsg() if dataset.crs else None
    crs = f"EPSG:{epsg}" if epsg else dataset.crs.to_wkt() if dataset.crs else None
    try:
        return Georeference.from_geotransform(dataset.transform.to_gdal(), crs, "the file's header"), ""
    except GeoreferenceError as error:
        return None, f"its georeference is not used: {error}"


def _plain(error: Exception) -> str:
    """What GDAL said, which rasterio has as the cause."""
    return str(error.__cause__ or error).strip()


def without_georeference(file: RasterFile) -> RasterFile:
    """The same, with a header that is not looked at."""
    return replace(file, georeference=None)
