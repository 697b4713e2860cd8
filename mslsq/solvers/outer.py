"""Solvers around a solver: each solves a problem by rounds of another one, whose inputs it changes in between."""

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.problem.system import Inputs
from mslsq.solvers.levenberg_marquardt import LevenbergMarquardt
from mslsq.solvers.solver import Solver, SolverOptionError
from mslsq.validation import instance_of, plain_options

if TYPE_CHECKING:
    from mslsq.linearize.plan import Plan
    from mslsq.solvers.run import Outcome
    from mslsq.solvers.task import Task


@dataclass(frozen=True, eq=False)
class OuterSolver:
    """Base of the solvers around a solver, as users state them."""

    solver: Solver = field(default_factory=LevenbergMarquardt)

    def __post_init__(self) -> None:
        plain_options(self)
        instance_of(f"{type(self).__name__}: solver", self.solver, Solver)
        if self.solver.checkpoint is not None:
            raise SolverOptionError(f"{type(self).__name__}: a checkpoint keeps one solve, not the rounds of several.")

    def raising(self) -> Self:
        """The same, which an interrupt ends with an exception."""
        return replace(self, solver=self.solver.raising())


@dataclass(frozen=True, eq=False)
class Findings:
    """What a solver around a solver has found beside the solution."""

    inputs: tuple[dict[str, Tensor], ...]
    """Per term, by name, what it has put in the place of inputs: the solution is the minimum of the cost with them.
    Derivatives hold those constant that are no multipliers."""
    decided: Bool[Tensor, "batch"]
    """Does no residual lie where the problem itself changes (on a truncation)?"""
    weights: dict[str, Float[Tensor, "batch blocks"]] = field(default_factory=dict)
    """Of a solver that rejects outliers: ρ' of every block that may be one, by the name of its term."""
    multipliers: dict[str, Float[Tensor, "batch blocks rows"]] = field(default_factory=dict)
    """Of a solver under constraints, by the name of the term."""
    violation: Float[Tensor, "batch"] | tuple[()] = ()
    """Of a solver under constraints: the largest violation of one."""
    cost: Float[Tensor, "batch"] | None = None
    """The cost that is the user's, where that is not what was minimised."""


@dataclass(frozen=True)
class Clock:
    """How much of a time budget is left to the solves of a loop around them."""

    budget: float | None
    """Seconds; None for no limit."""
    begun: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float | None:
        """The budget of the next solve: what is left, or next to nothing."""
        return None if self.budget is None else max(self.budget - (time.perf_counter() - self.begun), NEXT_TO_NOTHING)

    @property
    def is_over(self) -> bool:
        return self.left == NEXT_TO_NOTHING


NEXT_TO_NOTHING = 1e-9
"""Seconds in which no step begins."""


class OuterLoop:
    """Base of what does it, on plain tensors; belongs to a `Task`."""

    def solved(
        self, task: "Task", values: Values, inputs: tuple[Inputs, ...], bounds: Inputs, differentiated: bool
    ) -> "tuple[Outcome, Findings]":
        """Solve a batch of problems; arguments as for `run`."""
        raise NotImplementedError


def is_taken_for_granted(plan: "Plan") -> bool:
    """May later rounds skip the comparison with the user's Python? A residual cannot change between rounds, and the
    first one has compared it; not where it reads what changes unseen."""
    return not (plan.changes_unseen or plan.execution.why_eager)
