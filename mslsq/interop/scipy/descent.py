"""The loop: steps of one problem until it has stopped, by the library's rules and SciPy's tolerances."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mslsq.interop.scipy.box import Box
from mslsq.interop.scipy.function import Opaque
from mslsq.interop.scipy.losses import Loss
from mslsq.interop.scipy.methods import METHODS, Method
from mslsq.interop.scipy.stationarity import Stationarity
from mslsq.interop.scipy.systems import Dense, Iterative, System
from mslsq.solvers.verdict import COLLAPSE, LEVEL, NOTHING, SUFFICIENT

Array = NDArray[Any]

STOPPED, STALLED, MOST_CALLS, GRADIENT, COST, STEP, BOTH = -2, -3, 0, 1, 2, 3, 4
"""SciPy's numbers, and `STALLED`, which SciPy does not have: there a step that is short because nothing helps any more
counts as convergence."""

PATIENCE = 32
"""Trials on one level of the cost after which the curvature is asked whether anything is left."""

MESSAGES = {
    STALLED: "No step lowers the cost any more, but its gradient is not small: the residual may have a kink or a jump, "
    "`jac` may not be its derivative (scipy.optimize.check_grad), or it is not finite at every step tried.",
    STOPPED: "Stopped because `callback` function raised `StopIteration` or returned `True`",
    MOST_CALLS: "The maximum number of function evaluations is exceeded.",
    GRADIENT: "`gtol` termination condition is satisfied.",
    COST: "`ftol` termination condition is satisfied.",
    STEP: "`xtol` termination condition is satisfied.",
    BOTH: "Both `ftol` and `xtol` termination conditions are satisfied.",
}


@dataclass(frozen=True)
class Rules:
    """What the caller has asked for."""

    method: str
    ftol: float
    xtol: float
    gtol: float
    """Of the gradient's largest entry; of the largest cosine between residual and columns for "lm"."""
    max_nfev: int
    scale: Array | None
    """D² of the columns, or None for their lengths."""
    lsmr: dict[str, Any] | None
    """LSMR's options; None for a factorisation."""


class Point(NamedTuple):
    """A point and its linearization."""

    x: Array
    residual: Array
    """As the user returned it."""
    jacobian: Any
    cost: float
    gradient: Array
    """Of all columns."""
    projected: Array
    """Of it what no bound holds."""
    system: System
    noise: Array | None
    """What rounding can make of each entry of the gradient, where that is by finite differences."""


class Outcome(NamedTuple):
    """Where the loop ended, and why."""

    point: Point
    status: int
    num_steps: int


Watcher = Callable[[Point, int, float, float], bool]
"""Told after every accepted step: the point, the number of the step, decrease and length; True to stop."""


class _Trial(NamedTuple):
    """What became of a step."""

    at: Point | None
    """The trial point, where it was worth a Jacobian."""
    accepted: bool
    gain: float
    decrease: float
    predicted: float
    length: float
    level: bool
    """Are actual and predicted decrease below what the cost can tell?"""
    finite: bool
    resolved: bool


