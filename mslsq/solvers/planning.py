"""The plan of a solve: structure, pattern, linear solver, captured residuals; made once, checked at every call."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from mslsq.linear import Cholesky, LinearSolver, UnrolledCholesky
from mslsq.linear.choice import blocks_are_faster
from mslsq.linearize.baked import global_key, tensor_key
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.family import family_key
from mslsq.linearize.first_block import block_term
from mslsq.linearize.forecast import seconds_of_steps
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.pattern import block_rows_of, pattern_of, placement_of
from mslsq.linearize.plan import Plan
from mslsq.linearize.plan_cache import PlanCache, PlanKey
from mslsq.linearize.programs import Prospect
from mslsq.linearize.prospects import PROGRAM_SECONDS, hurry, prospect_of, take_up_made, with_programs
from mslsq.linearize.ways import hessian_way_of, way_of
from mslsq.native.choice import Native
from mslsq.private import load_forward_mode
from mslsq.problem.errors import ProblemError
from mslsq.problem.structure import structure_of
from mslsq.problem.system import ROOT, Inputs, System
from mslsq.ranks import ALONE, Ranks
from mslsq.solvers.box import limits_of
from mslsq.solvers.compressing import compressed_plan
from mslsq.solvers.second_order import kinds_of_programs, look_for_second_order
from mslsq.solvers.solver import Creep, Solver

if TYPE_CHECKING:
    from mslsq.solvers.outer import OuterLoop

STALE = "what the residual reads changes unseen from call to call"


@dataclass(eq=False)
class Pinned:
    """A plan that is taken for granted, with the functions of one system: nothing is looked up, and nothing compared
    with the user's Python."""

    plan: Plan
    linearizer: Linearizer | None = None


class Trust(Protocol):
    """Which solves need no comparison with the user's Python (`front.trust`)."""

    def is_given(self, plan: Plan) -> bool:
        """To the solve that has just been made by this plan? Counts it."""
        ...

    def is_open(self, plan: Plan) -> bool:
        """Is it never given to solves of this plan?"""
        ...

    def withdraw(self, plan: Plan) -> None:
        """A comparison has found a difference."""
        ...


@dataclass(frozen=True, eq=False)
class Task:
    """Everything about a solve but its tensors."""

    system: System
    solver: Solver
    batch: int
    batched: tuple[frozenset[str], ...]
    """Per term, the inputs with a leading batch axis."""
    cache: PlanCache
    batched_bounds: frozenset[str] = frozenset()
    """The bounds with a leading batch axis."""
    limits: tuple[Values, Values] | None = None
    """While a plan is made: as `BlockTerm.bounds`."""
    pinned: Pinned | None = None
    outer: "OuterLoop | None" = None
    """What solves it by rounds of its solver: to reject outliers, or under constraints."""
    is_trial: bool = False
    """One solve of several, whose start is not the user's: nothing that is odd about it is said."""
    trust: Trust | None = None
    """None where every solve is compared."""
    ranks: Ranks = ALONE
    """The processes that solve it together; the terms of the system are those of this one."""

    @property
    def bounded(self) -> tuple[bool, ...]:
        """Which unknowns have bounds."""
        return tuple(unknown.is_bounded for unknown in self.system.unknowns)

    def blocks(self, plan: Plan) -> tuple[BlockTerm, ...]:
        """The terms for a plan, ready to be mapped."""
        return self.within_limits(plan.blocks(self.system, self.batch, self.batched))

    def within_limits(self, blocks: tuple[BlockTerm, ...]) -> tuple[BlockTerm, ...]:
        """Terms that know the bounds of their variables, if there are some."""
        if self.limits is None:
            return blocks
        return tuple(dataclasses.replace(block, bounds=self.limits) for block in blocks)

    def of_batch(self, batch: int, batched: tuple[frozenset[str], ...]) -> "Task":
        """The same for another batch."""
        return dataclasses.replace(self, batch=batch, batched=batched, pinned=None)


