"""Which objects a function writes into through an index, and which contexts it enters: read from its instructions.

A residual may fill a tensor, a list or a dict that it has made itself: nothing of that is left behind. It is told by
how every value came about that a local variable is ever given. What is not understood counts as not made here.
"""

import dis
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Resolve = Callable[[str, tuple[str, ...]], Any]
"""What stands at the end of a chain of attributes of a global name; None where there is nothing."""

MAKERS = frozenset(
    getattr(torch, name)
    for name in (
        *("arange", "cat", "clone", "diag", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones"),
        *("ones_like", "stack", "tensor", "zeros", "zeros_like"),
    )
) | {dict, list}
"""What makes an object of its own in every call."""
COPIES = frozenset(("clone", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"))
"""Methods of tensors that do."""
DISPLAYS = frozenset(
    ("BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "LIST_EXTEND", "LIST_APPEND", "DICT_UPDATE", "UNARY_NEGATIVE")
)
LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
PAIRS = frozenset(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"))
ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
CALLS = frozenset(("CALL", "CALL_KW"))
WITHOUT_GRADIENT = frozenset((torch.no_grad, torch.enable_grad))
"""Contexts that change how a derivative is taken, and are undone at their end."""


@dataclass(frozen=True)
class Code:
    """The instructions of a function, with the height of its stack before each as if none of them jumped.

    That is right within a stretch of code that no jump leads into or out of, and used for such alone.
    """

    instructions: tuple[dis.Instruction, ...]
    heights: tuple[int, ...]

    @staticmethod
    def of(code: types.CodeType) -> "Code":
        found = tuple(i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP"))
        heights = [0]
        for instruction in found:
            argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
            heights.append(heights[-1] + dis.stack_effect(instruction.opcode, argument, jump=False))
        return Code(found, tuple(heights))

    def begin(self, place: int, depth: int) -> int | None:
        """Where the expression begins whose value lies that deep under the top of the stack, before an instruction;
        None where a jump is in between."""
        slot = self.heights[place] - 1 - depth
        for number in range(place - 1, -1, -1):
            if self.is_apart(number + 1):
                return None
            if self.heights[number] <= slot:
                return number
        return None

    def is_apart(self, place: int) -> bool:
        """Does control come to this instruction, or leave the one before it, by a jump?"""
        before = self.instructions[place - 1]
        return self.instructions[place].is_jump_target or before.opcode in dis.hasjrel or before.opcode in dis.hasjabs

    def called(self, place: int) -> tuple[str, str, tuple[str, ...]] | None:
        """What the call is of whose value this instruction finds on top of the stack: ("global", its name, attributes
        of it) or ("method", "", the name of it); None where it is not such a call, or not known."""
        if self.instructions[place - 1].opname not in CALLS:
            return None
        begin = self.begin(place, 0)
        if begin is None:
            return None
        first, base = begin, self.heights[begin]
        if self.instructions[first].opname == "PUSH_NULL":
            first += 1
        head, after = self.instructions[first], first + 1
        names: list[str] = []
        while self.instructions[after].opname in ATTRIBUTES:
            names.append(self.instructions[after].argval)
            after += 1
        returned = next((k for k in range(after, place) if self.heights[k + 1] <= base + 1 < self.heights[k]), None)
        if returned != place - 1:  # a method of the result, say
            return None
        if head.opname == "LOAD_GLOBAL":
            return "global", head.argval, tuple(names)
        return ("method", "", (names[0],)) if head.opname in LOADS and len(names) == 1 else None


def stays_inside(code: types.CodeType, resolve: Resolve) -> bool:
    """Does a function write through indices only into what it has made itself, and enter no contexts but those of
    `WITHOUT_GRADIENT`? So must functions that are nested in it."""
    nested = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    if not all(stays_inside(inner, resolve) for inner in nested):
        return False
    read = Code.of(code)
    names = [instruction.opname for instruction in read.instructions]
    entered = [place for place, name in enumerate(names) if name == "BEFORE_WITH"]
    if not len(entered) == names.count("WITH_EXCEPT_START") == names.count("PUSH_EXC_INFO"):
        return False  # a `try`
    for place in entered:
        called = read.called(place)
        if called is None or called[0] != "global" or resolve(*called[1:]) not in WITHOUT_GRADIENT:
            return False
    written = [_written(read, place) for place, name in enumerate(names) if name == "STORE_SUBSCR"]
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
    given = set(code.co_varnames[:arguments])
    return all(name and name not in given and _is_made_here(read, name, resolve) for name in dict.fromkeys(written))


def _written(read: Code, place: int) -> str:
    """The local variable whose object a STORE_SUBSCR writes into; empty where it is none."""
    begin = read.begin(place, 1)
    if begin is None:
        return ""
    instruction, slot = read.instructions[begin], read.heights[place] - 2 - read.heights[begin]
    if instruction.opname in PAIRS:
        return str(instruction.argval[slot])
    return instruction.argval if instruction.opname in LOADS and slot == 0 else ""


def _is_made_here(read: Code, name: str, resolve: Resolve) -> bool:
    """Is every object that a local variable is given made in this very call?"""
    for place, instruction in enumerate(read.instructions):
        if not instruction.opname.startswith("STORE_FAST"):
            continue
        if instruction.opname == "STORE_FAST":
            is_stored = instruction.argval == name
        else:  # two variables at once
            is_stored = name in instruction.argval
            if is_stored and (instruction.opname != "STORE_FAST_LOAD_FAST" or instruction.argval[0] != name):
                return False
        if is_stored and (read.is_apart(place) or not _makes(read, place, resolve)):
            return False
    return True


def _is_itself(read: Code, begin: int, place: int) -> bool:
    """Is it the variable that is stored to that is loaded first, as in `x += 1`?"""
    loaded, stored = read.instructions[begin], read.instructions[place]
    return loaded.opname in LOADS and stored.opname == "STORE_FAST" and loaded.argval == stored.argval


def _makes(read: Code, place: int, resolve: Resolve) -> bool:
    """Is the object on top of the stack a new one?"""
    last = read.instructions[place - 1]
    if last.opname in DISPLAYS:
        return True
    if last.opname == "BINARY_OP":
        begin = read.begin(place - 1, 1) if last.argrepr.endswith("=") else place
        return begin == place or (begin is not None and _is_itself(read, begin, place))
    called = read.called(place)
    if called is None:
        return False
    if called[0] == "method":
        return called[2][0] in COPIES
    made = resolve(*called[1:])
    return made.__hash__ is not None and made in MAKERS
