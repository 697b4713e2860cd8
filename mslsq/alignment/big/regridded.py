"""A raster in a file as it is seen on pixels of another one: windows of it, each pixel from its exact place."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.big.files import AROUND, RasterFile, reduced
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.dem.regridding import Finer, finer_than, lattice_around, nearest, pixels, places, reach, sampled


@dataclass(frozen=True)
class RegriddedFile:
    """A raster of one band on pixels of `georeference`, `size` of them (height and width). What it says of windows is
    what `dem.regridding.resampled` says of the whole."""

    file: RasterFile
    source: Georeference
    georeference: Georeference
    size: tuple[int, int]
    finer: Finer
    """Pixels of the file in one of these."""

    @staticmethod
    def around(file: RasterFile, reference: Georeference, size: tuple[int, int]) -> "RegriddedFile":
        """On pixels of a reference, around it.

        Raises:
            CoregistrationError: the two lie apart, or there is no way between their CRS.
        """
        assert file.georeference is not None
        return RegriddedFile.on(file, *lattice_around(reference, size, file.georeference, file.size))

    @staticmethod
    def on(file: RasterFile, reference: Georeference, size: tuple[int, int]) -> "RegriddedFile":
        """On the pixels of a reference themselves.

        Raises:
            CoregistrationError: there is no way between the two CRS.
        """
        assert file.georeference is not None
        return RegriddedFile(file, file.georeference, reference, size, finer_than(file.georeference, reference, size))

    @property
    def path(self) -> Path:
        """Of the file."""
        return self.file.path

    def reduced(self, factor: int) -> tuple[int, int]:
        """Height and width of the raster reduced by a factor; a last block that is not whole counts."""
        return reduced(self.size, factor)

    def read(
        self, top: int, left: int, height: int, width: int, factor: int = 1
    ) -> tuple[Float[Tensor, "1 height width"], Bool[Tensor, "height width"]]:
        """A window, as `RasterFile.read` has it. A reduced pixel is not the mean of its block but what pixels of that
        size see of the file, which is reduced first.

        Raises:
            RasterError: the file is damaged there.
        """
        finer = self.finer.over(1 / factor)
        own = finer.whole
        finer = finer.over(own)
        at = self._places(top, left, height, width, factor, own)
        margin = AROUND + math.ceil(4 * reach(max(finer)))
        found = torch.full((height * width,), float("nan"), dtype=torch.float64, device="cpu")
        box = _box(at, self.file.reduced(own), margin)
        if box is not None:
            values, known = self.file.read(*box, own)
            values = torch.where(known, values[0], torch.full_like(values[0], float("nan")))
            found = sampled(values, torch.from_numpy(at - [box[1], box[0]]), finer)
        known = found.isfinite().reshape(height, width)
        return torch.where(known, found.reshape(height, width), 0.0)[None], known

    def nearest(
        self, top: int, left: int, height: int, width: int
    ) -> tuple[Float[Tensor, "1 height width"], Bool[Tensor, "height width"]]:
        """A window of the file's nearest pixels."""
        at = self._places(top, left, height, width, 1, 1)
        found = np.full(len(at), np.nan)
        box = _box(at, self.file.size, 1)
        if box is not None:
            values, known = self.file.read(*box)
            found = nearest(np.where(known, values[0], np.nan), at - [box[1], box[0]])
        values = torch.from_numpy(found.reshape(1, height, width))
        return values.nan_to_num(0.0), values[0].isfinite()

    def _places(self, top: int, left: int, height: int, width: int, factor: int, own: int) -> Float[np.ndarray, "n 2"]:
        """Of a window's pixels in the file reduced by `own`."""
        at = pixels((height, width)) + np.array([left, top])
        return places(at, self.georeference.reduced(factor), self.source.reduced(own))


def _box(at: Float[np.ndarray, "n 2"], size: tuple[int, int], margin: int) -> tuple[int, int, int, int] | None:
    """(top, left, height, width) of what lies in a raster, None where nothing does."""
    near = at[np.isfinite(at).all(-1)]
    near = near[((near > -1) & (near < [size[1], size[0]])).all(-1)]
    if not len(near):
        return None
    low = np.maximum(np.floor(near.min(0)).astype(int) - margin, 0)
    high = np.minimum(np.ceil(near.max(0)).astype(int) + margin + 1, [size[1], size[0]])
    return int(low[1]), int(low[0]), int(high[1] - low[1]), int(high[0] - low[0])
