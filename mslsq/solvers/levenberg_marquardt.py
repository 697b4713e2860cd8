"""Levenberg–Marquardt: Gauss–Newton steps damped in the scaled variables, the damping steered by the gain ratio."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.elsewhere import solver_knowing_words
from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization
from mslsq.solvers.solver import RESOLVED, Proposal, Solver, SolverOptionError
from mslsq.validation import number, one_of

FIRST_DAMPINGS = 1e-8, 1e-4, 1e-2
"""The first damping: the first of these whose step is short enough, else the last. Of 1024 exponential fits whose start
is far from the solution 390 fall into a worse minimum at 1e-3, none at 1e-2; in a large graph the softest modes are
shorter than the columns by the size of the graph, and damping relative to columns holds them still."""

SHORT = 0.02, 0.1
"""How long a step of the first two may be against the variables themselves, both in the scaled norm |D·|, for the
linear model to be taken for right about it. First steps of pose graphs have 0.005 and less, those of a bundle
adjustment 0.015 at 1e-4 and 0.1 to 0.17 at 1e-8 (which fails); exponential fits that are led into a worse minimum have
0.7 and more, the classic regressions of Moré, Garbow and Hillstrom 0.15 to 5."""

POOR = 0.25
"""A first step of the least damping whose gain is below this has been believed too much: the next one has more."""

SHRINK_NEAR, SHRINK_FAR = 0.1, 0.2
"""Least share of the damping that one step leaves, where the first step was short and where not. Nielsen's third is
reached at a gain of 0.94 already, a tenth only at 0.98, where the model predicts the decrease to two digits:
parking-garage takes 10 steps instead of 12. Among 1024 hard fits one is led into a worse minimum by a tenth."""

FORGETTING = 0.25
"""What one step leaves of the memory of longer columns where the first step was short. Never forgetting (Moré) damps a
bundle adjustment for ever by the lengths at its start: 13348.4 instead of 13344.3 after 30 steps. Where steps are long
nothing is forgotten: without its memory Brown and Dennis's problem takes more than 1000 steps instead of 342."""

INEXACT_DAMPING = 1e-4
"""The first damping of systems that are solved inexactly. Such steps leave the soft modes alone and so meet what
the model predicts, however little it is damped; their damping falls no faster than after long steps either (Ladybug
49-7776 after 30 steps: 13344.31, with the rules of exact steps 13351.63)."""


class Damping(NamedTuple):
    factor: Tensor
    """(batch,) μ."""
    growth: Tensor
    """(batch,) ν, by which the next rejection multiplies μ."""
    scale: Tensor
    """(batch, columns) D², the squared column norms of J, with their larger past."""
    near: Tensor
    """(batch,) Is the step at the start short against the variables?"""
    untried: Tensor
    """(batch,) Is no step taken yet, and the first damping the least?"""


