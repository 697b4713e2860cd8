"""Record a pure function of tensors once as a plain graph, replay it at a fraction of the cost, or compile it.

Recording runs the function with its transforms (`vmap(jacfwd(...))`) on an example and writes down the operations
that remain: a replay skips all of functorch (4x at batch 1, 1.5x at 1024), and `torch.compile`, which fails on the
transforms themselves (pytorch #151196), takes the plain graph.
"""

import copy
import os
import shutil
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx

from mslsq import pytree
from mslsq.private import compiled_by_inductor
from mslsq.tracing.cuda_graph import CudaGraphCall
from mslsq.tracing.graph import TRANSFORM_LOCK, distinct, forget_example, graph_of
from mslsq.tracing.guard import REMEDIES, DataDependentError
from mslsq.tracing.replay import merge_repeated, straight_line
from mslsq.tracing.rewrites import make_transformable, writes_into_a_view
from mslsq.tracing.small_products import write_out_small_products


class NotRecordableError(RuntimeError):
    """A function cannot be written down as a graph; says why."""


class Recorded:
    """A function of a pytree of tensors as a graph of plain operations.

    Raises:
        NotRecordableError: the function reads the value of an argument (`item`, `tolist`, a boolean mask, `nonzero`,
            ...), which a graph would keep for ever, or PyTorch cannot trace it.
    """

    def __init__(self, function: Callable[..., Any], example: tuple[Any, ...]):
        self._in = pytree.Form(example)
        self._out: pytree.Form | None = None
        leaves = self._in.leaves(example)

        def flat(*tensors: Tensor) -> list[Tensor]:
            output = function(*self._in.tree(list(tensors)))
            self._out = pytree.Form(output)
            return self._out.leaves(output)

        with TRANSFORM_LOCK, torch.no_grad():
            try:
                graph = graph_of(flat, distinct(leaves), guarded=True)
            except DataDependentError as error:
                raise NotRecordableError(f"it has {REMEDIES[error.construct][0]}") from error
            except Exception as error:
                first_line = (str(error).splitlines() or [""])[0]
                raise NotRecordableError(f"PyTorch cannot trace it ({type(error).__name__}: {first_line})") from error
        merge_repeated(graph.graph)
        graph.recompile()
        self._call: Callable[..., Any] = straight_line(graph.graph, graph)
        self.device = leaves[0].device.type if leaves else "cpu"
        self.replays = 0
        self.prospect: Any = None
        """What is known of a native program of this graph (`native.graphs.prospect`)..."""
        self.whole: Any = None
        """... and that program where it is one call (`native.graphs.whole`)."""
        self.graph = forget_example(graph)
        self._without_writes: fx.GraphModule | None = None

    def compile(self, quiet: bool = False) -> None:
        """Compile the graph, on its first call. Without a C++ compiler, says so (unless `quiet`) and goes on
        replaying."""
        if compiler_available():
            self._call = Compiled(self.graph)
        elif not quiet:
            warnings.warn(
                "compile=True needs a C++ compiler (g++ or clang++ on the PATH, or CXX); none was found, so the "
                "recorded graph is replayed instead.",
                NoCompilerWarning,
                stacklevel=2,
            )

    def run_by(self, call: Callable[..., list[Tensor]]) -> None:
        """Have another function compute the leaves of the output."""
        self._call = call

    @property
    def is_compiled(self) -> bool:
        return isinstance(self._call, Compiled)

    def capture(self, say: Callable[[str], None]) -> None:
        """From now on the graph runs as a CUDA graph, captured at its next call; `say` is told if it cannot be."""
        if not isinstance(self._call, CudaGraphCall):
            self._call = CudaGraphCall(self._call, say)

    def __call__(self, *args: Any) -> Any:
        assert self._out is not None  # set while recording
        with torch.no_grad():
            return self._out.tree(self.flat(self._in.leaves(args)))

    def differentiable(self, *args: Any) -> Any:
        """The same with gradients on: the plain graph, whose operations PyTorch differentiates like any others."""
        assert self._out is not None  # set while recording
        leaves = self._in.leaves(args)
        if self._without_writes is None:
            self._without_writes = self._written_out(distinct(leaves))
        return self._out.tree(list(self._without_writes.forward(*leaves)))

    def _written_out(self, example: list[Tensor]) -> fx.GraphModule:
        """The graph without writes into tensors, which PyTorch's own composite operators leave in a recording: the
        backward pass wants what they overwrite."""
        if not any(writes_into_a_view(node) for node in self.graph.graph.nodes):
            return self.graph
        with TRANSFORM_LOCK:
            return make_transformable(fx.GraphModule(self.graph, copy.deepcopy(self.graph.graph)), example)

    def flat(self, tensors: list[Tensor]) -> list[Tensor]:
        """The leaves of the output from the leaves of the arguments. Gradients must be off."""
        self.replays += 1
        return list(self._call(*tensors))


class Compiled:
    """A plain graph compiled by Inductor, once for every layout of its inputs.

    Not through `torch.compile`: a step is called twenty times in a millisecond, and Dynamo's guards and wrappers
    take 60 µs of each call to find out what the key of the plan has said already.
    """

    def __init__(self, graph: fx.GraphModule):
        self._graph = graph
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = (torch.get_num_threads(), *[tensor.stride() for tensor in tensors])
        compiled = self._compiled.get(key)
        if compiled is None:
            with TRANSFORM_LOCK:
                compiled = self._compiled[key] = compiled_by_inductor(self._copy(), tensors)
        return compiled(*tensors)

    def _copy(self) -> fx.GraphModule:
        """The compiler changes the graph that it is given."""
        graph = copy.deepcopy(self._graph.graph)
        write_out_small_products(graph)
        return fx.GraphModule(self._graph, graph)


class NoCompilerWarning(UserWarning):
    """`compile=True` was asked for, and there is no C++ compiler."""


def compiler_available() -> bool:
    """Is there a C++ compiler that `torch.compile` would use on the CPU?"""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name)
