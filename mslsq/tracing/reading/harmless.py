"""What of libraries is harmless: functions of their arguments alone, types that hold nothing but what they show."""

import argparse
import enum
import functools
import itertools
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.private import OPERATORS_IN_C
from mslsq.tracing.reading.origins import USERS, is_fixed, origin_of
from mslsq.tracing.reading.writes import WITHOUT_GRADIENT

HARMLESS = frozenset(
    (
        *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "int"),
        *("isinstance", "len", "list", "map", "max", "min", "pow", "range", "repr", "reversed", "round", "set"),
        *("slice", "sorted", "str", "sum", "super", "tuple", "zip", "Ellipsis", "NotImplemented"),
    )
)
"""Built-in functions of their arguments. Exceptions are harmless, too: a residual that raises is no answer."""

FLAGS = frozenset(
    (
        *("__enter__", "__exit__", "backward", "data", "data_ptr", "grad", "grad_fn", "is_inference", "is_leaf"),
        *("is_pinned", "item", "names"),
        *("numpy", "output_nr", "record_stream", "register_hook", "requires_grad", "retain_grad", "retains_grad"),
        *("storage", "tolist", "untyped_storage"),
    )
)
"""What a tensor tells of how it was made and not of its numbers; or its numbers to Python."""

NAMESPACES = OPERATORS_IN_C | {"math", "_operator"}
PYTHON = frozenset(("torch.functional", "torch.nn.functional"))
"""Where functions of their arguments alone are defined: in C, and in Python."""

OF_MEMORY = frozenset(("from_file", "frombuffer"))
"""Operators that read what is neither an argument nor a constant."""

OF_TORCH = (Tensor, torch.Size, torch.finfo, torch.iinfo, torch.device, *WITHOUT_GRADIENT)
OF_PYTHON = (int, float, bool, str, tuple, list, dict, type(None))
ITERATORS = tuple(kind for kind in vars(itertools).values() if isinstance(kind, type))
TYPES = frozenset((*OF_TORCH, *OF_PYTHON, *ITERATORS))
"""Types that hold nothing but what they are made of."""

TRANSFORMS = frozenset(
    getattr(torch.func, name)
    for name in ("vmap", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp")
)
OF_NUMPY = frozenset(
    getattr(np, name)
    for name in (
        *("arange", "array", "asarray", "concatenate", "cross", "diag", "dot", "eye", "full", "linspace", "ones"),
        *("outer", "stack", "zeros"),
    )
)
OF_CLASSES = frozenset(
    (
        *(enum.Enum.__hash__, vars(enum.Enum)["name"].fget, vars(enum.Enum)["value"].fget),
        *(
            entry
            for kind in (*argparse.Namespace.__mro__[:-1], *enum.property.__mro__[:-1])
            for entry in vars(kind).values()
            if isinstance(entry, types.FunctionType)
        ),
    )
)
"""Methods that plain objects have without their user's doing, of what the object holds."""
FUNCTIONS = TRANSFORMS | OF_NUMPY | OF_CLASSES | {functools.reduce}
"""Others of their arguments, which may be functions that are looked into where they are reached."""


class OpenError(Exception):
    """Code may read what no walk compares; says what."""


def is_of_library(value: Any) -> bool:
    """Is it a class or a function, and a library's?"""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return origin_of(getattr(value, "__module__", None) or "builtins") != USERS


def is_users(kind: type) -> bool:
    return origin_of(kind.__module__ or "") == USERS


def is_harmless(value: Any) -> bool:
    """Is this thing of a library a function of its arguments alone, or a type that holds nothing else?"""
    if isinstance(value, type):
        is_known = value in TYPES or value.__module__.startswith("mslsq.manifolds.")
        return is_known or is_fixed(value) or is_users(value)
    module = getattr(value, "__module__", None) or ""
    if isinstance(value, np.ufunc) or any(value is known for known in FUNCTIONS):
        return True
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        if value.__name__ in OF_MEMORY:
            return False
        if module == "torch":
            return owner is None or isinstance(owner, type)  # an operator; the others are the interpreter's state
        return module in NAMESPACES and (owner is None or isinstance(owner, types.ModuleType))
    if isinstance(value, types.FunctionType):
        return module in PYTHON or module.partition(".")[0] == "einops" or module.startswith("mslsq.manifolds.")
    return False


def check_names(names: Iterable[str]) -> None:
    """OpenError where an attribute of a tensor is among them that is more than a function of its numbers."""
    for name in names:
        is_inside = name.startswith("_") and hasattr(Tensor, name)
        writes = name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name)
        if is_inside or writes or name in FLAGS:
            raise OpenError(f"the attribute {name}")
