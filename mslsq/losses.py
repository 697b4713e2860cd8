"""Robust losses: how much a squared residual counts, one module per loss.

The convention is that of Ceres and of ``scipy.optimize.least_squares``: the cost of a problem is ``½ Σ ρ(s)`` with the
squared norm ``s = ‖r‖²`` of each block, and every loss is written in units of its ``scale`` c,

    ρ(s) = c² ρ₁(s / c²),        ρ₁(z) = z + O(z²),

so that ρ(0) = 0, ρ'(0) = 1: residuals much smaller than c count as in plain least squares. ρ'(s) is the weight that
iteratively reweighted least squares gives to the block.

========================  ==========================================  ======================  ========================
loss                      ρ₁(z)                                       in r = √z               tuning (c for unit noise)
========================  ==========================================  ======================  ========================
:class:`Huber`            z, beyond z = 1: 2√z − 1                    convex                  1.345
:class:`SoftL1`           2(√(1 + z) − 1)                             convex                  1.287
:class:`Cauchy`           log(1 + z)                                  redescending            2.385
:class:`Arctan`           arctan z                                    redescending            2.571
:class:`Tukey`            (1 − (1 − z)³)/3, beyond z = 1: 1/3         redescending, rejects   4.685
:class:`GemanMcClure`     z/(1 + z)                                   redescending            3.787
:class:`Welsch`           1 − exp(−z)                                 redescending            2.985
:class:`Barron`           2|α−2|/α · ((1 + z/|α−2|)^(α/2) − 1)        convex for 1 ≤ α ≤ 2    1.287 (α = 1)
========================  ==========================================  ======================  ========================

The tuning constants give 95 % of the efficiency of least squares when the residuals are Gaussian with unit standard
deviation; multiply by the noise's own (for instance ``1.4826 × median |r|``) to get the ``scale``.

Nothing here takes a square root at zero, and no unselected branch holds an infinity, so derivatives of every order
are finite at s = 0 and for huge s, under any nesting of ``vmap``, ``jacfwd`` and ``jacrev``. (Derivatives in the scale
pass through s/c⁴, which must not overflow: at s = 1e300 that asks for c > 0.01.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Arctan", "Barron", "Cauchy", "GemanMcClure", "Huber", "RobustLoss", "SoftL1", "Tukey", "Welsch"]

Derivatives = tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]


class RobustLoss(nn.Module):
    """A robust loss ρ(s) of the squared norm s, with a differentiable ``scale``.

    Args:
        scale: where the loss leaves the quadratic, in the unit of the residual. A number is kept as a float64 buffer,
            a tensor as a buffer (it may require grad, or be a function of something that does), an ``nn.Parameter``
            as a parameter. Any shape that broadcasts against s. On use it is cast to the dtype of s, so that the
            result always has the dtype of the residual; it is never moved between devices.

    Raises:
        ValueError: a scale that is not positive and finite.
        TypeError: a scale that is not a real number or a real tensor.

    To write another loss, subclass and give :meth:`rho` and :meth:`derivatives` (and the three class attributes).

    >>> import torch, mslsq.losses as losses
    >>> loss = losses.Cauchy(scale=2.0)
    >>> loss(torch.tensor([0.0, 4.0], dtype=torch.float64))
    tensor([0.0000, 2.7726], dtype=torch.float64)
    """

    scale: Tensor
    convex: ClassVar[bool]
    """Is ρ(r²) a convex function of r? Then the robust cost of a linear residual has one minimum."""
    redescending: ClassVar[bool]
    """Does the influence r ρ'(r²) fall back to zero for gross errors?"""
    tuning: ClassVar[float]
    """The scale that keeps 95 % efficiency at Gaussian residuals of unit standard deviation."""

    def __init__(self, scale: float | Tensor = 1.0):
        super().__init__()
        value = _as_real_tensor(scale, f"{type(self).__name__}(scale=...)")
        if not _holds_everywhere((value > 0) & torch.isfinite(value)):
            raise ValueError(
                f"{type(self).__name__}(scale={_brief(value)}): the scale must be positive and finite, it is the "
                "residual at which the loss leaves the quadratic. For plain least squares leave the loss out."
            )
        self._keep("scale", value)

    def rho(self, s: Float[Tensor, "..."], parameters: Mapping[str, Tensor] | None = None) -> Float[Tensor, "..."]:
        """ρ(s), elementwise. ``parameters`` (named as in the state dict) stand in for the module's own tensors."""
        raise NotImplementedError(f"{type(self).__name__} must define rho(s, parameters)")

    def derivatives(self, s: Float[Tensor, "..."], parameters: Mapping[str, Tensor] | None = None) -> Derivatives:
        """(ρ(s), ρ'(s), ρ''(s)) in closed form, elementwise; derivatives are with respect to s."""
        raise NotImplementedError(f"{type(self).__name__} must define derivatives(s, parameters)")

    def forward(self, s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.rho(s)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={_brief(value)}" for name, value in self._own_tensors().items())

    def _keep(self, name: str, value: Tensor) -> None:
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        else:
            self.register_buffer(name, value)

    def _own_tensors(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def _parameter(self, name: str, s: Tensor, parameters: Mapping[str, Tensor] | None) -> Tensor:
        """The named parameter in the dtype of s."""
        if not s.is_floating_point():
            raise TypeError(
                f"{type(self).__name__} got squared norms of dtype {s.dtype}; give a real floating-point tensor "
                "(the squared modulus, where the residual is complex)."
            )
        if parameters is None:
            value = getattr(self, name)
        elif name in parameters:
            value = parameters[name]
        else:
            raise KeyError(
                f"{type(self).__name__}: the parameters given are {sorted(parameters)}, but {name!r} is needed. "
                "Pass all tensors of the loss's state_dict(), or none to use its own."
            )
        return value.to(s.dtype)

    def _squared_scale(self, s: Tensor, parameters: Mapping[str, Tensor] | None) -> Tensor:
        scale = self._parameter("scale", s, parameters)
        return scale * scale


class Huber(RobustLoss):
    """Quadratic near zero, linear in |r| beyond the scale: ρ(s) = s for s ≤ c², else 2c√s − c².

    Convex, continuously differentiable; ρ'' jumps at s = c². The influence of a gross error is bounded but never
    vanishes. Tuning constant 1.345.

    Source: P. J. Huber, Robust estimation of a location parameter, Ann. Math. Statist. 35 (1964).
    """

    convex, redescending, tuning = True, False, 1.345

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

    convex, redescending, tuning = True, False, 1.287

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return 2 * s / (1 + (1 + s / c2).sqrt())

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        root = (1 + s / c2).sqrt()
        weight = 1 / root
        return 2 * s / (1 + root), weight, -0.5 * weight * weight * weight / c2


class Cauchy(RobustLoss):
    """The log-likelihood of a Cauchy distribution (Lorentzian): ρ(s) = c² log(1 + s/c²).

    Redescending, smooth; the influence falls as 1/|r|. Tuning constant 2.385.

    Source: M. J. Black and P. Anandan, The robust estimation of multiple motions, CVIU 63 (1996).
    """

    convex, redescending, tuning = False, True, 2.385

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

    convex, redescending, tuning = False, True, 2.571

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

    convex, redescending, tuning = False, True, 4.685

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

    convex, redescending, tuning = False, True, 3.787

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

    convex, redescending, tuning = False, True, 2.985

    def rho(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        return -c2 * (-s / c2).expm1()

    def derivatives(self, s, parameters=None):
        c2 = self._squared_scale(s, parameters)
        rest = (-s / c2).expm1()
        weight = (-s / c2).exp()
        return -c2 * rest, weight, -weight / c2


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
    convex, redescending, tuning = False, False, 1.287  # of the family, and the constant at the default α = 1

    def __init__(self, scale: float | Tensor = 1.0, alpha: float | Tensor = 1.0):
        super().__init__(scale)
        value = _as_real_tensor(alpha, "Barron(alpha=...)")
        if not _holds_everywhere(~torch.isnan(value)):
            raise ValueError(
                f"Barron(alpha={_brief(value)}): alpha must not be NaN. Use 2 for least squares, 1 for a smooth Huber, "
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


def _as_real_tensor(value: float | Tensor, what: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{what} got a tensor of dtype {value.dtype}; give a real number or a real tensor.")
        return value if value.is_floating_point() else value.to(torch.float64)
    try:
        return torch.tensor(float(value), dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{what} got {value!r} of type {type(value).__name__}; give a real number or tensor.") from None


def _holds_everywhere(condition: Tensor) -> bool:
    """Does the condition hold for all entries? True where values cannot be read: in vmap, on the meta device."""
    try:
        return bool(condition.all())
    except RuntimeError:
        return True


def _brief(value: Tensor) -> str:
    """A short form for messages and repr: the number itself, or the shape and dtype."""
    if value.numel() == 1:
        try:
            return f"{value.item():g}"
        except RuntimeError:
            pass
    return f"tensor of shape {tuple(value.shape)}, {value.dtype}"