def planned(
    task: Task,
    values: Values,
    inputs: tuple[Inputs, ...],
    differentiated: bool = False,
    native: bool = True,
    bounds: Inputs | None = None,
) -> tuple[Plan, Linearizer, TermInputs]:
    """The plan for these shapes, made on the first call, and the system bound to this call's functions.

    `differentiated` where derivatives of the solution will be taken: second derivatives are then checked as well.
    `native` where blocks may be linearized by native programs. `bounds` as `limits_of` takes them: nothing outside is
    evaluated here.
    """
    for term, given in zip(task.system.terms, inputs, strict=True):
        if term.kind.is_constraint and ROOT not in given:
            raise ProblemError(
                f"Constraint {term.name!r}: constraints are met by mslsq.solve, mslsq.prepared and LeastSquaresLayer "
                "alone. Leave it out here, or make a cost with a large weight of it."
            )
    task = task if not bounds else dataclasses.replace(task, limits=limits_of(task.system, values, bounds))
    if task.pinned is not None:
        return _pinned(task, task.pinned, values, inputs, differentiated)
    key = plan_key(task, values, inputs)
    plan = task.cache.get(key)
    (is_new,) = task.ranks.any(plan is None)
    if plan is None or is_new:
        load_forward_mode()
        blocks = _measured(task, values, inputs)
        plan, note = compressed_plan(task.solver, blocks, values, inputs) if task.ranks.is_alone else (None, "")
        if plan is None:
            plan = _made(task, blocks, values[0].device)
            _choose_ways(plan, blocks, values, inputs)
        plan.has_users_manifold = not all(unknown.space.is_of_library for unknown in task.system.unknowns)
        plan.execution.needs_witness = not all(term.is_of_library for term in task.system.terms)
        plan.notes.say(note)
        for why in [term.eager for term in task.system.terms] + [STALE] * task.cache.goes_stale(key):
            if why:
                plan.execution.why_eager = plan.execution.why_eager or why
                plan.changes_unseen = True
                plan.notes.say(f"no graph of it is kept: {why}")
        # A graph that a residual was rewritten into holds for this call alone where no graph may be kept.
        if not (plan.execution.why_eager and plan.holds_residuals):
            task.cache.put(key, plan)
        if native and not plan.execution.why_eager:
            _look_ahead(task, plan, values, inputs)
    elif task.ranks.any(plan.changes_unseen)[0]:
        plan = _checked_again(task, plan, values, inputs)
    if native and not plan.execution.why_eager:
        plan = _with_programs(task, plan, values, inputs)
    if differentiated and not plan.hessians_checked:
        _choose_hessians(task, plan, values, inputs)
    if native and differentiated and not plan.execution.why_eager:
        _look_for_second_order(task, plan, values, inputs)
    linearizer = linearizer_of(task, plan, native)
    return plan, linearizer, linearizer.prepare(inputs)


def _pinned(
    task: Task, pinned: Pinned, values: Values, inputs: tuple[Inputs, ...], differentiated: bool
) -> tuple[Plan, Linearizer, TermInputs]:
    """`planned` of a plan that is taken for granted."""
    plan, linearizer = pinned.plan, pinned.linearizer
    if differentiated and not plan.hessians_checked:
        _choose_hessians(task, plan, values, inputs)
        linearizer = None
    if differentiated and linearizer is not None and not linearizer.has_second_order:
        linearizer = linearizer if not plan.has_second_order(*kinds_of_programs(task.solver)) else None
    if linearizer is None:
        linearizer = pinned.linearizer = linearizer_of(task, plan)
    return plan, linearizer, linearizer.prepare(inputs)


def linearizer_of(task: Task, plan: Plan, native: bool = True) -> Linearizer:
    """The functions of a task's system for a plan, as its solver runs them."""
    linear, fused = linear_solver_of(task, plan), task.solver.execution.compile and not plan.is_for_programs
    compiled, replayed = kinds_of_programs(task.solver) if native else (False, False)
    compiled = compiled or plan.holds_programs  # then it was chosen for them
    return plan.linearizer(
        *(task.system, task.batch, task.batched, linear), fused=fused, native=compiled, replayed=replayed
    )


