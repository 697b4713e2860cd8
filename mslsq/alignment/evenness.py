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

UNEVEN = 0.2
"""Share of the residuals' energy that the means of the blocks hold, at which values are doubted. It was 0.04 to 0.09
where a gain and a bias are all that is between two maps, 0.2 to 0.8 under a gamma, 0.6 to 0.9 under a lamp (the half
"choose" of `benchmarks/metric_pairs.py`)."""


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


def slow_part(level: PairLevel, estimate: Estimate) -> Float[Tensor, "channels n"]:
    """At each sample the mean of the residuals about it, over a triangle of two blocks: what varies slowly in them."""
    residual, valid = residual_at(estimate, level)
    known = valid.to(residual.dtype)
    seen = torch.cat([(residual * known[:, None]).T, known[None]]).reshape(-1, *level.grid)[:, None]
    for _ in range(2):
        for kernel, pad in (((SIDE + 1, 1), (SIDE // 2, 0)), ((1, SIDE + 1), (0, SIDE // 2))):
            seen = torch.nn.functional.avg_pool2d(seen, kernel, 1, pad, divisor_override=1)
    return (seen[:-1, 0] / seen[-1:, 0].clamp(min=1.0)).reshape(len(seen) - 1, -1)
