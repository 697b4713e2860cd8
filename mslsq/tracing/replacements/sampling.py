"""`grid_sample` in forward mode: gathers, and derivatives through the weights alone.

PyTorch's kernel has no forward-mode derivative and no second one: a Jacobian of 64 × 64 pixels in eight unknowns took
3,136 passes back, minutes. Here each axis gives its taps (a place, whether it lies inside, a weight), and the result is
the sum over the products of taps, for two and three axes alike.
"""

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Inexact, Int
from torch import Tensor

from mslsq.private import SAMPLER_HAS_DERIVATIVES, is_differentiated_once_at_most

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


class Axis(NamedTuple):
    """One axis of the image."""

    length: int
    padding: int
    align_corners: bool
    is_solid: bool
    """One of three: where PyTorch's kernels differ on coordinates that are NaN."""


class Tap(NamedTuple):
    """One place of an axis for each sample."""

    index: Int[Tensor, "*samples"]
    inside: Bool[Tensor, "*samples"]
    weight: Float[Tensor, "*samples"] | None
    """None is one."""


def grid_sample(
    image: Inexact[Tensor, "n c *size"],
    grid: Float[Tensor, "n *out axes"],
    interpolation: int = BILINEAR,
    padding: int = ZEROS,
    align_corners: bool = False,
) -> Inexact[Tensor, "n c *out"]:
    """`aten.grid_sampler_2d` and `_3d`; coordinates in -1..1, the last axis of the image first.

    Where no more than a first derivative in reverse mode can be asked for it is they that are called: a fifth of the
    time of a step of 4 images of 60 × 80 pixels. (Not for the nearest place, which rounding decides otherwise.)
    """
    size = image.shape[2:]
    may_be_kernels = SAMPLER_HAS_DERIVATIVES and interpolation != NEAREST and image.is_floating_point()
    if may_be_kernels and is_differentiated_once_at_most():
        kernel = aten.grid_sampler_2d if len(size) == 2 else aten.grid_sampler_3d
        return kernel.default(image, grid, interpolation, padding, align_corners)
    axes = [
        taps(grid[..., len(size) - 1 - axis], Axis(length, padding, align_corners, len(size) == 3), interpolation)
        for axis, length in enumerate(size)
    ]
    flat = image.flatten(2)
    shape = (image.shape[0], image.shape[1], *grid.shape[1:-1])
    total: Tensor | None = None
    for chosen in itertools.product(*axes):
        index, inside, weight = chosen[0]
        for tap, length in zip(chosen[1:], size[1:], strict=True):
            index, inside = index * length + tap.index, inside & tap.inside
            weight = tap.weight if weight is None or tap.weight is None else weight * tap.weight
        places = index.reshape(shape[0], 1, -1).expand(-1, shape[1], -1)
        found = torch.where(inside.unsqueeze(1), flat.gather(2, places).reshape(shape), 0)
        if len(size) == 3 and weight is not None:
            weight = torch.where(inside, weight, 0)  # PyTorch's: a NaN coordinate samples NaN in 2-D and 0 in 3-D
        part = found if weight is None else found * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None  # an axis has at least one tap
    return total


def taps(x: Float[Tensor, "*samples"], axis: Axis, interpolation: int) -> list[Tap]:
    """Where an axis is read, and with which weights."""
    length = axis.length
    x = ((x + 1) * (length - 1) if axis.align_corners else (x + 1) * length - 1) / 2
    if interpolation == NEAREST:
        return [placed(padded(x, axis).round(), length, None)]
    if interpolation == BICUBIC:  # the places are padded, not the coordinate
        low = x.floor()
        steps = [padded(low + k, axis) for k in (-1, 0, 1, 2)]
        return [placed(step, length, weight) for step, weight in zip(steps, cubic(x - low), strict=True)]
    x = padded(x, axis)
    low = x.floor()
    return [placed(low, length, low + 1 - x), placed(low + 1, length, x - low)]


def placed(at: Float[Tensor, "*samples"], length: int, weight: Tensor | None) -> Tap:
    inside = (at >= 0) & (at <= length - 1)
    return Tap(torch.where(inside, at, 0).to(torch.int64), inside, weight)


def padded(x: Float[Tensor, "*samples"], axis: Axis) -> Float[Tensor, "*samples"]:
    """The coordinate brought inside; its derivative is zero where it was cut off, at the border itself too."""
    if axis.padding == ZEROS:
        return x
    last = axis.length - 1
    if axis.padding == REFLECTION:
        x = reflected(x, 0, last) if axis.align_corners else reflected(x, -0.5, last + 0.5)
    if axis.is_solid:  # NaN is the last place, in 2-D the first
        x = torch.where(x < last, x, last)
    x = torch.where(x > 0, x, 0)
    return torch.where(x < last, x, last)


def reflected(x: Float[Tensor, "*samples"], low: float, high: float) -> Float[Tensor, "*samples"]:
    """Folded at `low` and `high` until it lies between."""
    if low == high:
        return torch.zeros_like(x)
    distance = torch.where(x < low, low - x, x - low)
    rest = torch.fmod(distance, high - low)
    folds = ((distance - rest) / (high - low)).round()
    return torch.where(torch.fmod(folds, 2) == 0, low + rest, high - rest)


def cubic(t: Float[Tensor, "*samples"], a: float = -0.75) -> list[Tensor]:
    """Keys' convolution weights of the four neighbours, `t` behind the second."""

    def near(s: Tensor) -> Tensor:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: Tensor) -> Tensor:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]
