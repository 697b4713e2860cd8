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
from mslsq.native.scalars import LARGEST, Node, NotScalarError, Program, Scalar
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
    """How the storage of a variable follows a small tangent: ∂x/∂δ as scalars of x."""

    def __init__(self, program: Program, slopes: list[list[Scalar | None]]):
        self._program, self._slopes = program, slopes

    def directions(self, program: Program, tensor: int, first: int) -> dict[int, dict[int, Scalar]]:
        """For `derivative.jacobian`: by entry of input number `tensor`, its derivatives in the columns from `first`."""
        with_zero = _Transplant(self._program, program, tensor)
        found = {}
        for entry, row in enumerate(self._slopes):
            slopes = {first + k: with_zero(slope) for k, slope in enumerate(row) if slope is not None}
            # A slope that has come to 0 is one by structure: there is no tangent along it.
            found[program.input(tensor, entry, "real").number] = {k: s for k, s in slopes.items() if s.value != 0}
        return found


class _Transplant:
    """Nodes of one program in another, where the tangent is 0 and x is an input.

    0 · x is 0 here: where x is not finite, neither is what follows from it.
    """

    def __init__(self, old: Program, new: Program, tensor: int):
        self._old, self._new, self._tensor = old, new, tensor
        self._known: dict[int, Scalar] = {}

    def __call__(self, scalar: Scalar) -> Scalar:
        self._new.are_finite = True
        try:
            for number in self._old.needed([scalar.number]):
                if number not in self._known:
                    self._known[number] = self._made(self._old.nodes[number])
        finally:
            self._new.are_finite = False
        return self._known[scalar.number]

    def _made(self, node: Node) -> Scalar:
        if node.operation == "constant":
            return self._new.constant(node.detail[0], node.kind)
        if node.operation == "input":
            tensor, entry = node.detail
            return self._new.constant(0, "real") if tensor == 1 else self._new.input(self._tensor, entry, node.kind)
        operands = [self._known[operand].number for operand in node.operands]
        return Scalar(self._new, self._new.make(node.operation, *operands))


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
