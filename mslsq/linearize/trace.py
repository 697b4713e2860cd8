"""Record a pure function of tensors once as a plain graph, replay it at a fraction of the cost, or compile it.

`make_fx` runs the function with its transforms (`vmap(jacfwd(...))`) on an example and writes down the operations
that remain: a replay skips all of functorch (4x at batch 1, 1.5x at 1024), and `torch.compile`, which fails on the
transforms themselves (pytorch #151196), takes the plain graph.
"""

import copy
import shutil
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq import pytree
from mslsq.linear.iterative.block_rows import BlockRows
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.compressed import CompressedPlacement, CompressedPlan, CompressedTerm
from mslsq.linearize.derivatives import Way
from mslsq.linearize.guard import REMEDIES, DataDependentError, DependenceMode, ValueMode
from mslsq.linearize.operators import WHILE_RECORDING
from mslsq.linearize.pattern import Pattern, Placement
from mslsq.linearize.replay import merge_repeated, straight_line
from mslsq.linearize.rewrites import make_transformable, writes_into_a_view
from mslsq.linearize.small_products import write_out_small_products
from mslsq.problem.structure import Structure
from mslsq.problem.system import System

TRANSFORM_LOCK = threading.RLock()
"""Forward-mode levels are global to the process in PyTorch: a fifth of concurrent `jacfwd` calls are silently wrong,
and threaded tracing raises. Everything that traces or differentiates forward holds this lock; replaying a graph
needs none."""

TRACE_SECONDS, TRACE_CALLS = 0.3, 100
"""What recording a step costs, in seconds of a small problem and in calls of any: a millisecond or two per operation of
the graph, of which each replay saves four microseconds. It is paid once as much has been spent on running the step
without: never for a few steps, however long they take (3 s for sphere2500, whose nine steps take 0.4)."""


class NotRecordableError(RuntimeError):
    """A function cannot be written down as a graph; says why."""


WITNESS = "witness"
"""The graph of a few lanes that is compared with the user's Python (`solvers.witness`)."""


class Recorded:
    """A function of a pytree of tensors as a graph of plain operations.

    Raises:
        NotRecordableError: the function reads the value of an argument (`item`, `tolist`, a boolean mask, `nonzero`,
            ...), which a graph would keep for ever, or PyTorch cannot trace it.
    """

    def __init__(self, function: Callable[..., Any], example: tuple[Any, ...]):
        leaves, structure = pytree.flatten(example)
        self._out: pytree.Structure | None = None

        def flat(*tensors: Tensor) -> list[Tensor]:
            output, self._out = pytree.flatten(function(*pytree.unflatten(tensors, structure)))
            return output

        def guarded(*tensors: Tensor) -> list[Tensor]:
            with ValueMode(), DependenceMode(list(tensors)):
                return flat(*tensors)

        # An object of its own for each: a tensor that stands in two places of the example would be taken for one input.
        distinct = [leaf.detach() for leaf in leaves]
        with TRANSFORM_LOCK, torch.no_grad():
            try:
                graph = make_fx(guarded, decomposition_table=WHILE_RECORDING)(*distinct)
            except DataDependentError as error:
                raise NotRecordableError(f"it has {REMEDIES[error.construct][0]}") from error
            except Exception as error:
                first_line = (str(error).splitlines() or [""])[0]
                raise NotRecordableError(f"PyTorch cannot trace it ({type(error).__name__}: {first_line})") from error
        # Dead nodes of a forward-mode trace (zero tensors, meta devices) cost a third of the time, and break
        # transforms of the graph.
        graph.graph.eliminate_dead_code()
        merge_repeated(graph.graph)
        graph.recompile()
        self.graph = graph
        self._without_writes: torch.fx.GraphModule | None = None
        self._call: Callable[..., Any] = straight_line(graph.graph, graph)
        for node in graph.graph.nodes:
            node.meta.pop("val", None)  # a fake tensor with a mode of its own: 25 MB for 500 nodes

    def compile(self, quiet: bool = False) -> None:
        """Compile the graph, on its first call. Without a C++ compiler, says so (unless `quiet`) and goes on "
        "replaying."""
        if compiler_available():
            self._call = Compiled(self.graph)
        elif not quiet:
            warnings.warn(
                "compile=True needs a C++ compiler (g++ or clang++ on the PATH, or CXX); none was found, so the "
                "recorded graph is replayed instead.",
                NoCompilerWarning,
                stacklevel=2,
            )

    def __call__(self, *args: Any) -> Any:
        assert self._out is not None  # set while recording
        with torch.no_grad():
            return pytree.unflatten(self.flat(pytree.leaves(args)), self._out)

    def differentiable(self, *args: Any) -> Any:
        """The same with gradients on: the plain graph, whose operations PyTorch differentiates like any others."""
        assert self._out is not None  # set while recording
        leaves = pytree.leaves(args)
        if self._without_writes is None:
            self._without_writes = self._written_out([leaf.detach() for leaf in leaves])
        return pytree.unflatten(list(self._without_writes.forward(*leaves)), self._out)

    def _written_out(self, example: list[Tensor]) -> torch.fx.GraphModule:
        """The graph without writes into tensors, which PyTorch's own composite operators leave in a recording: the
        backward pass wants what they overwrite."""
        if not any(writes_into_a_view(node) for node in self.graph.graph.nodes):
            return self.graph
        with TRANSFORM_LOCK:
            return make_transformable(torch.fx.GraphModule(self.graph, copy.deepcopy(self.graph.graph)), example)

    def flat(self, tensors: list[Tensor]) -> list[Tensor]:
        """The leaves of the output from the leaves of the arguments. Gradients must be off."""
        return list(self._call(*tensors))


class Compiled:
    """A plain graph compiled by Inductor, once for every layout of its inputs.

    Not through `torch.compile`: a step is called twenty times in a millisecond, and Dynamo's guards and wrappers
    take 60 µs of each call to find out what the key of the plan has said already.
    """

    def __init__(self, graph: torch.fx.GraphModule):
        self._graph = graph
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = (torch.get_num_threads(), *[tensor.stride() for tensor in tensors])
        compiled = self._compiled.get(key)
        if compiled is None:
            with TRANSFORM_LOCK:
                compiled = self._compiled[key] = _by_inductor(self._copy(), list(tensors))
        return compiled(*tensors)

    def _copy(self) -> torch.fx.GraphModule:
        """The compiler changes the graph that it is given."""
        graph = copy.deepcopy(self._graph.graph)
        write_out_small_products(graph)
        return torch.fx.GraphModule(self._graph, graph)


def _by_inductor(graph: torch.fx.GraphModule, tensors: list[Tensor]) -> Callable[..., Any]:
    """The graph compiled, or taken from Inductor's cache on disk, which only looks at graphs inside a tracing context:
    a second process compiles the step of sphere2500 in 3 seconds instead of 25."""
    from torch import _inductor  # takes seconds to import
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with tracing(TracingContext(mode)):
        compiled: Any = _inductor.compile(graph, [mode.from_tensor(tensor) for tensor in tensors])
    return compiled


class NoCompilerWarning(UserWarning):
    """`compile=True` was asked for, and there is no C++ compiler."""


def compiler_available() -> bool:
    """Is there a C++ compiler that `torch.compile` would use on the CPU?"""
    import os

    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name)


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
