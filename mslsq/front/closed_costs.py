"""Costs of a user's own whose code is closed: they change with what is compared in every call alone.

Such a cost need not be compared with its Python in every call: evaluating that on four blocks with a backward pass
takes ten times as long as the program of a small problem. It still is in every `CHECKED_EVERY`th, in case something was
written into a library.
"""

import functools
import warnings
import weakref
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from mslsq.manifolds import Manifold
from mslsq.problem import CostFunction, Problem
from mslsq.problem.cost import is_of_library
from mslsq.problem.rows import keep_rows
from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.inputs import Collected, collect_module
from mslsq.tracing.reading.known_code import CODES
from mslsq.tracing.reading.noted import Noted
from mslsq.tracing.reading.origins import is_own, owners_of
from mslsq.tracing.reading.unchanged import Unchanged

CHECKED_EVERY = 32
"""Calls from one comparison with the user's Python to the next."""

_OPEN: "weakref.WeakSet[object]" = weakref.WeakSet()
"""What costs and residuals are written in (classes, code) that read something else, or were found to do so."""


class Held(NamedTuple):
    """What costs of a user's own hold or read."""

    tensors: tuple[tuple["weakref.ref[Tensor]", ...], ...]
    """Of each cost."""
    costs: tuple["weakref.ref[CostFunction]", ...]
    """These, which are the problem's as long as its objects are the same."""
    noted: tuple[Noted, ...] | None
    """What the code of each reads, by identity; None where something counts by its content."""


WRITTEN = frozenset(("residual", "jacobians", "curvature", "residual_and_jacobians", "broadcasts", "chunk", "forward"))
"""What a subclass writes of a cost function; the rest is looked into by no walk."""
ACCESS = frozenset(("__getattr__", "__getattribute__", "__setattr__", "__call__"))


class UnseenChangeWarning(UserWarning):
    """What a residual computes has changed without a trace in what it was seen to read."""


@dataclass(eq=False)
class Turns:
    """Which calls are compared with the user's Python."""

    calls: int = 0

    def is_due(self) -> bool:
        """Is it the turn of this call?"""
        is_due = self.is_next_due
        self.calls += 1
        return is_due

    @property
    def is_next_due(self) -> bool:
        """Will it be that of the next?"""
        return (self.calls + 1) % CHECKED_EVERY == 0


