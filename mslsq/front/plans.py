"""What is kept between calls for a problem, or for the code of a residual, as long as that lives."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from mslsq.linearize.plan_cache import SHARED, PlanCache
from mslsq.problem import Problem
from mslsq.tracing.reading.changes import Changes


class Kept(NamedTuple):
    """The memory of one problem or callable."""

    plans: PlanCache
    changes: Changes
    """The states in which it was called."""
    families: "Known"
    """What is known of terms of the same code, in the states that it has had."""
    calls: list[Any]
    """What is known of calls like those before (`front.repeated_residual`)..."""
    fits: list[Any]
    """... and of fits by a model (`front.repeated_fit`)."""


class Known(OrderedDict[Hashable, Any]):
    """A dict that holds the last things put into it; copies and pickles are empty, as those of plans are."""

    SIZE = 64

    def __setitem__(self, key: Hashable, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > self.SIZE:
            self.pop(next(iter(self)), None)

    def __reduce__(self) -> Any:
        return Known, ()


_KEPT: "weakref.WeakKeyDictionary[Any, Kept]" = weakref.WeakKeyDictionary()


def kept_for(owner: Any) -> Kept:
    """What is kept for this object; nothing where it is neither hashable nor weakly referable."""
    try:
        known = _KEPT.get(owner)
        return _KEPT.setdefault(owner, _nothing(owner)) if known is None else known
    except TypeError:
        return _nothing(owner)


def _nothing(owner: Any) -> Kept:
    shared = SHARED if isinstance(owner, Problem) else None
    return Kept(PlanCache(shared=shared), Changes(), Known(), [], [])


def kept_for_callable(function: Callable[..., Any]) -> Kept:
    """By its code, so that a lambda written again for every call is recognised; by itself where it has none."""
    inner = function.__func__ if isinstance(function, MethodType) else function
    return kept_for(inner.__code__ if isinstance(inner, FunctionType) else inner)
