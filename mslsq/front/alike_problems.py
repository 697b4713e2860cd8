"""Problems that hold the same but for numbers: what one has shown answers the other.

Who solves one graph per image makes a problem for each: the same costs and the same structure around other data. All
that such a problem consists of is one key (0.1 ms of Python, where its statement takes 0.5 and its plan 10): types,
names, indices, blocks that are held, the layout of every tensor. Its tensors come with it, in the same order.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mslsq.front.answering import Answering, Call
from mslsq.front.closed_costs import ClosedCosts, may_be_closed, own_costs
from mslsq.front.leaves import Leaf
from mslsq.problem import Problem
from mslsq.problem.variable import Blocks, Fixed
from mslsq.tracing.reading.content import Content
from mslsq.tracing.reading.exchange import UncollectedTensorError
from mslsq.tracing.reading.inputs import collect_module
from mslsq.tracing.reading.known_code import CODES

SIZE, KNOWN = 32, 8
"""Kinds of problems that are kept, and kinds of calls of each. Plans of small problems alone: some 100 kB."""


def content_of(problem: Problem) -> Content | None:
    """All that a problem consists of; None where something but the code of its costs is not the library's own, or an
    index is too large to be compared."""
    if not may_be_closed(problem):
        return None
    codes = {id(cost): CODES.of(cost) for _, cost in own_costs(problem)}
    if all(codes.values()):
        content = Content.of(problem, (Blocks, Fixed), codes)
        if content is None or content.is_all_own:
            return content
    try:
        others = {id(cost): (type(cost), collect_module(cost).key) for _, cost in own_costs(problem)}
    except UncollectedTensorError:  # of a cost that is solved all the same: it keeps what it was called with
        return None
    return Content.of(problem, (Blocks, Fixed), others)


@dataclass(frozen=True, eq=False)
class Alike:
    """What is known of calls of problems that are alike. Holds no tensor of the user's."""

    answering: Answering
    costs: ClosedCosts
    places: tuple[tuple[tuple[str, int], ...], ...]
    """Per term the name of each input, and which of the tensors of the content it is; of one that the data of a call
    replace, any."""

    def inputs(self, content: Content) -> tuple[dict[str, Tensor], ...]:
        """Per term its tensors by name, of a problem with this content."""
        return tuple([{name: content.tensors[place] for name, place in own} for own in self.places])


class AlikeProblems:
    """What is known by content, the least recently used dropped first."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[Alike, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()

    def find(self, content: Content, call: Call) -> Alike | None:
        """What is known of calls like this one, of a problem with this content."""
        with self._lock:
            known = self._known.get(content.key, ())
            if known:
                self._known.move_to_end(content.key)
        return next((one for one in known if one.answering.is_like(call)), None)

    def drop(self, content: Content | None, known: Any) -> None:
        """Forget what is known of calls of problems with this content."""
        with self._lock:
            if content is not None and content.key in self._known:
                self._known[content.key] = tuple([one for one in self._known[content.key] if one is not known])

    def put(
        self, content: Content, call: Call, answering: Answering, costs: ClosedCosts, leaves: Sequence[Sequence[Leaf]]
    ) -> bool:
        """Keep what a call has shown, if it may outlive its problem; was it kept?

        Args:
            costs: those of a user's own.
            leaves: per term of the call's statement, the tensors that it depends on.
        """
        by_tensor = {id(tensor): place for place, tensor in enumerate(content.tensors)}
        replaced = dict.fromkeys(answering.replaced, 0)
        found = [
            [(x.name, replaced.get((term, x.name), by_tensor.get(id(x.tensor)))) for x in own]
            for term, own in enumerate(leaves)
        ]
        if not answering.direct.plan.may_be_shared or any(place is None for own in found for _, place in own):
            return False
        places = tuple([tuple([(name, place) for name, place in own if place is not None]) for own in found])
        with self._lock:
            known = self._known.pop(content.key, ())
            others = [one for one in known if not one.answering.is_like(call)]
            self._known[content.key] = (Alike(answering, costs, places), *others)[:KNOWN]
            while len(self._known) > SIZE:
                self._known.popitem(last=False)
        return True


ALIKE = AlikeProblems()
