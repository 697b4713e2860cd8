"""What a trace must be keyed on beside tensors: Python values by value, anything else by identity."""

import array
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import itertools
import marshal
import pathlib
import uuid
import weakref
from typing import Any

import numpy as np
import torch

from mslsq import pytree
from mslsq.private import is_wrapped

# Types compared by value; exact types, since bool, IntEnum and numpy scalars equal plain ints.
SCALARS = {
    *(int, float, bool, str, bytes, complex, type(None), slice, range, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
}
# Immutable, without an address that means anything.
PATHS = {pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath}
EXACT = {
    *(decimal.Decimal, fractions.Fraction, datetime.datetime, datetime.date, datetime.timedelta, uuid.UUID),
    *PATHS,
}
BYTES = (bytearray, array.array)
FLAT = {int, float, bool, str, bytes, complex, type(None)}
TENSORS = {torch.Tensor, torch.nn.Parameter}
SMALL_TENSOR = 4096
"""Entries up to which the content of a tensor that is no input is compared: 10 µs; more would be felt at every call."""


class Identity:
    """Equal only to an Identity of the same, still living object: an address alone is given out again."""

    __slots__ = ("address", "reference")

    def __init__(self, value: Any) -> None:
        self.address = id(value)
        try:
            self.reference: Any = weakref.ref(value)
        except TypeError:  # not weakly referable: keep it alive instead
            self.reference = lambda: value

    def __hash__(self) -> int:
        return self.address

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or self.address != other.address:
            return False
        mine = self.reference()
        return mine is not None and mine is other.reference()

    def __repr__(self) -> str:
        return f"Identity({self.reference()!r})"


def value_of(value: Any, kind: type) -> Any:
    """A hashable stand-in that differs where the value does: 1, 1.0, True differ, 0.0 and -0.0 too; NaN is NaN."""
    if kind is float:
        return value.hex()
    if kind is str:
        return value
    if kind in (int, bool):
        return (kind, value)
    if kind in (complex, slice) or kind in EXACT:
        return (kind, repr(value))
    if kind in SCALARS or isinstance(value, (enum.Enum, np.dtype)):
        return (kind, value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.dtype.hasobject):
        return (kind, value.dtype.str, value.shape, digest(value.tobytes()))
    if isinstance(value, array.array):
        return (kind, value.typecode, digest(value.tobytes()))  # pyright: ignore[reportAttributeAccessIssue]
    if kind is bytearray:
        return (kind, digest(value))
    if isinstance(value, (set, frozenset)) and all(type(entry) in SCALARS for entry in value):
        return (kind, frozenset(value_of(entry, type(entry)) for entry in value))
    if isinstance(value, pytree.Structure):
        return structure_value(value)
    return Identity(value)


def digest(content: Any) -> bytes:
    """Bytes as they are where they are few, otherwise their hash: 0.1 ms for 10,000 doubles."""
    return bytes(content) if len(content) < 256 else hashlib.blake2b(content).digest()


def flat_value(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Any:
    """A stand-in for a container of nothing but plain numbers and strings (or of rows of such), None for any other.

    0.8 ms for 10,000 numbers, where one entry after the other takes ten times as long.
    """
    kinds = set(map(type, value.values() if isinstance(value, dict) else value))
    if isinstance(value, dict):
        kinds.update(map(type, value))
        content: Any = dict(value)
    else:
        content = list(value)
    if kinds <= {list, tuple} and not isinstance(value, dict):
        kinds = set(map(type, itertools.chain.from_iterable(value)))
    if not kinds <= FLAT:
        return None
    # Version 2 of the format: later ones write which objects are shared.
    return (type(value), len(value), digest(marshal.dumps(content, 2)))


def tensor_value(value: torch.Tensor) -> Any:
    """The content of a small tensor on the CPU: `.data` and arrays that share its memory change it without a trace.

    None for others: reading a large one takes longer than a step, and one on another device would be waited for. There
    the version counter must do, and the comparisons that the engine makes with the user's function.
    """
    return digest(ctypes.string_at(value.data_ptr(), value.nbytes)) if is_compared(value) else None


def is_compared(value: torch.Tensor) -> bool:
    """Has `tensor_value` the content of this tensor?"""
    if type(value) not in TENSORS or not value.is_cpu or value.layout is not torch.strided or is_wrapped(value):
        return False
    return 0 < value.nbytes <= SMALL_TENSOR * value.itemsize and value.is_contiguous()


def structure_value(structure: pytree.Structure) -> Any:
    """A stand-in for a structure of a pytree: equal where the types of its nodes are, and what they hold besides."""
    context = structure.context
    if type(context) in SCALARS or isinstance(context, type):
        own = value_of(context, type(context)) if type(context) in SCALARS else context
    else:
        own = (flat_value(context) if type(context) in (list, tuple) else None) or Identity(context)
    return structure.type, own, tuple([structure_value(child) for child in pytree.children_of(structure)])


@functools.lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[str, ...]:
    """Names of the slots of a class and its bases."""
    declared = (getattr(owner, "__slots__", ()) for owner in kind.__mro__)
    names = (name for slots in declared for name in ((slots,) if isinstance(slots, str) else slots))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def attributes_of(value: Any) -> dict[str, Any]:
    """The instance attributes of an object, in `__dict__` and in slots."""
    attributes = dict(getattr(value, "__dict__", ()))
    attributes.update((name, getattr(value, name)) for name in slots_of(type(value)) if hasattr(value, name))
    return attributes


def joined(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute
