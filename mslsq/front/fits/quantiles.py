"""Quantiles of Student's t, per fit: how many standard errors an interval reaches to each side."""

from numbers import Real

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.levels import at_the_bottom
from mslsq.problem.errors import ProblemError


def checked_level(level: float) -> float:
    """A probability between 0 and 1, as a number."""
    if isinstance(level, Real) and not isinstance(level, bool) and 0 < level < 1:
        return float(level)
    hint = f" Write {float(level) / 100:g}." if isinstance(level, Real) and 1 < level < 100 else ""
    raise ProblemError(f"level must be a number between 0 and 1, such as 0.95, not {level!r}.{hint}")


def two_sided(level: float, freedom: Int[Tensor, "*batch"], known: bool, dtype: torch.dtype) -> Float[Tensor, "*batch"]:
    """q with P(|T| ≤ q) = level: T is Student's t with `freedom` degrees of freedom where the variance of the
    measurements is estimated from the fit, standard normal where it is `known`. Infinite without any freedom."""
    from scipy.special import ndtri, stdtrit  # loads scipy.special

    probability = (1 + checked_level(level)) / 2

    def quantile(freedom: Tensor) -> Tensor:
        if known:
            return torch.full(freedom.shape, float(ndtri(probability)), dtype=dtype, device=freedom.device)
        degrees = freedom.detach().cpu().numpy().astype(np.float64)
        values = np.where(degrees > 0, stdtrit(np.maximum(degrees, 1), probability), np.inf)
        return torch.as_tensor(values, dtype=dtype, device="cpu").to(freedom.device)

    return at_the_bottom(freedom, quantile)
