"""`solve`: a problem of cost functions over variables, batched by `in_dims`."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mslsq.adjoint import Adjoint, solve_system
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.front.batching import unbatched
from mslsq.front.problem_system import stated
from mslsq.linearize.plan import PlanCache
from mslsq.problem import Problem
from mslsq.problem.variable import Variable
from mslsq.solution import Solution
from mslsq.solvers import Solver

_PLANS: "weakref.WeakKeyDictionary[Problem, PlanCache]" = weakref.WeakKeyDictionary()


@outside_compiled_regions
def solve(
    problem: Problem,
    values: Mapping[str, Any],
    data: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    in_dims: Any = None,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
) -> Solution:
    """Minimise the cost of a problem over its variables.

    Args:
        values: the start by variable name: manifold elements or storage tensors, (count, storage), or (storage,) for a
            variable with `count=None`.
        data: `data[cost][leaf]` replaces any tensor of a cost: its data by keyword, `"weight"`, `"loss.scale"`,
            parameters by their names in `state_dict`. The rest is the problem's own; gradients flow to both.
        in_dims: `torch.func.vmap`'s, over `(values, data)`: one independent solve per entry; the rest is shared.
        solver: `LevenbergMarquardt()` by default.
        adjoint: how derivatives pass through the solve, `Implicit()` by default.

    Returns:
        A `Solution` whose `value` is a dict like `values`, of the same types.

    Raises:
        ProblemError (a ValueError): a name that is not known, a wrong shape, dtype or device; the message says which.

    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=mslsq.LevenbergMarquardt(max_steps=50))
    >>> solution.value["pose"]
    """
    if not isinstance(problem, Problem):
        raise TypeError(
            f"solve takes a mslsq.Problem, not {type(problem).__name__}. For a plain residual use mslsq.least_squares."
        )
    statement = stated(problem, values, data, in_dims)
    solution = solve_system(
        statement.system,
        statement.values,
        statement.inputs,
        batch=statement.size or 1,
        batched=statement.batched,
        solver=solver,
        adjoint=adjoint,
        cache=plans_of(problem),
    )
    value = {
        name: _like(variable, values[name], storage)
        for (name, variable), storage in zip(problem.variables.items(), solution.value, strict=True)
    }
    return unbatched(solution, value, statement.size)


def plans_of(problem: Problem) -> PlanCache:
    """The plans of a problem, kept as long as it lives."""
    return _PLANS.setdefault(problem, PlanCache())


def _like(variable: Variable, given: Any, storage: Tensor) -> Any:
    """A result (batch, count, storage) in the type of the start."""
    if variable.count is None:
        storage = storage[:, 0]
    return storage if isinstance(given, Tensor) else variable.space.wrap(storage)
