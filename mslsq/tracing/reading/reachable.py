"""The walk over everything a callable reaches: its tensors by name, its Python values in order.

Where objects lead to is a matter of Python, not of mathematics: `functions` and `objects` say it for every kind;
classes and imported modules are in `holders`.
"""

import types
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from mslsq.tracing.reading.holders import Holders
from mslsq.tracing.reading.objects import HANDLERS, handler_of
from mslsq.tracing.reading.reads import Chains
from mslsq.tracing.reading.values import SCALARS, Identity, joined, value_of

MOST_OBJECTS, DEEPEST = 10_000, 100
"""Objects (not counting tensors and modules) that a walk looks into, some 10 ms at every call, and how deep."""


class Walk:
    """One pass over the objects reachable from a callable. `parents` are the edges backwards, for `rebuild`; `held` are
    the tensors that a class or an imported module holds, which are exchanged where they are used."""

    shortcut = True
    """Are the plain values in containers noted without a visit?"""

    def __init__(self, root: Any, methods: tuple[str, ...]) -> None:
        self.used = set(methods)  # names of attributes that the code met so far asks for
        self.holders = self.follower()
        self.tensors: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self.parents: dict[int, list[int]] = {}
        self.scalars: list[Any] = self.values()
        self.codes: list[types.CodeType] = []
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no id is given out twice during the walk
        self.inside_global = self.inside_holder = False
        self.home = getattr(root, "__module__", "") or ""
        self.objects = self.depth = 0
        self.too_large = ""
        self.visit(root, "", 0)
        if self.holders.classes or self.holders.modules:
            self.inside_global = True
            self.holders.rest()
        del self.holders  # it holds the walk: neither, nor what was met, is to wait for the garbage collector

    def follower(self) -> Holders:
        """What follows classes and modules."""
        return Holders(self)

    def values(self) -> list[Any]:
        """Where values are noted, in order."""
        return []

    def visit(self, value: Any, name: str, parent: int) -> None:
        kind = type(value)
        if kind in SCALARS:
            self.scalars.append(value_of(value, kind))
            return
        address = id(value)
        if parent:
            self.parents.setdefault(address, []).append(parent)
        met = -address if self.inside_global else address  # what a global holds may be reached by a closure too
        if met in self.seen:
            self.scalars.append(("again", self.seen[met]))
            return
        self.seen[met] = len(self.seen)
        self.alive.append(value)
        (HANDLERS.get(kind) or handler_of(value, kind))(self, value, name, address)

    def apart(self, value: Any, name: str, held: bool = False) -> None:
        """Visit what cannot be exchanged for a copy: tensors in there cannot become inputs, unless `held` by a class
        or a module, for all that read them."""
        outer, self.inside_global = self.inside_global, True
        above, self.inside_holder = self.inside_holder, held
        try:
            self.visit(value, name, 0)
        finally:
            self.inside_global, self.inside_holder = outer, above

    def holder(self, value: type | types.ModuleType, name: str, chains: Chains) -> None:
        """Visit a class or a module of which the code reads these attributes."""
        outer, self.inside_global = self.inside_global, True
        try:
            self.holders.reached(value, chains)
        finally:
            self.inside_global = outer

    def full(self, value: Any, name: str) -> bool:
        """Are there more objects than can be looked into at every call? Then this one counts by identity."""
        self.objects += 1
        if self.objects <= MOST_OBJECTS and self.depth < DEEPEST:
            return False
        self.too_large = self.too_large or name
        self.scalars.append(Identity(value))
        return True

    def free_name(self, name: str) -> str:
        """The name, numbered where another tensor has it."""
        if name not in self.tensors:
            return name
        return next(f"{name} ({n})" for n in range(2, len(self.tensors) + 3) if f"{name} ({n})" not in self.tensors)

    def attributes(self, attributes: Iterable[tuple[str, Any]], name: str, address: int) -> None:
        scalars, shortcut = self.scalars, self.shortcut
        for key, entry in attributes:
            scalars.append(key)
            kind = type(entry)
            if shortcut and kind in SCALARS:
                scalars.append(value_of(entry, kind))
            else:
                self.visit(entry, joined(name, key), address)
