"""Do residuals vary slowly over a map? Noise does not; light, a curve of values, and what a metric leaves do."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.estimate import Estimate
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.spread import residual_at
from mslsq.kernels import Kernel, may_read

_MEANS_OF_BLOCKS = Kernel("means_of_blocks", "nnnTT?ndd")

SIDE = 16
"""Samples: of the blocks whose means hold what varies slowly."""


def unevenness(level: PairLevel, estimate: Estimate) -> float:
    """Which share of the energy of a placement's residuals the means of blocks hold; 4πσ²/256 for white noise under a
    prefilter of σ px (0.05 at 1 px)."""
    sampled, valid = level.look(estimate.matrix)
    values = sampled.T
    if may_read(values, level.planes, valid) and values.dtype == level.planes.dtype:
        gain, bias = estimate.value.tolist()
        found, settings = (
            torch.empty(2, dtype=torch.float64, device="cpu"),
            torch.tensor([math.exp(gain), bias], dtype=torch.float64, device="cpu"),
        )
        shape = len(values), *level.grid
        _MEANS_OF_BLOCKS(*shape, values.contiguous(), level.planes, valid, SIDE, settings, found)
        of_means, energy = found.tolist()
        return of_means / energy if energy > 0 else 0.0
    residual, valid = residual_at(estimate, level)
    known = valid.to(residual.dtype)
    seen = (residual * known[:, None]).T.reshape(-1, *level.grid)
    energy = float(seen.square().sum())
    return share_of_means(seen, known.reshape(1, *level.grid)) / energy if energy > 0 else 0.0


def share_of_means(seen: Float[Tensor, "channels height width"], known: Float[Tensor, "1 height width"]) -> float:
    """Σ over the blocks of count · mean², of values that are zero where they are not known."""
    pooled = [torch.nn.functional.avg_pool2d(part, SIDE, ceil_mode=True, divisor_override=1) for part in (seen, known)]
    return float((pooled[0].square() / pooled[1].clamp(min=1.0)).sum())


def correlated_pixels(level: PairLevel, estimate: Estimate) -> float:
    """How many pixels of the residuals hold as much as one independent one: n times the share of the means of blocks of
    n. (Their spectral density at low frequencies over their variance.)"""
    return SIDE**2 * unevenness(level, estimate)
