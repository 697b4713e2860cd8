"""White noise in one map, as its own pixels have it, and the share of a block's detail that is more than noise.

Noise on both maps lowers the correlation of a true placement: by the square roots of their reliabilities, the shares
of the variance that are signal (Spearman, "The proof and measurement of association between two things", 1904). So
what is asked of a correlation is lowered by as much, and not where maps disagree without noise: of two views of a
street one house agrees, and nothing else.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.kernels import Kernel, may_read

_SECOND_DIFFERENCES = Kernel("second_differences", "nnnT?ndl")

MASK = 1.0, -2.0, 1.0
"""Second differences, in both directions (Immerkær, "Fast noise variance estimation", 1996)."""

SAMPLES = 1 << 15
"""About as many tell the noise: its variance is then known to two percent."""

WHITE = 1 / (4 * math.pi)
"""The square of the width of a Gaussian that leaves as much of white noise, 1 / (4πσ²), as no filter does."""


class Noise(NamedTuple):
    """Of one level of a map."""

    variance: float = 0.0
    """Of what white noise leaves in the values, channels added up."""
    square: float = WHITE
    """Samples²: of the width of the Gaussian that has blurred it."""

    def halved(self) -> "Noise":
        """Behind another Gaussian of one sample, on every second sample."""
        return Noise(self.variance * self.square / (self.square + 1), (self.square + 1) / 4)


NONE = Noise()
"""Where nothing is known of it."""


def measured(
    raster: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], prefilter: float
) -> Noise:
    """The noise of a map behind a Gaussian of `prefilter` pixels, from the median of |mask * raster|: edges, stars and
    lamps, which are few, do not count."""
    height, width = mask.shape
    every = -(-height * width // SAMPLES)
    if min(height, width) < 3:
        return NONE
    medians = _second_differences(raster, mask, every)
    if medians is None:
        return NONE
    return Noise(float((1.4826 * medians).square().sum()) / _passed(prefilter), max(prefilter**2, WHITE))


def _second_differences(
    raster: Float[Tensor, "channels height width"], mask: Bool[Tensor, "height width"], every: int
) -> Float[Tensor, " channels"] | None:
    """The median of |mask * raster| of each channel, of every few rows, where all nine pixels are known; None if they
    are nowhere."""
    channels, height, width = raster.shape
    if may_read(raster, mask) and raster.dtype in (torch.float32, torch.float64):
        medians, count = np.empty(channels), np.empty(1, dtype=np.int64)
        _SECOND_DIFFERENCES(*raster.shape, raster.contiguous(), mask.contiguous(), every, medians, count)
        return torch.from_numpy(medians) if count[0] else None
    rows = [slice(shift, height - 2 + shift, every) for shift in range(3)]
    columns = [slice(shift, width - 2 + shift) for shift in range(3)]
    above, at, below = (raster[:, row] for row in rows)
    down = above - 2 * at + below
    before, at, after = (down[..., column] for column in columns)
    both = before - 2 * at + after
    known = torch.stack([mask[row][:, column] for row in rows for column in columns]).all(0)
    seen = both[:, known]
    return seen.abs().median(-1).values if seen.shape[-1] else None


@lru_cache(maxsize=16)
def _passed(prefilter: float) -> float:
    """The variance behind `MASK` over that before it, of white noise behind a Gaussian of that width."""
    reach = math.ceil(4 * prefilter)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(prefilter, 1e-9)) ** 2)
    return float((np.convolve(taps, MASK) ** 2).sum() / (taps**2).sum()) ** 2


@lru_cache(maxsize=64)
def left(side: int, square: float) -> float:
    """The share of the noise's variance that a quadratic surface, fitted to a block, leaves: tr((I - P) C) / n, with
    the correlation exp(-d² / 4σ²) of neighbours behind a Gaussian."""
    at = np.linspace(-1, 1, side)
    y, x = (part.ravel() for part in np.meshgrid(at, at, indexing="ij"))
    surface = np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], 1))[0]
    along = np.exp(-(np.subtract.outer(np.arange(side), np.arange(side)) ** 2) / (4 * square))
    correlation = np.kron(along, along)
    return 1 - float(np.sum(surface * (correlation @ surface))) / side**2


def in_blocks(noises: tuple[Noise, Noise], side: int, stride: int) -> list[float]:
    """The mean square of noise alone in the detail of blocks, of either map."""
    return [noise.variance * left(side, noise.square / stride**2) for noise in noises]


def reliability(
    energy: Float[np.ndarray, "maps blocks"], noises: tuple[Noise, Noise], side: int, stride: int
) -> Float[np.ndarray, " blocks"]:
    """What noise alone leaves of the correlation of detail that agrees, block by block; `energy` is the mean square of
    the detail of either map."""
    of_noise = np.array(in_blocks(noises, side, stride))
    shares = 1 - of_noise[:, None] / np.maximum(energy, np.finfo(np.float64).tiny)
    return np.sqrt(shares.clip(0.0, 1.0).prod(0))
