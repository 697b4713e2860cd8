"""The rounds of graduated non-convexity: a few steps at one relaxation per problem, then at a smaller one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.one_block import squared_norms
from mslsq.linearize.plan import Plan
from mslsq.problem.system import Inputs
from mslsq.solution import Status
from mslsq.solvers.deviation import deviation_scale
from mslsq.solvers.live_blocks import LiveBlocks
from mslsq.solvers.outer import NEXT_TO_NOTHING, Clock, is_taken_for_granted
from mslsq.solvers.run import Outcome, run
from mslsq.solvers.surrogates import RELAXATION, SCALE, Surrogate
from mslsq.solvers.task import Pinned, Task

if TYPE_CHECKING:
    from mslsq.solvers.graduation import Graduation

Norms = dict[int, Float[Tensor, "batch blocks"]]
"""‖r‖² of every block, by the number of the term; of a residual without blocks |r|² of every entry."""

FIRST_STEPS = 5
"""Steps of the first round. Soft directions (400 points of a walk together, from a start at zero) are damped in the
first steps of Levenberg-Marquardt: after one or two of them all sightings of such a walk are rejected before it has
moved. Of 600 exponentials with 50 % outliers 5 steps recover 95 %, 2 steps 93 %, 20 steps 95 %; of as many circles 83,
85, 81 %."""

SETTLED = 1e-2
"""A step that decreases the cost by at most this share lets the relaxation fall, where rounds are to take as many steps
as it takes. Of nine walks of 401 points with a third of wrong sightings one step a round finds the minimum of one in
three, two all, this rule all, in 41 to 61 steps instead of 65 to 79 (at 3e-2 it loses one). On the pose graph intel it
takes 46 to 52 steps where one step a round takes 39 to 48."""

MOST_STEPS = 6
"""Steps of such a round at most."""

FIRST_FIT = 15
"""Rounds before a scale is estimated. Their scale is a share `BELOW` of the estimate at the moment: nearly all
residuals are between, where weights go as 1/|r|, so that this is the fit of least absolute deviations. (From a least
squares fit the scale would be that of the outliers, too, and would keep them.)"""

BELOW = 0.03

LEAST_SCALE = 100.0
"""An estimated scale is at least that many units in the last place of the largest residual (exact data have none)."""


class State(NamedTuple):
    """Between two rounds."""

    values: Values
    relaxation: Float[Tensor, "batch"]
    scales: dict[int, Float[Tensor, "batch"]]
    norms: Norms
    done: Bool[Tensor, "batch"]
    num_steps: Int[Tensor, "batch"]
    num_evaluations: Int[Tensor, "batch"]
    live: LiveBlocks
    count: int
    """Rounds so far."""
    rate: float
    """By how much the relaxation falls from one round to the next."""
    held: Int[Tensor, "batch"]
    """Rounds at the same relaxation."""


@dataclass(eq=False)
class Rounds:
    """The rounds of one solve, on plain tensors."""

    graduation: "Graduation"
    task: Task
    inputs: tuple[Inputs, ...]
    bounds: Inputs
    plan: Plan
    linearizer: Linearizer
    clock: Clock = field(default_factory=lambda: Clock(None))
    is_stale: bool = False
    """Has a round found that the residual is not the one that was planned for?"""
    cut: Status | None = None
    """What has ended the rounds from outside: an interrupt, or the clock."""
    _floors: dict[int, Tensor] = field(default_factory=dict)
    """The least that an estimated scale can be."""

    def __post_init__(self) -> None:
        self._prepared = self.linearizer.prepare(self.inputs)

    def start(self, values: Values) -> State:
        """Before the first round."""
        norms = self.norms(values)
        eps = torch.finfo(values[0].dtype).eps
        self._floors = {number: LEAST_SCALE * eps * s.amax(1).sqrt() for number, s in norms.items()}
        zeros = torch.zeros(len(values[0]), dtype=torch.int64, device=values[0].device)
        relaxation = torch.zeros_like(values[0][:, 0, 0])
        live, rate = LiveBlocks(self.task, self.task, {}), self.graduation.rate
        return self._begun(State(values, relaxation, {}, norms, zeros > 0, zeros, zeros, live, 0, rate, zeros))

    def descent(self, origin: State, number: int, after: State) -> State:
        """Where a descent begins, with the steps of those before it: the first at a relaxation that rejects nothing, a
        later one at a power of that, so that they part the way of the first evenly. What they find is compared, and
        a coarser way does as well for it: of two rounds they take one."""
        origin = origin._replace(num_steps=after.num_steps, num_evaluations=after.num_evaluations)
        if number == 0:
            return origin
        fallen = origin.relaxation.clamp(min=1) ** (1 - number / self.graduation.descents)
        relaxation = torch.minimum(origin.relaxation, fallen)
        return origin._replace(relaxation=relaxation, rate=self.graduation.rate**2)

    def after(self, state: State) -> State:
        """One round more."""
        live = state.live.looked_at(self.live(state.norms, state))
        task = live.task
        if state.count == 0:
            task = replace(task, solver=replace(task.solver, max_steps=max(FIRST_STEPS, task.solver.max_steps)))
        given = self.given(state.scales, state.relaxation)
        outcome = self.run(task, state.values, live.inputs(given))
        moved = ~state.done & (outcome.status != Status.NON_FINITE)
        values = tuple(
            torch.where(moved[:, None, None], after, before)
            for after, before in zip(outcome.values, state.values, strict=True)
        )
        state = state._replace(
            values=values,
            norms=self.norms(values),
            num_steps=state.num_steps + torch.where(state.done, 0, outcome.num_steps),
            num_evaluations=state.num_evaluations + torch.where(state.done, 0, outcome.num_evaluations),
            done=~moved,
            live=self._pinned(live, outcome.planned[0]),
            count=state.count + 1,
        )
        if self.graduation.estimates_scale and state.count <= FIRST_FIT:
            return self._begun(state)
        return self._followed(state, self._settled(state, outcome))

    def run(self, task: Task, values: Values, inputs: tuple[Inputs, ...], differentiated: bool = False) -> Outcome:
        """A solve in the time that is left: none, after something has cut the rounds short."""
        if self.cut is not None or self.clock.budget is not None:
            left = NEXT_TO_NOTHING if self.cut is not None else self.clock.left
            task = replace(task, solver=replace(task.solver, time_budget=left))
        outcome = run(task, values, inputs, differentiated=differentiated, bounds=self.bounds)
        if self.cut is None and (outcome.interrupted or self.clock.is_over):
            self.cut = Status.INTERRUPTED if outcome.interrupted else Status.TIME_BUDGET
        return outcome

    def _begun(self, state: State) -> State:
        """With the relaxation to begin with."""
        estimates = self.graduation.estimates_scale
        factor = BELOW if estimates and state.count < FIRST_FIT else 1.0
        scales = {number: factor * scale for number, scale in self._scales(state.norms).items()}
        worst = torch.cat(list(self._shares(state.norms, scales).values()), 1).amax(1)
        relaxation = self.surrogate.first(worst)
        done = state.done | ~(torch.isfinite(worst) & (relaxation > 0))
        return state._replace(relaxation=torch.where(done, 0, relaxation), scales=scales, done=done)

    def _settled(self, state: State, outcome: Outcome) -> Bool[Tensor, "batch"]:
        """May the relaxation fall?"""
        if not self.graduation.waits:
            return torch.ones_like(state.done)
        before = outcome.history.start_cost
        return ~(before - outcome.cost > SETTLED * before) | (state.held + 1 >= MOST_STEPS)

    def _followed(self, state: State, settled: Bool[Tensor, "batch"]) -> State:
        """With the relaxation that follows where it may, or done: no block is between, or none can be."""
        scales = self._scales(state.norms, state)
        # From one round to the next it is the threshold c²ν that falls: a scale that shrinks tightens nothing at once.
        shrunk = torch.stack([(state.scales[number] / scales[number]) ** 2 for number in scales]).amax(0)
        relaxation = state.relaxation * shrunk
        following = self.surrogate.following(relaxation, state.rate)
        shares = torch.cat(list(self._shares(state.norms, scales).values()), 1)
        done = state.done | ~self.surrogate.is_between(shares, relaxation).any(1) | (following <= self.surrogate.last)
        relaxation = torch.where(done, state.relaxation, torch.where(settled, following, relaxation))
        held = torch.where(settled, 0, state.held + 1)
        return state._replace(relaxation=relaxation, scales=scales, done=done, held=held)

    def given(
        self, scales: Mapping[int, Float[Tensor, "batch"]], relaxation: Float[Tensor, "batch"]
    ) -> tuple[Inputs, ...]:
        """The inputs with this relaxation, and the scales where they are estimated."""
        inputs = [dict(given) for given in self.inputs]
        for number in self.graduation.names:
            inputs[number][parameter_of(self.task, number, RELAXATION)] = relaxation
            if self.graduation.estimates_scale:
                inputs[number][parameter_of(self.task, number, SCALE)] = scales[number]
        return tuple(inputs)

    def norms(self, values: Values) -> Norms:
        """Of all blocks that may be outliers, also of those that are left out."""
        plan, linearizer = self.plan, self.linearizer
        numbers = tuple(self.graduation.names)

        def norms(values: Values, prepared: TermInputs) -> tuple[Tensor, ...]:
            found = []
            for number in numbers:
                block = linearizer.blocks[number]
                squared = squared_norms(
                    block.residuals(values, prepared[number]), block.pairs, block.term.elementwise_loss
                )
                found.append(squared[0].T if block.lanes_are_batch else squared[:, 0])
            return tuple(found)

        found = plan.execution.run(f"norms of {numbers}", self.task.solver.execution, norms, values, self._prepared)
        return dict(zip(numbers, found, strict=True))

    def rows(self, number: int) -> int:
        """The rows that one entry of the norms stands for."""
        block = self.linearizer.blocks[number]
        return 1 if block.term.elementwise_loss else block.rows

    @property
    def asks(self) -> bool:
        """May numbers be read?"""
        return self.plan.may_be_asked(self.task.solver.early_stop)

    @property
    def surrogate(self) -> Surrogate:
        loss = self.task.system.terms[next(iter(self.graduation.names))].loss
        assert isinstance(loss, Surrogate)  # the front door has put it there
        return loss

    def is_over(self, last: bool) -> bool:
        """Is there no more to do in this attempt, the last one or not?"""
        return self.cut is not None or (self.is_stale and not last)

    def line(self, state: State) -> str:
        """What `verbose` says of a round."""
        relaxation = float(state.relaxation.nanmedian())
        running = int((~state.done).sum())
        return f"round {state.count:>3}, relaxation {relaxation:.2e}, {running} of {state.done.numel()} not decided"

    def _pinned(self, live: LiveBlocks, plan: Plan) -> LiveBlocks:
        """The same with its plan taken for granted."""
        if live.task.pinned is not None or not is_taken_for_granted(plan):
            return live
        self.is_stale = self.is_stale or (live.task is live.whole and plan.plain is not self.plan.plain)
        task = replace(live.task, pinned=Pinned(plan))
        return replace(live, task=task)

    def _scales(self, norms: Norms, state: State | None = None) -> dict[int, Float[Tensor, "batch"]]:
        """Given, or estimated from the residuals; it never grows again."""
        scales = {}
        for number, squared in norms.items():
            if self.graduation.estimates_scale:
                scale = torch.maximum(deviation_scale(squared, self.rows(number)), self._floors[number])
                if state is not None:
                    before = state.scales[number]
                    scale = torch.where(state.done, before, torch.minimum(scale, before))
                scales[number] = scale
            else:
                given = self.inputs[number][parameter_of(self.task, number, SCALE)]
                scales[number] = given.to(squared.dtype).reshape(-1).expand(len(squared))
        return scales

    @staticmethod
    def _shares(norms: Norms, scales: Mapping[int, Tensor]) -> Norms:
        """s/c² of every block."""
        return {number: squared / scales[number][:, None] ** 2 for number, squared in norms.items()}

    def live(self, norms: Norms, state: State, relaxed: bool = True) -> dict[int, Bool[Tensor, "blocks"]]:
        """Which blocks have a weight in some problem, at the relaxation of the state or at none; nothing is said where
        it does not pay to leave blocks out."""
        if not self.plan.is_large or not self.surrogate.rejects or self.plan.compressed is not None or not self.asks:
            return {}
        slack = 1 + state.relaxation[:, None] if relaxed else 1
        shares = self._shares(norms, state.scales)
        return {number: (share <= slack).any(0) for number, share in shares.items() if share.shape[1] > 1}


def parameter_of(task: Task, number: int, own: str) -> str:
    """The name of the input that holds a parameter of a term's loss."""
    return task.system.terms[number].loss_inputs[own]
