"""The walk over everything a callable reaches: its tensors by name, its Python values in order.

Where objects lead to is a matter of Python, not of mathematics, so all of its cases stand here: closures, partials,
methods, modules, containers, slots, globals. Classes and imported modules are in `holders`.
"""

import contextvars
import enum
import functools
import itertools
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mslsq import pytree
from mslsq.private import MODULE_TABLES, is_wrapped, version_of
from mslsq.tracing.reading.exchange import UncollectedTensorError, refusal
from mslsq.tracing.reading.holders import Holders
from mslsq.tracing.reading.origins import INSTALLED, LIBRARY, is_library, is_own, origin_of
from mslsq.tracing.reading.reads import WHOLE, Chains, reads_of
from mslsq.tracing.reading.substitution import VIEWS, is_pytree_node
from mslsq.tracing.reading.values import (
    BYTES,
    SCALARS,
    Identity,
    attributes_of,
    flat_value,
    slots_of,
    tensor_value,
    value_of,
)

# What nn.Module keeps beside the user's attributes, in torch 2.9 to 2.13.
MODULE_INTERNALS = {*MODULE_TABLES, "training", "_non_persistent_buffers_set", "_is_full_backward_hook"}
ENUM_INTERNALS = {"_value_", "_name_", "__objclass__", "_sort_order_"}
# Built-in objects that say what they are made of, and lose nothing by being asked: `__reduce__`.
REDUCIBLE: set[type] = {
    *(type(iter(kind)) for kind in ([], (), {}, set(), range(0), "", b"", {}.values(), {}.items())),
    *(type(iter(int, 1)), map, filter, zip, enumerate, reversed),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
}
if sys.version_info < (3, 12):  # deprecated there, and gone later
    REDUCIBLE |= {itertools.count, itertools.repeat, itertools.cycle, itertools.chain, itertools.islice}
FLAT_FROM = 8
"""Entries from which a list of plain numbers is compared as a whole."""
MOST_OBJECTS, DEEPEST = 10_000, 100
"""Objects (not counting tensors and modules) that a walk looks into, some 10 ms at every call, and how deep."""
MOST_BYTES = 1_000_000
"""Size up to which arrays inside a library's object are compared: 1 ms."""


