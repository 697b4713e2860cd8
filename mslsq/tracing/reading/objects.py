"""What a walk finds in objects: tensors, modules, containers, buffers, instances; and which kind is looked into how."""

import contextvars
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mslsq import pytree
from mslsq.private import (
    MODULE_INTERNALS,
    MODULE_TABLES,
    derived_attributes,
    is_wrapped,
    script_constants,
    version_of,
)
from mslsq.tracing.reading.exchange import UncollectedTensorError, is_kept, keeping, refusal
from mslsq.tracing.reading.functions import (
    REDUCIBLE,
    builtin,
    function,
    method,
    partial,
    partial_method,
    reducible,
    wrapper,
)
from mslsq.tracing.reading.origins import is_library
from mslsq.tracing.reading.reads import WHOLE
from mslsq.tracing.reading.substitution import VIEWS, is_pytree_node
from mslsq.tracing.reading.values import (
    BYTES,
    SCALARS,
    TENSORS,
    Identity,
    attributes_of,
    flat_value,
    joined,
    slots_of,
    tensor_value,
    value_of,
)

if TYPE_CHECKING:
    from mslsq.tracing.reading.reachable import Walk

ENUM_INTERNALS = {"_value_", "_name_", "__objclass__", "_sort_order_"}
FLAT_FROM = 8
"""Entries from which a list of plain numbers is compared as a whole."""
CONFIGURATIONS = ("omegaconf.dictconfig", "omegaconf.listconfig")
MOST_BYTES = 1_000_000
"""Size up to which arrays inside a library's object are compared: 1 ms."""


def tensor(walk: "Walk", value: Tensor, name: str, address: int) -> None:
    if walk.inside_global:
        if not value.requires_grad and not is_wrapped(value):
            walk.scalars.append((Identity(value), version_of(value), tensor_value(value)))
            if type(value) in TENSORS:
                _hung_onto(walk, value, name)
            return
        if not walk.inside_holder or is_wrapped(value):
            raise UncollectedTensorError(keeping(name) if is_kept(value) else refusal(name), name, value)
    if address in walk.names:  # one that a holder has and a closure too
        known = walk.names[address]
        walk.scalars.append(("tensor", list(walk.tensors).index(known)))
    else:
        known = walk.free_name(name or "tensor")
        walk.scalars.append(("tensor", len(walk.tensors)))
        walk.tensors[known] = value
        walk.names[address] = known
    if walk.inside_global:
        walk.held[known] = value


def module(walk: "Walk", value: nn.Module, name: str, address: int) -> None:
    """Its tensors are exchanged where they are used if it is a global, as those of a class are: a network at module
    level is called as it is, or by `torch.func.functional_call` with other parameters."""
    above, walk.inside_holder = walk.inside_holder, walk.inside_holder or walk.inside_global
    try:
        _module(walk, value, name, address)
    finally:
        walk.inside_holder = above


def _module(walk: "Walk", value: nn.Module, name: str, address: int) -> None:
    walk.scalars.append((type(value), value.training))
    attributes = value.__dict__
    internals = (*MODULE_INTERNALS, *derived_attributes(value))
    for table in MODULE_TABLES:
        for key, entry in attributes[table].items():
            walk.scalars.append(key)
            walk.visit(entry, joined(name, key), address)
    walk.attributes(
        [
            (key, entry)
            for key, entry in attributes.items()
            if key not in internals and not (isinstance(entry, dict) and not entry)
        ],
        name,
        address,
    )
    walk.holders.instance_of(type(value))


def instance(walk: "Walk", value: Any, name: str, address: int) -> None:
    if walk.full(value, name):
        return
    attributes = attributes_of(value)
    walk.scalars.append((type(value), len(attributes)))
    walk.depth += 1
    walk.attributes(attributes.items(), name, address)
    walk.depth -= 1
    walk.holders.instance_of(type(value))


def member(walk: "Walk", value: enum.Enum, name: str, address: int) -> None:
    """A member of an enum: what it stands for and what was hung onto it."""
    walk.scalars.append((type(value), value))
    more = {key: entry for key, entry in vars(value).items() if key not in ENUM_INTERNALS}
    walk.apart(value.value, joined(name, "value"))
    for key, entry in more.items():
        walk.apart(entry, joined(name, key))
    walk.holders.instance_of(type(value))


