"""Two elevation models as they are seen through windows of their files: the tiles of a fit, or a part with a margin.

A shift moves all tiles alike, so that they lie side by side in one pair of rasters, each in a slot of its own with a
border without data: what `coregister` does with a pair it does with that one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment.big.elevations import ElevationFile, StableTerrain
from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.dem.bias import Bias, Frame
from mslsq.alignment.dem.blunders import blunders, typical_step
from mslsq.alignment.dem.pair import SMALLEST_SIDE, Pair
from mslsq.alignment.dem.slots import Slots
from mslsq.alignment.pyramid import build

TILE = 128
"""Pixels of a tile along a side. Errors of elevation models reach far: many small tiles know more than a few large."""

GAP = 16
"""Pixels without data between tiles: two, on the coarsest level of a pyramid of four, more than a blur sees."""

SLOT = TILE + GAP


@dataclass(frozen=True)
class Models:
    """Both files on one lattice of pixels. `metres` and `offset` are those of a `Pair`."""

    reference: ElevationFile
    dem: ElevationFile
    stable: StableTerrain
    metres: Float[np.ndarray, "2 2"]
    offset: Float[np.ndarray, "2"]
    header: Georeference | None
    """Of `dem`."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the reference."""
        return self.reference.size

    @property
    def paths(self) -> list[Path]:
        """Of all files that are read, a raster mask's among them."""
        mask = self.stable.raster
        return [one.path for one in (self.reference.file, self.dem.file, *(() if mask is None else (mask,)))]

    def step(self, shift: Float[np.ndarray, "2"]) -> Int[np.ndarray, "2"]:
        """Whole pixels (columns, rows) from the reference to the model once it is shifted."""
        return np.rint(self.offset - shift).astype(int)

    def tiles(
        self, tiles: Sequence[tuple[int, int]], shift: Float[np.ndarray, "2"], overlap: float
    ) -> tuple[Pair, tuple[float, float]]:
        """Tiles (row, column) side by side, and the typical steps of both models (`blunders`). `overlap` is the number
        of pixels for which they stand."""
        columns = max(1, round(len(tiles) ** 0.5))
        shape = -(-len(tiles) // columns) * SLOT, columns * SLOT
        rasters = torch.zeros(2, *shape, dtype=torch.float64, device="cpu")
        masks = torch.zeros(3, *shape, dtype=torch.bool, device="cpu")
        corners = torch.zeros(len(tiles), 2, dtype=torch.float64, device="cpu")
        step = self.step(shift)
        for number, (row, column) in enumerate(tiles):
            top, left = row * TILE, column * TILE
            i, j = number // columns * SLOT, number % columns * SLOT
            place = (slice(i, i + TILE), slice(j, j + TILE))
            corners[number] = corners.new_tensor([left, top])
            rasters[0][place], masks[0][place] = self.reference.read(top, left, TILE, TILE)
            rasters[1][place], masks[1][place] = self.dem.read(top + step[1], left + step[0], TILE, TILE)
            masks[2][place] = self.stable.read(top, left, TILE, TILE)
        seen = max(float((masks[0] & masks[1] & masks[2]).sum()), 1.0)
        steps = typical_step(rasters[0], masks[0]), typical_step(rasters[1], masks[1])
        slots = Slots(SLOT, columns, corners, self.size, max(overlap / seen, 1.0))
        return self._pair(rasters.unbind(), masks.unbind(), steps, self.offset - step, slots), steps

    def part(
        self, box: tuple[int, int, int, int], shift: Float[np.ndarray, "2"], steps: tuple[float, float] | None
    ) -> Pair:
        """A window (top, left, height, width) of the reference and what of the model lies there; blunders are taken out
        by typical `steps`, or stay."""
        top, left, height, width = box
        one, known = self.reference.read(*box)
        other, seen, offset = self._moving(box, shift)
        slots = Slots(max(height, width), 1, one.new_tensor([[left, top]]), self.size)
        return self._pair((one, other), (known, seen, self.stable.read(*box)), steps, offset, slots)

    def moving(
        self, box: tuple[int, int, int, int], shift: Float[np.ndarray, "2"], steps: tuple[float, float]
    ) -> tuple[Float[Tensor, "rows columns"], Bool[Tensor, "rows columns"], Float[np.ndarray, "2"]]:
        """Of `part` the model alone: its values, where they are known, and the offset."""
        other, seen, offset = self._moving(box, shift)
        seen = seen & ~blunders(other, seen, steps[1])
        return torch.where(seen, other, other.new_zeros(())), seen, offset

    def _moving(
        self, box: tuple[int, int, int, int], shift: Float[np.ndarray, "2"]
    ) -> tuple[Float[Tensor, "rows columns"], Bool[Tensor, "rows columns"], Float[np.ndarray, "2"]]:
        top, left, height, width = box
        step = self.step(shift)
        # Of the model what lies in its file: a spline has the border there that it has of a whole model.
        begin = np.array([top, left]) + step[::-1]
        end = begin + np.array([height, width])
        low, high = (np.clip(corner, 0, self.dem.size) for corner in (begin, end))
        if (high - low < SMALLEST_SIDE).any():
            low, high = begin, end
        other, seen = self.dem.read(*map(int, (*low, *(high - low))))
        return other, seen, self.offset - step - (low - begin)[::-1]

    def _pair(
        self,
        rasters: Sequence[Float[Tensor, "height width"]],
        masks: Sequence[Bool[Tensor, "height width"]],
        steps: tuple[float, float] | None,
        offset: Float[np.ndarray, "2"],
        slots: Slots,
    ) -> Pair:
        (one, other), (known, seen, stable) = rasters, masks
        if steps is not None:
            known, seen = known & ~blunders(one, known, steps[0]), seen & ~blunders(other, seen, steps[1])
        zero = one.new_zeros(())
        return Pair(
            torch.where(known, one, zero), known, stable, torch.where(seen, other, zero), seen, self.metres, offset,
            self.header, slots,
        )  # fmt: skip

    def information(self, tile: tuple[int, int], model: Bias, frame: Frame) -> Float[np.ndarray, "n n"]:
        """JᵀJ of a tile's own gradients about shift and bias, averages of four pixels: noise has less of these."""
        top, left = tile[0] * TILE, tile[1] * TILE
        values, known = self.reference.read(top, left, TILE, TILE)
        used = known & self.stable.read(top, left, TILE, TILE)
        count = 2 + model.count
        if not bool(used.any()):
            return np.zeros((count, count))
        level = build(values[None], known, 2)[1]
        rows, columns = torch.nonzero(level.mask & used[::2, ::2], as_tuple=True)
        down, along = (torch.from_numpy(one) for one in np.gradient(level.raster[0].numpy(), 2.0))
        places = 2.0 * torch.stack([columns, rows], -1).double() + values.new_tensor([left, top])
        height = level.raster[0][rows, columns]
        slopes = -torch.stack([along[rows, columns], down[rows, columns]], -1)
        jacobian = torch.cat([slopes, model.columns(places, height, frame)], -1)
        return (jacobian.T @ jacobian).numpy()
