"""From a functionalized trace to a graph that `torch.func` transforms: views, explicit bounds, no dead code.

`torch.func.functionalize` leaves operations that have no batching rule or no derivative (`aten.copy`, `X_copy`),
recording ones that only fit the example's memory layout (`view`) and ones that read state at run time (the default
dtype).
"""

import math
import operator
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from mslsq.private import arguments_of, is_operator, operator_name, overload_name, writes, written_arguments
from mslsq.tracing import operators
from mslsq.tracing.graph import graph_of, without_dead_code
from mslsq.tracing.replacements import factorizations

aten = torch.ops.aten


def conj(x: Tensor | complex) -> Tensor:
    """`aten._conj` is a lazy view that `view_as_real` refuses. It takes numbers, too: the pullback of a product with
    1j conjugates that."""
    return aten._conj.default(x).resolve_conj()


def as_complex(x: Tensor) -> Tensor:
    """`view_as_complex` for any strides: with the batch axis last the pair is never adjacent in memory."""
    return torch.complex(x[..., 0], x[..., 1])


def as_real(x: Tensor) -> Tensor:
    """`view_as_real`, also of a zero or conjugated tangent."""
    return torch.stack([x.real, x.imag], dim=-1)


# A view's own shape arithmetic holds for the example's strides only: in_dims=-1 puts the batch axis last in memory.
OWN: dict[Any, Any] = {
    aten.view_copy.default: aten.reshape.default,
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    aten._reshape_copy.default: aten.reshape.default,
    aten.view_as_complex_copy.default: as_complex,
    aten.view_as_complex.default: as_complex,
    aten.view_as_real_copy.default: as_real,
    aten.view_as_real.default: as_real,
    aten._conj_copy.default: conj,
    aten._conj.default: conj,
    aten._neg_view_copy.default: aten.neg.default,
    aten._neg_view.default: aten.neg.default,
}
REPLACED = ChainMap(OWN, operators.REPLACEMENTS)  # which grows with foreign operators
# Each further write lists all stretches again while the graph is built: quadratic, so the list starts again at a limit.
MOST_STRETCHES = 512


def make_transformable(module: fx.GraphModule, example: Sequence[Any]) -> fx.GraphModule:
    """Rewrite the graph so that `vmap`, `jacfwd`, `jacrev` and nestings are right.

    Raises:
        RuntimeError: it writes into tensors in a way that cannot be undone.
    """
    if any(writes_into_a_view(node) for node in module.graph.nodes):
        # A kernel that is made of others (padding="circular") writes out of sight of the first `functionalize`.
        forward = module.forward
        with torch.no_grad():
            module = graph_of(lambda *flat: forward(*flat), example, functional=True)
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            rewrite(node)
    without_dead_code(module)
    module.graph.lint()
    module.recompile()
    return module


def rewrite(node: fx.Node) -> None:
    target = node.target
    if target is aten.copy_.default and into_fresh(node):
        copied(node)
    elif writes_into_a_view(node):
        raise RuntimeError(f"{target} writes into a tensor and has no out-of-place form here")
    elif target in RULES:
        RULES[target](node)
    elif target in REPLACED:
        node.target = REPLACED[target]
    elif is_operator(target):
        name = operator_name(target)
        if name.endswith("_copy") and hasattr(aten, name.removesuffix("_copy")):
            node.target = getattr(getattr(aten, name.removesuffix("_copy")), overload_name(target))
        elif not node.all_input_nodes:
            fixed_dtype(node)


def dropped(node: fx.Node) -> None:
    """The tensor itself."""
    replace(node, node.args[0])


def unchecked(node: fx.Node) -> None:
    """One singular block must not stop the others, and must not go on with half a factor: NaN instead of an error."""
    info = cast(fx.Node, node.args[0])
    source = cast(fx.Node, info.args[0])
    # What stands for an operator here (`factorizations.solve`) has no half factors.
    results = source.users if is_operator(source.target) else {}
    for factor in [other for other in results if other.target is operator.getitem and other.args[1] == 0]:
        with node.graph.inserting_after(factor):
            own = node.graph.call_function(operator.getitem, (source, info.args[1]))
        with node.graph.inserting_after(own):
            sound = node.graph.call_function(factorizations.where_factored, (factor, own))
        own.meta = dict(info.meta)
        sound.meta = dict(factor.meta)
        factor.replace_all_uses_with(sound, delete_user_cb=lambda user, own=sound: user is not own)
    node.graph.erase_node(node)


