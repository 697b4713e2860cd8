"""One step for a whole batch, as a pure function of tensors: propose, evaluate, accept, update, judge.

Each problem of the batch has its own damping, its own acceptance and its own reason for stopping. A problem that has
stopped does not move; one that is singular or not finite never touches its neighbours, because nothing here mixes
entries of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.remembering import Remembering, Solved
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.solution import Status
from mslsq.solvers.acceleration import Pulled, accelerated
from mslsq.solvers.box import Box, moved_by, with_projected_gradient
from mslsq.solvers.forcing import first_accuracy, next_accuracy
from mslsq.solvers.solver import RESOLVED, MethodState, Proposal, Solver, quotient
from mslsq.solvers.stationarity import (
    gradient_floor,
    gradient_met,
    has_squares,
    is_hidden,
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


STATUS, NUM_STEPS, NUM_EVALUATIONS = -6, -5, -4
"""Places in `State.flat`, of a state without bounds."""


class State(NamedTuple):
    """Everything that a step reads and writes."""

    values: Values
    model: Linearization
    method: MethodState
    status: Int[Tensor, "batch"]
    num_steps: Int[Tensor, "batch"]
    num_evaluations: Int[Tensor, "batch"]
    accuracy: Float[Tensor, "batch"]
    """The relative residual asked of the next linear solve; moves only where that iterates."""
    start_sizes: Float[Tensor, "batch columns"]
    """How large the variables were at the start, squared; stays."""
    start_reach: Float[Tensor, "batch columns"]
    """How large a residual each of them made there alone, |Jᵢ|²xᵢ²; stays."""
    box: Box | tuple[()]
    """Bounds of the variables; stays."""

    def flat(self) -> list[Tensor]:
        """The tensors in the order of the pytree, at a tenth of its cost."""
        return [*self.values, *self.model, *self.method, self.status, *self[-6:-1], *self.box]

    def like(self, tensors: list[Tensor]) -> "State":
        """The state of these tensors, in the order of `flat`."""
        model = len(self.values)
        method = model + len(self.model)
        rest = method + len(self.method)
        box = len(tensors) - len(self.box)
        return State(
            tuple(tensors[:model]),
            Linearization(*tensors[model:method]),
            type(self.method)(*tensors[method:rest]),
            *tensors[rest:box],
            box=Box(*tensors[box:]) if self.box else (),
        )


class Record(NamedTuple):
    """What the history keeps of a step, per problem."""

    cost: Float[Tensor, "batch"]
    gradient_norm: Float[Tensor, "batch"]
    step_norm: Float[Tensor, "batch"]
    damping: Float[Tensor, "batch"]
    accepted: Bool[Tensor, "batch"]


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


@dataclass(frozen=True)
class Step:
    """The step of a solver on a linearized system."""

    solver: Solver
    linearizer: Linearizer
    linearize: Callable[[Values, TermInputs], Linearization]
    """The linearizer's, or a graph of it."""
    asks: bool = False
    """May a step read its numbers? Not where it is recorded, and not on a device, which it would wait for."""
    pulled: Pulled | None = None
    """What bends steps; None where they are straight."""
    first: list[Solved] = field(default_factory=list)
    """The system that the start has solved last: the first step may be the same."""

    @property
    def linear(self) -> LinearSolver:
        return self.linearizer.linear_solver

    def start(self, values: Values, inputs: TermInputs, box: Box | tuple[()] = ()) -> tuple[State, Record]:
        """The state at the start, already judged: a start may be a minimum, or not finite."""
        model = self._linearized(values, inputs, box)
        squared_norms = self.linear.storage.diagonal(model.matrix)
        finite = torch.isfinite(model.cost) & torch.isfinite(model.gradient + squared_norms).all(-1)
        gradient_norm = _largest(model.gradient)
        scale = scales(squared_norms)
        sizes = squared_sizes(self.linearizer, values)
        method = self.solver.start(model, self._remembering(self.linear), sizes)
        length = squared_length(model.gradient, scale)
        floor = gradient_floor(self.solver, self.linear, model.matrix, sizes, length, model.cost, self.asks)
        met = gradient_met(self.solver, model.gradient, gradient_norm, length, model.cost, floor)
        met = met & ~is_hidden(self.solver, model.gradient, squared_norms)
        status = torch.where(met, int(Status.GRADIENT_TOLERANCE), int(Status.RUNNING))
        status = torch.where(finite, status, int(Status.NON_FINITE))
        status, *agreed = self.linearizer.ranks.agreed((status, *method))
        method = type(method)(*agreed)
        zeros = torch.zeros_like(status)
        accuracy = first_accuracy(model.cost)
        state = State(
            values, model, method, status, zeros, torch.ones_like(status), accuracy, sizes, scale * sizes, box
        )
        return state, Record(
            model.cost,
            gradient_norm,
            torch.zeros_like(model.cost),
            self.solver.damping(method),
            torch.zeros_like(finite),
        )

    def __call__(self, state: State, inputs: TermInputs, wary: bool = False) -> tuple[State, Record]:
        """The state after one more step of every problem that is still running.

        `wary` looks at the cost of the trial points first, and linearizes there only if a problem may accept its own.
        """
        running = state.status == Status.RUNNING
        proposal, values = self._proposed(state, inputs)
        model = self._trial(state, values, inputs, proposal) if wary else self._linearized(values, inputs, state.box)
        verdict = self._compare(state, model, proposal, running)
        proposal, values, verdict = self._agreed(proposal, values, verdict)
        keeps = self._selection(verdict.accepted)
        kept = Linearization(*map(keeps, model, state.model))
        method = self.solver.update(state.method, kept, proposal, verdict.gain, verdict.accepted, self.linear)
        method = type(method)(*map(self._selection(running), method, state.method))
        step_norm = torch.linalg.vector_norm(proposal.step, dim=-1)
        gradient_norm = _largest(kept.gradient)
        judged = self._judge(state, kept, method, proposal, verdict, step_norm, gradient_norm)
        judged, *agreed = self.linearizer.ranks.agreed((judged, *method))
        method = type(method)(*agreed)
        count = running.to(torch.int64)
        after = State(
            tuple(map(keeps, values, state.values)),
            kept,
            method,
            torch.where(running, judged, state.status),
            state.num_steps + count,
            state.num_evaluations + count,
            self._next_accuracy(state, kept, verdict.accepted),
            state.start_sizes,
            state.start_reach,
            state.box,
        )
        return after, Record(kept.cost, gradient_norm, step_norm, self.solver.damping(method), verdict.accepted)

    def _agreed(self, proposal: Proposal, values: Values, verdict: Verdict) -> tuple[Proposal, Values, Verdict]:
        """What the first of several ranks found, in the place of what each of them did."""
        ranks = self.linearizer.ranks
        if ranks.is_alone:
            return proposal, values, verdict
        assert proposal.lands is proposal.worth is None  # there are no bounds, and steps are straight
        own = [proposal.step, proposal.predicted, proposal.solved, proposal.resolved, proposal.damping]
        parts = (own, list(values), list(verdict))
        found = iter(ranks.agreed([tensor for part in parts for tensor in part]))
        step, moved, judged = ([next(found) for _ in part] for part in parts)
        return Proposal(*step), tuple(moved), Verdict(*judged)

    def _linearized(self, values: Values, inputs: TermInputs, box: Box | tuple[()]) -> Linearization:
        """The linearization, its gradient without what bounds hold."""
        model = self.linearize(values, inputs)
        return with_projected_gradient(self.linearizer, model, values, box) if box else model

    def _proposed(self, state: State, inputs: TermInputs) -> tuple[Proposal, Values]:
        """The method's step, within the bounds, and where it leads to."""
        linear, most = self.linear.to_accuracy(state.accuracy), self.solver.most_acceleration
        if self.asks and self.first:
            linear = Remembering(linear, [self.first.pop()])
        proposal, values = moved_by(
            self.solver, self.linearizer, state.model, state.method, linear, state.values, state.box, self.asks
        )
        if most is None or self.pulled is None:
            return proposal, values
        wanted = None if self.solver.bends_always else self.solver.creeping(state.method)
        at = self.linearizer, state.model, linear, state.values, inputs, state.box
        return accelerated(proposal, values, most, wanted, self.pulled, *at)

    def _remembering(self, linear: LinearSolver) -> LinearSolver:
        """A solver by which the first step need not be solved for again, where numbers may be read."""
        is_of_library = type(self.solver).__module__.startswith(f"{__package__}.")
        return Remembering(linear, self.first) if self.asks and is_of_library and not linear.iterates else linear

    def _next_accuracy(self, state: State, kept: Linearization, accepted: Tensor) -> Float[Tensor, "batch"]:
        if not self.linear.is_inexact:
            return state.accuracy
        squared = self.linear.storage.diagonal(state.model.matrix)
        squared = torch.where(squared > 0, squared, 1)
        before, after = ((model.gradient**2 / squared).sum(-1) for model in (state.model, kept))
        return next_accuracy(state.accuracy, before, after, accepted)

    def _selection(self, mask: Bool[Tensor, "batch"]) -> Callable[[Tensor, Tensor], Tensor]:
        """The choice of a new tensor for the problems in the mask, of the old one for the others."""
        if self.asks and len(mask) == 1:
            chosen = bool(mask)  # no copy of a million numbers: 2 ms of a bundle adjustment's step
            return lambda new, old: new if chosen else old
        return lambda new, old: torch.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    def _trial(self, state: State, values: Values, inputs: TermInputs, proposal: Proposal) -> Linearization:
        """The model at the trial points; where all are worse, the old one with the new cost will do to reject them."""
        cost = self.linearizer.cost(values, inputs)
        _, level, descends = _by_cost(state, cost, proposal)
        if bool((torch.isfinite(cost) & (level | descends)).any()):
            return self._linearized(values, inputs, state.box)
        return state.model._replace(cost=cost)

    def _compare(self, state: State, model: Linearization, proposal: Proposal, running: Tensor) -> Verdict:
        """Is the trial point better?"""
        decrease, level, descends = _by_cost(state, model.cost, proposal)
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
        sound = (after >= COLLAPSE**2 * before).all(-1)
        if proposal.lands is not None:  # a variable may well take the influence of another with it onto its bound
            sound = sound | proposal.lands
        sound = finite & sound
        accepted = running & sound & torch.where(level, better, descends)
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
        )

    def _resolved(
        self, model: Linearization, proposal: Proposal, squared_norms: Float[Tensor, "batch columns"]
    ) -> Bool[Tensor, "batch"]:
        """Damping that is little to all other columns holds one still whose length is all but gone (a variable at a
        saddle, or at the middle of a symmetric problem): its share of the promise must be nothing too."""
        scale = scales(squared_norms)
        held = proposal.damping > 2 * RESOLVED * scale
        left = torch.where(held, model.gradient / scale * model.gradient, 0).sum(-1)
        return proposal.resolved & (left <= share(self.solver, model.cost.dtype) * 2 * model.cost)

    def _judge(
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
        `xtol` where the cost is its own rounding (ranges to far landmarks, as many as unknowns). Then the current point
        is the minimum. A step that damping or radius has made short proves nothing by its length: the gradient must
        agree."""
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
        arrived = accepted | (verdict.resolved & verdict.finite)
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
        seen = ~is_hidden(solver, kept.gradient, squared_norms)
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


def _by_cost(state: State, cost: Float[Tensor, "batch"], proposal: Proposal) -> tuple[Tensor, Tensor, Tensor]:
    """The decrease of the cost, whether it is too small to tell, and whether it is a success."""
    decrease = state.model.cost - cost
    rounding = LEVEL * torch.finfo(cost.dtype).eps * state.model.cost
    # A step that bounds cut off may be promised to raise the cost: by much, that is no level.
    level = (decrease.abs() <= rounding) & (proposal.predicted.abs() <= rounding)
    descends = (decrease > SUFFICIENT * proposal.predicted) & (proposal.predicted > 0)
    return decrease, level, descends


def _largest(gradient: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch"]:
    """The infinity norm; 0 for a system without columns."""
    return gradient.abs().amax(-1) if gradient.shape[-1] else gradient.sum(-1)
