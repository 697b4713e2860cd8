"""Scalar programs: every number that a function computes, each once, as a list in which operands come first.

A node is an operation (`operations`) of earlier nodes, a constant, an entry of an input tensor, a lookup in one at an
index that is computed, or a table of earlier nodes, of which the operation "pick" reads an entry. Equal nodes are one
node, and what is known beforehand is folded, by rules that no NaN and no infinity can tell from the operation itself
(`folding`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from mslsq.native import folding
from mslsq.native.operations import OPERATIONS

Kind = Literal["real", "integer", "boolean"]

LARGEST = 5_000
"""Operations of a program that is compiled. The compiler takes a second for a thousand, and a processor's caches hold
the code of some thousands."""

LARGEST_RECORDED = 6 * LARGEST
"""Nodes at which recording and differentiating are given up: not all of them are needed in the end."""


class NotScalarError(Exception):
    """A function cannot be written as a program of scalars; the text names the operation, as an end of a sentence."""


class Node(NamedTuple):
    """One number of a program."""

    operation: str
    """A key of `OPERATIONS`, or "constant", "input", "lookup", "table"."""
    operands: tuple[int, ...]
    kind: Kind
    detail: tuple[Any, ...] = ()
    """Of a constant its value, of an input its tensor and the entry, of a lookup its tensor; of a table of constants
    these."""

    @property
    def value(self) -> float | int | bool | None:
        """Of a constant its value; None of what is computed or given."""
        return self.detail[0] if self.operation == "constant" else None


class Scalar:
    """A node of a program, with the operators of arithmetic."""

    __slots__ = ("number", "program")

    def __init__(self, program: "Program", number: int):
        self.program, self.number = program, number

    @property
    def kind(self) -> Kind:
        return self.program.nodes[self.number].kind

    @property
    def value(self) -> float | int | bool | None:
        """Of a constant its value; None of what is computed or given."""
        return self.program.nodes[self.number].value

    def apply(self, operation: str, *others: "Scalar | float") -> "Scalar":
        """The operation of this scalar and others; Python numbers become constants of this scalar's kind."""
        program = self.program
        numbers = [other.number if isinstance(other, Scalar) else self.like(other).number for other in others]
        return Scalar(program, program.make(operation, self.number, *numbers))

    def like(self, value: float) -> "Scalar":
        """A constant of this scalar's kind."""
        return self.program.constant(value, self.kind)

    def __add__(self, other: "Scalar | float") -> "Scalar":
        return self.apply("add", other)

    def __sub__(self, other: "Scalar | float") -> "Scalar":
        return self.apply("sub", other)

    def __mul__(self, other: "Scalar | float") -> "Scalar":
        return self.apply("mul", other)

    def __truediv__(self, other: "Scalar | float") -> "Scalar":
        return self.apply("div", other)

    def __radd__(self, other: float) -> "Scalar":
        return self.like(other) + self

    def __rsub__(self, other: float) -> "Scalar":
        return self.like(other) - self

    def __rmul__(self, other: float) -> "Scalar":
        return self.like(other) * self

    def __rtruediv__(self, other: float) -> "Scalar":
        return self.like(other) / self

    def __neg__(self) -> "Scalar":
        return self.apply("neg")

    def is_equal(self, other: "Scalar | float") -> "Scalar":
        return self.apply("eq", other)

    def differs(self, other: "Scalar | float") -> "Scalar":
        return self.apply("ne", other)

    def is_below(self, other: "Scalar | float") -> "Scalar":
        return self.apply("lt", other)

    def is_above(self, other: "Scalar | float") -> "Scalar":
        other = other if isinstance(other, Scalar) else self.like(other)
        return other.apply("lt", self)

    def is_at_most(self, other: "Scalar | float") -> "Scalar":
        return self.apply("le", other)

    def is_at_least(self, other: "Scalar | float") -> "Scalar":
        other = other if isinstance(other, Scalar) else self.like(other)
        return other.apply("le", self)

    def choose(self, yes: "Scalar | float", no: "Scalar | float") -> "Scalar":
        """Where this boolean holds `yes`, elsewhere `no`; of Python numbers real ones."""
        program = self.program
        kinds: list[Kind] = [part.kind for part in (yes, no) if isinstance(part, Scalar)]
        like: Kind = kinds[0] if kinds else "real"
        parts = [part if isinstance(part, Scalar) else program.constant(part, like) for part in (yes, no)]
        return self.apply("select", *parts)