@dataclass(frozen=True, eq=False)
class ClosedCosts:
    """The costs of a user's own in a problem."""

    _known: tuple[tuple[int, Hashable, Closed], ...]
    """Of each its place, what its code reads, and the names of libraries that are among that."""
    turns: Turns = field(default_factory=Turns)

    @staticmethod
    def of(problem: Problem) -> "ClosedCosts | None":
        """Those of a problem whose code may be closed; None where that of one is not."""
        known = []
        for place, cost in own_costs(problem):
            collected = collect_module(cost)
            closed = None if overrides(type(cost)) else Closed.of(collected, elements())
            if closed is None:
                _OPEN.add(cost._written_in())
                return None
            CODES.keep(collected, closed)
            known.append((place, collected.key, closed))
        return ClosedCosts(tuple(known))

    @property
    def library_holds(self) -> bool:
        """Do the names of libraries still stand for the same?"""
        return all(closed.holds for _, _, closed in self._known)

    @property
    def closed(self) -> tuple[Closed, ...]:
        """What the code of each reads."""
        return tuple([closed for _, _, closed in self._known])

    def hold(self, problem: Problem, held: Held) -> bool:
        """Does their code read what it has read, and the very tensors that are `held_by` the problem, whose objects are
        known to be the same?"""
        if not self.library_holds:
            return False
        if held.noted is not None:
            costs = [cost() for cost in held.costs]  # out of the problem's list takes a microsecond each
            if all(map(Noted.holds, held.noted, costs)):
                return True
        for (place, key, _), tensors in zip(self._known, held.tensors, strict=True):
            collected = collect_module(problem.costs[place])
            if collected.key != key or not all(map(_is, tensors, collected.tensors.values())):
                return False
        return True

    def held_by(self, problem: Problem, unchanged: Unchanged) -> Held:
        """What they hold or read, of which `unchanged` says whether their objects are the same."""
        found = [collect_module(problem.costs[place]) for place, _, _ in self._known]
        tensors = tuple([tuple(map(weakref.ref, collected.tensors.values())) for collected in found])
        costs = tuple([weakref.ref(_cost(problem, place)) for place, _, _ in self._known])
        if not unchanged.is_all_of_others:
            return Held(tensors, costs, None)
        noted = [Noted.of(collected, looks_at_objects=False) for collected in found]
        return Held(tensors, costs, tuple([x for x in noted if x is not None]) if None not in noted else None)

    def keep_rows(self, problem: Problem, sizes: Sequence[tuple[int, int]]) -> None:
        """Remember how many entries their residuals have.

        Args:
            sizes: of each cost, that of the residual that was recorded: `problem` may have been made before something
                that it reads was changed.
        """
        for place, _, closed in self._known:
            cost = _cost(problem, place)
            if problem.num_rows[cost.name] == sizes[place][0]:
                keep_rows(cost, sizes[place][0], closed)

    def is_due(self) -> bool:
        """Is this call to be compared with the user's Python?"""
        return bool(self._known) and self.turns.is_due()

    def give_up(self, problem: Problem) -> None:
        """They hold what cannot be compared by identity: this is not tried again."""
        _OPEN.update(_cost(problem, place)._written_in() for place, _, _ in self._known)

    def distrust(self, problem: Problem) -> None:
        """They have changed. Says so, once, if nothing of it was seen."""
        if self._known and self.library_holds and may_be_closed(problem):
            costs = [_cost(problem, place) for place, _, _ in self._known]
            _OPEN.update(cost._written_in() for cost in costs)
            CODES.forget(map(type, costs))
            warn_of_unseen_change(", ".join(repr(cost.name) for cost in costs))


def _cost(problem: Problem, place: int) -> CostFunction:
    cost = problem.costs[place]
    assert isinstance(cost, CostFunction)
    return cost


def own_costs(problem: Problem) -> "Iterator[tuple[int, CostFunction]]":
    """The costs that are not the library's, with their places."""
    return ((place, cost) for place, cost in enumerate(problem) if not is_of_library(cost))


def may_be_closed(problem: Problem) -> bool:
    """Is the code of no cost known to read more than is compared?"""
    return not any(cost._written_in() in _OPEN for _, cost in own_costs(problem))


def closed_callable(collected: Collected) -> Closed | None:
    """Of a residual that is no cost: is its code closed?"""
    return Closed.of(collected, elements()) if _OPEN.isdisjoint(collected.codes) else None


def distrust_callable(collected: Collected, name: str) -> None:
    """It has changed, and nothing of it was seen."""
    _OPEN.update(collected.codes)
    warn_of_unseen_change(repr(name))


def warn_of_unseen_change(names: str) -> None:
    """Say that results may be of either state."""
    warnings.warn(
        f"What {names} computes has changed without a trace in what the code reads, which is all that is compared in "
        "every call: was something in a library replaced? Solves since the last comparison with the Python code "
        f"(every {CHECKED_EVERY}th) may be those of either state. From now on it is compared in every solve.",
        UnseenChangeWarning,
        stacklevel=2,
    )


def overrides(kind: type) -> bool:
    """Does a class of costs replace more of the library's than it is asked for?"""
    own = {name for owner in owners_of(kind) for name in vars(owner)}
    return any(not name.startswith("__") for name in own & _members() - WRITTEN) or not own.isdisjoint(ACCESS)


@functools.cache
def _members() -> frozenset[str]:
    return frozenset(dir(CostFunction))


def _is(reference: "weakref.ref[Tensor]", tensor: Tensor) -> bool:
    return reference() is tensor


@functools.cache
def elements() -> tuple[type, ...]:
    """The classes of the library's manifolds."""
    found, pending = [], [Manifold]
    while pending:
        kind = pending.pop()
        if is_own(kind.__module__):
            found.append(kind)
            pending += kind.__subclasses__()
    return tuple(dict.fromkeys(found))
