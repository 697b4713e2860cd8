"""`scipy.optimize.curve_fit`: on NumPy functions, or on tensors where the model takes them."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mslsq.interop.scipy import tensors
from mslsq.interop.scipy.arguments import limits_of
from mslsq.interop.scipy.covariance import by_factor, by_pseudo_inverse, figures_of_factor
from mslsq.interop.scipy.descent import BOTH, COST, GRADIENT, MOST_CALLS, STEP
from mslsq.interop.scipy.measured import Model, TensorsWantedError, measured
from mslsq.interop.scipy.minimizing import least_squares
from mslsq.problem import ProblemError
from mslsq.solvers import Solver

Array = NDArray[Any]

OPTIONS = {"ftol": 1e-12, "xtol": 1e-12, "x_scale": "jac"}
"""Of a fit where nothing else is said: those of this library's solvers. SciPy's tolerances of 1e-8 leave three digits
on NIST's ENSO, and where units are small its `gtol` of 1e-8 is met at the start; 1e-12 costs a step or two."""

TO_LEASTSQ = {GRADIENT: 4, COST: 1, STEP: 2, BOTH: 3}
"""Its numbers for what ended a fit."""


def curve_fit(
    f: Callable[..., Any],
    xdata: Any,
    ydata: Any,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    check_finite: bool | None = None,
    bounds: Any = (-math.inf, math.inf),
    method: str | None = None,
    jac: Any = None,
    *,
    full_output: bool = False,
    nan_policy: str | None = None,
    solver: Solver | None = None,
    **kwargs: Any,
) -> Any:
    """`scipy.optimize.curve_fit`: fit f(x, *parameters) to data, with the arguments and the results of SciPy's.

    A model of NumPy arrays is called at one point at a time, and differentiated by `jac` or by finite differences; see
    `least_squares`. A model of tensors is differentiated exactly, by `mslsq.curve_fit`, and tensors are returned. It is
    one where xdata, ydata, p0, sigma or a bound is a tensor, where `solver` is given, where f refuses an array because
    it is no tensor, as `torch.exp` does, or where f returns a tensor.

    Args:
        f: `f(x, a, b, ...)` returns what is compared with ydata.
        xdata: handed to f; lists and arrays as arrays of float64 (as tensors of floating point to a model of tensors).
        ydata: (points,); a number stands for all points.
        p0: the start, one number per parameter; where it is not given there are as many as f has arguments behind x,
            ones without bounds, and within the bounds else.
        sigma: standard deviations (points,), a covariance matrix (points, points), or a number.
        absolute_sigma: is sigma meant in the units of ydata? Else pcov is scaled by the residuals.
        check_finite: `True`, the default where `nan_policy` is not given: data that are NaN or infinite are an error.
        bounds: (lower, upper), or a `scipy.optimize.Bounds`.
        method: "lm", the default without bounds, "trf", the default with bounds, or "dogbox"; see `least_squares`.
        jac: a function of the arguments of f that returns (points, parameters), or a scheme of differences.
        full_output: return (popt, pcov, infodict, mesg, ier); of a model of tensors (popt, pcov, fit), with the
            `mslsq.CurveFit` that has the report, intervals and bands.
        nan_policy: "raise": data that are NaN are an error; "omit": points with a NaN do not count.
        solver: for a model of tensors, as for `mslsq.curve_fit`.
        **kwargs: for `least_squares`; with "lm" those of SciPy's `leastsq`: ftol, xtol, gtol, maxfev, epsfcn, diag,
            col_deriv, and factor, which means nothing here.

    Returns:
        popt (parameters,) and pcov (parameters, parameters), its entries infinite where it cannot be estimated. In
        infodict of "lm" are `nfev`, `fvec`, and the factor of the last Jacobian: `fjac`, `ipvt`, `qtf`.

    Raises:
        ValueError: the data are not finite, or something does not fit; the message says what.
        TypeError: "lm", and fewer points than parameters.
        RuntimeError: the fit has not converged.

    >>> popt, pcov = mslsq.interop.scipy.curve_fit(lambda x, a, b: a * np.exp(-b * x), xdata, ydata)
    """
    of_tensors = (f, xdata, ydata, p0, sigma, absolute_sigma, check_finite, bounds)
    given = (xdata, ydata, p0, sigma, *(bounds if isinstance(bounds, (tuple, list)) else ()))
    names = {"method": method, "jac": jac, **kwargs}
    if solver is not None or any(isinstance(data, torch.Tensor) for data in given):
        return _by_tensors(of_tensors, names, nan_policy, full_output, solver)
    try:
        return _by_arrays(of_tensors, method, jac, nan_policy, full_output, kwargs)
    except TensorsWantedError:
        return _by_tensors(of_tensors, names, nan_policy, full_output, solver)


