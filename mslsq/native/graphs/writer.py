"""Writes the nodes of a recorded graph as C++. Views are a matter of strides alone, constants an array of one number.

What is not known here stays with PyTorch.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from mslsq.native.graphs.arrays import (
    LARGEST,
    TYPES,
    Array,
    NoLoopError,
    arguments_of,
    contiguous,
    entry,
    literal,
    nest,
)
from mslsq.native.graphs.calls import SEVERAL, SINGLE, has_several
from mslsq.native.graphs.elementwise import expression
from mslsq.native.graphs.loops import OTHERS
from mslsq.private import is_operator, operator_name, returns_a_view, writes

CONSTANTS = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1, "zeros": 0, "ones": 1}


def is_view(node: fx.Node) -> bool:
    """Is the result of a node the memory of its first argument?"""
    if not is_operator(node.target):
        return node.target is operator.getitem
    return node.target is torch.ops.aten._unsafe_view.default or returns_a_view(node.target)


class Writer:
    """Writes nodes of a graph as C++.

    Args:
        temporary: gives the name of memory of a size, in numbers of a type.
        function: gives the name of a function at an address.
        constant: gives the name of the memory of a tensor that stays.
    """

    def __init__(
        self,
        temporary: Callable[[int, str], str],
        function: Callable[[int], str],
        constant: Callable[[Tensor], str],
    ):
        self._temporary, self.function, self.constant = temporary, function, constant
        self.lines: list[str] = []
        self.constants: list[str] = []
        self.arrays: dict[fx.Node, Any] = {}
        """By node what stands for its result: an array, or a tuple of them."""

    def write(self, node: fx.Node, into: Array | None = None) -> None:
        """A node, its result in fresh memory, or `into` that.

        Raises:
            NoLoopError: it cannot be written.
        """
        if node.target is operator.getitem:
            self.arrays[node] = self.arrays[arguments_of(node)[0]][arguments_of(node)[1]]
        elif not is_operator(node.target) or writes(node.target):
            raise NoLoopError(f"{node.target}")
        elif is_view(node):
            self.arrays[node] = self._view(node)
        elif has_several(node):
            self.arrays[node] = SEVERAL[operator_name(node.target)](self, node)
        else:
            self.arrays[node] = self._computed(node, into)

    def append(self, loops: str) -> None:
        self.lines.append(f"{{ {loops} }}")

    def copy(self, array: Array, into: Array) -> None:
        """The numbers of an array in another place."""
        self.elementwise(into, [array], "{0}")

    def converted(self, array: Array, dtype: torch.dtype) -> Array:
        """The numbers of an array as another type, side by side."""
        fresh = self.fresh(array.shape, dtype)
        self.elementwise(fresh, [array], f"({fresh.type}){{0}}")
        return fresh

    def _view(self, node: fx.Node) -> Any:
        array = self.arrays[arguments_of(node)[0]]
        target = torch.ops.aten.view.default if node.target is torch.ops.aten._unsafe_view.default else node.target
        try:
            found = self._viewed(array, target, node)
        except RuntimeError:  # the strides do not allow it
            fresh = self.fresh(array.shape, array.dtype)
            self.copy(array, fresh)
            found = self._viewed(fresh, target, node)
        return found

    def _viewed(self, array: Array, target: Any, node: fx.Node) -> Any:
        """What PyTorch makes of the strides of an array."""
        size = array.offset + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + 1
        memory = torch.empty(max(size, 0), dtype=array.dtype, device="meta")
        like = memory.as_strided(array.shape, array.strides, array.offset)
        viewed = target(like, *arguments_of(node)[1:], **node.kwargs)

        def placed(x: Tensor) -> Array:
            return Array(array.base, int(x.storage_offset()), tuple(x.shape), tuple(x.stride()), x.dtype)

        return placed(viewed) if isinstance(viewed, Tensor) else tuple(map(placed, viewed))

    def _computed(self, node: fx.Node, into: Array | None) -> Array:
        meta = node.meta.get("tensor_meta")
        if meta is None or not hasattr(meta, "shape") or meta.dtype not in TYPES:
            raise NoLoopError(f"{node.target}: its result")
        shape, dtype, name = tuple(meta.shape), meta.dtype, operator_name(node.target)
        value = self._constant(name, node)
        if math.prod(shape) > LARGEST or (value is None and not math.prod(shape)):
            raise NoLoopError(f"{node.target}: its size")
        if value is not None:
            constant = self._constant_array(value, shape, dtype)
            if into is None:
                return constant
            self.copy(constant, into)
            return into
        out = self.fresh(shape, dtype) if into is None else into
        own = OTHERS.get(name) or SINGLE.get(name)
        if own is not None:
            own(self, out, node)
            return out
        arguments, text = expression(node, out.type, out.dtype)
        operands = [self.operand(argument) for argument in arguments]
        reals = {x.dtype for x in (out, *operands) if isinstance(x, Array) and x.type == "real"}
        if len(reals) > 1:
            raise NoLoopError(f"{node.target}: of two precisions")
        self.elementwise(out, operands, text)
        return out

    def fresh(self, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
        """Memory for a result."""
        base = self._temporary(math.prod(shape), TYPES[dtype])
        return Array(base, 0, shape, contiguous(shape), dtype)

    def _constant(self, name: str, node: fx.Node) -> Any:
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "full_like":
            return arguments_of(node)[1]
        if name in ("full", "new_full"):
            return arguments_of(node)[-1]
        return arguments_of(node)[0] if name == "scalar_tensor" else None

    def _constant_array(self, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
        if isinstance(value, fx.Node):
            raise NoLoopError("a constant of a tensor")
        name = f"constant_{len(self.constants)}"
        self.constants.append(f"static const {TYPES[dtype]} {name}[] = {{({TYPES[dtype]}){literal(value)}}};")
        return Array(name, 0, shape, (0,) * len(shape), dtype)

    def operand(self, argument: Any) -> Array | str:
        if isinstance(argument, fx.Node):
            array = self.arrays[argument]
            if not isinstance(array, Array):
                raise NoLoopError("several tensors")
            return array
        if isinstance(argument, (bool, int, float)):
            return literal(argument)
        raise NoLoopError(f"an argument {argument!r}")

    def elementwise(self, out: Array, operands: Sequence[Array | str], text: str) -> None:
        arrays = [x for x in operands if isinstance(x, Array)]

        def body(places: list[str]) -> str:
            rest = iter(places[1:])
            entries = [f"({entry(x, next(rest))})" if isinstance(x, Array) else f"({x})" for x in operands]
            return f"{entry(out, places[0])} = ({out.type})({text.format(*entries)});"

        steps = [out.strides, *[x.expanded(out.shape) for x in arrays]]
        self.append(nest(out.shape, steps, body))
