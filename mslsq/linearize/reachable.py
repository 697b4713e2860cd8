"""The walk over everything a callable reaches: its tensors by name, its Python values in order.

Where objects lead to is a matter of Python, not of mathematics, so all of its cases stand here: closures, partials,
methods, modules, containers, slots, globals.
"""

import enum
import functools
import types
from typing import Any

import torch
from torch import Tensor, nn

from mslsq import pytree
from mslsq.linearize.substitution import is_pytree_node
from mslsq.linearize.values import (
    SCALARS,
    Identity,
    attributes_of,
    is_library,
    is_wrapped,
    members_of,
    names_in,
    slots_of,
    value_of,
)

# What nn.Module keeps beside the user's attributes, in torch 2.9 to 2.13.
MODULE_TABLES = {"_parameters", "_buffers", "_modules"}
# Called without their name standing in the code.
OPERATORS = {
    f"__{name}__" for name in ("call", "getitem", "iter", "next", "len", "contains", "bool", "getattr", "neg")
} | {f"__{prefix}{name}__" for prefix in ("", "r") for name in ("add", "sub", "mul", "truediv", "matmul", "pow")}
MODULE_INTERNALS = MODULE_TABLES | {"training", "_non_persistent_buffers_set", "_is_full_backward_hook"}


class UncollectedTensorError(ValueError):
    """A residual uses a tensor that carries derivatives but cannot be made an input, such as a global variable."""