def _hung_onto(walk: "Walk", value: Any, name: str) -> None:
    """The attributes of a container, an array or a tensor, beside what it holds."""
    for key, entry in attributes_of(value).items():
        walk.scalars.append(key)
        walk.apart(entry, joined(name, key))


def mapping(walk: "Walk", value: dict[Any, Any] | types.MappingProxyType[Any, Any], name: str, address: int) -> None:
    if walk.full(value, name):
        return
    if type(value) is not dict:
        _hung_onto(walk, value, name)
    if len(value) >= FLAT_FROM:
        flat = flat_value(value if isinstance(value, dict) else dict(value))
        if flat is not None:
            walk.scalars.append(flat)
            return
    walk.scalars.append((type(value), len(value)))
    walk.depth += 1
    for key, entry in list(value.items()):
        if type(key) in SCALARS:
            walk.scalars.append(value_of(key, type(key)))
        else:
            walk.apart(key, f"{name}, key {key!r}" if not walk.shortcut else name)
        kind = type(entry)
        if walk.shortcut and kind in SCALARS:
            walk.scalars.append(value_of(entry, kind))
        else:
            walk.visit(entry, f"{name}[{key!r}]", address)
    walk.depth -= 1
    if type(value) is not dict:
        walk.holders.instance_of(type(value))


def view(walk: "Walk", value: Any, name: str, address: int) -> None:
    """`d.keys()`, `d.values()`, `d.items()` kept while `d` changes."""
    walk.scalars.append(type(value))
    if isinstance(value, VIEWS[0]):
        walk.apart(value.mapping, name)
    else:
        walk.visit(value.mapping, name, address)


def sequence(walk: "Walk", value: list[Any] | tuple[Any, ...], name: str, address: int) -> None:
    if walk.full(value, name):
        return
    if type(value) is not list and type(value) is not tuple:
        _hung_onto(walk, value, name)
    if len(value) >= FLAT_FROM:
        flat = flat_value(value)
        if flat is not None:
            walk.scalars.append(flat)
            return
    walk.scalars.append((type(value), len(value)))
    walk.depth += 1
    for place, entry in enumerate(value):
        kind = type(entry)
        if walk.shortcut and kind in SCALARS:
            walk.scalars.append(value_of(entry, kind))
        else:
            walk.visit(entry, f"{name}[{place}]", address)
    walk.depth -= 1


def node(walk: "Walk", value: Any, name: str, address: int) -> None:
    children, structure = pytree.flatten(value)
    walk.scalars.append((type(value), repr(structure)))
    for place, entry in enumerate(children):
        walk.visit(entry, name if len(children) == 1 else f"{name}[{place}]", address)


def unordered(walk: "Walk", value: set[Any] | frozenset[Any], name: str, address: int) -> None:
    if all(type(entry) in SCALARS for entry in value):
        walk.scalars.append(value_of(value, type(value)))
        return
    for entry in value:  # no order to name its tensors by
        walk.apart(entry, f"{name}, entry of a set")


def array(walk: "Walk", value: np.ndarray, name: str, address: int) -> None:
    if type(value) is not np.ndarray:
        _hung_onto(walk, value, name)
    if not value.dtype.hasobject:
        walk.scalars.append(value_of(value, type(value)))
        return
    walk.scalars.append((type(value), value.shape))
    walk.apart(value.ravel().tolist(), name)


def buffer(walk: "Walk", value: Any, name: str, address: int) -> None:
    if isinstance(value, memoryview):
        walk.scalars.append((memoryview, value.format, value.shape))
        value = bytearray(value)
    walk.scalars.append(value_of(value, type(value)))


def reference(walk: "Walk", value: weakref.ref[Any], name: str, address: int) -> None:
    walk.scalars.append(type(value))
    walk.apart(value(), name)


def variable(walk: "Walk", value: contextvars.ContextVar[Any], name: str, address: int) -> None:
    walk.scalars.append(Identity(value))
    walk.apart(value.get(None), f"{name} (context variable '{value.name}')")


