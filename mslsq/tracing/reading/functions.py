"""What a walk finds behind what can be called: closures, defaults, globals, partials, wrappers."""

import functools
import itertools
import operator
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from mslsq.tracing.reading.origins import INSTALLED, LIBRARY, is_own, origin_of
from mslsq.tracing.reading.reads import WHOLE, Chains, Reads, reads_of
from mslsq.tracing.reading.values import Identity, joined

if TYPE_CHECKING:
    from mslsq.tracing.reading.reachable import Walk

# Built-in objects that say what they are made of, and lose nothing by being asked: `__reduce__`.
REDUCIBLE: set[type] = {
    *(type(iter(kind)) for kind in ([], (), {}, set(), range(0), "", b"", {}.values(), {}.items())),
    *(type(iter(int, 1)), map, filter, zip, enumerate, reversed),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
}
if sys.version_info < (3, 12):  # deprecated there, and gone later
    REDUCIBLE |= {itertools.count, itertools.repeat, itertools.cycle, itertools.chain, itertools.islice}


def function(walk: "Walk", value: types.FunctionType, name: str, address: int) -> None:
    code = value.__code__
    walk.codes.append(code)
    if walk.full(value, name):
        return
    module = value.__globals__.get("__name__", "")
    origin = origin_of(module) if isinstance(module, str) else ""
    reads = reads_of(code)
    if origin != LIBRARY or is_own(module):
        walk.used |= reads.attributes
    inside = f"{name}, " if name else ""
    if value.__closure__:
        _cells(walk, value, reads, inside, address)
    if value.__defaults__ or value.__kwdefaults__:
        _defaults(walk, value, inside, address)
    for attribute, entry in value.__dict__.items():
        is_read = attribute != "__wrapped__"  # functools.wraps: what is called stands in a cell
        if is_read and not (attribute == "__signature__" and is_own(module)):
            walk.visit(entry, f"{inside}attribute '{attribute}'", address)
    if origin != LIBRARY:
        foreign = origin == INSTALLED and module.partition(".")[0] != walk.home.partition(".")[0]
        _outside(walk, value, reads, foreign)


def _cells(walk: "Walk", value: types.FunctionType, reads: Reads, inside: str, address: int) -> None:
    """The closure."""
    for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # still unbound
            continue
        place = f"{inside}closure cell '{free}'"
        if isinstance(content, (type, types.ModuleType)):
            walk.holder(content, place, () if free == "__class__" else reads.free.get(free, WHOLE))
        else:
            walk.visit(content, place, address)


def _defaults(walk: "Walk", value: types.FunctionType, inside: str, address: int) -> None:
    """Of arguments, by place and by name."""
    code, defaults = value.__code__, value.__defaults__ or ()
    arguments = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for argument, default in (*zip(arguments, defaults, strict=True), *(value.__kwdefaults__ or {}).items()):
        walk.visit(default, f"{inside}default of '{argument}'", address)


def _outside(walk: "Walk", value: types.FunctionType, reads: Reads, foreign: bool) -> None:
    """What its code reads beside what it holds: globals, names in strings, the environment, imports. Of a `foreign`
    package only globals, and in those no classes and modules."""
    if reads.globals:
        read_globals(walk, value.__globals__, reads.globals, foreign)
    if foreign:
        return
    if reads.strings:
        walk.used.update(part for text in reads.strings for part in text.split("."))
        if reads.table:
            read_globals(walk, value.__globals__, {text: WHOLE for text in reads.strings if text.isidentifier()}, False)
    if reads.environ:
        for text in reads.strings:
            walk.visit(os.environ.get(text), f"environment variable '{text}'", 0)
    if reads.imports:
        outer, walk.inside_global = walk.inside_global, True
        walk.holders.imported(reads, value.__globals__.get("__package__") or "")
        walk.inside_global = outer


def read_globals(walk: "Walk", table: dict[str, Any], names: dict[str, Chains], foreign: bool) -> None:
    """Globals cannot be substituted: values count, tensors by identity and version; with derivatives they raise."""
    outer, walk.inside_global = walk.inside_global, True
    above, walk.inside_holder = walk.inside_holder, False
    try:
        for name, chains in names.items():
            value = table.get(name, table)
            if value is table:  # not there: a builtin
                walk.holders.uses_super |= name == "super"
            elif isinstance(value, (type, types.ModuleType)):
                if foreign:
                    walk.scalars.append(value)
                else:
                    walk.holder(value, f"global '{name}'", chains)
            else:
                walk.visit(value, f"global '{name}'", 0)
    finally:
        walk.inside_global, walk.inside_holder = outer, above


def method(walk: "Walk", value: types.MethodType, name: str, address: int) -> None:
    walk.visit(value.__func__, name, address)
    walk.visit(value.__self__, joined(name, "self"), address)


def builtin(walk: "Walk", value: types.BuiltinMethodType, name: str, address: int) -> None:
    """A function in C, or a method of a built-in object: of a tensor, of a dict."""
    owner = value.__self__
    if owner is None or isinstance(owner, (type, types.ModuleType)):
        walk.scalars.append(Identity(value))
        return
    walk.scalars.append(value.__name__)
    walk.visit(owner, joined(name, "self"), address)


def partial(walk: "Walk", value: functools.partial[Any], name: str, address: int) -> None:
    inside = f"{name}, " if name else ""
    walk.scalars.append((len(value.args), tuple(value.keywords)))
    walk.visit(value.func, name, address)
    for place, entry in enumerate(value.args):
        walk.visit(entry, f"{inside}partial argument {place}", address)
    for keyword, entry in value.keywords.items():
        walk.visit(entry, f"{inside}partial argument '{keyword}'", address)


def partial_method(walk: "Walk", value: Any, name: str, address: int) -> None:
    walk.scalars.append((len(value.args), tuple(value.keywords)))
    for place, entry in enumerate((value.func, *value.args, *value.keywords.values())):
        walk.apart(entry, name if place == 0 else f"{name}, partial argument {place}")


def wrapper(walk: "Walk", value: Any, name: str, address: int) -> None:
    """`functools.lru_cache`, and other wrappers that make a method or function of a function."""
    walk.scalars.append(type(value))
    for attribute in ("__wrapped__", "__func__", "fget", "func", "dispatcher"):
        inner = getattr(value, attribute, None)
        if inner is not None:
            walk.apart(inner, name)
            return


def reducible(walk: "Walk", value: Any, name: str, address: int) -> None:
    """An iterator over something, a getter of something: what it would be pickled as."""
    parts = value.__reduce__()
    walk.scalars.append(type(value))
    if isinstance(value, (operator.attrgetter, operator.methodcaller)):
        walk.used.update(part for text in parts[1] if isinstance(text, str) for part in text.split("."))
    for part in parts[1:]:
        walk.apart(part, name)
