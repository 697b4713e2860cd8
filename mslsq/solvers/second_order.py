"""Native second derivatives for the derivatives of a solution: when they are begun, and whether they are there."""

from collections.abc import Mapping
from typing import Any

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import Pending, Prospect
from mslsq.linearize.second_order import MixedDraft, MixedProgram, SecondOrderDraft
from mslsq.native.choice import choice
from mslsq.problem.system import Inputs
from mslsq.solvers.solver import Solver


def look_for_second_order(
    plan: Plan, solver: Solver, blocks: tuple[BlockTerm, ...], values: Values, inputs: tuple[Inputs, ...], pays: float
) -> None:
    """Take up gradients and Hessians that are ready, and begin with those that pay: at once where a solve waits for
    the compiler, else when `pays` seconds have been spent on a term.

    Args:
        inputs: as given by the user.
    """
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        prospect = plan.prospects.get(number)
        if prospect is None or prospect.is_given_up or number in plan.seconds:
            continue
        wish = choice(solver.native)
        if prospect.second is None and (wish == "wait" or (wish == "auto" and prospect.seconds > pays)):
            prospect.second = SecondOrderDraft(block, values, given)
        program = _ready(plan, prospect.second, wish == "wait", block, values, given)
        if program is not None:
            plan.seconds[number] = program


def mixed_programs(
    plan: Plan,
    solver: Solver,
    blocks: tuple[BlockTerm, ...],
    values: Values,
    inputs: tuple[Inputs, ...],
    wanted: Mapping[int, tuple[str, ...]],
) -> dict[int, MixedProgram] | None:
    """The mixed derivatives in the wanted inputs of terms; None as long as one is not there. Begun where the second
    derivatives of the term are native.

    Args:
        wanted: by term, the names of inputs.
    """
    found: dict[int, MixedProgram] = {}
    for number, names in wanted.items():
        prospect = plan.prospects.get(number, Prospect())
        if number not in plan.seconds or prospect.is_given_up:
            return None
        key = (number, names)
        if key not in plan.mixed:
            block, given = blocks[number], inputs[number]
            if names not in prospect.mixed:
                prospect.mixed[names] = MixedDraft(block, values, given, names)
            waits = choice(solver.native) == "wait"
            program = _ready(plan, prospect.mixed[names], waits, block, values, given)
            if program is None:
                return None
            plan.mixed[key] = program
        found[number] = plan.mixed[key]
    return found


def _ready(
    plan: Plan, draft: Pending[Any] | None, waits: bool, block: BlockTerm, values: Values, inputs: Inputs
) -> Any:
    """What has come of a draft, if anything."""
    if draft is None:
        return None
    if waits:
        draft.wait()
    program = draft.program(block, values, inputs)
    plan.notes.say(draft.sentence)
    return program