def script(walk: "Walk", value: torch.jit.ScriptModule, name: str, address: int) -> None:
    if any(p.requires_grad for p in value.parameters()):
        raise UncollectedTensorError(
            f"The {name or 'residual'} is a TorchScript module with parameters that require grad; it cannot be "
            "rebuilt around other tensors. Use the nn.Module it was made from."
        )
    walk.scalars.append((Identity(value), value.training))
    for key, tensor in (*value.named_parameters(), *value.named_buffers()):
        walk.apart(tensor, joined(name, key))
    for part, module in value.named_modules():
        for key in script_constants(module):
            entry = getattr(module, key, None)
            if not isinstance(entry, (Tensor, nn.Module)):
                walk.apart(entry, joined(joined(name, part), key))


def foreign(walk: "Walk", value: Any, name: str, address: int) -> None:
    """An object of a library: itself, and the numbers and arrays that it shows; no further."""
    walk.scalars.append(Identity(value))
    for key, entry in attributes_of(value).items():
        kind = type(entry)
        if kind in SCALARS or (isinstance(entry, np.ndarray) and entry.nbytes <= MOST_BYTES):
            walk.scalars.append(key)
            walk.visit(entry, joined(name, key), 0)


def configuration(walk: "Walk", value: Any, name: str, address: int) -> None:
    """Of OmegaConf: what reading it gives, references to other entries and to the environment resolved."""
    content = resolved(value)
    walk.scalars.append(type(value) if content is not None else Identity(value))
    walk.apart(content, name)


def resolved(value: Any) -> Any:
    """The entries of a configuration in dicts and lists; None where one refers to what is not there."""
    try:
        return sys.modules["omegaconf"].OmegaConf.to_container(value, resolve=True)
    except Exception:
        return None


def opaque(walk: "Walk", value: Any, name: str, address: int) -> None:
    walk.scalars.append(value_of(value, type(value)))


def whole(walk: "Walk", value: type | types.ModuleType, name: str, address: int) -> None:
    walk.holder(value, name, WHOLE)


Handler = Callable[["Walk", Any, str, int], None]
HANDLERS: dict[type, Handler] = {}
"""By type, found once: a walk asks for it at every object."""

KINDS: tuple[tuple[Any, Handler], ...] = (
    (Tensor, tensor),
    (types.FunctionType, function),
    (types.MethodType, method),
    ((types.BuiltinMethodType, types.MethodWrapperType), builtin),
    (functools.partial, partial),
    (torch.jit.ScriptModule, script),
    (nn.Module, module),
    (enum.Enum, member),
    ((dict, types.MappingProxyType), mapping),
    ((list, tuple), sequence),
)
MORE: tuple[tuple[Any, Handler], ...] = (
    ((set, frozenset), unordered),
    (np.ndarray, array),
    ((*BYTES, memoryview), buffer),
    (weakref.ref, reference),
    (contextvars.ContextVar, variable),
    (VIEWS, view),
    (functools.partialmethod, partial_method),
    (
        (
            *(functools._lru_cache_wrapper, functools.cached_property, functools.singledispatchmethod),
            *(property, staticmethod, classmethod),
        ),
        wrapper,
    ),
    (tuple(REDUCIBLE), reducible),
    ((type, types.ModuleType), whole),
)


def _found(value: Any, kind: type) -> Handler:
    """How objects of this type are looked into."""
    if kind.__module__ in CONFIGURATIONS:
        return configuration
    for kinds, handler in KINDS:
        if issubclass(kind, kinds):
            return handler
    if is_pytree_node(kind, value):
        return node
    for kinds, handler in MORE:
        if issubclass(kind, kinds):
            return handler
    if value_of(value, kind).__class__ is not Identity:
        return opaque
    looked_into = hasattr(value, "__dict__") or bool(slots_of(kind))
    if not looked_into:
        return opaque
    return foreign if is_library(kind) else instance


def handler_of(value: Any, kind: type) -> Handler:
    """How objects of this type are looked into."""
    handler = HANDLERS.get(kind)
    if handler is None:
        if len(HANDLERS) > 4096:
            HANDLERS.clear()
        handler = HANDLERS[kind] = _found(value, kind)
    return handler