def _look_ahead(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Begin with programs before the first solve where they will have paid by its end."""
    wish = task.solver.native_choice
    has_begun = any(prospect.draft is not None or prospect.is_given_up for prospect in plan.prospects.values())
    if wish == "auto" and plan.may_have_programs(wish) and task.ranks.is_alone and not has_begun:
        blocks = task.blocks(plan)
        left = take_up_made(plan, blocks, values, inputs)
        given = tuple(blocks[number] for number in left), values, tuple(inputs[number] for number in left)
        hurry(plan, seconds_of_steps(*given, task.solver.max_steps))


def _with_programs(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> Plan:
    """The plan with native programs, where there are some and this solve wants them."""
    wish = task.solver.native_choice_of_large if plan.is_for_programs else task.solver.native_choice
    if wish != "never" and _is_wholly_native(task, plan, wish):
        return plan
    return with_programs(plan, wish, lambda: task.blocks(plan), values, inputs)


def _look_for_second_order(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Take up the programs of second derivatives that are ready, and begin with those that pay."""
    if plan.compressed is not None or not plan.is_on_cpu:
        return
    wish = task.solver.native_choice

    def begins(prospect: Prospect) -> bool:
        return wish == "auto" and prospect.seconds > PROGRAM_SECONDS

    blocks = task.blocks(plan)
    look_for_second_order(plan, task.solver, blocks, values, inputs, begins)


def _checked_again(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> Plan:
    """The plan for this call alone: a residual that reads something else may need another way, or return more rows.

    That takes as long as one step, of a solve whose steps are not recorded.
    """
    blocks = _measured(task, values, inputs)
    differs = tuple((block.rows, block.pairs) for block in blocks) != plan.sizes
    fresh = plan if not task.ranks.any(differs)[0] else _made(task, blocks, values[0].device)
    fresh = dataclasses.replace(fresh, ways={}, notes=plan.notes, changes_unseen=True, hessians_checked=False)
    fresh.execution.why_eager = plan.execution.why_eager
    fresh.execution.needs_witness = plan.execution.needs_witness
    _choose_ways(fresh, blocks, values, inputs)
    return fresh


def linear_solver_of(task: Task, plan: Plan) -> LinearSolver:
    """The linear solver that the task's solver chooses for this structure, bound to its pattern where it is sparse."""
    linear = _linear_solver_of(task, plan)
    return linear if plan.may_be_asked(task.solver.early_stop) else linear.without_asking()


def _linear_solver_of(task: Task, plan: Plan) -> LinearSolver:
    by_rows = None if plan.rows is None else task.solver.linear.of_rows(plan.rows)
    if by_rows is not None:
        return by_rows
    linear = task.solver.linear.chosen(plan.structure.size, plan.pattern is not None, plan.is_on_cpu)
    if plan.pattern is None:
        return linear
    return linear.bound(plan.pattern.structure, plan.pattern.kinds(task.system))


def _made(task: Task, blocks: tuple[BlockTerm, ...], device: torch.device) -> Plan:
    """Structure, pattern and placements of a system: dense, a batch of small dense parts, or block-sparse."""
    sizes = tuple((block.rows, block.pairs) for block in blocks)
    ranks = task.ranks
    structure = structure_of(task.system, device, task.solver.linear.solves_parts and ranks.is_alone)
    if task.solver.linear.is_matrix_free and structure.size > 0:
        rows = block_rows_of(task.system, structure, tuple(block.rows for block in blocks))
        placements = tuple(placement_of(block, structure, None, forms_matrix=False) for block in blocks)
        return Plan(structure, None, placements, sizes, rows=rows, ranks=ranks)
    pattern = None
    wanted, on_cpu = task.solver.linear.wants_sparse(structure.size), device.type == "cpu"
    if wanted or (on_cpu and task.solver.linear.may_want_sparse(structure.size, structure.num_components, task.batch)):
        whole = structure if structure.num_components == 1 else structure_of(task.system, device, split=False)
        pattern = pattern_of(task.system, whole, ranks)
        kinds = pattern.kinds(task.system)
        if not wanted:
            sparse = blocks_are_faster(pattern.structure, task.batch)
        else:
            sparse = on_cpu or task.solver.linear.is_sparse_anywhere(pattern.structure, kinds)
        structure, pattern = (whole, pattern) if sparse else (structure, None)
    placements = tuple(placement_of(block, structure, pattern) for block in blocks)
    return Plan(structure, pattern, placements, sizes, ranks=ranks)


def _measured(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> tuple[BlockTerm, ...]:
    return task.within_limits(
        tuple(
            block_term(term, task.system, task.batch, batched, values, given)
            for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True)
        )
    )


def _choose_ways(plan: Plan, blocks: tuple[BlockTerm, ...], values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Find a way to differentiate every term that is right, rewriting residuals where need be; and what is known of
    its native program."""
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        key = None if plan.changes_unseen else family_key(block, values, given)
        family, found = block.term.family, None
        if family is not None and key is not None:
            found = family.known.get(key)
        if found is None:
            found = way_of(block, values, given)
            if family is not None and key is not None and found.way.is_of_any_count:
                family.known[key] = found
        plan.ways[number] = found.way
        plan.prospects[number] = prospect_of(block, found.way, key)
        plan.notes.say(found.note)
        if found.way.lane_by_lane and not plan.execution.why_eager:
            plan.execution.why_eager = found.note


LARGEST_MATRIX = 600
"""Entries of JᵀJ of a problem whose solve is a native program: 24 unknowns. A step takes seven or eight operations for
each: the program of a larger one would be refused after seconds of recording."""


LEAST_ON_GPU = 128
"""Problems that are worth whole solves on a GPU, where each has one thread: a block of threads. The rows of fewer are
better computed side by side. Not measured: no GPU has run either."""


def is_small_and_dense(task: Task, plan: Plan) -> bool:
    """Are these small dense problems that the library's own steps solve, on a GPU many of them?"""
    structure = plan.structure
    if plan.is_large or plan.compressed is not None or structure.num_columns == 0:
        return False
    if not plan.is_on_cpu and task.batch < LEAST_ON_GPU:
        return False
    if not plan.ranks.is_alone:
        return False
    if task.solver.bends_always:
        return False  # the recorded step knows linearizations, not the residuals that it is bent by
    is_of_library = type(task.solver).__module__.startswith(f"{__package__}.")
    is_cholesky = type(linear_solver_of(task, plan)) in (Cholesky, UnrolledCholesky)
    is_small = structure.num_columns * structure.size <= LARGEST_MATRIX
    return is_small and is_of_library and is_cholesky


def creep_of(task: Task, linear: LinearSolver) -> Creep | None:
    """How the problems of a task are told whose steps are bent; None where steps are all of one kind.

    Of a problem whose matrix is kept in blocks a bent step takes two to four times as long as a straight one, and of
    the pose graphs and bundle adjustments that creep none needs fewer steps for it. Several ranks would have to agree.
    """
    return task.solver.creep if linear.storage.is_dense and task.ranks.is_alone else None


def _is_wholly_native(task: Task, plan: Plan, wish: Native) -> bool:
    """Is the whole solve to be a program, so that those of blocks are not made? A problem that grows gets to those
    first, which all its sizes share."""
    if is_watched(task.solver) or not task.solver.keeps_graphs or not is_small_and_dense(task, plan):
        return False
    whole = plan.plain.whole
    if whole is None:
        return wish == "wait" or plan.plain.patience > 0
    return not whole.is_refused and (wish == "wait" or whole.has_begun)


def is_watched(solver: Solver) -> bool:
    """Does something in Python want to see every step: a callback, the table, a clock, a checkpoint?"""
    wanted = (solver.callback, solver.time_budget, solver.checkpoint)
    return solver.verbose or any(option is not None for option in wanted)


def _choose_hessians(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Change the ways of terms whose second derivatives are not right; what was recorded in the old ones goes."""
    blocks = task.blocks(plan)
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        user = dataclasses.replace(block, term=task.system.terms[number])
        key = None if plan.changes_unseen else family_key(user, values, given)
        family, checked = user.term.family, ("second derivatives", block.way, key)
        is_known = family is not None and key is not None and checked in family.known
        found = hessian_way_of(user, block.way, values, given, is_known)
        if found is None and family is not None and key is not None and block.way.is_of_any_count:
            family.known[checked] = True
        if found is not None:
            plan.ways[number] = found.way
            plan.execution.graphs.clear()
            plan.notes.say(found.note)
    plan.hessians_checked = True


def plan_key(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> PlanKey:
    """All that a plan is known to depend on."""
    terms = tuple(
        (
            term.name,
            term.kind,
            term.key,
            term.num_blocks,
            term.per_block,
            batched,
            type(term.loss),
            term.elementwise_loss,
            tuple((name, tensor_key(tensor)) for name, tensor in given.items()),
        )
        for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True)
    )
    return PlanKey(
        task.system.key,
        task.ranks.key,
        task.bounded,
        task.solver.key,
        task.batch,
        tuple(map(tensor_key, values)),
        terms,
        global_key(),
    )
