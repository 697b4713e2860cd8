"""Robust losses of Theseus: ρ(s) of the squared norm s of a block, with the radius R = exp(log_loss_radius), which is a
squared residual. That is the square of the `scale` here: R = scale²."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq.interop.theseus.library import library
from mslsq.losses import GemanMcClure, Huber, RobustLoss, Welsch


@dataclass(frozen=True)
class LossKind:
    """How a robust loss of Theseus is made here."""

    make: Callable[..., RobustLoss]
    """From `parameters`, by name."""
    parameters: Callable[..., dict[str, Tensor]]
    """Of the loss here, from (log radius) or (log radius, control value of graduated non-convexity)."""


def kind_of_loss(loss: Any) -> LossKind:
    """The counterpart of a robust loss: this library's own where there is one, or one around Theseus' code."""
    th = library()
    exact = {th.HuberLoss: Huber, th.WelschLoss: Welsch}
    if type(loss) in exact:
        return LossKind(exact[type(loss)], lambda radius: {"scale": (radius / 2).exp()})
    if isinstance(loss, th.GemanMcClureLoss):
        return LossKind(GemanMcClure, lambda radius, mu: {"scale": (radius / 2).exp() * mu.sqrt()})
    if isinstance(loss, th.HingeLoss):
        return LossKind(Hinge, lambda radius: {"scale": (radius / 2).exp()})
    return LossKind(lambda **parameters: AroundLoss(loss, **parameters), _named)


def _named(radius: Tensor, mu: Tensor | None = None) -> dict[str, Tensor]:
    return {"scale": (radius / 2).exp()} if mu is None else {"scale": (radius / 2).exp(), "control": mu}


class Hinge(RobustLoss):
    """Theseus' `HingeLoss`: ρ(s) = max(√s − scale, 0), the length of a block beyond the scale."""

    tuning = 1.0

    def rho(self, s: Tensor, parameters: Any = None) -> Tensor:
        return self.derivatives(s, parameters)[0]

    def derivatives(self, s: Tensor, parameters: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        c2 = self._squared_scale(s, parameters)
        outside = s > c2
        root = torch.where(outside, s, torch.ones_like(s)).sqrt()
        zero = torch.zeros_like(s)
        return (
            torch.where(outside, root - c2.sqrt(), zero),
            torch.where(outside, 0.5 / root, zero),
            torch.where(outside, -0.25 / root**3, zero),
        )


class AroundLoss(RobustLoss):
    """A loss that a user wrote for Theseus; derivatives are those of its `evaluate`, by automatic differentiation."""

    tuning = 1.0

    def __init__(self, loss: Any, scale: Tensor, control: Tensor | None = None):
        super().__init__(scale)
        self.loss = loss
        if control is not None:
            self._keep("control", control)

    def rho(self, s: Tensor, parameters: Any = None) -> Tensor:
        radius = 2 * self._parameter("scale", s, parameters).log()
        if "control" not in self._own_tensors():
            return self.loss.evaluate(s, radius)
        return self.loss.evaluate(s, radius, self._parameter("control", s, parameters))

    def derivatives(self, s: Tensor, parameters: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        def rho(x: Tensor) -> Tensor:
            return self.rho(x, parameters)

        def slope(x: Tensor) -> Tensor:
            return torch.func.jvp(rho, (x,), (torch.ones_like(x),))[1]

        slopes = torch.func.jvp(slope, (s,), (torch.ones_like(s),))
        return rho(s), slopes[0], slopes[1]


def of_each_row(loss: RobustLoss, errors: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    """Residuals whose squares are ρ(error²), of the sign of the errors: what `flatten_dims=True` minimises."""
    s = errors * errors
    ratio = loss.rho(s, parameters) / torch.where(s > 0, s, torch.ones_like(s))
    positive = (s > 0) & (ratio > 0)
    small = loss.derivatives(s, parameters)[1].clamp_min(0)  # ρ'(0), the ratio at zero
    root = torch.where(positive, ratio, torch.ones_like(s)).sqrt()
    return errors * torch.where(positive, root, torch.where(s > 0, torch.zeros_like(s), small.detach()))
