"""Resampling onto the reference: aligned maps, and the mosaic of all of them on a canvas that holds them all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.bends import Bend, warped
from mslsq.alignment.grids import inside, pixel_grid
from mslsq.alignment.measures import corners, project
from mslsq.alignment.pyramid import fill
from mslsq.alignment.sampling import sample_at, spline_coefficients

LARGEST_CANVAS = 4096
"""Pixels along a side; a mosaic that would be larger is cut to the reference and as much around it."""


TIE_POINTS_TAG, MATRIX_TAG = 33922, 34264


@dataclass(frozen=True)
class Canvas:
    """A grid of reference pixels: its first pixel is (left, top) in the reference."""

    left: int
    top: int
    height: int
    width: int

    def pixels(self, like: Tensor) -> Float[Tensor, "n 2"]:
        """All pixels in reference coordinates (x, y), row by row."""
        return pixel_grid(self.height, self.width, like) + like.new_tensor([self.left, self.top])


def shifted_georeference(geotags: Sequence[tuple[Any, ...]], canvas: Canvas) -> tuple[tuple[Any, ...], ...]:
    """The reference's GeoTIFF tags for a raster on the canvas: tie points (column, row, 0, x, y, z) move with its
    origin.

    A raster placed by a matrix instead of tie points (tag 34264) gets none: better no position than a wrong one.
    """
    if (canvas.left, canvas.top) == (0, 0):
        return tuple(geotags)
    if any(code == MATRIX_TAG for code, *_ in geotags):
        return ()
    out = []
    for code, kind, count, value in geotags:
        if code == TIE_POINTS_TAG:
            points = torch.tensor(value, dtype=torch.float64).reshape(-1, 6)
            value = tuple((points - points.new_tensor([canvas.left, canvas.top, 0, 0, 0, 0])).reshape(-1).tolist())
        out.append((code, kind, count, value))
    return tuple(out)


def resample(
    values: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    transform: Float[Tensor, "3 3"],
    canvas: Canvas,
    bend: Bend | None = None,
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """A map seen on the canvas, by cubic B-spline, clipped to its own range (a spline overshoots at edges), and where
    it is known."""
    safe = torch.where(mask, values, torch.zeros_like(values))
    sampled, known = seen_on(canvas, spline_coefficients(fill(safe, mask)), mask, transform, bend)
    data = values[:, mask]
    low, high = data.amin(-1)[:, None, None], data.amax(-1)[:, None, None]
    return torch.minimum(torch.maximum(sampled, low), high), known


def seen_on(
    canvas: Canvas,
    coefficients: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    transform: Float[Tensor, "3 3"],
    bend: Bend | None = None,
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """The spline through a map at the pixels of the canvas, and which of them see data."""
    pixels = warped(canvas.pixels(coefficients), transform, bend)
    known = inside(pixels, mask).reshape(canvas.height, canvas.width)
    return sample_at(coefficients, torch.nan_to_num(pixels)).reshape(-1, *known.shape), known


def canvas_around(
    sizes: Sequence[tuple[int, int]],
    transforms: Sequence[Float[Tensor, "3 3"]],
    reference: tuple[int, int],
    largest: int = LARGEST_CANVAS,
) -> Canvas:
    """The smallest canvas of whole reference pixels that holds all maps, within `largest` along a side."""
    where = [corners(*reference, like=transforms[0])]
    for (height, width), transform in zip(sizes, transforms, strict=True):
        seen = project(torch.linalg.inv(transform), corners(height, width, transform))
        if bool(seen.isfinite().all()):
            where.append(seen)
    points = torch.cat(where)
    left, top = (int(v) for v in points.amin(0).floor())
    right, bottom = (int(v) for v in points.amax(0).ceil())
    height, width = reference
    margin_x, margin_y = max(0, largest - width) // 2, max(0, largest - height) // 2
    left, top = max(left, -margin_x), max(top, -margin_y)
    right, bottom = min(right, width - 1 + margin_x), min(bottom, height - 1 + margin_y)
    return Canvas(left, top, bottom - top + 1, right - left + 1)


def blend(
    layers: Sequence[tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]],
) -> tuple[Float[Tensor, "channels rows columns"], Bool[Tensor, "rows columns"]]:
    """The mean of the layers where they are known."""
    total = torch.zeros_like(layers[0][0])
    count = torch.zeros_like(layers[0][0][0])
    for values, known in layers:
        total = total + torch.where(known, values, torch.zeros_like(values))
        count = count + known.to(count.dtype)
    return total / count.clamp(min=1.0), count > 0
