"""What a curve fit minimises: a function of the free parameters, the points, and what is held."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from mslsq.front.fits.poisson import deviance_residual
from mslsq.front.fits.scheme import Scheme
from mslsq.problem.errors import DtypeError, ShapeError

Noise = Literal["normal", "poisson"]


def residual_of(model: Callable[[Any, Any], Tensor], scheme: Scheme | None, noise: Noise) -> Callable[..., Tensor]:
    """What is minimised: a function of the free parameters, the points, and what is held."""

    def residual(p: Any, t: Any, y: Tensor, whitening: Tensor, used: Tensor, held: tuple[Tensor, ...]) -> Tensor:
        complete = p if scheme is None else scheme.complete(p, held)
        return _residual(model, complete, t, y, whitening, used, noise)

    return residual


def _residual(model: Any, p: Any, t: Any, y: Tensor, whitening: Tensor, used: Tensor, noise: Noise) -> Tensor:
    """The whitened residual of every point, zero where a point is missing."""
    predicted = model(p, t)
    if not isinstance(predicted, Tensor) or predicted.shape != y.shape:
        given = f"shape {tuple(predicted.shape)}" if isinstance(predicted, Tensor) else type(predicted).__name__
        is_of_p = isinstance(predicted, Tensor) and isinstance(p, Tensor) and predicted.shape == p.shape
        hint = " Are its arguments the other way round? Here the parameters come first." if is_of_p else ""
        raise ShapeError(f"model(p, t) returned {given}; y of one fit has shape {tuple(y.shape)}.{hint}")
    if predicted.is_complex():  # complex y have been split into pairs of real numbers, with what the model returns
        raise DtypeError(
            "model(p, t) returned complex numbers, and y is real: return what was measured of them (x.abs(), x.real), "
            "or give a complex y, torch.complex(y, torch.zeros_like(y)), if their imaginary part was measured as zero."
        )
    if noise == "poisson":
        one = torch.ones_like(y)
        return torch.where(used, deviance_residual(torch.where(used, predicted, one), torch.where(used, y, one)), 0.0)
    difference = torch.where(used, predicted - y, torch.zeros_like(y))
    if whitening.ndim > y.ndim:
        return (whitening * difference).sum(-1)
    return whitening * difference
