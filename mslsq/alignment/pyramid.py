"""The Gaussian pyramid: prefilter, normalised convolution under a mask, decimation that keeps pixel (0, 0).

Level l holds pixel (x, y) of level 0 at (x, y) / 2ˡ exactly, because decimation is `[::2]` after a centred blur. Hence
a warp H of level 0 is H_l = S⁻¹ H S with S = diag(2ˡ, 2ˡ, 1). (Averaging 2 x 2 blocks would shift centres by (2ˡ -
1)/2 pixels.)
"""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.noise import NONE, Noise, measured
from mslsq.alignment.sampling import convolve_axis, spline_coefficients
from mslsq.kernels import Kernel, in_parts, may_read

_MASKED_BLUR = Kernel("masked_blur", "nnnT?nTnnnTT")

_FILL_SOME = Kernel("fill_some", "nnnT?nTd?T")

_SETTLE = Kernel("settle", "nnn?nnTndnTT?l")

_PYRAMID = Kernel("pyramid", "nnnT?nnTnTnTndT?l")

_LEAST_SHARE = torch.tensor(0.02, dtype=torch.float64, device="cpu")
"""Of a kernel on data, for a hole to be filled by it."""

FILLING = 1.0, 3.0, 9.0
"""Widths of the Gaussians that holes are filled by, one after the other."""

HALVING = 1.0
"""Pixels: of the blur before a level is halved."""

PREFILTER_SIGMA = 1.0
"""Pixels. Blurring both maps alike before anything else: median error 0.0315 → 0.0036 px on random shifts, because
aliasing and the interpolation's noise gain shrink; the price is the highest frequencies."""

SUPPORT = (0.99, 0.9, 0.7, 0.5, 0.3)
"""A blurred pixel is valid when this share of its kernel lay on data: 0.99 takes two pixels off every straight border.
Where that would lose more than 40 % of the data (`KEPT`; scattered holes), the next share is tried."""

KEPT = 0.6
"""Share of the data that must be left."""

COARSEST_SIDE = 24
"""Levels are added while the short side of the next stays at or above this."""


