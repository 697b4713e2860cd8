"""Robust losses of NumPy residuals in SciPy's form: ρ(z) and its derivatives of z = (r / f_scale)²."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LEAST_CURVATURE = 0.5
"""A residual whose curvature is below this share of ρ' is only weighted by ρ', as in the library's own solvers."""


def _huber(z: Array) -> Array:
    root = np.sqrt(np.maximum(z, 1))
    inside = z <= 1
    return np.where(inside, [z, np.ones_like(z), np.zeros_like(z)], [2 * root - 1, 1 / root, -0.5 / root**3])


def _soft_l1(z: Array) -> Array:
    root = np.sqrt(1 + z)
    return np.array([2 * z / (1 + root), 1 / root, -0.5 / root**3])


def _cauchy(z: Array) -> Array:
    return np.array([np.log1p(z), 1 / (1 + z), -1 / (1 + z) ** 2])


def _arctan(z: Array) -> Array:
    slope = 1 / (1 + z * z)
    return np.array([np.arctan(z), slope, -2 * z * slope * slope])


NAMED: dict[str, Callable[[Array], Array] | None] = {
    "linear": None,
    "huber": _huber,
    "soft_l1": _soft_l1,
    "cauchy": _cauchy,
    "arctan": _arctan,
}


class Loss:
    """½ f_scale² Σ ρ((r / f_scale)²), and how plain least squares sees it."""

    def __init__(self, loss: str | Callable[[Array], Array], f_scale: float):
        self._rho = NAMED[loss] if isinstance(loss, str) else loss
        self._is_users = callable(loss)
        if not (np.ndim(f_scale) == 0 and np.isfinite(f_scale) and f_scale != 0):
            raise ValueError(f"`f_scale` must be a number other than zero, not {f_scale!r}.")
        self._scale = f_scale

    @property
    def is_linear(self) -> bool:
        return self._rho is None

    def check(self, residual: Array) -> None:
        """Raises ValueError: the user's function does not return (3, m)."""
        if self._is_users and np.shape(self._at(residual)) != (3, residual.size):
            raise ValueError(
                f"The return value of `loss` callable has wrong shape: expected {(3, residual.size)} (ρ, ρ', ρ'' of "
                f"every z), actual {np.shape(self._at(residual))}."
            )

    def cost(self, residual: Array) -> float:
        """The cost at these residuals."""
        if self._rho is None:
            return 0.5 * float(residual @ residual)
        return 0.5 * self._scale**2 * float(np.sum(self._at(residual)[0]))

    def weighted(self, residual: Array) -> Array:
        """ρ'r, of which the gradient is made."""
        return residual if self._rho is None else self._at(residual)[1] * residual

    def rescaled(self, residual: Array) -> tuple[Array, Array | None]:
        """r̃ and what multiplies the rows of J, by Triggs' correction as the library's own solvers have it
        (`mslsq.linearize.robust`): None for nothing."""
        if self._rho is None:
            return residual, None
        _, slope, curvature = self._at(residual)
        positive = slope > 0
        kept = 1 + 2 * curvature * (residual / self._scale) ** 2 / np.where(positive, slope, 1)
        kept = np.sqrt(np.where(positive & (kept >= LEAST_CURVATURE), kept, 1))
        root = np.sqrt(np.maximum(slope, 0))
        return residual * root / kept, root * kept

    def rows_for_result(self, residual: Array) -> Array | None:
        """What multiplies the rows of J in `OptimizeResult.jac`, so that JᵀJ is the Hessian without second derivatives
        of the residuals: √(ρ' + 2ρ''z), at least the root of machine epsilon, as SciPy states it."""
        if self._rho is None:
            return None
        _, slope, curvature = self._at(residual)
        return np.sqrt(np.maximum(slope + 2 * curvature * (residual / self._scale) ** 2, np.finfo(float).eps))

    def _at(self, residual: Array) -> Array:
        assert self._rho is not None
        return self._rho((residual / self._scale) ** 2)
