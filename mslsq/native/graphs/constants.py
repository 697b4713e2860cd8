"""Computes once what depends on nothing but shapes: the basis of `jacfwd`, say, which it fills and copies in place."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from mslsq.native.graphs.arrays import LARGEST, NoLoopError
from mslsq.private import is_operator, operator_name, writes

OF_SHAPES = frozenset(
    ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "_new_zeros_with_same_feature_meta")
)
"""Operations that take shapes, not numbers, from their tensors; where one is asked for a number it is none of these."""


def folded(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph with such nodes as constants; itself where nothing in it writes.

    Raises:
        NoLoopError: it writes into something else.
    """
    if not any(writes(node.target) for node in graph.graph.nodes):
        return graph
    known: dict[fx.Node, Any] = {}
    read: set[int] = set()
    with torch.no_grad():
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                known[node] = _attribute(graph, node)
                read.add(_memory(known[node]))
            elif _is_constant(node, known):
                _check_write(node, known, read)
                arguments = map_arg((node.args, node.kwargs), lambda x: known[x] if x in known else _like(x))
                known[node] = node.target(*arguments[0], **arguments[1])
            elif writes(node.target):
                raise NoLoopError("it writes into tensors")
            else:
                read.update(_memory(known[x]) for x in node.all_input_nodes if isinstance(known.get(x), Tensor))
    return _with_constants(graph, known)


def _is_constant(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    if node.op != "call_function":
        return False
    if is_operator(node.target):
        if torch.Tag.nondeterministic_seeded in node.target.tags:  # type: ignore[union-attr]
            return False
        if operator_name(node.target) in OF_SHAPES:
            return all(x in known or x is node.args[0] or x is node.args[1] for x in node.all_input_nodes)
    return all(x in known for x in node.all_input_nodes)


def _check_write(node: fx.Node, known: dict[fx.Node, Any], read: set[int]) -> None:
    """Nothing that has been read may be written to later."""
    if writes(node.target) and any(_memory(known[x]) in read for x in node.all_input_nodes):
        raise NoLoopError("it writes into what has been read")


def _attribute(graph: fx.GraphModule, node: fx.Node) -> Tensor:
    """The tensor that a node names."""
    return operator.attrgetter(str(node.target))(graph)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _like(node: fx.Node) -> Tensor:
    """A tensor of the shape that a node has; its numbers are not asked for."""
    meta = node.meta["tensor_meta"]
    return torch.empty(meta.shape, dtype=meta.dtype, device="cpu")


def _with_constants(graph: fx.GraphModule, known: dict[fx.Node, Any]) -> fx.GraphModule:
    module, found = torch.nn.Module(), fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}

    def attribute(value: Tensor, meta: dict[str, Any]) -> fx.Node:
        name = f"constant_{len(found.nodes)}"
        module.register_buffer(name, value)
        node = found.create_node("get_attr", name)
        node.meta.update(meta)
        return node

    for node in graph.graph.nodes:
        if node.op == "get_attr":
            copied[node] = attribute(_attribute(graph, node), node.meta)
        elif node not in known:
            copied[node] = found.node_copy(node, copied.__getitem__)
        elif isinstance(known[node], Tensor) and known[node].numel() <= LARGEST:
            if any(user not in known for user in node.users):
                copied[node] = attribute(known[node].clone(), {})
        elif any(user not in known for user in node.users):
            raise NoLoopError("a constant of several tensors")
    return fx.GraphModule(module, found)
