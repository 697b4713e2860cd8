"""Names the operator whose batched derivative is wrong, by going through the graph of a residual node by node; and
whether it computes in fewer digits than the variables have."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import jacfwd, jacrev, vmap

from mslsq import pytree
from mslsq.linearize import independent
from mslsq.linearize.sample import Sample
from mslsq.private import DispatchMode, is_operator, operator_name
from mslsq.tracing.graph import TRANSFORM_LOCK, by_place, graph_of


def faulty_operator(sample: Sample) -> str:
    """The name of the first operator of the residual whose values or derivatives under `vmap` are not those of plain
    reverse mode; empty where none can be singled out."""
    try:
        with TRANSFORM_LOCK, independent.plain_python(), torch.no_grad():
            return _first_wrong(sample)
    except Exception:
        return ""  # what cannot be recorded cannot be gone through


def _first_wrong(sample: Sample) -> str:
    block = sample.block
    lanes = [(storages, inputs) for _, storages, inputs in sample.each()]
    lanes = lanes if len(lanes) > 1 else lanes * 2
    names = list(lanes[0][1])

    rows = [[*storages, *(inputs[name] for name in names)] for storages, inputs in lanes]
    graph = graph_of(by_place(block.residual_of_block, len(lanes[0][0]), names), rows[0])
    found = [_Values(graph, row) for row in rows]
    for node in graph.graph.nodes:
        for values in found:
            values.run(node)
        if node.op == "call_function" and is_operator(node.target) and _is_wrong(node, found):
            return operator_name(node.target)
    return ""


class _Values:
    """The values of a graph's nodes for one lane."""

    def __init__(self, graph: fx.GraphModule, inputs: list[Tensor]):
        self._interpreter = fx.Interpreter(graph)
        self._inputs = iter(inputs)
        self.of: dict[fx.Node, Any] = {}

    def run(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.of[node] = next(self._inputs)
        elif node.op == "get_attr":
            self.of[node] = self._interpreter.fetch_attr(str(node.target))
        elif node.op == "call_function":
            args, kwargs = self.filled(node)
            self.of[node] = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    def filled(self, node: fx.Node) -> tuple[Any, Any]:
        return fx.map_arg((node.args, node.kwargs), lambda used: self.of[used])


def _is_wrong(node: fx.Node, lanes: list[_Values]) -> bool:
    """Does the operator alone differ between a loop and `vmap`, in its values or its derivative?"""
    real = [used for used in node.all_input_nodes if _is_real(lanes[0].of[used])]
    if not real or not _is_real(lanes[0].of[node]):
        return False

    def operator(values: _Values) -> Any:
        def of(*tensors: Tensor) -> Tensor:
            given = dict(zip(real, tensors, strict=True))
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda used: given.get(used, values.of[used]))
            return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

        return of

    numbers = tuple(range(len(real)))
    for derivative in (jacfwd, jacrev):
        stacked = [torch.stack([values.of[used] for values in lanes]) for used in real]
        try:
            batched = vmap(derivative(operator(lanes[0]), argnums=numbers))(*stacked)
        except Exception:
            continue  # what raises is not silently wrong
        for number, values in enumerate(lanes):
            try:
                expected = _plain_jacobians(operator(values), [values.of[used] for used in real])
            except Exception:
                return False
            for one, other in zip(batched, expected, strict=True):
                scale = other.abs().amax() if other.numel() else other.sum()
                if not torch.allclose(one[number], other, rtol=1e-5, atol=float(1e-5 * scale), equal_nan=True):
                    return True
    return False


def _plain_jacobians(function: Any, tensors: list[Tensor]) -> list[Tensor]:
    with torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        output = function(*leaves)
        rows = [
            torch.autograd.grad(entry, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
            for entry in output.reshape(-1)
        ]
    columns = zip(zip(*rows, strict=True), leaves, strict=True)
    return [torch.stack(column).reshape(*output.shape, *leaf.shape) for column, leaf in columns]


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


WIDENS = "A number of 0 dimensions, as p[0] is, does not widen them."


def said_of_half(sample: Sample) -> str:
    """What to do where a residual computes in half precision; empty where it does not."""
    _, storages, inputs = next(iter(sample.each()))
    used = _dtypes_in(lambda: sample.block.term.residual(sample.block.values_of_block(storages), inputs))
    half = next((dtype for dtype in used if dtype in (torch.float16, torch.bfloat16)), None)
    if half is None:
        return ""
    return f" It computes in {half}, of three digits: convert the data with .double() or .float(). {WIDENS}"


def said_of_precision(evaluate: Callable[[], Any], dtype: torch.dtype) -> str:
    """What to do where a part of what is evaluated has fewer digits than the variables, of this dtype; empty where none
    has."""
    digits = torch.finfo(dtype).eps
    numbers = [x for x in _dtypes_in(evaluate) if x.is_floating_point or x.is_complex]
    narrow = [x for x in numbers if torch.finfo(x).eps > digits]
    if not narrow:
        return ""
    least = max(narrow, key=lambda x: torch.finfo(x).eps)
    method = "double" if dtype == torch.float64 else "float"
    return (
        f" A part of the residual computes in {least}, the variables are {dtype}: its rounding may be all that is left "
        f"of the gradient. Convert the data that it reads with .{method}(). {WIDENS}"
    )


def _dtypes_in(evaluate: Callable[[], Any]) -> list[torch.dtype]:
    """Those of all that operators return."""
    used: list[torch.dtype] = []

    class Seen(DispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = func(*args, **(kwargs or {}))
            used.extend(leaf.dtype for leaf in pytree.leaves(output) if isinstance(leaf, Tensor))
            return output

    with Seen():
        evaluate()
    return used
