"""Calls of `solve` that differ in nothing but numbers: what they have in common, and how they are answered at once."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.front.direct import Direct, is_plain
from mslsq.front.statement import Solved, heed_interrupt
from mslsq.linearize.baked import global_key, tensor_key
from mslsq.linearize.prospects import has_news
from mslsq.manifolds.space import Space
from mslsq.problem import Problem
from mslsq.solution import Solution
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.short_loop import ShortLoop
from mslsq.solvers.solver import Solver
from mslsq.tracing.reading.values import TENSORS


@dataclass(frozen=True, eq=False)
class Call:
    """A solve as it is asked for, without data or a batch."""

    problem: Problem
    values: dict[str, Any]
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
        if data or in_dims is not None or project_start or type(values) is not dict or isinstance(solver, OuterSolver):
            return None
        return Call(problem, values, solver, adjoint) if is_plain() else None

    @property
    def options(self) -> tuple[Hashable, ...]:
        return self.solver, self.adjoint, global_key()


@dataclass(frozen=True, eq=False)
class Answering:
    """What calls have in common, besides their problems. Holds no tensor of the user's."""

    form: pytree.Form
    """Of the start..."""
    kinds: list[Hashable]
    """... and what its leaves have in common with those of such a call."""
    options: tuple[Hashable, ...]
    spaces: tuple[tuple[str, Space, bool], ...]
    """Of every unknown its name, its space, and whether it is a single block without an axis."""
    direct: Direct

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
        form = pytree.Form(call.values)
        if direct is None or not all(type(x) in TENSORS for x in tensors) or not form.fits(call.values):
            return None
        leaves = form.leaves(call.values)
        if not all(type(leaf) in TENSORS for leaf in leaves):
            return None
        variables = call.problem.variables.items()
        spaces = tuple([(name, variable.space, variable.count is None) for name, variable in variables])
        return Answering(form, [tensor_key(leaf) for leaf in leaves], call.options, spaces, direct)

    def is_like(self, call: Call) -> bool:
        """Does the call differ in nothing but numbers, if its problem does not?"""
        if not self.form.fits(call.values) or call.options != self.options:
            return False
        leaves = self.form.leaves(call.values)
        return all(tensor_key(leaf) == kind for leaf, kind in zip(leaves, self.kinds, strict=True))

    def answer(self, call: Call, inputs: tuple[dict[str, Tensor], ...]) -> Solution | None:
        """The solution of such a call; None where it takes more than what is recorded.

        Args:
            inputs: per term its tensors by name.

        Raises:
            SolveInterrupted: a KeyboardInterrupt has ended the solve.
        """
        direct = self.direct
        if direct.plan.plain.has_gone_stale:
            return None
        if not direct.is_whole and has_news(direct.plan, direct.solver.native_choice):
            return None
        starts = []
        for name, space, is_single in self.spaces:
            try:
                space.check(call.values[name])
            except ValueError:
                return None  # the statement says it with the name of the variable
            storage = space.unwrap(call.values[name])[None]
            starts.append(storage[:, None] if is_single else storage)
        found = direct.found(tuple(starts), inputs)
        if found is None:
            return None
        if found.interrupted:
            heed_interrupt(found.solution, direct.solver)
        return found.solution
