"""The plan of a solve: structure, pattern, linear solver, captured residuals; made once, checked at every call."""

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import torch

from mslsq.linear import Cholesky, LinearSolver, UnrolledCholesky
from mslsq.linear.choice import blocks_are_faster
from mslsq.linearize.blocks import BlockTerm, Values, block_term
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.pattern import block_rows_of, pattern_of, placement_of
from mslsq.linearize.plan import Plan, PlanCache, global_key, tensor_key
from mslsq.linearize.programs import Draft, Prospect
from mslsq.linearize.ways import hessian_way_of, way_of
from mslsq.native.choice import Native, choice
from mslsq.problem.structure import structure_of
from mslsq.problem.system import Inputs, System
from mslsq.solvers.compressing import compressed_plan
from mslsq.solvers.solver import Solver

PROGRAM_SECONDS = 1.0
"""What a native program costs before it runs: recording, differentiating and writing it (0.3 to 1 s), with the compiler
beside. It is begun once as much has been spent on solves with a term, or at once where a solve is to wait for it."""

STALE = "what the residual reads changes unseen from call to call"


@dataclass(eq=False)
class Pinned:
    """A plan that is taken for granted, with the functions of one system: nothing is looked up, and nothing compared
    with the user's Python."""

    plan: Plan
    linearizer: Linearizer | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Everything about a solve but its tensors."""

    system: System
    solver: Solver
    batch: int
    batched: tuple[frozenset[str], ...]
    """Per term, the inputs with a leading batch axis."""
    cache: PlanCache
    pinned: Pinned | None = None

    def of_batch(self, batch: int, batched: tuple[frozenset[str], ...]) -> "Task":
        """The same for another batch."""
        return dataclasses.replace(self, batch=batch, batched=batched, pinned=None)


def planned(
    task: Task, values: Values, inputs: tuple[Inputs, ...], differentiated: bool = False, native: bool = True
) -> tuple[Plan, Linearizer, TermInputs]:
    """The plan for these shapes, made on the first call, and the system bound to this call's functions.

    `differentiated` where derivatives of the solution will be taken: second derivatives are then checked as well.
    `native` where blocks may be linearized by native programs.
    """
    if task.pinned is not None:
        return _pinned(task, task.pinned, values, inputs, differentiated)
    key = plan_key(task, values, inputs)
    plan = task.cache.get(key)
    if plan is None:
        blocks = _measured(task, values, inputs)
        plan, note = compressed_plan(task.system, task.solver, blocks, values, inputs)
        if plan is None:
            plan = _made(task, blocks, values[0].device)
            _choose_ways(plan, blocks, values, inputs)
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
    elif plan.changes_unseen:
        plan = _checked_again(task, plan, values, inputs)
    if differentiated and not plan.hessians_checked:
        _choose_hessians(task, plan, values, inputs)
    if native and not plan.execution.why_eager:
        _look_for_programs(task, plan, values, inputs)
    linearizer = _linearizer(task, plan, native)
    return plan, linearizer, linearizer.prepare(inputs)


def _pinned(
    task: Task, pinned: Pinned, values: Values, inputs: tuple[Inputs, ...], differentiated: bool
) -> tuple[Plan, Linearizer, TermInputs]:
    """`planned` of a plan that is taken for granted."""
    plan, linearizer = pinned.plan, pinned.linearizer
    if differentiated and not plan.hessians_checked:
        _choose_hessians(task, plan, values, inputs)
        linearizer = None
    if linearizer is None:
        linearizer = pinned.linearizer = _linearizer(task, plan, native=True)
    return plan, linearizer, linearizer.prepare(inputs)


def _linearizer(task: Task, plan: Plan, native: bool) -> Linearizer:
    linear = linear_solver_of(task, plan)
    return plan.linearizer(task.system, task.batch, task.batched, linear, fused=task.solver.compile, native=native)


def _checked_again(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> Plan:
    """The plan for this call alone: a residual that reads something else may need another way, or return more rows.

    That takes as long as one step, of a solve whose steps are not recorded.
    """
    blocks = _measured(task, values, inputs)
    same = tuple((block.rows, block.pairs) for block in blocks) == plan.sizes
    fresh = plan if same else _made(task, blocks, values[0].device)
    fresh = dataclasses.replace(fresh, ways={}, notes=plan.notes, changes_unseen=True, hessians_checked=False)
    fresh.execution.why_eager = plan.execution.why_eager
    fresh.execution.needs_witness = plan.execution.needs_witness
    _choose_ways(fresh, blocks, values, inputs)
    return fresh


def linear_solver_of(task: Task, plan: Plan) -> LinearSolver:
    """The linear solver that the task's solver chooses for this structure, bound to its pattern where it is sparse."""
    if plan.rows is not None and task.solver.linear_solver != "auto":
        return task.solver.linear_solver.bound_to_rows(plan.rows)
    linear = task.solver.chosen_linear_solver(plan.structure.size, plan.pattern is not None, plan.is_on_cpu)
    if plan.pattern is None:
        return linear
    return linear.bound(plan.pattern.structure, plan.pattern.kinds(task.system))


