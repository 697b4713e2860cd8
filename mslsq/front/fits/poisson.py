"""Counts: residuals whose squares are the deviance of the Poisson distribution."""

import torch
from torch import Tensor

NEAR = 0.02
"""Up to this relative distance between mean and count a series replaces u − log(1 + u), which cancels there."""


def deviance_residual(mean: Tensor, counts: Tensor) -> Tensor:
    """sign(μ − y) √(2 (y log(y/μ) − y + μ)), smooth through μ = y; √(2μ) where y is zero, NaN where μ or y is
    negative.

    McCullagh & Nelder, Generalized Linear Models (1989), section 2.4.3. With u = (μ − y)/y it is √y · u · √g(u), where
    g(u) = 2 (u − log(1 + u))/u² = 1 − 2u/3 + u²/2 − ...
    """
    some = counts > 0
    base = torch.where(some, counts, torch.ones_like(counts))
    u = torch.where(some, (mean - counts) / base, torch.zeros_like(mean))
    near = u.abs() < NEAR
    small, large = torch.where(near, u, torch.zeros_like(u)), torch.where(near, torch.ones_like(u), u)
    series = torch.zeros_like(u)
    for order in range(10, 1, -1):  # the next term is below 1e-17
        series = 2 * (-1) ** order / order + small * series
    g = torch.where(near, series, 2 * (large - torch.log1p(large)) / large.square())
    positive = torch.where(some, torch.ones_like(mean), torch.where(counts < 0, torch.nan, mean))
    return torch.where(some, base.sqrt() * u * g.sqrt(), (2 * positive).sqrt())
