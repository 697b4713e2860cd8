"""Is an object of the library as it was? Every attribute must be the very same object, all the way down.

That takes a quarter of the time of the walk that collects what a callable reads (`reachable`). It is for what consists
of the library's own objects, plain containers and tensors: their code does not change, so what holds the same objects
reads the same.
"""

import enum
import operator
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, compress
from typing import Any

from torch import nn

from mslsq import pytree
from mslsq.private import MODULE_INTERNALS, MODULE_TABLES
from mslsq.tracing.reading.aside import Aside
from mslsq.tracing.reading.origins import is_library
from mslsq.tracing.reading.values import SCALARS, TENSORS, slots_of


class ForeignError(Exception):
    """There is something that is not the library's own."""


class Unchanged:
    """The objects that were reached from a root. Tensors are told by their identity, and not kept alive; what they
    hold, and in which layout, is not looked at.

    Args:
        root: an object of the library's own.
        others: objects of a user's own; their classes, and what they hold that is not the library's own, are told to be
            as they were by another.
    """

    def __init__(self, root: Any, others: Iterable[Any] = ()):
        self._others = {id(other) for other in others}
        self._empty: list[Any] = []
        """Dicts and lists that hold nothing."""
        self._dicts: list[dict[Any, Any]] = []
        """Those that hold no tensor, how many entries each has, and these one after the other."""
        self._lengths: list[int] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._with_tensors = _WithTensors()
        """The rest."""
        self._seen: dict[int, Any] = {}
        """What has been looked at, alive so that no identity is given to another."""
        self.is_known = True
        """Could all be looked at? Where not, nothing is ever the same."""
        self.is_all_of_others = True
        """Do the others hold nothing but what is the library's own?"""
        try:
            self._visit(root)
        except ForeignError:
            self.is_known = False
        self._with_tensors.close()
        self._seen.clear()
        self._others.clear()

    @property
    def holds(self) -> bool:
        """Is everything still the very same object?"""
        if not self.is_known or any(self._empty) or list(map(len, self._dicts)) != self._lengths:
            return False
        if not all(map(operator.is_, chain.from_iterable(map(dict.values, self._dicts)), self._values)):
            return False
        if not all(map(operator.is_, chain.from_iterable(self._dicts), self._keys)):
            return False
        return self._with_tensors.hold

    def _visit(self, value: Any) -> None:
        kind = type(value)
        if kind in SCALARS or kind in TENSORS or kind is Aside or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, type):
            if not _is_own(value) and not is_library(value):
                raise ForeignError
        elif kind in (dict, OrderedDict):
            self._look_into(value)
        elif kind is list:
            self._note(value)
            self._visit_all(value)
        elif kind is tuple:
            self._visit_all(value)
        elif isinstance(value, pytree.Structure):
            self._visit_all([value.type, value.context, *pytree.children_of(value)])
        elif not _is_own(kind) and kind is not nn.ModuleList and id(value) not in self._others:
            raise ForeignError
        elif not isinstance(value, enum.Enum):
            self._visit_object(value, kind)

    def _visit_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._visit(value)

    def _look_into(self, own: dict[Any, Any], left_out: tuple[str, ...] = (), of_user: bool = False) -> None:
        """Note what a dict holds, and visit it but for what stands at some keys; what is not the library's own raises
        unless it is a user's to hold."""
        if any(type(value) in TENSORS for value in own.values()):
            self._note(own)
        elif own:
            self._dicts.append(own)
            self._lengths.append(len(own))
            self._keys += own
            self._values += own.values()
        else:
            self._empty.append(own)
        for key, entry in own.items():
            if key not in left_out:
                try:
                    self._visit(entry)
                except ForeignError:
                    if not of_user:
                        raise
                    self.is_all_of_others = False

    def _note(self, own: Any) -> None:
        if own:
            self._with_tensors.note(own)
        else:
            self._empty.append(own)

    def _visit_object(self, value: Any, kind: type) -> None:
        own, of_user = getattr(value, "__dict__", None), id(value) in self._others
        if own is None or slots_of(kind):
            raise ForeignError
        if not isinstance(value, nn.Module):
            self._look_into(own)
            return
        self._look_into(own, MODULE_INTERNALS, of_user)
        for table in MODULE_TABLES:
            self._look_into(own[table], (), of_user)


class _WithTensors:
    """Dicts and lists that hold tensors, of which no more than weak references are kept. All are compared in one go: a
    function of Python for every entry takes three times as long."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def note(self, own: Any) -> None:
        """One more, not empty."""
        self._all.append(own)

    def close(self) -> None:
        """These are all: note what they hold."""
        self._dicts = [own for own in self._all if isinstance(own, dict)]
        self._lengths = list(map(len, self._all))
        now = self._entries()
        self._is_tensor = [type(x) in TENSORS for x in now]
        self._is_other = [not is_tensor for is_tensor in self._is_tensor]
        self._references = list(map(weakref.ref, compress(now, self._is_tensor)))
        self._others = list(compress(now, self._is_other))

    @property
    def hold(self) -> bool:
        """Do they hold the very same objects?"""
        if list(map(len, self._all)) != self._lengths:
            return False
        now = self._entries()
        if not all(map(operator.is_, compress(now, self._is_other), self._others)):
            return False
        return all(map(operator.is_, compress(now, self._is_tensor), map(operator.call, self._references)))

    def _entries(self) -> list[Any]:
        """Keys and entries, and then the values of dicts."""
        return [*chain.from_iterable(self._all), *chain.from_iterable(map(dict.values, self._dicts))]


def _is_own(kind: type) -> bool:
    """Is it a class of this package?"""
    return kind.__module__.startswith("mslsq.")


def are_same(now: list[Any], then: list[Any]) -> bool:
    """Are these the very objects that there were, some of which are told by weak references?"""
    if len(now) != len(then):
        return False
    return all(map(is_same, now, then))


def is_same(now: Any, then: Any) -> bool:
    """Is it the object that there was, which may be told by a weak reference? None is not what there is no more."""
    return now is then or (type(then) is weakref.ref and now is not None and then() is now)
