"""Closed code of classes that is known by identity: what an object of the class has shown holds for another one.

What an object of a user's own reads is what its class names, and what it holds itself. The first is the same for all
objects of the class, and seen to be as it was in 5 µs (`noted`), where a walk over an object takes 60; the second is
compared by `content`.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.inputs import Collected
from mslsq.tracing.reading.noted import Noted
from mslsq.tracing.reading.values import slots_of

KEPT = 32
"""Classes."""
MOST_CHANGES = 3
"""Times that what a class names was found changed, after which its objects are walked over."""


class KnownCode:
    """What the code of a class reads. Two are equal where they are one object."""

    def __init__(self, noted: Noted, closed: Closed):
        self._noted, self._closed = noted, closed

    def holds(self, root: Any) -> bool:
        """Does the code of this object read what it has read, but for what the object holds?"""
        return self._closed.holds and self._noted.holds(root)


class KnownCodes:
    """What is known of classes, the least recently used dropped first."""

    def __init__(self) -> None:
        self._known: OrderedDict[type, tuple[int, KnownCode | None]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, root: Any) -> KnownCode | None:
        """What is known of the code of an object; None where nothing is, or where it reads something else by now."""
        _, code = self._known.get(type(root), (0, None))
        return code if code is not None and code.holds(root) else None

    def keep(self, collected: Collected, closed: Closed) -> None:
        """Remember the class of an object, all of whose code is closed, if there is a short way to see that."""
        kind = type(collected.root)
        with self._lock:
            changes, code = self._known.pop(kind, (0, None))
            if changes < MOST_CHANGES and (code is None or not code.holds(collected.root)):
                noted = None if slots_of(kind) else Noted.of(collected, looks_at_objects=False)
                changes, code = changes + 1, None if noted is None else KnownCode(noted, closed)
            self._known[kind] = changes, code
            while len(self._known) > KEPT:
                self._known.popitem(last=False)

    def forget(self, kinds: Iterable[type]) -> None:
        """These classes read what was not seen."""
        with self._lock:
            self._known.update((kind, (MOST_CHANGES, None)) for kind in kinds)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()


CODES = KnownCodes()
