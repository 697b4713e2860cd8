"""The plan of a solve: structure, pattern, linear solver, captured residuals; made once, checked at every call."""

import contextlib
import dataclasses

import torch

from mslsq.linear.choice import blocks_are_faster
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.family import family_key
from mslsq.linearize.first_block import block_term, evaluate_first
from mslsq.linearize.forecast import seconds_of_steps
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.pattern import block_rows_of, pattern_of, placement_of
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import Prospect
from mslsq.linearize.prospects import PROGRAM_SECONDS, hurry, prospect_of, take_up_made, with_programs
from mslsq.linearize.unmoved import Influence
from mslsq.linearize.ways import hessian_way_of, way_of
from mslsq.native.choice import Native
from mslsq.private import load_forward_mode
from mslsq.problem.errors import ProblemError
from mslsq.problem.structure import structure_of
from mslsq.problem.system import ROOT, Inputs
from mslsq.solvers.box import limits_of
from mslsq.solvers.choices import is_small_and_dense, is_watched, linearizer_of
from mslsq.solvers.compressing import compressed_plan
from mslsq.solvers.second_order import kinds_of_programs, look_for_second_order
from mslsq.solvers.task import Pinned, Task, plan_key

STALE = "what the residual reads changes unseen from call to call"


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
    elif not plan.execution.graphs and (task.trust is None or task.trust.is_open(plan)):
        _fill_caches(task, values, inputs)
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
    """Take up the programs of second derivatives that are ready, and begin with those that pay. Where the whole solve
    is to be a program its end is one, too, and until then the few blocks are faster as they are recorded: of a residual
    of 20 rows a program that PyTorch runs takes 600 operations."""
    if plan.compressed is not None or not plan.is_on_cpu:
        return
    wish = task.solver.native_choice
    is_whole = wish == "auto" and _is_wholly_native(task, plan, wish)

    def begins(prospect: Prospect) -> bool:
        return wish == "auto" and prospect.seconds > PROGRAM_SECONDS and not is_whole

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


def _fill_caches(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> None:
    """Evaluate residuals that may write to what they hold in plain Python, before anything is recorded or mapped: what
    they put into a cache then is a plain tensor. When a plan is made, that is done by measuring them."""
    for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True):
        if not term.is_of_library:
            with contextlib.suppress(RuntimeError):  # a matrix that cannot be factored, say, stops no other problem
                evaluate_first(term, task.system, task.batch, batched, values, given)


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
    influence = Influence(task.system)
    blocks = tuple(
        block_term(term, task.system, task.batch, batched, values, given, influence)
        for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True)
    )
    influence.warn()
    return task.within_limits(blocks)


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


def _is_wholly_native(task: Task, plan: Plan, wish: Native) -> bool:
    """Is the whole solve to be a program, so that those of blocks are not made? A problem that grows gets to those
    first, which all its sizes share."""
    if is_watched(task.solver) or not task.solver.keeps_graphs or not is_small_and_dense(task, plan):
        return False
    whole = plan.plain.whole
    if whole is None:
        return wish == "wait" or plan.plain.patience > 0
    return not whole.is_refused and (wish == "wait" or whole.has_begun)


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
