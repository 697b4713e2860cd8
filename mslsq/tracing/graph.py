"""Writes a pure function of tensors down as a plain graph of operations. The one place that records."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize

from mslsq.tracing.guard import DependenceMode, ValueMode
from mslsq.tracing.operators import WHILE_RECORDING, without_fused_modules
from mslsq.tracing.recorder import record

TRANSFORM_LOCK = threading.RLock()
"""Forward-mode levels are global to the process in PyTorch: a fifth of concurrent `jacfwd` calls are silently wrong,
and threaded tracing raises. Everything that traces or differentiates forward holds this lock; replaying a graph
needs none."""


def graph_of(
    function: Callable[..., Any], example: Sequence[Any], *, guarded: bool = False, functional: bool = False
) -> fx.GraphModule:
    """The operations that `function(*example)` does, without those whose results nothing needs.

    The graph holds for the shapes, dtypes and devices of the example; each node's `meta["val"]` is its result there.
    Tensors that are not in the example become constants. Not thread safe: the caller holds `TRANSFORM_LOCK`.

    Args:
        function: takes the leaves of the example, returns tensors in a list or tuple, or one tensor.
        example: tensors, each an object of its own: one that stands in two places would be taken for one input.
        guarded: raise where Python looks at the value of an input, which a graph would keep for ever.
        functional: write in-place operations and views out of place.

    Raises:
        DataDependentError: `guarded`, and a value of an input is asked for, or random numbers are drawn.
        RuntimeError: PyTorch cannot trace it.
    """

    def modes(leaves: Sequence[Any]) -> ExitStack:
        stack = ExitStack()
        if guarded:
            stack.enter_context(ValueMode())
            stack.enter_context(DependenceMode([leaf for leaf in leaves if isinstance(leaf, Tensor)]))
        if functional:
            stack.enter_context(without_fused_modules())
        return stack

    def recorded(*leaves: Any) -> Any:
        with modes(leaves):
            return functionalize(function, remove="mutations_and_views")(*leaves) if functional else function(*leaves)

    graph = record(recorded, example, WHILE_RECORDING)
    # Dead nodes of a forward-mode trace (zero tensors, meta devices) cost a third of the time, and break transforms of
    # the graph.
    without_dead_code(graph)
    graph.recompile()
    return graph


def without_dead_code(graph: fx.GraphModule) -> None:
    """Take out the nodes whose results nothing needs, but for the check of a factorization, which says that its result
    is half a factor: `rewrites.unchecked` reads it, and torch 2.9 itself takes it for dead."""
    check = torch.ops.aten._linalg_check_errors.default
    graph.graph.eliminate_dead_code(lambda node: bool(node.users) or node.is_impure() or node.target is check)


def distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as an example for `graph_of`: plain numbers, each an object of its own."""
    return [tensor.detach() for tensor in tensors]


def by_place(function: Callable[..., Any], count: int, names: Iterable[str]) -> Callable[..., Any]:
    """`function(tensors, inputs)` with inputs by name, as a function of that many tensors, then of the inputs in this
    order."""
    names = list(names)
    return lambda *leaves: function(leaves[:count], dict(zip(names, leaves[count:], strict=True)))


def forget_example(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph without what it knows of the example: a fake tensor for each node, with a mode of its own, takes 25 MB
    for 500 nodes."""
    for node in graph.graph.nodes:
        node.meta.pop("val", None)
    return graph


def attribute_of(graph: fx.GraphModule, node: fx.Node) -> Tensor:
    """The tensor that a `get_attr` node names."""
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value
