"""What SciPy's users pass, checked: errors have SciPy's types and words."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mslsq.interop.scipy.box import Box
from mslsq.interop.scipy.function import SCHEMES
from mslsq.interop.scipy.losses import NAMED

Array = NDArray[Any]
EPS = float(np.finfo(float).eps)


def check_names(method: str, jac: Any, tr_solver: str | None, loss: Any, verbose: int, max_nfev: int | None) -> None:
    """Raises ValueError: an option is none of those there are."""
    if method not in ("trf", "dogbox", "lm"):
        raise ValueError(f"`method` must be 'trf', 'dogbox' or 'lm', not {method!r}.")
    if not callable(jac) and jac not in SCHEMES:
        raise ValueError(f"`jac` must be '2-point', '3-point', 'cs' or callable, not {jac!r}.")
    if tr_solver not in (None, "exact", "lsmr"):
        raise ValueError(f"`tr_solver` must be None, 'exact' or 'lsmr', not {tr_solver!r}.")
    if not callable(loss) and loss not in NAMED:
        raise ValueError(f"`loss` must be one of {', '.join(map(repr, NAMED))} or a callable, not {loss!r}.")
    if method == "lm" and loss != "linear":
        raise ValueError("method='lm' supports only 'linear' loss function: method='trf' takes all.")
    if verbose not in (0, 1, 2):
        raise ValueError(f"`verbose` must be in [0, 1, 2], not {verbose!r}.")
    if max_nfev is not None and max_nfev <= 0:
        raise ValueError(f"`max_nfev` must be None or positive integer, not {max_nfev!r}.")


def start_of(x0: Any) -> Array:
    """The start, (n,) of float64."""
    if isinstance(x0, torch.Tensor):
        raise TypeError(
            "`x0` is a tensor: mslsq.interop.scipy.least_squares takes NumPy functions. mslsq.least_squares(residual, "
            "x0, args) takes tensors, with exact derivatives; or give x0.numpy()."
        )
    if np.iscomplexobj(x0):
        raise ValueError("`x0` must be real.")
    start = np.atleast_1d(x0).astype(float)
    if start.ndim > 1:
        raise ValueError(f"`x0` must have at most 1 dimension, not the shape {start.shape}.")
    if not start.size:
        raise ValueError("`x0` is empty: there is nothing to solve for.")
    return start


def limits_of(bounds: Any, count: int) -> tuple[Array, Array]:
    """Lower and upper bounds of SciPy's two forms, a pair or a `Bounds`; numbers stand for all entries."""
    from scipy.optimize import Bounds

    if isinstance(bounds, Bounds):
        bounds = bounds.lb, bounds.ub
    if len(bounds) != 2:
        raise ValueError("`bounds` must contain 2 elements: (lower, upper).")
    sides = [np.asarray(side, dtype=float) for side in bounds]
    lower, upper = (np.resize(side, count) if side.ndim == 0 else side for side in sides)
    return lower, upper


def box_of(bounds: Any, x0: Array, method: str) -> Box:
    """The bounds of a start that is within them."""
    lower, upper = limits_of(bounds, x0.size)
    if lower.shape != x0.shape or upper.shape != x0.shape:
        raise ValueError(f"Inconsistent shapes between bounds and `x0`: {lower.shape}, {upper.shape} and {x0.shape}.")
    if np.any(lower >= upper):
        raise ValueError("Each lower bound must be strictly less than each upper bound.")
    if not np.all((x0 >= lower) & (x0 <= upper)):
        raise ValueError("Initial guess is outside of provided bounds")
    box = Box(lower, upper)
    if method == "lm" and box.is_bounded:
        raise ValueError("Method 'lm' doesn't support bounds: method='trf' does.")
    return box


def tolerances_of(ftol: float | None, xtol: float | None, gtol: float | None, method: str) -> tuple[float, ...]:
    """ftol, xtol, gtol, with 0 for None."""
    given = {"ftol": ftol, "xtol": xtol, "gtol": gtol}
    for name, value in given.items():
        if value is not None and value < EPS:
            warnings.warn(
                f"Setting `{name}` below the machine epsilon ({EPS:.2e}) effectively disables the corresponding "
                "termination condition.",
                stacklevel=4,
            )
    found = tuple(0.0 if value is None else float(value) for value in given.values())
    if method == "lm" and min(found) < EPS:
        raise ValueError(f"All tolerances must be higher than machine epsilon ({EPS:.2e}) for method 'lm'.")
    if max(found) < EPS:
        raise ValueError(f"At least one of the tolerances must be higher than machine epsilon ({EPS:.2e}).")
    return found


def scales_of(x_scale: Any, x0: Array, method: str) -> Array | None:
    """Characteristic sizes of the variables, (n,); None for those of the Jacobian's columns."""
    if x_scale is None:
        x_scale = "jac" if method == "lm" else 1.0
    if isinstance(x_scale, str) and x_scale == "jac":
        return None
    try:
        found = np.asarray(x_scale, dtype=float)
        valid = bool(np.all(np.isfinite(found)) and np.all(found > 0))
    except (ValueError, TypeError):
        found, valid = np.zeros(0), False
    if not valid:
        raise ValueError("`x_scale` must be 'jac' or array_like with positive numbers.")
    found = np.resize(found, x0.shape) if found.ndim == 0 else found
    if found.shape != x0.shape:
        raise ValueError(f"Inconsistent shapes between `x_scale` and `x0`: {found.shape} and {x0.shape}.")
    return found


def sparsity_of(sparsity: Any, count: int, rows: Callable[[], int], method: str, tr_solver: str | None) -> Any:
    """Which entries of the Jacobian can differ from zero, (rows, count); None for all."""
    from scipy.sparse import issparse

    if sparsity is None:
        return None
    if method == "lm":
        raise ValueError("method='lm' does not support `jac_sparsity`.")
    if not issparse(sparsity):
        sparsity = np.atleast_2d(sparsity)
    if sparsity.shape != (rows(), count):
        raise ValueError(f"`jac_sparsity` has wrong shape: expected {(rows(), count)}, actual {sparsity.shape}.")
    if tr_solver == "exact":
        raise ValueError("tr_solver='exact' is incompatible with `jac_sparsity`.")
    return sparsity


def check_jacobian(jacobian: Any, shape: tuple[int, int], method: str, tr_solver: str | None, by_jac: bool) -> None:
    """Raises ValueError: the first Jacobian is not what the options need."""
    from scipy.sparse.linalg import LinearOperator

    if jacobian.shape != shape:
        raise ValueError(f"The return value of `jac` has wrong shape: expected {shape}, actual {jacobian.shape}.")
    if isinstance(jacobian, np.ndarray):
        if not np.isfinite(jacobian).all():
            raise ValueError("The Jacobian is not finite in the initial point.")
        return
    if method == "lm":
        raise ValueError("method='lm' works only with dense Jacobian matrices.")
    if tr_solver == "exact":
        raise ValueError("tr_solver='exact' works only with dense Jacobian matrices.")
    if by_jac and isinstance(jacobian, LinearOperator):
        raise ValueError("x_scale='jac' can't be used when `jac` returns LinearOperator.")
