"""The noise of ratios, from the residuals of a robust start: the scale of the loss."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq import GemanMcClure
from mslsq.alignment.scales.cells import LIMIT, minimum_of
from mslsq.alignment.scales.descent import laplacian
from mslsq.alignment.scales.graph import Graph, free_maps

OUTLIER = 2.5
"""Standard deviations; residuals beyond do not count."""
TRUNCATED_MEDIAN = 0.6662
"""Median of |z| for a standard normal z that is at most 2.5: Φ⁻¹(½ + ½ (Φ(2.5) − ½))."""
SMALLEST_REMAINDER = 0.05
"""Ratios with a leverage above 0.95 do not count: nothing checks them."""
FLOOR = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Below it differences of logs are rounding."""


def noise_of(
    graph: Graph,
    logs: Float[Tensor, "measurements cells"],
    trust: Float[Tensor, "measurements cells"],
    component: Int[Tensor, "maps cells"],
) -> float:
    """Robust standard deviation of the log ratios of all cells; NaN where no cell has more ratios than unknowns.

    First from a start in absolute values: it passes through as many ratios as it has unknowns, so in every cell the
    smallest residuals, one per unknown, are left out. Then from the robust minimum at that noise, each residual divided
    by √(1 − h), h its leverage among the ratios that are believed.
    """
    free, first, second = free_maps(component), *graph.ends
    x, _ = minimum_of(graph, logs, trust, free, scale=1.0, limit=0)
    size = torch.where(trust > 0, (trust * (logs + x[first] - x[second])).abs(), torch.inf).sort(0).values
    rank = torch.arange(len(size), device=size.device)[:, None]
    noise = truncated_deviation(size[(rank >= free.sum(0)) & (rank < (trust > 0).sum(0))])
    scale = loss_scale(noise, logs.dtype)
    x, _ = minimum_of(graph, logs, trust, free, scale, LIMIT)
    residual = trust * (logs + x[first] - x[second])
    weight = trust**2 / (1 + (residual / scale) ** 2) ** 2
    remaining = 1 - leverage(graph, weight, free)
    checked = (trust > 0) & (remaining > SMALLEST_REMAINDER)
    return truncated_deviation((residual.abs() / remaining.clamp(min=SMALLEST_REMAINDER).sqrt())[checked])


def truncated_deviation(size: Float[Tensor, " n"]) -> float:
    """Standard deviation from the median of the sizes within 2.5 standard deviations, until it stays. Where a fifth of
    the ratios is grossly wrong it is 16 % too large, 1.4826 times the plain median 53 %."""
    if size.numel() == 0:
        return math.nan
    size = size.sort().values  # the median of all within a bound is then a look-up
    noise = 1.4826 * float(size[len(size) // 2])
    for _ in range(30):
        within = int(torch.searchsorted(size, OUTLIER * noise))
        before, noise = noise, float(size[within // 2]) / TRUNCATED_MEDIAN
        if before == noise:
            break
    return noise


def variances(
    graph: Graph, weight: Float[Tensor, "measurements cells"], free: Float[Tensor, "maps cells"]
) -> Float[Tensor, "cells maps maps"]:
    """Covariance of the logs for ratios of unit noise, zero for maps that are held; infinite where the weights leave a
    map undetermined."""
    factor, info = torch.linalg.cholesky_ex(laplacian(graph, weight, free))
    sound = (info == 0)[:, None, None]
    inverse = torch.cholesky_inverse(torch.where(sound, factor, torch.eye(graph.maps, device="cpu").to(factor)))
    both = free.T[:, :, None] * free.T[:, None, :]
    return torch.where(sound, inverse, torch.inf).where(both > 0, 0)


def leverage(
    graph: Graph, weight: Float[Tensor, "measurements cells"], free: Float[Tensor, "maps cells"]
) -> Float[Tensor, "measurements cells"]:
    """w aᵀ (Σ w a aᵀ)⁻¹ a of every ratio, a = ±1 at its maps: the share of itself in what the fit says of it."""
    first, second = graph.ends
    inverse = variances(graph, weight, free).permute(1, 2, 0)
    return weight * (inverse[first, first] + inverse[second, second] - 2 * inverse[first, second])


def loss_scale(noise: float, dtype: torch.dtype) -> float:
    """The scale of the loss, 95 % efficient for that noise; above the rounding of logs in a dtype."""
    floor = FLOOR.get(dtype, 1e-6)
    return GemanMcClure.tuning * (noise if noise > floor else floor)
