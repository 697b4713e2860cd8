"""What all robust losses share: a scale that is a tensor, checked once, and what a loss answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

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

    To write another loss, subclass and give :meth:`rho` and :meth:`derivatives` (and `tuning`).

    >>> import torch, mslsq.losses as losses
    >>> loss = losses.Cauchy(scale=2.0)
    >>> loss(torch.tensor([0.0, 4.0], dtype=torch.float64))
    tensor([0.0000, 2.7726], dtype=torch.float64)
    """

    scale: Tensor
    tuning: ClassVar[float]
    """The scale that keeps 95 % efficiency at Gaussian residuals of unit standard deviation."""

    def __init__(self, scale: float | Tensor = 1.0):
        super().__init__()
        value = as_real_tensor(scale, f"{type(self).__name__}(scale=...)")
        if not holds_everywhere((value > 0) & torch.isfinite(value)):
            raise ValueError(
                f"{type(self).__name__}(scale={brief(value)}): the scale must be positive and finite, it is the "
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
        return ", ".join(f"{name}={brief(value)}" for name, value in self._own_tensors().items())

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


def as_real_tensor(value: float | Tensor, what: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{what} got a tensor of dtype {value.dtype}; give a real number or a real tensor.")
        return value if value.is_floating_point() else value.to(torch.float64)
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return torch.tensor(float(value), dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        raise TypeError(f"{what} got {value!r} of type {type(value).__name__}; give a real number or tensor.") from None


def holds_everywhere(condition: Tensor) -> bool:
    """Does the condition hold for all entries? True where values cannot be read: in vmap, on the meta device."""
    try:
        return bool(condition.all())
    except RuntimeError:
        return True


def brief(value: Tensor) -> str:
    """A short form for messages and repr: the number itself, or the shape and dtype."""
    if value.numel() == 1:
        try:
            return f"{value.item():g}"
        except RuntimeError:
            pass
    return f"tensor of shape {tuple(value.shape)}, {value.dtype}"
