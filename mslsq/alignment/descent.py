"""Levenberg and Marquardt's method on the few unknowns of a placement, or of all placements of a mosaic, over
`passes.normal_equations`.

A pair of maps is placed by some ten small solves, most of them on levels of a few thousand samples. There a pass takes
0.03 ms, and a call of `mslsq.solve`, which knows nothing of that, 20 ms. The minimum is the same: tests compare.
"""

import math
from collections.abc import Callable
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.linalg import get_lapack_funcs

import mslsq
from mslsq.alignment.models import Affine, Homography, Rigid, Similarity, Translation, Warp
from mslsq.alignment.passes import NormalEquations, Pass

FIRST_DAMPING = 1e-4
"""Times the diagonal of JᵀJ."""

LARGEST_DAMPING = 1e8

RESOLVED = 1e-2
"""A step whose damping is below this share of the diagonal is all but the Gauss-Newton step: what it promises is all
that is left to gain."""

SMALLEST_STEP = 1e-7
"""Half-sides of the reference (1e-5 px of 256²): steps below it are rounding."""

LARGEST_STEP = 10.0
"""Half-sides of the reference, radians, or e-folds of scale and gain: a step beyond is of a system that says nothing,
and is not tried."""

SUFFICIENT = 1e-4
"""Share of the promised decrease that a step must keep."""

UNTRIED = 1.0
"""Standard errors (of independent samples): a step that is no longer, and after which the rate of those before leaves
as little as is asked, is the last, and is not tried: a pass over all samples, which would only say so."""


QUICK = 3
"""Steps that are taken before the secant correction begins: most solves end within them."""

SMALL_STEP = 0.01
"""Half-sides of the reference: the correction is learned from such steps alone, near the end."""

UNFINISHED = (mslsq.Status.NON_FINITE, mslsq.Status.SINGULAR, mslsq.Status.MAX_STEPS)
"""What a solve says that has not come to its minimum."""

State = TypeVar("State")

(solve_dense,) = get_lapack_funcs(("gesv",), dtype=np.float64)
"""(A, b) → (factor, pivots, A⁻¹ b, not 0 if A is singular). `numpy.linalg.solve` takes 3 µs, this 0.8."""


class Between(NamedTuple):
    """From one map to another: a warp in the normalised coordinates of the one, log gain and bias in its values."""

    matrix: Float[np.ndarray, "3 3"]
    value: Float[np.ndarray, "2"]

    def moved(self, kind: type[Warp], step: Float[np.ndarray, " unknowns"]) -> Self:
        """W ← W R(ξ), and sums for the values."""
        matrix = self.matrix @ step_matrix(kind, step[:-2])
        return type(self)(matrix / matrix[2, 2], self.value + step[-2:])


class Descent(NamedTuple, Generic[State]):
    """Where a solve ended and why, its costs ½Σρ at the start and after every accepted step, its last linearization."""

    state: State
    status: mslsq.Status
    costs: list[float]
    normal: NormalEquations
    rate: float = math.inf
    """Of the distance to the minimum, the share that the last step has left."""


