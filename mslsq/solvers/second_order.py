"""Programs of second derivatives for the derivatives of solutions: when they are begun, and whether they are there.

Written as scalars they are run by PyTorch until they are compiled, or for good where nothing is to be compiled.
"""

from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import Prospect
from mslsq.linearize.second_order import MixedDraft, MixedProgram, Replayable, SecondOrderDraft, WrittenSystem
from mslsq.native.choice import is_recorded_elsewhere
from mslsq.problem.system import Inputs
from mslsq.solvers.solver import Solver

REPLAY_SECONDS = 0.1
"""What a look at a solution must have taken (its Hessians by transforms of PyTorch) for programs to be begun at once:
writing one takes 0.1 to 0.3 s. 200 ms for 1,516 SE(3) between factors, whose program takes 20, or compiled 2."""

REPLAY_LANES = 200
"""Blocks of all problems below which none is begun: run by PyTorch, a program takes as long for one as for 500."""


def kinds_of_programs(solver: Solver) -> tuple[bool, bool]:
    """Does a solver take programs that are compiled, and those that PyTorch runs?"""
    return solver.native_choice != "never", solver.keeps_graphs and not is_recorded_elsewhere()


def look_for_second_order(
    plan: Plan,
    solver: Solver,
    blocks: tuple[BlockTerm, ...],
    values: Values,
    inputs: tuple[Inputs, ...],
    begins: Callable[[Prospect], bool],
) -> None:
    """Take up gradients and Hessians that are ready, and begin with those of the terms that `begins` says; with all of
    them where a solve waits for the compiler.

    Args:
        inputs: as given by the user.
    """
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        prospect = plan.prospects.get(number)
        if prospect is None or prospect.is_given_up:
            continue
        wish = solver.native_choice
        if prospect.second is None and (wish == "wait" or begins(prospect)):
            prospect.second = SecondOrderDraft(block, values, given, compiled=wish != "never")
        _take_up(plan, plan.seconds, number, prospect.second, solver, block, values, given)
        second = plan.seconds.get(number)
        if second is None or prospect.second is None or number in plan.guards:
            continue
        if not (second.is_compiled and number in plan.programs):  # that is compared
            guard = prospect.second.guard(block)
            if guard is not None:
                plan.guards[number] = guard


def mixed_programs(
    plan: Plan,
    solver: Solver,
    blocks: tuple[BlockTerm, ...],
    values: Values,
    inputs: tuple[Inputs, ...],
    wanted: Mapping[int, tuple[str, ...]],
) -> dict[int, MixedProgram] | None:
    """The mixed derivatives in the wanted inputs of terms; None as long as one is not there. Begun where there are
    programs of the second derivatives.

    Args:
        inputs: as given by the user.
        wanted: by term, the names of inputs.
    """
    if not plan.has_second_order(*kinds_of_programs(solver)):
        return None
    for number, names in wanted.items():
        prospect, block, given = plan.prospects[number], blocks[number], inputs[number]
        if prospect.is_given_up:
            return None
        if names not in prospect.mixed:
            compiled = solver.native_choice != "never"
            cost = None if prospect.second is None else prospect.second.cost
            prospect.mixed[names] = MixedDraft(block, values, given, cost, names, compiled)
        _take_up(plan, plan.mixed, (number, names), prospect.mixed[names], solver, block, values, given)
    found = {number: plan.mixed.get((number, names)) for number, names in wanted.items()}
    return (
        {number: program for number, program in found.items() if program is not None} if all(found.values()) else None
    )


def may_be_compiled_now(plan: Plan, solver: Solver, wanted: Mapping[int, tuple[str, ...]]) -> bool:
    """Has the compiler finished with something that solves on this plan still have PyTorch run? The next solve that is
    planned takes it up.

    Args:
        wanted: by term, the names of inputs whose mixed derivatives are taken.
    """
    if solver.native_choice == "never":
        return False
    for number, second in plan.seconds.items():
        prospect, names = plan.prospects[number], wanted.get(number, ())
        mixed, draft = plan.mixed.get((number, names)), prospect.mixed.get(names)
        pairs = (second, prospect.second), (mixed, draft)
        if any(run is not None and not run.is_compiled and one is not None and one.is_compiled for run, one in pairs):
            return True
    return False


def written_system(plan: Plan, solver: Solver, linearizer: Linearizer) -> WrittenSystem | None:
    """Gradient and cost that can be differentiated any further, where there are programs of all second derivatives."""
    if not plan.seconds or not plan.has_second_order(*kinds_of_programs(solver)):
        return None
    drafts = [plan.prospects[number].second for number in range(len(linearizer.blocks))]
    found = [
        None if draft is None else draft.differentiable(block)
        for draft, block in zip(drafts, linearizer.blocks, strict=True)
    ]
    terms = tuple(term for term in found if term is not None)
    return WrittenSystem(linearizer, terms) if len(terms) == len(found) else None


def _take_up(
    plan: Plan,
    known: MutableMapping[Any, Any],
    key: Hashable,
    draft: Replayable[Any] | None,
    solver: Solver,
    block: BlockTerm,
    values: Values,
    inputs: Inputs,
) -> None:
    """What is compiled once it is there, what PyTorch runs until then."""
    if draft is None or (key in known and known[key].is_compiled):
        return
    wish, program = solver.native_choice, None
    if wish != "never":
        draft.begin()
        if wish == "wait":
            draft.wait()
        program = draft.program(block, values, inputs)
        plan.notes.say(draft.sentence)
    if program is None and key not in known and kinds_of_programs(solver)[1]:
        program = draft.replayed(block, values, inputs)
    if program is not None:
        plan.take_up(known, key, program)
