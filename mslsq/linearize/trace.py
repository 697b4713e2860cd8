"""Decides how each function of a plan runs: eagerly, from its recorded graph, or compiled. No other file does."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from mslsq.native.choice import Native
from mslsq.native.graphs.prospect import GraphProspect
from mslsq.tracing import cuda_graph
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.tracing.recording import NotRecordableError, Recorded

TRACE_SECONDS, TRACE_CALLS = 0.15, 50
"""What recording a step costs, in seconds of a small problem and in calls of any: about a millisecond per operation of
the graph, of which each replay saves four microseconds. It is paid once as much has been spent on running the step
without: never for a few steps, however long they take (1.5 s for sphere2500, whose nine steps take 0.4)."""

WITNESS = "witness"
"""The graph of a few lanes that is compared with the user's Python (`solvers.witness`)."""

OF_STEPS = frozenset({"start", "step", "bent step", "linearize", WITNESS})
"""The graphs that call no program of second derivatives."""

Compiled = Literal["never", "small", "always"]
"""Is a graph compiled where the solver asks for that: never, where the plan is not large, or always?"""


def clock(is_large: bool) -> Callable[[], float]:
    """By which it is told what calls have cost, and so what is recorded and compiled.

    Of a small problem that is the processor time of this thread: other processes on the same cores lengthen every call
    of the wall's clock, and would have programs begun after a few that never pay. Of a large one, whose work several
    threads or a device share, it is the wall's.
    """
    return time.perf_counter if is_large else time.thread_time


class Wish(NamedTuple):
    """What the options of a solver ask for."""

    trace: Literal["auto", "always", "never"]
    compile: bool
    native: Native = "never"


@dataclass
class Notes:
    """What was found on the way, in sentences for `verbose`."""

    text: str = ""

    def say(self, sentence: str) -> None:
        """Keep a sentence, once."""
        if sentence and sentence not in self.text:
            self.text = f"{self.text}\n{sentence}" if self.text else sentence


@dataclass
class Execution:
    """The graphs of a plan, and the time that has been spent without them."""

    is_large: bool
    """Are the normal equations too large to be dense? Then single functions are recorded, not steps, and what
    derivatives need is not compiled: it would take minutes, for one call per solve."""
    notes: Notes
    why_eager: str = ""
    """Why nothing may be recorded, in words; empty where it may."""
    needs_witness: bool = True
    """Can a residual change unseen: is one not the library's own?"""
    graphs: dict[str, Recorded] = field(default_factory=dict)
    eager_seconds: float = 0.0
    eager_calls: int = 0
    recording_seconds: float = 0.0
    """What all recordings have taken."""
    asked_for_compiler: bool = False

    def again(self, notes: Notes) -> "Execution":
        """The same with nothing recorded yet."""
        return replace(self, graphs={}, notes=notes)

    def graph(
        self,
        name: str,
        wish: Wish,
        function: Callable[..., Any],
        *example: Any,
        compiled: Compiled = "never",
        witness: Callable[[], None] | None = None,
        calls_programs_alone: bool = False,
        is_wanted: bool = False,
    ) -> Recorded | None:
        """The graph of that name, recorded now if that pays; None where it does not, or is not wanted.

        Args:
            example: what `function` is called with.
            compiled: whether the graph is compiled where the solver asks for that.
            witness: records the witness, by which a solve learns whether its graphs still hold. Nothing is recorded
                before it...
            calls_programs_alone: ... but what holds none of the user's Python: native programs, which are compared
                themselves, stand for it.
            is_wanted: is its native program begun however often it has been replayed?
        """
        compile_it = wish.compile and (compiled == "always" or (compiled == "small" and not self.is_large))
        at_once = wish.trace == "always" or compile_it or (wish.compile and not self.is_large)
        if wish.trace == "never" and not at_once:
            return None  # though another solver may have recorded it
        if name not in self.graphs and not self.why_eager and (at_once or self._has_cost_enough):
            if not self.is_witnessed and witness is not None:
                witness()
            if (self.is_witnessed or calls_programs_alone) and not self.why_eager:
                self.record(name, function, *example, compiled=compile_it)
        return self.fastest(name, wish, is_wanted)

    def fastest(self, name: str, wish: Wish, is_wanted: bool = False) -> Recorded | None:
        """The graph of that name if there is one, or its native program where it has one by now, and one is wished."""
        found = self.graphs.get(name)
        if found is not None and found.device == "cuda" and cuda_graph.is_wanted():
            found.capture(self.notes.say)
        if found is None or wish.native == "never" or found.is_compiled:
            return found
        if found.prospect is None:
            found.prospect = GraphProspect(found)
        found.prospect.is_wanted |= is_wanted
        return found.prospect.form(wish.native)

    def known(self, name: str, wish: Wish) -> Recorded | None:
        """The graph of that name, if there is one and the solver wants it."""
        return None if wish.trace == "never" else self.fastest(name, wish)

    def has_program(self, name: str, wish: Wish) -> bool:
        """Is the graph of that name run by a native program by now?"""
        found = self.graphs.get(name)
        return found is not None and wish.native != "never" and found.prospect is not None and found.prospect.is_in_use

    def run(self, name: str, wish: Wish, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """`function(*args)` without gradients, from its graph if there is one, or if it pays to record it now; with
        the options of `graph`."""
        graph = self.graph(name, wish, function, *args, **options)
        return self.run_eagerly(function, *args) if graph is None else graph(*args)

    def run_eagerly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function that holds transforms, under the lock, and keep count of the time."""
        with TRANSFORM_LOCK, torch.no_grad():
            now = clock(self.is_large)
            start = now()
            output = function(*args)
            self.eager_seconds += now() - start
            self.eager_calls += 1
        return output

    def record(self, name: str, function: Callable[..., Any], *example: Any, compiled: bool = False) -> None:
        """Record a graph; where that fails everything runs as before, only slower, and `verbose` says why."""
        with TRANSFORM_LOCK:
            if name in self.graphs:  # another thread was faster
                return
            now = clock(self.is_large)
            begun = now()
            try:
                graph = Recorded(function, example)
            except NotRecordableError as error:
                self.stay_eager(f"no graph of the residual is kept: {error}")
                return
            self.recording_seconds += now() - begun
            if compiled:
                graph.compile(quiet=self.asked_for_compiler)
                self.asked_for_compiler = True  # that there is none is said once
            self.graphs[name] = graph

    def keep_steps_alone(self) -> None:
        """Forget the graphs of derivatives: what they were recorded with has been replaced."""
        for name in [name for name in self.graphs if name not in OF_STEPS]:
            self.graphs.pop(name, None)

    def stay_eager(self, why: str) -> None:
        """Record nothing from now on, and forget what has been."""
        self.why_eager = why
        self.graphs.clear()
        self.notes.say(why)

    @property
    def is_witnessed(self) -> bool:
        """Would it be noticed if what is recorded goes stale?"""
        return not self.needs_witness or WITNESS in self.graphs

    @property
    def _has_cost_enough(self) -> bool:
        """Have the steps that ran without a graph cost as much as recording will?"""
        return self.eager_seconds >= TRACE_SECONDS and self.eager_calls >= TRACE_CALLS
