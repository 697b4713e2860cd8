"""Elevation models from files, with their georeferences, and a pair with a known shift."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.masks import stable_terrain
from mslsq.alignment.kinds import Kind
from mslsq.alignment.rasters import read_raster
from mslsq.alignment.synthetic import base_raster

VECTORS = (".gpkg", ".shp", ".geojson", ".json", ".fgb", ".kml")


@dataclass(frozen=True, eq=False)
class DemScene:
    """A pair as it was read: NaN where there are no data. `shift` is the truth, where it is known."""

    name: str
    reference: Float[np.ndarray, "height width"]
    dem: Float[np.ndarray, "rows columns"]
    kind: Kind = field(repr=False)
    georeferences: tuple[Georeference, Georeference] | None
    pixel_size: Any
    mask: Bool[np.ndarray, "height width"] | None = None
    shift: Float[np.ndarray, "3"] | None = None

    def geometry(self) -> dict[str, Any]:
        """What `coregister` is told of the grids."""
        return {"georeferences": self.georeferences, "pixel_size": self.pixel_size}


def read_scene(reference: str, dem: str, mask: str | None, pixel_size: Any, buffer: float) -> DemScene:
    """Two files and a mask.

    Raises:
        CoregistrationError: a file has several bands, or neither file says where it lies and no pixel size is given.
        RasterError: a file cannot be read.
    """
    one, kind, first = _read(reference)
    other, _, second = _read(dem)
    size = tuple(pixel_size) if isinstance(pixel_size, list | tuple) else pixel_size
    both = None if first is None or second is None else (first, second)
    if both is None and size is None:
        raise CoregistrationError(
            f"coregister: {reference if first is None else dem} does not say where it lies; "
            "give dem.pixel_size=[dx,dy] in metres, if both first pixels are at the same place."
        )
    return DemScene(
        f"{Path(dem).name} on {Path(reference).name}", one, other, kind, both, size,
        _mask(mask, one.shape, first, buffer),
    )  # fmt: skip


def _read(path: str) -> tuple[np.ndarray, Kind, Georeference | None]:
    raster = read_raster(path)
    if len(raster.values) != 1:
        raise CoregistrationError(f"coregister: {path} has {len(raster.values)} bands; an elevation model has one.")
    values = np.where(raster.mask.numpy(), raster.values[0].numpy(), np.nan)
    return values, raster.kind, raster.georeference


def _mask(
    path: str | None, shape: tuple[int, ...], georeference: Georeference | None, buffer: float
) -> Bool[np.ndarray, "height width"] | None:
    if path is None:
        return None
    if Path(path).suffix.lower() not in VECTORS:
        raster = read_raster(path)
        return (raster.values[0].numpy() != 0) & raster.mask.numpy()
    if georeference is None:
        raise CoregistrationError("coregister: outlines need a reference with a georeference; give a raster mask.")
    return stable_terrain(path, (shape[0], shape[1]), georeference, buffer)


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
    return DemScene(
        "elevation, moved", reference, dem, Kind(".npy", np.dtype(np.float64)), (here, here), None, None, shift
    )