def _by_tensors(arguments: Any, names: dict[str, Any], nan_policy: Any, full_output: bool, solver: Any) -> Any:
    """The fit of a model of tensors."""
    surplus = [name for name, value in names.items() if value is not None]
    if surplus:
        raise ProblemError(
            f"curve_fit: {', '.join(surplus)}= is for models of NumPy arrays. A model of tensors is differentiated "
            "exactly, and its options are those of a solver: solver=mslsq.LevenbergMarquardt(max_steps=..., ftol=...)."
        )
    return tensors.curve_fit(*arguments, nan_policy=nan_policy, full_output=full_output, solver=solver)


def _by_arrays(
    arguments: Any, method: str | None, jac: Any, nan_policy: Any, full_output: bool, kwargs: dict[str, Any]
) -> Any:
    f, xdata, ydata, p0, sigma, absolute_sigma, check_finite, bounds = arguments
    count = tensors.number_of_parameters(f) if p0 is None else np.size(p0)
    lower, upper = limits_of(bounds, count)
    start = _feasible(lower, upper) if p0 is None else np.atleast_1d(p0)
    is_bounded = bool(np.any((lower > -np.inf) | (upper < np.inf)))
    method = method or ("trf" if is_bounded else "lm")
    if method == "lm" and is_bounded:
        raise ValueError("Method 'lm' only works for unconstrained problems. Use 'trf' or 'dogbox' instead.")
    if "args" in kwargs:
        raise ValueError("'args' is not a supported keyword argument.")
    data = measured(xdata, ydata, sigma, check_finite, nan_policy)
    if method == "lm" and data.y.size != 1 and count > data.y.size:
        raise TypeError(
            f"The number of func parameters={count} must not exceed the number of data points={data.y.size}"
        )
    model = Model(f, data)
    transposed = bool(kwargs.pop("col_deriv", False))
    scheme = model.jacobian_of(jac, transposed) if callable(jac) else jac or "2-point"
    options = _of_leastsq(kwargs, count) if method == "lm" else _of_least_squares(kwargs)
    result = least_squares(model, start, jac=scheme, bounds=(lower, upper), method=method, **options)
    _check_success(result, method, options)
    pcov = _scaled(by_factor(result.jac) if method == "lm" else by_pseudo_inverse(result.jac), result, absolute_sigma)
    return (result.x, pcov, *_information(result, method)) if full_output else (result.x, pcov)


def _check_success(result: Any, method: str, options: dict[str, Any]) -> None:
    """Raises RuntimeError: the fit has not converged."""
    if result.success:
        return
    too_many = method == "lm" and result.status == MOST_CALLS
    why = f"Number of calls to function has reached maxfev = {options['max_nfev']}." if too_many else result.message
    raise RuntimeError("Optimal parameters not found: " + why)


def _information(result: Any, method: str) -> tuple[dict[str, Any], str, int]:
    """infodict, mesg and ier."""
    information = {"nfev": result.nfev, "fvec": result.fun}
    if method != "lm":
        return information, result.message, result.status
    information.update(figures_of_factor(result.jac, result.fun))
    return information, result.message, TO_LEASTSQ[result.status]


def _feasible(lower: Array, upper: Array) -> Array:
    """A start within bounds: ones without, the middle between two, one away from a single one."""
    has_lower, has_upper = np.isfinite(lower), np.isfinite(upper)
    start = np.ones_like(upper)
    both = has_lower & has_upper
    start[both] = 0.5 * (lower[both] + upper[both])
    only_lower, only_upper = has_lower & ~has_upper, ~has_lower & has_upper
    start[only_lower] = lower[only_lower] + 1
    start[only_upper] = upper[only_upper] - 1
    return start


def _of_leastsq(kwargs: dict[str, Any], count: int) -> dict[str, Any]:
    """The options of `least_squares` for those of `leastsq`."""
    options, eps = OPTIONS | {"gtol": 0.0} | kwargs, np.finfo(float).eps
    # leastsq's tolerances may be zero; least_squares wants each to be one that can be met.
    options.update({name: max(options[name], eps) for name in ("ftol", "xtol", "gtol")})
    most = options.pop("maxfev", None)
    options.setdefault("max_nfev", most or 200 * (count + 1))
    diag, step = options.pop("diag", None), options.pop("epsfcn", None)
    if diag is not None:
        options["x_scale"] = 1 / np.asarray(diag, dtype=float)
    if step is not None:
        options["diff_step"] = np.sqrt(max(step, eps))
    options.pop("factor", None)
    return options


def _of_least_squares(kwargs: dict[str, Any]) -> dict[str, Any]:
    options = OPTIONS | {"gtol": None} | kwargs
    most = options.pop("maxfev", None)
    options.setdefault("max_nfev", most)
    return options


def _scaled(pcov: Array | None, result: Any, absolute: bool) -> Array:
    """The covariance, scaled by the residuals where sigma is relative; infinite where it cannot be known."""
    from scipy.optimize import OptimizeWarning

    count, points = result.x.size, result.fun.size
    if pcov is not None and not np.isnan(pcov).any():
        if absolute:
            return pcov
        if points > count:
            return pcov * (2 * result.cost / (points - count))
    warnings.warn("Covariance of the parameters could not be estimated", category=OptimizeWarning, stacklevel=4)
    return np.full((count, count), np.inf)
