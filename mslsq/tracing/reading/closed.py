"""Closed code: all that it can read is compared in every call, so what was recorded of it cannot go stale unseen.

A walk (`reachable`) compares what it finds. Here it is looked whether there is more to be found: an object that does
not show its state, an import, a file, the environment, a name in a string, a function of a library that is more than
operations on its arguments. What is not known to be harmless is taken for a reason to say no; that costs time, not
numbers. Random numbers and values of tensors need no look: what reads those is never recorded (`tracing.guard`).
"""

import argparse
import builtins
import datetime
import decimal
import dis
import enum
import functools
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mslsq.private import function_modes_are_active, hooks_of_all_modules
from mslsq.tracing.reading import functions, instructions, layers, objects
from mslsq.tracing.reading.exchange import UncollectedTensorError
from mslsq.tracing.reading.harmless import HARMLESS, OpenError, check_names, is_harmless, is_of_library
from mslsq.tracing.reading.holders import Holders
from mslsq.tracing.reading.inputs import Collected
from mslsq.tracing.reading.origins import (
    LIBRARY,
    USERS,
    is_fixed,
    is_own,
    looked_up_of_fixed,
    origin_of,
    origin_of_holder,
)
from mslsq.tracing.reading.paths import ClosedHolders, Paths
from mslsq.tracing.reading.reachable import Walk
from mslsq.tracing.reading.reads import Chains, reads_of
from mslsq.tracing.reading.values import PATHS, SCALARS, Identity, is_compared, value_of
from mslsq.tracing.reading.writes import stays_inside

ABSENT = object()
BASES = frozenset(
    (
        *(object, dict, list, tuple, OrderedDict, types.SimpleNamespace, types.MappingProxyType),
        *(*argparse.Namespace.__mro__, *enum.property.__mro__),
    )
)
LOADED = ([("LOAD_FAST", "")], [("LOAD_FAST_BORROW", "")])
WITH_METHODS_THAT_READ = frozenset((*PATHS, datetime.date, datetime.datetime))
"""Values whose methods may ask files or the clock."""


@dataclass(frozen=True, eq=False)
class Closed:
    """Code that reads nothing but what a walk compares, and names of libraries, which are compared here."""

    _reads: tuple[tuple[Callable[..., Any], str], ...]
    """Per name what looks it up..."""
    _found: tuple[Any, ...]
    """... and what stood there."""

    @staticmethod
    def of(collected: Collected, kinds: Iterable[type]) -> "Closed | None":
        """Of what was collected of a callable or module; None where it may read something else.

        Args:
            kinds: the library's own types whose methods it may call.
        """
        try:
            return Closed._of(collected, kinds)
        except OpenError:
            return None

    @staticmethod
    def _of(collected: Collected, kinds: Iterable[type]) -> "Closed":
        """The same.

        Raises:
            OpenError: it may read something else; says what.
        """
        try:
            walk = ClosedWalk(collected.root, collected.methods)
        except UncollectedTensorError as error:
            raise OpenError("a global tensor that requires grad") from error
        if walk.too_large:
            raise OpenError("more objects than are looked into")
        if tuple(walk.scalars) != collected.scalars:
            raise OpenError("what it reads changes while it is looked at")
        names = sorted(walk.attributes_of_any)
        methods = [(vars(kind).get, name) for kind in (Tensor, *kinds) for name in names]
        methods += looked_up_of_fixed(walk.fixed)
        lookups = (*walk.lookups, *[(get, name, get(name, ABSENT)) for get, name in methods])
        return Closed(tuple([(get, name) for get, name, _ in lookups]), tuple([value for _, _, value in lookups]))

    @property
    def holds(self) -> bool:
        """Do all names of libraries still stand for the same, and are its functions called as they are?"""
        if function_modes_are_active():
            return False
        return all(map(operator.is_, [get(name, ABSENT) for get, name in self._reads], self._found))


def why_open(collected: Collected, kinds: Iterable[type] = ()) -> str:
    """What keeps the code of a callable or module from being closed, in a few words; empty where it is."""
    try:
        Closed._of(collected, kinds)
    except OpenError as error:
        return str(error)
    return ""


