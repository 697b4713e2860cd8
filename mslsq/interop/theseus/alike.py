"""Which cost functions of an objective are the same but for their variables: equal in code, shapes and closures."""

import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def value_key(value: Any) -> Hashable:
    """Equal keys for equal plain values, tuples of them and functions of equal code and closures; objects and tensors
    are equal to themselves alone."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), tuple(value_key(entry) for entry in value)
    if isinstance(value, functools.partial):
        keywords = sorted(value.keywords.items())
        return "partial", function_key(value.func), value_key(value.args), tuple((k, value_key(v)) for k, v in keywords)
    if isinstance(value, types.MethodType):
        return "method", function_key(value.__func__), id(value.__self__)
    if isinstance(value, types.FunctionType):
        return function_key(value)
    return "object", id(value)


def function_key(function: Callable[..., Any]) -> Hashable:
    """The code of a function and all that it was made with."""
    if not isinstance(function, types.FunctionType):
        return value_key(function)
    cells = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            return "object", id(function)
        # A function that refers to itself is what it was.
        cells.append(("object", id(function)) if content is function else value_key(content))
    keywords = tuple((name, value_key(value)) for name, value in sorted((function.__kwdefaults__ or {}).items()))
    defaults = value_key(function.__defaults__ or ())
    return function.__code__, tuple(cells), defaults, keywords, id(function.__globals__)


def code_of(function: Callable[..., Any]) -> object:
    """The code of a function, which all functions written in one place have in common; else the class of a callable."""
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function.__code__ if isinstance(function, types.FunctionType) else type(function)


def state_key(function: Any, left_out: Iterable[str]) -> Hashable:
    """What a cost function or weight of Theseus holds besides its variables.

    Of Theseus' own classes plain values count: their objects belong to their variables (a field of distances, a robot).
    Of a user's class everything counts, objects and tensors by identity.
    """
    is_own = type(function).__module__.startswith("theseus.")
    skipped = {*left_out, "name", "_id", "_weight", *_BOOKKEEPING}
    entries = []
    for name, value in sorted(vars(function).items()):
        if name in skipped or _is_private_flag(name):
            continue
        if is_own and not isinstance(value, PLAIN):
            continue
        entries.append((name, value_key(value)))
    return type(function), tuple(entries)


_BOOKKEEPING = ("_optim_vars_attr_names", "_aux_vars_attr_names")


def _is_private_flag(name: str) -> bool:
    """Of Theseus' own flags, whose names it mangles."""
    return name.startswith("_") and "__supports_masking" in name
