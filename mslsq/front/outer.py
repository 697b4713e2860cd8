"""A statement that is solved by a solver around a solver: outliers are rejected, or constraints met."""

from dataclasses import dataclass, field, fields, replace

from mslsq.adjoint import Adjoint, AdjointOptionError, Detached, Implicit
from mslsq.front.constrained import constrained
from mslsq.front.direct import solved_shortly
from mslsq.front.graduated import graduated
from mslsq.front.statement import Solved, Statement
from mslsq.problem.errors import ProblemError
from mslsq.solvers import AugmentedLagrangian, GraduatedNonConvexity, LevenbergMarquardt, Solver
from mslsq.solvers.outer import OuterLoop, OuterSolver
from mslsq.solvers.task import Task


@dataclass(frozen=True, eq=False)
class OuterStatement(Statement):
    """A statement whose task belongs to an outer loop."""

    outer: OuterLoop = field(kw_only=True)

    def task(self, solver: Solver) -> Task:
        return replace(super().task(solver), outer=self.outer)


def solved(
    statement: Statement, solver: Solver | OuterSolver | None, adjoint: Adjoint | None, has_costs: bool
) -> Solved:
    """The solution of a statement, by whichever solver.

    Args:
        has_costs: do its terms have names that the user knows?
    """
    statement, solver = stated_for(statement, solver, adjoint, has_costs)
    return solved_shortly(statement, solver, adjoint) or statement.solved(solver, adjoint)


def stated_for(
    statement: Statement, solver: Solver | OuterSolver | None, adjoint: Adjoint | None, has_costs: bool
) -> tuple[Statement, Solver | None]:
    """The statement with the loop of a solver around a solver, and the solver that takes the steps."""
    if any(term.kind.is_constraint for term in statement.system.terms):
        if isinstance(solver, GraduatedNonConvexity):
            raise ProblemError(
                "GraduatedNonConvexity does not take constraints: leave them out, or give the costs a robust loss."
            )
        if not isinstance(solver, AugmentedLagrangian):
            solver = AugmentedLagrangian(LevenbergMarquardt() if solver is None else solver)  # type: ignore[arg-type]
    elif isinstance(solver, AugmentedLagrangian):
        solver = solver.solver  # without constraints there is nothing to do in rounds
    if not isinstance(solver, OuterSolver):
        return statement, solver
    if adjoint is not None and not isinstance(adjoint, (Implicit, Detached)):
        raise AdjointOptionError(
            f"{type(solver).__name__} takes Implicit() or Detached(), not {adjoint!r}: its solution has the "
            "derivatives of the minimum that it ends in, the rounds before have none."
        )
    if isinstance(solver, GraduatedNonConvexity):
        stated, outer = graduated(statement, solver, has_costs)
    else:
        assert isinstance(solver, AugmentedLagrangian)
        stated, outer = constrained(statement, solver)
    own = {part.name: getattr(stated, part.name) for part in fields(Statement)}
    return OuterStatement(**own, outer=outer), solver.solver
