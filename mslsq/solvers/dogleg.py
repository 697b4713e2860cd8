"""Powell's dogleg: inside a trust region, from the steepest descent towards the Gauss–Newton step."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.elsewhere.calls import solver_knowing_words
from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization
from mslsq.solvers.solver import Proposal, Solver, SolverOptionError, quotient
from mslsq.validation import number


class TrustRegion(NamedTuple):
    radius: Tensor
    """(batch,) in the scaled variables."""
    scale: Tensor
    """(batch, columns) D², the largest squared column norms of J so far."""
    regularization: Tensor
    """(batch,) relative damping of the Gauss–Newton system, above its floor only where that could not be solved."""


FLOOR = 1e-15
"""Relative damping that every Gauss–Newton system carries: below rounding, yet a vanishing column does not break the
factorisation."""


@solver_knowing_words
@dataclass(frozen=True)
class Dogleg(Solver):
    """The step of length at most the radius on the path origin → Cauchy point → Gauss–Newton point, in variables
    scaled by D.

    M. J. D. Powell, "A hybrid method for nonlinear equations" (1970); radius rules of Nocedal & Wright, Algorithm
    4.1. Where JᵀJ is singular the Gauss–Newton point is that of a slightly damped system, or the Cauchy point alone.

    Args:
        initial_radius: at the start, in the scaled variables D x, that is in units of the residual.
    """

    initial_radius: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        number("Dogleg: initial_radius", self.initial_radius, above=0, most=math.inf, error=SolverOptionError)

    def start(self, model: Linearization, linear: LinearSolver, sizes: Tensor) -> TrustRegion:
        squared = linear.storage.diagonal(model.matrix)
        radius = torch.full_like(model.cost, self.initial_radius)
        return TrustRegion(radius, torch.where(squared > 0, squared, 1), torch.full_like(radius, FLOOR))

    def propose(self, model: Linearization, state: TrustRegion, linear: LinearSolver) -> Proposal:
        damping = state.regularization[:, None] * state.scale
        newton, solved = linear.solve(model.matrix, model.rhs, damping)
        newton = torch.where(solved[:, None], newton, 0)
        # Steepest descent in the scaled variables: the direction D⁻²g, minimised along by the model.
        descent = -model.gradient / state.scale
        slope = -(model.gradient * descent).sum(-1)
        cauchy = quotient(slope, linear.storage.quadratic(model.matrix, descent))[:, None] * descent

        step = self._path(newton, cauchy, solved, state)
        predicted = -(model.gradient * step).sum(-1) - 0.5 * linear.storage.quadratic(model.matrix, step)
        inside = solved & (_scaled_norm(newton, state.scale) <= state.radius)
        return Proposal(step, predicted, solved, inside, damping)

    @staticmethod
    def _path(newton: Tensor, cauchy: Tensor, solved: Tensor, state: TrustRegion) -> Tensor:
        """The point of the dogleg path at the radius, or its end."""
        radius, scale = state.radius, state.scale
        cauchy_norm = _scaled_norm(cauchy, scale)
        shortened = cauchy * quotient(radius, cauchy_norm).clamp(max=1)[:, None]
        # Second leg: |cauchy + t (newton - cauchy)|² = radius², the root in [0, 1] in its stable form.
        leg = newton - cauchy
        a = (scale * leg * leg).sum(-1)
        b = (scale * cauchy * leg).sum(-1)
        c = (radius * radius - cauchy_norm * cauchy_norm).clamp(min=0)
        root = (b * b + a * c).clamp(min=0).sqrt()
        t = torch.where(b > 0, quotient(c, b + root), quotient(root - b, a)).clamp(0, 1)
        second = cauchy + t[:, None] * leg
        return torch.where((solved & (cauchy_norm < radius))[:, None], second, shortened)

    def update(
        self,
        state: TrustRegion,
        model: Linearization,
        proposal: Proposal,
        gain: Tensor,
        accepted: Tensor,
        linear: LinearSolver,
    ) -> TrustRegion:
        length = _scaled_norm(proposal.step, state.scale)
        at_border = length >= 0.99 * state.radius
        radius = torch.where((gain > 0.75) & at_border, 2 * state.radius, state.radius)
        radius = torch.where(accepted & (gain >= 0.25), radius, torch.minimum(0.25 * length, 0.25 * state.radius))
        radius = torch.where(torch.isfinite(radius), radius, 0.25 * state.radius)
        scale = torch.maximum(state.scale, linear.storage.diagonal(model.matrix))
        scale = scale if proposal.beyond is None else torch.maximum(scale, proposal.beyond)
        # Raised tenfold for the next attempt where the factorisation failed, lowered tenfold where it did not.
        regularization = torch.where(proposal.solved, 0.1 * state.regularization, 10 * state.regularization)
        return TrustRegion(radius, scale, regularization.clamp(FLOOR, 1e-3))

    def exhausted(self, state: TrustRegion) -> Tensor:
        return state.radius < 1e-32

    def damping(self, state: TrustRegion) -> Tensor:
        return state.radius


def _scaled_norm(step: Tensor, scale: Tensor) -> Tensor:
    return (scale * step * step).sum(-1).sqrt()
