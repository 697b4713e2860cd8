"""Problems that hold the same but for numbers: what one has shown answers the other.

Who solves one graph per image makes a problem for each: the same costs and the same structure around other data. All
that such a problem consists of is one key (0.1 ms of Python, where its statement takes 0.5 and its plan 10): types,
names, indices, blocks that are held, the layout of every tensor. Its tensors come with it, in the same order.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mslsq.front.answering import Answering, Call
from mslsq.front.leaves import Leaf
from mslsq.problem import Problem
from mslsq.problem.variable import Blocks, Fixed
from mslsq.tracing.reading.content import Content
from mslsq.tracing.reading.origins import is_own

SIZE, KNOWN = 32, 8
"""Kinds of problems that are kept, and kinds of calls of each. Plans of small problems alone: some 100 kB."""


def content_of(problem: Problem) -> Content | None:
    """All that a problem consists of; None where something is not the library's own, or an index is too large to be
    compared."""
    if not all(is_own(type(cost).__module__) for cost in problem.costs):
        return None
    return Content.of(problem, (Blocks, Fixed))


@dataclass(frozen=True, eq=False)
class Alike:
    """What is known of calls of problems that are alike. Holds no tensor of the user's."""

    answering: Answering
    places: tuple[tuple[tuple[str, int], ...], ...]
    """Per term the name of each input, and which of the tensors of the content it is."""

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

    def put(self, content: Content, call: Call, answering: Answering, leaves: Sequence[Sequence[Leaf]]) -> bool:
        """Keep what a call has shown, if it may outlive its problem; was it kept?

        Args:
            leaves: per term of the call's statement, the tensors that it depends on.
        """
        by_tensor = {id(tensor): place for place, tensor in enumerate(content.tensors)}
        if not answering.direct.plan.may_be_shared or any(id(x.tensor) not in by_tensor for own in leaves for x in own):
            return False
        places = tuple([tuple([(x.name, by_tensor[id(x.tensor)]) for x in own]) for own in leaves])
        with self._lock:
            known = self._known.pop(content.key, ())
            others = [one for one in known if not one.answering.is_like(call)]
            self._known[content.key] = (Alike(answering, places), *others)[:KNOWN]
            while len(self._known) > SIZE:
                self._known.popitem(last=False)
        return True


ALIKE = AlikeProblems()
