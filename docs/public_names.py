"""What is public: the `__all__` of `mslsq` and of every module directly below it that has one (`mslsq.private` aside).

A module named in such an `__all__` is public too, with its own `__all__`. Everything else is private.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType

import mslsq

PRIVATE = {"mslsq.private"}
"""Lists names of PyTorch for the library's own use."""

ERRORS = "mslsq.errors"
"""All exceptions and warnings are described there, wherever else they may be imported from."""


def public_modules() -> list[str]:
    """`mslsq` and the public modules below it, by their full names."""
    below = (f"mslsq.{found.name}" for found in pkgutil.iter_modules(mslsq.__path__))
    direct = [name for name in below if name not in PRIVATE and hasattr(importlib.import_module(name), "__all__")]
    named = [f"{module}.{name}" for module in direct for name in names_of(module) if is_module(module, name)]
    return ["mslsq", *direct, *named]


def names_of(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


def value_of(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def is_module(module: str, name: str) -> bool:
    return isinstance(value_of(module, name), ModuleType)


def page_of(module: str, name: str) -> str:
    """The module on whose page a name is described. One thing that several modules offer is described once."""
    if is_module(module, name):
        return f"{module}.{name}"
    value = value_of(module, name)
    offering = [other for other in public_modules()[1:] if offers(other, name, value)]
    if ERRORS in offering and inspect.isclass(value) and issubclass(value, Exception):
        return ERRORS
    return min(offering, key=lambda other: other.count("."), default=module)


def offers(module: str, name: str, value: object) -> bool:
    return name in names_of(module) and value_of(module, name) is value


def shortest(module: str, name: str) -> str:
    """The full name under which something is described: the one at the top, where there is one."""
    if is_module(module, name):
        return f"{module}.{name}"
    return f"mslsq.{name}" if offers("mslsq", name, value_of(module, name)) else f"{page_of(module, name)}.{name}"


def summary(value: object) -> str:
    """The first sentence of its docstring; nothing for a constant, whose docstring is that of its type."""
    described = inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
    first = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()) if described else ""
    return first.partition(". ")[0].rstrip(".:") + "." if first else ""
