"""What is kept between calls for a problem, or for the code of a residual, as long as that lives."""

import contextlib
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn

from mslsq.linearize.plan_cache import SHARED, PlanCache
from mslsq.problem import Problem
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.origins import USERS, origin_of


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


_APART: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Objects that are called, and have been solved before."""


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
    """By its code, so that a lambda, a partial or an object made again for every call is recognised; by itself where
    it has none of the user's, and where it is an object that has been solved before."""
    inner = _inner(function)
    if not isinstance(inner, FunctionType) and not _is_apart(inner):
        kind = type(inner)
        written = getattr(kind, "forward" if isinstance(inner, nn.Module) else "__call__", None)
        inner = written if isinstance(written, FunctionType) and origin_of(written.__module__ or "") == USERS else inner
    return kept_for(inner.__code__ if isinstance(inner, FunctionType) else inner)


def keep_apart(function: Callable[..., Any]) -> None:
    """Have an object that is called be kept by itself from now on: others of its class may hold other numbers, and
    what was recorded of each stays. It begins with what is known of its code."""
    inner = _inner(function)
    if isinstance(inner, FunctionType) or _is_apart(inner):
        return
    known = kept_for_callable(inner)
    with contextlib.suppress(TypeError):
        _KEPT[inner] = known._replace(changes=Changes(), calls=[*known.calls], fits=[*known.fits])
        _APART.add(inner)


def _inner(function: Any) -> Any:
    while type(function) is functools.partial:
        function = function.func
    return function.__func__ if isinstance(function, MethodType) else function


def _is_apart(inner: Any) -> bool:
    try:
        return inner in _APART
    except TypeError:
        return False
