"""Is a point stationary? In the measure of `mslsq.solvers.stationarity`, free of units."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mslsq.solvers.stationarity import NEAR, NOISE, ROUNDING, SMALL

if TYPE_CHECKING:
    from mslsq.interop.scipy.descent import Point

Array = NDArray[Any]


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
        return bool(np.all(np.abs(point.projected) <= self._near * point.system.magnitude(sizes)))

    def is_noise(self, point: "Point") -> bool:
        """Is the gradient no larger than what differences of rounded residuals come to?"""
        return point.noise is not None and bool(np.all(np.abs(point.projected) <= point.noise))
