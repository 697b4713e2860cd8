"""`curve_fit` in SciPy's order on tensors: derivatives by autograd, and whatever `mslsq.curve_fit` can."""

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
    """The fit of a model of tensors; arguments as in `mslsq.interop.scipy.curve_fit`."""
    one_of("curve_fit: nan_policy", nan_policy, (None, "raise", "omit"), ProblemError)
    x, y = _floating(xdata, None), _floating(ydata, None)
    like = y.real if y.is_complex() else y
    start = like.new_ones(number_of_parameters(f)) if p0 is None else _floating(p0, like)
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
    dtype = None if like is None else like.dtype
    tensor = data if isinstance(data, Tensor) else torch.as_tensor(data, dtype=dtype, device="cpu")
    if like is not None:
        return tensor.to(like)
    return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.to(torch.float64)


def number_of_parameters(f: Callable[..., Any]) -> int:
    """The arguments behind x."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except ValueError:  # a function of C, or a ufunc
        parameters = ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(parameter.kind in kinds for parameter in parameters) - 1
    if count < 1:
        raise ProblemError("Unable to determine number of fit parameters from f's signature: give p0.")
    return count


def _is_unbounded(bounds: Any) -> bool:
    if bounds is None:
        return True
    lower, upper = bounds
    return bool(
        (torch.as_tensor(lower, device="cpu") == -math.inf).all()
        and (torch.as_tensor(upper, device="cpu") == math.inf).all()
    )
