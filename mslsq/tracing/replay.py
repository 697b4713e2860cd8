"""A recorded graph as one straight-line Python function, which spends its time in the operations and not between them.

A step of a small problem is 260 operations of a microsecond each, so what stands between them counts. A GraphModule
looks every operation up through four attributes and calls it through a Python wrapper; here each is bound once, to
PyTorch's fastest entry where it has one (`torch.mul` takes 0.93 µs where `torch.ops.aten.mul.Tensor` takes 1.40),
repeated operations are done once, and scalars are made once.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from mslsq.private import fast_entry, is_operator, returns_a_view, writes

aten = torch.ops.aten

FASTER: dict[Any, Callable[..., Any]] = {
    aten.abs.default: torch.abs,
    aten.add.Tensor: torch.add,
    aten.all.dim: torch.all,
    aten.bitwise_and.Tensor: torch.bitwise_and,
    aten.bitwise_not.default: torch.bitwise_not,
    aten.bitwise_or.Tensor: torch.bitwise_or,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.div.Tensor: torch.div,
    aten.eq.Tensor: torch.eq,
    aten.exp.default: torch.exp,
    aten.expand.default: Tensor.expand,
    aten.ge.Tensor: torch.ge,
    aten.gt.Scalar: torch.gt,
    aten.gt.Tensor: torch.gt,
    aten.le.Scalar: torch.le,
    aten.le.Tensor: torch.le,
    aten.lt.Scalar: torch.lt,
    aten.maximum.default: torch.maximum,
    aten.mul.Tensor: torch.mul,
    aten.ne.Scalar: torch.ne,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.select.int: torch.select,
    aten.sqrt.default: torch.sqrt,
    aten.stack.default: torch.stack,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: Tensor.view,
    aten.where.self: torch.where,
}
"""Public functions that do the same as an operation, from the same arguments, without its schema being read each
time."""

SMALL = 1024
"""Constants of at most this many entries are made once and kept; larger ones are made each time, to save memory."""


def straight_line(graph: fx.Graph, attributes: Any) -> Callable[..., list[Tensor]]:
    """The graph as a function of its inputs, in order; `attributes` holds the tensors that `get_attr` nodes name."""
    bound: dict[str, Any] = {}
    names: dict[fx.Node, str] = {}
    lines: list[str] = []
    parameters: list[str] = []
    last_uses, written = _last_uses(graph), _written(graph)

    def literal(value: Any) -> str:
        """An argument as source; what has no literal of its own is bound to a name."""
        if isinstance(value, fx.Node):
            return names[value]
        if isinstance(value, (list, tuple)):
            inside = ", ".join(map(literal, value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        return bind("constant", value)

    def bind(prefix: str, value: Any) -> str:
        name = f"{prefix}_{len(bound)}"
        bound[name] = value
        return name

    for number, node in enumerate(graph.nodes):
        if node.op == "placeholder":
            names[node] = f"v{number}"
            parameters.append(names[node])
        elif node.op == "get_attr":
            names[node] = bind("attribute", operator.attrgetter(str(node.target))(attributes))
        elif node.op == "output":
            lines.append(f"return {literal(list(node.args[0]))}")
        elif node not in written and _is_small_constant(node):
            names[node] = bind("constant", node.target(*node.args, **node.kwargs))
        else:
            names[node] = f"v{number}"
            arguments = [literal(argument) for argument in node.args]
            arguments += [f"{key}={literal(argument)}" for key, argument in node.kwargs.items()]
            lines.append(f"{names[node]} = {bind('op', _entry(node.target))}({', '.join(arguments)})")
            done = [names[used] for used in last_uses.get(node, ()) if names[used] not in bound]
            if done:
                lines.append(f"{' = '.join(done)} = None")
    source = "\n    ".join([f"def replay({', '.join(parameters)}):", *lines])
    exec(compile(source, "<recorded step>", "exec"), bound)
    return bound["replay"]


def merge_repeated(graph: fx.Graph) -> None:
    """Do every operation once: a node that repeats an earlier one, and a view that changes nothing, give way to it."""
    seen: dict[Any, fx.Node] = {}
    written = _written(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_pure(node.target):
            continue
        if node in written or any(used in written for used in node.all_input_nodes):
            continue
        replacement = _viewed(node)
        if replacement is None:
            # By their source: 1, 1.0 and True are equal in Python, 0.0 and -0.0 too, but not as arguments.
            key = (node.target, repr(node.args), repr(node.kwargs))
            replacement = seen.setdefault(key, node)
        if replacement is not node:
            node.replace_all_uses_with(replacement)
            graph.erase_node(node)


def _written(graph: fx.Graph) -> set[fx.Node]:
    """What is written to in place (`jacfwd` fills zeros of its own), with all views of it: none of it may be shared."""
    written: set[fx.Node] = set()
    for node in graph.nodes:
        if writes(node.target):
            written.update(node.all_input_nodes, (node,))
    # Up from a view to what it is a view of, and down again to its other views, until there is nothing more.
    pairs = [(node, used) for node in graph.nodes if _is_view(node.target) for used in node.all_input_nodes]
    count = -1
    while count != len(written):
        count = len(written)
        for node, used in pairs:
            if node in written or used in written:
                written.update((node, used))
    return written


def _is_view(target: Any) -> bool:
    """May the result share memory with an argument?"""
    if not is_operator(target):
        return target is operator.getitem
    return target is aten._unsafe_view.default or returns_a_view(target)


def _viewed(node: fx.Node) -> fx.Node | None:
    """What a view, an expansion to the very same shape, or a conversion to what it is already, is a view of.

    Forward mode converts every tangent to its own dtype, with a copy: a quarter of the time of a Hessian.
    """
    unchanged = (aten.view.default, aten.expand.default, aten.alias.default, aten._to_copy.default)
    if node.target not in unchanged or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is aten._to_copy.default and node.args[0].op != "call_function":
        return None  # an input of the graph must not become its output
    before, after = (n.meta.get("tensor_meta") for n in (node.args[0], node))
    if before is None or after is None:
        return None
    # The stride of an axis of length one is never used.
    strides = [[step for size, step in zip(m.shape, m.stride, strict=True) if size != 1] for m in (before, after)]
    same = before.shape == after.shape and strides[0] == strides[1] and before.dtype == after.dtype
    return node.args[0] if same and _device(node) == _device(node.args[0]) else None


def _device(node: fx.Node) -> torch.device | None:
    """Where the result of a node lives, as the recording saw it."""
    value = node.meta.get("val")
    return value.device if isinstance(value, Tensor) else None


def _is_pure(target: Any) -> bool:
    """Does the operation depend on its arguments alone, and change nothing?"""
    if not is_operator(target):
        return target is operator.getitem
    return not writes(target) and torch.Tag.nondeterministic_seeded not in target.tags


def _is_small_constant(node: fx.Node) -> bool:
    """Does a node make the same small tensor every time?"""
    if node.all_input_nodes or not _is_pure(node.target):
        return False
    meta = node.meta.get("tensor_meta")
    shape = getattr(meta, "shape", None)
    return isinstance(shape, torch.Size) and shape.numel() <= SMALL


def _entry(target: Any) -> Callable[..., Any]:
    """What to call for an operation."""
    return FASTER[target] if target in FASTER else fast_entry(target)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node, what is used by it for the last time: its memory can go."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    result: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        result.setdefault(node, []).append(used)
    return result
