"""What is kept between the solves of one problem at one set of shapes: structure, ways to differentiate, graphs."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mslsq.linear.iterative.block_rows import BlockRows
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.compressed import CompressedPlacement, CompressedPlan, CompressedTerm
from mslsq.linearize.derivatives import Way
from mslsq.linearize.pattern import Pattern, Placement
from mslsq.problem.structure import Structure
from mslsq.problem.system import System
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.tracing.recording import NotRecordableError, Recorded

TRACE_SECONDS, TRACE_CALLS = 0.3, 100
"""What recording a step costs, in seconds of a small problem and in calls of any: a millisecond or two per operation of
the graph, of which each replay saves four microseconds. It is paid once as much has been spent on running the step
without: never for a few steps, however long they take (3 s for sphere2500, whose nine steps take 0.4)."""

WITNESS = "witness"
"""The graph of a few lanes that is compared with the user's Python (`solvers.witness`)."""


@dataclass
class Plan:
    """What is kept between solves of one problem at one set of shapes: structure, sizes, graphs. Holds no tensor of
    the user's."""

    structure: Structure
    pattern: Pattern | None
    """Of block-sparse normal equations; None where they are dense."""
    placements: tuple[Placement | CompressedPlacement, ...]
    """Per term, where its blocks go."""
    sizes: tuple[tuple[int, int], ...]
    """Per term: rows of the residual of one block, and how many are complex."""
    ways: dict[int, Way] = field(default_factory=dict)
    """By term: how it is differentiated, where that is not the ordinary way."""
    rows: BlockRows | None = None
    """Where the blocks of every term stand, if normal equations are never formed."""
    compressed: CompressedPlan | None = None
    """Of a system that is one big residual, if its sparsity is made use of."""
    note: str = ""
    """What was found while planning, for who wants to know (`verbose`)."""
    eager: str = ""
    """Why nothing of it may be recorded, in words; empty where it may."""
    changes_unseen: bool = False
    """Does a residual read what no key can hold? Then its ways are chosen again in every solve."""
    graphs: dict[str, Recorded] = field(default_factory=dict)
    eager_seconds: float = 0.0
    eager_calls: int = 0
    needs_witness: bool = True
    """Can a residual change unseen: is one not the library's own?"""
    hessians_checked: bool = False
    """Have second derivatives been compared with plain reverse mode?"""
    calls: int = 0
    """Solves so far."""

    @property
    def is_large(self) -> bool:
        """Are the normal equations too large to be dense? Then it is single functions that are recorded, not steps."""
        return self.pattern is not None or self.rows is not None

    @property
    def is_witnessed(self) -> bool:
        """Would it be noticed if what is recorded goes stale?"""
        return not self.needs_witness or WITNESS in self.graphs

    @property
    def holds_residuals(self) -> bool:
        """Has a residual been rewritten as a graph?"""
        return self.compressed is not None or any(way.residual is not None for way in self.ways.values())

    def blocks(self, system: System, batch: int, batched: tuple[frozenset[str], ...]) -> tuple[BlockTerm, ...]:
        """The terms of a system for this plan, ready to be mapped, each in its way."""
        found = []
        for number, (term, own, size) in enumerate(zip(system.terms, batched, self.sizes, strict=True)):
            if self.compressed is not None:
                block: BlockTerm = CompressedTerm(term, system, batch, own, *size, plan=self.compressed)
            else:
                block = BlockTerm(term, system, batch, own, *size)
            found.append(block.going(self.ways.get(number, block.way)))
        return tuple(found)

    def worth_recording(self, policy: str) -> bool:
        """Record now? As soon as the steps run without a graph have cost as much as recording will."""
        if self.eager:
            return False
        spent = self.eager_seconds >= TRACE_SECONDS and self.eager_calls >= TRACE_CALLS
        return policy == "always" or (policy == "auto" and spent)

    def recorded(
        self,
        name: str,
        policy: str,
        function: Callable[..., Any],
        *example: Any,
        compiled: bool = False,
        quiet: bool = True,
    ) -> Recorded | None:
        """The graph of that name, recorded now if that pays; None where it does not, or is not wanted.

        Nothing is recorded before the witness, by which a solve learns whether its graphs still hold.
        """
        if policy == "never":
            return None  # though another solver may have recorded it
        if name not in self.graphs and self.is_witnessed and self.worth_recording(policy):
            self.record(name, function, *example, compiled=compiled, quiet=quiet)
        return self.graphs.get(name)

    def record(
        self, name: str, function: Callable[..., Any], *example: Any, compiled: bool = False, quiet: bool = True
    ) -> None:
        """Record a graph; where that fails everything runs as before, only slower, and `verbose` says why."""
        with TRANSFORM_LOCK:
            if name in self.graphs:  # another thread was faster
                return
            try:
                graph = Recorded(function, example)
            except NotRecordableError as error:
                self.run_eagerly_from_now_on(f"no graph of the residual is kept: {error}")
                return
            if compiled:
                graph.compile(quiet)  # a missing compiler has been said by the step
            self.graphs[name] = graph

    def run_eagerly_from_now_on(self, why: str) -> None:
        self.eager = why
        self.graphs.clear()
        self.say(why)

    def say(self, text: str) -> None:
        """Keep a sentence for `verbose`."""
        if text and text not in self.note:
            self.note = f"{self.note}\n{text}" if self.note else text

    def run_eagerly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function that holds transforms, under the lock, and keep count of the time."""
        with TRANSFORM_LOCK, torch.no_grad():
            start = time.perf_counter()
            output = function(*args)
            self.eager_seconds += time.perf_counter() - start
            self.eager_calls += 1
        return output


STALE_OFTEN = 3
"""A plan that has been dropped so often is not recorded any more."""


class PlanCache:
    """Plans by key, the least recently used dropped first. Copies and pickles are empty: plans belong to a process."""

    def __init__(self, size: int = 32):
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._size = size
        self._dropped: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Plan | None:
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
            return self._plans.get(key)

    def put(self, key: Hashable, plan: Plan) -> None:
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > self._size:
                self._plans.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        """Forget a plan that has gone stale; whoever is running it keeps it to the end."""
        with self._lock:
            self._plans.pop(key, None)
            self._dropped[key] += 1
            while len(self._dropped) > self._size:
                del self._dropped[next(iter(self._dropped))]

    def goes_stale(self, key: Hashable) -> bool:
        """Has this plan gone stale so often that it is not worth recording again?"""
        with self._lock:
            return self._dropped[key] >= STALE_OFTEN

    def __deepcopy__(self, memo: Any) -> "PlanCache":
        return PlanCache(self._size)

    def __reduce__(self) -> Any:
        return PlanCache, (self._size,)


def tensor_key(tensor: Tensor) -> Hashable:
    """What a graph bakes in of a tensor."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj()


def global_key() -> Hashable:
    """The global settings that a graph bakes in."""
    return torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
