"""Operations of PyTorch that have loops of their own: reductions, joints, products, and those with indices."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from mslsq.native.graphs.arrays import Array, NoLoopError, arguments_of, entry, literal, nest, options_of
from mslsq.private import operator_name

if TYPE_CHECKING:
    from mslsq.native.graphs.writer import Writer


def _reduction(writer: "Writer", out: Array, node: fx.Node) -> None:
    array, name = writer.operand(arguments_of(node)[0]), operator_name(node.target)
    assert isinstance(array, Array)
    rest = arguments_of(node)[1:]
    if name == "linalg_vector_norm" and rest and rest.pop(0) != 2:
        raise NoLoopError("a norm of another order")
    if array.type == "real" and array.dtype != out.dtype and out.type == "real":
        raise NoLoopError(f"{node.target}: of two precisions")
    dims = options_of(node).get("dim", rest[0] if rest else None)
    if isinstance(dims, int):
        dims = [dims]
    rank = len(array.shape)
    reduced = set(range(rank)) if dims is None or dims == [] else {dim % rank for dim in dims}
    kept = [axis for axis in range(rank) if axis not in reduced]
    steps = [out.strides[axis] for axis in kept] if len(out.shape) == rank else list(out.strides)
    begin, combine = {
        "sum": ("0", "sum += x"),
        "linalg_vector_norm": ("0", "sum += x * x"),
        "all": ("1", "sum = sum && x"),
        "any": ("0", "sum = sum || x"),
        "amax": ("-__builtin_inf()", "sum = largest(sum, x)"),
        "amin": ("__builtin_inf()", "sum = least(sum, x)"),
    }[name]
    if name in ("amax", "amin") and out.type != "real":
        raise NoLoopError(f"{node.target}: of whole numbers")
    end = "root(sum)" if name == "linalg_vector_norm" else "sum"
    inner_axes = sorted(reduced)

    def body(places: list[str]) -> str:
        def add(inside: list[str]) -> str:
            return f"const {out.type} x = ({out.type}){entry(array, f'{places[1]} + {inside[0]}')}; {combine};"

        loop = nest(
            [array.shape[axis] for axis in inner_axes], [[array.strides[axis] for axis in inner_axes]], add, "r"
        )
        return f"{out.type} sum = {begin}; {loop} {entry(out, places[0])} = {end};"

    both = [steps, [array.strides[axis] for axis in kept]]
    writer.append(nest([array.shape[axis] for axis in kept], both, body, "o"))


def _joined(writer: "Writer", out: Array, node: fx.Node) -> None:
    """Several arrays behind one another."""
    name = operator_name(node.target)
    parts = [writer.operand(part) for part in arguments_of(node)[0]]
    axis = options_of(node).get("dim", arguments_of(node)[1] if len(arguments_of(node)) > 1 else 0) % len(out.shape)
    at = 0
    for part in parts:
        assert isinstance(part, Array)
        if part.dtype != out.dtype:
            raise NoLoopError(f"{node.target}: of two types")
        shape, strides = list(part.shape), list(part.strides)
        if name == "stack":
            shape.insert(axis, 1)
            strides.insert(axis, 0)
        elif part.shape == (0,):
            continue
        size = shape[axis]
        offset = out.offset + at * out.strides[axis]
        place = Array(out.base, offset, tuple(shape), out.strides, out.dtype)
        if math.prod(shape):
            writer.elementwise(place, [Array(part.base, part.offset, tuple(shape), tuple(strides), part.dtype)], "{0}")
        at += size


def _product(writer: "Writer", out: Array, node: fx.Node) -> None:
    """bmm and mm: rows of the right factor are added up, so that the inner loop runs along memory."""
    left, right = (writer.operand(argument) for argument in arguments_of(node)[:2])
    assert isinstance(left, Array) and isinstance(right, Array)
    if out.type != "real" or len(out.shape) not in (2, 3):
        raise NoLoopError(f"{node.target}")
    *batch, rows, columns = out.shape
    inner, axes = left.shape[-1], len(batch)

    def body(places: list[str]) -> str:
        result = entry(out, f"{places[0]} + i * {out.strides[-2]} + j * {out.strides[-1]}")
        first = entry(left, f"{places[1]} + i * {left.strides[-2]} + k * {left.strides[-1]}")
        second = entry(right, f"{places[2]} + k * {right.strides[-2]} + j * {right.strides[-1]}")
        return (
            f"for (long i = 0; i < {rows}; i++) {{ for (long j = 0; j < {columns}; j++) {result} = 0; "
            f"for (long k = 0; k < {inner}; k++) {{ const real a = {first};\n#pragma GCC ivdep\n"
            f"for (long j = 0; j < {columns}; j++) {result} += a * {second}; }} }}"
        )

    steps = [x.strides[:axes] for x in (out, left, right)]
    writer.append(nest(batch, steps, body, "o"))


def _diagonal(writer: "Writer", out: Array, node: fx.Node) -> None:
    """diag_embed."""
    (array,) = (writer.operand(argument) for argument in arguments_of(node))
    if node.kwargs or not isinstance(array, Array):
        raise NoLoopError(f"{node.target}")
    writer.elementwise(out, [], "0")
    inside = (*out.strides[:-2], out.strides[-2] + out.strides[-1])
    writer.elementwise(Array(out.base, out.offset, array.shape, inside, out.dtype), [array], "{0}")


def _padded(writer: "Writer", out: Array, node: fx.Node) -> None:
    """constant_pad_nd, by no less than nothing."""
    array, widths, *rest = arguments_of(node)
    source, value = writer.operand(array), rest[0] if rest else options_of(node).get("value", 0)
    if not isinstance(source, Array) or isinstance(value, fx.Node) or min(widths, default=0) < 0:
        raise NoLoopError(f"{node.target}")
    writer.elementwise(out, [], f"({out.type}){literal(value)}")
    before = [0] * (len(out.shape) - len(widths) // 2) + list(reversed(widths[::2]))
    offset = out.offset + sum(width * step for width, step in zip(before, out.strides, strict=True))
    writer.copy(source, Array(out.base, offset, source.shape, out.strides, out.dtype))


def _cross(writer: "Writer", out: Array, node: fx.Node) -> None:
    left, right = (writer.operand(argument) for argument in arguments_of(node))
    assert isinstance(left, Array) and isinstance(right, Array)
    rank = len(out.shape)
    axis = options_of(node).get("dim", -1) % rank
    if len(left.shape) != rank or len(right.shape) != rank or out.type != "real":
        raise NoLoopError(f"{node.target}")
    rest = (*out.shape[:axis], *out.shape[axis + 1 :])

    def part(array: Array, number: int) -> Array:
        steps = array.expanded(out.shape)
        own = (*steps[:axis], *steps[axis + 1 :])
        return Array(array.base, array.offset + number * steps[axis], rest, own, array.dtype)

    for k in range(3):
        operands = [part(x, (k + turn) % 3) for x, turn in ((left, 1), (right, 2), (left, 2), (right, 1))]
        writer.elementwise(part(out, k), operands, "{0} * {1} - {2} * {3}")


def _index(writer: "Writer", argument: Any) -> Array:
    index = writer.operand(argument)
    if not isinstance(index, Array) or index.dtype != torch.int64:
        raise NoLoopError("an index of another type")
    return index


def _index_add(writer: "Writer", out: Array, node: fx.Node) -> None:
    """index_add, and index_copy, which puts in place of what it adds to."""
    array, dim, index, source = arguments_of(node)
    sign = "=" if operator_name(node.target) == "index_copy" else "+="
    given, added, places_of = writer.operand(array), writer.operand(source), _index(writer, index)
    if not isinstance(given, Array) or not isinstance(added, Array) or node.kwargs or len(places_of.shape) != 1:
        raise NoLoopError(f"{node.target}")
    axis = dim % len(out.shape)
    writer.copy(given, out)
    steps = [step if k != axis else 0 for k, step in enumerate(out.strides)]

    def body(places: list[str]) -> str:
        at = f"const long at = {entry(places_of, places[2])}; {_guarded('at', out.shape[axis])}"
        return f"{at} {entry(out, f'{places[0]} + at * {out.strides[axis]}')} {sign} {entry(added, places[1])};"

    of_index = [places_of.strides[0] if k == axis else 0 for k in range(len(out.shape))]
    writer.append(nest(added.shape, [steps, added.strides, of_index], body, "o"))


def _gather(writer: "Writer", out: Array, node: fx.Node) -> None:
    """gather, and index_select, whose index has one axis."""
    array, dim, index = arguments_of(node)
    source, places_of = writer.operand(array), _index(writer, index)
    if not isinstance(source, Array) or node.kwargs or not source.shape:
        raise NoLoopError(f"{node.target}")
    axis = dim % len(source.shape)
    steps = [step if k != axis else 0 for k, step in enumerate(source.strides)]
    of_index = list(places_of.strides)
    if operator_name(node.target) == "index_select":
        of_index = [places_of.strides[0] if k == axis else 0 for k in range(len(out.shape))]

    def body(places: list[str]) -> str:
        at = f"const long at = {entry(places_of, places[2])}; {_guarded('at', source.shape[axis])}"
        found = entry(source, f"{places[1]} + at * {source.strides[axis]}")
        return f"{at} {entry(out, places[0])} = {found};"

    writer.append(nest(out.shape, [out.strides, steps, of_index], body, "o"))


def _indexed(writer: "Writer", out: Array, node: fx.Node) -> None:
    """Entries by one index of whole numbers, which count from the end where they are negative."""
    array, indices = arguments_of(node)
    axis, source = len(indices) - 1, writer.operand(array)
    if not isinstance(source, Array) or node.kwargs or any(index is not None for index in indices[:-1]):
        raise NoLoopError(f"{node.target}")
    places_of = _index(writer, indices[-1])
    before, after, own = axis, len(source.shape) - axis - 1, (0,) * len(places_of.shape)
    steps = (*source.strides[:axis], *own, *source.strides[axis + 1 :])
    of_index = ((0,) * before + tuple(places_of.strides)) + (0,) * after
    size = source.shape[axis]

    def body(places: list[str]) -> str:
        at = f"long at = {entry(places_of, places[2])}; if (at < 0) at += {size}; {_guarded('at', size)}"
        found = entry(source, f"{places[1]} + at * {source.strides[axis]}")
        return f"{at} {entry(out, places[0])} = {found};"

    writer.append(nest(out.shape, [out.strides, steps, of_index], body, "o"))


def _guarded(at: str, size: int) -> str:
    """PyTorch says what is wrong with an index."""
    return f"if ({at} < 0 || {at} >= {size}) return 1;"


OTHERS: dict[str, Callable[[Any, Array, fx.Node], None]] = {
    **dict.fromkeys(("sum", "amax", "amin", "all", "any", "linalg_vector_norm"), _reduction),
    "cat": _joined,
    "stack": _joined,
    "bmm": _product,
    "mm": _product,
    "diag_embed": _diagonal,
    "constant_pad_nd": _padded,
    "linalg_cross": _cross,
    "index_add": _index_add,
    "index_copy": _index_add,
    "index": _indexed,
    "gather": _gather,
    "index_select": _gather,
}
