"""The plan of a solve: structure, pattern, linear solver, captured residuals; made once, checked at every call."""

import dataclasses
import warnings
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from mslsq.linear import QR, ConjugateGradient, LinearSolver
from mslsq.linear.choice import blocks_are_faster
from mslsq.linearize.blocks import BlockTerm, Values, block_term, few_blocks, first_block, writes_into_its_inputs
from mslsq.linearize.capture import capture
from mslsq.linearize.inplace import InPlaceResidualWarning, inplace_advice
from mslsq.linearize.linearizer import Linearizer, TermInputs, linearizer_of
from mslsq.linearize.pattern import block_rows_of, pattern_of, placement_of
from mslsq.linearize.trace import TRANSFORM_LOCK, Plan, PlanCache, global_key, tensor_key
from mslsq.problem.errors import ProblemError
from mslsq.problem.structure import structure_of
from mslsq.problem.system import Inputs, System, residual_vector
from mslsq.solvers.compressing import compressed_plan
from mslsq.solvers.solver import Solver


@dataclass(frozen=True, eq=False)
class Task:
    """Everything about a solve but its tensors."""

    system: System
    solver: Solver
    batch: int
    batched: tuple[frozenset[str], ...]
    """Per term, the inputs with a leading batch axis."""
    cache: PlanCache


def planned(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> tuple[Plan, Linearizer, TermInputs]:
    """The plan for these shapes, made on the first call, and the system bound to this call's functions."""
    key = plan_key(task, values, inputs)
    plan = task.cache.get(key)
    if plan is None:
        blocks = _measured(task, values, inputs)
        plan, note = compressed_plan(task.system, task.solver, blocks, values, inputs)
        if plan is None:
            plan = _made(task, blocks, values[0].device)
            _capture_where_needed(task, plan, blocks, values, inputs)
        plan.note = note
        plan.eager = next((term.eager for term in task.system.terms if term.eager), "")
        if plan.eager:
            plan.note = "; ".join(filter(None, (note, f"no graph of it is kept: {plan.eager}")))
        if not plan.eager or not (plan.captured or plan.compressed):  # those hold a graph of this moment
            task.cache.put(key, plan)
    blocks = plan.blocks(task.system, task.batch, task.batched)
    linearizer = linearizer_of(
        task.system, plan.structure, blocks, plan.placements, linear_solver_of(task, plan), fused=task.solver.compile
    )
    return plan, linearizer, linearizer.prepare(inputs)


def linear_solver_of(task: Task, plan: Plan) -> LinearSolver:
    """The linear solver that the task's solver chooses for this structure, bound to its pattern where it is sparse."""
    if plan.rows is not None and isinstance(task.solver.linear_solver, ConjugateGradient):
        return task.solver.linear_solver.bound_to_rows(plan.rows)
    on_cpu = plan.structure.columns[0].device.type == "cpu"
    linear = task.solver.chosen_linear_solver(plan.structure.size, plan.pattern is not None, on_cpu)
    if plan.pattern is None:
        return linear
    return linear.bound(plan.pattern.structure, plan.pattern.kinds(task.system))


def _made(task: Task, blocks: tuple[BlockTerm, ...], device: torch.device) -> Plan:
    """Structure, pattern and placements of a system: dense, a batch of small dense parts, or block-sparse."""
    sizes = tuple((block.rows, block.pairs) for block in blocks)
    # The triangle of QR is of the whole Jacobian: parts that nothing couples stay together.
    split = not task.solver.is_matrix_free and not isinstance(task.solver.linear_solver, QR)
    structure = structure_of(task.system, device, split)
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


def stale_plan(
    task: Task, plan: Plan, linearizer: Linearizer, values: Values, inputs: tuple[Inputs, ...], prepared: TermInputs
) -> Tensor | None:
    """Does what the plan has recorded differ from the user's functions as they are now? None where nothing is recorded.

    The key of a plan holds all that is known to matter; this catches the rest (an attribute of an imported module,
    of an opaque object): a stale graph is a wrong answer.
    """
    pairs = []
    for number, captured in plan.captured.items():
        term, batched, given = task.system.terms[number], task.batched[number], inputs[number]
        # Each on copies of its own: what is captured is what writes in place.
        block = linearizer.blocks[number]
        results = []
        for residual in (captured, term.residual):
            storages, first = first_block(term, batched, values, given)
            results.append(residual_vector(residual(block.values_of_block(storages), first))[0])
        pairs.append(tuple(results))
    if "residuals" in plan.graphs:
        replayed = plan.graphs["residuals"](values, prepared)
        with TRANSFORM_LOCK:
            now = linearizer.residuals(values, prepared)
        pairs.extend(zip(replayed, now, strict=True))
    differ = [_differ(old, new) for old, new in pairs]
    if plan.compressed is not None:
        pinned = plan.compressed.differs(inputs[0])
        differ += [] if pinned is None else [pinned]
    return torch.stack(differ).any() if differ else None


def _measured(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> tuple[BlockTerm, ...]:
    return tuple(
        block_term(term, task.system, task.batch, batched, values, given)
        for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True)
    )


def _capture_where_needed(
    task: Task, plan: Plan, blocks: tuple[BlockTerm, ...], values: Values, inputs: tuple[Inputs, ...]
) -> None:
    """Rewrite the residuals that `vmap` cannot map (in-place writes) out-of-place, with a warning that shows the
    idiomatic form."""
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        writes = writes_into_its_inputs(block, values, given)
        failure = None if writes else _failure(block, values, given)
        if isinstance(failure, ProblemError):
            raise failure
        if writes or failure is not None:
            term = block.term
            storages, first = first_block(term, block.batched, values, given)
            with TRANSFORM_LOCK:
                captured = capture(term.residual, (block.values_of_block(storages), first), name=term.name)
            rewritten = dataclasses.replace(block, term=term.with_residual(captured))
            remaining = _failure(rewritten, values, given)
            if remaining is not None:
                raise failure or remaining  # rewriting does not help: the first error is the one to show
            plan.captured[number] = captured
            advice = inplace_advice(captured.in_place, term.name)
            if advice:
                warnings.warn(advice, InPlaceResidualWarning, stacklevel=2)


def _failure(block: BlockTerm, values: Values, given: Inputs) -> Exception | None:
    """The exception that the linearization under `vmap` ends with, if any; tried on two blocks: 2 ms instead of 20 for
    4949 relative poses."""
    few, inputs = few_blocks(block, given)
    try:
        with TRANSFORM_LOCK:
            few.linearizations(values, few.prepare(inputs))
    except Exception as error:
        return error
    return None


def plan_key(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> Hashable:
    """All that a plan is known to depend on."""
    terms = tuple(
        (
            term.name,
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


def _differ(old: Tensor, new: Tensor) -> Tensor:
    """Is there more than rounding between them (both come from the same operations)? The answer stays on the device."""
    if old.shape != new.shape:
        return torch.ones((), dtype=torch.bool, device=new.device)
    tolerance = 1e-10 if old.dtype == torch.float64 else 1e-4
    scale = torch.where(torch.isfinite(new), new.abs(), 0).amax()
    return (
        ~torch.isclose(old, new, rtol=tolerance, atol=0, equal_nan=True)
        .logical_or((old - new).abs() <= tolerance * scale)
        .all()
    )
