"""Is all that closed code was seen to read the very same still? A walk (`reachable`) says it by value, in 60 µs; where
everything is the same object it would find the same, and that is seen in 5.

For plain code: functions, what they hold and name, and the classes of a user's own. Where there is more (a list at
module level, an object in a closure) there is no short way.
"""

import functools
import operator
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from mslsq.tracing.reading import objects
from mslsq.tracing.reading.exchange import UncollectedTensorError
from mslsq.tracing.reading.functions import builtin, function
from mslsq.tracing.reading.holders import Holders, named
from mslsq.tracing.reading.inputs import Collected
from mslsq.tracing.reading.origins import LIBRARY, origin_of, owners_of
from mslsq.tracing.reading.reachable import Walk
from mslsq.tracing.reading.reads import Reads, reads_of
from mslsq.tracing.reading.unchanged import are_same, is_same
from mslsq.tracing.reading.values import SCALARS, TENSORS

ABSENT = object()
AS_THEY_ARE = type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType
"""What may stand at a global name: of these the walk says what else of them counts."""
CHANGEABLE = functools.cached_property, functools.singledispatchmethod, functools.partialmethod
"""Wrappers of functions that may be given others."""


class MoreError(Exception):
    """There is something that counts by its content."""


class Noted:
    """What the code of a callable or module reads, by identity. Keeps no tensor and no closure alive.

    Args:
        collected: of closed code.
        looks_at_objects: does the root, and what it holds, count here too? (If not, another has seen that they are the
            same.)

    Raises:
        MoreError: something counts by its content.
    """

    def __init__(self, collected: Collected, looks_at_objects: bool):
        root = collected.root
        self._kind = type(root)
        try:
            self._root = None if self._kind is types.FunctionType or not looks_at_objects else weakref.ref(root)
            """None of a function: another one of the same code, that holds the same, reads the same."""
        except TypeError as error:  # an object with slots alone
            raise MoreError from error
        self._reads: list[tuple[Callable[..., Any], str]] = []
        self._found: list[Any] = []
        """What stands at names: of modules and their tables, of a library."""
        self._owners: list[tuple[Mapping[str, Any], list[Any]]] = []
        """The tables of classes, with their names and what stood there."""
        self._orders: list[tuple[type, Any]] = []
        """Classes and the order of their bases."""
        self._functions: list[tuple[weakref.ref[Any], weakref.ref[Any], Any]] = []
        """Functions with their code and defaults..."""
        self._cells: list[tuple[weakref.ref[Any], int, Any]] = []
        """... and what is in their closures."""
        self._own: list[_Own] = []
        """Of a function itself, and of functions in its closure."""
        self.tensors: list[weakref.ref[Tensor]] = []
        """Those in closures, in the order in which they are collected."""
        self._met: set[int] = set()
        if self._kind is types.FunctionType and looks_at_objects:
            self._note_own(root, ())
        try:
            walk = NotingWalk(collected, self, looks_at_objects)
        except UncollectedTensorError as error:
            raise MoreError from error
        if tuple(walk.scalars) != collected.scalars or walk.too_large:
            raise MoreError
        self._met.clear()
        if looks_at_objects:
            self.tensors = [weakref.ref(x) for x in collected.tensors.values()]

    @staticmethod
    def of(collected: Collected, looks_at_objects: bool) -> "Noted | None":
        """What there is; None where something counts by its content."""
        try:
            return Noted(collected, looks_at_objects)
        except MoreError:
            return None

    def holds(self, root: Any) -> bool:
        """Does the code read what it has read, as code of `root`?"""
        if type(root) is not self._kind or (self._root is not None and self._root() is not root):
            return False
        if not all(map(operator.is_, [get(name, ABSENT) for get, name in self._reads], self._found)):
            return False
        for reference, code, defaults in self._functions:
            own = reference()
            if own is None or own.__code__ is not code() or own.__defaults__ is not defaults:
                return False
            if own.__kwdefaults__ is not None or own.__dict__:
                return False
        for own in self._own:
            if not own.holds(root):
                return False
        for kind, order in self._orders:
            if kind.__mro__ is not order:
                return False
        for table, then in self._owners:
            if not are_same([*table, *table.values()], then):
                return False
        return all(map(_stands, self._cells))

    # ---- what a walk tells

    def look_up(self, table: Mapping[str, Any], name: str) -> Any:
        """Note what stands at a name of a table."""
        value = table.get(name, ABSENT)
        if value is not ABSENT and type(value) not in SCALARS and not isinstance(value, AS_THEY_ARE):
            raise MoreError
        self._reads.append((table.get, name))
        self._found.append(value)
        return value

    def function(self, value: types.FunctionType) -> None:
        """Note a function that a walk has met."""
        if id(value) in self._met:
            return
        self._met.add(id(value))
        defaults = value.__defaults__
        if value.__kwdefaults__ is not None or value.__dict__ or any(type(x) not in SCALARS for x in defaults or ()):
            raise MoreError
        self._functions.append((weakref.ref(value), weakref.ref(value.__code__), defaults))
        for place, content in enumerate(_in_closure(value)):
            if type(content) not in SCALARS and type(content) not in TENSORS:
                raise MoreError
            self._cells.append((weakref.ref(value), place, _weakly(content)))
        self._note_globals(value)

    def _note_own(self, value: types.FunctionType, path: tuple[int, ...]) -> None:
        """Note the root, or a function that it reaches by cells of closures at these places."""
        self._met.add(id(value))
        defaults, contents = value.__defaults__ or (), []
        if value.__kwdefaults__ is not None or value.__dict__ or any(type(x) not in SCALARS for x in defaults):
            raise MoreError
        for place, content in enumerate(_in_closure(value)):
            if type(content) is not types.FunctionType:
                if type(content) not in SCALARS and type(content) not in TENSORS:
                    raise MoreError
                contents.append((place, _weakly(content)))
            elif id(content) in self._met:  # it calls itself
                raise MoreError
            else:
                self._note_own(content, (*path, place))
        table = value.__globals__ if self._note_globals(value) else None
        self._own.append(_Own(path, weakref.ref(value.__code__), table, defaults, tuple(contents)))

    def _note_globals(self, value: types.FunctionType) -> bool:
        """Note what stands at the names that a function reads of its module; are there any?"""
        if _origin(value) == LIBRARY:
            return True
        reads = reads_of(value.__code__)
        if reads.strings or reads.environ or reads.imports or reads.table:
            raise MoreError
        for name in reads.globals:
            self.look_up(value.__globals__, name)
        return bool(reads.globals)

    def owner(self, kind: type) -> None:
        """Note a class of a user's own, with its bases."""
        if id(kind) in self._met:
            return
        self._met.add(id(kind))
        self._orders.append((kind, kind.__mro__))
        for owner in owners_of(kind):
            table = vars(owner)
            if any(isinstance(entry, CHANGEABLE) for entry in table.values()):
                raise MoreError
            self._owners.append((table, [*table, *map(_weakly, table.values())]))