class Walk:
    """One pass over the objects reachable from a callable. `parents` are the edges backwards, for `rebuild`; `held` are
    the tensors that a class or an imported module holds, which are exchanged where they are used."""

    shortcut = True
    """Are the plain values in containers noted without a visit?"""

    def __init__(self, root: Any, methods: tuple[str, ...]) -> None:
        self.used = set(methods)  # names of attributes that the code met so far asks for
        self.holders = Holders(self)
        self.tensors: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self.parents: dict[int, list[int]] = {}
        self.scalars: list[Any] = self.values()
        self.codes: list[types.CodeType] = []
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no id is given out twice during the walk
        self.inside_global = self.inside_holder = False
        self.home = getattr(root, "__module__", "") or ""
        self.objects = self.depth = 0
        self.too_large = ""
        self.visit(root, "", 0)
        if self.holders.classes or self.holders.modules:
            self.inside_global = True
            self.holders.rest()

    def values(self) -> list[Any]:
        """Where values are noted, in order."""
        return []

    def visit(self, value: Any, name: str, parent: int) -> None:
        kind = type(value)
        if kind in SCALARS:
            self.scalars.append(value_of(value, kind))
            return
        address = id(value)
        if parent:
            self.parents.setdefault(address, []).append(parent)
        met = -address if self.inside_global else address  # what a global holds may be reached by a closure too
        if met in self.seen:
            self.scalars.append(("again", self.seen[met]))
            return
        self.seen[met] = len(self.seen)
        self.alive.append(value)
        handler = HANDLERS.get(kind)
        if handler is None:
            if len(HANDLERS) > 4096:
                HANDLERS.clear()
            handler = HANDLERS[kind] = handler_of(value, kind)
        handler(self, value, name, address)

    def apart(self, value: Any, name: str, held: bool = False) -> None:
        """Visit what cannot be exchanged for a copy: tensors in there cannot become inputs, unless `held` by a class
        or a module, for all that read them."""
        outer, self.inside_global = self.inside_global, True
        above, self.inside_holder = self.inside_holder, held
        try:
            self.visit(value, name, 0)
        finally:
            self.inside_global, self.inside_holder = outer, above

    def holder(self, value: type | types.ModuleType, name: str, chains: Chains) -> None:
        """Visit a class or a module of which the code reads these attributes."""
        outer, self.inside_global = self.inside_global, True
        try:
            self.holders.reached(value, chains)
        finally:
            self.inside_global = outer

    def full(self, value: Any, name: str) -> bool:
        """Are there more objects than can be looked into at every call? Then this one counts by identity."""
        self.objects += 1
        if self.objects <= MOST_OBJECTS and self.depth < DEEPEST:
            return False
        self.too_large = self.too_large or name
        self.scalars.append(Identity(value))
        return True

    def tensor(self, value: Tensor, name: str, address: int) -> None:
        if self.inside_global:
            if not value.requires_grad and not is_wrapped(value):
                self.scalars.append((Identity(value), version_of(value), tensor_value(value)))
                return
            if not self.inside_holder or is_wrapped(value):
                raise UncollectedTensorError(refusal(name))
        if address in self.names:  # one that a holder has and a closure too
            known = self.names[address]
            self.scalars.append(("tensor", list(self.tensors).index(known)))
        else:
            known = self.free_name(name or "tensor")
            self.scalars.append(("tensor", len(self.tensors)))
            self.tensors[known] = value
            self.names[address] = known
        if self.inside_global:
            self.held[known] = value

    def free_name(self, name: str) -> str:
        """The name, numbered where another tensor has it."""
        if name not in self.tensors:
            return name
        return next(f"{name} ({n})" for n in range(2, len(self.tensors) + 3) if f"{name} ({n})" not in self.tensors)

    def function(self, value: types.FunctionType, name: str, address: int) -> None:
        code = value.__code__
        self.codes.append(code)
        if self.full(value, name):
            return
        module = value.__globals__.get("__name__", "")
        origin = origin_of(module) if isinstance(module, str) else ""
        reads = reads_of(code)
        if origin != LIBRARY or is_own(module):
            self.used |= reads.attributes
        inside = f"{name}, " if name else ""
        if value.__closure__:
            for free, cell in zip(code.co_freevars, value.__closure__, strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:  # still unbound
                    continue
                place = f"{inside}closure cell '{free}'"
                if isinstance(content, (type, types.ModuleType)):
                    self.holder(content, place, () if free == "__class__" else reads.free.get(free, WHOLE))
                else:
                    self.visit(content, place, address)
        if value.__defaults__:
            arguments = code.co_varnames[: code.co_argcount][-len(value.__defaults__) :]
            for argument, default in zip(arguments, value.__defaults__, strict=True):
                self.visit(default, f"{inside}default of '{argument}'", address)
        if value.__kwdefaults__:
            for argument, default in value.__kwdefaults__.items():
                self.visit(default, f"{inside}default of '{argument}'", address)
        if value.__dict__:
            for attribute, entry in value.__dict__.items():
                if attribute != "__wrapped__":  # functools.wraps: what is called stands in a cell
                    self.visit(entry, f"{inside}attribute '{attribute}'", address)
        if origin == LIBRARY:
            return
        foreign = origin == INSTALLED and module.partition(".")[0] != self.home.partition(".")[0]
        if reads.globals:
            self.globals(value.__globals__, reads.globals, foreign)
        if foreign:
            return
        if reads.strings:
            self.used.update(part for text in reads.strings for part in text.split("."))
            if reads.table:
                self.globals(value.__globals__, {text: WHOLE for text in reads.strings if text.isidentifier()}, False)
        if reads.environ:
            for text in reads.strings:
                self.visit(os.environ.get(text), f"environment variable '{text}'", 0)
        if reads.imports:
            outer, self.inside_global = self.inside_global, True
            self.holders.imported(reads, value.__globals__.get("__package__") or "")
            self.inside_global = outer

    def globals(self, table: dict[str, Any], names: dict[str, Chains], foreign: bool) -> None:
        """Globals cannot be substituted: values count, tensors by identity and version; with derivatives they raise."""
        outer, self.inside_global = self.inside_global, True
        above, self.inside_holder = self.inside_holder, False
        try:
            for name, chains in names.items():
                value = table.get(name, table)
                if value is table:  # not there: a builtin
                    self.holders.uses_super |= name == "super"
                elif isinstance(value, (type, types.ModuleType)):
                    if foreign:
                        self.scalars.append(value)
                    else:
                        self.holder(value, f"global '{name}'", chains)
                else:
                    self.visit(value, f"global '{name}'", 0)
        finally:
            self.inside_global, self.inside_holder = outer, above

    def method(self, value: types.MethodType, name: str, address: int) -> None:
        self.visit(value.__func__, name, address)
        self.visit(value.__self__, join(name, "self"), address)

    def builtin(self, value: types.BuiltinMethodType, name: str, address: int) -> None:
        """A function in C, or a method of a built-in object: of a tensor, of a dict."""
        owner = value.__self__
        if owner is None or isinstance(owner, (type, types.ModuleType)):
            self.scalars.append(Identity(value))
            return
        self.scalars.append(value.__name__)
        self.visit(owner, join(name, "self"), address)

    def partial(self, value: functools.partial[Any], name: str, address: int) -> None:
        inside = f"{name}, " if name else ""
        self.scalars.append((len(value.args), tuple(value.keywords)))
        self.visit(value.func, name, address)
        for place, entry in enumerate(value.args):
            self.visit(entry, f"{inside}partial argument {place}", address)
        for keyword, entry in value.keywords.items():
            self.visit(entry, f"{inside}partial argument '{keyword}'", address)

    def partial_method(self, value: Any, name: str, address: int) -> None:
        self.scalars.append((len(value.args), tuple(value.keywords)))
        for place, entry in enumerate((value.func, *value.args, *value.keywords.values())):
            self.apart(entry, name if place == 0 else f"{name}, partial argument {place}")

    def module(self, value: nn.Module, name: str, address: int) -> None:
        self.scalars.append((type(value), value.training))
        attributes = value.__dict__
        for table in MODULE_TABLES:
            for key, entry in attributes[table].items():
                self.scalars.append(key)
                self.visit(entry, join(name, key), address)
        self.attributes(
            [
                (key, entry)
                for key, entry in attributes.items()
                if key not in MODULE_INTERNALS and not (isinstance(entry, dict) and not entry)
            ],
            name,
            address,
        )
        self.holders.instance_of(type(value))

    def object(self, value: Any, name: str, address: int) -> None:
        if self.full(value, name):
            return
        attributes = attributes_of(value)
        self.scalars.append((type(value), len(attributes)))
        self.depth += 1
        self.attributes(attributes.items(), name, address)
        self.depth -= 1
        self.holders.instance_of(type(value))

    def attributes(self, attributes: Iterable[tuple[str, Any]], name: str, address: int) -> None:
        scalars, shortcut = self.scalars, self.shortcut
        for key, entry in attributes:
            scalars.append(key)
            kind = type(entry)
            if shortcut and kind in SCALARS:
                scalars.append(value_of(entry, kind))
            else:
                self.visit(entry, join(name, key), address)

    def member(self, value: enum.Enum, name: str, address: int) -> None:
        """A member of an enum: what it stands for and what was hung onto it."""
        self.scalars.append((type(value), value))
        more = {key: entry for key, entry in vars(value).items() if key not in ENUM_INTERNALS}
        self.apart(value.value, join(name, "value"))
        for key, entry in more.items():
            self.apart(entry, join(name, key))
        self.holders.instance_of(type(value))

    def mapping(self, value: dict[Any, Any] | types.MappingProxyType[Any, Any], name: str, address: int) -> None:
        if self.full(value, name):
            return
        if len(value) >= FLAT_FROM:
            flat = flat_value(value if isinstance(value, dict) else dict(value))
            if flat is not None:
                self.scalars.append(flat)
                return
        self.scalars.append((type(value), len(value)))
        self.depth += 1
        for key, entry in list(value.items()):
            if type(key) in SCALARS:
                self.scalars.append(value_of(key, type(key)))
            else:
                self.apart(key, f"{name}, key {key!r}" if not self.shortcut else name)
            kind = type(entry)
            if self.shortcut and kind in SCALARS:
                self.scalars.append(value_of(entry, kind))
            else:
                self.visit(entry, f"{name}[{key!r}]", address)
        self.depth -= 1
        if type(value) is not dict:
            self.holders.instance_of(type(value))

    def view(self, value: Any, name: str, address: int) -> None:
        """`d.keys()`, `d.values()`, `d.items()` kept while `d` changes."""
        self.scalars.append(type(value))
        if isinstance(value, VIEWS[0]):
            self.apart(value.mapping, name)
        else:
            self.visit(value.mapping, name, address)

    def sequence(self, value: list[Any] | tuple[Any, ...], name: str, address: int) -> None:
        if self.full(value, name):
            return
        if len(value) >= FLAT_FROM:
            flat = flat_value(value)
            if flat is not None:
                self.scalars.append(flat)
                return
        self.scalars.append((type(value), len(value)))
        self.depth += 1
        for place, entry in enumerate(value):
            kind = type(entry)
            if self.shortcut and kind in SCALARS:
                self.scalars.append(value_of(entry, kind))
            else:
                self.visit(entry, f"{name}[{place}]", address)
        self.depth -= 1

    def node(self, value: Any, name: str, address: int) -> None:
        children, structure = pytree.flatten(value)
        self.scalars.append((type(value), repr(structure)))
        for place, entry in enumerate(children):
            self.visit(entry, name if len(children) == 1 else f"{name}[{place}]", address)

    def set(self, value: set[Any] | frozenset[Any], name: str, address: int) -> None:
        if all(type(entry) in SCALARS for entry in value):
            self.scalars.append(value_of(value, type(value)))
            return
        for entry in value:  # no order to name its tensors by
            self.apart(entry, f"{name}, entry of a set")

    def array(self, value: np.ndarray, name: str, address: int) -> None:
        if not value.dtype.hasobject:
            self.scalars.append(value_of(value, type(value)))
            return
        self.scalars.append((type(value), value.shape))
        self.apart(value.ravel().tolist(), name)

    def bytes(self, value: Any, name: str, address: int) -> None:
        if isinstance(value, memoryview):
            self.scalars.append((memoryview, value.format, value.shape))
            value = bytearray(value)
        self.scalars.append(value_of(value, type(value)))

    def reference(self, value: weakref.ref[Any], name: str, address: int) -> None:
        self.scalars.append(type(value))
        self.apart(value(), name)

    def variable(self, value: contextvars.ContextVar[Any], name: str, address: int) -> None:
        self.scalars.append(Identity(value))
        self.apart(value.get(None), f"{name} (context variable '{value.name}')")

    def wrapper(self, value: Any, name: str, address: int) -> None:
        """`functools.lru_cache`, and other wrappers that make a method or function of a function."""
        self.scalars.append(type(value))
        for attribute in ("__wrapped__", "__func__", "fget", "func", "dispatcher"):
            inner = getattr(value, attribute, None)
            if inner is not None:
                self.apart(inner, name)
                return

    def reducible(self, value: Any, name: str, address: int) -> None:
        """An iterator over something, a getter of something: what it would be pickled as."""
        parts = value.__reduce__()
        self.scalars.append(type(value))
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self.used.update(part for text in parts[1] if isinstance(text, str) for part in text.split("."))
        for part in parts[1:]:
            self.apart(part, name)

    def script(self, value: torch.jit.ScriptModule, name: str, address: int) -> None:
        if any(p.requires_grad for p in value.parameters()):
            raise UncollectedTensorError(
                f"The {name or 'residual'} is a TorchScript module with parameters that require grad; it cannot be "
                "rebuilt around other tensors. Use the nn.Module it was made from."
            )
        self.scalars.append((Identity(value), value.training))
        for key, tensor in (*value.named_parameters(), *value.named_buffers()):
            self.apart(tensor, join(name, key))
        for part, module in value.named_modules():
            kept: Any = getattr(module, "_concrete_type", None)
            for key in () if kept is None else kept.get_attributes():
                entry = getattr(module, key, None)
                if not isinstance(entry, (Tensor, nn.Module)):
                    self.apart(entry, join(join(name, part), key))

    def foreign(self, value: Any, name: str, address: int) -> None:
        """An object of a library: itself, and the numbers and arrays that it shows; no further."""
        self.scalars.append(Identity(value))
        for key, entry in attributes_of(value).items():
            kind = type(entry)
            if kind in SCALARS or (isinstance(entry, np.ndarray) and entry.nbytes <= MOST_BYTES):
                self.scalars.append(key)
                self.visit(entry, join(name, key), 0)

    def opaque(self, value: Any, name: str, address: int) -> None:
        self.scalars.append(value_of(value, type(value)))

    def whole(self, value: type | types.ModuleType, name: str, address: int) -> None:
        self.holder(value, name, WHOLE)


Handler = Callable[[Walk, Any, str, int], None]
HANDLERS: dict[type, Handler] = {}
"""By type, found once: a walk asks for it at every object."""

KINDS: tuple[tuple[Any, Handler], ...] = (
    (Tensor, Walk.tensor),
    (types.FunctionType, Walk.function),
    (types.MethodType, Walk.method),
    ((types.BuiltinMethodType, types.MethodWrapperType), Walk.builtin),
    (functools.partial, Walk.partial),
    (torch.jit.ScriptModule, Walk.script),
    (nn.Module, Walk.module),
    (enum.Enum, Walk.member),
    ((dict, types.MappingProxyType), Walk.mapping),
    ((list, tuple), Walk.sequence),
)
MORE: tuple[tuple[Any, Handler], ...] = (
    ((set, frozenset), Walk.set),
    (np.ndarray, Walk.array),
    ((*BYTES, memoryview), Walk.bytes),
    (weakref.ref, Walk.reference),
    (contextvars.ContextVar, Walk.variable),
    (VIEWS, Walk.view),
    (functools.partialmethod, Walk.partial_method),
    (
        (
            *(functools._lru_cache_wrapper, functools.cached_property, functools.singledispatchmethod),
            *(property, staticmethod, classmethod),
        ),
        Walk.wrapper,
    ),
    (tuple(REDUCIBLE), Walk.reducible),
    ((type, types.ModuleType), Walk.whole),
)


def handler_of(value: Any, kind: type) -> Handler:
    """How objects of this type are looked into."""
    for kinds, handler in KINDS:
        if issubclass(kind, kinds):
            return handler
    if is_pytree_node(kind, value):
        return Walk.node
    for kinds, handler in MORE:
        if issubclass(kind, kinds):
            return handler
    if value_of(value, kind).__class__ is not Identity:
        return Walk.opaque
    looked_into = hasattr(value, "__dict__") or bool(slots_of(kind))
    if not looked_into:
        return Walk.opaque
    return Walk.foreign if is_library(kind) else Walk.object


def join(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute
