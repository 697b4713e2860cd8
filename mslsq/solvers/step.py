"""One step for a whole batch, as a pure function of tensors: propose, evaluate, accept, update, judge.

Each problem of the batch has its own damping, its own acceptance and its own reason for stopping. A problem that has
stopped does not move; one that is singular or not finite never touches its neighbours, because nothing here mixes
entries of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.remembering import Remembering, Solved
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.solution import Status
from mslsq.solvers.acceleration import Pulled, accelerated
from mslsq.solvers.box import Box, moved_by, with_projected_gradient
from mslsq.solvers.forcing import first_accuracy, next_accuracy
from mslsq.solvers.solver import MethodState, Proposal, Solver
from mslsq.solvers.state import Record, State
from mslsq.solvers.stationarity import (
    gradient_floor,
    gradient_met,
    is_hidden,
    scales,
    squared_length,
    squared_sizes,
    storage_sizes,
)
from mslsq.solvers.turning import holding, idle_turns, without_gradient
from mslsq.solvers.verdict import Judge, Verdict, by_cost


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

    @property
    def _judge(self) -> Judge:
        return Judge(self.solver, self.linearizer, self.asks)

    def start(self, values: Values, inputs: TermInputs, box: Box | tuple[()] = ()) -> tuple[State, Record]:
        """The state at the start, already judged: a start may be a minimum, or not finite."""
        model = self._linearized(values, inputs, box)
        squared_norms = self.linear.storage.diagonal(model.matrix)
        finite = torch.isfinite(model.cost) & torch.isfinite(model.gradient + squared_norms).all(-1)
        gradient_norm = _largest(model.gradient)
        scale = scales(squared_norms)
        sizes = squared_sizes(self.linearizer, values)
        idle = self._idle(model, values)
        model = without_gradient(model, idle)
        method = self.solver.start(
            model, holding(self._remembering(self.linear), idle), storage_sizes(self.linearizer, values)
        )
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
        ones, reach = torch.ones_like(status), scale * sizes
        state = State(values, model, method, status, zeros, ones, accuracy, sizes, reach, model.cost, box)
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
        idle = self._idle(state.model, state.values)
        proposal, values = self._proposed(state, inputs, idle)
        model = self._trial(state, values, inputs, proposal) if wary else self._linearized(values, inputs, state.box)
        model = without_gradient(model, self._idle(model, values))
        verdict = self._judge.compare(state, model, proposal, running, idle)
        proposal = proposal._replace(beyond=verdict.beyond)
        keeps = self._selection(verdict.accepted)
        kept = Linearization(*map(keeps, model, state.model))
        method = self.solver.update(state.method, kept, proposal, verdict.gain, verdict.accepted, self.linear)
        method = type(method)(*map(self._selection(running), method, state.method))
        step_norm = torch.linalg.vector_norm(proposal.step, dim=-1)
        gradient_norm = _largest(kept.gradient)
        judged = self._judge.status(state, kept, method, proposal, verdict, step_norm, gradient_norm)
        if not self.linearizer.ranks.is_alone:
            verdict, judged, step_norm, method, values = self._agreed(verdict, judged, step_norm, method, values)
            keeps = self._selection(verdict.accepted)
            kept = Linearization(*map(keeps, model, state.model))
            gradient_norm = _largest(kept.gradient)
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
            state.start_cost,
            state.box,
        )
        return after, Record(kept.cost, gradient_norm, step_norm, self.solver.damping(method), verdict.accepted)

    def _agreed(
        self, verdict: Verdict, judged: Tensor, step_norm: Tensor, method: MethodState, values: Values
    ) -> tuple[Verdict, Tensor, Tensor, MethodState, Values]:
        """What the first of several ranks has come to, in the place of what each of them has: all that another step
        depends on, in one message."""
        parts = [verdict.accepted, judged, step_norm], list(method), list(values)
        found = iter(self.linearizer.ranks.agreed([tensor for part in parts for tensor in part]))
        (accepted, judged, step_norm), of_method, moved = ([next(found) for _ in part] for part in parts)
        return verdict._replace(accepted=accepted), judged, step_norm, type(method)(*of_method), tuple(moved)

    def _linearized(self, values: Values, inputs: TermInputs, box: Box | tuple[()]) -> Linearization:
        """The linearization, its gradient without what bounds hold."""
        model = self.linearize(values, inputs)
        return with_projected_gradient(self.linearizer, model, values, box) if box else model

    def _proposed(
        self, state: State, inputs: TermInputs, idle: Bool[Tensor, "batch columns"] | None
    ) -> tuple[Proposal, Values]:
        """The method's step, within the bounds and without idle turns, and where it leads to."""
        linear, most = self.linear.to_accuracy(state.accuracy), self.solver.most_acceleration
        if self.asks and self.first:
            linear = Remembering(linear, [self.first.pop()])
        linear = holding(linear, idle)
        proposal, values = moved_by(
            self.solver, self.linearizer, state.model, state.method, linear, state.values, state.box, self.asks
        )
        if most is None or self.pulled is None:
            return proposal, values
        wanted = None if self.solver.bends_always else self.solver.creeping(state.method)
        at = self.linearizer, state.model, linear, state.values, inputs, state.box
        return accelerated(proposal, values, most, wanted, self.pulled, *at)

    def _idle(self, model: Linearization, values: Values) -> Bool[Tensor, "batch columns"] | None:
        return idle_turns(self.linearizer, model.matrix, values, self.asks)

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
        _, level, descends = by_cost(state, cost, proposal)
        if bool((torch.isfinite(cost) & (level | descends)).any()):
            return self._linearized(values, inputs, state.box)
        return state.model._replace(cost=cost)


def _largest(gradient: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch"]:
    """The infinity norm; 0 for a system without columns."""
    return gradient.abs().amax(-1) if gradient.shape[-1] else gradient.sum(-1)
