"""Writes down the operations that run under a dispatch mode, as `torch.fx` nodes.

`make_fx` does the same, and more: symbolic shapes, fake tensors, stacks of calls for each node. It imports Dynamo for
that, which takes a second in a new process, and takes four times as long itself.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.passes.shape_prop import TensorMetadata

from mslsq.private import (
    DispatchMode,
    LazyGraphModule,
    WeakTensorKeyDictionary,
    disable_proxy_modes_tracing,
    dispatch_modes,
    get_proxy_mode,
    has_parts,
    operator_name,
)

aten = torch.ops.aten
Operator = Callable[..., Any]
PLAIN = (Tensor, nn.Parameter, nn.Buffer)
"""Types of tensors that have no `__torch_dispatch__` of their own."""


def record(
    function: Callable[..., Any],
    example: Sequence[Any],
    formulas: Mapping[Any, Operator],
) -> fx.GraphModule:
    """The operations of `function(*example)`, in order, with what has no effect.

    Operations run on the example's tensors, below all transforms that are active inside of the function. Tensors that
    no operation has made and that are not of the example are constants. Each node's `meta["val"]` is a tensor of the
    shape, dtype and device of its result; `meta["tensor_meta"]` also knows strides, `meta["offset"]` where it begins.

    Args:
        formulas: by operator, what is called in its place; where that returns NotImplemented the operator itself is.
            Of operators that autograd sees the parts of, the parts are written down, in inference mode too.
    """
    recorder = Recorder(formulas)
    with disable_proxy_modes_tracing():
        leaves = recorder.placeholders(example)
        with recorder:
            outputs = function(*leaves)
        return recorder.module(outputs)


def is_recording() -> bool:
    """Are operations being written down, by `record` or by `make_fx`?"""
    return get_proxy_mode() is not None or any(isinstance(mode, Recorder) for mode in dispatch_modes())


class Recorder(DispatchMode):
    """The mode, and the graph that it writes."""

    def __init__(self, formulas: Mapping[Any, Operator]):
        super().__init__()
        self._formulas = formulas
        self._root, self._graph = nn.Module(), fx.Graph()
        self._nodes = WeakTensorKeyDictionary()
        self._constants: dict[int, tuple[Tensor, fx.Node]] = {}
        self._dependent: set[fx.Node] = set()
        """The nodes whose values depend on the inputs."""
        self._numbers: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def placeholders(self, example: Sequence[Any]) -> list[Any]:
        """The leaves of the example, each an input of the graph."""
        for number, leaf in enumerate(example):
            node = self._graph.placeholder(f"arg_{number}")
            self._dependent.add(node)
            if isinstance(leaf, Tensor):
                self._describe(leaf, node)
        return list(example)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a subclass first says what it is made of
        formulas = [self._formulas.get(func), func.decompose if has_parts(func) else None]
        if any(formulas):
            with self:
                for formula in formulas:
                    result = NotImplemented if formula is None else formula(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
        if func is aten.lift_fresh.default:
            func = aten.lift_fresh_copy.default  # what is written into it later is no constant
        given, named = map_aggregate(args, self._argument), map_aggregate(kwargs, self._argument)
        if torch.Tag.data_dependent_output in func.tags:
            return self._number(func, args, kwargs, (given, named))
        node = self._graph.call_function(func)
        node.args = given  # given at once, PyTorch would look for symbolic sizes among them: a seventh of a recording
        if named:
            node.kwargs = named
        if not self._dependent.isdisjoint(node.all_input_nodes):
            self._dependent.add(node)
        result = func(*args, **kwargs)
        self._describe_all(result, node)
        return result

    def module(self, outputs: Any) -> fx.GraphModule:
        """What was written, which returns what the function has returned."""
        self._graph.output(map_aggregate(outputs, self._argument))
        return LazyGraphModule(self._root, self._graph)

    def _number(self, func: Any, args: Any, kwargs: Any, given: Any) -> Any:
        """A number that Python asks for: one that no input changes."""
        used: list[fx.Node] = []
        map_aggregate(given, lambda leaf: used.append(leaf) if isinstance(leaf, fx.Node) else None)
        if not self._dependent.isdisjoint(used):
            raise RuntimeError(f"{operator_name(func)} asks for a value that depends on the inputs of a graph")
        return func(*args, **kwargs)

    def _describe_all(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, Tensor):
            self._describe(result, node)
        elif isinstance(result, (list, tuple)):
            parts = [part for part in result if isinstance(part, Tensor)]
            node.meta["val"] = [self._described(part) for part in parts]
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    of_part = self._graph.call_function(operator.getitem, (node, number))
                    self._dependent |= {of_part} if node in self._dependent else set()
                    self._describe(part, of_part)

    def _describe(self, tensor: Tensor, node: fx.Node) -> None:
        """From now on the tensor is the result of the node, also where it was an argument that has been written to."""
        self._nodes[tensor] = node
        layout = tensor.shape, tensor.dtype, tensor.requires_grad, tensor.stride()
        node.meta["tensor_meta"] = TensorMetadata(*layout, memory_format=None, is_quantized=False, qparams={})
        node.meta["val"], node.meta["offset"] = self._described(tensor), tensor.storage_offset()

    def _described(self, tensor: Tensor) -> Tensor:
        """A tensor of that shape, dtype and device which takes the memory of one number."""
        kind = tensor.dtype, tensor.device
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = torch.empty((), dtype=tensor.dtype, device=tensor.device)
        return number.expand(tensor.shape)

    def _argument(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        node = self._nodes.get(leaf)
        return self._constant(leaf) if node is None else node

    def _constant(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._constants:
            name = f"_tensor_constant{len(self._constants)}"
            setattr(self._root, name, tensor)
            node = self._graph.get_attr(name)
            node.meta["val"] = self._described(tensor)
            self._constants[id(tensor)] = tensor, node
        return self._constants[id(tensor)][1]