@dataclass(frozen=True)
class Level:
    """One level of the pyramid: `raster` blurred, holes filled; `mask` true where the blur saw data only."""

    raster: Float[Tensor, "channels height width"]
    mask: Bool[Tensor, "height width"]
    factor: int
    noise: Noise = NONE
    """Of the values that were given; none is known of what a metric makes of them."""
    count: int | None = None
    """How many pixels are valid, if that is known; `valid_pixels` counts them."""
    kept: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What has been made of it, by name."""

    @cached_property
    def coefficients(self) -> Float[Tensor, "channels height width"]:
        """Of the spline through the raster. A map that others are placed on needs none."""
        return spline_coefficients(self.raster)

    @cached_property
    def valid_pixels(self) -> int:
        """How many pixels are valid."""
        return int(self.mask.count_nonzero()) if self.count is None else self.count

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.raster.shape[-2], self.raster.shape[-1]

    def with_raster(self, raster: Float[Tensor, "channels height width"]) -> "Level":
        """The same mask and factor with other values."""
        return Level(raster, self.mask, self.factor, count=self.count)


def gaussian_kernel(sigma: float, like: Tensor) -> Float[Tensor, " taps"]:
    """A sampled Gaussian, cut at 4 sigma (6e-5 of its mass), normalised."""
    return like.new_tensor(_taps(sigma))


@lru_cache(maxsize=64)
def half_gaussian(sigma: float, dtype: torch.dtype) -> Float[Tensor, " half"]:
    """The same from its middle on, for the kernels; to be read only."""
    taps = _taps(sigma)
    return torch.tensor(taps[len(taps) // 2 :], dtype=dtype, device="cpu")


@lru_cache(maxsize=64)
def _taps(sigma: float) -> list[float]:
    reach = max(1, math.ceil(4.0 * sigma))
    taps = [math.exp(-0.5 * (tap / sigma) ** 2) for tap in range(-reach, reach + 1)]
    total = math.fsum(taps)
    return [tap / total for tap in taps]


def blur(
    raster: Float[Tensor, "*c height width"], sigma: float, border: str = "zero"
) -> Float[Tensor, "*c height width"]:
    """Separable Gaussian blur."""
    kernel = gaussian_kernel(sigma, raster)
    return convolve_axis(convolve_axis(raster, kernel, -1, border), kernel, -2, border)


def masked_blur(
    raster: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], sigma: float, every: int = 1
) -> tuple[Float[Tensor, "channels h w"], Float[Tensor, "h w"]]:
    """Normalised convolution blur(I·m) / blur(m) (Knutsson and Westin, 1993), and the share blur(m) of the kernel on
    data; with `every` = 2 of every second pixel in both directions.

    The outside of the raster counts as no data. Where the share is below 1e-6 the value is 0.
    """
    if may_read(raster, mask) and raster.dtype in (torch.float32, torch.float64):
        return _blurred(raster.contiguous(), mask.contiguous(), sigma, every)
    known = mask.to(raster.dtype)
    share = blur(known, sigma)[::every, ::every]
    smooth = blur(torch.where(mask, raster, torch.zeros_like(raster)), sigma)[..., ::every, ::every]
    enough = share > 1e-6
    return torch.where(
        enough, smooth / torch.where(enough, share, torch.ones_like(share)), torch.zeros_like(smooth)
    ), share


def _blurred(
    raster: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], sigma: float, every: int
) -> tuple[Float[Tensor, "channels h w"], Float[Tensor, "h w"]]:
    """`masked_blur` by the kernel."""
    half = half_gaussian(sigma, raster.dtype)
    reach = half.shape[0] - 1
    share = raster.new_empty([-(-size // every) for size in mask.shape])
    smooth = raster.new_empty((raster.shape[0], *share.shape))

    def part(first: int, last: int) -> None:
        _MASKED_BLUR(*raster.shape, raster, mask, reach, half, every, first, last, smooth, share)

    in_parts(part, share.shape[0], torch.get_num_threads())
    return smooth, share


def fill(
    raster: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    wanted: Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, "channels height width"]:
    """Continue the raster smoothly into its holes, so that a spline through it does not ring; of holes that are not
    `wanted` nothing is said.

    Normalised convolutions of growing width, the narrowest that sees data wins; the mean of the data beyond the widest.
    """
    remaining = ~mask if wanted is None else wanted & ~mask
    holes = int(remaining.count_nonzero())
    if holes == 0:
        return raster
    filled, data = torch.where(mask, raster, torch.zeros_like(raster)), int(mask.count_nonzero())
    for sigma in FILLING:
        half = half_gaussian(sigma, raster.dtype)
        if (
            holes * len(half) < mask.numel()
            and may_read(raster, mask)
            and raster.dtype in (torch.float32, torch.float64)
        ):
            rasters = raster.contiguous(), mask.contiguous()
            _FILL_SOME(*raster.shape, *rasters, len(half) - 1, half, _LEAST_SHARE, remaining, filled)
        else:
            smooth, share = masked_blur(raster, mask, sigma)
            use = remaining & (share > float(_LEAST_SHARE))
            filled = torch.where(use, smooth, filled)
            remaining = remaining & ~use
        holes = int(remaining.count_nonzero())
        if holes == 0:
            return filled
    mean = torch.where(mask, filled, torch.zeros_like(filled)).sum((-2, -1), keepdim=True) / max(data, 1)
    return torch.where(remaining, mean, filled)


def depth(height: int, width: int, coarsest_side: int = COARSEST_SIDE) -> int:
    """How many levels until the short side would fall below `coarsest_side` (at least one).

    >>> depth(256, 300), depth(20, 20)
    (4, 1)
    """
    short = min(height, width)
    return 1 + max(0, math.floor(math.log2(short / coarsest_side))) if short >= coarsest_side else 1


HOLLOW = 0.3
"""Share of a kernel on data up to which a blurred value is continued from those around it instead."""


_SHARES = torch.tensor([KEPT, HOLLOW, float(_LEAST_SHARE), *SUPPORT], dtype=torch.float64, device="cpu")


def settled(
    smooth: Float[Tensor, "channels height width"],
    share: Float[Tensor, "height width"],
    mask: Bool[Tensor, "rows columns"],
    every: int,
) -> tuple[Float[Tensor, "channels height width"], Bool[Tensor, "height width"]]:
    """What a blur of every `every`-th pixel has left, its holes filled (in place where there are few), and the pixels
    to trust: the strictest share of `SUPPORT` that keeps 60 % of the data."""
    if may_read(smooth, share, mask) and smooth.dtype in (torch.float32, torch.float64):
        half, valid = half_gaussian(FILLING[0], smooth.dtype), torch.empty(share.shape, dtype=torch.bool, device="cpu")
        counts = np.empty(2, dtype=np.int64)
        _SETTLE(
            *smooth.shape, mask.contiguous(), mask.shape[1], every, share, len(SUPPORT), _SHARES, half.shape[0] - 1,
            half, smooth, valid, counts,
        )  # fmt: skip
        return smooth if counts[0] == 0 else fill(smooth, share > HOLLOW), valid
    data = int(mask[::every, ::every].count_nonzero())
    for threshold in SUPPORT:
        valid = share > threshold
        if int(valid.count_nonzero()) >= KEPT * data:
            break
    return fill(smooth, share > HOLLOW), valid


def _blurred_first(
    raster: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], prefilter: float
) -> tuple[Float[Tensor, "channels height width"], Float[Tensor, "height width"]]:
    if prefilter > 0:
        return masked_blur(raster, mask, prefilter)
    return torch.where(mask, raster, torch.zeros_like(raster)), mask.to(raster.dtype)


def _built(
    raster: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], levels: int, prefilter: float
) -> list[Level]:
    """The levels of `build` by one call of a kernel, where one thread makes them all: up to the first with holes that
    wider kernels must fill."""
    readable = may_read(raster, mask) and raster.dtype in (torch.float32, torch.float64)
    if not readable or prefilter <= 0 or torch.get_num_threads() > 1:
        return []
    sizes = [tuple(mask.shape)]
    while len(sizes) < levels:
        sizes.append(tuple((side + 1) // 2 for side in sizes[-1]))
    channels, pixels = len(raster), [rows * columns for rows, columns in sizes]
    values = raster.new_empty(channels * sum(pixels))
    valid = torch.empty(sum(pixels), dtype=torch.bool, device="cpu")
    counts = np.empty(levels + 1, dtype=np.int64)
    kernels = [half_gaussian(sigma, raster.dtype) for sigma in (prefilter, HALVING, FILLING[0])]
    _PYRAMID(
        *raster.shape, raster.contiguous(), mask.contiguous(), levels,
        *(part for kernel in kernels for part in (kernel.shape[0] - 1, kernel)), len(SUPPORT), _SHARES, values, valid,
        counts,
    )  # fmt: skip
    *known, done = counts.tolist()
    rasters, masks = values.split([channels * count for count in pixels]), valid.split(pixels)
    out: list[Level] = []
    for index in range(done):
        smooth, settled_mask = rasters[index].view(channels, *sizes[index]), masks[index].view(sizes[index])
        noise = out[-1].noise.halved() if out else measured(smooth, settled_mask, prefilter)
        out.append(Level(smooth, settled_mask, 2**index, noise, known[index]))
    return out


def build(
    raster: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    levels: int,
    prefilter: float = PREFILTER_SIGMA,
) -> list[Level]:
    """The pyramid of one map, finest level first. `mask` is true on data; values elsewhere are ignored (NaN allowed).

    Every level is blurred once more by 1 px before it is decimated. dtype and device are those of `raster`.

    >>> [level.size for level in build(torch.rand(1, 100, 65), torch.ones(100, 65, dtype=torch.bool), 3)]
    [(100, 65), (50, 33), (25, 17)]
    """
    out = _built(raster, mask, levels, prefilter)
    noise = out[-1].noise if out else NONE
    mask = out[-1].mask if out else mask
    for index in range(len(out), levels):
        if index == 0:
            smooth, share = _blurred_first(raster, mask, prefilter)
        else:
            smooth, share = masked_blur(out[-1].raster, mask, HALVING, every=2)
            noise = out[-1].noise.halved()
        smooth, mask = settled(smooth, share, mask, every=min(index, 1) + 1)
        if index == 0:
            noise = measured(smooth, mask, prefilter)
        out.append(Level(smooth, mask, 2**index, noise))
    return out
