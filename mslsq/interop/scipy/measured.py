"""The data of a fit of NumPy arrays, and its model as a residual."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mslsq.problem import ProblemError

Array = NDArray[Any]


class TensorsWantedError(Exception):
    """The model computes with tensors. `curve_fit` catches it."""


@dataclass(frozen=True)
class Measured:
    """Points, measurements and what whitens them."""

    x: Any
    y: Array
    deviations: Array | None = None
    factor: Array | None = None
    """The lower triangle L of the covariance L Lᵀ."""

    def whitened(self, rows: Array) -> Array:
        """Residuals or rows of a Jacobian in units of their errors."""
        if self.deviations is not None:
            return rows / (self.deviations if rows.ndim == 1 or self.deviations.ndim == 0 else self.deviations[:, None])
        if self.factor is not None:
            from scipy.linalg import solve_triangular

            return solve_triangular(self.factor, rows, lower=True)
        return rows


class Model:
    """f(x, *p) − y, whitened. The first call tells whether f computes with tensors."""

    def __init__(self, f: Callable[..., Any], data: Measured):
        self._f, self._data = f, data
        self._called = False

    def __call__(self, p: Array) -> Array:
        return self._data.whitened(self._values(p) - self._data.y)

    def _values(self, p: Array) -> Array:
        if self._called:
            return np.asarray(self._f(self._data.x, *p))
        try:
            values = self._f(self._data.x, *p)
        except TypeError as error:
            if "must be Tensor" in str(error):
                raise TensorsWantedError from error
            raise
        if isinstance(values, torch.Tensor):
            raise TensorsWantedError
        self._called = True
        return np.asarray(values)

    def jacobian_of(self, jac: Callable[..., Any], transposed: bool) -> Callable[[Array], Array]:
        """The Jacobian of the residual from that of f."""

        def jacobian(p: Array) -> Array:
            found = np.asarray(jac(self._data.x, *p), dtype=float)
            return self._data.whitened(np.atleast_2d(found.T if transposed else found))

        return jacobian


def measured(xdata: Any, ydata: Any, sigma: Any, check_finite: bool | None, nan_policy: str | None) -> Measured:
    """The data as SciPy takes them.

    Raises:
        ValueError: they are empty, not finite, or sigma does not fit them.
    """
    check = nan_policy is None if check_finite is None else check_finite
    for name, given in (("xdata", xdata), ("ydata", ydata), ("sigma", sigma)):
        if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):  # SciPy takes what is masked for data
            raise ValueError(f"`{name}` has masked numbers, which would be fitted: pass those of ydata[~ydata.mask].")
    # Float32 is not enough for finite differences.
    y = np.asarray(ydata, dtype=float)
    x = np.asarray(xdata, dtype=float) if isinstance(xdata, (list, tuple, np.ndarray)) else xdata
    if y.size == 0:
        raise ValueError("`ydata` must not be empty!")
    if check:
        for name, data in (("y", y), ("x", x)):
            if isinstance(data, np.ndarray):
                _check_finite(name, data)
    elif nan_policy is not None:
        x, y, sigma = _without_nan(x, y, sigma, nan_policy)
    return Measured(x, y, *_whitening(sigma, y.size))


def _check_finite(name: str, data: Array) -> None:
    wrong = np.argwhere(~np.isfinite(data))
    if len(wrong):
        where = tuple(wrong[0])
        raise ProblemError(
            f"curve_fit: {name} has {len(wrong)} entries that are NaN or infinite, the first at "
            f"{[int(index) for index in where]}: {data[where]}. nan_policy='omit' leaves out points with a NaN."
        )


def _without_nan(x: Any, y: Array, sigma: Any, nan_policy: str) -> tuple[Any, Array, Any]:
    """The points without a NaN."""
    if nan_policy == "propagate":
        raise ValueError("`nan_policy='propagate'` is not supported by this function.")
    if nan_policy not in ("raise", "omit"):
        near = get_close_matches(str(nan_policy), ("raise", "omit"), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ProblemError(f"nan_policy must be one of {{None, 'raise', 'omit'}}, not {nan_policy!r}.{hint}")
    has_nan = np.isnan(y)
    if isinstance(x, np.ndarray):
        of_x = np.isnan(x)
        has_nan = has_nan | of_x.any(axis=tuple(range(of_x.ndim - 1)))
    if not has_nan.any():
        return x, y, sigma
    if nan_policy == "raise":
        raise ValueError("The input contains nan values")
    used = ~has_nan
    if sigma is not None:
        sigma = np.asarray(sigma)
        sigma = sigma[used] if sigma.ndim == 1 else sigma[np.ix_(used, used)] if sigma.ndim == 2 else sigma
    return x[..., used] if isinstance(x, np.ndarray) else x, y[used], sigma


def _whitening(sigma: Any, points: int) -> tuple[Array | None, Array | None]:
    if sigma is None:
        return None, None
    sigma = np.asarray(sigma, dtype=float)
    if sigma.size == 1:
        return sigma.reshape(()), None
    if sigma.shape == (points,):
        return sigma, None
    if sigma.shape != (points, points):
        raise ValueError(f"`sigma` has incorrect shape: {sigma.shape}, for {points} points.")
    try:
        return None, np.linalg.cholesky(sigma)
    except np.linalg.LinAlgError as error:
        raise ValueError("`sigma` must be positive definite.") from error
