"""What an object of the library's own holds, as one key: equal keys of two objects, and they differ in nothing but the
numbers of their tensors.

Where `unchanged` asks whether an object is as it was, this asks whether another one is like it: a problem that is made
again for every call, of other measurements.
"""

import enum
import functools
import operator
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mslsq import pytree
from mslsq.private import MODULE_INTERNALS, MODULE_TABLES
from mslsq.tracing.reading import layers
from mslsq.tracing.reading.aside import Aside
from mslsq.tracing.reading.origins import is_library, is_own
from mslsq.tracing.reading.unchanged import ForeignError
from mslsq.tracing.reading.values import (
    SCALARS,
    TENSORS,
    is_compared,
    slots_of,
    tensor_value,
    value_of,
)

CONTAINERS = (dict, OrderedDict, list, tuple)
INTERNALS = frozenset(MODULE_INTERNALS)
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_HOOKS = operator.itemgetter(*sorted(MODULE_ATTRIBUTES - INTERNALS))
"""What a module keeps besides, all of it at once."""


class Content(NamedTuple):
    """What an object of the library's own holds."""

    key: Hashable
    """All but the numbers of `tensors`: every attribute, and the layout of every tensor, all the way down."""
    tensors: list[Tensor]
    """Every tensor once, in the order in which they were met; the key tells which stand in several places..."""
    compared: list[Tensor]
    """... and those that count by what they hold."""
    is_all_own: bool
    """Do the objects of a user's own hold nothing but what is the library's, so that all of it is in the key?"""

    @staticmethod
    def of(
        root: Any, by_content: Collection[type] = (), others: Mapping[int, Hashable] = MappingProxyType({})
    ) -> "Content | None":
        """What `root` holds; None where something is not the library's own, or cannot be compared.

        Args:
            root: an object of the library's own.
            by_content: the types of objects whose tensors count by what they hold.
            others: by the `id` of objects of a user's own what stands for their classes, and for what these read.
        """
        reader = _Reader(by_content, others)
        try:
            reader.visit(root)
        except ForeignError:
            return None
        return Content(tuple(reader.key), reader.tensors, reader.compared, reader.is_all_own)


class _Reader:
    """One walk. Every object says first of which type it is, so that no two sequences of entries read alike."""

    def __init__(self, by_content: Collection[type], others: Mapping[int, Hashable]) -> None:
        self.key: list[Any] = []
        self.tensors: list[Tensor] = []
        self.compared: list[Tensor] = []
        self.is_all_own = True
        self._by_content, self._others = by_content, others
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def visit(self, value: Any) -> None:
        kind = type(value)
        if kind is str or value is None:
            self.key.append(value)
        elif kind in SCALARS:
            self.key.append((kind, value_of(value, kind)))
        elif kind is Aside:
            self.key.append(kind)
        elif id(value) in self._seen:
            self.key.append(("again", self._seen[id(value)]))
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)  # so that no identity is given out twice
            if kind in TENSORS:
                self._visit_tensor(value)
            elif kind in CONTAINERS:
                self._visit_container(value, kind)
            else:
                self._visit_object(value, kind)

    def _visit_tensor(self, value: Tensor) -> None:
        if value.layout is not torch.strided:
            raise ForeignError
        self.tensors.append(value)
        self.key.append((value.shape, value.stride(), value.dtype, value.device, value.is_conj()))

    def _visit_container(self, value: Any, kind: type) -> None:
        self.key.append((kind, len(value)))
        if kind is list or kind is tuple:
            for entry in value:
                self.visit(entry)
            return
        for name, entry in value.items():
            self.visit(name)
            self.visit(entry)

    def _visit_object(self, value: Any, kind: type) -> None:
        if isinstance(value, type):
            if value not in CONTAINERS and not is_own(value.__module__) and not is_library(value):
                raise ForeignError
            self.key.append(value)
        elif isinstance(value, pytree.Structure):
            for entry in (value.type, value.context, pytree.children_of(value)):
                self.visit(entry)
        elif id(value) in self._others and isinstance(value, nn.Module):
            self.key.append(self._others[id(value)])
            self._visit_module(value, kind, of_user=True)
        elif not _is_known(kind):
            raise ForeignError
        elif isinstance(value, enum.Enum):
            self.key.append(value)
        elif isinstance(value, nn.Module):
            self._visit_module(value, kind)
        else:
            own = value.__dict__
            self.key.append((kind, len(own)))
            for name, entry in own.items():
                self.key.append(name)
                if kind in self._by_content and type(entry) in TENSORS:
                    self._compare(entry)
                else:
                    self.visit(entry)

    def _visit_module(self, value: nn.Module, kind: type, of_user: bool = False) -> None:
        """A user's holds what `others` tells of; a tensor in there is none of `tensors`."""
        own, key = value.__dict__, self.key
        visit = self._visit_entry_of_user if of_user else self.visit
        left_out = INTERNALS if _is_hooked(own) else MODULE_ATTRIBUTES
        key.append((kind, len(own), own.get("training")))
        for name, entry in own.items():
            if name not in left_out:
                key.append(name)
                visit(entry)
        for table in MODULE_TABLES:
            key.append(len(own[table]))
            for name, entry in own[table].items():
                key.append(name)
                visit(entry)

    def _visit_entry_of_user(self, entry: Any) -> None:
        before = len(self.key), len(self.tensors), len(self.compared)
        try:
            self.visit(entry)
        except ForeignError:
            self.is_all_own = False
            for found, length in zip((self.key, self.tensors, self.compared), before, strict=True):
                del found[length:]

    def _compare(self, value: Tensor) -> None:
        if not is_compared(value):
            raise ForeignError
        self.key.append(tensor_value(value))
        self.compared.append(value)
        self.visit(value)


def _is_hooked(own: dict[str, Any]) -> bool:
    """Is there a hook among the attributes of a module?"""
    try:
        return any(_HOOKS(own))
    except KeyError:
        return True


@functools.lru_cache(maxsize=1024)
def _is_known(kind: type) -> bool:
    """Is it a layer of PyTorch, or a class of the library's own that keeps its attributes where they can be seen?"""
    if kind in layers.LAYERS | layers.CONTAINERS | layers.ONLY_IN_EVALUATION:
        return True
    if not is_own(kind.__module__):
        return False
    return issubclass(kind, enum.Enum) or (not slots_of(kind) and kind.__dictoffset__ != 0)
