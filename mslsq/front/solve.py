"""`solve`: a problem of cost functions over variables, batched by `in_dims`."""

from collections.abc import Mapping
from typing import Any

from mslsq.adjoint import Adjoint
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.elsewhere.calls import call_knowing_words
from mslsq.front import repeated_problem
from mslsq.front.answering import Call
from mslsq.front.outer import solved
from mslsq.front.problem_statement import stated
from mslsq.problem import Problem
from mslsq.solution import Solution
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.outer import OuterSolver
from mslsq.validation import instance_of


@outside_compiled_regions
@call_knowing_words(LevenbergMarquardt.__dataclass_fields__)
def solve(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    in_dims: Any = None,
    project_start: bool = False,
    solver: Solver | OuterSolver | None = None,
    adjoint: Adjoint | None = None,
) -> Solution:
    """Minimise the cost of a problem over its variables.

    Args:
        problem: its costs know their variables.
        values: the start by variable name: manifold elements or storage tensors, (count, storage), or (storage,) for a
            variable with `count=None`.
        data: `data[cost][leaf]` replaces any tensor of a cost: its data by keyword, `"weight"`, `"loss.scale"`,
            parameters by their names in `state_dict`. `data["bounds"][variable] = (lower, upper)` replaces bounds. The
            rest is the problem's own; gradients flow to both.
        in_dims: `torch.func.vmap`'s, over `(values, data)`: one independent solve per entry; the rest is shared.
        project_start: start from the nearest point within the bounds of the variables, where a start is outside.
        solver: `LevenbergMarquardt()` by default; `GraduatedNonConvexity(...)` where blocks may be outliers.
        adjoint: how derivatives pass through the solve, `Implicit()` by default.

    Returns:
        A `Solution` whose `value` is a dict like `values`, of the same types.

    Raises:
        ProblemError (a ValueError): a name that is not known, a wrong shape, dtype or device; the message says which.

    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=mslsq.LevenbergMarquardt(max_steps=50))
    >>> solution.value["pose"]
    """
    instance_of("solve: problem", problem, Problem, "For a plain residual use mslsq.least_squares.")
    call = Call.of(problem, values, data, in_dims, project_start, solver, adjoint)
    answered = None if call is None else repeated_problem.answered(call)
    if answered is not None:
        return answered
    statement = stated(problem, values, data, in_dims, project_start)
    ended = solved(statement, solver, adjoint, has_costs=True)
    if call is not None:
        repeated_problem.remember(call, ended)
    return ended.solution
