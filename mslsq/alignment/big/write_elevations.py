"""The corrected model and where terrain changed, written window by window on the reference's grid."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mslsq.alignment.big.coregister_files import FilesCoregistration
from mslsq.alignment.big.files import RasterFile, rasterio_here, small_cache
from mslsq.alignment.big.overviews import build_overviews
from mslsq.alignment.big.passing import MARGIN, Progress
from mslsq.alignment.big.whole import LOSSLESS, whole_rasters
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.files import corrected_numbers
from mslsq.alignment.dem.local import LocalCoregistration
from mslsq.alignment.kinds import Kind
from mslsq.alignment.output_names import refuse_to_replace
from mslsq.alignment.rasters import as_stored
from mslsq.replacing import replaced

TILE = 256


def write_coregistered(
    result: FilesCoregistration | LocalCoregistration,
    path: str | Path,
    *,
    changed: str | Path | None = None,
    overviews: bool = False,
    progress: Progress | None = None,
) -> tuple[Path, Path]:
    """Write the model of a `coregister_files` or a `coregister_files_blocks`, shifted and corrected, as a GeoTIFF on
    the reference's grid, and beside it where terrain was taken for changed (1; 0 elsewhere).

    The data type is float32, or the model's own float; nodata is that of the model if it has one, else the
    reference's, else NaN; the compression is the model's where it loses nothing.

    Args:
        result: its files are read again.
        path: of the corrected model, "coregistered.tif".
        changed: of the other; without, "coregistered_changed.tif" beside it.
        overviews: put reduced copies into both files, which viewers read first, where a side has more than 2,048
            pixels: a third more to write.
        progress: called with "writing", the windows that are done, and their number.

    Returns:
        Both paths.

    Raises:
        CoregistrationError: nothing was found that could be applied, or both paths are one.
        RasterError: a file is damaged where it is read, or would be overwritten.
        NotWrittenError: the disk is full, or the folder cannot be written to; no file of that name is there then.
    """
    local, found = (result, result.whole) if isinstance(result, LocalCoregistration) else (None, result)
    if not isinstance(found, FilesCoregistration):
        raise CoregistrationError(
            "write_coregistered: these models were in memory; it takes what coregister_files found, or its blocks."
        )
    if found.passes is None:
        raise CoregistrationError(f"write_coregistered: nothing was found to apply. {found.reason}")
    local = local if local is not None and np.isfinite(found.shift).all() else None
    path = Path(path).with_suffix(".tif")
    changed = path.with_name(f"{path.stem}_changed.tif") if changed is None else Path(changed)
    rasterio, passes = rasterio_here(), found.passes
    refuse_to_replace(passes.models.paths, [path, changed], "path")
    if replaced([path], [changed]) is not None:
        raise CoregistrationError(f"write_coregistered: path and changed are both {path}; give two names.")
    profiles = _profile(passes.models.reference.file, passes.models.dem.file), _marks(passes.models.reference.file)
    kind = Kind(".tif", np.dtype(profiles[0]["dtype"]), nodata=profiles[0]["nodata"])
    with whole_rasters(path, changed) as temporary:
        with small_cache(), ExitStack() as open_files:
            out, marks = (
                open_files.enter_context(rasterio.open(one, "w", **profile))
                for one, profile in zip(temporary, profiles, strict=True)
            )
            unit = passes.models.dem.file.profile["units"][0]
            if unit:
                out.set_band_unit(1, unit)
            for box in passes.each("writing", progress):
                values, _, moved = passes.corrected(found, box, False, local)
                core = slice(MARGIN, MARGIN + box[2]), slice(MARGIN, MARGIN + box[3])
                numbers = as_stored(values[core][None], values[core].isfinite(), kind)[0]
                where = rasterio.windows.Window(box[1], box[0], box[3], box[2])
                out.write(numbers, 1, window=where)
                marks.write(moved[core].numpy().astype(np.uint8), 1, window=where)
        if overviews:
            build_overviews(temporary[0])
            build_overviews(temporary[1], means=False)
    return path, changed


def _marks(reference: RasterFile) -> dict[str, Any]:
    """Of a raster on the reference's grid."""
    profile = {
        "driver": "GTiff", "width": reference.size[1], "height": reference.size[0], "count": 1, "dtype": "uint8",
        "tiled": True, "blockxsize": TILE, "blockysize": TILE, "compress": "deflate", "BIGTIFF": "IF_SAFER",
    }  # fmt: skip
    if reference.georeference is not None:
        header = reference.georeference
        profile |= {"transform": rasterio_here().Affine.from_gdal(*header.geotransform), "crs": header.crs}
    return profile


def _profile(reference: RasterFile, dem: RasterFile) -> dict[str, Any]:
    dtype, nodata = corrected_numbers(dem.kind, reference.kind)
    compression = str(dem.profile.get("compress", "none") or "none").lower()
    compress = None if compression == "none" else compression if compression in LOSSLESS else "deflate"
    predictor = {"predictor": 3} if compress in ("deflate", "lzw", "zstd") else {}
    return _marks(reference) | {"dtype": dtype.name, "nodata": nodata, "compress": compress} | predictor