def into_fresh(node: fx.Node) -> bool:
    """Is it a copy into zeros made for it? A tangent gets the layout of its primal so: losing it loses a derivative."""
    into = node.args[0] if node.args else None
    fresh = aten._new_zeros_with_same_feature_meta.default
    return isinstance(into, fx.Node) and into.target is fresh and len(into.users) == 1


def writes_into_a_view(node: fx.Node) -> bool:
    """Does it write into the result of another operation, of which others may see a part?"""
    if not writes(node.target) or into_fresh(node):
        return False
    # not always the first: PyTorch 2.9 records a batch norm as one that writes its running statistics, the module's own
    into = written_arguments(node.target, node.args)
    return any(isinstance(one, fx.Node) and one.op == "call_function" for one in into)


def replace(node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def copied(node: fx.Node) -> None:
    """`aten.copy(dst, src)` is src in dst's shape and dtype; it has no derivative of its own."""
    destination, source = shape_and_dtype(node.args[0]), cast(fx.Node, node.args[1])
    with node.graph.inserting_before(node):
        shape, dtype = shape_and_dtype(source)
        if dtype != destination[1]:
            source = node.graph.call_function(aten.to.dtype, (source, destination[1]))
        if shape != destination[0]:
            source = node.graph.call_function(aten.expand.default, (source, destination[0]))
    replace(node, source)


def filled(node: fx.Node) -> None:
    """`aten.fill` has no batching rule; its result is a constant."""
    shape, dtype = shape_and_dtype(node)
    with node.graph.inserting_before(node):
        kwargs = {"dtype": dtype, "device": node.meta["val"].device}
        value = node.graph.call_function(aten.full.default, (shape, node.args[1]), kwargs)
        value.meta = node.meta
    replace(node, value)


def bounds(arguments: Any, shape: list[int]) -> tuple[int, int, int, int]:
    """(dim, start, end, step) with numbers in 0..size: batching rules add to open ends (2⁶³ - 1) and overflow."""
    defaults: tuple[Any, ...] = (0, None, None, 1)
    dim, start, end, step = (*arguments, *defaults[len(arguments) :])
    low, high, step = slice(start, end, step).indices(shape[dim])
    return dim, low, max(low, high), step


def bounded(node: fx.Node) -> None:
    """A slice with numbers for its ends."""
    node.target = aten.slice.Tensor
    node.args = (node.args[0], *bounds(node.args[1:], shape_and_dtype(node.args[0])[0]))


def joined(node: fx.Node) -> None:
    """A write into a view, as the parts side by side: `cat` for a stretch of one axis, else a gather from both tensors.

    The scatters themselves are not to be trusted: `jacrev(jacfwd(select_scatter))` is silently doubled (torch 2.13),
    and `slice_scatter` refuses reverse mode where the result is complex.
    """
    into, source, *arguments = cast(tuple[Any, ...], node.args)
    shape = shape_and_dtype(into)[0]
    start, end, step, dim = 0, 0, 0, 0
    if node.target is aten.select_scatter.default:
        dim, start = arguments[0], arguments[1] % shape[arguments[0]]
        end, step = start + 1, 1
    elif node.target is aten.slice_scatter.default:
        dim, start, end, step = bounds(arguments, shape)
    with node.graph.inserting_before(node):
        if step != 1:
            value = gathered(node, into, source, shape)
            value.meta = node.meta
        elif start == end:
            value = into
        else:
            if node.target is aten.select_scatter.default:
                source = node.graph.call_function(aten.unsqueeze.default, (source, dim))
            value = stretched(node, into, source, (dim, start, end))
    replace(node, value)


Stretch = tuple[int, int, fx.Node, int, int]  # start and end in the whole; the part, the place in it, its size


def stretched(node: fx.Node, into: fx.Node, source: fx.Node, place: tuple[int, int, int]) -> fx.Node:
    """`into` with `source` from `start` to `end` of an axis, as one `cat` of all stretches written so far.

    A `cat` per write would cost (writes × size) again in every derivative: 56 writes of 64 into 3584 took 200 s.
    """
    dim, start, end = place
    size = shape_and_dtype(into)[0][dim]
    written_dim, stretches = into.meta.get("stretches", (dim, []))
    if written_dim != dim or not 0 < len(stretches) < MOST_STRETCHES:
        stretches = [(0, size, into, 0, size)]
    kept: list[Stretch] = [(start, end, source, 0, end - start)]
    for low, high, part, offset, whole in stretches:
        if low < start:
            kept.append((low, min(high, start), part, offset, whole))
        if high > end:
            first = max(low, end)
            kept.append((first, high, part, offset + first - low, whole))
    kept.sort(key=lambda stretch: stretch[0])
    parts = [
        part
        if high - low == whole
        else node.graph.call_function(aten.slice.Tensor, (part, dim, offset, offset + high - low, 1))
        for low, high, part, offset, whole in kept
    ]
    value = node.graph.call_function(aten.cat.default, (parts, dim))
    value.meta = {**node.meta, "stretches": (dim, kept)}
    return value


def gathered(node: fx.Node, into: Any, source: Any, shape: list[int]) -> fx.Node:
    """Each place of the result is a place of `into` or of `source`; which is known now: one `index_select`."""
    graph, size = node.graph, math.prod(shape)
    device = node.meta["val"].device
    order = torch.arange(size, device=device).reshape(shape)
    new = torch.arange(size, size + source.meta["val"].numel(), device=device).reshape(source.meta["val"].shape)
    order = node.target(order, new, *node.args[2:], **node.kwargs)  # pyright: ignore[reportCallIssue]
    flat = [graph.call_function(aten.reshape.default, (part, [-1])) for part in (into, source)]
    return taken(node, graph.call_function(aten.cat.default, (flat, 0)), order, shape)


def strided(node: fx.Node) -> None:
    """`as_strided` reads memory, which a batch lays out otherwise (silently wrong under `vmap`, torch 2.13): an
    `index_select` of the entries that it read in the example."""
    source, size, stride = cast(tuple[Any, ...], node.args[:3])
    value, own_stride = source.meta["val"], source.meta["tensor_meta"].stride
    offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    first = source.meta["offset"]
    offset = first if offset is None else cast(int, offset)
    reach = ((list(value.shape), list(own_stride), 0), (size, stride, offset - first))
    extent = max(start + sum((n - 1) * step for n, step in zip(*of, strict=True)) + 1 for *of, start in reach)
    memory = torch.full((extent,), -1, device=value.device)
    own = torch.arange(value.numel(), device=value.device).reshape(value.shape)
    memory.as_strided(value.shape, own_stride).copy_(own)
    order = memory.as_strided(size, stride, offset - first)
    if (order < 0).any():
        raise RuntimeError("as_strided reads memory outside of its tensor")
    with node.graph.inserting_before(node):
        flat = node.graph.call_function(aten.reshape.default, (source, [-1]))
        result = taken(node, flat, order, list(size))
    result.meta = node.meta
    replace(node, result)


def taken(node: fx.Node, flat: fx.Node, order: Tensor, shape: Sequence[int]) -> fx.Node:
    """The entries of a vector in this order, which the graph keeps, as a tensor."""
    name, graph = f"order_of_{node.name}", node.graph
    graph.owning_module.register_buffer(name, order.reshape(-1))  # pyright: ignore[reportOptionalMemberAccess]
    value = graph.call_function(aten.index_select.default, (flat, 0, graph.get_attr(name)))
    return graph.call_function(aten.reshape.default, (value, shape))


def fixed_dtype(node: fx.Node) -> None:
    """A factory keeps the dtype it had while traced, whatever torch.get_default_dtype() says later."""
    taken = {argument.name for argument in arguments_of(node.target)}
    meta = node.meta.get("val")
    if "dtype" in taken and isinstance(meta, Tensor):
        node.kwargs = {**node.kwargs, "dtype": meta.dtype}


def shape_and_dtype(node: Any) -> tuple[list[int], torch.dtype]:
    value = node.meta["val"]
    return list(value.shape), value.dtype


RULES: dict[Any, Callable[[fx.Node], None]] = {
    # What is left of a write into an input: functionalize hands it back. A residual gets its inputs by value.
    aten.copy_.default: dropped,
    # Constants and aliases need no copy where nothing is ever written.
    aten.lift_fresh_copy.default: dropped,
    aten.lift_fresh.default: dropped,
    aten.alias_copy.default: dropped,
    aten.alias.default: dropped,
    aten.copy.default: copied,
    aten.fill.Tensor: copied,
    aten.fill.Scalar: filled,
    aten._linalg_check_errors.default: unchecked,
    aten.slice_copy.Tensor: bounded,
    aten.slice.Tensor: bounded,
    aten.as_strided.default: strided,
    aten.as_strided_copy.default: strided,
    aten.select_scatter.default: joined,
    aten.slice_scatter.default: joined,
    aten.diagonal_scatter.default: joined,
    aten.as_strided_scatter.default: joined,
}
"""What is done to the nodes of an operator, where another one in its place is not enough."""
