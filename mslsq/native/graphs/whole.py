"""A recorded graph that is one native call, without tensors around it: for loops that keep their own memory."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mslsq.native.graphs.arrays import contiguous

ALIGNED = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tensor is given to the call, or left by it."""

    slot: int
    """Among the pointers."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @cached_property
    def bytes(self) -> int:
        """From its first number to its last."""
        steps = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return (steps + 1) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return self._steps == Place(0, self.shape, contiguous(self.shape), self.dtype)._steps

    def is_like(self, other: "Place") -> bool:
        """Are its numbers laid out as there?"""
        return (self.shape, self.dtype, self._steps) == (other.shape, other.dtype, other._steps)

    @property
    def _steps(self) -> list[int]:
        return [step for n, step in zip(self.shape, self.strides, strict=True) if n > 1]


@dataclass(frozen=True, eq=False)
class WholeCall:
    """A graph as one function of pointers."""

    function: Any
    """`function(pointers, scratch)`; not zero where the tensors are none that it was written for."""
    inputs: tuple[Place | None, ...]
    """None where it is not read."""
    outputs: tuple[Place | int | None, ...]
    """What the call leaves; the number of the input that an output is; None for what the graph holds itself."""
    fixed: tuple[tuple[int, int], ...]
    """Slots of what is always the same, with the addresses."""
    held: tuple[Tensor, ...]
    """What has to live for that."""
    slots: int
    scratch: int
    """Bytes."""

    def pointers(self) -> ctypes.Array[Any]:
        """Room for them, with what is always the same."""
        found = (ctypes.c_void_p * max(self.slots, 1))()
        for slot, address in self.fixed:
            found[slot] = address
        return found


class Buffer:
    """Memory in which places are found one after the other."""

    def __init__(self, sizes: Sequence[int]):
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + -(-size // ALIGNED) * ALIGNED)
        self._memory = ctypes.create_string_buffer(ends[-1] + ALIGNED)
        begin = -(-ctypes.addressof(self._memory) // ALIGNED) * ALIGNED
        self.addresses = [begin + at for at in ends[:-1]]
