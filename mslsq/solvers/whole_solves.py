"""Whether a solve runs as a native program from its start to its end, and what it comes to then.

That is for batches of small dense problems, whose steps are not looked at: `solved_natively` decides.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq.linearize.baked import global_key
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.linearize.prospects import PROGRAM_SECONDS, wait_for
from mslsq.linearize.signs import sign_of_key
from mslsq.linearize.trace import WITNESS
from mslsq.native.choice import Native
from mslsq.native.store import STORE
from mslsq.native.whole_solves import CREEPS, OF_CREEPING, OF_NONE, RUNNING
from mslsq.problem.structure import Structure
from mslsq.problem.system import Inputs
from mslsq.solution import History
from mslsq.solvers.box import Box
from mslsq.solvers.choices import is_small_and_dense, is_watched
from mslsq.solvers.solver import Solver
from mslsq.solvers.task import Task
from mslsq.solvers.whole_program import SolveDraft
from mslsq.solvers.witness import Witness


class Ended(NamedTuple):
    """The end of the loop: what `Outcome` says of it, a status still RUNNING where steps ran out."""

    values: Values
    cost: Tensor
    status: Tensor
    num_steps: Tensor
    num_evaluations: Tensor
    gradient_norm: Tensor
    history: History
    matrix: Tensor
    is_idle: bool
    """Is the gradient of a problem exactly zero at its start?"""
    interrupted: bool = False
    """By a KeyboardInterrupt?"""


@dataclass
class SolveProspect:
    """What has been spent on solves of problems of one structure, and their program once that has paid."""

    seconds: float = 0.0
    draft: SolveDraft | None = None
    is_given_up: bool = False
    """Does what the residual reads change unseen?"""
    seconds_of_looks: float = 0.0
    """What looking at the ends of solves has taken, for derivatives..."""
    ends: dict[Hashable, Any] = field(default_factory=dict)
    """... and the programs for that (`adjoint.ends`)."""
    sign: str = ""
    """Under which processes tell each other that there is a program; empty where they cannot."""

    @cached_property
    def seconds_of_finding(self) -> float:
        """As a process before has noted it, when this was first asked."""
        return seconds_of_finding(self.sign)

    @property
    def enough(self) -> float:
        """Seconds of solves after which it pays to make a program: where a process before had one, as many as finding
        it took there. However many solves then follow, they take at most twice what the better choice would have.
        (Solves are timed by the clock, finding by the processor: on a busy machine it comes sooner.)"""
        return min(self.seconds_of_finding, PROGRAM_SECONDS)

    @property
    def is_ready(self) -> bool:
        """Can the program be run?"""
        return self.draft is not None and self.draft.is_ready

    @property
    def has_begun(self) -> bool:
        """Does it pay to make the program?"""
        return self.draft is not None or self.is_given_up or self.seconds > self.enough

    @property
    def is_refused(self) -> bool:
        """Is it known that there will be no program, so that those of blocks are worth making?"""
        return self.draft is not None and bool(self.draft.why_not)

    @property
    def is_coming(self) -> bool:
        """Is it being made, or to be looked at?"""
        return self.has_begun and not self.is_given_up and not self.is_refused

    @property
    def is_due(self) -> bool:
        """Is it to be begun, or to be looked at? While the compiler works on it, solves run on what is recorded."""
        return self.is_coming and (self.draft is None or self.draft.is_ready)

    def give_up(self) -> None:
        self.draft, self.is_given_up = None, True
        self.ends.clear()


def seconds_of_finding(sign: str) -> float:
    """What finding the program took a process before, as that has noted: its text is written, by which it is found, and
    its numbers are compared. Infinity where none had one. No constant serves here: it is 0.03 to 0.3 s on one machine.
    """
    try:
        seconds = float(STORE.note(sign) or math.inf) if sign else math.inf
    except ValueError:
        return math.inf
    return seconds if seconds >= 0 else math.inf


def prospect_of(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> SolveProspect:
    """What is known of the program for these problems, however many there are."""
    plain = plan.plain
    if plain.whole is None:
        key = None if plan.changes_unseen else _key(task, values, inputs)
        made = SolveProspect if key is None else lambda: SolveProspect(sign=sign_of_key(key))
        plain.whole = made() if key is None else task.cache.kept(key, made)
    return plain.whole


def solved_natively(
    task: Task,
    plan: Plan,
    values: Values,
    inputs: tuple[Inputs, ...],
    witness: Witness,
    box: Box | tuple[()] = (),
) -> Ended | None:
    """The end of a solve that a native program has run; None where there is none, or none yet.

    The program is made where that pays, or at once where the solve is to wait for it.
    """
    wish = task.solver.native_choice
    if wish == "never" or plan.execution.why_eager or not task.solver.keeps_graphs:
        return None
    prospect = _made_ready(task, plan, values, inputs, wish)
    if prospect is None or is_watched(task.solver) or not _is_witnessed(task, plan, values, witness):
        return None
    if not _is_taken_up(prospect, task, plan, values, inputs, box):
        return None
    draft = prospect.draft
    assert draft is not None  # it is ready
    return solved_by(draft, task.solver, plan.structure, values, inputs, box)


def solved_by(
    draft: SolveDraft,
    solver: Solver,
    structure: Structure,
    values: Values,
    inputs: tuple[Inputs, ...],
    box: Box | tuple[()],
) -> Ended | None:
    """The end of a solve that this program has run, which `is_ready`; None where problems creep, which it leaves."""
    looks = solver.early_stop and solver.max_steps > 0
    bending = OF_CREEPING if solver.early_stop else OF_NONE  # as in PyTorch, where the loop asks who creeps
    solved = draft.solve(values, inputs, box, solver.max_steps, looks, bending)
    left = solved.status == CREEPS if draft.leaves_creeping else None
    if left is not None and bool(left.any()):
        if not solved.interrupted:
            return None  # Python's steps are bent
        solved = solved._replace(status=torch.where(left, RUNNING, solved.status))
    steps = solved.history
    start_cost, gradient_norm = steps.of_start
    return Ended(
        tuple(x.reshape(like.shape) for x, like in zip(solved.values, values, strict=True)),
        solved.cost,
        solved.status,
        solved.num_steps,
        solved.num_steps + 1,
        solved.gradient_norm,
        History.read_later(lambda: steps.columns, start_cost, solver.max_steps),
        solved.matrix.reshape(-1, structure.num_components, structure.size, structure.size),
        looks and not bool(gradient_norm.all()),
        solved.interrupted,
    )


def program_in_use(plan: Plan) -> SolveDraft | None:
    """The program that solves on this plan have taken up, if it solves single problems, too; None where there is none,
    or where it has been given up."""
    whole: SolveProspect | None = plan.plain.whole
    if not plan.holds_whole or whole is None or whole.draft is None or not whole.is_ready:
        return None
    return whole.draft if whole.draft.solves_one else None


def said_of_programs(task: Task, plan: Plan) -> str:
    """What `verbose` is to say of a solve's program, in lines. A plan serves solvers that want none, too."""
    whole: SolveProspect | None = plan.plain.whole
    if whole is None or whole.draft is None or task.solver.native_choice == "never":
        return ""
    watched = "\nSteps that verbose or a callback looks at run in Python, without the program of whole solves."
    return whole.draft.sentence + watched * whole.is_ready


