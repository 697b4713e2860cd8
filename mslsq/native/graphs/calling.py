"""A call of a graph with native segments: the memory that it takes, its begin and its end."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mslsq.private import empty_maker

ALIGNED = 64
"""Bytes of a cache line."""


class UnfitError(Exception):
    """A program is not for these tensors; PyTorch says what is wrong, if anything is."""


class Memory:
    """What one call of a graph takes besides tensors."""

    def __init__(self, functions: list[tuple[int, int]], slots: int, scratch: int):
        self.at = (ctypes.c_void_p * max(slots, 1))()
        for address, slot in functions:
            self.at[slot] = address
        self.address = ctypes.addressof(self.at)
        self._bytes = torch.empty(scratch + ALIGNED, dtype=torch.uint8, device="cpu")
        self.held: list[Tensor] = []
        """Every tensor whose memory a segment may read or fill until the end of the call."""
        self.scratch = -(-self._bytes.data_ptr() // ALIGNED) * ALIGNED


class Opening:
    """The begin of a call: where the inputs are, and tensors for the results."""

    def __init__(
        self,
        given: list[tuple[int, tuple[int, ...]]],
        made: list[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]],
        functions: list[tuple[int, int]],
        slots: int,
        scratch: int,
        held: tuple[Tensor, ...] = (),
    ):
        self._held = held  # of plans, whose memory segments read: it must live as long as they are called
        self.__name__ = "opening"  # asked for by graphs
        self._given, self._sizes = given, (functions, slots, scratch)
        self._made = [(slot, empty_maker(shape, strides, dtype)) for slot, shape, strides, dtype in made]
        self._spare: list[Memory] = []

    def __call__(self, *tensors: Tensor) -> list[Any]:
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = Memory(*self._sizes)
        at, held = memory.at, memory.held
        opened: list[Any] = [memory]
        for x, (slot, strides) in zip(tensors, self._given, strict=True):
            if x.stride() != strides or x.is_neg():
                x = laid_out(x, strides)
            at[slot] = x.data_ptr()
            held.append(x)
        for slot, empty in self._made:
            x = empty()
            at[slot] = x.data_ptr()
            opened.append(x)
        held += opened[1:]
        return opened

    def close(self, memory: Memory) -> None:
        """The end of a call: its memory serves the next."""
        memory.held.clear()
        self._spare.append(memory)


class SegmentCall:
    """A segment as a function of the memory of a call, and of what has been computed since the segment before."""

    def __init__(self, function: Any, slots: list[tuple[int, tuple[int, ...]]]):
        self.__name__ = function.__name__
        self._function, self._slots = function, slots
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_long

    def __call__(self, memory: Memory, *tensors: Tensor) -> None:
        for x, (slot, strides) in zip(tensors, self._slots, strict=True):
            if x.stride() != strides or x.is_neg():
                x = laid_out(x, strides)
            memory.at[slot] = x.data_ptr()
            memory.held.append(x)
        if self._function(memory.address, memory.scratch):
            raise UnfitError("an index is out of range")


def laid_out(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """The numbers of a tensor in this layout, in memory of its own."""
    if any(step == 0 and n > 1 for n, step in zip(tensor.shape, strides, strict=True)):
        # What stood for several numbers is one no more: the layout is another, and its graph would be.
        raise UnfitError(f"it was written for the strides {tuple(strides)}, not {tensor.stride()}")
    size = sum((n - 1) * step for n, step in zip(tensor.shape, strides, strict=True)) + 1
    return torch.empty(size, dtype=tensor.dtype, device="cpu").as_strided(tensor.shape, strides).copy_(tensor)
