"""A statement: what a user asks for at any of the front doors, as the engine takes it. It is solved here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mslsq.adjoint import Adjoint, Implicit, solve_system
from mslsq.adjoint.compiling import refuse_fake_tensors
from mslsq.adjoint.solve import SolvedSystem
from mslsq.front.bounds import NO_BOUNDS, StatedBounds
from mslsq.front.leaves import Leaf, Start
from mslsq.levels import backward_may_come
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.derivatives import Mode
from mslsq.linearize.plan import Plan
from mslsq.linearize.plan_cache import PlanCache
from mslsq.private import has_escaped, transforms_are_active
from mslsq.problem.system import System
from mslsq.solution import Solution
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.task import Task, Trust
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.tracing.reading.exchange import UncollectedTensorError, keeping
from mslsq.validation import instance_of

RESIDUAL_AND_JACOBIAN = "residual and Jacobian"
"""The graph of both at the solution of a single term."""


class SolveInterrupted(KeyboardInterrupt):
    """A solve was interrupted during its steps; `solution` is the best point so far, in the form of the start."""

    def __init__(self, solution: Solution):
        super().__init__("The solve was interrupted; `solution` of this exception is the best point so far.")
        self.solution = solution


@dataclass(frozen=True, eq=False)
class Statement:
    """A system of equations, every tensor that it depends on, and how its solution is given back."""

    system: System
    starts: tuple[Start, ...]
    """Of every unknown."""
    leaves: tuple[tuple[Leaf, ...], ...]
    """What each term depends on."""
    size: int | None
    """Of the batch; None where nothing is mapped. Then the batch axis of everything below is 1."""
    plans: PlanCache
    in_users_form: Callable[[Values], Any]
    """The storages of the unknowns, with a batch axis or without, in the form of the start."""
    entries_in_users_form: Callable[[Values], Any]
    """The same of numbers per tangent entry, (..., count, tangent) of every unknown."""
    bounds: StatedBounds = NO_BOUNDS
    trust: Trust | None = None
    """Which of its solves need no comparison with the user's Python."""

    @cached_property
    def values(self) -> Values:
        """The start of every unknown, (batch, count, storage)."""
        return self.bounds.projected(self.system, tuple(start.of_all(self.size) for start in self.starts))

    @cached_property
    def inputs(self) -> tuple[dict[str, Tensor], ...]:
        """Per term its tensors by name, the batch axis of those that are mapped first."""
        return tuple({leaf.name: leaf.batch_first for leaf in leaves} for leaves in self.leaves)

    @cached_property
    def batched(self) -> tuple[frozenset[str], ...]:
        """Per term the names of the tensors that are mapped."""
        return tuple(frozenset(leaf.name for leaf in leaves if leaf.axis is not None) for leaves in self.leaves)

    def task(self, solver: Solver) -> Task:
        """Everything about its solve but the tensors."""
        size = self.size or 1
        return Task(self.system, solver, size, self.batched, self.plans, self.bounds.batched, trust=self.trust)

    def solved(self, solver: Solver | None, adjoint: Adjoint | None) -> "Solved":
        """The solution; by default of `LevenbergMarquardt()`, with the derivatives of `Implicit()`."""
        solver = LevenbergMarquardt() if solver is None else solver
        adjoint = Implicit() if adjoint is None else adjoint
        instance_of("solver", solver, Solver, "Write solver=mslsq.LevenbergMarquardt(), say.")
        instance_of("adjoint", adjoint, Adjoint, "Write adjoint=mslsq.Implicit(), say.")
        refuse_fake_tensors(self.starts[0].tensor)
        found = solve_system(self.task(solver), self.values, self.inputs, self.bounds.tensors, adjoint)
        return self.given_back(found, solver, self.inputs)

    def given_back(self, system: SolvedSystem, solver: Solver, inputs: tuple[dict[str, Tensor], ...]) -> "Solved":
        """A solution as the engine has it in the form of the start; `inputs` are what it was found for.

        Raises:
            SolveInterrupted: a KeyboardInterrupt has ended the solve, and the solver is not to return then.
            UncollectedTensorError: the solution depends on a tensor that the residual has kept of an evaluation.
        """
        if any(map(has_escaped, system.solution.value)):
            raise UncollectedTensorError(keeping("one in an object that is not looked into"))
        found, storages, plan = system.solution, system.solution.value, system.plan
        if self.size is None:
            found = found.of_problem(0)
        active = self.entries_in_users_form(found.active) if self.bounds.of else ()
        found = replace(found, value=self.in_users_form(found.value), active=active)
        if system.interrupted:
            heed_interrupt(found, solver)
        return Solved(self, found, storages, plan, solver, inputs)


def heed_interrupt(found: Solution, solver: Solver) -> None:
    """Of a solve that a KeyboardInterrupt has ended, with its best point.

    Raises:
        SolveInterrupted: the solver is not to return then.
    """
    if solver.on_interrupt == "raise":
        if transforms_are_active():
            raise KeyboardInterrupt  # under a transform a solution means nothing outside
        raise SolveInterrupted(found)


@dataclass(frozen=True, eq=False)
class Solved:
    """A statement and its solution."""

    statement: Statement
    solution: Solution
    """As the user gets it: without a batch axis where one problem was asked for."""
    storages: Values
    plan: Plan
    solver: Solver
    inputs: tuple[dict[str, Tensor], ...]

    @property
    def is_batch(self) -> bool:
        """Was more than one problem asked for?"""
        return self.statement.size is not None

    @property
    def jacobian_mode(self) -> Mode:
        """How a single term was differentiated: what works for its residual works for what it is made of."""
        return jacobian_mode_of(self.plan)

    def residual_and_jacobian(self) -> tuple[Float[Tensor, "batch rows"], Float[Tensor, "batch rows columns"]]:
        """Of a single term at the solution, before any loss, differentiated as the solve has differentiated it; both
        carry the derivatives of the solution and of the inputs."""
        statement = self.statement
        (term,), (inputs,), (batched,) = statement.system.terms, self.inputs, statement.batched
        block = BlockTerm(term, statement.system, statement.size or 1, batched, *self.plan.sizes[0])
        block = block.going(self.plan.ways.get(0, block.way))
        at = self.storages, block.prepare(inputs)
        if transforms_are_active() or any(map(backward_may_come, [*self.storages, *inputs.values()])):
            with TRANSFORM_LOCK:
                residual, jacobian = block.linearizations(*at)
        else:
            run = self.plan.execution.run
            residual, jacobian = run(RESIDUAL_AND_JACOBIAN, self.solver.execution, block.linearizations, *at)
        return residual[0].movedim(-1, 0), jacobian[0].movedim(-1, 0)


def jacobian_mode_of(plan: Plan) -> Mode:
    """How a single term was differentiated."""
    way = plan.ways.get(0)
    return "forward" if way is None or way.jacobian is None else way.jacobian