class Walk:
    """One pass over the objects reachable from a callable. `parents` are the edges backwards, for `rebuild`."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self.used = set(methods)  # names of attributes that the code met so far asks for
        self.classes: dict[type, None] = {}
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self.parents: dict[int, list[int]] = {}
        self.scalars: list[Any] = []
        self.codes: list[types.CodeType] = []
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no id is given out twice during the walk
        self.inside_global = False

    def visit(self, value: Any, name: str, parent: int) -> None:
        kind = type(value)
        if kind in SCALARS or isinstance(value, enum.Enum):
            self.scalars.append(value_of(value, kind))
            return
        address = id(value)
        self.parents.setdefault(address, []).append(parent)
        met = -address if self.inside_global else address  # what a global holds may be reached by a closure too
        if met in self.seen:
            self.scalars.append(("again", self.seen[met]))
            return
        self.seen[met] = len(self.seen)
        self.alive.append(value)
        if isinstance(value, Tensor):
            self.tensor(value, name, address)
        elif kind is types.FunctionType:
            self.function(value, name, address)
        elif kind is types.MethodType:
            self.visit(value.__func__, name, address)
            self.visit(value.__self__, join(name, "self"), address)
        elif kind is types.BuiltinMethodType and isinstance(value.__self__, Tensor):
            self.scalars.append(value.__name__)
            self.visit(value.__self__, join(name, "self"), address)
        elif isinstance(value, functools.partial):
            self.partial(value, name, address)
        elif isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            self.module(value, name, address)
        elif isinstance(value, dict):
            self.scalars.append((kind, len(value)))
            for key, entry in value.items():
                self.scalars.append(value_of(key, type(key)))
                self.visit(entry, f"{name}[{key!r}]", address)
        elif isinstance(value, (list, tuple)):
            self.scalars.append((kind, len(value)))
            for place, entry in enumerate(value):
                self.visit(entry, f"{name}[{place}]", address)
        elif is_pytree_node(kind, value):
            children, structure = pytree.flatten(value)
            self.scalars.append((kind, repr(structure)))
            for place, entry in enumerate(children):
                self.visit(entry, name if len(children) == 1 else f"{name}[{place}]", address)
        elif is_walkable(value, kind):
            self.object(value, name, address)
        else:
            self.opaque(value, name, kind)

    def tensor(self, value: Tensor, name: str, address: int) -> None:
        if self.inside_global:
            if value.requires_grad or is_wrapped(value):
                raise UncollectedTensorError(
                    f"The residual uses the {name}, a tensor that requires grad or is being transformed. It cannot "
                    "become an input of the solve from there and would lose its derivative: pass it in args (or as "
                    "data of the cost), or hold it in a closure, a list or a module."
                )
            self.scalars.append((Identity(value), 0 if value.is_inference() else value._version))
            return
        name = name or "tensor"
        if name in self.tensors:
            name = next(f"{name} ({n})" for n in range(2, len(self.tensors) + 3) if f"{name} ({n})" not in self.tensors)
        self.scalars.append(("tensor", len(self.tensors)))
        self.tensors[name] = value
        self.names[address] = name

    def function(self, value: types.FunctionType, name: str, address: int) -> None:
        code = value.__code__
        self.codes.append(code)
        names, attributes = names_in(code)
        self.used |= attributes
        inside = f"{name}, " if name else ""
        if value.__closure__:
            for free, cell in zip(code.co_freevars, value.__closure__, strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:  # still unbound
                    continue
                self.visit(content, f"{inside}closure cell '{free}'", address)
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
        if names:
            self.globals(value.__globals__, names)

    def globals(self, table: dict[str, Any], names: tuple[str, ...]) -> None:
        """Globals cannot be substituted: values count, tensors by identity and version; with derivatives they raise."""
        module = table.get("__name__", "")
        if is_library(module) or module.startswith("mslsq."):
            return
        outer, self.inside_global = self.inside_global, True
        try:
            for name in names:
                if name in table:
                    value = table[name]
                    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
                        self.scalars.append(value)
                    else:
                        self.visit(value, f"global '{name}'", 0)
        finally:
            self.inside_global = outer

    def partial(self, value: functools.partial[Any], name: str, address: int) -> None:
        inside = f"{name}, " if name else ""
        self.scalars.append((len(value.args), tuple(value.keywords)))
        self.visit(value.func, name, address)
        for place, entry in enumerate(value.args):
            self.visit(entry, f"{inside}partial argument {place}", address)
        for keyword, entry in value.keywords.items():
            self.visit(entry, f"{inside}partial argument '{keyword}'", address)

    def module(self, value: nn.Module, name: str, address: int) -> None:
        self.scalars.append((type(value), value.training))
        attributes = value.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            for key, entry in attributes[table].items():
                self.scalars.append(key)
                self.visit(entry, join(name, key), address)
        for key, entry in attributes.items():
            if key in MODULE_INTERNALS or (isinstance(entry, dict) and not entry):
                continue
            self.scalars.append(key)
            self.visit(entry, join(name, key), address)
        self.classes[type(value)] = None

    def object(self, value: Any, name: str, address: int) -> None:
        attributes = attributes_of(value)
        self.scalars.append((type(value), len(attributes)))
        for key, entry in attributes.items():
            self.scalars.append(key)
            self.visit(entry, join(name, key), address)
        self.classes[type(value)] = None

    def members(self) -> None:
        """Methods and class attributes that the code asks for by name, and the ones those ask for in turn.

        Only these: another method of the same class may well use a global network that is being trained.
        """
        met: set[tuple[type, str]] = set()
        self.inside_global = True
        while True:
            wanted = [
                (kind, key, owner, function)
                for kind in list(self.classes)
                for key, (owner, function) in members_of(kind).items()
                if (kind, key) not in met and (key in self.used or key in OPERATORS)
            ]
            if not wanted:
                return
            for kind, key, owner, function in wanted:
                met.add((kind, key))
                label = "class attribute" if function is None else "method"
                content = vars(owner)[key] if function is None else function
                self.visit(content, f"{label} '{owner.__name__}.{key}'", 0)

    def opaque(self, value: Any, name: str, kind: type) -> None:
        if isinstance(value, torch.jit.ScriptModule) and any(p.requires_grad for p in value.parameters()):
            raise UncollectedTensorError(
                f"The {name or 'residual'} is a TorchScript module with parameters that require grad; it cannot be "
                "rebuilt around other tensors. Use the nn.Module it was made from."
            )
        if isinstance(value, (set, frozenset)) and not all(
            type(entry) in SCALARS for entry in value
        ):  # no order to name its tensors by
            outer, self.inside_global = self.inside_global, True
            for entry in value:
                self.visit(entry, f"{name}, entry of a set", 0)
            self.inside_global = outer
            return
        self.scalars.append(value_of(value, kind))


def join(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute


def is_walkable(value: Any, kind: type) -> bool:
    """Is this an object of the user's (or of mslsq's) whose attributes count, rather than the object as a whole?"""
    if is_library(kind) or isinstance(value, (type, types.ModuleType)):
        return False
    return hasattr(value, "__dict__") or bool(slots_of(kind))
