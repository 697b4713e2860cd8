"""What the code reads of classes and of imported modules: the attributes that it names, by value, and nothing else.

A module is too large to compare at every call, and most of it is of no concern: another method of a class, another
function of a module may well use a network that is being trained.
"""

import functools
import importlib.util
import itertools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from mslsq.tracing.reading.origins import INSTALLED, LIBRARY, origin_of_holder, owners_of
from mslsq.tracing.reading.reads import WHOLE, Chains, Reads

if TYPE_CHECKING:
    from mslsq.tracing.reading.reachable import Walk

# Called without their name standing in the code.
OPERATORS = {
    f"__{name}__"
    for name in (
        *(
            "call",
            "getitem",
            "setitem",
            "iter",
            "next",
            "len",
            "contains",
            "bool",
            "getattr",
            "getattribute",
            "missing",
            "get",
        ),
        *(
            "neg",
            "pos",
            "abs",
            "invert",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "float",
            "int",
            "index",
            "complex",
            "array",
        ),
        *("enter", "exit", "torch_function", "reversed", "hash", "array_ufunc", "array_function"),
    )
} | {
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "pow", "and", "or", "xor")
}
FUNCTION_METHODS = {"forward", "backward", "jvp", "vjp", "vmap", "setup_context"}
CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
DICTIONARIES = {"__dict__", "__class__", "__bases__", "__mro__"}
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
ABSENT = "absent"


class Holders:
    """The classes and modules that a walk meets, and what it follows of them."""

    def __init__(self, walk: "Walk") -> None:
        self.walk = walk
        self.classes: dict[type, bool] = {}  # whether it may be called, and so construct
        self.modules: dict[types.ModuleType, None] = {}
        self.uses_super = False
        self.met: set[tuple[int, str]] = set()
        self.scanned: dict[type, tuple[int, bool, bool]] = {}

    def instance_of(self, kind: type) -> None:
        """Methods and attributes of the class of an object are read through the object."""
        if kind not in self.classes and owners_of(kind):
            self.classes[kind] = False

    def reached(self, holder: type | types.ModuleType, chains: Chains) -> None:
        """A class or a module that the code reaches, and what it reads of it where that is known."""
        self.walk.scalars.append(holder)
        origin = origin_of_holder(holder)
        if origin == LIBRARY:
            return
        if isinstance(holder, type) and issubclass(holder, torch.autograd.Function):
            self.walk.used |= FUNCTION_METHODS
        for chain in chains:
            self.follow(holder, chain)
            if origin == INSTALLED and chain == ():
                continue  # a library as a whole: what it does with its own is not looked into
            if chain == () or not DICTIONARIES.isdisjoint(chain):
                self.whole(holder)

    def whole(self, holder: type | types.ModuleType) -> None:
        """It is kept, passed on or called: whatever the code reads of anything may be read of it."""
        if isinstance(holder, types.ModuleType):
            self.modules[holder] = None
            return
        self.classes[holder] = True
        if type(holder) is not type:
            self.instance_of(type(holder))

    def follow(self, holder: type | types.ModuleType, chain: tuple[str, ...]) -> None:
        """The object at the end of a chain of attributes, or the first on the way that is no class and no module."""
        for place, attribute in enumerate(chain):
            found = named(holder, attribute)
            if found is None:
                fallback = vars(holder).get("__getattr__") if isinstance(holder, types.ModuleType) else None
                self.walk.scalars.append(ABSENT)
                if fallback is not None:
                    self.walk.apart(fallback, label(holder, "__getattr__"))
                return
            owner, content = found
            if isinstance(content, (type, types.ModuleType)):
                if origin_of_holder(content) == LIBRARY:
                    self.walk.scalars.append(content)
                    return
                holder = content
                if place == len(chain) - 1:
                    self.walk.scalars.append(holder)
                    self.whole(holder)
                continue
            self.member(owner, attribute, content)
            if isinstance(holder, type) and isinstance(content, (types.FunctionType, classmethod)):
                self.classes.setdefault(holder, False)  # its code sees the class as `cls`, or an instance as `self`
            return

    def member(self, owner: type | types.ModuleType, attribute: str, content: Any) -> None:
        """What a class or module holds under a name. Once only: a name may be asked for in many places."""
        if (id(owner), attribute) in self.met:
            return
        self.met.add((id(owner), attribute))
        if isinstance(owner, type):
            content = unwrapped(content)
            if isinstance(content, SLOTS):
                return
        self.walk.apart(content, label(owner, attribute), held=True)

    def rest(self) -> None:
        """Of the classes of objects, and of classes and modules used as a whole: everything the code has a name for,
        and what that asks for in turn."""
        while True:
            before = self.size()
            for kind, constructs in list(self.classes.items()):
                self.members_of(kind, constructs)
            for module in list(self.modules):
                for attribute, content in list(vars(module).items()):
                    if attribute in self.walk.used:
                        self.member(module, attribute, content)
            if self.size() == before:
                return

    def size(self) -> tuple[int, ...]:
        return len(self.walk.used), len(self.classes), len(self.modules), sum(self.classes.values()), self.uses_super

    def members_of(self, kind: type, constructs: bool) -> None:
        used, taken, owners = self.walk.used, set(), owners_of(kind)
        state = (len(used), constructs, self.uses_super)
        if self.scanned.get(kind) == state:
            return
        self.scanned[kind] = state
        for owner in owners:
            for attribute, content in list(vars(owner).items()):
                wanted = attribute in used or attribute in OPERATORS
                if not wanted and not (constructs and attribute in CONSTRUCTORS):
                    continue
                if len(owners) > 1:
                    if attribute in taken and not self.uses_super:
                        continue
                    taken.add(attribute)
                if attribute[:2] == "__" and not isinstance(content, (types.FunctionType, classmethod, staticmethod)):
                    continue  # `__module__`, `__hash__ = None`, tables of dataclasses
                self.member(owner, attribute, content)

    def imported(self, reads: Reads, package: str) -> None:
        """Modules that a function imports when it runs."""
        for name, level in reads.imports:
            try:
                full = importlib.util.resolve_name("." * level + name, package) if level else name
            except ImportError:
                continue
            for module in (sys.modules.get(full), sys.modules.get(full.partition(".")[0])):
                if module is not None and origin_of_holder(module) not in (LIBRARY, INSTALLED):
                    self.reached(module, WHOLE)


def named(holder: type | types.ModuleType, attribute: str) -> tuple[type | types.ModuleType, Any] | None:
    """(the class or module that has it, what stands there), without running a descriptor."""
    if isinstance(holder, types.ModuleType):
        return (holder, vars(holder)[attribute]) if attribute in vars(holder) else None
    members = vars(holder).get("_member_map_")
    if members is not None and attribute in members:  # of an enum
        return holder, members[attribute]
    for owner in itertools.chain(holder.__mro__, type(holder).mro(type(holder))):
        if attribute in vars(owner):
            return owner, vars(owner)[attribute]
    return None


def unwrapped(content: Any) -> Any:
    """The function behind what makes a method of it."""
    if isinstance(content, (staticmethod, classmethod)):
        return content.__func__
    if isinstance(content, property):
        return content.fget
    if isinstance(content, functools.cached_property):
        return content.func
    if isinstance(content, functools.singledispatchmethod):
        return content.dispatcher
    return content


def label(owner: type | types.ModuleType, attribute: str) -> str:
    """The place of an attribute in words."""
    kind = "class" if isinstance(owner, type) else "module"
    return f"attribute '{attribute}' of {kind} '{owner.__name__}'"
