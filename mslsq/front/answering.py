"""Calls of `solve` that differ in nothing but numbers: what they have in common, and how they are answered at once."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.front.direct import Direct, is_plain
from mslsq.front.problem_statement import BOUNDS
from mslsq.front.statement import Solved, Statement, heed_interrupt
from mslsq.linearize.baked import global_key, tensor_key
from mslsq.manifolds.space import Space
from mslsq.problem import Problem
from mslsq.solution import Solution
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.short_loop import ShortLoop
from mslsq.solvers.solver import Solver
from mslsq.tracing.reading.values import TENSORS


@dataclass(frozen=True, eq=False)
class Call:
    """A solve as it is asked for, without a batch."""

    problem: Problem
    arguments: tuple[Mapping[str, Any], ...]
    """The start by variable name, and the data by cost where some are given."""
    solver: Solver | OuterSolver | None
    adjoint: Adjoint | None

    @staticmethod
    def of(
        problem: Problem,
        values: Any,
        data: Mapping[str, Any] | None,
        in_dims: Any,
        project_start: bool,
        solver: Any,
        adjoint: Any,
    ) -> "Call | None":
        """The call, where calls like it may be answered at once; None of others."""
        if in_dims is not None or project_start or type(values) is not dict or isinstance(solver, OuterSolver):
            return None
        if data and (type(data) is not dict or BOUNDS in data or any(type(own) is not dict for own in data.values())):
            return None
        arguments = (values, data) if data else (values,)
        return Call(problem, arguments, solver, adjoint) if is_plain() else None

    @property
    def values(self) -> Mapping[str, Any]:
        """The start by variable name."""
        return self.arguments[0]

    @property
    def options(self) -> tuple[Hashable, ...]:
        return self.solver, self.adjoint, global_key()


@dataclass(frozen=True, eq=False)
class Answering:
    """What calls have in common, besides their problems. Holds no tensor of the user's."""

    form: pytree.Form
    """Of the start and of the data..."""
    kinds: list[Hashable]
    """... and what their leaves have in common with those of such a call."""
    options: tuple[Hashable, ...]
    spaces: tuple[tuple[str, Space, bool], ...]
    """Of every unknown its name, its space, and whether it is a single block without an axis."""
    direct: Direct
    replaced: tuple[tuple[int, str], ...] = ()
    """Of each leaf of the data the term and the name of the input that it takes the place of."""

    @staticmethod
    def of(call: Call, solved: Solved) -> "Answering | None":
        """What a solve has shown of calls like this one; None where they cannot be answered at once."""
        statement, plan = solved.statement, solved.plan
        if any(term.kind.is_constraint for term in statement.system.terms):
            return None
        if not plan.execution.graphs or plan.execution.why_eager or plan.changes_unseen:
            return None
        task = statement.task(solved.solver)
        if task.outer is not None:
            return None
        direct = Direct.of(statement, solved.solver, plan, ShortLoop.of(task, plan))
        tensors = [leaf.tensor for leaves in statement.leaves for leaf in leaves]
        form = pytree.Form(call.arguments)
        if direct is None or not all(type(x) in TENSORS for x in tensors) or not form.fits(call.arguments):
            return None
        leaves = form.leaves(call.arguments)
        if not all(type(leaf) in TENSORS for leaf in leaves):
            return None
        replaced = _places(statement, leaves[len(pytree.leaves(call.values)) :])
        if replaced is None:
            return None
        variables = call.problem.variables.items()
        spaces = tuple([(name, variable.space, variable.count is None) for name, variable in variables])
        direct = direct.with_derivatives(solved, call.adjoint)
        return Answering(form, [tensor_key(leaf) for leaf in leaves], call.options, spaces, direct, replaced)

    def is_like(self, call: Call) -> bool:
        """Does the call differ in nothing but numbers, if its problem does not?"""
        if not self.form.fits(call.arguments) or call.options != self.options:
            return False
        leaves = self.form.leaves(call.arguments)
        return all(tensor_key(leaf) == kind for leaf, kind in zip(leaves, self.kinds, strict=True))

    def answer(self, call: Call, inputs: tuple[dict[str, Tensor], ...]) -> Solution | None:
        """The solution of such a call; None where it takes more than what is recorded.

        Args:
            inputs: per term its tensors by name, anything in the place of those that the data replace.

        Raises:
            SolveInterrupted: a KeyboardInterrupt has ended the solve.
        """
        direct = self.direct
        if direct.plan.plain.has_gone_stale:
            return None
        wish = None if direct.is_whole else direct.solver.execution
        if wish is not None and direct.has_news(wish):
            return None
        starts = []
        for name, space, is_single in self.spaces:
            try:
                space.check(call.values[name])
            except ValueError:
                return None  # the statement says it with the name of the variable
            storage = space.unwrap(call.values[name])[None]
            starts.append(storage[:, None] if is_single else storage)
        if self.replaced:
            given = self.form.leaves(call.arguments)[-len(self.replaced) :]
            for (term, name), x in zip(self.replaced, given, strict=True):
                inputs[term][name] = x
        found = direct.found(tuple(starts), inputs, wish)
        if found is None:
            return None
        if found.interrupted:
            heed_interrupt(found.solution, direct.solver)
        return found.solution


def _places(statement: Statement, data: list[Tensor]) -> tuple[tuple[int, str], ...] | None:
    """Of each leaf of the data the term and the name of the input that it is; None where one is no input as it was
    given, or two."""
    found = []
    for x in data:
        places = [(k, leaf.name) for k, own in enumerate(statement.leaves) for leaf in own if leaf.tensor is x]
        if len(places) != 1:
            return None
        found += places
    return tuple(found)
