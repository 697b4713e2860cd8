"""A solve to be made: everything about it but its tensors."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mslsq.linearize.baked import global_key, tensor_key
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.plan import Plan
from mslsq.linearize.plan_cache import PlanCache, PlanKey
from mslsq.problem.system import Inputs, System
from mslsq.ranks import ALONE, Ranks
from mslsq.solvers.solver import Solver

if TYPE_CHECKING:
    from mslsq.solvers.outer import OuterLoop


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

    def turn(self, plan: Plan) -> int | None:
        """Which of the comparisons in turn is to be made now? None where it is the first of what is recorded."""
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
