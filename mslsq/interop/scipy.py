"""Functions with the names and the order of arguments of SciPy's, for code that was written for it."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mslsq.front.curve_fit import CurveFit
from mslsq.front.curve_fit import curve_fit as _curve_fit
from mslsq.problem.errors import ProblemError
from mslsq.solvers import Solver
from mslsq.validation import one_of

__all__ = ["curve_fit"]


def curve_fit(
    f: Callable[..., Tensor],
    xdata: Any,
    ydata: Any,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    check_finite: bool | None = None,
    bounds: Any = (-math.inf, math.inf),
    *,
    nan_policy: str | None = None,
    full_output: bool = False,
    solver: Solver | None = None,
) -> Any:
    """`scipy.optimize.curve_fit` with PyTorch tensors: fit f(x, *parameters) to data.

    The model takes x first and then each parameter by itself, as SciPy's does, and computes with tensors
    (`torch.exp`, not `numpy.exp`); its derivatives are exact. `mslsq.curve_fit` takes `model(p, t)` instead, and can
    more.

    Args:
        f: `f(x, a, b, ...)` returns what is compared with ydata.
        xdata: a tensor, array or list; handed to f as a tensor of floating point.
        ydata: likewise, (points,).
        p0: the start, one number per parameter; ones by default, as many as f has arguments behind x.
        sigma: standard deviations (points,), a covariance matrix (points, points), or a number.
        absolute_sigma: as in SciPy.
        check_finite: `True`, the default where `nan_policy` is not given: data that are NaN or infinite are an error.
        bounds: (lower, upper), as in SciPy.
        nan_policy: "raise": the same; "omit": points whose y is NaN do not count.
        full_output: return the `CurveFit` as well, which has the report, intervals and bands.
        solver: as for `mslsq.curve_fit`.

    Returns:
        (popt, pcov), tensors (n,) and (n, n); or (popt, pcov, fit) with `full_output=True`, which is not SciPy's.

    Raises:
        ProblemError (a ValueError): the data are not finite, or something does not fit; the message says what.

    >>> popt, pcov = mslsq.interop.scipy.curve_fit(lambda x, a, b: a * torch.exp(-b * x), xdata, ydata)
    """
    one_of("curve_fit: nan_policy", nan_policy, (None, "raise", "omit"), ProblemError)
    x, y = _floating(xdata, None), _floating(ydata, None)
    like = y.real if y.is_complex() else y
    start = like.new_ones(_number_of_parameters(f)) if p0 is None else _floating(p0, like)
    check = nan_policy != "omit" if check_finite is None else check_finite

    def model(p: Tensor, t: Tensor) -> Tensor:
        return f(t, *p.unbind())

    fit: CurveFit = _curve_fit(
        model,
        x,
        y,
        torch.atleast_1d(start),
        sigma=None if sigma is None else _floating(sigma, like),
        absolute_sigma=absolute_sigma,
        bounds=None if _is_unbounded(bounds) else bounds,
        nan_policy="raise" if check else "omit",
        solver=solver,
    )
    return (fit.value, fit.covariance, fit) if full_output else (fit.value, fit.covariance)


def _floating(data: Any, like: Tensor | None) -> Tensor:
    """A tensor of floating point: float64 where it was none, or the kind of another."""
    tensor = data if isinstance(data, Tensor) else torch.as_tensor(data, dtype=None if like is None else like.dtype)
    if like is not None:
        return tensor.to(like)
    return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.to(torch.float64)


def _number_of_parameters(f: Callable[..., Any]) -> int:
    """The arguments behind x."""
    parameters = list(inspect.signature(f).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or any(parameter.kind not in kinds for parameter in parameters):
        raise ProblemError("The number of parameters cannot be read from f's signature: give p0.")
    return len(parameters)


def _is_unbounded(bounds: Any) -> bool:
    if bounds is None:
        return True
    lower, upper = bounds
    return bool((torch.as_tensor(lower) == -math.inf).all() and (torch.as_tensor(upper) == math.inf).all())
