"""Where plans are kept: by problem or code, and those of small problems for all problems that are alike."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from mslsq.linearize.plan import Plan

T = TypeVar("T")

STALE_OFTEN = 3
"""A plan that has been dropped so often is not recorded any more."""


class PlanKey:
    """All that a plan depends on, hashed once. A tuple hashes what is in it each time that it is looked up, and an
    `OrderedDict` looks its keys up when it is gone through: 1 ms of a call where 32 plans of graphs are known."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable):
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is PlanKey and self._hash == other._hash and self._parts == other._parts


class PlanCache:
    """Plans by key, the least recently used dropped first. Copies and pickles are empty: plans belong to a process.

    Args:
        size: how many are kept.
        shared: where plans that others may use are looked for as well, and put.
    """

    def __init__(self, size: int = 32, shared: "PlanCache | None" = None):
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._size, self._shared = size, shared
        self._dropped: Counter[Hashable] = Counter()
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Plan | None:
        with self._lock:
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
        if known is None and self._shared is not None:
            known = self._shared.get(key)
            if known is not None:
                self._put(key, known)
        return known

    @property
    def has_graphs(self) -> bool:
        """Has anything been recorded for any plan that may be found here?"""
        with self._lock:
            plans = tuple(self._plans.values())
        if any(form.execution.graphs for plan in plans for form in (plan, plan.native) if form is not None):
            return True
        return self._shared is not None and self._shared.has_graphs

    def put(self, key: Hashable, plan: Plan) -> None:
        self._put(key, plan)
        if self._shared is not None and plan.may_be_shared:
            self._shared.put(key, plan)

    def _put(self, key: Hashable, plan: Plan) -> None:
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > self._size:
                self._plans.popitem(last=False)

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What several plans have in common, made once."""
        with self._lock:
            found = self._kept[key] = self._kept.pop(key, None) or make()
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return found

    def drop(self, key: Hashable) -> None:
        """Forget a plan that has gone stale; a solve that runs on it keeps it to the end."""
        with self._lock:
            self._plans.pop(key, None)
            self._dropped[key] += 1
            while len(self._dropped) > self._size:
                del self._dropped[next(iter(self._dropped))]
        if self._shared is not None:
            self._shared.drop(key)

    def goes_stale(self, key: Hashable) -> bool:
        """Has this plan gone stale so often that it is not worth recording again?"""
        with self._lock:
            is_stale = self._dropped[key] >= STALE_OFTEN
        return is_stale or (self._shared is not None and self._shared.goes_stale(key))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            for known in (self._plans, self._dropped, self._kept):
                known.clear()

    def __deepcopy__(self, memo: Any) -> "PlanCache":
        return PlanCache(self._size, self._shared)

    def __reduce__(self) -> Any:
        return PlanCache, (self._size,)


SHARED = PlanCache()
"""Plans of small problems: a problem that is made again for every call, with the same structure and costs of the same
code, finds that of the one before. Keys hold no address that could be given to another object (`tracing.reading`)."""
