"""Levenberg–Marquardt: Gauss–Newton steps damped in the scaled variables, the damping steered by the gain ratio."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization
from mslsq.solvers.solver import LARGEST_DENSE, RESOLVED, Proposal, Solver, SolverOptionError
from mslsq.validation import one_of

SMALL_SHRINK, LARGE_SHRINK = 0.2, 0.1
"""Least share of the damping that one step leaves, in small and in large systems. Nielsen's third is reached at a gain
of 0.94 already, a tenth only at 0.98, where the model predicts the decrease to two digits: parking-garage takes 10
steps instead of 12. Among 1024 hard fits one is led into a worse minimum by a tenth."""

FORGETTING = 0.25
"""What one step leaves of a large system's memory of longer columns. Never forgetting (Moré) damps a bundle adjustment
for ever by the lengths at its start: 13348.4 instead of 13344.3 after 30 steps. A small system forgets nothing: it
costs a step or none, and without its memory Brown and Dennis's problem takes more than 1000 steps instead of 323."""

SMALL_DAMPING, LARGE_DAMPING = 1e-2, 3e-5
"""The first damping of systems up to `LARGEST_DENSE` columns, and of larger ones. Of 1024 exponential fits whose start
is far from the solution 390 fall into a worse minimum at 1e-3, none at 1e-2; well-posed ones take 6.7 steps instead of
5. In a large graph the softest modes are shorter than the columns by the size of the graph, and damping relative to
columns holds them still: M3500 takes 16 steps at 1e-4, 11 at 3e-5. Below it the first steps of Ladybug fail."""

INEXACT_DAMPING = 1e-4
"""The first damping of large systems that are solved inexactly. Such steps leave the soft modes alone and so meet what
the model predicts, however little it is damped; their damping falls no faster than a small system's either (Ladybug
49-7776 after 30 steps: 13344.31, with the rules of exact steps 13351.63)."""


class Damping(NamedTuple):
    factor: Tensor
    """(batch,) μ."""
    growth: Tensor
    """(batch,) ν, by which the next rejection multiplies μ."""
    scale: Tensor
    """(batch, columns) D², the squared column norms of J, their larger past slowly forgotten."""


@dataclass(frozen=True)
class LevenbergMarquardt(Solver):
    """Solves (JᵀJ + μD²) p = −Jᵀr, with D the column norms of J, and steers μ by the ratio of actual to predicted
    decrease.

    μ follows H. B. Nielsen, "Damping parameter in Marquardt's method" (IMM-REP-1999-05): on success
    μ ← μ max(s, 1 − (2ϱ − 1)³), ν ← 2, with s = 1/5 (in large systems 1/10); on failure μ ← μν, ν ← 2ν. The scaling is
    Marquardt's in the form of Moré ("The Levenberg–Marquardt algorithm: implementation and theory", 1978): D never
    shrinks (in large systems: D² at most fourfold in a step), so the method does not depend on the units of the
    variables and a column that vanishes on the way does not set its variable free.

    Args:
        initial_damping: μ at the start, relative to the squared column norms; by default 1e-2, and 3e-5 where more
            than 300 columns are coupled (1e-4 where steps are inexact).
        max_damping: beyond that μ no step is worth trying: the problem has stalled, or is singular.
        scaling: `"marquardt"` as above, `"identity"` for D = I (Levenberg's form).
    """

    initial_damping: float | None = None
    max_damping: float = 1e32
    scaling: str = "marquardt"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_damping is not None and not 0 < self.initial_damping < self.max_damping:
            raise SolverOptionError(
                f"LevenbergMarquardt: needs 0 < initial_damping < max_damping, got {self.initial_damping!r} and "
                f"{self.max_damping!r}."
            )
        one_of("LevenbergMarquardt: scaling", self.scaling, ("marquardt", "identity"), SolverOptionError)

    def start(self, model: Linearization, linear: LinearSolver, coupled: int) -> Damping:
        scale = self._scale(model, linear)
        factor = torch.full_like(model.cost, self._first(linear, coupled))
        return Damping(factor, torch.full_like(factor, 2.0), scale)

    def _first(self, linear: LinearSolver, coupled: int) -> float:
        """μ at the start."""
        if self.initial_damping is not None:
            return self.initial_damping
        large = INEXACT_DAMPING if linear.is_inexact else LARGE_DAMPING
        return min(large if _is_large(coupled) else SMALL_DAMPING, self.max_damping / 2)

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
        coupled: int,
    ) -> Damping:
        least = LARGE_SHRINK if _is_large(coupled) and not linear.is_inexact else SMALL_SHRINK
        shrink = (1 - (2 * gain.clamp(max=1e3) - 1) ** 3).clamp(min=least)
        factor = torch.where(accepted, state.factor * shrink, state.factor * state.growth)
        growth = torch.where(accepted, 2.0, state.growth * 2)
        scale = state.scale
        if self.scaling == "marquardt":
            if _is_large(coupled):
                scale = torch.where(accepted[:, None], FORGETTING * scale, scale)
            scale = torch.maximum(scale, linear.storage.diagonal(model.matrix))
        return Damping(factor.clamp(min=1e-32), growth, scale)

    def exhausted(self, state: Damping) -> Tensor:
        return state.factor > self.max_damping

    def damping(self, state: Damping) -> Tensor:
        return state.factor


def _is_large(coupled: int) -> bool:
    """Are more columns coupled than in the regressions that the rules for small systems were made for?"""
    return coupled > LARGEST_DENSE
