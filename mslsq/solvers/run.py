"""The loop: steps until every problem of the batch has stopped."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq import pytree
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.linearize.prospects import note_seconds
from mslsq.linearize.trace import clock
from mslsq.problem.system import Inputs
from mslsq.solution import History, Status
from mslsq.solvers.bound_checks import check_start
from mslsq.solvers.box import Box, box_of
from mslsq.solvers.checkpoint import CheckpointError, Saved
from mslsq.solvers.compaction import Batch, Remaining
from mslsq.solvers.influence import first_look, warn_without_influence, without_squares
from mslsq.solvers.native_steps import Methods, stepped_natively, steps_of
from mslsq.solvers.planning import planned
from mslsq.solvers.report import StepInfo, Table
from mslsq.solvers.solver import MethodState, Solver
from mslsq.solvers.state import Record
from mslsq.solvers.task import Task, plan_key
from mslsq.solvers.whole_solves import Ended, said_of_programs, solved_natively
from mslsq.solvers.witness import Witness


class Trajectory(NamedTuple):
    """What the solver's steps can be taken again from."""

    accepted: Bool[Tensor, "batch steps"]
    accuracy: Float[Tensor, "batch steps"]
    """How accurately the systems were solved."""
    method: MethodState
    """The method's state before each step, its tensors (batch, steps, ...)."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the loop returns, plain tensors."""

    values: Values
    cost: Tensor
    status: Tensor
    num_steps: Tensor
    num_evaluations: Tensor
    gradient_norm: Tensor
    history: History
    trajectory: Trajectory | tuple[()]
    """Empty unless asked for, and where no step was taken."""
    planned: tuple[Plan, Linearizer, TermInputs]
    """What the solve ran on."""
    matrix: Tensor
    """Of the last linearization, that of `values`: the normal equations, or a triangle."""
    interrupted: bool = False
    """By a KeyboardInterrupt?"""
    iterations: tuple[int, ...] = ()
    """How many each step of the trajectory was allowed, of a linear solver that iterates and may not look; else
    empty."""


def run(
    task: Task,
    values: Values,
    inputs: tuple[Inputs, ...],
    keep_trajectory: bool = False,
    differentiated: bool = False,
    bounds: Inputs | None = None,
) -> Outcome:
    """Solve a batch of problems. All tensors are plain: no transform is active in here.

    Args:
        differentiated: will derivatives of the solution be taken?
        bounds: of the variables that have some, by the names of `Unknown.bounds`; (batch or 1, count, tangent).

    Raises:
        ProblemError: the start is not within the bounds.
    """
    refused = check_start(task.system, values, bounds, task.solver.early_stop) if bounds else None
    outcome = _solved(task, values, inputs, bounds, keep_trajectory, differentiated, native=True)
    if outcome is None:
        # What was recorded is not what the user's Python says: once more, with a new plan, and without programs.
        outcome = _solved(task, values, inputs, bounds, keep_trajectory, differentiated)
    if outcome is None:
        # It changes again and again: without graphs.
        eager = replace(task, solver=replace(task.solver, trace="never", compile=False))
        outcome = _solved(eager, values, inputs, bounds, keep_trajectory, differentiated, last=True)
        assert outcome is not None  # it would have raised
    return outcome if refused is None else _without(refused, outcome)


def _without(refused: Bool[Tensor, "batch"], outcome: Outcome) -> Outcome:
    """The outcome without that of some problems: what cannot be raised must not pass for an answer."""
    values = tuple(torch.where(refused[:, None, None], torch.nan, x) for x in outcome.values)
    status = torch.where(refused, int(Status.NON_FINITE), outcome.status)
    return replace(outcome, values=values, status=status, cost=torch.where(refused, torch.nan, outcome.cost))


