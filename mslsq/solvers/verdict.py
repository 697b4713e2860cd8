"""How a trial point compares with the current one, and what follows: is it accepted, has the solve ended?"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization, Linearizer
from mslsq.solution import Status
from mslsq.solvers.solver import RESOLVED, MethodState, Proposal, Solver, quotient
from mslsq.solvers.state import State
from mslsq.solvers.stationarity import (
    gradient_floor,
    gradient_met,
    has_run_away,
    has_squares,
    is_hidden,
    known_at_start,
    nearly_stationary,
    rests_at_zero,
    scales,
    share,
    squared_length,
    squared_sizes,
    with_start,
)

SUFFICIENT = 1e-4
"""Least share of the predicted decrease that makes a step a success (MINPACK's and SciPy's)."""

LEVEL = 4096.0
"""Costs that differ by less than this many units in the last place (1e-12 in float64) cannot be told apart with
certainty: the residuals themselves are differences of larger numbers, of data and model 10 to 1000 times their size."""

NOTHING = 8.0
"""A predicted decrease below this many units in the last place of the cost is none."""

COLLAPSE = 1e-2
"""A step across which the length of a column of J falls below this share has left the region where the linear model
means anything: it is taken for a failure, however good its cost. (Onto a plateau where a variable has lost all
influence, "parameter evaporation", the cost ratio is often near 1; NIST's BoxBOD from its far start is lost without
this rule.)"""


BEYOND = 1e3
"""A step after which a column of J is this many times as long, and makes this many times the residual of the start of
what its variable has moved by, has gone beyond what the old length tells: along a column that was rounding (the angle
of an ellipse that begins as a circle, 6e12 rad), or all but zero (the phase of an amplitude that begins at 1e-14). It
is taken back, and the column scaled by its new length from then on, by which its variable waits for the others. No unit
matters. Columns that are alike make as much of long steps by which they cancel each other, at the same length: those
are no such steps."""


class Verdict(NamedTuple):
    """How a trial point compares with the current one, per problem."""

    gain: Float[Tensor, "batch"]
    """Actual over predicted decrease."""
    decrease: Float[Tensor, "batch"]
    accepted: Bool[Tensor, "batch"]
    resolved: Bool[Tensor, "batch"]
    """Was it all but the full Gauss–Newton step, in every column that has something to gain?"""
    level: Bool[Tensor, "batch"]
    """Are actual and predicted decrease both below what the cost can tell?"""
    finite: Bool[Tensor, "batch"]
    length: Float[Tensor, "batch"]
    """|D⁻¹g|² at the trial point, in the variables scaled by the columns' lengths D."""
    least_length: Float[Tensor, "batch"]
    """The same, or that of the current point where that is smaller."""
    scale: Float[Tensor, "batch columns"]
    """D²."""
    beyond: Float[Tensor, "batch columns"] | None
    """Of the columns along which a step, good otherwise, went too far (`BEYOND`) their squared lengths at its end, else
    zero. None of a method that has no scale to hold them by."""


@dataclass(frozen=True)
class Judge:
    """Compares points, and tells how a solve has ended, by the tolerances of its solver."""

    solver: Solver
    linearizer: Linearizer
    asks: bool
    """May it read numbers?"""

    @property
    def linear(self) -> LinearSolver:
        return self.linearizer.linear_solver

    def compare(
        self,
        state: State,
        model: Linearization,
        proposal: Proposal,
        running: Tensor,
        idle: Bool[Tensor, "batch columns"] | None = None,
    ) -> Verdict:
        """Is the trial point better? The lengths of `idle` columns, which are rounding, do not count."""
        decrease, level, descends = by_cost(state, model.cost, proposal)
        before = self.linear.storage.diagonal(state.model.matrix)
        after = self.linear.storage.diagonal(model.matrix)
        finite = (
            torch.isfinite(model.cost)
            & torch.isfinite(model.gradient + after).all(-1)
            & torch.isfinite(proposal.predicted)
        )
        # Where the cost cannot tell, its gradient decides: this is where the last five digits of a regression come
        # from.
        scale = scales(torch.maximum(before, after))
        length = squared_length(model.gradient, scale)
        old_length = squared_length(state.model.gradient, scale)
        better = length < old_length
        sound = after >= COLLAPSE**2 * before
        sound = (sound if idle is None else sound | idle).all(-1)
        if proposal.lands is not None:  # a variable may well take the influence of another with it onto its bound
            sound = sound | proposal.lands
        sound = finite & sound
        accepted = running & sound & torch.where(level, better, descends)
        beyond = None
        if not self.solver.needs_regular:
            beyond = self._beyond(state, proposal, before, after, accepted)
            fits = ~(beyond > 0).any(-1)
            sound, accepted = sound & fits, accepted & fits
        gain = torch.where(level, 1.0, quotient(decrease, proposal.predicted)).to(decrease.dtype)
        return Verdict(
            torch.where(sound, gain, 0),
            decrease,
            accepted,
            self._resolved(state.model, proposal, before),
            level,
            finite,
            length,
            torch.minimum(length, old_length),
            scale,
            beyond,
        )

    @staticmethod
    def _beyond(
        state: State,
        proposal: Proposal,
        before: Float[Tensor, "batch columns"],
        after: Float[Tensor, "batch columns"],
        accepted: Bool[Tensor, "batch"],
    ) -> Float[Tensor, "batch columns"]:
        """As `Verdict.beyond`."""
        known = known_at_start(state.start_cost, state.start_reach)
        # in this order: of a step of 1e160 (float32: 1e20) the square is infinite
        far = after * proposal.step * proposal.step * BEYOND**-2 > known[:, None]
        far = far & (after * BEYOND**-2 > before)
        return torch.where(far & accepted[:, None], after, 0)

    def _resolved(
        self, model: Linearization, proposal: Proposal, squared_norms: Float[Tensor, "batch columns"]
    ) -> Bool[Tensor, "batch"]:
        """Damping that is little to all other columns holds one still whose length is all but gone (a variable at a
        saddle, or at the middle of a symmetric problem): its share of the promise must be nothing too."""
        scale = scales(squared_norms)
        held = proposal.damping > 2 * RESOLVED * scale
        left = torch.where(held, model.gradient / scale * model.gradient, 0).sum(-1)
        return proposal.resolved & (left <= share(self.solver, model.cost.dtype) * 2 * model.cost)

    def status(
        self,
        state: State,
        kept: Linearization,
        method: MethodState,
        proposal: Proposal,
        verdict: Verdict,
        step_norm: Tensor,
        gradient_norm: Tensor,
    ) -> Int[Tensor, "batch"]:
        """The status of every running problem after the step. Only an accepted step can meet a tolerance, with two
        exceptions: a Gauss–Newton step that the cost cannot tell from no step at all, and one that is shorter than
        `xtol` where the cost, or what the step promises, is rounding (ranges to far landmarks, as many as unknowns).
        Then the current point is the minimum. A step that damping or radius has made short proves nothing by its
        length: the gradient must agree."""
        eps = torch.finfo(step_norm.dtype).eps
        solver, accepted = self.solver, verdict.accepted
        size = torch.stack([(x * x).sum((1, 2)) for x in state.values]).sum(0).sqrt()
        ftol = max(solver.ftol, eps) if solver.ftol > 0 else -1.0
        xtol = max(solver.xtol, eps) if solver.xtol > 0 else 0.0
        sizes = squared_sizes(self.linearizer, state.values)
        squared_norms = self.linear.storage.diagonal(kept.matrix)
        sizes = with_start(sizes, state.start_sizes, state.start_reach, squared_norms)
        floor = gradient_floor(solver, self.linear, kept.matrix, sizes, verdict.least_length, kept.cost, self.asks)
        stationary = nearly_stationary(solver, kept.gradient, verdict.least_length, kept.cost, floor)
        promised = proposal.predicted <= 4 * ftol * state.model.cost
        small = verdict.decrease <= ftol * state.model.cost
        unmoved = verdict.level & verdict.resolved & verdict.finite
        believed = accepted & small & (verdict.gain > 0.25) & (stationary | verdict.resolved)
        cost_met = promised & (believed | (unmoved & ~accepted)) & has_squares(kept.cost, kept.gradient)
        # A promise of more than rounding that is not kept is no end: the linear model means nothing there.
        rounding = kept.cost <= (LEVEL * eps) ** 2 * (squared_norms * sizes).sum(-1)
        rounding = rounding | (proposal.predicted <= LEVEL * eps * state.model.cost)
        arrived = accepted | (verdict.resolved & verdict.finite & rounding)
        step_met = arrived & stationary & (step_norm < xtol * (xtol + size))  # strictly: zero is never met
        flat = accepted & gradient_met(solver, kept.gradient, gradient_norm, verdict.length, kept.cost, floor)
        tiny = step_norm <= eps * (eps + size)
        nothing = verdict.level & (proposal.predicted <= NOTHING * eps * state.model.cost)
        stuck = ~accepted & verdict.finite & (nothing | tiny)
        given_up = self.solver.exhausted(method) & ~accepted
        why = torch.where(proposal.solved, int(Status.STALLED), int(Status.SINGULAR))
        why = torch.where(proposal.solved & ~verdict.finite, int(Status.NON_FINITE), why)
        rests = rests_at_zero(solver, kept.gradient, kept.cost, verdict.scale)
        flat = flat | ((stuck | given_up) & proposal.solved & rests)
        away = has_run_away(state.start_cost, floor, state.start_reach)
        seen = ~(is_hidden(solver, kept.gradient, squared_norms) | away)
        if solver.needs_regular:
            given_up = given_up | ~proposal.solved
        status = torch.full_like(state.status, int(Status.RUNNING))
        for condition, value in (
            (stuck, int(Status.STALLED)),
            (given_up, why),
            (step_met & seen, int(Status.STEP_TOLERANCE)),
            (cost_met & seen, int(Status.COST_TOLERANCE)),
            (flat & seen, int(Status.GRADIENT_TOLERANCE)),
        ):
            status = torch.where(condition, value, status)
        return status


def by_cost(state: State, cost: Float[Tensor, "batch"], proposal: Proposal) -> tuple[Tensor, Tensor, Tensor]:
    """The decrease of the cost, whether it is too small to tell, and whether it is a success."""
    decrease = state.model.cost - cost
    rounding = LEVEL * torch.finfo(cost.dtype).eps * state.model.cost
    # A step that bounds cut off may be promised to raise the cost: by much, that is no level.
    level = (decrease.abs() <= rounding) & (proposal.predicted.abs() <= rounding)
    descends = (decrease > SUFFICIENT * proposal.predicted) & (proposal.predicted > 0)
    return decrease, level, descends