@solver_knowing_words
@dataclass(frozen=True)
class LevenbergMarquardt(Solver):
    """Solves (JᵀJ + μD²) p = −Jᵀr, with D the column norms of J, and steers μ by the ratio of actual to predicted
    decrease.

    μ follows H. B. Nielsen, "Damping parameter in Marquardt's method" (IMM-REP-1999-05): on success
    μ ← μ max(s, 1 − (2ϱ − 1)³), ν ← 2, with s = 1/5 or 1/10; on failure μ ← μν, ν ← 2ν. The scaling is
    Marquardt's in the form of Moré ("The Levenberg–Marquardt algorithm: implementation and theory", 1978): D never
    shrinks, so the method does not depend on the units of the variables and a column that vanishes on the way does not
    set its variable free.

    How nonlinear a problem is shows at its start, by how long a step is against the variables, |Dp| / |Dx|: the first μ
    is 1e-8 where that step is at most a fiftieth, else 1e-4 where that one is at most a tenth, else 1e-2. Where the
    step of 1e-4 is so short (pose graphs, bundle adjustment, fits from a good start), s = 1/10, and D² may shrink
    fourfold in a step.

    Args:
        initial_damping: μ at the start, relative to the squared column norms, instead of the rule above (with inexact
            steps 1e-4).
        max_damping: beyond that μ no step is worth trying: the problem has stalled, or is singular.
        scaling: `"marquardt"` as above, `"identity"` for D = I (Levenberg's form).
        acceleration: bend every step v by the second derivative of the residual along it to v + ½a, a shortened to
            2|Da|/|Dv| of at most this number; 0.75 is customary. None (the default) takes straight steps. Helps in long
            curved valleys; a step costs about twice as much. See `docs/guide/far_starts.md`.
    """

    initial_damping: float | None = None
    max_damping: float = 1e32
    scaling: str = "marquardt"
    acceleration: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_damping is not None and not 0 < self.initial_damping < self.max_damping:
            raise SolverOptionError(
                f"LevenbergMarquardt: needs 0 < initial_damping < max_damping, got {self.initial_damping!r} and "
                f"{self.max_damping!r}."
            )
        if self.acceleration is not None:
            number("LevenbergMarquardt: acceleration", self.acceleration, above=0, error=SolverOptionError)
        one_of("LevenbergMarquardt: scaling", self.scaling, ("marquardt", "identity"), SolverOptionError)

    @property
    def most_acceleration(self) -> float | None:
        return self.acceleration

    def start(self, model: Linearization, linear: LinearSolver, sizes: Tensor) -> Damping:
        scale = self._scale(model, linear)
        factor = torch.full_like(model.cost, self.initial_damping or INEXACT_DAMPING)
        near = torch.ones_like(factor, dtype=torch.bool)
        untried = torch.zeros_like(near)
        if not linear.is_inexact:
            least, middle, most = FIRST_DAMPINGS
            near = self._is_short(model, linear, scale, sizes, middle, SHORT[1])
            if self.initial_damping is None:
                untried = near & self._is_short(model, linear, scale, sizes, least, SHORT[0])
                factor = torch.where(near, torch.full_like(factor, middle), most)
                factor = torch.where(untried, least, factor)
        return Damping(factor.clamp(max=self.max_damping / 2), torch.full_like(factor, 2.0), scale, near, untried)

    def _is_short(
        self, model: Linearization, linear: LinearSolver, scale: Tensor, sizes: Tensor, factor: float, short: float
    ) -> Tensor:
        """(batch,) Is the step of this damping at most that long against the variables, of these squared sizes?"""
        step, solved = linear.solve(model.matrix, model.rhs, factor * scale)
        return solved & ((scale * step * step).sum(-1) <= short**2 * (scale * sizes).sum(-1))

    def _scale(self, model: Linearization, linear: LinearSolver) -> Tensor:
        squared = linear.storage.diagonal(model.matrix)
        if self.scaling == "identity":
            return torch.ones_like(squared)
        # A variable without any influence: its column is zero, and so is its gradient; any positive scale keeps it
        # where it is.
        return torch.where(squared > 0, squared, 1)

    def propose(self, model: Linearization, state: Damping, linear: LinearSolver) -> Proposal:
        damping = state.factor[:, None] * state.scale
        step, solved = linear.solve(model.matrix, model.rhs, damping)
        step = torch.where(solved[:, None], step, torch.nan)
        predicted = 0.5 * (step * (damping * step - model.gradient)).sum(-1)
        return Proposal(step, predicted, solved, state.factor <= RESOLVED, damping)

    def update(
        self,
        state: Damping,
        model: Linearization,
        proposal: Proposal,
        gain: Tensor,
        accepted: Tensor,
        linear: LinearSolver,
    ) -> Damping:
        near = state.near
        least = torch.full_like(gain, SHRINK_FAR)
        least = least if linear.is_inexact else torch.where(near, SHRINK_NEAR, least)
        shrink = torch.maximum(1 - (2 * gain.clamp(max=1e3) - 1) ** 3, least)
        factor = torch.where(accepted, state.factor * shrink, state.factor * state.growth)
        growth = torch.where(accepted, 2.0, state.growth * 2)
        too_bold = state.untried & ~(accepted & (gain >= POOR))
        factor = torch.where(too_bold, FIRST_DAMPINGS[1], factor)
        growth = torch.where(too_bold, 2.0, growth)
        scale = state.scale
        if self.scaling == "marquardt":
            scale = torch.where((accepted & near)[:, None], FORGETTING * scale, scale)
            scale = torch.maximum(scale, linear.storage.diagonal(model.matrix))
        return Damping(factor.clamp(min=1e-32), growth, scale, near, torch.zeros_like(near))

    def exhausted(self, state: Damping) -> Tensor:
        return state.factor > self.max_damping

    def damping(self, state: Damping) -> Tensor:
        return state.factor
