"""The rounds of the augmented Lagrangian: minimise, correct multipliers and penalties, until constraints are met."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.problem.system import Inputs
from mslsq.solution import Status
from mslsq.solvers.augmented_lagrangian import AugmentedLagrangian
from mslsq.solvers.constraint_terms import ConstraintTerms, PerRow, chosen, without_constraints
from mslsq.solvers.feasibility import first_penalties, is_stationary, largest_violation
from mslsq.solvers.lagrangian_newton import Improvement, NewtonEnd
from mslsq.solvers.merging import merged
from mslsq.solvers.outer import Clock, Findings, OuterLoop, is_taken_for_granted
from mslsq.solvers.planning import planned
from mslsq.solvers.report import StepInfo
from mslsq.solvers.run import Outcome, run
from mslsq.solvers.task import Pinned, Task
from mslsq.tracing.graph import TRANSFORM_LOCK

GROWTH = 10.0
"""By how much a penalty grows at once..."""

ENOUGH = 0.25
"""... where a round leaves more than this share of the violation."""

LITTLE = 0.9
"""A round that leaves more than this share of the violation is stuck."""

STUCK = 4
"""After that many of them in a row the gradient of the violation is looked at..."""

HOPELESS = 8
"""... and after that many it is not needed: their minima, with penalties that have grown each time, are all as far from
the constraints."""

EXACT = 1e-4
"""A share of the tolerance that is as good as nothing."""

WAITS = 2
"""A round may stop for want of precision, not by a tolerance: with the next multipliers it may not."""


@dataclass(frozen=True, eq=False)
class State:
    """Between two rounds."""

    values: Values
    multipliers: dict[int, PerRow]
    penalties: dict[int, Float[Tensor, "batch"]]
    measures: dict[int, Float[Tensor, "batch"]]
    """By how much a constraint, or its complementarity, was missed: |λ after − λ before|/ρ."""
    violation: Float[Tensor, "batch"]
    status: Int[Tensor, "batch"]
    """RUNNING until a problem is done."""
    num_steps: Int[Tensor, "batch"]
    num_evaluations: Int[Tensor, "batch"]
    stuck: Int[Tensor, "batch"]
    stalled: Int[Tensor, "batch"]
    outcome: Outcome | None = None
    """Of every problem that of its last round, which was solved with..."""
    given: tuple[dict[str, Tensor], ...] = ()
    """... these inputs."""

    @property
    def running(self) -> Bool[Tensor, "batch"]:
        return self.status == Status.RUNNING


NOT_RUNNING = -1
"""In the place of the steps of a problem that is done."""


@dataclass(frozen=True, eq=False)
class MultiplierRounds(OuterLoop):
    """The outer loop; the terms named in `terms` are `constraint_term`s."""

    terms: ConstraintTerms
    options: AugmentedLagrangian

    def solved(
        self, task: Task, values: Values, inputs: tuple[Inputs, ...], bounds: Inputs, differentiated: bool
    ) -> tuple[Outcome, Findings]:
        rounds = _Rounds(self, replace(task, outer=None), inputs, bounds, differentiated)
        with torch.no_grad():
            state, most = rounds.start(tuple(x.contiguous() for x in values)), 0
            for number in range(self.options.max_rounds):
                state, most = rounds.looked_at(rounds.after(state, most))
                if task.solver.verbose:
                    print(_line(number + 1, state), flush=True)
                if most == NOT_RUNNING:
                    break
            return rounds.ended(state)

    def tolerance(self, like: Tensor) -> float:
        if self.options.tolerance is not None:
            return self.options.tolerance
        return 1e-8 if like.dtype == torch.float64 else 1e-3


@dataclass(eq=False)
class _Rounds:
    """The rounds of one solve."""

    loop: MultiplierRounds
    task: Task
    inputs: tuple[Inputs, ...]
    bounds: Inputs
    differentiated: bool
    _told_to_stop: bool = False
    _takes_newton_steps: bool = True
    _limits: dict[int, Float[Tensor, "batch"]] = field(default_factory=dict)
    """The largest penalties."""
    _end: tuple[Linearizer, Values, TermInputs, dict[int, Tensor]] | None = None
    """Of the last round, before Newton steps: functions, values, inputs of the constraints, and penalties."""

    @property
    def terms(self) -> ConstraintTerms:
        return self.loop.terms

    def __post_init__(self) -> None:
        self._clock = Clock(self.task.solver.time_budget)

    def start(self, values: Values) -> State:
        """Before the first round: no multipliers, and the penalties to begin with."""
        plan, linearizer, prepared = planned(self.task, values, self.inputs, bounds=self.bounds)
        plain = linearizer.prepare(self.terms.plain(self.inputs))
        residuals = plan.execution.run_eagerly(self.terms.residuals, linearizer, values, plain)
        penalties = plan.execution.run_eagerly(first_penalties, self.terms, linearizer, values, prepared, plain)
        if self.loop.options.penalty is not None:
            penalties = {n: torch.full_like(penalty, self.loop.options.penalty) for n, penalty in penalties.items()}
        eps = torch.finfo(values[0].dtype).eps
        self._limits = {number: penalty / eps**0.5 for number, penalty in penalties.items()}
        zeros = torch.zeros(len(values[0]), dtype=torch.int64, device=values[0].device)
        multipliers = {number: torch.zeros_like(residual) for number, residual in residuals.items()}
        # Nothing is known of how much one round gains: the first one changes no penalty.
        measures = {number: torch.full_like(penalty, torch.inf) for number, penalty in penalties.items()}
        largest = largest_violation(self.terms, residuals)
        return State(values, multipliers, penalties, measures, largest, zeros, zeros, zeros, zeros, zeros)

    def after(self, state: State, most: int) -> State:
        """One round more; `most` steps were taken by a problem that is running."""
        given = self.terms.given(self.inputs, state.multipliers, state.penalties)
        outcome = run(
            replace(self.task, solver=self._solver(most)),
            state.values,
            given,
            differentiated=self.differentiated,
            bounds=self.bounds,
        )
        plan, linearizer, _ = outcome.planned
        if self.task.pinned is None and is_taken_for_granted(plan):
            self.task = replace(self.task, pinned=Pinned(plan))
        if not plan.is_on_cpu:  # it was the start of a user, of which something may be said
            self.task = replace(self.task, is_trial=True)
        plain = linearizer.prepare(self.terms.plain(given))
        name, wish = f"constraints {list(self.terms.names)}", self.task.solver.execution
        found = plan.execution.run(name, wish, _listed(self.terms, linearizer), outcome.values, plain)
        residuals = dict(zip(self.terms.names, found, strict=True))
        self._end = linearizer, outcome.values, plain, state.penalties
        return self._judged(state, self._kept(state, outcome, given), residuals)

    def looked_at(self, state: State) -> tuple[State, int]:
        """The state after a round with the problems that end there, and how many steps those that go on have taken at
        most: one question to the device, and one more where a problem may be hopeless."""
        status, spent = state.status, (state.num_steps >= self.task.solver.max_steps) | self._told_to_stop
        may_be_hopeless = state.running & (state.stuck >= STUCK)
        steps = torch.where(state.running & ~spent, state.num_steps, NOT_RUNNING)
        most, asked = torch.stack((steps.amax(), may_be_hopeless.any())).tolist()
        if asked and self._end is not None:
            linearizer, values, plain, penalties = self._end
            stationary = is_stationary(self.terms, linearizer, values, plain, penalties, self.bounds)
            is_hopeless = may_be_hopeless & (stationary | (state.stuck >= HOPELESS))
            status = torch.where(is_hopeless, int(Status.INFEASIBLE), status)
            most = int(torch.where(is_hopeless, NOT_RUNNING, steps).amax())
        status = torch.where((status == Status.RUNNING) & spent, int(Status.MAX_STEPS), status)
        return replace(state, status=status), most

    def ended(self, state: State) -> tuple[Outcome, Findings]:
        """The outcome of all rounds, and what they have found."""
        outcome = state.outcome
        assert outcome is not None  # there is one round at least
        plan, linearizer, _ = outcome.planned
        prepared = linearizer.prepare(state.given)
        status = torch.where(state.running, int(Status.MAX_STEPS), state.status)
        costs, of_costs = without_constraints(linearizer, prepared)
        cost = torch.zeros_like(outcome.cost)
        if costs.assemblies:
            cost = plan.execution.run("cost alone", self.task.solver.execution, costs.cost, outcome.values, of_costs)
        outcome = replace(
            outcome,
            status=status,
            num_steps=state.num_steps,
            num_evaluations=state.num_evaluations,
            planned=(plan, linearizer, prepared),
            interrupted=bool((status == Status.INTERRUPTED).any()),
        )
        multipliers = {name: state.multipliers[number] for number, name in self.terms.names.items()}
        own = tuple(
            {name: given[name] for name in names}
            for given, names in zip(state.given, self._own(state.given), strict=True)
        )
        decided = torch.ones_like(status, dtype=torch.bool)
        return outcome, Findings(own, decided, multipliers=multipliers, violation=state.violation, cost=cost)

    # ---- parts of a round

    def _solver(self, most: int) -> Any:
        """The solver of a round."""
        solver, options = self.task.solver, self.loop.options
        left = solver.max_steps - most
        return replace(
            solver,
            max_steps=max(min(left, options.steps_per_round), 0),
            time_budget=self._clock.left,
            verbose=False,
            callback=None if solver.callback is None else self._called_back,
        )

    def _called_back(self, info: StepInfo) -> bool:
        callback = self.task.solver.callback
        self._told_to_stop = self._told_to_stop or (callback is not None and bool(callback(info)))
        return self._told_to_stop

    def _kept(self, state: State, outcome: Outcome, given: tuple[dict[str, Tensor], ...]) -> State:
        """The state with the outcome of a round, where a problem was not done before."""
        running = state.running
        steps = state.num_steps + torch.where(running, outcome.num_steps, 0)
        evaluations = state.num_evaluations + torch.where(running, outcome.num_evaluations, 0)
        before = state.outcome
        if before is not None and not (outcome.planned[0].is_on_cpu and bool(running.all())):
            outcome = merged(running, outcome, before)
            given = tuple(
                {name: chosen(running, tensor, old[name]) if name in own else tensor for name, tensor in new.items()}
                for new, old, own in zip(given, state.given, self._own(given), strict=True)
            )
        return replace(
            state, values=outcome.values, num_steps=steps, num_evaluations=evaluations, outcome=outcome, given=given
        )

    def _own(self, given: tuple[dict[str, Tensor], ...]) -> tuple[set[str], ...]:
        """The inputs that the rounds change."""
        return tuple(
            {name for name in after if after[name] is not before.get(name)}
            for before, after in zip(self.inputs, given, strict=True)
        )

    def _judged(self, before: State, state: State, residuals: dict[int, PerRow]) -> State:
        """Multipliers, penalties and statuses after a round."""
        outcome, tolerance = state.outcome, self.loop.tolerance(state.values[0])
        assert outcome is not None  # that of the round
        running, ended = before.running, (outcome.status <= Status.STEP_TOLERANCE) | (outcome.status == Status.STALLED)
        multipliers, penalties, measures = self._corrected(before, running & ended, residuals, tolerance)
        worst = torch.stack(list(measures.values())).amax(0)
        last = torch.stack(list(before.measures.values())).amax(0)
        violation = largest_violation(self.terms, residuals)
        stuck = torch.where(ended & (violation > tolerance) & (worst > LITTLE * last), before.stuck + 1, 0)
        met = ended & (worst <= tolerance)
        stalled = before.stalled + (met & (outcome.status == Status.STALLED))
        status = torch.where(met & ((outcome.status != Status.STALLED) | (stalled > WAITS)), outcome.status, 0)
        failed = ~ended & (outcome.status != Status.MAX_STEPS)
        status = torch.where(failed, outcome.status, status)
        values = state.values
        # One that has met its constraints to the tolerance, but not yet to rounding, goes on for as long as that helps.
        improves = running & ended & (~met | (worst > EXACT * tolerance) | (outcome.status == Status.STALLED))
        # Another device than a CPU is not asked: nearly every round ends with problems that may be improved.
        if self._takes_newton_steps and (not outcome.planned[0].is_on_cpu or bool(improves.any())):
            found = self._improved(outcome, values, multipliers, penalties, improves)
            values, multipliers = found.values, found.multipliers
            # Where steps of Levenberg-Marquardt stall for want of precision Newton's can still tell that it is there.
            eps = torch.finfo(violation.dtype).eps
            settled = met & ~found.helped & (found.distance <= max(self.task.solver.ftol, eps) * outcome.cost)
            stalled_there = settled & (outcome.status == Status.STALLED)
            status = torch.where(stalled_there, int(Status.COST_TOLERANCE), torch.where(found.helped, 0, status))
        return replace(
            state,
            values=values,
            multipliers=multipliers,
            penalties=penalties,
            measures=measures,
            violation=torch.where(running, violation, before.violation),
            status=torch.where(running, status, before.status),
            stuck=stuck,
            stalled=stalled,
        )

    def _corrected(
        self, before: State, wanted: Bool[Tensor, "batch"], residuals: dict[int, PerRow], tolerance: float
    ) -> tuple[dict[int, PerRow], dict[int, Tensor], dict[int, Tensor]]:
        """Multipliers, penalties and measures after a round, of the problems whose round has ended."""
        multipliers, penalties, measures = {}, {}, {}
        for number, residual in residuals.items():
            known, penalty = before.multipliers[number], before.penalties[number]
            moved = known + penalty[:, None, None] * residual
            moved = moved if number in self.terms.equalities else moved.clamp(min=0)
            measure = (moved - known).abs().amax((1, 2)) / penalty
            measures[number] = torch.where(wanted, measure, before.measures[number])
            multipliers[number] = chosen(wanted, moved, known)
            grows = wanted & (measure > tolerance) & (measure > ENOUGH * before.measures[number])
            grown = torch.minimum(GROWTH * penalty, self._limits[number])
            penalties[number] = torch.where(grows, grown, penalty)
        return multipliers, penalties, measures

    def _improved(
        self,
        outcome: Outcome,
        values: Values,
        multipliers: dict[int, PerRow],
        penalties: dict[int, Tensor],
        wanted: Bool[Tensor, "batch"],
    ) -> Improvement:
        """Values and multipliers after Newton steps on both."""
        plan, linearizer, _ = outcome.planned
        wish = self.task.solver.execution
        end = NewtonEnd(self.terms, plan, linearizer, wish, self.inputs, penalties, self.bounds)
        try:
            with TRANSFORM_LOCK:
                return end.improved(values, multipliers, wanted)
        except (NotImplementedError, RuntimeError) as error:  # a residual without second derivatives: by rounds alone
            self._takes_newton_steps = False
            if self.task.solver.verbose:
                print(f"no Newton steps after the rounds: {type(error).__name__}: {error}", flush=True)
            return Improvement.none(values, multipliers, wanted)


def _listed(terms: ConstraintTerms, linearizer: Linearizer) -> Any:
    """The constraints as a function that a graph is recorded of."""

    def residuals(values: Values, plain: TermInputs) -> tuple[Tensor, ...]:
        return tuple(terms.residuals(linearizer, values, plain).values())

    return residuals


def _line(number: int, state: State) -> str:
    """What `verbose` says of a round."""
    penalty = max(float(penalty.amax()) for penalty in state.penalties.values())
    running, steps = int(state.running.sum()), int(state.num_steps.sum())
    return (
        f"round {number:>3}, violation {float(state.violation.amax()):.2e}, penalty at most {penalty:.1e}, "
        f"{steps} steps, {running} of {state.running.numel()} not done"
    )
