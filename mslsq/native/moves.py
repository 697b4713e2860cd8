"""How the storage of a variable follows a small tangent: a retraction's first and second derivatives, as scalars."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import fx

from mslsq.native import derivative
from mslsq.native.arrays import Array
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program, Scalar


def moved_at_rest(retraction: fx.GraphModule, storage: int, tangent: int, dtype: torch.dtype) -> "Moves":
    """The derivatives of the graph `retraction(x, δ)` in δ at δ = 0, where it is x.

    Args:
        storage, tangent: sizes of x and of δ.
    """
    program = Program(dtype)
    x, delta = (Array(np.arange(size), dtype, number) for number, size in enumerate((storage, tangent)))
    (moved,) = recorded(program, retraction, [x, delta])
    directions = {
        program.input(1, column, "real").number: {column: program.constant(1, "real")} for column in range(tangent)
    }
    return Moves(program, derivative.jacobian(program, list(moved), directions, tangent), directions)


Entry = tuple[int, int, Scalar]
"""Row, column, and what stands there."""


class Moves:
    """How the storage of a variable follows a small tangent: ∂x/∂δ and ∂²x/∂δ² as scalars of x.

    Args:
        program: of x (input 0) and δ (input 1), which is 0 from here on.
        slopes: by entry of x and direction.
        directions: for the derivatives of the slopes.
    """

    def __init__(
        self,
        program: Program,
        slopes: list[list[Scalar | None]],
        directions: Mapping[int, Mapping[int, Scalar]],
    ):
        self._recorded, self._directions = program, directions
        self._before_rest = _entries(slopes)
        self._program = Program(program.dtype)
        self._slopes = _at_rest(program, self._before_rest, self._program)
        self._size, self._tangent = len(slopes), len(directions)

    @cached_property
    def _bends(self) -> tuple[Program, list[tuple[int, int, int, Scalar]]]:
        """By entry of x and two directions, ∂²x/∂δ² at rest; of the lower triangle."""
        found, program = [], Program(self._program.dtype)
        second = derivative.jacobian(
            self._recorded, [slope for _, _, slope in self._before_rest], self._directions, self._tangent
        )
        for (row, column, _), bends in zip(self._before_rest, second, strict=True):
            lower = [(row, other, bend) for other, bend in enumerate(bends[: column + 1]) if bend is not None]
            found += [(row, column, other, bend) for _, other, bend in _at_rest(self._recorded, lower, program)]
        return program, found

    def directions(self, program: Program, tensor: int, first: int) -> dict[int, dict[int, Scalar]]:
        """For `derivative.jacobian`: by entry of input number `tensor`, its derivatives in the columns from `first`."""
        entries = [program.input(tensor, entry, "real").number for entry in range(self._size)]
        found: dict[int, dict[int, Scalar]] = {entry: {} for entry in entries}
        slopes = _transplanted(self._program, [slope for _, _, slope in self._slopes], program, tensor)
        for (row, column, _), slope in zip(self._slopes, slopes, strict=True):
            found[entries[row]][first + column] = slope
        return found

    def pullback(self) -> tuple[Program, list[Scalar]]:
        """Mᵀt, of x (input 0) and a cotangent t of it (input 1), with M = ∂x/∂δ."""
        program = Program(self._program.dtype)
        entries: list[Scalar] = [program.constant(0, "real")] * self._tangent
        slopes = _transplanted(self._program, [slope for _, _, slope in self._slopes], program, 0)
        for (row, column, _), slope in zip(self._slopes, slopes, strict=True):
            term = slope * program.input(1, row, "real")
            entries[column] = term if entries[column].value == 0 else entries[column] + term
        return program, entries

    def bends(self, program: Program, tensor: int, first: int) -> list[tuple[int, int, int, Scalar]]:
        """The second derivatives that are not zero: the node of an entry of input number `tensor`, two columns from
        `first` (the second one not the larger), and the derivative."""
        own, found = self._bends
        entries = [program.input(tensor, entry, "real").number for entry in range(self._size)]
        bends = _transplanted(own, [bend for *_, bend in found], program, tensor)
        return [
            (entries[row], first + column, first + other, bend)
            for (row, column, other, _), bend in zip(found, bends, strict=True)
        ]


def _entries(matrix: list[list[Scalar | None]]) -> list[Entry]:
    """Those that are not zero by structure."""
    return [(row, k, slope) for row, found in enumerate(matrix) for k, slope in enumerate(found) if slope is not None]


def _at_rest(program: Program, entries: list[Entry], new: Program) -> list[Entry]:
    """Entries at δ = 0 as scalars of another program. One that has come to 0 is 0 by structure: nothing moves there."""
    at_rest = _transplanted(program, [slope for _, _, slope in entries], new, 0)
    return [(row, k, slope) for (row, k, _), slope in zip(entries, at_rest, strict=True) if slope.value != 0]


def _transplanted(old: Program, scalars: Sequence[Scalar], new: Program, tensor: int) -> list[Scalar]:
    """Scalars of one program in another, where input 0 is `tensor` and input 1 is 0.

    0 · x is 0 here: where x is not finite, neither is what follows from it.
    """
    known: dict[int, Scalar] = {}
    new.are_finite = True
    try:
        for number in old.needed(scalar.number for scalar in scalars):
            node = old.nodes[number]
            if node.operation == "constant":
                known[number] = new.constant(node.detail[0], node.kind)
            elif node.operation == "input":
                of, entry = node.detail
                known[number] = new.constant(0, "real") if of == 1 else new.input(tensor, entry, node.kind)
            elif node.operation == "table":
                entries = [known[operand] for operand in node.operands]
                known[number] = new.table(entries or [new.constant(x, node.kind) for x in node.detail])
            else:
                operands = [known[operand].number for operand in node.operands]
                known[number] = Scalar(new, new.make(node.operation, *operands))
    finally:
        new.are_finite = False
    return [known[scalar.number] for scalar in scalars]
