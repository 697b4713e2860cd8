"""A problem at a point, as the engine sees it: where every diagnosis starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.adjoint.function import with_batch_axis
from mslsq.front.constrained import constrained
from mslsq.front.problem_statement import stated
from mslsq.front.statement import Statement
from mslsq.linear import Cholesky, LinearSolver
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.linearize.pattern import Pattern
from mslsq.problem import Problem
from mslsq.problem.structure import Structure
from mslsq.solvers import AugmentedLagrangian, LevenbergMarquardt
from mslsq.solvers.box import free_of_bounds
from mslsq.solvers.constraint_terms import ConstraintTerms, without_constraints
from mslsq.solvers.planning import planned
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.validation import instance_of


@dataclass(frozen=True, eq=False)
class Located:
    """A problem, values of its variables, and the engine's functions of them."""

    problem: Problem
    stated: Statement
    structure: Structure
    pattern: Pattern | None
    """Of block-sparse normal equations; None where they are dense."""
    linearizer: Linearizer
    inputs: TermInputs
    constraints: tuple[ConstraintTerms, Linearizer, TermInputs] | None = None
    """Of a problem with some: which terms they are, the system with them, and its inputs; the linearizer above has the
    costs alone."""

    def residuals(self) -> tuple[Float[Tensor, "outer rows lanes"], ...]:
        """Per cost, the weighted residuals."""
        with TRANSFORM_LOCK:
            return self.linearizer.residuals(self.stated.values, self.inputs)

    def jacobians(self) -> tuple[Float[Tensor, "outer rows tangent lanes"], ...]:
        """Per cost, the weighted Jacobian blocks."""
        with TRANSFORM_LOCK:
            return tuple(
                block.linearizations(self.stated.values, given)[1]
                for block, given in zip(self.linearizer.blocks, self.inputs, strict=True)
            )

    def linearization(self) -> Linearization:
        """Gradient and normal equations JᵀJ of the whole problem, losses included."""
        with TRANSFORM_LOCK:
            return self.linearizer.linearize(self.stated.values, self.inputs)

    def free_of_bounds(self) -> Bool[Tensor, "batch columns"] | None:
        """Which columns are on no bound; None where there are no bounds."""
        bounds = with_batch_axis(self.stated.task(LevenbergMarquardt()), self.stated.bounds.tensors)
        found = free_of_bounds(self.linearizer, self.stated.values, bounds)
        return found[0] if found else None

    def columns(self, name: str) -> Tensor:
        """(count, tangent) the columns of a variable; those of fixed blocks are `structure.num_columns`."""
        return self.structure.columns[list(self.problem.variables).index(name)]


def located(
    problem: Problem,
    values: Mapping[str, Any],
    data: Any = None,
    in_dims: Any = None,
    dense: bool = False,
    takes_constraints: bool = False,
    linear_solver: LinearSolver | None = None,
) -> Located:
    """The problem at these values; arguments as for `mslsq.solve`. `dense` asks for dense normal equations of any
    size; `takes_constraints` says that constraints are apart from the costs there, and the equations dense;
    `linear_solver` is one whose storage the linearization has."""
    instance_of("problem", problem, Problem)
    statement, terms = stated(problem, values, data, in_dims), None
    if takes_constraints and any(term.kind.is_constraint for term in statement.system.terms):
        statement, loop = constrained(statement, AugmentedLagrangian())
        terms, dense = loop.terms, True
    # Levenberg–Marquardt's default asks the linearizer for normal equations, by connected components where there are
    # many, block-sparse where they are large.
    linear_solver = linear_solver or (Cholesky() if dense else None)
    solver = LevenbergMarquardt() if linear_solver is None else LevenbergMarquardt(linear_solver=linear_solver)
    plan, linearizer, inputs = planned(statement.task(solver), statement.values, statement.inputs, native=False)
    if terms is None:
        return Located(problem, statement, plan.structure, plan.pattern, linearizer, inputs)
    apart = terms, linearizer, linearizer.prepare(terms.plain(statement.inputs))
    costs = without_constraints(linearizer, inputs)
    return Located(problem, statement, plan.structure, plan.pattern, *costs, apart)


def machine_epsilon(like: Tensor) -> float:
    return torch.finfo(like.dtype).eps
