"""Closed code: all that it can read is compared in every call, so what was recorded of it cannot go stale unseen.

A walk (`reachable`) compares what it finds. Here it is looked whether there is more to be found: an object that does
not show its state, an import, a file, the environment, a name in a string, a function of a library that is more than
operations on its arguments. What is not known to be harmless is taken for a reason to say no; that costs time, not
numbers. Random numbers and values of tensors need no look: what reads those is never recorded (`tracing.guard`).
"""

import builtins
import dis
import functools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mslsq.private import OPERATORS_IN_C, function_modes_are_active
from mslsq.tracing.reading import functions, instructions, objects
from mslsq.tracing.reading.exchange import UncollectedTensorError
from mslsq.tracing.reading.inputs import Collected
from mslsq.tracing.reading.origins import LIBRARY, USERS, is_own, origin_of, origin_of_holder
from mslsq.tracing.reading.reachable import Walk
from mslsq.tracing.reading.reads import Chains, reads_of
from mslsq.tracing.reading.values import SCALARS, Identity, is_compared, value_of

ABSENT = object()

HARMLESS = frozenset(
    (
        *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "int"),
        *("isinstance", "len", "list", "map", "max", "min", "pow", "range", "repr", "reversed", "round", "set"),
        *("slice", "sorted", "str", "sum", "super", "tuple", "zip"),
    )
)
"""Built-in functions of their arguments. Exceptions are harmless, too: a residual that raises is no answer."""

FLAGS = frozenset(
    (
        *("backward", "data", "data_ptr", "grad", "grad_fn", "is_inference", "is_leaf", "is_pinned", "item", "names"),
        *("numpy", "output_nr", "record_stream", "register_hook", "requires_grad", "retain_grad", "retains_grad"),
        *("storage", "tolist", "untyped_storage"),
    )
)
"""What a tensor tells of how it was made and not of its numbers; or its numbers to Python."""

NAMESPACES = OPERATORS_IN_C | {"math", "_operator"}
PYTHON = frozenset(("torch.functional", "torch.nn.functional"))
"""Where functions of their arguments alone are defined: in C, and in Python."""

OF_MEMORY = frozenset(("from_file", "frombuffer"))
"""Operators that read what is neither an argument nor a constant."""

TYPES = (Tensor, torch.Size, torch.finfo, torch.iinfo, *(int, float, bool, str, tuple, list, dict, type(None)))
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class OpenError(Exception):
    """Code may read what no walk compares; says what."""


@dataclass(frozen=True, eq=False)
class Closed:
    """Code that reads nothing but what a walk compares, and names of libraries, which are compared here."""

    _lookups: tuple[tuple[Callable[..., Any], str, Any], ...]
    """Per name what looks it up, and what stood there."""

    @staticmethod
    def of(collected: Collected, kinds: Iterable[type]) -> "Closed | None":
        """Of what was collected of a callable or module; None where it may read something else.

        Args:
            kinds: the library's own types whose methods it may call.
        """
        try:
            walk = ClosedWalk(collected.root, collected.methods)
        except (OpenError, UncollectedTensorError):
            return None
        if walk.too_large or tuple(walk.scalars) != collected.scalars:
            return None
        names = sorted(walk.attributes_of_any)
        methods = [(vars(kind).get, name) for kind in (Tensor, *kinds) for name in names]
        return Closed((*walk.lookups, *[(get, name, get(name, ABSENT)) for get, name in methods]))

    @property
    def holds(self) -> bool:
        """Do all names of libraries still stand for the same, and are its functions called as they are?"""
        if function_modes_are_active():
            return False
        return all(get(name, ABSENT) is value for get, name, value in self._lookups)


