"""The rules of `mslsq.LevenbergMarquardt` and `mslsq.Dogleg` for one problem, in numbers instead of tensors.

A NumPy function is called one point at a time, and a step of ten numbers takes PyTorch's operations a hundred times as
long as NumPy's. The constants are those of the solvers, which say where they come from.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mslsq.interop.scipy.systems import System
from mslsq.solvers.dogleg import FLOOR
from mslsq.solvers.levenberg_marquardt import (
    CUT,
    FIRST_DAMPINGS,
    FORGETTING,
    LENGTHEN,
    SHORT,
    SHORTEST,
    SHRINK_FAR,
    SHRINK_NEAR,
    SHRINK_NEAREST,
)
from mslsq.solvers.solver import RESOLVED

Array = NDArray[np.float64]

MAX_DAMPING, LEAST_DAMPING, LEAST_RADIUS = 1e32, 1e-32, 1e-32


class Proposed(NamedTuple):
    """A step of the free columns, around a move of the others."""

    step: Array | None
    """None where the system could not be solved."""
    damping: Array
    """What was added to the diagonal of JᵀJ."""
    resolved: bool
    """Is it all but the full Gauss–Newton step?"""


class Method:
    """What the loop asks of a method. `scale` is D², the squared scales of the columns.

    Args:
        system: at the start.
        x: the start.
        fixed: what D² stays proportional to; None for D the largest column lengths so far. Damping is relative to the
            columns, so that it has no unit: D² is as large as makes its largest column's length one.
    """

    def __init__(self, system: System, x: Array, fixed: Array | None):
        self._fixed = fixed is not None
        lengths = _lengths(system)
        self.scale = lengths if fixed is None else fixed * float(np.max(lengths / fixed))

    def propose(self, system: System, gradient: Array, free: Array | None, move: Array | None) -> Proposed:
        """A step from the current point; `gradient` is zero where a column is not free, and holds what `move` adds."""
        raise NotImplementedError

    def update(self, system: System, step: Array, gain: float, accepted: bool, solved: bool) -> None:
        """The state after a trial with this ratio of actual to predicted decrease; `system` is of the point kept."""
        raise NotImplementedError

    @property
    def is_exhausted(self) -> bool:
        """Has it shrunk its steps as far as makes sense?"""
        raise NotImplementedError


class LevenbergMarquardt(Method):
    """Steps of (JᵀJ + μD²) p = −Jᵀr, μ by Nielsen's rule, as `mslsq.LevenbergMarquardt` has them."""

    def __init__(self, system: System, x: Array, fixed: Array | None):
        super().__init__(system, x, fixed)
        least, middle, most = FIRST_DAMPINGS
        size = float(self.scale @ (x * x))
        self._near = self._is_short(system, size, middle, SHORT[1])
        self._nearest = self._near and self._is_short(system, size, least, SHORT[0])
        self._factor = least if self._nearest else middle if self._near else most
        self._growth, self._length = 2.0, 1.0

    def _is_short(self, system: System, size: float, factor: float, short: float) -> bool:
        step = system.step(factor * self.scale)
        return step is not None and float(self.scale @ (step * step)) <= short**2 * size

    def propose(self, system: System, gradient: Array, free: Array | None, move: Array | None) -> Proposed:
        damping = self._factor * self.scale
        step = system.step(damping, free, move)
        resolved = self._factor <= RESOLVED and self._length >= 1
        return Proposed(None if step is None else self._length * step, damping, resolved)

    def update(self, system: System, step: Array, gain: float, accepted: bool, solved: bool) -> None:
        if accepted:
            least = SHRINK_NEAR if self._near else SHRINK_FAR
            shrink = max(1 - (2 * min(gain, 1e3) - 1) ** 3, least)
            self._factor *= SHRINK_NEAREST if self._nearest else shrink
            self._growth = 2.0
            self._length = min(1.0, 2 * self._length if gain >= LENGTHEN else self._length)
        else:
            self._fail(gain, solved)
        self._factor = max(self._factor, LEAST_DAMPING)
        if not self._fixed:
            forgotten = FORGETTING if accepted and self._near else 1.0
            self.scale = np.maximum(forgotten * self.scale, system.squared_norms)

    def _fail(self, gain: float, solved: bool) -> None:
        """A share of the step, to the least of a parabola, or more damping."""
        share = 0.5 / max(1 - gain * (1 - 0.5 * self._length), 0.5)
        cut = self._length * min(max(share, CUT[0]), CUT[1])
        if self._nearest and solved and gain < 0 and cut >= SHORTEST:
            self._length = cut
            return
        self._factor *= self._growth
        if self._nearest:
            self._factor = max(self._factor, FIRST_DAMPINGS[1])
        self._growth, self._length, self._nearest = 2 * self._growth, 1.0, False

    @property
    def is_exhausted(self) -> bool:
        return self._factor > MAX_DAMPING


class Dogleg(Method):
    """Powell's dogleg as `mslsq.Dogleg` has it; the first radius is |Dx|, that of the variables themselves."""

    def __init__(self, system: System, x: Array, fixed: Array | None):
        super().__init__(system, x, fixed)
        self._radius = float(np.sqrt(self.scale @ (x * x))) or np.inf
        self._regularization = FLOOR

    def propose(self, system: System, gradient: Array, free: Array | None, move: Array | None) -> Proposed:
        damping = self._regularization * self.scale
        newton = system.step(damping, free, move)
        descent = -gradient / self.scale
        slope, along = -float(gradient @ descent), system.times(descent)
        curvature = float(along @ along)
        cauchy = (slope / curvature if curvature > 0 else 0.0) * descent
        step = self._path(newton, cauchy)
        inside = newton is not None and self._norm(newton) <= self._radius
        return Proposed(step, damping, inside)

    def _path(self, newton: Array | None, cauchy: Array) -> Array:
        """The point of the path origin → Cauchy → Gauss–Newton at the radius, or its end."""
        radius, length = self._radius, self._norm(cauchy)
        if newton is None or length >= radius:
            return cauchy * min(1.0, radius / length if length > 0 else 0.0)
        if self._norm(newton) <= radius:
            return newton
        leg = newton - cauchy
        a, b = float(self.scale @ (leg * leg)), float(self.scale @ (cauchy * leg))
        c = radius * radius - length * length
        root = np.sqrt(b * b + a * c)
        share = c / (b + root) if b > 0 else (root - b) / a
        return cauchy + min(max(share, 0.0), 1.0) * leg

    def _norm(self, step: Array) -> float:
        return float(np.sqrt(self.scale @ (step * step)))

    def update(self, system: System, step: Array, gain: float, accepted: bool, solved: bool) -> None:
        length = self._norm(step)
        if accepted and gain >= 0.25:
            self._radius *= 2 if gain > 0.75 and length >= 0.99 * self._radius else 1
        else:
            self._radius = 0.25 * min(length, self._radius)
        if not self._fixed:
            self.scale = np.maximum(self.scale, system.squared_norms)
        self._regularization = float(np.clip(self._regularization * (0.1 if solved else 10), FLOOR, 1e-3))

    @property
    def is_exhausted(self) -> bool:
        return self._radius < LEAST_RADIUS


METHODS: dict[str, Callable[[System, Array, Array | None], Method]] = {
    "trf": LevenbergMarquardt,
    "lm": LevenbergMarquardt,
    "dogbox": Dogleg,
}


def _lengths(system: System) -> Array:
    """D² at the start; a variable without influence has any scale."""
    squared = system.squared_norms
    return np.where(squared > 0, squared, 1.0)
