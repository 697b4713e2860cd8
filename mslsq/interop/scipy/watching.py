"""What is told of a solve while it goes on: SciPy's callbacks, and lines of `verbose=2`."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mslsq.interop.scipy.descent import Point, Watcher
from mslsq.interop.scipy.function import Opaque

HEADINGS = "Iteration", "Total nfev", "Cost", "Cost reduction", "Step norm", "Optimality"


def watcher(callback: Callable[..., Any] | None, verbose: int, function: Opaque, start: Point) -> Watcher | None:
    """What to call after each accepted step; None where that is nothing."""
    if callback is None and verbose < 2:
        return None
    wants_result = callback is not None and set(inspect.signature(callback).parameters) == {"intermediate_result"}
    if verbose == 2:
        print(" ".join(f"{heading:^15}" for heading in HEADINGS))
        _print_row(start, 0, function.nfev)

    def watch(point: Point, number: int, decrease: float, length: float) -> bool:
        if verbose == 2:
            _print_row(point, number, function.nfev, f"{decrease:.2e}", f"{length:.2e}")
        if callback is None:
            return False
        try:
            if wants_result:
                return bool(callback(intermediate_result=_so_far(point, number, function)))
            return bool(callback(point.x.copy()))
        except StopIteration:
            return True

    return watch


def _so_far(point: Point, number: int, function: Opaque) -> Any:
    from scipy.optimize import OptimizeResult

    return OptimizeResult(x=point.x.copy(), fun=point.residual, nit=number, nfev=function.nfev, cost=point.cost)


def _print_row(point: Point, number: int, nfev: int, decrease: str = "", length: str = "") -> None:
    optimality = float(np.max(np.abs(point.projected), initial=0.0))
    figures = f"{number}", f"{nfev}", f"{point.cost:.4e}", decrease, length, f"{optimality:.2e}"
    print(" ".join(f"{figure:^15}" for figure in figures))
