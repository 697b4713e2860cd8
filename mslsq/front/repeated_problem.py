"""A solve of a problem like the one before: what is recorded of its solves answers it.

A statement takes half a millisecond of Python to find out what the call before has found out. Of a problem whose costs,
losses, weights and manifolds are all the library's own nothing can change but what its objects hold: where these are
the very same objects, with tensors of the same layout and the same indices, and the call is alike, the statement would
be the same. Costs of a user's own are stated, and compared with their Python, in every call.
"""

import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.front.direct import Direct, is_plain
from mslsq.front.leaves import Index, Leaf
from mslsq.front.plans import kept_for
from mslsq.front.statement import Solved, heed_interrupt
from mslsq.linearize.plan import global_key, tensor_key
from mslsq.linearize.prospects import has_news
from mslsq.manifolds.space import Space
from mslsq.private import version_of
from mslsq.problem import Problem
from mslsq.solution import Solution
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.short_loop import ShortLoop
from mslsq.solvers.solver import Solver
from mslsq.tracing.reading.unchanged import Unchanged
from mslsq.tracing.reading.values import TENSORS, tensor_value

KNOWN = 8
"""Kinds of calls that are kept for a problem."""


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


def answered(call: Call) -> Solution | None:
    """The answer; None where this call is not known, or where it takes more than what is recorded.

    Raises:
        SolveInterrupted: a KeyboardInterrupt has ended the solve.
    """
    for known in known_of(call.problem):
        if known.is_like(call):
            return known.answer(call)
    return None


def known_of(problem: Problem) -> "list[Known]":
    """What is known of calls of this problem."""
    return kept_for(problem).calls


def remember(call: Call, solved: Solved) -> None:
    """Keep what a solve has shown of calls like this one."""
    kept = known_of(call.problem)
    if any(one.direct.plan is solved.plan and one.is_like(call) for one in kept):
        return
    known = Known.of(call, solved)
    if known is not None:
        kept[:] = [known, *(one for one in kept if not one.is_like(call))][:KNOWN]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of calls like one before. Keeps no tensor of the user's alive."""

    unchanged: Unchanged
    form: pytree.Form
    """Of the start..."""
    kinds: list[Hashable]
    """... and what its leaves have in common with those of such a call."""
    options: tuple[Hashable, ...]
    spaces: tuple[tuple[str, Space, bool], ...]
    """Of every unknown its name, its space, and whether it is a single block without an axis."""
    inputs: tuple[tuple[tuple[str, Any, Hashable], ...], ...]
    """Per term the name of each input, a weak reference to its tensor, and what a graph bakes in of it."""
    indices: tuple[tuple[Any, Hashable], ...]
    """Of every tensor that says which blocks there are a weak reference, and its state."""
    direct: Direct

    @staticmethod
    def of(call: Call, solved: Solved) -> "Known | None":
        statement, plan = solved.statement, solved.plan
        if not all(term.is_of_library and not term.kind.is_constraint for term in statement.system.terms):
            return None
        if not plan.execution.graphs or plan.execution.why_eager or plan.changes_unseen:
            return None
        task = statement.task(solved.solver)
        if task.outer is not None:
            return None
        direct = Direct.of(statement, solved.solver, plan, ShortLoop.of(task, plan))
        tensors = [leaf.tensor for leaves in statement.leaves for leaf in leaves]
        if direct is None or not all(type(x) in TENSORS for x in tensors):
            return None
        unchanged, form = Unchanged(call.problem), pytree.Form(call.values)
        if not unchanged.is_known or not form.fits(call.values):
            return None
        if not all(type(leaf) in TENSORS for leaf in form.leaves(call.values)):
            return None
        variables = call.problem.variables.items()
        indices = [leaf.tensor for leaves in statement.leaves for leaf in leaves if isinstance(leaf, Index)]
        indices += [fixed.index for fixed in call.problem.fixed]
        return Known(
            unchanged,
            form,
            [tensor_key(leaf) for leaf in form.leaves(call.values)],
            _options(call),
            tuple([(name, variable.space, variable.count is None) for name, variable in variables]),
            tuple(
                [
                    tuple([(x.name, weakref.ref(x.tensor), tensor_key(x.tensor)) for x in own])
                    for own in statement.leaves
                ]
            ),
            tuple([(weakref.ref(x), _state_of(x)) for x in indices]),
            direct,
        )

    def is_like(self, call: Call) -> bool:
        """Does the call differ in nothing but numbers?"""
        if not self.form.fits(call.values) or _options(call) != self.options or not self.unchanged.holds:
            return False
        leaves = self.form.leaves(call.values)
        if not all(tensor_key(leaf) == kind for leaf, kind in zip(leaves, self.kinds, strict=True)):
            return False
        if not all(x() is not None and _state_of(x()) == state for x, state in self.indices):
            return False
        held = [pair for own in self.inputs for pair in own]
        return all(x() is not None and tensor_key(x()) == key for _, x, key in held)

    def answer(self, call: Call) -> Solution | None:
        """The solution of such a call; None where it takes more than what is recorded."""
        direct = self.direct
        if has_news(direct.plan, direct.solver.native_choice):
            return None
        starts = []
        for name, space, is_single in self.spaces:
            try:
                space.check(call.values[name])
            except ValueError:
                return None  # the statement says it with the name of the variable
            storage = space.unwrap(call.values[name])[None]
            starts.append(storage[:, None] if is_single else storage)
        found = direct.found(tuple(starts), tuple([{name: x() for name, x, _ in own} for own in self.inputs]))
        if found is None:
            return None
        if found.interrupted:
            heed_interrupt(found.solution, direct.solver)
        return found.solution


def _options(call: Call) -> tuple[Hashable, ...]:
    return call.solver, call.adjoint, global_key()


def _told(leaf: Leaf) -> tuple[str, Any, Hashable]:
    return leaf.name, weakref.ref(leaf.tensor), tensor_key(leaf.tensor)


def _state_of(index: Tensor) -> Hashable:
    """What changes when numbers are written into an index."""
    return version_of(index), tensor_value(index)