def _solved(
    task: Task,
    values: Values,
    inputs: tuple[Inputs, ...],
    bounds: Inputs | None,
    keep_trajectory: bool,
    differentiated: bool,
    native: bool = False,
    last: bool = False,
) -> Outcome | None:
    """The solution; None where the graphs that it took turn out to be stale, and were dropped."""
    asks, begun = task.solver.early_stop, time.perf_counter()
    with torch.no_grad():
        values = tuple(x.contiguous() for x in values)
        spent_before = time.thread_time()  # other processes must not decide what is made
        plan, linearizer, prepared = planned(task, values, inputs, differentiated, native, bounds)
        witness = Witness(task, plan, linearizer.blocks, inputs, differentiated)
        box = box_of(linearizer, values, bounds) if bounds else ()
        in_one_go = native and not keep_trajectory and task.ranks.is_alone
        ended = solved_natively(task, plan, values, inputs, witness, box) if in_one_go else None
        is_whole, trajectory, saved, differs, allowed = ended is not None, (), None, None, ()
        why = None if ended is None or not ended.interrupted else Status.INTERRUPTED
        is_shown = task.solver.verbose and task.ranks.is_first
        table = Table(task.solver, linearizer, _notes(task, plan)) if is_shown else None
        if ended is None:
            may_step = native and not box and task.ranks.is_alone
            given = task, plan, linearizer, values, prepared, witness, keep_trajectory
            in_program = stepped_natively(*given) if may_step else None
            if in_program is not None:
                ended, methods = in_program
                why = Status.INTERRUPTED if ended.interrupted else None
                trajectory = trajectory_of(ended, methods) if methods else ()
        if ended is None:
            batch = Batch(task, plan, linearizer, prepared, inputs, witness, native, differentiated)
            saved = Saved.of(task, values, inputs, box)
            stepped = _stepped(batch, values, box, table, keep_trajectory, begun, saved)
            ended, trajectory, allowed, why, differs = stepped
            steps = steps_of(task, plan, values) if native and not box and task.ranks.is_alone else None
            if steps is not None:
                steps.note_seconds(time.thread_time() - spent_before)
        status = torch.where(ended.status == Status.RUNNING, int(why or Status.MAX_STEPS), ended.status)
        stale = None if task.pinned is not None else witness.disagrees(values, ended.values)
        stale = differs if stale is None else stale if differs is None else stale | differs
        is_stale = asks and stale is not None and bool(stale)
        if task.ranks.any(is_stale)[0]:
            witness.check_deterministic(values, ended.values)
            if last:
                witness.refuse()
            plan.plain.has_gone_stale = True
            task.cache.drop(plan_key(task, values, inputs))
            if saved is not None:
                saved.forget()
            for number in (*plan.programs, *plan.seconds):
                plan.prospects[number].give_up()
            if is_whole:
                plan.plain.whole.give_up()
            if why is Status.INTERRUPTED:
                raise KeyboardInterrupt  # what was found is of a residual that has changed
            return None
        if not asks and stale is not None:
            # Without asking the device nothing can be recorded again; but a stale graph must not pass for an answer.
            status = torch.where(stale, int(Status.NON_FINITE), status)
            ended = ended._replace(values=tuple(torch.where(stale, torch.nan, x) for x in ended.values))
        if ended.is_idle and not task.is_trial:
            warn_without_influence(linearizer, values, prepared, box)
            nothing_left = (status <= Status.STEP_TOLERANCE) & without_squares(linearizer, values, prepared)
            status = torch.where(nothing_left, int(Status.STALLED), status)
        if table is not None:
            table.finish(status, _notes(task, plan))
        return Outcome(
            ended.values,
            ended.cost,
            status,
            ended.num_steps,
            ended.num_evaluations,
            ended.gradient_norm,
            ended.history,
            trajectory,
            (plan, linearizer, prepared),
            ended.matrix,
            why is Status.INTERRUPTED,
            allowed,
        )


def _notes(task: Task, plan: Plan) -> str:
    """What `verbose` is to say, in lines."""
    return "\n".join((plan.notes.text, said_of_programs(task, plan)))


