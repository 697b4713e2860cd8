"""How what a walk meets is reached: by attributes that the code names, or only by others."""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from mslsq.tracing.reading.harmless import OpenError, is_users
from mslsq.tracing.reading.holders import Holders
from mslsq.tracing.reading.origins import owners_of
from mslsq.tracing.reading.reads import Chains

if TYPE_CHECKING:
    from mslsq.tracing.reading.reachable import Walk

ROOT = 0


class Paths:
    """The graph of what a walk has met; edges are attributes, or None for every other way."""

    def __init__(self) -> None:
        self.attribute: str | None = None
        """Of which the value is visited next."""
        self.read_all = False
        """May attributes be read that no code names?"""
        self._stack: list[tuple[int, type]] = [(ROOT, object)]
        self._edges: dict[int, set[tuple[int, str | None]]] = {}
        self._ends: dict[int, tuple[OpenError, frozenset[str] | None]] = {}

    @property
    def is_of_user(self) -> bool:
        """Has the object that is visited nothing of a library's that might read its attributes?"""
        kinds = self._stack[-1][1].__mro__
        return all(kind in (object, nn.Module, types.SimpleNamespace) or is_users(kind) for kind in kinds)

    @contextmanager
    def into(self, value: Any) -> Iterator[None]:
        """While an object is visited."""
        self.to(value)
        self.attribute = None
        self._stack.append((id(value), type(value)))
        try:
            yield
        finally:
            self._stack.pop()

    @contextmanager
    def within(self, value: Any) -> Iterator[None]:
        """While what a class or module holds is visited."""
        self._stack.append((id(value), object))
        try:
            yield
        finally:
            self._stack.pop()

    def to(self, value: Any, origin: Any = None) -> None:
        """There is a way to this object, from the one that is visited or from `origin`."""
        begin = self._stack[-1][0] if origin is None else id(origin)
        attribute = self.attribute if origin is None else None
        self._edges.setdefault(begin, set()).add((id(value), attribute))

    def end(self, value: Any, error: OpenError, names: frozenset[str] | None = None) -> None:
        """What this object holds cannot be compared; or not if one of these of its attributes is asked for."""
        self._ends.setdefault(id(value), (error, names))

    def check(self, used: set[str]) -> None:
        """OpenError where such an object is reached by attributes among `used`."""
        if not self._ends:
            return
        met, pending = {ROOT}, [ROOT]
        while pending:
            for address, attribute in self._edges.get(pending.pop(), ()):
                is_read = attribute is None or attribute in used or self.read_all
                if is_read and address not in met:
                    met.add(address)
                    pending.append(address)
        for address, (error, names) in self._ends.items():
            if address in met and (names is None or not names.isdisjoint(used)):
                raise error


class ClosedHolders(Holders):
    """Classes and modules, with the ways to what they hold."""

    def __init__(self, walk: "Walk", paths: Paths) -> None:
        super().__init__(walk)
        self.paths = paths

    def instance_of(self, kind: type) -> None:
        self._to_class(kind)
        super().instance_of(kind)

    def reached(self, holder: type | types.ModuleType, chains: Chains) -> None:
        self.paths.to(holder)
        super().reached(holder, chains)

    def follow(self, holder: type | types.ModuleType, chain: tuple[str, ...]) -> None:
        with self.paths.within(holder):
            super().follow(holder, chain)

    def whole(self, holder: type | types.ModuleType) -> None:
        if isinstance(holder, type):
            self._to_class(holder)
        else:
            self.paths.to(holder)
        super().whole(holder)

    def member(self, owner: type | types.ModuleType, attribute: str, content: Any) -> None:
        self.paths.to(owner)
        with self.paths.within(owner):
            super().member(owner, attribute, content)

    def _to_class(self, kind: type) -> None:
        self.paths.to(kind)
        for owner in owners_of(kind):
            self.paths.to(owner, kind)
