"""Compilers: Dynamo, which is not imported where it need not be, and Inductor."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import _lazy_graph_module

DISPATCHING_FILES = tuple(
    os.path.join(*path)
    for path in (("torch", "_compile.py"), ("torch", "_dynamo", "eval_frame.py"), ("mslsq", "private", "compilers.py"))
)
"""How the files end whose frames lie between an operation and the dispatch mode that sees it."""


LazyGraphModule: type[fx.GraphModule] = getattr(_lazy_graph_module, "_LazyGraphModule", fx.GraphModule)
"""A graph whose Python code is written when it is first called. Most recorded graphs are never called: a third of the
time of recording went there, three times for each."""


def dynamo_is_imported() -> bool:
    """Has Dynamo been imported? Until then nothing is being compiled."""
    return "torch._dynamo" in sys.modules


def dynamo_may_look() -> bool:
    """Does Dynamo look at the frames that Python enters now? Outside of what is compiled it does not."""
    if not dynamo_is_imported():
        return False
    of_frames: Any = getattr(torch._C, "_dynamo", None)
    callback = getattr(of_frames.eval_frame, "get_eval_frame_callback", None)
    return callback is None or callback() is not None


def hidden_from_dynamo(function: Any, reason: str) -> None:
    """Mark a function as `torch.compiler.disable` does, without importing Dynamo, which takes two seconds."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = reason
    of_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    skip: Any = getattr(getattr(of_frames, "_FrameAction", None), "SKIP", None)
    if skip is not None:  # the mark says nothing of a frame that PyTorch enters while Dynamo looks at frames
        of_frames.set_code_exec_strategy(function.__code__, of_frames._FrameExecStrategy(skip, skip))


def spare_dynamo(function: Any, without: Callable[..., Any] | None = None) -> None:
    """Let a function marked with `torch._disable_dynamo` run without importing Dynamo, which takes a second.

    The first call of such a function imports Dynamo to wrap what is marked, and keeps the result as an attribute of
    it. As long as Dynamo has not been imported there is nothing to switch off: a substitute in that place calls what is
    marked as it is. Once Dynamo is there, the substitute removes itself, and PyTorch does what it does otherwise.
    Nothing happens where a version of PyTorch marks functions in another way. `without` is asked first, for a result
    that needs nothing to be imported; None where it has none.
    """
    marking = _marking_behind(function)
    if marking is None:
        return
    marked: Any = inspect.getclosurevars(marking).nonlocals.get("fn")
    if marked is None or _KEPT in vars(marked):
        return

    def substitute(*args: Any, **kwargs: Any) -> Any:
        result = None if without is None else without(*args, **kwargs)
        if result is not None:
            return result
        if not hasattr(sys.modules.get("torch._dynamo"), "disable"):  # not there, or still being imported
            return marked(*args, **kwargs)
        vars(marked).pop(_KEPT, None)
        return marking(*args, **kwargs)

    hidden_from_dynamo(substitute, "marked with torch._disable_dynamo")
    vars(marked)[_KEPT] = substitute


def _marking_behind(function: Any) -> Any:
    """The function that `torch._disable_dynamo` returned, behind other decorators; None where there is none."""
    while function is not None and getattr(function, "__code__", None) is not _MARKING:
        function = getattr(function, "__wrapped__", None)
    return function


_KEPT = "__dynamo_disable"


_MARKING = getattr(getattr(torch, "_disable_dynamo", lambda function: function)(lambda: None), "__code__", None)
"""The code of every function that `torch._disable_dynamo` returns."""


def compiled_by_inductor(graph: fx.GraphModule, tensors: Iterable[Tensor]) -> Callable[..., Any]:
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
