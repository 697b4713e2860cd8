"""Elevation models from files, with their georeferences, and a pair with a known shift."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.masks import stable_terrain
from mslsq.alignment.dem.regridding import comparable, nearest, on_pixels_of, pixels, places, resampled_words, same_grid
from mslsq.alignment.kinds import ARRAY_SUFFIXES, Kind
from mslsq.alignment.rasters import Raster, read_raster
from mslsq.alignment.synthetic import base_raster

VECTORS = (".gpkg", ".shp", ".geojson", ".json", ".fgb", ".kml")

NOT_METRES = ("ft", "feet", "foot", "us survey foot", "us survey feet", "us-ft", "cm", "centimetre", "km", "kilometre")
"""Units of elevations that files have, and that are refused: all that is said is in metres."""


@dataclass(frozen=True, eq=False)
class DemScene:
    """A pair as it was read: elevations in metres, NaN where there are no data. `grid` is the reference's file, on
    whose pixels everything is written, `kind` how a corrected model is stored. `shift` is the truth, where it is known,
    `note` what was done to the model before."""

    name: str
    reference: Float[np.ndarray, "height width"]
    dem: Float[np.ndarray, "rows columns"]
    grid: Raster = field(repr=False)
    kind: Kind = field(repr=False)
    georeferences: tuple[Georeference, Georeference] | None
    pixel_size: Any
    mask: Bool[np.ndarray, "height width"] | None = None
    shift: Float[np.ndarray, "3"] | None = None
    note: str = ""
    own: Georeference | None = None
    """The model's header, where it was resampled."""

    def geometry(self) -> dict[str, Any]:
        """What `coregister` is told of the grids."""
        return {"georeferences": self.georeferences, "pixel_size": self.pixel_size}


def read_scene(
    reference: str, dem: str, mask: str | None, pixel_size: Any, buffer: float, nodata: float | None = None
) -> DemScene:
    """Two files and a mask. A model of other pixels, or in another CRS, is resampled to the reference's;
    `nodata` is a number of the files for no data, beside those that they name.

    Raises:
        CoregistrationError: a file has several bands or other units than metres, neither file says where it lies and
            no pixel size is given, or a mask that lies elsewhere.
        RasterError: a file cannot be read.
    """
    one, other = _read(reference, nodata), _read(dem, nodata)
    values, moving, note, own = _elevations(one), _elevations(other), "", None
    first, second = one.georeference, other.georeference
    size = tuple(pixel_size) if isinstance(pixel_size, list | tuple) else pixel_size
    if (first is None or second is None) and size is None:
        raise CoregistrationError(
            f"coregister: {reference if first is None else dem} does not say where it lies; "
            "give dem.pixel_size=[dx,dy] in metres, if both first pixels are at the same place."
        )
    both = None if first is None or second is None else (first, second)
    if first is not None and second is not None and size is None and not comparable(first, second):
        moving, lattice = on_pixels_of(first, values.shape, moving, second)
        note = resampled_words(Path(reference).name, Path(dem).name, second, first)
        both, own = (first, lattice), second
    return DemScene(
        f"{Path(dem).name} on {Path(reference).name}", values, moving, one, _corrected_kind(other.kind, one.kind), both,
        size, _mask(mask, values.shape, first, buffer), note=note, own=own,
    )  # fmt: skip


def _read(path: str, nodata: float | None) -> Raster:
    raster = read_raster(path, nodata)
    if len(raster.values) != 1:
        raise CoregistrationError(f"coregister: {path} has {len(raster.values)} bands; an elevation model has one.")
    if raster.kind.unit.lower() in NOT_METRES:
        raise CoregistrationError(
            f"coregister: the elevations of {path} are in {raster.kind.unit}; shifts and heights are in metres. "
            "Convert them first, for example with gdal_calc.py."
        )
    return raster


