"""What of a callable's state changes from call to call: after three changes it is read in every call instead.

Every new value in the key is a new plan, of which nothing is ever recorded; and a place that changes all the time
is the likeliest to change where no key can see it, in the middle of a solve. So such a residual runs eagerly.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from mslsq.tracing.reading.inputs import Collected
from mslsq.tracing.reading.reachable import DEEPEST, MOST_OBJECTS, Walk

CHANGES = 3
"""New values of one place after which it is no longer keyed."""
REMEMBERED = 32
"""States and callables that are remembered: as many as a cache has plans."""
CHANGED = "changed in several calls"
"""Stands in the key where such a value stood."""


class Changes:
    """The memory of the state in which a callable (or a problem) was called."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._histories: OrderedDict[Hashable, History] = OrderedDict()

    def keyed(self, name: str, collected: Collected) -> tuple[Hashable, str]:
        """(key, why nothing may be recorded or empty) for what was collected of the part `name`.

        Callables of different code under one name are told apart: one front door may serve many models.
        """
        with self._lock:
            identity = (name, collected.codes)
            history = self._histories.get(identity)
            if history is None:
                history = self._histories[identity] = History()
                if len(self._histories) > REMEMBERED:
                    self._histories.popitem(last=False)
            else:
                self._histories.move_to_end(identity)
            key = history.key(collected)
        reasons = [reason for reason in (too_large(collected), history.reason()) if reason]
        return (collected.codes, key), "; ".join(reasons)


class History:
    """The states of one callable: the last, the recent ones, the values that each place had."""

    def __init__(self) -> None:
        self.last: tuple[Any, ...] | None = None
        self.recent: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self.values: dict[str, dict[Any, None]] = {}
        self.volatile: dict[str, None] = {}

    def key(self, collected: Collected) -> tuple[Any, ...]:
        """The state without the places that change; they are found here."""
        key = places = None
        if not self.volatile:
            key = collected.scalars
            if key == self.last:
                return key
        else:
            key, places = named(collected, self.volatile)
        if key not in self.recent:  # going back to a state that is known is no new value
            if self.last is not None:
                if places is None:
                    key, places = named(collected, self.volatile)
                if self.note(changed(self.last, key, places)):
                    key, _ = named(collected, self.volatile)
            self.recent[key] = None
            if len(self.recent) > REMEMBERED:
                self.recent.popitem(last=False)
        else:
            self.recent.move_to_end(key)
        self.last = key
        return key

    def note(self, places: dict[str, tuple[Any, Any]]) -> bool:
        """Remember the values that places had; are there places now that had too many?"""
        found = False
        for place, (before, after) in places.items():
            had = self.values.setdefault(place, {before: None})
            had[after] = None
            if len(had) > CHANGES:
                self.volatile[place] = None
                del self.values[place]
                found = True
        if len(self.volatile) > REMEMBERED:
            self.volatile = {"": None}  # nearly everything changes
        if len(self.values) > REMEMBERED**2:
            self.values.clear()
        return found

    def reason(self) -> str:
        """Which places changed, in words."""
        if not self.volatile:
            return ""
        first = next(iter(self.volatile)) or "what the residual reads"
        more = f" (and {len(self.volatile) - 1} more)" if len(self.volatile) > 1 else ""
        return f"{first}{more} had a new value in {CHANGES} calls"


def too_large(collected: Collected) -> str:
    """Why not everything is compared, in words."""
    if not collected.too_large:
        return ""
    most = f"{MOST_OBJECTS:,} objects, {DEEPEST} deep"
    return f"it reaches more than can be compared at every call ({most}), from {collected.too_large[:200]} on"


class NamedWalk(Walk):
    """The walk that also notes at which place each value stands, and leaves out those that change."""

    shortcut = False

    def __init__(self, root: Any, methods: tuple[str, ...], volatile: dict[str, None]) -> None:
        self.volatile = volatile
        self.places: list[str] = []
        self.place = ""
        self.left_out = False
        super().__init__(root, methods)

    def values(self) -> list[Any]:
        return NamedValues(self)

    def visit(self, value: Any, name: str, parent: int) -> None:
        self.at(name, lambda: Walk.visit(self, value, name, parent))

    def holder(self, value: Any, name: str, chains: Any) -> None:
        self.at(name, lambda: Walk.holder(self, value, name, chains))

    def at(self, name: str, look: Callable[[], None]) -> None:
        """Look at a place, or past it: what stands there is still searched for tensors."""
        outer, self.place = (self.place, self.left_out), name or self.place
        if name in self.volatile and not self.left_out:
            self.scalars.append(CHANGED)
            self.left_out = True
        look()
        self.place, self.left_out = outer


class NamedValues(list[Any]):
    """The values of a `NamedWalk`, its places beside them."""

    def __init__(self, walk: NamedWalk) -> None:
        super().__init__()
        self.walk = walk

    def append(self, value: Any) -> None:
        if not self.walk.left_out:
            super().append(value)
            self.walk.places.append(self.walk.place)


def named(collected: Collected, volatile: dict[str, None]) -> tuple[tuple[Any, ...], list[str]]:
    """The state of a callable without the places that change, and the place of every value in it."""
    walk = NamedWalk(collected.root, collected.methods, volatile)
    return tuple(walk.scalars), walk.places


def changed(old: tuple[Any, ...], new: tuple[Any, ...], places: list[str]) -> dict[str, tuple[Any, Any]]:
    """The places whose values differ, with what stood and stands there; where there are more or fewer values than
    before the first of them only."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for before, after, place in zip(old, new, places, strict=False):
        if before != after:
            found.setdefault(place, []).append((before, after))
            if len(old) != len(new):
                break
    if not found:  # there is more, or less, at the end
        found[places[-1] if places else ""] = [(len(old), len(new))]
    return {place: (tuple(a for a, _ in pairs), tuple(b for _, b in pairs)) for place, pairs in found.items()}
