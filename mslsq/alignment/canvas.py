"""Resampling onto the reference: aligned maps, and the mosaic of all of them on a canvas that holds them all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.bends import Bend, warped
from mslsq.alignment.grids import inside, pixel_grid
from mslsq.alignment.measures import corners, project
from mslsq.alignment.pyramid import fill, masked_blur
from mslsq.alignment.sampling import sample_at, spline_coefficients

LARGEST_CANVAS = 4096
"""Pixels along a side; a mosaic that would be larger is cut to the reference and as much around it."""


EVERYWHERE = 2**40
"""No side of a canvas is larger: nothing is cut."""

COARSER = 1.25
"""Pixels of a map from one pixel to the next, from which it is blurred before."""


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
    if coarser := _coarser(transform, canvas):
        safe = masked_blur(safe, mask, coarser)[0]
    sampled, known = seen_on(canvas, spline_coefficients(fill(safe, mask)), mask, transform, bend)
    data = values[:, mask]
    low, high = data.amin(-1)[:, None, None], data.amax(-1)[:, None, None]
    return torch.minimum(torch.maximum(sampled, low), high), known


def _coarser(transform: Float[Tensor, "3 3"], canvas: Canvas) -> float:
    """Sigma in pixels of the map of the blur that sampling in steps of s pixels needs, (s - 1) / 2 as scikit-image has
    it; 0 where steps are hardly longer than a pixel."""
    middle = transform.new_tensor([canvas.left + canvas.width / 2, canvas.top + canvas.height / 2, 1])
    x, y, depth = (transform @ middle).tolist()
    if depth <= 1e-9:
        return 0.0
    moved = transform.new_tensor([[x / depth], [y / depth]])
    scales = torch.linalg.svdvals((transform[:2, :2] - moved @ transform[2:, :2]) / depth)
    step = float(scales.log().mean().exp())
    return (step - 1) / 2 if step > COARSER else 0.0


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
