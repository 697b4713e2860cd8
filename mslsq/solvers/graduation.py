"""Graduated non-convexity around a solve: which terms take part, and the solve after the rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.problem.system import Inputs
from mslsq.solution import Status
from mslsq.solvers.live_blocks import LiveBlocks
from mslsq.solvers.outer import Clock, Findings, OuterLoop
from mslsq.solvers.planning import planned
from mslsq.solvers.rounds import Norms, Rounds, State, parameter_of
from mslsq.solvers.run import Outcome
from mslsq.solvers.solver import Solver
from mslsq.solvers.surrogates import RELAXATION, SCALE
from mslsq.solvers.task import Task
from mslsq.solvers.trials import Trials
from mslsq.solvers.verdict import LEVEL

ROUNDING = 64.0
"""A residual that is at most that many units in the last place of the scale away from the truncation is on it."""

ATTEMPTS = 3
"""How often rounds begin again on a new plan, and a solve with other blocks, before the last way out is taken."""


@dataclass(frozen=True)
class Graduation(OuterLoop):
    """The outer loop. The loss of every term named here is a `Surrogate`, whose `relaxation` is an input per problem.

    A round takes a few steps at one relaxation per problem, the next at a smaller one. A problem with no block between
    rejected and accepted is done, and waits for the others. Then comes the solve with the loss itself, whose minimum is
    the solution, whatever the rounds have done.
    """

    names: Mapping[int, str]
    """The terms that may hold outliers, by their number, and what their weights are called."""
    rounds: Solver
    """Takes the steps of a round: its `max_steps`."""
    rate: float
    max_rounds: int
    descents: int
    waits: bool
    """Does the relaxation wait for steps that change little?"""
    estimates_scale: bool
    """Are scales found from the residuals, not given?"""

    def solved(
        self, task: Task, values: Values, inputs: tuple[Inputs, ...], bounds: Inputs, differentiated: bool
    ) -> tuple[Outcome, Findings]:
        clock, task = Clock(task.solver.time_budget), replace(task, outer=None)
        # In memory as every round will have them, which a plan depends on.
        values = tuple(x.contiguous() for x in values)
        inputs = self._laid_out(task, inputs)
        with torch.no_grad():
            for attempt in range(ATTEMPTS):
                last = attempt == ATTEMPTS - 1
                solver = replace(self.rounds, trace="never", compile=False) if last else self.rounds
                around = replace(task, solver=solver, is_trial=True)
                plan, linearizer, _ = planned(around, values, inputs, bounds=bounds)
                rounds = Rounds(self, around, inputs, bounds, plan, linearizer, clock)
                state = self._best(task, rounds, values, last)
                if not rounds.is_stale:
                    break
            had_all = rounds.cut is None
            outcome, norms = self._solved_itself(task, rounds, state, differentiated)
            if rounds.cut is not None:
                done = torch.zeros_like(state.done) if not had_all else outcome.status < Status.MAX_STEPS
                done = done | (outcome.status == Status.SINGULAR) | (outcome.status == Status.NON_FINITE)
                status = torch.where(done, outcome.status, int(rounds.cut))
                outcome = replace(outcome, status=status, interrupted=rounds.cut is Status.INTERRUPTED)
            return self._looked_at(rounds, outcome, norms, state)

    def _best(self, task: Task, rounds: Rounds, values: Values, last: bool) -> State:
        """The end of the descent whose minimum of the robust cost is the best, per problem."""
        solver = task.solver
        origin = rounds.start(values)
        found, spent = Trials(rounds), origin
        for number in range(self.descents):
            if number and (rounds.is_over(last) or (rounds.asks and not bool((origin.relaxation > 1).any()))):
                break  # a way that is all but convex has no other beginnings
            state = self._rounds(rounds, rounds.descent(origin, number, spent), solver, last)
            if self.descents == 1 or (number == 0 and rounds.is_over(last)):
                return state
            outcome, _ = self._solved_itself(task, rounds, state, False, is_trial=True)
            spent = state._replace(num_steps=outcome.num_steps, num_evaluations=outcome.num_evaluations)
            found = found.and_one(state, outcome)
        return found.best(spent)

    def _laid_out(self, task: Task, inputs: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
        """The inputs with the parameters that change from round to round in memory of their own."""
        own = (SCALE, RELAXATION) if self.estimates_scale else (RELAXATION,)
        given = [dict(tensors) for tensors in inputs]
        for number in self.names:
            for name in (parameter_of(task, number, parameter) for parameter in own):
                given[number][name] = given[number][name].clone(memory_format=torch.contiguous_format)
        return tuple(given)

    def _rounds(self, rounds: Rounds, state: State, solver: Solver, last: bool) -> State:
        """All rounds; unless it is the last attempt, those of a plan that turns out to be stale end early."""
        while state.count < self.max_rounds:
            if (solver.early_stop and bool(state.done.all())) or rounds.is_over(last):
                break
            try:
                state = rounds.after(state)
            except KeyboardInterrupt:  # a round that was not finished has changed nothing
                rounds.cut = Status.INTERRUPTED
                break
            if solver.verbose:
                print(rounds.line(state), flush=True)
        return state

    def _solved_itself(
        self, task: Task, rounds: Rounds, state: State, differentiated: bool, is_trial: bool = False
    ) -> tuple[Outcome, Norms]:
        """The solve with the loss itself: first of the blocks that have a weight, and of all where it must be."""
        solver = replace(task.solver, callback=None, verbose=False) if is_trial else task.solver
        given = rounds.given(state.scales, torch.zeros_like(state.relaxation))
        values, steps, evaluations = state.values, state.num_steps, state.num_evaluations
        is_odd = is_trial or rounds.cut is not None
        live = state.live.solved_by(solver, is_odd).looked_at(rounds.live(state.norms, state, relaxed=False))
        whole = LiveBlocks(live.whole, live.whole, {})
        for attempt in range(ATTEMPTS + 1):
            if attempt == ATTEMPTS:  # blocks come back again and again
                live = whole
            outcome = rounds.run(live.task, values, live.inputs(given), differentiated and not live.kept)
            steps, evaluations = steps + outcome.num_steps, evaluations + outcome.num_evaluations
            values, norms = outcome.values, rounds.norms(outcome.values)
            if live.kept:
                came_back = rounds.live(norms, state, relaxed=False) if rounds.cut is None else {}
                if any(int(mask.sum()) > int(mask[live.kept[number]].sum()) for number, mask in came_back.items()):
                    live = live.looked_at(came_back)
                    continue
                if differentiated:  # the Hessian is one of all blocks
                    live = whole
                    continue
            break
        constant = sum(0.5 * live.left_out(number) * state.scales[number] ** 2 for number in self.names)
        of_steps = constant[..., None] if isinstance(constant, Tensor) else constant
        history = replace(outcome.history, cost=outcome.history.cost + of_steps)
        cost = outcome.cost + constant
        return replace(outcome, cost=cost, history=history, num_steps=steps, num_evaluations=evaluations), norms

    def _looked_at(self, rounds: Rounds, outcome: Outcome, norms: Norms, state: State) -> tuple[Outcome, Findings]:
        """The weights at the solution, and what they say of it."""
        loss, weights = rounds.surrogate, {}
        decided = torch.ones_like(outcome.status, dtype=torch.bool)
        rows = torch.zeros_like(outcome.cost)
        for number, name in self.names.items():
            scale = state.scales[number][:, None]
            parameters = {SCALE: scale, RELAXATION: torch.zeros_like(scale)}
            weights[name] = loss.derivatives(norms[number], parameters)[1]
            rows = rows + (weights[name] > 0).sum(1) * rounds.rows(number)
            if loss.rejects:
                blur = _blur(rounds.task.solver.ftol, outcome.cost, norms, state.scales)[:, None]
                blur = blur + ROUNDING * torch.finfo(scale.dtype).eps * scale
                decided = decided & ((norms[number].sqrt() - scale).abs() > blur).all(1)
        if len(self.names) == len(rounds.task.system.terms):
            # Fewer equations than unknowns are left: any cost is flat there.
            converged = (outcome.status >= Status.COST_TOLERANCE) & (outcome.status <= Status.STEP_TOLERANCE)
            too_few = rows < rounds.linearizer.structure.num_columns
            outcome = replace(outcome, status=torch.where(converged & too_few, int(Status.SINGULAR), outcome.status))
        scales: list[dict[str, Tensor]] = [{} for _ in rounds.task.system.terms]
        if self.estimates_scale:
            for number in self.names:
                scales[number][parameter_of(rounds.task, number, SCALE)] = state.scales[number]
        return outcome, Findings(tuple(scales), decided, weights)


def _blur(
    ftol: float, cost: Float[Tensor, "batch"], norms: Norms, scales: Mapping[int, Float[Tensor, "batch"]]
) -> Float[Tensor, "batch"]:
    """How far residuals may move where the cost of all that is not rejected changes by what its tolerance allows:
    ½|Je|² ≤ ftol cost."""
    kept = cost
    for number, squared in norms.items():
        c2 = scales[number] ** 2
        kept = kept - 0.5 * (squared > c2[:, None]).sum(1) * c2
    return (2 * max(10 * ftol, LEVEL * torch.finfo(cost.dtype).eps) * kept.clamp(min=0)).sqrt()