def descend(
    evaluate: Callable[[State], NormalEquations],
    moved: Callable[[State, np.ndarray], State],
    state: State,
    free: Bool[np.ndarray, " unknowns"],
    max_steps: int,
    share: float,
    variance: float | None = None,
    untried: float = 0.0,
    rate: float = math.inf,
) -> Descent[State]:
    """The least cost from a start, to within `share` of a standard error.

    Noise makes JᵀJ larger than the Hessian, in smooth scenes many times, and its steps as much too short: hundreds of
    them. After a few, a secant correction learns the difference.

    With p the full step, pᵀ(JᵀJ)p / σ² = gᵀ(JᵀJ)⁻¹g / σ² is the squared distance to the minimum in standard errors of
    independent samples; the samples' correlation makes the true standard errors larger.

    Args:
        moved: a state after a step.
        free: the unknowns that move.
        variance: σ² of the residuals; by default the mean ρ.
        untried: `UNTRIED`, or 0 to try every step.
        rate: of the distance, the share that a step leaves, as far as it is known.
    """
    at = evaluate(state)
    costs, status = [at.cost], mslsq.Status.MAX_STEPS
    if not math.isfinite(at.cost):
        return Descent(state, mslsq.Status.NON_FINITE, costs, at, rate)
    damping, lacking, every, before = FIRST_DAMPING, None, bool(free.all()), 0.0
    for _ in range(max_steps):
        step, promised = _step(at, free, every, damping, lacking)
        if step is None and lacking is not None:
            lacking = None
            step, promised = _step(at, free, every, damping, lacking)
        if step is None:
            status = mslsq.Status.SINGULAR
            break
        spread = 2 * at.cost / max(at.samples - len(step), 1) if variance is None else variance
        distance = math.sqrt(2 * promised / spread) if spread > 0 else math.inf
        rate = distance / before if before > 0 else rate
        before = distance if damping <= RESOLVED else 0.0
        if damping <= RESOLVED and 2 * promised <= share**2 * spread:
            status = mslsq.Status.COST_TOLERANCE
            break
        if damping <= RESOLVED and distance <= untried and rate * distance <= share:
            state, status = moved(state, step), mslsq.Status.COST_TOLERANCE
            costs.append(at.cost - promised)
            break
        length = float(np.abs(step).max())
        if length > LARGEST_STEP:
            before = 0.0
            damping *= 10.0
            continue
        there = moved(state, step)
        trial = evaluate(there)
        if math.isfinite(trial.cost) and at.cost - trial.cost > SUFFICIENT * promised:
            gain = (at.cost - trial.cost) / promised
            if len(costs) > QUICK and length <= SMALL_STEP:
                lacking = _secant(lacking, at, trial, step, free)
            state, at = there, trial
            costs.append(at.cost)
            damping = max(damping * (0.1 if gain > 0.5 else 1.0), 1e-9)
            if length <= SMALLEST_STEP:
                status = mslsq.Status.STEP_TOLERANCE
                break
            continue
        if damping <= RESOLVED and length <= SMALLEST_STEP:
            status = mslsq.Status.STEP_TOLERANCE  # the cost cannot tell such a step from none
            break
        before = 0.0
        damping *= 10.0
        if damping > LARGEST_DAMPING:
            status = mslsq.Status.STALLED
            break
    return Descent(state, status, costs, at, rate)


LIMITS = (
    FIRST_DAMPING, LARGEST_DAMPING, RESOLVED, SMALLEST_STEP, LARGEST_STEP, SUFFICIENT, float(QUICK), SMALL_STEP,
    UNTRIED,
)  # fmt: skip
"""In the order of `struct Limits` of `descent.h`."""

ENDINGS = (
    mslsq.Status.NON_FINITE, mslsq.Status.SINGULAR, mslsq.Status.MAX_STEPS, mslsq.Status.COST_TOLERANCE,
    mslsq.Status.STEP_TOLERANCE, mslsq.Status.STALLED,
)  # fmt: skip
"""As `enum Ending` of `descent.h` numbers them."""


def descend_pair(
    equations: Pass,
    kind: type[Warp],
    state: Between,
    free: Bool[np.ndarray, " unknowns"],
    max_steps: int,
    share: float,
    rate: float = math.inf,
) -> Descent[Between]:
    """`descend` of one placement, whose last step goes untried; where a pass is the work of one thread, and the model's
    step is known to it, by compiled steps."""
    if equations.alone and kind in STEP_MATRICES:
        found = equations.descended(*state, free, (*LIMITS, share), max_steps, rate)
        matrix, value, ending, costs, normal, rate = found
        return Descent(Between(matrix, value), ENDINGS[ending], costs, normal, rate)
    moved = lambda at, step: at.moved(kind, step)  # noqa: E731
    return descend(lambda at: equations(*at), moved, state, free, max_steps, share, untried=UNTRIED, rate=rate)


def _step(
    at: NormalEquations,
    free: Bool[np.ndarray, " unknowns"],
    every: bool,
    damping: float,
    lacking: Float[np.ndarray, "unknowns unknowns"] | None,
) -> tuple[np.ndarray | None, float]:
    """The damped step, zero in what is held, and the decrease that the quadratic model promises of it; `every`: nothing
    is held. Of four to ten unknowns a step takes 5 µs, most of them in calls."""
    diagonal, gradient = at.matrix.diagonal(), at.gradient
    if not every:
        diagonal, gradient = np.where(free, diagonal, 0.0), np.where(free, gradient, 0.0)
    added = damping * diagonal
    system = at.matrix.copy() if lacking is None else at.matrix + lacking
    system.flat[:: len(free) + 1] += added
    if not every:
        held = ~free
        system[held], system[:, held] = 0.0, 0.0
        system[held, held] = 1.0
    try:
        if lacking is not None:
            np.linalg.cholesky(system)
    except np.linalg.LinAlgError:
        return None, 0.0
    *_, step, failed = solve_dense(system, -gradient)
    if failed:
        return None, 0.0
    promised = 0.5 * float(step @ (added * step - gradient))
    return (step, promised) if 0 <= promised < math.inf else (None, 0.0)