def _made_ready(
    task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...], wish: Native
) -> SolveProspect | None:
    """Go on with the program, if these problems have one and as far as that is wished; None where it is not ready."""
    if not plan.may_have_programs(wish):
        return None
    whole: SolveProspect | None = plan.plain.whole
    if whole is not None and whole.is_ready:
        return whole
    if not is_small_and_dense(task, plan):
        return None
    prospect = prospect_of(task, plan, values, inputs)
    if prospect.is_given_up:
        return None
    hurries = wish == "wait" or plan.plain.patience > 0
    if prospect.draft is None and task.pinned is None and (hurries or prospect.has_begun):
        prospect.draft = SolveDraft(task, plan, values, inputs)
    if prospect.draft is None:
        return None
    wait_for([prospect.draft], plan, wish)
    return prospect if prospect.is_ready else None


def _is_taken_up(
    prospect: SolveProspect,
    task: Task,
    plan: Plan,
    values: Values,
    inputs: tuple[Inputs, ...],
    box: Box | tuple[()],
) -> bool:
    """Does the program hold what the witness of this plan holds, so that it would be noticed if it goes stale?

    The program is older than the plan where it was written for another number of problems, and than its witness where
    that was recorded again.
    """
    witness, draft = plan.execution.graphs.get(WITNESS), prospect.draft
    if plan.holds_whole and (task.pinned is not None or plan.whole_witness is witness):
        return True
    if draft is None or not draft.agrees(task, plan, values, inputs, box):
        if prospect.sign and prospect.is_refused:
            STORE.remove_note(prospect.sign)
        return False
    if prospect.sign:
        STORE.leave_note(prospect.sign, f"{draft.seconds:.3f}")
    plan.holds_whole, plan.whole_witness = True, witness
    return True


def _is_witnessed(task: Task, plan: Plan, values: Values, witness: Witness) -> bool:
    """Is there what a program is compared with at the end of a solve?"""
    if task.pinned is None and not plan.execution.is_witnessed:
        witness.record(values)
    return not plan.execution.why_eager


def _key(task: Task, values: Values, inputs: tuple[Inputs, ...]) -> Hashable:
    """All that a program is known to depend on: what the plan depends on, but for the size of the batch and layouts."""
    terms = tuple(
        (
            term.key,
            term.kind,
            term.num_blocks,
            term.per_block,
            batched,
            type(term.loss),
            term.elementwise_loss,
            tuple((name, x.shape[1:] if name in batched else x.shape, x.dtype) for name, x in given.items()),
        )
        for term, batched, given in zip(task.system.terms, task.batched, inputs, strict=True)
    )
    starts = tuple((x.shape[1:], x.dtype, x.device) for x in values)
    return "whole solves", task.system.key, task.bounded, task.solver.key, starts, terms, global_key()
