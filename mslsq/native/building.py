"""From a function of one block to its native program: record, differentiate, write, compile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from mslsq.kernels.build import CompilerError
from mslsq.native import derivative
from mslsq.native.arrays import Array
from mslsq.native.operator import LINEARIZATIONS, RESIDUALS, NativeProgram
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.recording import recorded
from mslsq.native.scalars import LARGEST, NotScalarError, Program, Scalar
from mslsq.native.store import Build, request
from mslsq.native.text import Argument, Function, source, written


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
    return Moves(program, derivative.jacobian(program, list(moved), directions, tangent))


class Moves:
    """How the storage of a variable follows a small tangent: ∂x/∂δ as scalars of x.

    Args:
        program: of x (input 0) and δ (input 1), which is 0 from here on.
        slopes: by entry of x and direction.
    """

    def __init__(self, program: Program, slopes: list[list[Scalar | None]]):
        self._program = Program(program.dtype)
        entries = [
            (row, column, slope)
            for row, found in enumerate(slopes)
            for column, slope in enumerate(found)
            if slope is not None
        ]
        at_rest = _transplanted(program, [slope for _, _, slope in entries], self._program, 0)
        # A slope that has come to 0 is one by structure: there is no tangent along it.
        self._slopes = [
            (row, column, slope) for (row, column, _), slope in zip(entries, at_rest, strict=True) if slope.value != 0
        ]
        self._size = len(slopes)

    def directions(self, program: Program, tensor: int, first: int) -> dict[int, dict[int, Scalar]]:
        """For `derivative.jacobian`: by entry of input number `tensor`, its derivatives in the columns from `first`."""
        entries = [program.input(tensor, entry, "real").number for entry in range(self._size)]
        found: dict[int, dict[int, Scalar]] = {entry: {} for entry in entries}
        slopes = _transplanted(self._program, [slope for _, _, slope in self._slopes], program, tensor)
        for (row, column, _), slope in zip(self._slopes, slopes, strict=True):
            found[entries[row]][first + column] = slope
        return found


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
            else:
                operands = [known[operand].number for operand in node.operands]
                known[number] = Scalar(new, new.make(node.operation, *operands))
    finally:
        new.are_finite = False
    return [known[scalar.number] for scalar in scalars]


def linearized(
    program: Program, residual: Sequence[Scalar], directions: Mapping[int, Mapping[int, Scalar]], columns: int
) -> list[Scalar]:
    """The Jacobian of a residual, row by row."""
    zero = program.constant(0, "real")
    rows = derivative.jacobian(program, residual, directions, columns)
    return [zero if slope is None else slope for row in rows for slope in row]


@dataclass(frozen=True)
class Written:
    """A residual and its Jacobian (row by row) as scalars of one program."""

    program: Program
    inputs: tuple[Argument, ...]
    residual: tuple[int, ...]
    jacobian: tuple[int, ...]

    @staticmethod
    def of(
        program: Program, inputs: Sequence[Argument], residual: Sequence[Scalar], jacobian: Sequence[Scalar]
    ) -> "Written":
        """Raises NotScalarError where they take too many operations."""
        made = Written(program, tuple(inputs), *(tuple(x.number for x in part) for part in (residual, jacobian)))
        count = program.count([*made.residual, *made.jacobian])
        if count > LARGEST:
            raise NotScalarError(f"it takes {count:,} operations of scalars, more than {LARGEST:,}")
        return made

    def functions(self, prefix: str) -> list[str]:
        """The source of both functions."""
        outputs = {RESIDUALS: (self.residual,), LINEARIZATIONS: (self.residual, self.jacobian)}
        return [written(self.program, self.inputs, Function(prefix + name, out)) for name, out in outputs.items()]

    @property
    def used(self) -> frozenset[int]:
        """The inputs of which something is read."""
        nodes = [self.program.nodes[n] for n in self.program.needed([*self.residual, *self.jacobian])]
        return frozenset(node.detail[0] for node in nodes if node.operation in ("input", "lookup"))


class Making:
    """Programs of one dtype, all in one source, that are with the compiler."""

    def __init__(self, all_written: Sequence[Written]):
        self._dtype = all_written[0].program.dtype
        self._width = VECTOR_BYTES[target()]
        parts = [part for k, one in enumerate(all_written) for part in one.functions(f"program{k}_")]
        self._shapes = [(one.inputs, one.used, len(one.residual), len(one.jacobian)) for one in all_written]
        self._source = source(parts, self._dtype, self._width)
        self.build: Build = request(self._source, wait=False)

    def wait(self) -> None:
        """Wait for the compiler."""
        request(self._source, wait=True)

    @property
    def is_settled(self) -> bool:
        """Is it known whether there are programs? Looks after the compiler, but never waits for it."""
        return self.build.library() is not None or bool(self.build.why)

    def programs(self) -> list[NativeProgram] | None:
        """The programs; None while they are being compiled.

        Raises:
            CompilerError: there is no compiler, or it failed.
        """
        library = self.build.library()
        if self.build.why:
            raise CompilerError(self.build.why)
        if library is None:
            return None
        return [
            NativeProgram(
                library,
                self.build.digest,
                f"program{k}_",
                inputs,
                used,
                self._dtype,
                rows=rows,
                columns=entries // rows,
                vector=self._width // self._dtype.itemsize,
            )
            for k, (inputs, used, rows, entries) in enumerate(self._shapes)
        ]