class ClosedWalk(Walk):
    """The walk that raises OpenError where the code may read what it cannot compare.

    What is not known to be harmless is noted, and how it is reached. An attribute of a user's object whose name stands
    nowhere in the code is not read: an application may hold its logger, its data and a generator of random numbers.
    """

    def __init__(self, root: Any, methods: tuple[str, ...]) -> None:
        self.lookups: list[tuple[Callable[..., Any], str, Any]] = [(_are_hooked, "", False)]
        self.attributes_of_any: set[str] = set()
        self.fixed: dict[type, None] = {}
        """Classes of a package that were met, of those that are declared to be fixed."""
        self.paths = Paths()
        super().__init__(root, methods)
        self.paths.check(self.used)

    def follower(self) -> Holders:
        return ClosedHolders(self, self.paths)

    def visit(self, value: Any, name: str, parent: int) -> None:
        kind = type(value)
        if kind in SCALARS or kind is Identity:
            super().visit(value, name, parent)
            return
        with self.paths.into(value):
            try:
                self._look(value, kind)
            except OpenError as error:
                self.paths.end(value, error)
            super().visit(value, name, parent)

    def attributes(self, attributes: Iterable[tuple[str, Any]], name: str, address: int) -> None:
        is_hidden = self.paths.is_of_user
        for key, entry in attributes:
            self.paths.attribute = key if is_hidden and not hasattr(nn.Module, key) else None
            super().attributes([(key, entry)], name, address)
            self.paths.attribute = None

    def holder(self, value: type | types.ModuleType, name: str, chains: Chains) -> None:
        origin = origin_of_holder(value)
        if isinstance(value, type):
            self._note_fixed(value)
        is_open = isinstance(value, type) and origin == LIBRARY and not is_harmless(value)
        is_known = origin in (LIBRARY, USERS) or all(_is_fixed(value, chain) for chain in chains)
        if is_open or not is_known:
            self.paths.to(value)
            self.paths.end(value, OpenError(f"{name or 'a class or module'}: {value.__name__}"))
        super().holder(value, name, chains)

    def _look(self, value: Any, kind: type) -> None:
        """OpenError where the walk does not see all that this is made of."""
        self._note_fixed(kind)
        handler = objects.HANDLERS.get(kind) or objects.handler_of(value, kind)
        if handler is objects.tensor:
            is_open = self.inside_global and not value.requires_grad and not is_compared(value)
        elif handler is functions.function:
            is_open = False
            self._look_into(value)
        elif handler in (functions.builtin, objects.whole):
            is_open = not is_harmless(value)
        elif handler is objects.module:
            is_open = not layers.is_known(value)
            self.lookups += [(vars(owner).get, name, vars(owner)[name]) for owner, name in layers.called(kind)]
        elif handler is objects.array:
            is_open = value.dtype.hasobject
        elif handler is objects.configuration:
            is_open = objects.resolved(value) is None
        elif handler is objects.opaque:
            is_open = isinstance(value_of(value, kind), Identity) or kind is decimal.Decimal  # it has a context
            if kind in WITH_METHODS_THAT_READ:
                self.paths.end(value, OpenError(f"a method of {kind.__name__}"), _methods(kind))
        elif handler in (objects.instance, objects.mapping, objects.sequence):
            is_open = not all(map(_shows_itself, kind.__mro__))
        else:
            is_open = handler not in (
                *(objects.member, objects.node, objects.unordered, objects.view),
                *(functions.method, functions.partial, functions.wrapper),
            )
            is_open = is_open or isinstance(value, functools._lru_cache_wrapper)
        if is_open:
            raise OpenError(f"an object of {kind.__module__}.{kind.__qualname__}")

    def _note_fixed(self, kind: type) -> None:
        self.fixed.update(dict.fromkeys(filter(is_fixed, kind.__mro__)))

    def _look_into(self, value: types.FunctionType) -> None:
        """OpenError where the code of a function reads what the walk does not follow."""
        module = value.__globals__.get("__name__", "")
        origin = origin_of(module) if isinstance(module, str) else ""
        if origin == LIBRARY:
            if not is_own(module) and not is_harmless(value):
                raise OpenError(f"the function {module}.{value.__name__}")
            return
        code, reads = value.__code__, reads_of(value.__code__)
        if module == "attr._make" and value.__name__ == "__ne__":
            return  # of every class of attrs: what its `__eq__` says
        if origin != USERS:
            raise OpenError(f"the function {module}.{value.__name__}")
        if reads.strings or reads.imports or reads.environ or reads.table:
            raise OpenError(f"an import, the environment or a name in a string in {value.__name__}")
        self.attributes_of_any |= _loose_attributes(code)
        self.paths.read_all = self.paths.read_all or _writes_text(code)
        is_made = value.__name__ == "__hash__" and code.co_filename.startswith("<")
        for name, chains in reads.globals.items():
            if name == "hash" and is_made:  # by `dataclass` and `attrs`, of the fields
                self.lookups += [(value.__globals__.get, name, ABSENT), (vars(builtins).get, name, hash)]
                continue
            for chain in chains:
                self._resolve(value.__globals__, name, chain)
        if not stays_inside(code, functools.partial(_found, value.__globals__)):
            raise OpenError(f"a write through an index, a context or a `try` in {value.__name__}")
        cells = dict(zip(code.co_freevars, value.__closure__ or (), strict=True))
        for name, chains in reads.free.items():
            if name in cells and isinstance(cells[name].cell_contents, types.ModuleType):
                for chain in chains:
                    self._follow(cells[name].cell_contents, chain)

    def _resolve(self, table: dict[str, Any], name: str, chain: tuple[str, ...]) -> None:
        """Look a global up. What is not of a library is compared by the walk."""
        value = table.get(name, ABSENT)
        if value is not ABSENT:
            self._follow(value, chain)
            return
        value = vars(builtins).get(name, ABSENT)
        is_exception = isinstance(value, type) and issubclass(value, BaseException)
        if name not in HARMLESS and not is_exception:
            raise OpenError(f"the built-in {name}")
        self.lookups += [(table.get, name, ABSENT), (vars(builtins).get, name, value)]

    def _follow(self, value: Any, chain: tuple[str, ...]) -> None:
        """The thing of a library at the end of a chain of attributes, if there is one: it must be harmless."""
        rest, is_librarys = list(chain), False
        while isinstance(value, types.ModuleType) and rest:
            is_librarys = is_librarys or origin_of_holder(value) != USERS
            attribute, inside = rest.pop(0), vars(value)
            value = inside.get(attribute, ABSENT)
            if value is ABSENT:
                raise OpenError(f"the absent attribute {attribute}")
            self.lookups.append((inside.get, attribute, value))
        is_librarys = is_librarys or isinstance(value, types.ModuleType) or is_of_library(value)
        if is_librarys and type(value) not in SCALARS and not is_harmless(value):
            raise OpenError(f"the library's {'.'.join(chain) or getattr(value, '__name__', value)}")
        if rest:
            check_names(rest)
            self.attributes_of_any.update(rest)


