"""Small tensors as arrays in C++, of known shapes and strides, and loops over them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

LARGEST = 1 << 17
"""Numbers of an array. PyTorch takes 50 µs for an operation on more, beside which its call is nothing."""

TYPES = {torch.float64: "real", torch.float32: "real", torch.bool: "bool", torch.int32: "int", torch.int64: "long"}


class NoLoopError(Exception):
    """An operation, or a form of it, that is not written as loops."""


@dataclass(frozen=True)
class Array:
    """What stands for a tensor: numbers behind a pointer, with strides."""

    base: str
    """An expression of C++."""
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def type(self) -> str:
        return TYPES[self.dtype]

    def expanded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides in a tensor of this shape, to which it broadcasts."""
        own = [0 if size == 1 else step for size, step in zip(self.shape, self.strides, strict=True)]
        return (0,) * (len(shape) - len(self.shape)) + tuple(own)


def arguments_of(node: fx.Node) -> list[Any]:
    """The positional arguments of a node."""
    return list(node.args)


def options_of(node: fx.Node) -> dict[str, Any]:
    """The arguments that have names."""
    return dict(node.kwargs)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def nest(shape: Sequence[int], steps: Sequence[Sequence[int]], body: Callable[[list[str]], str], tag: str = "i") -> str:
    """Loops over a shape; `steps` are the strides of each array, whose places `body` gets as expressions."""
    axes: list[tuple[int, list[int]]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        own = [step[axis] for step in steps]
        if axes and all(outer == inner * size for outer, inner in zip(axes[-1][1], own, strict=True)):
            axes[-1] = (axes[-1][0] * size, own)  # two axes that are one in memory
        else:
            axes.append((size, own))
    places = [
        " + ".join([f"{tag}{k} * {own[number]}" for k, (_, own) in enumerate(axes) if own[number]]) or "0"
        for number in range(len(steps))
    ]
    text = body(places)
    for k in reversed(range(len(axes))):
        free = "\n#pragma GCC ivdep\n" if k == len(axes) - 1 and tag == "i" else ""
        text = f"{free}for (long {tag}{k} = 0; {tag}{k} < {axes[k][0]}; {tag}{k}++) {{ {text} }}"
    return text


def entry(array: Array, place: str) -> str:
    return f"{array.base}[{array.offset} + {place}]" if array.offset else f"{array.base}[{place}]"


def literal(value: Any) -> str:
    """A number in C++."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return f"{value}L"
    if math.isnan(value):
        return '(real)__builtin_nan("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}(real)__builtin_inf()"
    return f"(real){value.hex()}"