def _elevations(raster: Raster) -> Float[np.ndarray, "height width"]:
    """In the file's unit, NaN where there are none."""
    scale, offset = raster.kind.scaling
    return np.where(raster.mask.numpy(), scale * raster.values[0].numpy() + offset, np.nan)


def _corrected_kind(dem: Kind, reference: Kind) -> Kind:
    """Of a corrected model: fractions of a metre in float32, or the float of the model; its tiles and compression; a
    number for "no data" that both programs and files have, that of the model if it has one, else the reference's."""
    dtype, nodata = corrected_numbers(dem, reference)
    unit = f'<Item name="" sample="0" role="unittype">{dem.unit}</Item>' if dem.unit else ""
    array = reference.suffix in ARRAY_SUFFIXES
    return Kind(
        ".npy" if array else ".tif", dtype, nodata=None if array else nodata,
        metadata=f"<GDALMetadata>{unit}</GDALMetadata>" if unit else None, storage=dem.storage,
    )  # fmt: skip


def corrected_numbers(dem: Kind, reference: Kind) -> tuple[np.dtype, float]:
    """The data type of a corrected model, and its number for "no data"."""
    dtype = dem.dtype if dem.dtype in (np.float32, np.float64) else np.dtype(np.float32)
    numbers = (one.nodata for one in (dem, reference) if one.nodata is not None)
    held = (float(one) for one in numbers if np.isfinite(one) and float(np.array(one, dtype)) == float(one))
    return dtype, next(held, float("nan"))


def _mask(
    path: str | None, shape: tuple[int, ...], georeference: Georeference | None, buffer: float
) -> Bool[np.ndarray, "height width"] | None:
    if path is None:
        return None
    size = (shape[0], shape[1])
    if Path(path).suffix.lower() not in VECTORS:
        raster = read_raster(path)
        values = np.where(raster.mask.numpy(), raster.values[0].numpy(), np.nan)
        there = raster.georeference
        if (
            there is not None
            and georeference is not None
            and not (values.shape == size and same_grid(georeference, there))
        ):
            values = nearest(values, places(pixels(size), georeference, there)).reshape(size)
        return np.nan_to_num(values) != 0
    if georeference is None:
        raise CoregistrationError("coregister: outlines need a reference with a georeference; give a raster mask.")
    return stable_terrain(path, size, georeference, buffer)


def made_scene(seed: int) -> DemScene:
    """A real elevation raster and itself, shifted, tilted by 12 m, lowered by up to 25 m in one place, with noise."""
    rng = np.random.default_rng(seed)
    terrain = 1000 * ndimage.gaussian_filter(np.asarray(base_raster("elevation"), dtype=np.float64), 0.8)
    side = min(*terrain.shape, 320) - 40
    d, up, pixel = rng.uniform(-4, 4, 2), float(rng.uniform(-10, 10)), 30.0
    rows, columns = np.mgrid[20 : 20 + side, 20 : 20 + side].astype(float)
    reference, dem = (
        ndimage.map_coordinates(terrain, [rows + q[1], columns + q[0]], order=5, mode="mirror") for q in (0 * d, d)
    )
    x = (np.arange(side) + d[0]) * 2 / (side - 1) - 1
    y, z = np.mgrid[:side, :side] / side - 0.65
    melt = 25 / (1 + np.exp((np.hypot(y, z + 0.3) - 0.2) / 0.02))
    dem = dem - up - 6 * x - melt + rng.standard_normal(dem.shape)
    reference = reference + rng.standard_normal(dem.shape)
    here = Georeference.from_geotransform((500000, pixel, 0, 4600000, 0, -pixel))
    shift = np.array([d[0] * pixel, -d[1] * pixel, up])
    kind = Kind(".npy", np.dtype(np.float64))
    values = torch.from_numpy(reference)
    grid = Raster("elevation", values[None], values.isfinite(), kind, here)
    return DemScene(
        "elevation, moved", reference, dem, grid, replace(kind, dtype=np.dtype(np.float32)), (here, here), None,
        shift=shift,
    )  # fmt: skip
