"""Is a point stationary? In the measure of `mslsq.solvers.stationarity`, free of units."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mslsq.solvers.stationarity import NEAR, NOISE, ROUNDING, SMALL
from mslsq.solvers.verdict import NOTHING

if TYPE_CHECKING:
    from mslsq.interop.scipy.descent import Point

Array = NDArray[Any]

MOST_COLUMNS = 32
"""A second look costs a Jacobian for every column whose gradient is not small; with more of them it is not taken."""


class Stationarity:
    """What short steps and small decreases of a solve are compared with.

    Args:
        start: the first point.
    """

    def __init__(self, start: "Point", ftol: float, xtol: float):
        eps = float(np.finfo(start.residual.dtype).eps)
        self.share = max(SMALL, 10 * ftol, NOISE * eps)
        """Of |r|², below which |D⁻¹g|² is small."""
        self._near = min(max(10 * xtol, ROUNDING * eps), NEAR)
        self._sizes = start.x**2
        self._reach = start.system.squared_norms * self._sizes

    def holds(self, point: "Point", trial: "Point | None") -> bool:
        """At a point, or at one that was tried from it and is as good."""
        squared = np.maximum(point.system.squared_norms, np.finfo(float).tiny)
        length = float(np.sum(point.projected**2 / squared))
        if trial is not None:
            length = min(length, float(np.sum(trial.projected**2 / squared)))
        if length <= self.share * 2 * point.cost or self.is_noise(point):
            return True
        sizes = np.sqrt(np.maximum(point.x**2, np.minimum(self._sizes, self._reach / squared)))
        floor = point.system.magnitude(sizes)
        return bool(np.isfinite(floor).all() and np.all(np.abs(point.projected) <= self._near * floor))

    def is_noise(self, point: "Point") -> bool:
        """Is the gradient no larger than what differences of rounded residuals come to?"""
        return point.noise is not None and bool(np.all(np.abs(point.projected) <= point.noise))

    def rests_at_zero(self, point: "Point") -> bool:
        """Where no step helps any more: are residual and gradient zero to the rounding of variables of their size, or
        of size one? Constants that a residual subtracts leave a rounding of which its Jacobian knows nothing."""
        eps = float(np.finfo(point.residual.dtype).eps)
        sizes = np.maximum(1.0, np.abs(point.x))
        if 2 * point.cost > (ROUNDING * eps) ** 2 * float(point.system.squared_norms @ sizes**2):
            return False
        return bool(np.all(np.abs(point.projected) <= ROUNDING * eps * point.system.magnitude(sizes)))

    def holds_by_curvature(self, point: "Point", gradient: Callable[[Array], Array | None]) -> bool:
        """Where no step helps any more: would a Newton step in the columns whose gradient is not small lower the cost
        by no more than its rounding?

        A column's length says how much it can lower the cost only as long as JᵀJ is most of the curvature. Where a
        variable enters by its square and wants to be zero (an amplitude a² of something that is not there), gradient
        and column vanish together, and what is left of the cost's curvature is Σ r ∇²r. Differences of the gradient
        know it. At a kink they are large, but so is what half a step across it would gain.

        Args:
            gradient: of the cost at any x, (n,); None where it is not finite.
        """
        eps = float(np.finfo(point.residual.dtype).eps)
        squared = np.maximum(point.system.squared_norms, np.finfo(float).tiny)
        promise = point.projected**2 / squared
        doubtful = np.flatnonzero(promise > self.share * 2 * point.cost / len(promise))
        if not 0 < len(doubtful) <= MOST_COLUMNS:
            return False
        sizes = np.sqrt(np.maximum(point.x**2, np.minimum(self._sizes, self._reach / squared)))
        steps = eps ** (1 / 3) * np.where(sizes > 0, sizes, 1.0)
        hessian = np.empty((len(doubtful), len(doubtful)))
        for place, column in enumerate(doubtful):
            ends = []
            for step in (steps[column], -steps[column]):
                x = point.x.copy()
                x[column] += step
                ends.append(gradient(x))
            if ends[0] is None or ends[1] is None:
                return False
            hessian[:, place] = (ends[0] - ends[1])[doubtful] / (2 * steps[column])
        slope = point.projected[doubtful]
        try:
            half = np.linalg.solve(np.linalg.cholesky((hessian + hessian.T) / 2), slope)
        except np.linalg.LinAlgError:
            return False  # no minimum: the cost curves down, or not at all
        return bool(half @ half <= 2 * NOTHING * eps * point.cost)
