"""Whose a class, a function or a module is: a library's, an installed package's, or the user's.

Of the user's own code everything counts that it reads. A library (PyTorch, NumPy, Python's own) holds nothing of the
user's. What lies between, packages installed beside, is followed where the user's code names it, and not further.
"""

import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable
from typing import Any

PLAIN = {object, tuple, list, dict, set, frozenset, int, float, str, complex, bytes}
LIBRARIES = {"torch", "numpy", "scipy", "einops", "jaxtyping", "functools", "threading", "logging", "builtins"}
USERS, INSTALLED, LIBRARY = "user", "installed", "library"
STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))

_ORIGINS: dict[str, str] = {}
_OWNERS: dict[type, tuple[tuple[type, ...], tuple[type, ...]]] = {}
_FIXED: dict[type, tuple[Any, ...]] = {}


def origin_of(module: str) -> str:
    """`USERS`, `INSTALLED` or `LIBRARY`, by the name of a module."""
    known = _ORIGINS.get(module)
    if known is None:
        if len(_ORIGINS) > 4096:
            _ORIGINS.clear()
        known = _ORIGINS[module] = _origin(module)
    return known


def _origin(module: str) -> str:
    top = module.partition(".")[0]
    if is_library(module) or top == "mslsq":
        return LIBRARY
    found = sys.modules.get(module) or sys.modules.get(top)
    file = os.path.realpath(str(getattr(found, "__file__", None) or ""))
    if any(part in file for part in PACKAGES):
        return INSTALLED
    if top in sys.stdlib_module_names and (found is None or not file or file.startswith(STANDARD)):
        return LIBRARY  # and not a file of the user's that has the name of one
    return USERS


def is_library(kind: type | str) -> bool:
    """Does this class (by its bases too) or module name belong to a library that holds nothing of the user's?"""
    if not isinstance(kind, str):
        # A class that `exec` made may have no module.
        return any(is_library(owner.__module__ or "") for owner in kind.__mro__ if owner not in PLAIN)
    module = kind
    return module.partition(".")[0] in LIBRARIES and not module.startswith("torch.distributions")


def owners_of(kind: type) -> tuple[type, ...]:
    """The classes among the bases of `kind`, itself included, that are neither a library's nor this package's, nor
    fixed."""
    known = _OWNERS.get(kind)
    if known is None or known[0] is not kind.__mro__:  # the bases of a class may be assigned to
        if len(_OWNERS) > 1024:
            _OWNERS.clear()
        owners = tuple(
            owner
            for owner in kind.__mro__
            if owner is not object
            and owner not in _FIXED
            and not is_library(owner.__module__ or "")
            and not is_own(owner.__module__ or "")
        )
        known = _OWNERS[kind] = (kind.__mro__, owners)
    return known[1]


def is_own(module: str) -> bool:
    """Is this a module of this package?"""
    return module == "mslsq" or module.startswith("mslsq.")


def origin_of_holder(holder: type | types.ModuleType) -> str:
    """Whose class or module this is."""
    if isinstance(holder, type) and holder in _FIXED:
        return LIBRARY
    name = holder.__module__ if isinstance(holder, type) else holder.__name__
    return origin_of(name if isinstance(name, str) else "")


def declare_fixed(kinds: Iterable[type], parameters: Iterable[Any] = ()) -> None:
    """Have classes of an installed package count as a library's: their methods are functions of their arguments, of
    what the object holds, and of these parameters alone.

    Args:
        kinds: the very classes; one that is derived from them is whose it is.
        parameters: objects whose attributes are read by their methods.
    """
    kept = tuple(parameters)
    _FIXED.update((kind, kept) for kind in kinds)
    _OWNERS.clear()


def is_fixed(kind: type) -> bool:
    """Has this class been declared so?"""
    return kind in _FIXED


def looked_up_of_fixed(kinds: Iterable[type]) -> list[tuple[Callable[..., Any], str]]:
    """What code of such classes may look up, each name with what looks it up: their members, and the parameters that
    they read. One of these may stand in a class until it is set."""
    found = [(vars(kind).get, name) for kind in kinds for name in vars(kind)]
    parameters = {id(one): one for kind in kinds for one in _FIXED.get(kind, ())}
    for one in parameters.values():
        found += [(vars(one).get, name) for name in dict.fromkeys((*vars(type(one)), *vars(one)))]
    return found
