"""Elevations in files, and where terrain is stable: windows of them, at their own pixels or reduced."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.big.files import RasterFile
from mslsq.alignment.big.regridded import RegriddedFile
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.files import NOT_METRES, VECTORS
from mslsq.alignment.dem.masks import Outlines
from mslsq.alignment.dem.pair import SMALLEST_SIDE
from mslsq.alignment.dem.regridding import same_grid

SIDE = 1024
"""Pixels at most of a raster that outlines must touch somewhere."""

ROWS = 1 << 22
"""Pixels of a mask that are read at a time when it is reduced."""


@dataclass(frozen=True)
class ElevationFile:
    """A model in a file: elevations are `scale` times the numbers there, and `offset`. It may be seen on pixels of
    another one."""

    file: RasterFile
    scale: float
    offset: float
    regridded: RegriddedFile | None = None

    @staticmethod
    def open(path: str | Path, nodata: float | None = None) -> "ElevationFile":
        """Its header; `nodata` is one more number of the file for no data.

        Raises:
            RasterError: the file cannot be read in windows.
            CoregistrationError: it has several bands, or other units than metres.
        """
        file = RasterFile.open(path, nodata)
        if len(file.bands) != 1:
            raise CoregistrationError(f"coregister: {path} has {len(file.bands)} bands; an elevation model has one.")
        band = file.bands[0] - 1
        unit = str(file.profile["units"][band] or "")
        if unit.strip().lower() in NOT_METRES:
            raise CoregistrationError(
                f"coregister: the elevations of {path} are in {unit}; shifts and heights are in metres. Convert them "
                "first, for example with gdal_calc.py."
            )
        return ElevationFile(file, float(file.profile["scales"][band]), float(file.profile["offsets"][band]))

    @property
    def seen(self) -> RasterFile | RegriddedFile:
        """What windows are of."""
        return self.file if self.regridded is None else self.regridded

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what is seen."""
        return self.seen.size

    def around(self, reference: "ElevationFile") -> "ElevationFile":
        """On the pixels of a reference.

        Raises:
            CoregistrationError: the two lie apart, or there is no way between their CRS.
        """
        header = reference.seen.georeference
        assert header is not None
        try:
            return replace(self, regridded=RegriddedFile.around(self.file, header, reference.size))
        except CoregistrationError as error:
            raise CoregistrationError(
                f"{error} {self.file.path} cannot be seen on the pixels of {reference.file.path}: is the CRS in either "
                "header right? gdal_edit.py -a_srs writes another one, gdalwarp -t_srs reprojects."
            ) from None

    def reduced(self, factor: int) -> Float[Tensor, "height width"]:
        """All of it, NaN where nothing is known.

        Raises:
            CoregistrationError: nothing is known anywhere, or a side is too short to compare terrain.
            RasterError: the file is damaged.
        """
        size, (height, width) = self.seen.reduced(factor), self.size
        if min(size) < SMALLEST_SIDE:
            small = f", reduced to {size[0]} x {size[1]}" if factor > 1 else ""
            raise CoregistrationError(
                f"coregister: {self.file.path} has {height} x {width} pixels{small}; at least {SMALLEST_SIDE} along "
                "each side are needed. Crop the longer side, or give a wider part of the terrain."
            )
        values, known = self.read(0, 0, *size, factor)
        if not bool(known.any()):
            where = "" if self.regridded is None else " near the reference"
            raise CoregistrationError(
                f"coregister: {self.file.path} has no data{where}: every pixel is NaN, masked or the nodata value "
                f"({self.file.kind.nodata}). Is that the right one? gdal_edit.py -a_nodata writes another."
            )
        return torch.where(known, values, torch.full_like(values, float("nan")))

    def read(
        self, top: int, left: int, height: int, width: int, factor: int = 1
    ) -> tuple[Float[Tensor, "height width"], Bool[Tensor, "height width"]]:
        """A window, as `RasterFile.read` has it: metres, 0 where nothing is known, and where something is."""
        values, known = self.seen.read(top, left, height, width, factor)
        metres = values[0] if (self.scale, self.offset) == (1.0, 0.0) else self.scale * values[0] + self.offset
        return torch.where(known, metres, torch.zeros_like(metres)), known


@dataclass(frozen=True)
class StableTerrain:
    """A mask on a reference's grid: everywhere, in a raster (non-zero where terrain is stable), or outside outlines."""

    raster: RasterFile | RegriddedFile | None
    outlines: Outlines | None
    georeference: Georeference | None

    @staticmethod
    def of(given: Any, buffer: float, size: tuple[int, int], georeference: Georeference | None) -> "StableTerrain":
        """A path of a raster or of a vector file, a GeoDataFrame, or None.

        Raises:
            CoregistrationError: a raster of another size that does not say where it lies, outlines without a
                georeference, or that lie elsewhere.
            RasterError: the raster cannot be read in windows.
        """
        if given is None:
            return StableTerrain(None, None, georeference)
        if not isinstance(given, str | Path) or Path(given).suffix.lower() in VECTORS:
            if georeference is None:
                raise CoregistrationError("coregister: outlines need a reference with a georeference; give a raster.")
            outlines = Outlines.read(given, georeference.crs, buffer)
            factor = max(1, -(-max(size) // SIDE))
            shape = -(-size[0] // factor), -(-size[1] // factor)
            outlines.outside(shape, georeference.reduced(factor), needed=True)
            return StableTerrain(None, outlines, georeference)
        raster = RasterFile.open(given)
        there = raster.georeference
        if georeference is not None and there is not None:
            here = raster.size == size and same_grid(georeference, there)
            return StableTerrain(raster if here else RegriddedFile.on(raster, georeference, size), None, georeference)
        if raster.size != size:
            raise CoregistrationError(
                f"coregister: the mask {given} has {raster.size[1]} x {raster.size[0]} pixels, the reference "
                f"{size[1]} x {size[0]}, and one of them does not say where it lies."
            )
        return StableTerrain(raster, None, georeference)

    def read(self, top: int, left: int, height: int, width: int, factor: int = 1) -> Bool[Tensor, "height width"]:
        """A window; a reduced pixel is stable where at least half of its block is."""
        if self.outlines is not None and self.georeference is not None:
            header = self.georeference.reduced(factor).moved(left, top)
            return torch.from_numpy(self.outlines.outside((height, width), header))
        if self.raster is None:
            return torch.ones(height, width, dtype=torch.bool, device="cpu")
        out = torch.zeros(height, width, dtype=torch.bool, device="cpu")
        step = max(1, ROWS // (width * factor * factor))
        for row in range(0, height, step):
            rows = min(step, height - row)
            box = (top + row) * factor, left * factor, rows * factor, width * factor
            values, known = (
                self.raster.nearest(*box) if isinstance(self.raster, RegriddedFile) else self.raster.read(*box)
            )
            stable = (known & (values[0] != 0)).numpy().reshape(rows, factor, width, factor)
            out[row : row + rows] = torch.from_numpy(stable.mean((1, 3), dtype=np.float64) >= 0.5)
        return out
