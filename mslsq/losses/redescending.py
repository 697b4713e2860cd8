"""Redescending losses: gross errors lose their influence, so a solve has to start near."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.losses.robust_loss import RobustLoss


class Cauchy(RobustLoss):
    """The log-likelihood of a Cauchy distribution (Lorentzian): ρ(s) = c² log(1 + s/c²).

    Redescending, smooth; the influence falls as 1/|r|. Tuning constant 2.385.

    Source: M. J. Black and P. Anandan, The robust estimation of multiple motions, CVIU 63 (1996).
    """

    tuning = 2.385

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return c2 * (s / c2).log1p()

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        weight = 1 / (1 + s / c2)
        return c2 * (s / c2).log1p(), weight, -weight * weight / c2


class Arctan(RobustLoss):
    """Bounded, and flatter near zero than the others: ρ(s) = c² arctan(s/c²).

    Redescending, smooth; it departs from the quadratic only at third order in s/c². Tuning constant 2.571.

    Source: ``scipy.optimize.least_squares(loss="arctan")``; Ceres has the same shape with scale c².
    """

    tuning = 2.571

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return c2 * self._arctan(s / c2)

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        z = s / c2
        weight = 1 / (1 + z * z)  # z² may overflow to inf: the weight is then the right 0
        return c2 * self._arctan(z), weight, -2 * (z * weight) * weight / c2

    @staticmethod
    def _arctan(z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """arctan z, constant where z² would overflow: its automatic derivatives form 0 · inf there."""
        huge = z > torch.finfo(z.dtype).max ** 0.25
        return torch.where(huge, math.pi / 2, torch.where(huge, torch.zeros_like(z), z).atan())


class Tukey(RobustLoss):
    """Tukey's biweight: ρ(s) = c²(1 − (1 − s/c²)³)/3 for s ≤ c², else c²/3.

    Redescending; beyond the scale a block has weight exactly zero, so start close. Evaluated for s ≤ c² as
    s(1 − z + z²/3), z = s/c², which does not cancel for small s. Tuning constant 4.685.

    Source: A. E. Beaton and J. W. Tukey, The fitting of power series, Technometrics 16 (1974).
    """

    tuning = 4.685

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        inside = s <= c2
        near = torch.where(inside, s, torch.zeros_like(s))  # keeps s/c² of a gross error out of the derivatives
        z = near / c2
        return torch.where(inside, near * (1 - z * (1 - z / 3)), c2 / 3)

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        inside = s <= c2
        near = torch.where(inside, s, torch.zeros_like(s))
        z = near / c2
        rest = torch.where(inside, 1 - z, torch.zeros_like(s))
        return torch.where(inside, near * (1 - z * (1 - z / 3)), c2 / 3), rest * rest, -2 * rest / c2


class GemanMcClure(RobustLoss):
    """Bounded by c²: ρ(s) = s/(1 + s/c²).

    Redescending, smooth; the influence falls as 1/|r|³. The same as Barron's α = −2 with half its scale. Tuning
    constant 3.787.

    Source: S. Geman and D. E. McClure, Bayesian image analysis: an application to SPECT, Proc. ASA (1985).
    """

    tuning = 3.787

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return s * (c2 / (c2 + s))

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        share = c2 / (c2 + s)  # 1/(1 + z) without forming z, which may overflow
        weight = share * share
        return s * share, weight, -2 * weight / (c2 + s)


class Welsch(RobustLoss):
    """Bounded by c², with Gaussian weights (Leclerc): ρ(s) = c²(1 − exp(−s/c²)).

    Redescending, smooth; the weight exp(−s/c²) falls fastest of all smooth losses here. Tuning constant 2.985.

    Source: J. E. Dennis and R. E. Welsch, Techniques for nonlinear least squares and robust regression, Comm. Statist.
    Simulation Comput. 7 (1978).
    """

    tuning = 2.985

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return -c2 * (-s / c2).expm1()

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        rest = (-s / c2).expm1()
        weight = (-s / c2).exp()
        return -c2 * rest, weight, -weight / c2