class ClosedWalk(Walk):
    """The walk that raises OpenError at the first thing that it cannot compare."""

    def __init__(self, root: Any, methods: tuple[str, ...]) -> None:
        self.lookups: list[tuple[Callable[..., Any], str, Any]] = []
        self.attributes_of_any: set[str] = set()
        super().__init__(root, methods)

    def visit(self, value: Any, name: str, parent: int) -> None:
        kind = type(value)
        if kind not in SCALARS and kind is not Identity:
            self._look(value, kind)
        super().visit(value, name, parent)

    def holder(self, value: type | types.ModuleType, name: str, chains: Chains) -> None:
        origin = origin_of_holder(value)
        is_open = isinstance(value, type) and origin == LIBRARY and not _is_harmless(value)
        if is_open or origin not in (LIBRARY, USERS):
            raise OpenError(name)
        super().holder(value, name, chains)

    def _look(self, value: Any, kind: type) -> None:
        """OpenError where the walk does not see all that this is made of."""
        handler = objects.HANDLERS.get(kind) or objects.handler_of(value, kind)
        if handler is objects.tensor:
            is_open = self.inside_global and not value.requires_grad and not is_compared(value)
        elif handler is functions.function:
            is_open = False
            self._look_into(value)
        elif handler in (functions.builtin, objects.whole):
            is_open = not _is_harmless(value)
        elif handler is objects.module:
            is_open = not is_own(kind.__module__) and not _is_users(kind) and kind not in CONTAINERS
            is_open = is_open or bool(value._forward_hooks or value._forward_pre_hooks or value._backward_hooks)
        elif handler is objects.array:
            is_open = value.dtype.hasobject
        elif handler is objects.opaque:
            is_open = isinstance(value_of(value, kind), Identity)
        else:
            is_open = handler not in (
                *(objects.instance, objects.mapping, objects.sequence, objects.node, objects.unordered),
                *(objects.view, functions.method, functions.partial, functions.wrapper),
            )
            is_open = is_open or isinstance(value, functools._lru_cache_wrapper)
        if is_open:
            raise OpenError(kind.__name__)

    def _look_into(self, value: types.FunctionType) -> None:
        """OpenError where the code of a function reads what the walk does not follow."""
        module = value.__globals__.get("__name__", "")
        origin = origin_of(module) if isinstance(module, str) else ""
        if origin == LIBRARY:
            if not is_own(module) and not _is_harmless(value):
                raise OpenError(value.__name__)
            return
        code, reads = value.__code__, reads_of(value.__code__)
        if origin != USERS or reads.strings or reads.imports or reads.environ or reads.table:
            raise OpenError(value.__name__)
        loose = _loose_attributes(code)
        if loose is None:
            raise OpenError(value.__name__)
        self.attributes_of_any |= loose
        for name, chains in reads.globals.items():
            for chain in chains:
                self._resolve(value.__globals__, name, chain)
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
            raise OpenError(name)
        self.lookups += [(table.get, name, ABSENT), (vars(builtins).get, name, value)]

    def _follow(self, value: Any, chain: tuple[str, ...]) -> None:
        """The thing of a library at the end of a chain of attributes, if there is one: it must be harmless."""
        rest, is_of_library = list(chain), False
        while isinstance(value, types.ModuleType) and rest:
            is_of_library = is_of_library or origin_of_holder(value) != USERS
            attribute, inside = rest.pop(0), vars(value)
            value = inside.get(attribute, ABSENT)
            if value is ABSENT:
                raise OpenError(attribute)
            self.lookups.append((inside.get, attribute, value))
        is_of_library = is_of_library or isinstance(value, types.ModuleType) or _is_of_library(value)
        if is_of_library and type(value) not in SCALARS and not _is_harmless(value):
            raise OpenError(".".join(chain))
        if rest:
            _check_names(rest)
            self.attributes_of_any.update(rest)


def _is_of_library(value: Any) -> bool:
    """Is it a class or a function, and a library's?"""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return origin_of(getattr(value, "__module__", None) or "builtins") != USERS


def _is_users(kind: type) -> bool:
    return origin_of(kind.__module__ or "") == USERS


def _is_harmless(value: Any) -> bool:
    """Is this thing of a library a function of its arguments alone, or a type that holds nothing else?"""
    if isinstance(value, type):
        return value in TYPES or value.__module__.startswith("mslsq.manifolds.") or _is_users(value)
    module = getattr(value, "__module__", None) or ""
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        if value.__name__ in OF_MEMORY:
            return False
        if module == "torch":
            return owner is None or isinstance(owner, type)  # an operator; the others are the interpreter's state
        return module in NAMESPACES and (owner is None or isinstance(owner, types.ModuleType))
    if isinstance(value, types.FunctionType):
        return module in PYTHON or module.partition(".")[0] == "einops" or module.startswith("mslsq.manifolds.")
    return False


@functools.lru_cache(maxsize=1024)
def _loose_attributes(code: types.CodeType) -> frozenset[str] | None:
    """The names that code reads of objects that it does not name, such as its arguments; None where it does what may
    leave something behind, or read what is not compared."""
    found: set[str] = set()
    is_named = False
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        if operation in ("CACHE", "EXTENDED_ARG", "NOP"):
            continue
        if operation not in instructions.HARMLESS:
            return None
        if operation == "STORE_DEREF" and instruction.argval in code.co_freevars:
            return None
        if operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            if not is_named:
                found.add(instruction.argval)
            continue
        is_free = operation == "LOAD_DEREF" and instruction.argval in code.co_freevars
        is_named = operation == "LOAD_GLOBAL" or is_free
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            nested = _loose_attributes(constant)
            if nested is None:
                return None
            found |= nested
    try:
        _check_names(found)
    except OpenError:
        return None
    return frozenset(found)


def _check_names(names: Iterable[str]) -> None:
    """OpenError where an attribute of a tensor is among them that is more than a function of its numbers."""
    for name in names:
        is_inside = name.startswith("_") and hasattr(Tensor, name)
        writes = name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name)
        if is_inside or writes or name in FLAGS:
            raise OpenError(name)