def _stepped(
    batch: Batch,
    values: Values,
    box: Box | tuple[()],
    table: Table | None,
    keep_trajectory: bool,
    begun: float,
    saved: Saved | None,
) -> tuple[Ended, Trajectory | tuple[()], tuple[int, ...], Status | None, Tensor | None]:
    """The end of a solve whose steps Python takes, what they can be taken again from, if that is to be kept, with the
    iterations that they were allowed, what ended them from outside (a clock that has run since `begun`, or an
    interrupt), and whether a graph of a part of the batch has gone stale."""
    solver, ranks = batch.task.solver, batch.task.ranks
    # A round among others is not asked before its first step, which is wasted where it has nothing to do: who takes
    # rounds asks between them. One of a single step is not asked at all.
    is_round = batch.task.is_trial and not batch.plan.is_on_cpu
    looks = solver.early_stop and not (is_round and solver.max_steps == 1)
    runner = batch.runner(is_looked_at=looks)
    state, record = runner.start(values, box)
    records, methods, allowed, shrinks = [record], [], [], not keep_trajectory and saved is None
    may_bend = not keep_trajectory  # steps that are taken again are straight
    is_idle, begin, why, done = False, None, None, 0
    now = clock(batch.plan.is_large)
    if saved is not None:
        if keep_trajectory:
            raise CheckpointError(f"Checkpoint {saved.file}: an adjoint that differentiates steps needs all of them.")
        known = saved.load(state)
        if known is not None:
            state, records, done = known
            saved.check(state, runner.start(state.values, box)[0])
    taken, remaining = done, Remaining.of(batch, runner, state, records[-1])
    try:
        # All ranks have the statuses of the first one, so each knows whether there is another step, unless a callback
        # or a clock of one of them may end the solve.
        (may_be_ended,) = ranks.any(solver.callback is not None or solver.time_budget is not None)
        while done < solver.max_steps:
            told, running, bends = _told_to_stop(solver, table, done, records[-1], remaining), True, False
            if looks and not told:
                if done == taken == 0 and is_round:
                    pass
                elif done == taken == 0:
                    running, is_idle = first_look(remaining.state.status, remaining.record.gradient_norm)
                else:
                    count, bends = remaining.runner.look(remaining.state, may_bend)
                    running, remaining = count > 0, remaining.looked_at(count) if shrinks else remaining
            late = solver.time_budget is not None and time.perf_counter() - begun > solver.time_budget
            if may_be_ended or not running:
                told, late, running = ranks.any(told, late, running and ranks.is_first)
            if told or not running:
                break
            if late:
                why = Status.TIME_BUDGET
                break
            methods.append((remaining.state.accuracy, remaining.state.method))
            allowed.append(remaining.runner.allowed)
            after = remaining.stepped(bends)
            records.append(after.all_records())
            remaining, done = after, done + 1
            begin = now() if done == taken + 1 else begin  # the first step imports and records
            if saved is not None:
                saved.write_if_due(remaining.state, records, done)
        else:
            _told_to_stop(solver, table, done, records[-1], remaining)
    except KeyboardInterrupt as interrupt:
        ranks.tell_interrupt(interrupt)
        why = Status.INTERRUPTED  # a step that was not finished has changed nothing
        del records[done + 1 :], methods[done:], allowed[done:]
    if saved is not None:
        saved.finish(remaining.state, records, done, bool((remaining.state.status == Status.RUNNING).any()))
    note_seconds(batch.plan, 0.0 if begin is None else now() - begin)
    num_steps = remaining.of_all(lambda part: part.state.num_steps)
    ended = Ended(
        remaining.all_values(),
        remaining.of_all(lambda part: part.state.model.cost),
        remaining.of_all(lambda part: part.state.status),
        num_steps,
        remaining.of_all(lambda part: part.state.num_evaluations),
        records[-1].gradient_norm,
        history_of(records, num_steps, solver.max_steps),
        remaining.all_matrices(),
        is_idle,
    )
    differs = None if batch.task.pinned is not None else remaining.disagrees()
    if not keep_trajectory or not methods:
        return ended, (), (), why, differs
    accepted = torch.stack([record.accepted for record in records[1:]], 1)
    useful = useful_steps(accepted) if batch.plan.may_be_asked(solver.early_stop) else list(range(len(methods)))
    made = tuple(most for most in (allowed[step] for step in useful) if most is not None)
    return ended, trajectory_by(accepted, methods, useful), made, why, differs


def _told_to_stop(solver: Solver, table: Table | None, number: int, record: Record, remaining: Remaining) -> bool:
    """Tell the table and the callback about a step; True where the callback wants to stop."""
    if table is None and solver.callback is None:
        return False
    status = remaining.of_all(lambda part: part.state.status)
    names = [unknown.name for unknown in remaining.batch.task.system.unknowns]
    values = dict(zip(names, remaining.all_values(), strict=True))
    info = StepInfo(
        number, record.cost, record.gradient_norm, record.step_norm, record.damping, record.accepted, status, values
    )
    if table is not None:
        table.row(info)
    return solver.callback is not None and bool(solver.callback(info))


def history_of(records: list[Record], num_steps: Tensor, max_steps: int) -> History:
    """Records as (batch, max_steps + 1), NaN after the step at which a problem stopped; of very many problems no
    longer than the longest solve."""
    taken, kinds, batch = len(records), len(Record._fields) - 1, len(num_steps)
    figures = torch.stack([figure for record in records for figure in record[:kinds]]).view(taken, kinds, batch)
    figures, accepted = figures.permute(1, 2, 0), torch.stack([record.accepted for record in records], 1)
    if taken > 1:  # the start is every problem's
        used = torch.arange(taken, device=num_steps.device) <= num_steps[:, None]
        figures, accepted = torch.where(used, figures, torch.nan), accepted & used
    columns = [*figures.unbind(), accepted]
    return History.read_later(lambda: columns, columns[0][:, 0], max_steps)


def trajectory_of(ended: Ended, methods: Methods) -> Trajectory:
    """The steps of one problem that it accepted, stacked; there is at least one step."""
    accepted = ended.history.accepted[:, 1 : 1 + len(methods)]
    return trajectory_by(accepted, methods, useful_steps(accepted))


def useful_steps(accepted: Bool[Tensor, "batch steps"]) -> list[int]:
    """The numbers of the steps that at least one problem accepted: one question to a device."""
    return [step for step, is_useful in enumerate(accepted.any(0).tolist()) if is_useful]


def trajectory_by(accepted: Bool[Tensor, "batch steps"], methods: Methods, useful: list[int]) -> Trajectory:
    """These steps, stacked."""
    if not useful:
        return Trajectory(accepted[:, :0], *pytree.map_leaves(lambda x: x[:, None][:, :0], methods[0]))
    kept = [(accepted[:, step], *methods[step]) for step in useful]
    return Trajectory(*pytree.map_leaves(lambda *steps: torch.stack(steps, 1), *kept))
