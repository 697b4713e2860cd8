"""Barron's loss, whose shape is a parameter."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.losses.robust_loss import Derivatives, RobustLoss, as_real_tensor, brief, holds_everywhere


class Barron(RobustLoss):
    """Barron's general loss, whose shape α can be learned: ρ₁(z) = 2b/α · ((1 + z/b)^(α/2) − 1), b = |α − 2|.

    α = 2 is least squares, 1 is :class:`SoftL1` with the same scale, 0 is :class:`Cauchy` with scale √2 c, −2 is
    :class:`GemanMcClure` with scale 2c, −inf is :class:`Welsch` with scale √2 c. Convex for 1 ≤ α ≤ 2, redescending
    for α < 1. α > 2 punishes gross errors more than least squares does, and may overflow for huge s.

    The singular points of the formula are removed: at α = 0 by the series of (exp(x) − 1)/x, at −inf because beyond
    |α| = 1/eps the loss has reached its limit to rounding. At α = 2 itself the family has a logarithmic singularity in
    α (∂ρ/∂α ~ ½ z log(z/b)); b is kept ≥ eps, which makes that derivative finite and changes no value by more than
    rounding.

    Args:
        scale: as in :class:`RobustLoss`. This is Barron's c; his loss is ρ₁/2, as in the cost ½ Σρ.
        alpha: any real number, ``-math.inf`` included, or a tensor or parameter; kept and cast like the scale.

    Raises:
        ValueError: alpha is NaN.

    Source: J. T. Barron, A general and adaptive robust loss function, CVPR (2019), eq. 8.

    >>> import torch, mslsq.losses as losses
    >>> loss = losses.Barron(scale=1.0, alpha=torch.nn.Parameter(torch.tensor(0.0, dtype=torch.float64)))
    >>> loss(torch.tensor(3.0, dtype=torch.float64)).item() == 2 * torch.tensor(1.5, dtype=torch.float64).log1p().item()
    True
    """

    alpha: Tensor
    tuning = 1.287  # of the family, and the constant at the default α = 1

    def __init__(self, scale: float | Tensor = 1.0, alpha: float | Tensor = 1.0):
        super().__init__(scale)
        value = as_real_tensor(alpha, "Barron(alpha=...)")
        if not holds_everywhere(~torch.isnan(value)):
            raise ValueError(
                f"Barron(alpha={brief(value)}): alpha must not be NaN. Use 2 for least squares, 1 for a smooth Huber, "
                "0 for Cauchy, -2 for Geman-McClure, -math.inf for Welsch."
            )
        self._keep("alpha", value)

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return c2 * _barron(s / c2, self._parameter("alpha", s, parameters))[0]

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        value, weight, curvature = _barron(s / c2, self._parameter("alpha", s, parameters))
        return c2 * value, weight, curvature / c2


def _barron(z: Float[Tensor, "..."], alpha: Float[Tensor, "..."]) -> Derivatives:
    """(ρ₁, ρ₁', ρ₁'') of Barron's loss for every real α.

    With L = log(1 + z/b) and x = αL/2: ρ₁' = exp((α/2 − 1)L) =: E, and ρ₁ = b L (exp(x) − 1)/x, which is the series
    for |x| < ½ and 2/α ((b + z)E − b) elsewhere; the latter neither overflows for α ≤ 2 (it never forms exp(x)) nor
    cancels (|exp(x) − 1| > 0.39).
    """
    limits = torch.finfo(z.dtype)
    alpha = alpha.clamp(-1 / limits.eps, 1 / limits.eps)
    b = (alpha - 2).abs().clamp(min=limits.eps)
    huge = z > math.sqrt(limits.max)  # z/b may overflow, and log z − log b is then exact: b ≤ 1/eps
    ones = torch.ones_like(z)
    log = torch.where(huge, torch.where(huge, z, ones).log() - b.log(), (torch.where(huge, ones, z) / b).log1p())
    weight = ((0.5 * alpha - 1) * log).exp()
    x = 0.5 * alpha * log

    # α ≈ 2 takes the closed form for all x: there derivatives of the series in z are differences of terms of size 1/b
    small = (x.abs() < 0.5) & ((alpha - 2).abs() > 1e-8)
    series_x = torch.where(small, x, torch.zeros_like(x))
    nonzero_alpha = torch.where(small, torch.ones_like(x), alpha)
    near = b * torch.where(small, log, torch.zeros_like(x)) * _expm1_over_x(series_x)
    far = (2 / nonzero_alpha) * ((b + z) * weight - b)
    return torch.where(small, near, far), weight, (0.5 * alpha - 1) * weight / (b + z)


def _expm1_over_x(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """(exp(x) − 1)/x for |x| ≤ ½ by its Taylor series; 15 terms leave 1e-18."""
    value = torch.ones_like(x)
    for k in range(15, 1, -1):
        value = 1 + x * value * (1 / k)
    return value