def _made(task: Task, blocks: tuple[BlockTerm, ...], device: torch.device) -> Plan:
    """Structure, pattern and placements of a system: dense, a batch of small dense parts, or block-sparse."""
    sizes = tuple((block.rows, block.pairs) for block in blocks)
    structure = structure_of(task.system, device, task.solver.solves_parts)
    if task.solver.is_matrix_free and structure.size > 0:
        rows = block_rows_of(task.system, structure, tuple(block.rows for block in blocks))
        placements = tuple(
            placement_of(block.term, block.lanes_are_batch, structure, None, forms_matrix=False) for block in blocks
        )
        return Plan(structure, None, placements, sizes, rows=rows)
    pattern = None
    wanted, on_cpu = task.solver.wants_sparse(structure.size), device.type == "cpu"
    if wanted or (on_cpu and task.solver.may_want_sparse(structure.size, structure.num_components, task.batch)):
        whole = structure_of(task.system, device, split=False)
        pattern = pattern_of(task.system, whole)
        kinds = pattern.kinds(task.system)
        if not wanted:
            sparse = blocks_are_faster(pattern.structure, kinds)
        else:
            sparse = on_cpu or task.solver.is_sparse_anywhere(pattern.structure, kinds)
        structure, pattern = (whole, pattern) if sparse else (structure, None)
    placements = tuple(placement_of(block.term, block.lanes_are_batch, structure, pattern) for block in blocks)
    return Plan(structure, pattern, placements, sizes)


def _measured(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> tuple[BlockTerm, ...]:
    return tuple(
        block_term(term, task.system, task.batch, batched, values, given)
        for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True)
    )