class Descent:
    """One problem, stated."""

    def __init__(self, function: Opaque, loss: Loss, box: Box, rules: Rules):
        self._function, self._loss, self._box, self._rules = function, loss, box, rules

    def run(self, point: Point, watch: Watcher | None) -> Outcome:
        """Steps from a point that has been linearized."""
        rules = self._rules
        method = METHODS[rules.method](point.system, point.x, rules.scale)
        stationarity = Stationarity(point, rules.ftol, rules.xtol)
        level = Level(point)
        number = 0
        while True:
            if self._is_flat(point):
                return Outcome(point, GRADIENT, number)
            if self._function.nfev >= rules.max_nfev:
                return Outcome(point, MOST_CALLS, number)
            proposed, step, landing = self._box.step(method, point)
            if step is None:
                method.update(point.system, np.zeros_like(point.x), 0.0, False, False)
                if method.is_exhausted:
                    return Outcome(point, STALLED, number)
                continue
            x = landing.placed(point.x + step)
            resolved = self._resolved(point, proposed.damping, stationarity.share)
            trial = self._tried(point, x, step, proposed.resolved and landing.is_free and resolved, landing.is_free)
            before, point = point, trial.at if trial.accepted and trial.at is not None else point
            method.update(point.system, step, trial.gain, trial.accepted, True)
            status = self._judge(before, point, trial, method, stationarity)
            number += trial.accepted
            if trial.accepted and watch is not None and watch(point, number, trial.decrease, trial.length):
                return Outcome(point, STOPPED, number)
            if status is None and level.lasts(point) and rules.ftol > 0:
                status = COST if stationarity.holds_by_curvature(point, self._gradient_at) else None
            refined = self._refined(point) if status == STALLED else None
            if refined is not None:
                point, method = refined, METHODS[rules.method](refined.system, refined.x, rules.scale)
                continue
            if status is not None:
                return Outcome(point, status, number)

    def linearized(self, x: Array, residual: Array, jacobian: Any) -> Point:
        """The model of the cost at a point."""
        real = residual.astype(float, copy=False)
        weighted, rows = self._loss.rescaled(real)
        gradient = jacobian.T @ self._loss.weighted(real)
        scaled = jacobian if rows is None else scaled_rows(jacobian, rows)
        options = self._rules.lsmr
        system = Dense(scaled, weighted) if options is None else Iterative(scaled, weighted, options)
        projected = self._box.projected(x, gradient)
        noise = self._function.gradient_noise(x, residual)
        return Point(x, residual, jacobian, self._loss.cost(real), gradient, projected, system, noise)

    def _is_flat(self, point: Point) -> bool:
        """Is the gradient small enough to stop?"""
        largest = float(np.max(np.abs(point.projected), initial=0.0))
        if self._rules.method != "lm" or largest == 0:
            return largest == 0 or largest < self._rules.gtol
        lengths = np.sqrt(np.maximum(point.system.squared_norms, np.finfo(float).tiny))
        return float(np.max(np.abs(point.gradient) / lengths)) <= self._rules.gtol * np.sqrt(2 * point.cost)

    def _resolved(self, point: Point, damping: Array, share: float) -> bool:
        """Has every column that damping holds still nothing to gain?"""
        squared = np.maximum(point.system.squared_norms, np.finfo(float).tiny)
        held = damping > 2e-2 * squared
        return not held.any() or float(np.sum((point.projected**2 / squared)[held])) <= share * 2 * point.cost

    def _tried(self, point: Point, x: Array, step: Array, resolved: bool, is_free: bool) -> _Trial:
        """The residual at the trial point, and its Jacobian where the point may be taken."""
        eps = np.finfo(point.residual.dtype).eps
        along = point.system.times(step)
        predicted = -float(point.gradient @ step) - 0.5 * float(along @ along)
        residual = self._function.at(x)
        cost = self._loss.cost(residual.astype(float, copy=False))
        decrease, length = point.cost - cost, math.sqrt(float(step @ step))
        finite = bool(np.isfinite(cost)) and bool(np.isfinite(predicted))
        rounding = LEVEL * eps * point.cost
        level = finite and abs(decrease) <= rounding and abs(predicted) <= rounding
        descends = finite and predicted > 0 and decrease > SUFFICIENT * predicted
        at, accepted, sound = None, False, finite
        if level or descends:
            at = self._linearization(x, residual)
            finite = at is not None
            squared = point.system.squared_norms
            sound = at is not None and (not is_free or bool(np.all(at.system.squared_norms >= COLLAPSE**2 * squared)))
            accepted = at is not None and sound and (not level or _shorter(at, point))
        gain = 1.0 if level else decrease / predicted if predicted > 0 else 0.0
        return _Trial(at, accepted, gain if sound else 0.0, decrease, predicted, length, level, finite, resolved)

    def _linearization(self, x: Array, residual: Array) -> Point | None:
        """The point, or None where its Jacobian is not finite, or the squares of its columns are not: of what has
        overflowed everything is a small share."""
        jacobian = self._function.jacobian(x, residual)
        if isinstance(jacobian, np.ndarray) and not np.isfinite(jacobian).all():
            return None
        point = self.linearized(x, residual, jacobian)
        is_finite = np.isfinite(point.gradient).all() and np.isfinite(point.system.squared_norms).all()
        return point if is_finite else None

    def _judge(
        self, before: Point, point: Point, trial: _Trial, method: Method, stationarity: Stationarity
    ) -> int | None:
        """Why the solve ends with this trial; None if it goes on. A short step, or a small decrease, means convergence
        only where the gradient is small as well."""
        rules, eps = self._rules, np.finfo(point.residual.dtype).eps
        size = math.sqrt(float(before.x @ before.x))
        is_short = trial.finite and trial.length < rules.xtol * (rules.xtol + size)
        promises_little = trial.predicted <= 4 * max(rules.ftol, 0) * before.cost
        is_small = rules.ftol > 0 and promises_little and trial.decrease <= rules.ftol * before.cost
        unmoved = rules.ftol > 0 and promises_little and trial.level and trial.resolved and not trial.accepted
        nothing = trial.level and trial.predicted <= NOTHING * eps * before.cost
        stuck = not trial.accepted and trial.finite and (nothing or trial.length <= eps * size)
        stuck = stuck or (not trial.accepted and stationarity.is_noise(point))
        given_up = method.is_exhausted and not trial.accepted
        if not (is_short or is_small or unmoved or stuck or given_up):
            return None
        stationary = stationarity.holds(point, trial.at)
        cost_met = unmoved or (is_small and trial.accepted and trial.gain > 0.25 and (stationary or trial.resolved))
        step_met = is_short and stationary
        if cost_met or step_met:
            return BOTH if cost_met and step_met else COST if cost_met else STEP
        if stuck or given_up:
            stationary = stationary or stationarity.rests_at_zero(point)
            stationary = stationary or stationarity.holds_by_curvature(point, self._gradient_at)
            return STEP if stationary and rules.xtol > 0 else COST if stationary and rules.ftol > 0 else STALLED
        return None

    def _refined(self, point: Point) -> Point | None:
        """The point with central differences in place of forward ones. None where those were taken already, and where
        the longer steps have left the region in which the model means anything: then one column is longer than all."""
        if not self._function.refine():
            return None
        refined = self._linearization(point.x, point.residual)
        if refined is None:
            return None
        before, now = (at.system.squared_norms * np.maximum(1.0, at.x**2) for at in (point, refined))
        return refined if float(now.max()) <= float(before.max()) / COLLAPSE**2 else None

    def _gradient_at(self, x: Array) -> Array | None:
        """The gradient of the cost at a point near the current one; None outside of the bounds, and where it is not
        finite."""
        if np.any(x < self._box.lower) or np.any(x > self._box.upper):
            return None
        residual = self._function.at(x)
        if not np.isfinite(self._loss.cost(residual.astype(float, copy=False))):
            return None
        point = self._linearization(x, residual)
        return None if point is None else point.gradient