class Program:
    """The nodes of one or several functions of the same inputs.

    Args:
        dtype: of the real numbers, float64 or float32. Integers are of 64 bits.
    """

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.nodes: list[Node] = []
        self.are_finite = False
        """May 0 · x be folded to 0? Only where nothing is infinite or NaN that matters."""
        self.looks_up_integers = False
        """Is there a lookup of integers, which may be outside?"""
        self._known: dict[Any, int] = {}

    def copy(self) -> "Program":
        """The same nodes, by the same numbers, to go on from in another way."""
        program = Program(self.dtype)
        program.nodes, program._known = list(self.nodes), dict(self._known)
        program.looks_up_integers = self.looks_up_integers
        return program

    def constant(self, value: float, kind: Kind) -> Scalar:
        """A number, rounded to the program's dtype where it is real."""
        if kind == "real":
            value = (
                float(torch.tensor(float(value), dtype=self.dtype, device="cpu"))
                if self.dtype != torch.float64
                else float(value)
            )
            key: Any = np.float64(value).tobytes() if value == value else "nan"
        else:
            value = key = bool(value) if kind == "boolean" else int(value)
        return Scalar(self, self._once(Node("constant", (), kind, (value,)), ("constant", kind, key)))

    def input(self, tensor: int, entry: int, kind: Kind) -> Scalar:
        """Entry number `entry` (row by row) of input tensor number `tensor`."""
        return Scalar(self, self._once(Node("input", (), kind, (tensor, entry))))

    def lookup(self, tensor: int, entry: Scalar, kind: Kind) -> Scalar:
        """The entry of an input tensor at a computed place; NaN, or the least integer, where that is negative."""
        self.looks_up_integers |= kind == "integer"
        return Scalar(self, self._once(Node("lookup", (entry.number,), kind, (tensor,))))

    def table(self, entries: Sequence[Scalar]) -> Scalar:
        """Scalars of one kind in memory, to `pick` from. It is no number."""
        kind = entries[0].kind
        if any(entry.value is None for entry in entries):
            return Scalar(self, self._once(Node("table", tuple(entry.number for entry in entries), kind)))
        values = tuple(entry.value for entry in entries)
        return Scalar(self, self._once(Node("table", (), kind, values), ("table", kind, np.array(values).tobytes())))

    def entries_of(self, table: int) -> list[Scalar]:
        """What a table was made of."""
        node = self.nodes[table]
        if node.detail:
            return [self.constant(value, node.kind) for value in node.detail]
        return [Scalar(self, number) for number in node.operands]

    def pick(self, table: Scalar, place: Scalar) -> Scalar:
        """The entry of a table at a computed place; NaN, or the least integer, where there is none."""
        if place.value is not None:
            entries = self.entries_of(table.number)
            if 0 <= place.value < len(entries):
                return entries[int(place.value)]
        self.looks_up_integers |= table.kind == "integer"
        return Scalar(self, self.make("pick", place.number, table.number))

    def make(self, operation: str, *operands: int) -> int:
        """The number of the node for an operation: folded, or one that is there already, or new."""
        folded = folding.folded(self, operation, operands)
        if folded is not None:
            return folded
        entry = OPERATIONS[operation]
        if entry.commutes and operands[0] > operands[1]:
            operands = (operands[1], operands[0])
        kind = entry.result or self.nodes[operands[-1]].kind
        return self._once(Node(operation, operands, kind))

    def _once(self, node: Node, key: Any = None) -> int:
        key = node if key is None else key
        number = self._known.get(key)
        if number is None:
            if len(self.nodes) >= LARGEST_RECORDED:
                raise NotScalarError(f"it takes more than {LARGEST_RECORDED:,} operations of scalars")
            number = self._known[key] = len(self.nodes)
            self.nodes.append(node)
        return number

    def needed(self, outputs: Iterable[int]) -> list[int]:
        """What the outputs depend on, depth first: each node after its operands, and close to its first use.

        (The order of creation keeps thousands of numbers alive at once: 1.58 instead of 1.25 ms for the Jacobians of
        4,949 SE(3) between factors.)
        """
        order: list[int] = []
        seen: set[int] = set()
        nodes = self.nodes
        for output in outputs:
            stack = [output]
            while stack:
                number = stack.pop()
                if number < 0:  # the operands of that node are done
                    order.append(~number)
                elif number not in seen:
                    seen.add(number)
                    stack.append(~number)
                    stack.extend(reversed(nodes[number].operands))
        return order

    def inputs_of(self, outputs: Iterable[int]) -> frozenset[int]:
        """The input tensors of which the outputs read something."""
        nodes = [self.nodes[number] for number in self.needed(outputs)]
        return frozenset(node.detail[0] for node in nodes if node.operation in ("input", "lookup"))

    def count(self, outputs: Iterable[int]) -> int:
        """How many operations the outputs take."""
        return sum(self.nodes[number].operation in OPERATIONS for number in self.needed(outputs))