def _choose_ways(plan: Plan, blocks: tuple[BlockTerm, ...], values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Find a way to differentiate every term that is right, rewriting residuals where need be."""
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        key = None if plan.changes_unseen else _family_key(block, values, given)
        family, found = block.term.family, None
        if family is not None and key is not None:
            found = family.known.get(key)
        if found is None:
            found = way_of(block, values, given)
            if family is not None and key is not None and found.way.is_of_any_count:
                family.known[key] = found
        plan.ways[number] = found.way
        plan.notes.say(found.note)
        if found.way.lane_by_lane and not plan.execution.why_eager:
            plan.execution.why_eager = found.note


def _family_key(block: BlockTerm, values: Values, inputs: Inputs) -> Hashable:
    """What the way to differentiate a term depends on, and its rightness: one block, and whether there are several.

    None where nothing is known of other terms, or where what the residual reads is not known to the end.
    """
    term, batched = block.term, block.batched
    if term.family is None or term.eager:
        return None
    spaces = tuple(block.system.unknowns[slot.unknown].space for slot in term.slots)
    shared = tuple(isinstance(slot.index, int) for slot in term.slots)
    tensors = tuple(
        (name, tuple(x.shape[(name in batched) + (name in term.per_block) :]), x.dtype, x.device, x.is_contiguous())
        for name, x in inputs.items()
        if name not in term.family.indices
    )
    counts = (min(block.batch, 2), min(term.num_blocks, 2), term.per_block, batched, block.rows, block.pairs)
    start = values[0].dtype, values[0].device
    return (term.kind, term.family.key(), spaces, shared, start, tensors, counts, type(term.loss), global_key())


def _look_for_programs(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Take up the native programs that are ready, and begin with those that pay.

    What was recorded without a program goes.
    """
    wish = choice(task.solver.native)
    if wish == "never" or plan.compressed is not None or not plan.is_on_cpu:
        return
    if _is_wholly_native(task, plan, wish):
        return
    blocks = plan.blocks(task.system, task.batch, task.batched)
    if not plan.prospects:
        plan.prospects.update((n, _prospect(plan, *one)) for n, one in enumerate(_zipped(blocks, values, inputs)))
    for number, (block, _, given) in enumerate(_zipped(blocks, values, inputs)):
        prospect = plan.prospects[number]
        if number in plan.programs or prospect.is_given_up:
            continue
        if prospect.draft is None and (wish == "wait" or prospect.seconds > PROGRAM_SECONDS):
            prospect.draft = Draft(block, values, given)
        if prospect.draft is None:
            continue
        if wish == "wait":
            prospect.draft.wait()
        program = prospect.draft.program(block, values, given)
        plan.notes.say(prospect.draft.sentence)
        if program is not None:
            plan.programs[number] = program
            plan.execution.graphs.clear()


LARGEST_MATRIX = 600
"""Entries of JᵀJ of a problem whose solve is a native program: 24 unknowns. A step takes seven or eight operations for
each: the program of a larger one would be refused after seconds of recording."""


def is_small_and_dense(task: Task, plan: Plan) -> bool:
    """Are these small dense problems that the library's own steps solve on a CPU?"""
    structure = plan.structure
    if plan.is_large or plan.compressed is not None or not plan.is_on_cpu or structure.num_columns == 0:
        return False
    is_of_library = type(task.solver).__module__.startswith(f"{__package__}.")
    is_cholesky = type(linear_solver_of(task, plan)) in (Cholesky, UnrolledCholesky)
    is_small = structure.num_columns * structure.size <= LARGEST_MATRIX
    return is_small and is_of_library and is_cholesky


def _is_wholly_native(task: Task, plan: Plan, wish: Native) -> bool:
    """Is the whole solve to be a program, so that those of blocks are not made? A problem that grows gets to those
    first, which all its sizes share."""
    if is_watched(task.solver) or not is_small_and_dense(task, plan):
        return False
    if plan.whole is None:
        return wish == "wait"
    return not plan.whole.is_refused and (wish == "wait" or plan.whole.has_begun)


def is_watched(solver: Solver) -> bool:
    """Does something in Python want to see every step?"""
    return solver.callback is not None or solver.verbose


def _zipped(
    blocks: tuple[BlockTerm, ...], values: Values, inputs: tuple[Inputs, ...]
) -> Iterator[tuple[BlockTerm, Values, Inputs]]:
    return ((block, values, given) for block, given in zip(blocks, inputs, strict=True))


def _prospect(plan: Plan, block: BlockTerm, values: Values, inputs: Inputs) -> Prospect:
    """That of the term's family, where there is one."""
    key = None if plan.changes_unseen else _family_key(block, values, inputs)
    if block.term.family is None or key is None or not block.way.is_of_any_count:
        return Prospect()
    return block.term.family.known.setdefault(("program", block.way, block.lanes_are_batch, key), Prospect())


def _choose_hessians(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Change the ways of terms whose second derivatives are not right; what was recorded in the old ones goes."""
    blocks = plan.blocks(task.system, task.batch, task.batched)
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        user = dataclasses.replace(block, term=task.system.terms[number])
        key = None if plan.changes_unseen else _family_key(user, values, given)
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


def plan_key(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> Hashable:
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
    return task.system.key, task.solver.key, task.batch, tuple(map(tensor_key, values)), terms, global_key()
