"""Bounds: which columns a step may move, and where it is cut off (the active set of `mslsq.solvers.box`)."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mslsq.interop.scipy.methods import Method, Proposed

if TYPE_CHECKING:
    from mslsq.interop.scipy.descent import Point

Array = NDArray[Any]


class Landing(NamedTuple):
    """Which variables a step brings to their bounds."""

    box: "Box"
    lower: Array | None
    upper: Array | None

    @property
    def is_free(self) -> bool:
        """Does it meet no bound?"""
        return self.lower is None

    def placed(self, x: Array) -> Array:
        """The point within the bounds, and on them, to the bit, where the step ends there."""
        if not self.box.is_bounded:
            return x
        x = np.clip(x, self.box.lower, self.box.upper)
        if self.lower is not None and self.upper is not None:
            x = np.where(self.lower, self.box.lower, np.where(self.upper, self.box.upper, x))
        return x


class Box:
    """Lower and upper bounds, (n,) each, infinite where there is none."""

    def __init__(self, lower: Array, upper: Array):
        self.lower, self.upper = lower, upper
        self.is_bounded = bool(np.any(lower > -np.inf) or np.any(upper < np.inf))

    def projected(self, x: Array, gradient: Array) -> Array:
        """The gradient, zero where a bound holds a variable that it pushes outwards."""
        if not self.is_bounded:
            return gradient
        pushed = ((x <= self.lower) & (gradient > 0)) | ((x >= self.upper) & (gradient < 0))
        return np.where(pushed & np.isfinite(gradient), 0.0, gradient)

    def active(self, x: Array) -> Array:
        """-1 on the lower bound, 1 on the upper, 0 elsewhere."""
        return np.where(x <= self.lower, -1, np.where(x >= self.upper, 1, 0))

    def step(self, method: Method, point: "Point") -> tuple[Proposed, Array | None, Landing]:
        """The method's step, and where it meets bounds. What leaves the box goes to its bounds, the others step once
        more around that move, and what still leaves it is cut off."""
        nowhere = Landing(self, None, None)
        if not self.is_bounded:
            proposed = method.propose(point.system, point.gradient, None, None)
            return proposed, proposed.step, nowhere
        x = point.x
        free = ~(((x <= self.lower) | (x >= self.upper)) & (point.projected == 0))
        proposed = method.propose(point.system, point.projected, None if free.all() else free, None)
        if proposed.step is None:
            return proposed, None, nowhere
        lower, upper = self._met(x + proposed.step, free)
        met = lower | upper
        if not met.any():
            return proposed, proposed.step, nowhere
        move = np.where(lower, self.lower - x, np.where(upper, self.upper - x, 0.0))
        rest = free & ~met
        gradient = np.where(rest, point.gradient + point.system.normal_product(move), 0.0)
        again = method.propose(point.system, gradient, rest, move)
        if again.step is None:
            return again, None, nowhere
        cut_lower, cut_upper = self._met(x + again.step, rest)
        step = np.where(cut_lower, self.lower - x, np.where(cut_upper, self.upper - x, again.step + move))
        return again, step, Landing(self, lower | cut_lower, upper | cut_upper)

    def _met(self, x: Array, among: Array) -> tuple[Array, Array]:
        return among & (x <= self.lower), among & (x >= self.upper)