def _is_fixed(value: Any, chain: tuple[str, ...]) -> bool:
    """Does a chain of attributes lead from a module to a class that is declared to be fixed?"""
    for attribute in chain:
        value = vars(value).get(attribute) if isinstance(value, types.ModuleType) else value
    return isinstance(value, type) and is_fixed(value)


def _are_hooked(name: str, absent: Any) -> bool:
    """Is there a hook for all modules? In the form of a look-up."""
    return hooks_of_all_modules()


@functools.lru_cache(maxsize=1024)
def _shows_itself(kind: type) -> bool:
    """Is all that an object has of this base class in its attributes, or in what it contains?"""
    name = kind.__module__ or ""
    is_plain = kind in BASES or name in ("abc", "typing", "typing_extensions")
    return is_plain or is_own(name) or is_fixed(kind) or origin_of(name) == USERS


@functools.lru_cache(maxsize=32)
def _methods(kind: type) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name)))


def _found(table: dict[str, Any], name: str, chain: tuple[str, ...]) -> Any:
    """What stands at the end of a chain of attributes of a global or built-in name, through modules; or None."""
    value = table.get(name, vars(builtins).get(name))
    for attribute in chain:
        value = vars(value).get(attribute) if isinstance(value, types.ModuleType) else None
    return value


@functools.lru_cache(maxsize=1024)
def _writes_text(code: types.CodeType) -> bool:
    """May it turn an object into text, which shows attributes that it does not name?"""
    if not instructions.TEXT.isdisjoint(instruction.opname for instruction in dis.get_instructions(code)):
        return True
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return not {"repr", "str"}.isdisjoint(code.co_names) or any(map(_writes_text, nested))


@functools.lru_cache(maxsize=1024)
def _loose_attributes(code: types.CodeType) -> frozenset[str]:
    """The names that code reads of objects that it does not name, such as its arguments.

    Raises:
        OpenError: it may leave something behind, or read what is not compared.
    """
    found: set[str] = set()
    is_named = False
    read = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    for place, instruction in enumerate(read):
        operation = instruction.opname
        is_rebound = operation == "STORE_DEREF" and instruction.argval in code.co_freevars
        if operation not in instructions.HARMLESS | instructions.WATCHED or is_rebound:
            raise OpenError(f"the instruction {operation} in {code.co_name}")
        if operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            if not is_named and not _compares_classes(read[place : place + 4]):
                found.add(instruction.argval)
            continue
        is_free = operation == "LOAD_DEREF" and instruction.argval in code.co_freevars
        is_named = operation == "LOAD_GLOBAL" or is_free
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _loose_attributes(constant)
    check_names(found)
    return frozenset(found)


def _compares_classes(following: list[dis.Instruction]) -> bool:
    """Is it `a.__class__ is b.__class__`, as in what `dataclasses` writes, or the end of it?"""
    names = [(i.opname, i.argval if i.opname == "LOAD_ATTR" else "") for i in following]
    of_class, same = ("LOAD_ATTR", "__class__"), ("IS_OP", "")
    if names[0] != of_class:
        return False
    return names[1:2] == [same] or (names[1:2] in LOADED and names[2:] == [of_class, same])