def _secant(
    lacking: np.ndarray | None, before: NormalEquations, after: NormalEquations, step: np.ndarray, free: np.ndarray
) -> Float[np.ndarray, "unknowns unknowns"] | None:
    """What JᵀJ lacks of the Hessian, after one more step: the update of Dennis, Gay and Welsch (1981), sized as theirs.

    Of all symmetric matrices with the curvature that the gradients show along the step, the one that differs least.
    """
    change = np.where(free, after.gradient - before.gradient, 0.0)
    along = float(change @ step)
    if along <= 0:
        return lacking
    lacking = np.zeros_like(after.matrix) if lacking is None else lacking
    seen = change - np.where(free, after.matrix @ step, 0.0)
    said = abs(float(step @ lacking @ step))
    if said > 0:
        lacking = lacking * min(1.0, abs(float(step @ seen)) / said)
    off = seen - lacking @ step
    both = np.outer(off, change) / along
    return lacking + both + both.T - float(step @ off) / along**2 * np.outer(change, change)


def model_matrix(kind: type[Warp], matrix: Float[np.ndarray, "3 3"]) -> Float[np.ndarray, "3 3"]:
    """The warp of a model that `from_matrix` makes of a matrix, with lower right entry 1; through tensors it takes 0.1
    ms."""
    if kind not in STEP_MATRICES:
        own = kind.from_matrix(torch.from_numpy(matrix)).matrix().numpy()
        return own / own[2, 2]
    own = matrix / matrix[2, 2]
    if kind is Translation:
        return _shift(own[:2, 2])
    if kind is Rigid or kind is Similarity:
        c, s = (own[0, 0] + own[1, 1]) / 2, (own[1, 0] - own[0, 1]) / 2
        if kind is Rigid:
            c, s = np.array([c, s]) / np.sqrt(c * c + s * s)
        return np.array([[c, -s, own[0, 2]], [s, c, own[1, 2]], [0.0, 0.0, 1.0]])
    if kind is Affine:
        own[2] = 0.0, 0.0, 1.0
    return own


def step_matrix(kind: type[Warp], step: Float[np.ndarray, " tangent"]) -> Float[np.ndarray, "3 3"]:
    """R(ξ) of one step of a model, with lower right entry 1."""
    if kind in STEP_MATRICES:
        return STEP_MATRICES[kind](step)
    taken = kind.identity(dtype=torch.float64, device="cpu").retract(torch.from_numpy(step)).matrix().numpy()
    return taken / taken[2, 2]


def _shift(step: Float[np.ndarray, "2"]) -> Float[np.ndarray, "3 3"]:
    return np.array([[1.0, 0.0, step[0]], [0.0, 1.0, step[1]], [0.0, 0.0, 1.0]])


def _turn(step: Float[np.ndarray, " tangent"]) -> Float[np.ndarray, "3 3"]:
    grown = math.exp(step[3]) if len(step) == 4 else 1.0
    c, s = grown * math.cos(step[2]), grown * math.sin(step[2])
    return np.array([[c, -s, step[0]], [s, c, step[1]], [0.0, 0.0, 1.0]])


def _sum_of_generators(step: Float[np.ndarray, " tangent"]) -> Float[np.ndarray, "3 3"]:
    x, y, turn, grow, stretch, shear = step[:6]
    px, py = step[6:] if len(step) == 8 else (0.0, 0.0)
    rows = [[1 + grow + stretch, shear - turn, x], [shear + turn, 1 + grow - stretch, y], [px, py, 1.0]]
    return np.array(rows)


STEP_MATRICES: dict[type[Warp], Callable[[np.ndarray], np.ndarray]] = {
    Translation: _shift,
    Rigid: _turn,
    Similarity: _turn,
    Affine: _sum_of_generators,
    Homography: _sum_of_generators,
}
"""For those models alone whose `retract` it is, not for what is derived from them. Through tensors a step takes 0.2 ms,
and the pass over a coarse level 0.03."""
