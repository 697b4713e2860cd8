"""`scipy.optimize.least_squares` on NumPy functions, the steps those of this library."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mslsq.interop.scipy.arguments import (
    box_of,
    check_jacobian,
    check_names,
    scales_of,
    sparsity_of,
    start_of,
    tolerances_of,
)
from mslsq.interop.scipy.box import Box
from mslsq.interop.scipy.descent import MESSAGES, Descent, Outcome, Rules, Watcher, scaled_rows
from mslsq.interop.scipy.function import Called, Opaque, Workers, mapping_of
from mslsq.interop.scipy.losses import Loss
from mslsq.interop.scipy.watching import watcher

Array = NDArray[Any]
NO_KWARGS: Mapping[str, Any] = {}


def least_squares(
    fun: Callable[..., Any],
    x0: Any,
    jac: Any = "2-point",
    bounds: Any = (-math.inf, math.inf),
    method: str = "trf",
    ftol: float | None = 1e-8,
    xtol: float | None = 1e-8,
    gtol: float | None = 1e-8,
    x_scale: Any = None,
    loss: Any = "linear",
    f_scale: float = 1.0,
    diff_step: Any = None,
    tr_solver: str | None = None,
    tr_options: Mapping[str, Any] | None = None,
    jac_sparsity: Any = None,
    max_nfev: int | None = None,
    verbose: int = 0,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    callback: Callable[..., Any] | None = None,
    workers: Workers = None,
) -> Any:
    """`scipy.optimize.least_squares`: minimise ½ Σ ρ(fᵢ(x)²) over x, with the arguments and the result of SciPy's.

    `fun` is any Python function of NumPy arrays. It is called at one point at a time and never recorded, mapped or
    differentiated: the Jacobian is `jac`'s, or comes from SciPy's finite differences. The steps are those of
    `mslsq.LevenbergMarquardt` and `mslsq.Dogleg`, with this library's rules for what may be called converged.
    `docs/how_to/from_scipy.md` has the differences.

    Args:
        fun: `fun(x, *args, **kwargs)` with x (n,) returns the residuals, (m,) or a number.
        x0: the start, (n,) or a number.
        jac: "2-point", "3-point", "cs", or a function of the arguments of `fun` that returns the Jacobian, (m, n): an
            array, a sparse array or a LinearOperator.
        bounds: (lower, upper), each (n,) or a number, or a `scipy.optimize.Bounds`.
        method: "trf" and "lm": Levenberg–Marquardt ("lm" without bounds, losses and sparse Jacobians, its `gtol` a
            cosine, as in SciPy); "dogbox": Powell's dogleg. Bounds are handled by an active set.
        ftol: stop when an accepted step lowers the cost by less than ftol · cost; None for never.
        xtol: stop when a step is shorter than xtol · (xtol + |x|); None for never.
        gtol: stop when no entry of the gradient, but for those that bounds hold, reaches gtol; None for never.
        x_scale: sizes of the variables, (n,) or a number; "jac": by the Jacobian's columns, which makes steps free of
            units; None: "jac" for "lm", 1.0 for the others, as in SciPy.
        loss: "linear", "soft_l1", "huber", "cauchy", "arctan", or a function of z = (f / f_scale)², (m,), that returns
            ρ, ρ', ρ'', (3, m).
        f_scale: the size of residuals from which on they count as outliers.
        diff_step: relative steps of the finite differences.
        tr_solver: "exact": orthogonal factorisation; "lsmr": LSMR; None: by the kind of Jacobian.
        tr_options: of `scipy.sparse.linalg.lsmr`; "regularize" means nothing here, every step is damped.
        jac_sparsity: which entries of the Jacobian can differ from zero, (m, n), for finite differences.
        max_nfev: evaluations at most, those for finite differences not counted; None for 100 n.
        verbose: 1 prints how it ended, 2 each step as well.
        args: further arguments of `fun` and `jac`.
        kwargs: further named arguments of `fun` and `jac`.
        callback: called after each accepted step with x, or with `intermediate_result`, an OptimizeResult; it stops
            the solve by True or StopIteration.
        workers: processes that evaluate finite differences, or a function like `map`.

    Returns:
        A `scipy.optimize.OptimizeResult`: `x`, `cost`, `fun`, `jac`, `grad`, `optimality`, `active_mask`, `nfev`,
        `njev`, `status`, `message`, `success`. `status` is SciPy's, or -3: no step helps any more, yet the gradient is
        not small.

    Raises:
        ValueError, TypeError: as SciPy's, for the same reasons.

    >>> result = mslsq.interop.scipy.least_squares(lambda x: [10 * (x[1] - x[0] ** 2), 1 - x[0]], [-2.0, 1.0])
    >>> result.x.round(6), result.success
    (array([1., 1.]), True)
    """
    check_names(method, jac, tr_solver, loss, verbose, max_nfev)
    start = start_of(x0)
    box = box_of(bounds, start, method)
    scale = scales_of(x_scale, start, method)
    tolerances = tolerances_of(ftol, xtol, gtol, method)
    further = NO_KWARGS if kwargs is None else kwargs
    by_jac = Called(jac, args, further) if callable(jac) else jac
    with mapping_of(workers) as mapping:
        function = Opaque(Called(fun, args, further), by_jac, (box.lower, box.upper), diff_step, None, mapping)
        residual = _first_residual(function, start, method)
        if not callable(jac):
            function.sparsity = sparsity_of(jac_sparsity, start.size, lambda: residual.size, method, tr_solver)
        jacobian = function.jacobian(start, residual)
        check_jacobian(jacobian, (residual.size, start.size), method, tr_solver, scale is None)
        is_dense = isinstance(jacobian, np.ndarray) and tr_solver != "lsmr"
        rules = Rules(
            method,
            ftol=tolerances[0],
            xtol=tolerances[1],
            gtol=tolerances[2],
            max_nfev=100 * start.size if max_nfev is None else max_nfev,
            scale=None if scale is None else scale**-2.0,
            lsmr=None if is_dense else {k: v for k, v in (tr_options or {}).items() if k != "regularize"},
        )
        rho = Loss(loss, f_scale)
        rho.check(residual)
        descent = Descent(function, rho, box, rules)
        point = descent.linearized(start, residual, jacobian)
        watch: Watcher | None = watcher(callback, verbose, function, point)
        outcome = descent.run(point, watch)
    result = _result(outcome, function, rho, box, method)
    if verbose:
        print(result.message)
        print(
            f"Function evaluations {result.nfev}, initial cost {point.cost:.4e}, final cost {result.cost:.4e}, "
            f"first-order optimality {result.optimality:.2e}."
        )
    return result


def _first_residual(function: Opaque, start: Array, method: str) -> Array:
    residual = function.at(start)
    if residual.ndim != 1:
        raise ValueError(f"`fun` must return at most 1-d array_like. f0.shape: {residual.shape}")
    if not np.all(np.isfinite(residual)):
        raise ValueError("Residuals are not finite in the initial point.")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.vdot(residual, residual)):
            raise ValueError("Squares of the residuals are not finite in the initial point: choose another unit.")
    if method == "lm" and residual.size < start.size:
        raise ValueError("Method 'lm' doesn't work when the number of residuals is less than the number of variables.")
    return residual


def _result(outcome: Outcome, function: Opaque, loss: Loss, box: Box, method: str) -> Any:
    from scipy.optimize import OptimizeResult

    point = outcome.point
    rows = loss.rows_for_result(point.residual.astype(float, copy=False))
    return OptimizeResult(
        x=point.x,
        cost=point.cost,
        fun=point.residual,
        jac=point.jacobian if rows is None else scaled_rows(point.jacobian, rows),
        grad=point.gradient,
        optimality=float(np.max(np.abs(point.projected), initial=0.0)),
        active_mask=box.active(point.x),
        nfev=function.nfev,
        njev=None if method == "lm" and isinstance(function.jac, str) else function.njev,
        status=outcome.status,
        message=MESSAGES[outcome.status],
        success=outcome.status > 0,
    )
