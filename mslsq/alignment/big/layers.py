"""One placed file, seen through a window of the mosaic."""

import math
from dataclasses import dataclass

import scipy.ndimage
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.big.files import AROUND, RasterFile
from mslsq.alignment.canvas import Canvas, resample
from mslsq.alignment.measures import corners, project


@dataclass(frozen=True)
class Layer:
    """One placed map, reduced where its pixels are much finer than the reference's."""

    file: RasterFile
    factor: int
    transform: Float[Tensor, "3 3"]
    """Pixel of the reference to pixel of the reduced map."""
    gain: float
    bias: float
    grey: bool
    finer: float
    """Pixels of the reduced map in one of the reference."""

    def seen(self, canvas: Canvas, feather: int | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Values in those of the reference, where they are known, and their weights; None where it shows nothing."""
        around = AROUND + (0 if feather is None else math.ceil(feather * self.finer))
        box = self._box(canvas, around)
        if box is None:
            return None
        top, left, height, width = box
        read = self.file.grey if self.grey else self.file.read
        values, mask = read(top, left, height, width, self.factor)
        if not bool(mask.any()):
            return None
        shift = self.transform.new_tensor([[1, 0, -left], [0, 1, -top], [0, 0, 1]])
        values, known = resample(values, mask, shift @ self.transform, canvas)
        if not bool(known.any()):
            return None
        weight = None if feather is None else self._weight(mask, shift @ self.transform, canvas, feather)
        return self.gain * values + self.bias, known, weight

    def _box(self, canvas: Canvas, around: int) -> tuple[int, int, int, int] | None:
        """(top, left, height, width) of what a window shows; it may reach beyond the raster, where nothing is known."""
        outline = corners(canvas.height, canvas.width, self.transform)
        seen = project(self.transform, outline + outline.new_tensor([canvas.left, canvas.top]))
        height, width = self.file.reduced(self.factor)
        low, high = seen.amin(0), seen.amax(0)
        beyond = bool((high < -1).any()) or bool((low > low.new_tensor([width, height])).any())
        if beyond or not bool(seen.isfinite().all()):
            return None
        first_x, first_y = (max(math.floor(one) - around, -around) for one in low.tolist())
        last_x = min(math.ceil(float(high[0])) + around, width + around)
        last_y = min(math.ceil(float(high[1])) + around, height + around)
        return first_y, first_x, last_y - first_y + 1, last_x - first_x + 1

    def _weight(
        self, mask: Bool[Tensor, "height width"], transform: Float[Tensor, "3 3"], canvas: Canvas, feather: int
    ) -> Float[Tensor, "rows columns"]:
        """The distance from the nearest pixel without data, in pixels of the reference, over the feather's width."""
        distance = torch.from_numpy(scipy.ndimage.distance_transform_edt(mask.numpy())) / self.finer
        if bool(mask.all()):
            distance = torch.full_like(distance, float(feather))
        at = project(transform, canvas.pixels(transform)).nan_to_num(0.0).round().long()
        column, row = at[:, 0].clamp(0, mask.shape[1] - 1), at[:, 1].clamp(0, mask.shape[0] - 1)
        return (distance[row, column] / feather).clamp(1e-6, 1.0).reshape(canvas.height, canvas.width)
