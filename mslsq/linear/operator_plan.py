"""What an operator of PyTorch is told of a structure: index tensors of one device, sizes, and groups of both.

A recorded graph holds tensors and numbers and no objects. So a plan goes into an operator as two flat lists, and is put
together again inside; this file alone knows how.

>>> import torch
>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, eq=False)
... class Group(OperatorPlan):
...     size: int
...     places: torch.Tensor
>>> @dataclass(frozen=True, eq=False)
... class Groups(OperatorPlan):
...     parts: tuple[Group, ...]
>>> plan = Groups((Group(2, torch.tensor([0, 4])), Group(3, torch.tensor([8]))))
>>> plan.packed
Packed(tensors=[tensor([0, 4]), tensor([8])], numbers=[2, 2, 3])
>>> Groups.unpacked(*plan.packed).parts[1].size
3
"""

import operator
import weakref
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.levels import kept_tensors, outside_of_transforms


class Packed(NamedTuple):
    """A plan as an operator takes it."""

    tensors: list[Tensor]
    numbers: list[int]

    def is_that_of(self, tensors: list[Tensor], numbers: list[int]) -> bool:
        """Are these the same objects, and the same numbers?"""
        same = len(tensors) == len(self.tensors) and all(map(operator.is_, tensors, self.tensors))
        return same and numbers == self.numbers


class PlanArrays(NamedTuple):
    """A plan as a kernel takes it (`PlanReader` in kernels/source/plan.h)."""

    memory: Int[Tensor, "numbers"]
    """All tensors, one after the other..."""
    places: Int[Tensor, "tensors 2"]
    """... and where each begins there, and how long it is."""
    numbers: Int[Tensor, "integers"]


class OperatorPlan:
    """Base of frozen dataclasses whose fields are tensors, integers, plans, or tuples of any number of one of these."""

    @cached_property
    def packed(self) -> Packed:
        """The tensors and the numbers, and how many parts each tuple has, in the order of the fields."""
        packed = Packed([], [])
        for name, _, _ in _fields(type(self)):
            _pack(getattr(self, name), packed)
        if packed.tensors:
            _PACKED[type(self), id(packed.tensors[0])] = self
        return packed

    def in_one_piece(self) -> Self:
        """The same plan, its tensors of int64 parts of one tensor: then `arrays` needs no memory of its own."""
        tensors, numbers = self.packed
        if not tensors:
            return self
        with outside_of_transforms():
            parts = torch.cat([tensor.flatten() for tensor in tensors]).split([tensor.numel() for tensor in tensors])
            views = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
        return _read(type(self), iter(views), iter(numbers))

    @cached_property
    def arrays(self) -> PlanArrays:
        """The plan for a kernel: all tensors must be of int64, and on the CPU."""
        tensors, numbers = self.packed
        storages = [tensor.untyped_storage() for tensor in tensors]
        if any(storage.data_ptr() != storages[0].data_ptr() for storage in storages):
            return self.in_one_piece().arrays
        with outside_of_transforms():
            whole = tensors[0].as_strided((storages[0].nbytes() // 8,), (1,), 0) if tensors else None
            places = [(int(tensor.storage_offset()), tensor.numel()) for tensor in tensors]
            small = (torch.tensor(x, dtype=torch.int64, device="cpu") for x in (places, numbers))
            return PlanArrays(torch.zeros(0, dtype=torch.int64, device="cpu") if whole is None else whole, *small)

    @classmethod
    def unpacked(cls, tensors: list[Tensor], numbers: list[int]) -> Self:
        """The plan whose `packed` this is: itself where it still lives, which saves a tenth of a small graph's step."""
        known = _PACKED.get((cls, id(tensors[0]))) if tensors else None
        if known is not None and known.packed.is_that_of(tensors, numbers):
            return known
        return _read(cls, iter(tensors), iter(numbers))


_PACKED: "weakref.WeakValueDictionary[tuple[type, int], Any]" = weakref.WeakValueDictionary()
"""Plans that have been packed, by their type and the identity of their first tensor; what is found is compared."""


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array of a symbolic analysis as a tensor that a plan keeps; on a CPU in the same memory."""
    return kept_tensors([array], device)[0]


def _pack(value: Any, packed: Packed) -> None:
    if isinstance(value, Tensor):
        packed.tensors.append(value)
    elif isinstance(value, OperatorPlan):
        packed.tensors.extend(value.packed.tensors)
        packed.numbers.extend(value.packed.numbers)
    elif isinstance(value, tuple):
        packed.numbers.append(len(value))
        for part in value:
            _pack(part, packed)
    else:
        packed.numbers.append(int(value))


def _read(kind: Any, tensors: Iterator[Tensor], numbers: Iterator[int]) -> Any:
    if kind is Tensor:
        return next(tensors)
    if kind is int:
        return next(numbers)
    plan = object.__new__(kind)  # without the checks of a frozen dataclass, which take longer than all the rest
    for name, part, many in _fields(kind):
        if many:
            plan.__dict__[name] = tuple([_read(part, tensors, numbers) for _ in range(next(numbers))])
        else:
            plan.__dict__[name] = _read(part, tensors, numbers)
    return plan


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Per field the name, what it is made of (a tensor, an integer, a plan), and whether it is a tuple of many."""
    found = []
    for name, hint in get_type_hints(kind).items():
        many = get_origin(hint) is tuple
        part = get_args(hint)[0] if many else hint
        found.append((name, part if part is int or issubclass(part, OperatorPlan) else Tensor, many))
    return tuple(found)
