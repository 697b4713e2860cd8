"""When a plan gets native programs: they are begun once that pays, and taken up once all that were begun are settled.

A plan with programs is a plan of its own, beside the one without: a solve in another thread keeps the one that it has,
and a solve that wants plain operations (one that is being exported) still finds them.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

import torch

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.derivatives import Way
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import Draft, Prospect
from mslsq.linearize.signs import has_sign, leave_sign, remove_sign
from mslsq.native.choice import Native
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK

PROGRAM_SECONDS = 1.0
"""Seconds of solves with a term after which its program is begun, or at once where a solve is to wait for it.

Writing it and recording the step again takes the calling thread 0.4 to 0.9 s, and saves 0.15 to 0.77 of the time of a
call: it pays after 1.1 to 1.7 s of solving without (pose graphs with Jacobians of their own or not, 10 to 2,500 poses;
Gaussians of 15 × 15 pixels), after 15 s for 1,024 fits of three cheap operations, which gain 2 %.
"""

LOOK_LANES = 1024
"""Blocks of all problems from which on a first solve looks for a program that a process before has left. For an SE(3)
between factor recording the residual, loading and comparing take 0.025 s, half as long as linearizing 1,024 blocks five
times in PyTorch. It does not hang on a clock: with or without a program a solve differs in its last digits."""

LOOK_LANES_OF_CLOSED_FORMS = 4096
"""The same of terms with Jacobians in closed form, which PyTorch linearizes three times as fast."""

LOOK_SECONDS = 0.1
"""Seconds of solves with terms of one family after which the next plan looks for such a program, whatever its size: of
a problem that grows every call is a first one. That is four times what looking takes; solves of 60 to 90 poses take
half of their time with it."""


def with_programs(
    plan: Plan, wish: Native, blocks: Callable[[], Sequence[BlockTerm]], values: Values, inputs: tuple[Inputs, ...]
) -> Plan:
    """The plan to run on: the one with native programs, once there are any.

    Args:
        plan: the one without.
        wish: "auto" begins with programs that pay; "wait" with all of them, and waits.
        blocks: the terms of the plan; asked for when something is to be done, since most calls do nothing.
        values, inputs: as given by the user.
    """
    if not plan.may_have_programs(wish):
        return plan
    due = _due(plan, wish)
    if not plan.tried.issuperset(due):
        _try(plan, due, wish, blocks(), values, inputs)
    return plan.native or plan


def _due(plan: Plan, wish: Native) -> list[int]:
    """The terms whose programs are to be begun, or taken up."""
    if wish != "wait" and plan.pays_after > _spent(plan):
        return []
    return [number for number, prospect in plan.prospects.items() if _is_due(prospect, wish)]


def _spent(plan: Plan) -> float:
    """Seconds of solves, as its terms have them."""
    return max((prospect.seconds for prospect in plan.prospects.values()), default=0.0)


def _is_due(prospect: Prospect, wish: Native) -> bool:
    if prospect.is_given_up:
        return False
    return wish == "wait" or prospect.draft is not None or prospect.seconds > PROGRAM_SECONDS


def hurry(plan: Plan, seconds: float) -> None:
    """The steps of the first solve are expected to take so long without programs: where programs would have paid by its
    end they are begun before it, and it waits for them, no longer than that."""
    if seconds > PROGRAM_SECONDS:
        note_seconds(plan, seconds)
        plan.patience = seconds


def take_up_made(
    plan: Plan, blocks: Sequence[BlockTerm], values: Values, inputs: tuple[Inputs, ...]
) -> tuple[int, ...]:
    """Before a first solve: take programs that a process before has compiled, of terms with many blocks, and of terms
    that have been solved with for some time. No compiler is started for it. Returns the numbers of the terms that have
    none then."""
    for number, prospect in plan.prospects.items():
        given = blocks[number], values, inputs[number]
        least = LOOK_LANES if blocks[number].term.jacobians is None else LOOK_LANES_OF_CLOSED_FORMS
        is_due = prospect.seconds > LOOK_SECONDS and not prospect.has_looked
        may_be_worth_it = is_due or blocks[number].all_lanes >= least
        if not may_be_worth_it or prospect.draft is not None or prospect.is_given_up:
            continue
        prospect.has_looked = True
        if has_sign(*given):
            draft = Draft(*given, compiled=False)
            if draft.load():
                prospect.draft = draft
            else:
                remove_sign(*given)
    return tuple(number for number, prospect in plan.prospects.items() if prospect.draft is None)


class Waiting(Protocol):
    """What may be with the compiler."""

    def wait(self, patience: float) -> None: ...


def wait_for(drafts: Iterable[Waiting], plan: Plan, wish: Native) -> None:
    """Wait for the compiler as long as it takes where a solve wishes that, or once as long as its plan has patience."""
    patience = math.inf if wish == "wait" else plan.plain.patience
    plan.plain.patience = 0.0
    if patience:
        deadline = time.monotonic() + patience
        for draft in drafts:
            draft.wait(deadline - time.monotonic())


def has_news(plan: Plan, wish: Native) -> bool:
    """Would `with_programs` begin with something, or return another plan than this?"""
    plain = plan.plain
    if not plain.may_have_programs(wish):
        return plan is not plain
    if plan is not (plain.native or plain):
        return True
    due = _due(plain, wish)
    if plain.tried.issuperset(due):
        return False
    drafts = [plain.prospects[number].draft for number in due]
    return wish == "wait" or all(draft is None or draft.is_settled for draft in drafts)


def note_seconds(plan: Plan, seconds: float) -> None:
    """Steps have been taken for so long: programs are begun once that is enough."""
    for prospect in plan.prospects.values():
        prospect.seconds += seconds
    if plan.plain.whole is not None:
        plan.plain.whole.seconds += seconds


def _try(
    plan: Plan, due: list[int], wish: Native, blocks: Sequence[BlockTerm], values: Values, inputs: tuple[Inputs, ...]
) -> None:
    """Begin with programs, and take them up if all are settled: whatever was recorded is recorded again with them."""
    drafts: dict[int, Draft] = {}
    for number in due:
        prospect = plan.prospects[number]
        drafts[number] = prospect.draft = prospect.draft or Draft(blocks[number], values, inputs[number])
    wait_for(drafts.values(), plan, wish)
    if all(draft.is_settled for draft in drafts.values()):
        found = {number: draft.program(blocks[number], values, inputs[number]) for number, draft in drafts.items()}
        programs = {number: program for number, program in found.items() if program is not None}
        if wish != "wait" and programs and plan.execution.graphs and len(programs) < len(blocks):
            plan.pays_after = plan.execution.recording_seconds / _share(programs, blocks, values, inputs)
            if plan.pays_after > _spent(plan):
                return
        plan.native = plan.with_programs(programs) if programs else None
        plan.tried = frozenset(due)
        for number in programs:
            if not drafts[number].has_left_sign:  # the other sizes of a problem that grows would leave the same
                leave_sign(blocks[number], values, inputs[number])
                drafts[number].leave_note()
                drafts[number].has_left_sign = True
    for draft in drafts.values():
        (plan.native or plan).notes.say(draft.sentence)


def _share(some: Iterable[int], blocks: Sequence[BlockTerm], values: Values, inputs: tuple[Inputs, ...]) -> float:
    """What some terms take of a linearization of all by PyTorch, from 0 to 1: the most that their programs can save.

    A prior on eight numbers beside a mean over 57,600 differences takes 0.2 %, and recording their steps and second
    derivatives again 1.2 s.
    """
    taken = []
    with TRANSFORM_LOCK, torch.no_grad():
        for block, given in zip(blocks, inputs, strict=True):
            prepared, rounds = block.prepare(given), []
            for _ in range(2):  # the first finds what a process has not loaded yet
                begun = time.perf_counter()
                block.linearizations(values, prepared)
                rounds.append(time.perf_counter() - begun)
            taken.append(min(rounds))
    return sum(taken[number] for number in some) / sum(taken)


def prospect_of(block: BlockTerm, way: Way, key: Hashable | None) -> Prospect:
    """That of the term's family, where it has one; `key` as of `family_key`, `way` how the term is differentiated."""
    if block.term.family is None or key is None or not way.is_of_any_count:
        return Prospect()
    return block.term.family.known.setdefault(("program", way, block.lanes_are_batch, key), Prospect())
