"""A solve of a problem like the one before: what is recorded of its solves answers it.

A statement takes half a millisecond of Python to find out what the call before has found out. Of a problem whose costs,
losses, weights and manifolds are all the library's own nothing can change but what its objects hold: where these are
the very same objects, with tensors of the same layout and the same indices, and the call is alike, the statement would
be the same. Of another problem that holds the same (`alike_problems`) it would be, too. So it is with costs of a user's
own whose code is closed (`closed_costs`), where it reads the same; others are stated, and compared with their Python,
in every call.
"""

import ctypes
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq.front.alike_problems import ALIKE, content_of
from mslsq.front.answering import Answering, Call
from mslsq.front.closed_costs import ClosedCosts, Held, may_be_closed, own_costs
from mslsq.front.leaves import Index
from mslsq.front.plans import kept_for
from mslsq.front.statement import Solved
from mslsq.front.trust import compare_next
from mslsq.linearize.baked import tensor_key
from mslsq.private import version_of
from mslsq.problem import Problem
from mslsq.solution import Solution
from mslsq.tracing.reading.unchanged import Unchanged
from mslsq.tracing.reading.values import tensor_value

KNOWN = 8
"""Kinds of calls that are kept for a problem."""

Named = tuple[dict[str, Tensor], ...]
"""Per term its tensors by name."""

_SOLVED: "weakref.WeakSet[Problem]" = weakref.WeakSet()
"""Problems that were answered because others are like them: of those it pays to note what they consist of."""


def answered(call: Call) -> Solution | None:
    """The answer; None where this call is not known, or where it takes more than what is recorded.

    Raises:
        SolveInterrupted: a KeyboardInterrupt has ended the solve.
    """
    for known in known_of(call.problem):
        if known.is_like(call):
            return None if _is_due(known.costs, known.answering) else known.answer(call)
    content = content_of(call.problem) if ALIKE else None
    alike = None if content is None else ALIKE.find(content, call)
    if content is None or alike is None or not alike.costs.library_holds or _is_due(alike.costs, alike.answering):
        return None
    inputs = alike.inputs(content)
    found = alike.answering.answer(call, inputs)
    if found is not None:
        if call.problem in _SOLVED:
            _keep(call, Known.of(alike.answering, call.problem, alike.costs, inputs, content.compared))
        _SOLVED.add(call.problem)
    return found


def _is_due(costs: ClosedCosts, answering: Answering) -> bool:
    """Is this call to be compared with the user's Python? Then the solve of its statement will be."""
    if not costs.is_due():
        return False
    compare_next(answering.direct.plan)
    return True


def known_of(problem: Problem) -> "list[Known]":
    """What is known of calls of this problem."""
    return kept_for(problem).calls


def remember(call: Call, solved: Solved) -> None:
    """Keep what a solve has shown of calls like this one."""
    if not solved.plan.execution.graphs or not may_be_closed(call.problem):
        return  # nothing could answer another
    like = next((one for one in known_of(call.problem) if one.is_like(call)), None)
    if like is not None and like.answering.direct.plan is solved.plan:
        return
    content = content_of(call.problem)
    like = ALIKE.find(content, call) if like is None and content is not None else like
    if like is not None:
        if like.answering.direct.plan is solved.plan:
            return
        if like.answering.direct.plan.plain.has_gone_stale:
            like.costs.distrust(call.problem)
            ALIKE.drop(content, like)
            _keep(call, None)
            if not may_be_closed(call.problem):
                return
    answering = Answering.of(call, solved)
    costs = None if answering is None else ClosedCosts.of(call.problem)
    if answering is None or costs is None:
        return
    costs.keep_rows(call.problem, solved.plan.sizes)
    if any(True for _ in own_costs(call.problem)):
        content = content_of(call.problem)  # by what is known of their code now
    if content is not None and ALIKE.put(content, call, answering, costs, solved.statement.leaves):
        _keep(call, None)
        return
    leaves = [leaf for own in solved.statement.leaves for leaf in own]
    indices = [leaf.tensor for leaf in leaves if isinstance(leaf, Index)]
    indices += [fixed.index for fixed in call.problem.fixed]
    inputs = tuple([{leaf.name: leaf.tensor for leaf in own} for own in solved.statement.leaves])
    known = Known.of(answering, call.problem, costs, inputs, indices)
    if known is None:
        costs.give_up(call.problem)
    _keep(call, known)


def _keep(call: Call, known: "Known | None") -> None:
    """Have this take the place of what was known of such calls of this problem."""
    kept = known_of(call.problem)
    others = [one for one in kept if not one.is_like(call)]
    kept[:] = (others if known is None else [known, *others])[:KNOWN]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of calls of a problem. Keeps no tensor of the user's alive."""

    answering: Answering
    costs: ClosedCosts
    held: Held
    """By the costs of a user's own."""
    unchanged: Unchanged
    inputs: tuple[tuple[tuple[str, Any, Hashable], ...], ...]
    """Per term the name of each input, a weak reference to its tensor, and what a graph bakes in of it; None twice of
    one that the data of a call replace."""
    indices: tuple[tuple[Any, tuple[int, bytes | None]], ...]
    """Of every tensor that says which blocks there are a weak reference, and its state."""

    @staticmethod
    def of(
        answering: Answering, problem: Problem, costs: ClosedCosts, inputs: Named, indices: Sequence[Tensor]
    ) -> "Known | None":
        """What to remember of a problem, or None.

        Args:
            indices: the tensors that say which blocks there are.
        """
        unchanged = Unchanged(problem, [cost for _, cost in own_costs(problem)])
        if not unchanged.is_known:
            return None
        held = [
            tuple(
                [
                    (name, None, None) if (term, name) in answering.replaced else (name, weakref.ref(x), tensor_key(x))
                    for name, x in own.items()
                ]
            )
            for term, own in enumerate(inputs)
        ]
        states = tuple([(weakref.ref(x), _state_of(x)) for x in indices])
        return Known(answering, costs, costs.held_by(problem, unchanged), unchanged, tuple(held), states)

    def is_like(self, call: Call) -> bool:
        """Does the call differ in nothing but numbers?"""
        if not self.answering.is_like(call) or not self.unchanged.holds:
            return False
        for reference, state in self.indices:
            x = reference()
            if x is None or not _is_in(x, state):
                return False
        for own in self.inputs:
            for _, reference, key in own:
                if reference is not None:
                    x = reference()
                    if x is None or tensor_key(x) != key:
                        return False
        return self.costs.hold(call.problem, self.held)

    def answer(self, call: Call) -> Solution | None:
        """The solution of such a call; None where it takes more than what is recorded."""
        held: list[dict[str, Any]] = [{name: None if x is None else x() for name, x, _ in own} for own in self.inputs]
        return self.answering.answer(call, tuple(held))


def _state_of(index: Tensor) -> tuple[int, bytes | None]:
    """What changes when numbers are written into an index."""
    return version_of(index), tensor_value(index)


def _is_in(index: Tensor, state: tuple[int, bytes | None]) -> bool:
    """Is the index in this state?"""
    version, content = state
    if version_of(index) != version:
        return False
    if content is not None and len(content) == index.nbytes and index.is_contiguous():  # a few bytes, as they are
        return ctypes.string_at(index.data_ptr(), len(content)) == content
    return tensor_value(index) == content