class _Own(NamedTuple):
    """A function, or one in its closure, told by its code and by what it holds: who writes a `lambda` in a call gives
    another function of one code every time."""

    path: tuple[int, ...]
    """The places of the cells that lead to it."""
    code: "weakref.ref[types.CodeType]"
    table: dict[str, Any] | None
    """Its globals, if it reads any: they are kept alive."""
    defaults: tuple[Any, ...]
    contents: tuple[tuple[int, Any], ...]
    """Places of cells, and what is there but for functions."""

    def holds(self, root: Any) -> bool:
        """Is what stands there in this function the same?"""
        own: Any = root
        try:
            for place in self.path:
                held = own.__closure__ if type(own) is types.FunctionType else None
                if held is None or place >= len(held):
                    return False  # of other code, which is kept beside this one
                own = held[place].cell_contents
            if type(own) is not types.FunctionType or own.__code__ is not self.code():
                return False
            now = own.__defaults__ or ()
            if (self.table is not None and own.__globals__ is not self.table) or len(now) != len(self.defaults):
                return False
            if own.__kwdefaults__ is not None or own.__dict__ or not all(map(operator.is_, now, self.defaults)):
                return False
            cells = own.__closure__ or ()
            return all(is_same(cells[place].cell_contents, then) for place, then in self.contents)
        except ValueError:  # unbound now
            return False


class NotingWalk(Walk):
    """The walk that notes what it goes by, and raises MoreError where that is not enough."""

    def __init__(self, collected: Collected, noted: Noted, looks_at_objects: bool) -> None:
        self.noted, self._looks_at_objects = noted, looks_at_objects
        super().__init__(collected.root, collected.methods)

    def follower(self) -> Holders:
        return NotingHolders(self, self.noted)

    def visit(self, value: Any, name: str, parent: int) -> None:
        kind = type(value)
        if kind not in SCALARS and (self.inside_global or self._looks_at_objects):
            handler = objects.HANDLERS.get(kind) or objects.handler_of(value, kind)
            if handler is function:
                self.noted.function(value)
            elif handler is objects.tensor:
                if self.inside_global:
                    raise MoreError
            elif handler is builtin:
                if not (value.__self__ is None or isinstance(value.__self__, (type, types.ModuleType))):
                    raise MoreError
            elif handler is not objects.whole:
                raise MoreError
        super().visit(value, name, parent)


class NotingHolders(Holders):
    """Classes and modules, of which it is noted what stands there."""

    def __init__(self, walk: Walk, noted: Noted) -> None:
        super().__init__(walk)
        self.noted = noted

    def follow(self, holder: type | types.ModuleType, chain: tuple[str, ...]) -> None:
        at: Any = holder
        for attribute in chain:
            found = named(at, attribute)
            if found is None:
                raise MoreError
            owner, content = found
            if isinstance(at, type):
                self.noted.owner(at)
                self.noted.owner(type(at))
            else:
                self.noted.look_up(vars(owner), attribute)
            if not isinstance(content, (type, types.ModuleType)):
                break
            at = content
        super().follow(holder, chain)

    def members_of(self, kind: type, constructs: bool) -> None:
        self.noted.owner(kind)
        super().members_of(kind, constructs)

    def rest(self) -> None:
        if self.modules:
            raise MoreError
        super().rest()
        if self.modules:
            raise MoreError

    def imported(self, reads: Reads, package: str) -> None:
        raise MoreError


def _origin(value: types.FunctionType) -> str:
    module = value.__globals__.get("__name__", "")
    return origin_of(module) if isinstance(module, str) else ""


def _weakly(value: Any) -> Any:
    """A reference where something of the user's would be kept alive."""
    is_kept = type(value) in TENSORS or isinstance(value, types.FunctionType)
    return weakref.ref(value) if is_kept else value


def _stands(cell: tuple["weakref.ref[Any]", int, Any]) -> bool:
    """Is the same in the cell of a closure?"""
    reference, place, then = cell
    own = reference()
    if own is None:
        return False
    try:
        return is_same(own.__closure__[place].cell_contents, then)
    except ValueError:  # unbound now
        return False


def _in_closure(value: types.FunctionType) -> list[Any]:
    """What the cells of a function hold. MoreError where one is still unbound."""
    try:
        return [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError as error:
        raise MoreError from error
