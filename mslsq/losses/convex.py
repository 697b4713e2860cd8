"""Convex losses: gross errors count less, but always something. A linear residual keeps its one minimum."""

from __future__ import annotations

import torch

from mslsq.losses.robust_loss import RobustLoss


class Huber(RobustLoss):
    """Quadratic near zero, linear in |r| beyond the scale: ρ(s) = s for s ≤ c², else 2c√s − c².

    Convex, continuously differentiable; ρ'' jumps at s = c². The influence of a gross error is bounded but never
    vanishes. Tuning constant 1.345.

    Source: P. J. Huber, Robust estimation of a location parameter, Ann. Math. Statist. 35 (1964).
    """

    tuning = 1.345

    def rho(self, s, parameters=None):
        c = self._parameter("scale", s, parameters)
        outside = s > c * c
        root = torch.where(outside, s, c * c).sqrt()  # the inner value is c² > 0 where s may be 0: √ has no slope there
        return torch.where(outside, c * (2 * root - c), s)

    def derivatives(self, s, parameters=None):
        c = self._parameter("scale", s, parameters)
        outside = s > c * c
        safe = torch.where(outside, s, c * c)
        root = safe.sqrt()
        weight = torch.where(outside, c / root, torch.ones_like(s))
        curvature = torch.where(outside, -0.5 * weight / safe, torch.zeros_like(s))
        return torch.where(outside, c * (2 * root - c), s), weight, curvature


class SoftL1(RobustLoss):
    """A smooth Huber loss (pseudo-Huber, Charbonnier): ρ(s) = 2c²(√(1 + s/c²) − 1).

    Convex, smooth, linear in |r| for gross errors. Evaluated as 2s/(1 + √(1 + s/c²)), which does not cancel for small
    s. Tuning constant 1.287.

    Source: Charbonnier et al., Deterministic edge-preserving regularization in computed imaging, IEEE TIP 6 (1997);
    the name is SciPy's.
    """

    tuning = 1.287

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return 2 * s / (1 + (1 + s / c2).sqrt())

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        root = (1 + s / c2).sqrt()
        weight = 1 / root
        return 2 * s / (1 + root), weight, -0.5 * weight * weight * weight / c2
