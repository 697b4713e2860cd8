"""Terrain without end, of known values at every point: rasters of any size, window by window, with known truth.

A sum of random periodic cubic splines, each turned by its own angle, of wavelengths from 5 px to as many as are wanted;
amplitudes grow with the wavelength as those of real terrain do. It is evaluated where it is wanted, so that a map that
is turned or scaled needs no interpolation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.big.files import rasterio_here, small_cache
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.measures import project
from mslsq.alignment.sampling import sample_at

KNOTS = 509
"""Of a period along a side: a prime, so that periods of several wavelengths do not meet."""

STEPS = 5.0, 13.0, 37.0, 111.0, 400.0, 1500.0, 6000.0
"""Pixels from one knot to the next."""

ROUGHNESS = 0.7
"""Amplitudes grow with this power of the wavelength (Hurst's exponent)."""


class Terrain:
    """Heights of any place (x, y) in pixels, of a standard deviation of about `spread`."""

    def __init__(self, seed: int, longest: float = 6000.0, spread: float = 300.0):
        random = np.random.default_rng(seed)
        self.parts = []
        steps = [step for step in STEPS if step <= longest]
        weights = np.array(steps) ** ROUGHNESS
        for step, weight in zip(steps, weights / np.linalg.norm(weights), strict=True):
            knots = random.standard_normal((1, KNOTS, KNOTS)) * (1.45**2 * weight * spread)  # splines smooth as much
            wrapped = torch.from_numpy(np.pad(knots, ((0, 0), (3, 3), (3, 3)), mode="wrap"))
            angle = random.uniform(0, 2 * np.pi)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / step
            self.parts.append((wrapped, torch.from_numpy(turn), torch.from_numpy(random.uniform(0, KNOTS, 2))))

    def at(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        """The heights at some places."""
        total = points.new_zeros(len(points))
        for knots, turn, start in self.parts:
            total += sample_at(knots, (points @ turn.T + start).remainder(KNOTS) + 3)[0]
        return total


@dataclass(frozen=True)
class Scan:
    """How a raster sees a terrain: pixel = `matrix` · place, value = (height - bias) / gain + noise, rounded where the
    type is one of whole numbers."""

    matrix: Float[np.ndarray, "3 3"]
    gain: float = 1.0
    bias: float = 0.0
    noise: float = 1.0
    dtype: str = "float32"
    nodata: float | None = None
    seed: int = 0


def write_scan(
    path: Path,
    terrain: Terrain,
    scan: Scan,
    size: tuple[int, int],
    georeference: Georeference | None = None,
    window: int = 512,
    holes: Callable[[int, int], bool] | None = None,
    overviews: tuple[int, ...] = (),
    **profile: Any,
) -> Path:
    """A raster of the terrain as a tiled, compressed GeoTIFF, window by window; `holes` says which windows (by number
    of row and column) hold no data."""
    rasterio = rasterio_here()
    height, width = size
    options = {
        "driver": "GTiff", "height": height, "width": width, "count": 1, "dtype": scan.dtype, "nodata": scan.nodata,
        "tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate", "zlevel": 1, "BIGTIFF": "IF_SAFER",
    } | profile  # fmt: skip
    if georeference is not None:
        options["transform"] = rasterio.Affine.from_gdal(*georeference.geotransform)
        options["crs"] = georeference.crs
    inverse = torch.from_numpy(np.linalg.inv(scan.matrix))
    random = np.random.default_rng(scan.seed)
    whole = np.issubdtype(np.dtype(scan.dtype), np.integer)
    with small_cache(), rasterio.open(path, "w", **options) as out:
        for row in range(0, height, window):
            for column in range(0, width, window):
                rows, columns = min(window, height - row), min(window, width - column)
                y, x = torch.meshgrid(
                    torch.arange(row, row + rows, dtype=torch.float64, device="cpu"),
                    torch.arange(column, column + columns, dtype=torch.float64, device="cpu"),
                    indexing="ij",
                )
                heights = terrain.at(project(inverse, torch.stack([x.reshape(-1), y.reshape(-1)], -1)))
                values = (heights.numpy() - scan.bias) / scan.gain + scan.noise * random.standard_normal(rows * columns)
                if holes is not None and holes(row // window, column // window):
                    values[:] = np.nan if scan.nodata is None else scan.nodata
                values = np.clip(np.rint(values), *_limits(scan.dtype)) if whole else values
                place = rasterio.windows.Window(column, row, columns, rows)
                out.write(values.reshape(1, rows, columns).astype(scan.dtype), window=place)
        if overviews:
            out.build_overviews(overviews, rasterio.enums.Resampling.average)
    return path


def _limits(dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return limits.min, limits.max
