"""Losses between least squares and one that rejects outliers: the surrogates of graduated non-convexity.

Each has a `relaxation` ν ≥ 0, one number per problem of a batch. At ν = 0 it is the loss itself, at a large ν it
rejects nothing. One loss in place of a family of them means one plan, one recording, one native program for all
rounds.

Source: H. Yang, P. Antonante, V. Tzoumas, L. Carlone, "Graduated Non-Convexity for Robust Spatial Perception: From
Non-Minimal Solvers to Global Outlier Rejection", IEEE RA-L 5 (2020), section IV; its μ is 1/ν for truncated squares and
1 + ν for Geman and McClure's loss.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.losses.robust_loss import Derivatives, RobustLoss

SCALE, RELAXATION = "scale", "relaxation"
"""The parameters of a surrogate: the largest residual of an inlier, and what changes from round to round."""


class Surrogate(RobustLoss):
    """Base of the surrogates: a loss of scale c, which is itself at `relaxation` zero."""

    relaxation: Tensor
    rejects: ClassVar[bool]
    """Does it give weights of exactly zero?"""
    last: ClassVar[float]
    """A relaxation of that or less is none."""

    def __init__(self, scale: float | Tensor = 1.0):
        super().__init__(scale)
        self.register_buffer(RELAXATION, torch.zeros((), dtype=torch.float64, device="cpu"))

    def rho(self, s: Float[Tensor, "..."], parameters: Mapping[str, Tensor] | None = None) -> Float[Tensor, "..."]:
        return self.derivatives(s, parameters)[0]

    @staticmethod
    def first(worst: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        """The relaxation to begin with where `worst` is the largest s/c²; not positive where all are inliers."""
        return 2 * worst - 1

    @classmethod
    def following(cls, relaxation: Float[Tensor, "batch"], rate: float) -> Float[Tensor, "batch"]:
        """The relaxation of the next round."""
        raise NotImplementedError(f"{cls.__name__} must define following(relaxation, rate).")

    @classmethod
    def is_between(
        cls, shares: Float[Tensor, "batch blocks"], relaxation: Float[Tensor, "batch"]
    ) -> Bool[Tensor, "batch blocks"]:
        """May a block with this s/c² still be accepted or rejected?"""
        raise NotImplementedError(f"{cls.__name__} must define is_between(shares, relaxation).")


class TruncatedSquares(Surrogate):
    """ρ(s) = min(s, c²), relaxed: s up to c²/(1+ν), c² beyond c²(1+ν), and (2c√((1+ν)s) − c² − s)/ν between the two
    (eqs. 8 and 14)."""

    rejects, tuning, last = True, 2.795, 1e-3

    @classmethod
    def following(cls, relaxation: Float[Tensor, "batch"], rate: float) -> Float[Tensor, "batch"]:
        return relaxation / rate

    @classmethod
    def is_between(
        cls, shares: Float[Tensor, "batch blocks"], relaxation: Float[Tensor, "batch"]
    ) -> Bool[Tensor, "batch blocks"]:
        slack = 1 + relaxation[:, None]
        return (shares * slack > 1) & (shares < slack)

    def derivatives(self, s: Float[Tensor, "..."], parameters: Mapping[str, Tensor] | None = None) -> Derivatives:
        c2, given = self._squared_scale(s, parameters), self._parameter(RELAXATION, s, parameters)
        inside, outside = s * (1 + given) <= c2, s >= c2 * (1 + given)
        between = ~(inside | outside)
        slack = torch.where(given > 0, given, 1)
        near = torch.where(between, s, c2)  # keeps √s and 1/s of all others out of the derivatives
        root = (c2 * (1 + slack) * near).sqrt()
        one, zero = torch.ones_like(s), torch.zeros_like(s)
        rho = torch.where(inside, s, torch.where(between, (2 * root - c2 - near) / slack, c2))
        weight = torch.where(inside, one, torch.where(between, (root / near - 1) / slack, zero))
        return rho, weight, torch.where(between, -0.5 * root / (near * near * slack), zero)


class RelaxedGemanMcClure(Surrogate):
    """`GemanMcClure` of the scale c√(1 + ν) (eqs. 7 and 12)."""

    rejects, tuning, last = False, 3.787, 0.0

    @classmethod
    def following(cls, relaxation: Float[Tensor, "batch"], rate: float) -> Float[Tensor, "batch"]:
        return (1 + relaxation) / rate - 1

    @classmethod
    def is_between(
        cls, shares: Float[Tensor, "batch blocks"], relaxation: Float[Tensor, "batch"]
    ) -> Bool[Tensor, "batch blocks"]:
        return torch.ones_like(shares, dtype=torch.bool)

    def derivatives(self, s: Float[Tensor, "..."], parameters: Mapping[str, Tensor] | None = None) -> Derivatives:
        c2 = self._squared_scale(s, parameters) * (1 + self._parameter(RELAXATION, s, parameters))
        share = c2 / (c2 + s)
        weight = share * share
        return s * share, weight, -2 * weight / (c2 + s)


SURROGATES: dict[str, type[Surrogate]] = {"truncated": TruncatedSquares, "geman_mcclure": RelaxedGemanMcClure}
"""By their names in `GraduatedNonConvexity(loss=...)`."""
