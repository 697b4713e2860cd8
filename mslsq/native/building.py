"""From a function of one block to its native program: differentiate, write, compile."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch

from mslsq.kernels.build import CompilerError
from mslsq.native import derivative
from mslsq.native.operator import (
    LINEARIZATIONS,
    RESIDUALS,
    VALUES,
    Loaded,
    LoadedProgram,
    NativeProgram,
    NativeVector,
)
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.replaying import ReplayedVector
from mslsq.native.scalars import LARGEST, NotScalarError, Program, Scalar
from mslsq.native.store import Build, is_kept, kept, request
from mslsq.native.text import Argument, Function, source, written

P = TypeVar("P", covariant=True)


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
        _check_size(program, [*made.residual, *made.jacobian], LARGEST)
        return made

    @property
    def outputs(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """By function the nodes of its outputs."""
        return {RESIDUALS: (self.residual,), LINEARIZATIONS: (self.residual, self.jacobian)}

    @property
    def used(self) -> frozenset[int]:
        """The inputs of which something is read."""
        return self.program.inputs_of([*self.residual, *self.jacobian])

    @property
    def form(self) -> Callable[[LoadedProgram], NativeProgram]:
        """What makes the functions of a library that is loaded; it holds no scalars, which are megabytes."""
        rows = len(self.residual)
        return partial(NativeProgram, rows=rows, columns=len(self.jacobian) // rows)


@dataclass(frozen=True)
class WrittenVector:
    """A vector as scalars of a program."""

    program: Program
    inputs: tuple[Argument, ...]
    entries: tuple[int, ...]

    @staticmethod
    def of(program: Program, inputs: Sequence[Argument], entries: Sequence[Scalar], largest: int) -> "WrittenVector":
        """Raises NotScalarError where they take more than `largest` operations."""
        made = WrittenVector(program, tuple(inputs), tuple(x.number for x in entries))
        _check_size(program, made.entries, largest)
        return made

    @property
    def outputs(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """As `Written.outputs`."""
        return {VALUES: (self.entries,)}

    @property
    def used(self) -> frozenset[int]:
        """The inputs of which something is read."""
        return self.program.inputs_of(self.entries)

    @property
    def form(self) -> Callable[[LoadedProgram], NativeVector]:
        """As `Written.form`."""
        return partial(NativeVector, size=len(self.entries))

    def replayed(self) -> ReplayedVector:
        """The function without a compiler. NotScalarError where there is none."""
        return ReplayedVector(self.program, self.inputs, self.entries)


def _check_size(program: Program, outputs: Sequence[int], largest: int) -> None:
    count = program.count(outputs)
    if count > largest:
        raise NotScalarError(f"it takes {count:,} operations of scalars, more than {largest:,}")


class Making(Generic[P]):
    """Programs of one dtype, all in one source, that are with the compiler."""

    @staticmethod
    def if_kept(all_written: Sequence["AnyWritten[P]"]) -> "Making[P] | None":
        """The programs where they were compiled before; None where it would take the compiler."""
        made = Making(all_written, begins=False)
        if not is_kept(made._source):
            return None
        made.build = request(made._source, wait=False)
        return made

    def __init__(self, all_written: Sequence["AnyWritten[P]"], begins: bool = True):
        self._dtype = all_written[0].program.dtype
        self._width = VECTOR_BYTES[target()]
        parts = [
            written(one.program, one.inputs, Function(f"program{k}_{name}", outputs))
            for k, one in enumerate(all_written)
            for name, outputs in one.outputs.items()
        ]
        self._forms = [(one.inputs, one.used, one.form) for one in all_written]
        self._source = source(parts, self._dtype, self._width)
        self.build: Build
        if begins:
            self.build = request(self._source, wait=False)

    def wait(self, patience: float = math.inf) -> None:
        """Wait for the compiler, at most that number of seconds."""
        request(self._source, wait=True, patience=patience)

    @property
    def is_settled(self) -> bool:
        """Is it known whether there are programs? Looks after the compiler, but never waits for it."""
        return self.build.library() is not None or bool(self.build.why)

    def programs(self) -> list[P] | None:
        """The programs; None while they are being compiled.

        Raises:
            CompilerError: there is no compiler, or it failed.
        """
        return _loaded(self.build, self._forms, self._dtype, self._width)


Form = tuple[tuple[Argument, ...], frozenset[int], Callable[[LoadedProgram], P]]
"""Of a program its inputs, which of them it reads, and what makes its functions."""


class Kept(Generic[P]):
    """The same of programs that were compiled before, and are found without their text."""

    is_settled = True

    @staticmethod
    def found(digest: str, forms: "Sequence[Form[P]]", dtype: torch.dtype) -> "Kept[P] | None":
        """The programs of the text with this hash; None where they are not kept."""
        build = kept(digest)
        return None if build is None else Kept(build, forms, dtype)

    def __init__(self, build: Build, forms: "Sequence[Form[P]]", dtype: torch.dtype):
        self.build, self._forms, self._dtype = build, forms, dtype
        self._width = VECTOR_BYTES[target()]

    def wait(self, patience: float = math.inf) -> None:
        """There is nothing to wait for."""

    def programs(self) -> list[P] | None:
        """The programs."""
        return _loaded(self.build, self._forms, self._dtype, self._width)


def _loaded(build: Build, forms: Sequence[Form[P]], dtype: torch.dtype, width: int) -> list[P] | None:
    """As `Making.programs`; of vector registers of `width` bytes."""
    library = build.library()
    if build.why:
        raise CompilerError(build.why)
    if library is None:
        return None
    lanes = width // dtype.itemsize
    return [
        form(Loaded(build.digest, f"program{k}_", inputs, used, dtype, library, lanes))
        for k, (inputs, used, form) in enumerate(forms)
    ]


class AnyWritten(Protocol[P]):
    """What becomes native functions: `Written`, `WrittenVector`."""

    @property
    def program(self) -> Program: ...

    @property
    def inputs(self) -> tuple[Argument, ...]: ...

    @property
    def used(self) -> frozenset[int]: ...

    @property
    def form(self) -> Callable[[LoadedProgram], P]: ...

    @property
    def outputs(self) -> Mapping[str, tuple[tuple[int, ...], ...]]: ...
