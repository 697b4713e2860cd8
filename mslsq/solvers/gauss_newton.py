"""Gauss–Newton with backtracking: full steps where they help, halved ones where they do not."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.elsewhere.calls import solver_knowing_words
from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization
from mslsq.solvers.solver import Proposal, Solver


class StepLength(NamedTuple):
    length: Tensor
    """(batch,) the share of the Gauss–Newton step that is tried."""


@solver_knowing_words
@dataclass(frozen=True)
class GaussNewton(Solver):
    """Solves JᵀJ p = −Jᵀr and moves by t·p, t = 1 unless that raises the cost.

    A step that raises the cost, or leads to a residual that is not finite, is tried again at half its length
    (Armijo's rule with the model's own prediction; Nocedal & Wright, Numerical Optimization, 10.3); after a success
    the length doubles, up to 1. A singular JᵀJ ends the problem with `Status.SINGULAR`.
    """

    def start(self, model: Linearization, linear: LinearSolver, sizes: Tensor) -> StepLength:
        return StepLength(torch.ones_like(model.cost))

    def propose(self, model: Linearization, state: StepLength, linear: LinearSolver) -> Proposal:
        full, solved = linear.solve(model.matrix, model.rhs, None)
        full = torch.where(solved[:, None], full, torch.nan)
        t = state.length
        predicted = -(t - 0.5 * t * t) * (model.gradient * full).sum(-1)
        return Proposal(t[:, None] * full, predicted, solved, t >= 1, torch.zeros_like(full))

    def update(
        self,
        state: StepLength,
        model: Linearization,
        proposal: Proposal,
        gain: Tensor,
        accepted: Tensor,
        linear: LinearSolver,
    ) -> StepLength:
        return StepLength(torch.where(accepted, (2 * state.length).clamp(max=1), 0.5 * state.length))

    @property
    def needs_regular(self) -> bool:
        return True

    def exhausted(self, state: StepLength) -> Tensor:
        return state.length < 1e-12

    def damping(self, state: StepLength) -> Tensor:
        return torch.zeros_like(state.length)
