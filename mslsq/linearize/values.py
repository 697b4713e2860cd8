"""What a trace must be keyed on beside tensors: Python values by value, anything else by identity."""

import dis
import enum
import functools
import hashlib
import types
import weakref
from typing import Any

import numpy as np
import torch

# Types compared by value; exact types, since bool, IntEnum and numpy scalars equal plain ints.
SCALARS = {
    *(int, float, bool, str, bytes, complex, type(None), slice, range, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
}
PLAIN = {object, tuple, list, dict, set, frozenset, int, float, str, complex, bytes}
HOLDERS = (torch.Tensor, torch.nn.Module)
LIBRARIES = {"torch", "numpy", "scipy", "einops", "jaxtyping", "functools", "threading", "logging", "builtins"}


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
    if kind in (complex, slice):
        return (kind, repr(value))
    if kind in SCALARS or isinstance(value, (enum.Enum, np.dtype)):
        return (kind, value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.dtype.hasobject):
        content = value.tobytes()
        return (
            kind,
            value.dtype.str,
            value.shape,
            content if len(content) < 256 else hashlib.blake2b(content).digest(),
        )
    if isinstance(value, (set, frozenset)) and all(type(entry) in SCALARS for entry in value):
        return (kind, frozenset(value_of(entry, type(entry)) for entry in value))
    return Identity(value)


def is_wrapped(value: torch.Tensor) -> bool:
    """Is this a tensor inside a `torch.func` transform?"""
    return torch._C._functorch.is_functorch_wrapped_tensor(value)  # pyright: ignore[reportAttributeAccessIssue]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """(names looked up among globals, names of attributes) by the code and by code nested in it."""
    found: dict[str, None] = {}
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found[instruction.argval] = None
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            nested, more = names_in(constant)
            found.update(dict.fromkeys(nested))
            attributes |= more
    return tuple(found), frozenset(attributes)


def is_library(kind: type | str) -> bool:
    """Does this class (by its bases too) or module name belong to a library that holds nothing of the user's?"""
    if not isinstance(kind, str):
        # A class that `exec` made may have no module.
        return any(is_library(owner.__module__ or "") for owner in kind.__mro__ if owner not in PLAIN)
    module = kind
    return module.partition(".")[0] in LIBRARIES and not module.startswith("torch.distributions")


@functools.lru_cache(maxsize=1024)
def members_of(kind: type) -> dict[str, tuple[type, types.FunctionType | None]]:
    """What the user's classes among the bases of `kind` define: name -> (class, function or None for an attribute)."""
    members: dict[str, tuple[type, types.FunctionType | None]] = {}
    for owner in kind.__mro__:
        if is_library(owner.__module__) or owner.__module__.startswith("mslsq."):
            continue
        for key, entry in vars(owner).items():
            if isinstance(entry, (staticmethod, classmethod)):
                entry = entry.__func__
            elif isinstance(entry, property):
                entry = entry.fget
            if isinstance(entry, types.FunctionType):
                members.setdefault(key, (owner, entry))
            elif not key.startswith("__") and (type(entry) in SCALARS or isinstance(entry, HOLDERS)):
                members.setdefault(key, (owner, None))
    return members


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
