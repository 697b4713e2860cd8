"""One mosaic of all placed files, window by window, and how many maps show each of its pixels.

Both files are written under temporary names and renamed when they are whole.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.alignment.big.align_files import FilesAlignment
from mslsq.alignment.big.coarse import enlarging
from mslsq.alignment.big.files import RasterFile, rasterio_here, small_cache
from mslsq.alignment.big.layers import Layer
from mslsq.alignment.big.overviews import build_overviews
from mslsq.alignment.big.whole import LOSSLESS, whole_rasters
from mslsq.alignment.canvas import EVERYWHERE, Canvas, canvas_around
from mslsq.alignment.kinds import Kind
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.output_names import refuse_to_replace
from mslsq.alignment.rasters import as_stored
from mslsq.validation import integer, one_of

BLENDS = "mean", "median", "feather"

WINDOW = 1024
"""Pixels of the mosaic along a side that are made at a time; a half of it where many maps are stacked for a median."""

STACK = 16
"""Layers of a median: of more the windows are smaller."""

TILE = 256
"""Of a mosaic whose reference has strips, which windows would compress many times."""


@dataclass(frozen=True)
class MosaicFiles:
    """What `write_mosaic` has written."""

    mosaic: Path
    coverage: Path
    canvas: Canvas
    """Its first pixel is (left, top) in pixels of the reference."""
    known: int
    """Pixels that some map shows."""
    notes: list[str]
    """In words: what was clipped, and what differs from the reference's file."""


def write_mosaic(
    result: FilesAlignment,
    path: str | Path,
    *,
    blend: str = "mean",
    feather: int = 256,
    overviews: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> MosaicFiles:
    """Write all placed maps as one GeoTIFF in the reference's values, and beside it how many maps show each pixel.

    The canvas holds all maps whole. The CRS, data type, nodata, tiles and lossless compression are those of the
    reference; where it has no nodata, holes are NaN, or of whole numbers are in the file's mask. Memory is that of some
    windows, whatever the size.

    Args:
        result: of `align_files`; its files are read again.
        path: of the mosaic, "merged.tif"; the coverage is "merged_coverage.tif" beside it.
        blend: of the maps that show a pixel: their "mean", their "median", or "feather": a mean with weights that rise
            over `feather` pixels of the reference from the border of a map's data, so that no seam is left.
        feather: that width.
        overviews: put reduced copies into both files, which viewers read first, where a side has more than 2,048
            pixels: a third more to write.
        progress: called with the windows that are done and their number.

    Returns:
        `MosaicFiles`.

    Raises:
        AlignmentOptionError: an option is not valid.
        RasterError: a file is damaged where it is read, or would be overwritten.
        NotWrittenError: the disk is full, or the folder cannot be written to; no file of that name is there then.
    """
    one_of("write_mosaic: blend", blend, BLENDS, AlignmentOptionError)
    integer("write_mosaic: feather", feather, 1, error=AlignmentOptionError)
    path = Path(path).with_suffix(".tif")
    mosaic = _Mosaic.of(result, blend, feather)
    refuse_to_replace([layer.file.path for layer in mosaic.layers], [path, coverage_beside(path)], "path")
    return mosaic.write(path, progress, overviews)


def coverage_beside(path: Path) -> Path:
    """Of a mosaic: how many maps show each pixel."""
    return path.with_name(f"{path.stem}_coverage.tif")


@dataclass(frozen=True)
class _Mosaic:
    """The layers, and how they become one."""

    reference: RasterFile
    layers: Sequence[Layer]
    canvas: Canvas
    blend: str
    feather: int
    bands: int

    @staticmethod
    def of(result: FilesAlignment, blend: str, feather: int) -> "_Mosaic":
        files = {i: file for i in result.aligned if (file := result.files[i]) is not None}
        if result.reference not in files:
            raise AlignmentOptionError("write_mosaic: the reference has no transform; there is nothing to merge.")
        grey = len({len(file.bands) for file in files.values()}) > 1
        layers = []
        for i, file in files.items():
            matrix = result.transforms[i]
            scale = math.sqrt(abs(float(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0])))
            factor = max(1, round(scale))
            reduced = torch.linalg.inv(enlarging(factor)) @ matrix
            layers.append(
                Layer(file, factor, reduced, float(result.gain[i]), float(result.bias[i]), grey, scale / factor)
            )
        reference = files[result.reference]
        transforms = [result.transforms[i] for i in files]
        canvas = canvas_around([file.size for file in files.values()], transforms, reference.size, EVERYWHERE)
        return _Mosaic(reference, layers, canvas, blend, feather, 1 if grey else len(reference.bands))

    @property
    def kind(self) -> Kind:
        """Of the reference; floating-point numbers without nodata have NaN."""
        kind = self.reference.kind
        if kind.nodata is None and not np.issubdtype(kind.dtype, np.integer):
            return replace(kind, nodata=math.nan)
        return kind

    def write(self, path: Path, progress: Callable[[int, int], None] | None, overviews: bool = False) -> MosaicFiles:
        coverage = coverage_beside(path)
        rasterio, kind = rasterio_here(), self.kind
        masked = kind.nodata is None
        counting = np.dtype(np.uint8 if len(self.layers) < 256 else np.uint16)
        clipped = known = 0
        masks = rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True)
        with whole_rasters(path, coverage) as temporary:
            with small_cache(), masks, ExitStack() as open_files:
                profiles = self._profile(kind.dtype, self.bands, kind.nodata), self._profile(counting, 1, None)
                out, count = (
                    open_files.enter_context(rasterio.open(one, "w", **profile))
                    for one, profile in zip(temporary, profiles, strict=True)
                )
                self._describe(out)
                windows = list(self._windows())
                for done, canvas in enumerate(windows, 1):
                    values, number = self._merged(canvas)
                    where = self._place(canvas)
                    covered = number > 0
                    out.write(as_stored(values, covered, kind), window=where)
                    if masked:
                        out.write_mask(covered.numpy(), window=where)
                    count.write(number.numpy().astype(counting), 1, window=where)
                    clipped += _clipped(values, covered, kind)
                    known += int(covered.count_nonzero())
                    if progress is not None:
                        progress(done, len(windows))
            if overviews:
                build_overviews(temporary[0])
                build_overviews(temporary[1], means=False)
        return MosaicFiles(path, coverage, self.canvas, known, self._notes(clipped, known))

    def _merged(self, canvas: Canvas) -> tuple[Float[Tensor, "bands rows columns"], Int[Tensor, "rows columns"]]:
        """One window: values, and how many maps show each pixel."""
        feather = self.feather if self.blend == "feather" else None
        number = torch.zeros(canvas.height, canvas.width, dtype=torch.long, device="cpu")
        shape = self.bands, canvas.height, canvas.width
        total, weights = (
            torch.zeros(shape, dtype=torch.float64, device="cpu"),
            torch.zeros(shape[1:], dtype=torch.float64, device="cpu"),
        )
        stacked = []
        for layer in self.layers:
            seen = layer.seen(canvas, feather)
            if seen is None:
                continue
            values, known, weight = seen
            number += known
            if self.blend == "median":
                stacked.append(torch.where(known, values, torch.nan))
                continue
            share = known.double() if weight is None else torch.where(known, weight, 0.0)
            total += torch.where(known, values, 0.0) * share
            weights += share
        if stacked:
            return torch.nanquantile(torch.stack(stacked), 0.5, dim=0).nan_to_num(0.0), number
        return total / weights.clamp(min=1e-12), number

    def _windows(self) -> Iterator[Canvas]:
        """Over the canvas, row by row; whole tiles of the file."""
        side = WINDOW if self.blend != "median" or len(self.layers) * self.bands <= STACK else WINDOW // 2
        whole = self.canvas
        for row in range(0, whole.height, side):
            for column in range(0, whole.width, side):
                height, width = min(side, whole.height - row), min(side, whole.width - column)
                yield Canvas(whole.left + column, whole.top + row, height, width)

    def _place(self, canvas: Canvas) -> Any:
        from rasterio.windows import Window

        left, top = canvas.left - self.canvas.left, canvas.top - self.canvas.top
        return Window(left, top, canvas.width, canvas.height)  # pyright: ignore[reportCallIssue]

    def _profile(self, dtype: np.dtype, bands: int, nodata: float | int | None) -> dict[str, Any]:
        of, canvas = self.reference.profile, self.canvas
        sides = (of.get("blockysize", TILE), of.get("blockxsize", TILE)) if of.get("tiled") else (TILE, TILE)
        sides = tuple(side if WINDOW // 2 % side == 0 or side % WINDOW == 0 else TILE for side in sides)
        compression = str(of.get("compress", "none") or "none").lower()
        profile = {
            "driver": "GTiff", "width": canvas.width, "height": canvas.height, "count": bands, "dtype": dtype.name,
            "nodata": nodata, "tiled": True, "blockysize": sides[0], "blockxsize": sides[1], "BIGTIFF": "IF_SAFER",
        }  # fmt: skip
        if compression != "none":
            profile["compress"] = compression if compression in LOSSLESS else "deflate"
            predictor = of.get("predictor")
            if predictor in ("2", "3") and profile["compress"] in ("deflate", "lzw", "zstd"):
                profile["predictor"] = 2 if np.issubdtype(dtype, np.integer) else int(predictor)
        if bands > 1:
            profile |= {"interleave": of.get("interleave", "pixel")}
            profile |= {"photometric": "RGB"} if self.reference.kind.colours and bands >= 3 else {}
        header = self.reference.georeference
        if header is not None:
            affine = rasterio_here().Affine.from_gdal(*header.moved(canvas.left, canvas.top).geotransform)
            profile |= {"transform": affine, "crs": header.crs}
        return profile

    def _describe(self, dataset: Any) -> None:
        """What the numbers mean, as the reference says."""
        of, count = self.reference.profile, dataset.count
        places = [band - 1 for band in self.reference.bands[:count]]
        dataset.scales = [of["scales"][place] for place in places]
        dataset.offsets = [of["offsets"][place] for place in places]
        for number, place in enumerate(places, 1):
            if of["units"][place]:
                dataset.set_band_unit(number, of["units"][place])

    def _notes(self, clipped: int, known: int) -> list[str]:
        kind, notes = self.kind, []
        if clipped:
            notes.append(
                f"{clipped:,} of {known * self.bands:,} numbers are beyond what {kind.dtype} holds, and are clipped."
            )
        if not self.reference.profile.get("tiled"):
            notes.append(f"The reference has strips; the mosaic has tiles of {TILE} x {TILE}.")
        compression = str(self.reference.profile.get("compress", "none") or "none").lower()
        if compression not in ("none", *LOSSLESS):
            notes.append(
                f"The reference is compressed with {compression}, which may lose digits; the mosaic by deflate."
            )
        if self.bands < len(self.reference.bands):
            notes.append("The maps have different numbers of bands: the mosaic has one, luminance or their mean.")
        if kind.nodata is None:
            notes.append("The reference has no nodata value: holes are in the mosaic's mask.")
        return notes


def _clipped(values: Tensor, known: Tensor, kind: Kind) -> int:
    if not np.issubdtype(kind.dtype, np.integer):
        return 0
    limits, data = np.iinfo(kind.dtype), values[:, known]
    return int(((data < limits.min - 0.5) | (data > limits.max + 0.5)).count_nonzero())