class Level:
    """For how many trials the cost has been the same to its rounding. Steps that are taken on the level (because they
    shorten the gradient) may raise it by as much as others lower it, for ever."""

    def __init__(self, point: Point):
        self._cost, self._trials, self._patience = point.cost, 0, PATIENCE

    def lasts(self, point: Point) -> bool:
        """Is it time to ask for the curvature? Every time takes twice as long as the one before."""
        self._trials += 1
        if point.cost < self._cost * (1 - LEVEL * np.finfo(point.residual.dtype).eps):
            self._cost, self._trials = point.cost, 0
        if self._trials < self._patience:
            return False
        self._trials, self._patience = 0, 2 * self._patience
        return True


def _shorter(at: Point, point: Point) -> bool:
    """Is the scaled gradient of the first shorter?"""
    tiny = np.finfo(float).tiny
    scale = np.maximum(np.maximum(at.system.squared_norms, point.system.squared_norms), tiny)
    return float(np.sum(at.projected**2 / scale)) < float(np.sum(point.projected**2 / scale))


def scaled_rows(jacobian: Any, rows: Array) -> Any:
    """The Jacobian with its rows multiplied."""
    from scipy.sparse import diags_array, issparse
    from scipy.sparse.linalg import aslinearoperator

    if isinstance(jacobian, np.ndarray):
        return rows[:, None] * jacobian
    weights = diags_array(rows)
    return weights @ jacobian if issparse(jacobian) else aslinearoperator(weights) @ jacobian
