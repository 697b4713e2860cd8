"""Which operations of a graph become native code, and in which order: as much as possible at once."""

import math
import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from mslsq.native.graphs.arrays import LARGEST, TYPES, Array, NoLoopError
from mslsq.native.graphs.calls import has_several, read_by
from mslsq.native.graphs.writer import CONSTANTS, Writer, is_view
from mslsq.private import is_operator, operator_name

FEWEST = 4
"""Operations of a segment that are no views: fewer are faster in PyTorch, or as fast."""


@dataclass
class Segment:
    """Nodes that become one function of C++."""

    nodes: list[fx.Node]
    text: str = ""
    results: list[fx.Node] = field(default_factory=list)
    """What it reads of the operations between segments, and no segment before it has read."""


class Constant(NamedTuple):
    """What is known of a tensor that the graph holds, as recorded for those that it computes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> "Constant":
        return Constant(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def meta_of(node: fx.Node) -> Any:
    meta = node.meta.get("tensor_meta")
    return meta if hasattr(meta, "shape") and hasattr(meta, "stride") else None


def _is_small(node: fx.Node) -> bool:
    meta = meta_of(node)
    if meta is None or meta.dtype not in TYPES or math.prod(meta.shape) > LARGEST:
        return False
    return bool(math.prod(meta.shape)) or (is_operator(node.target) and operator_name(node.target) in CONSTANTS)


def split(nodes: list[fx.Node]) -> list[fx.Node | Segment]:
    """Everything in an order in which as much as possible is done at once."""
    order: list[fx.Node | Segment] = [node for node in nodes if node.op in ("placeholder", "get_attr")]
    known = {node for node in order if isinstance(node, fx.Node)}
    refused: set[fx.Node] = set()
    pending = [node for node in nodes if node not in known and node.op != "output"]
    while pending:
        run: list[fx.Node] = []
        inside: set[fx.Node] = set()
        for node in pending:
            is_ready = all(x in known or x in inside for x in node.all_input_nodes)
            if is_ready and node not in refused and _may(node):
                run.append(node)
                inside.add(node)
        pays = sum(not is_view(node) for node in run) >= FEWEST
        if pays and (bad := _cannot(run)):
            refused.update(bad)
            continue
        if pays:
            order.append(Segment(run))
        else:
            ready = [node for node in pending if all(x in known for x in node.all_input_nodes)]
            run = [node for node in ready if node in refused or not _may(node)] or ready
            order += run
        known.update(run)
        pending = [node for node in pending if node not in known]
    order.append(nodes[-1])
    return order


def _cannot(run: list[fx.Node]) -> set[fx.Node]:
    """Those nodes of a segment that cannot be written after all."""
    inside, writer = (
        set(run),
        Writer(lambda numbers, type_: "memory", lambda address: "function", lambda tensor: "constant"),
    )
    split = {x for x in run if meta_of(x) is None and any(user not in inside for user in x.users)}
    if split:  # several at once that something outside takes apart
        return split
    for node in run:
        for x in read_by(node):
            if x not in writer.arrays:
                meta = meta_of(x)
                if meta is None:
                    return {node}
                writer.arrays[x] = Array("x", 0, tuple(meta.shape), tuple(meta.stride), meta.dtype)
        try:
            writer.write(node)
        except NoLoopError:
            return {node}
    return set()


def _may(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return _is_small(node) and isinstance(node.args[0], fx.Node) and _is_several(node.args[0])
    if meta_of(node) is None:
        return _is_several(node)
    return _is_small(node) and all(map(_is_small, read_by(node)))


def _is_several(node: fx.Node) -> bool:
    """Are its results several: of unbind, split, a factorisation?"""
    if not is_operator(node.target) or not (is_view(node) or has_several(node)) or meta_of(node) is not None:
        return False
    return all(map(_is_small, read_by(node))) and all(map(_is_small, node.users))
