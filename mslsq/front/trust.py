"""Code that is trusted: a solve of it need not be compared with the user's Python.

The comparison evaluates the residual on four lanes, with a backward pass: half of the time of 1,024 small fits. Where
the code is closed (`tracing.reading.closed`) the key of the plan, which every solve compares, holds all that the code
reads; the comparison is made in turn, then, and whenever something has been recorded since the last one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mslsq import pytree
from mslsq.front.batching import Arguments
from mslsq.front.callables import Callables
from mslsq.front.closed_costs import ClosedCosts, Turns, closed_callable, distrust_callable, elements, may_be_closed
from mslsq.front.stated_loss import AroundInputs
from mslsq.linearize.plan import Plan
from mslsq.problem import Problem
from mslsq.problem.system import Term
from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.values import SCALARS, TENSORS
from mslsq.tracing.recording import Recorded


@dataclass(eq=False)
class Trusted:
    """What is known of the code that a plan was made of; kept by the plan."""

    closed: tuple[Closed, ...] | None
    """None where it may read what no key holds."""
    turns: Turns = field(default_factory=Turns)
    graphs: dict[str, Recorded] = field(default_factory=dict)
    """What was recorded at the last comparison..."""
    is_whole: bool = False
    """... and whether there was a program of whole solves."""
    has_spared: bool = False
    """Has a solve gone without a comparison?"""
    is_asked: bool = False
    """Is the next one to be made in any case?"""
    repeated: int = 0
    """Comparisons in turn, of what had been compared before..."""
    is_repeated: bool = False
    """... and whether the one that is made now is one of them."""

    @property
    def holds(self) -> bool:
        """Does the code read what it did?"""
        return self.closed is not None and all(closed.holds for closed in self.closed)

    def knows(self, plan: Plan) -> bool:
        """Has nothing been recorded since the last comparison?"""
        return self.graphs == plan.execution.graphs and self.is_whole == plan.holds_whole


@dataclass(frozen=True, eq=False)
class Trust:
    """Which solves of a statement need no comparison with the user's Python."""

    _look: Callable[[], tuple[Closed, ...] | None]
    """Is the code closed?"""
    _withdraw: Callable[[], None]
    """It has changed, and nothing of it was seen."""

    def is_given(self, plan: Plan) -> bool:
        """To the solve that has just been made by this plan? Counts it."""
        trusted = plan.trusted
        if plan.has_users_manifold or not plan.is_on_cpu:
            return False
        if trusted is None:
            trusted = plan.trusted = Trusted(self._look())
            trusted.is_repeated = False
        else:
            holds, knows = trusted.holds, trusted.knows(plan)
            if holds and not trusted.turns.is_due() and not trusted.is_asked and knows:
                trusted.has_spared = True
                return True
            trusted.is_repeated = holds and knows
        trusted.is_asked = False
        trusted.graphs, trusted.is_whole = dict(plan.execution.graphs), plan.holds_whole
        return False

    def turn(self, plan: Plan) -> int | None:
        """Which of the comparisons in turn is to be made now, the first is 0; None where it is the first of what is
        recorded. Counts it."""
        trusted = plan.trusted
        if trusted is None or not trusted.is_repeated:
            return None
        trusted.repeated += 1
        return trusted.repeated - 1

    def is_open(self, plan: Plan) -> bool:
        """Is it never given to solves of this plan, as the code may read, or write to, what is not compared?"""
        if plan.trusted is None:
            plan.trusted = Trusted(self._look())
        return plan.trusted.closed is None or plan.has_users_manifold

    def withdraw(self, plan: Plan) -> None:
        """A comparison has found a difference."""
        trusted, plan.trusted = plan.trusted, Trusted(None)
        if trusted is not None and trusted.has_spared and trusted.holds:
            self._withdraw()


def compare_next(plan: Plan) -> None:
    """Have the next solve by this plan compared: others have gone without."""
    if plan.trusted is not None:
        plan.trusted.is_asked = plan.trusted.has_spared = True


def trust_of_callables(functions: Callables) -> Trust:
    """In a residual and its Jacobian."""
    return Trust(lambda: _all_closed(functions), lambda: _distrust(functions))


def _all_closed(functions: Callables) -> tuple[Closed, ...] | None:
    if not _show_themselves(functions.arguments):
        return None
    found = [closed_callable(part.collected) for part in functions.written]
    closed = [one for one in found if one is not None]
    return tuple(closed) if len(closed) == len(found) else None


def _show_themselves(arguments: Arguments) -> bool:
    """Are these tensors, numbers and plain containers, which hold nothing unseen?"""
    kinds = {type(leaf) for leaves in arguments.leaves for leaf in leaves}
    return kinds <= {*SCALARS, *TENSORS, *elements()} and all(map(pytree.is_of_library, arguments.trees))


def _distrust(functions: Callables) -> None:
    for part in functions.written:
        distrust_callable(part.collected, functions.name)


def trust_of_costs(problem: Problem, terms: Sequence[Term]) -> Trust | None:
    """In the costs of a problem; None where a loss is a user's own."""
    if any(isinstance(term.loss, AroundInputs) for term in terms):
        return None

    def closed() -> tuple[Closed, ...] | None:
        costs = ClosedCosts.of(problem) if may_be_closed(problem) else None
        return None if costs is None else costs.closed

    def withdraw() -> None:
        costs = ClosedCosts.of(problem) if may_be_closed(problem) else None
        if costs is not None:
            costs.distrust(problem)

    return Trust(closed, withdraw)
