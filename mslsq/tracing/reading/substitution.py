"""A copy of an object graph around other tensors, sharing everything that holds none of them.

Nothing is swapped in place (as `torch.func.functional_call` does): several threads may rebuild and call at once.
"""

import copy
import functools
import types
from typing import Any

from torch import Tensor, nn

from mslsq import pytree
from mslsq.private import MODULE_TABLES
from mslsq.tracing.reading.values import attributes_of

NODES: dict[type, bool] = {}
VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
"""What `keys`, `values` and `items` of a dict return."""


def is_pytree_node(kind: type, value: Any) -> bool:
    """Is this type registered as a pytree node (manifold elements, dataclasses)?"""
    known = NODES.get(kind)
    if known is None:
        leaves, _ = pytree.flatten(value)
        known = NODES[kind] = not (len(leaves) == 1 and leaves[0] is value)
    return known


class Substitution:
    """`Substitution(replaced, bearing)(root)` is the copy of `root`.

    `replaced` maps ids of tensors to new ones; `bearing` are the ids of the objects from which one can be reached:
    these are copied, once each.
    """

    def __init__(self, replaced: dict[int, Tensor], bearing: set[int]) -> None:
        self.done: dict[int, Any] = dict(replaced)
        self.bearing = bearing

    def __call__(self, value: Any) -> Any:
        address = id(value)
        if address in self.done:
            return self.done[address]
        if address not in self.bearing:
            return value
        # Mutable objects enter `done` before their contents do, so that cycles close.
        if isinstance(value, types.FunctionType):
            return self.function(value, address)
        if isinstance(value, types.MethodType):
            return types.MethodType(self(value.__func__), self(value.__self__))
        if isinstance(value, types.BuiltinMethodType):
            return getattr(self(value.__self__), value.__name__)
        if isinstance(value, functools.partial):
            keywords = {key: self(entry) for key, entry in value.keywords.items()}
            return type(value)(self(value.func), *(self(entry) for entry in value.args), **keywords)
        if isinstance(value, nn.Module):
            return self.module(value, address)
        if isinstance(value, dict):
            new = self.done[address] = copy.copy(value)
            for key, entry in value.items():
                new[key] = self(entry)
            return new
        if isinstance(value, types.MappingProxyType):
            return types.MappingProxyType({key: self(entry) for key, entry in value.items()})
        if isinstance(value, VIEWS):
            fresh = {key: self(entry) for key, entry in value.mapping.items()}
            return fresh.values() if isinstance(value, VIEWS[1]) else fresh.items()
        if isinstance(value, list):
            new = self.done[address] = copy.copy(value)
            new[:] = [self(entry) for entry in value]
            return new
        if isinstance(value, tuple):
            entries = [self(entry) for entry in value]
            new = type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
            getattr(new, "__dict__", {}).update(getattr(value, "__dict__", {}))
            return new
        if is_pytree_node(type(value), value):
            children, structure = pytree.flatten(value)
            return pytree.unflatten([self(child) for child in children], structure)
        return self.object(value, address)

    def function(self, value: types.FunctionType, address: int) -> types.FunctionType:
        pending: list[tuple[types.CellType, types.CellType]] = []
        cells = tuple(self.cell(cell, pending) for cell in value.__closure__ or ())
        new = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells or None)
        self.done[address] = new
        new.__qualname__, new.__module__, new.__doc__ = value.__qualname__, value.__module__, value.__doc__
        for old, fresh in pending:
            fresh.cell_contents = self(old.cell_contents)
        if value.__defaults__:
            new.__defaults__ = tuple(self(entry) for entry in value.__defaults__)
        if value.__kwdefaults__:
            new.__kwdefaults__ = {key: self(entry) for key, entry in value.__kwdefaults__.items()}
        new.__dict__.update({key: self(entry) for key, entry in value.__dict__.items() if key != "__wrapped__"})
        return new

    def cell(self, cell: types.CellType, pending: list[tuple[types.CellType, types.CellType]]) -> types.CellType:
        """A cell that several functions share stays shared; one that leads to no tensor stays the user's own."""
        if id(cell) in self.done:
            return self.done[id(cell)]
        try:
            content = cell.cell_contents
        except ValueError:  # still unbound
            return cell
        if id(content) not in self.bearing and id(content) not in self.done:
            return cell
        fresh = self.done[id(cell)] = types.CellType()
        pending.append((cell, fresh))
        return fresh

    def module(self, value: nn.Module, address: int) -> nn.Module:
        new = self.done[address] = object.__new__(type(value))
        own = new.__dict__
        own.update(value.__dict__)
        for table in MODULE_TABLES:
            own[table] = dict(own[table])
            self.exchange(own[table])
        self.exchange(own)
        return new

    def exchange(self, contents: dict[str, Any]) -> None:
        """Put copies in the place of what bears a tensor. A module has some thirty attributes, most of which bear none:
        to call this object for each of them took a tenth of a small solve."""
        done, bearing = self.done, self.bearing
        for key, entry in contents.items():
            if id(entry) in bearing or id(entry) in done:
                contents[key] = self(entry)

    def object(self, value: Any, address: int) -> Any:
        try:
            new = object.__new__(type(value))
        except TypeError:  # derived from a builtin
            new = copy.copy(value)
        self.done[address] = new
        for key, entry in attributes_of(value).items():
            object.__setattr__(new, key, self(entry))  # also where the class is frozen
        return new
