"""Native programs as operators of PyTorch, so that a step that calls them can be recorded and replayed.

An operator takes tensors and numbers. A compiled program is named by a number made of its text, under which it is found
until the process ends, as its library is: a graph that names it may outlive the solve that it was made for, and never
means another program, in no process.
"""

import ctypes
import functools
import hashlib
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from mslsq.kernels.threads import in_parts
from mslsq.linear.torch_operators import registered
from mslsq.native.text import Argument

RESIDUALS, LINEARIZATIONS = "residuals", "linearizations"
"""The two functions of a residual."""

VALUES = "values"
"""The function of a vector."""

LANES_OF_A_THREAD = 2048
"""Fewer are not given to a thread of their own: starting it takes as long."""

F = TypeVar("F", bound="NativeProgram | VectorFunction")
_PROGRAMS: "dict[int, NativeProgram | VectorFunction]" = {}
_REPLAYED: "weakref.WeakValueDictionary[int, VectorFunction]" = weakref.WeakValueDictionary()
"""Those that PyTorch runs, by negative numbers: no graph that names one leaves its plan."""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class LoadedProgram:
    """Something that has been loaded, and where the functions of one program are in it."""

    digest: str
    """Of the text that it was compiled from, in hexadecimal."""
    prefix: str
    """What the names of its functions begin with."""
    inputs: tuple[Argument, ...]
    """As the source was written for..."""
    used: frozenset[int]
    """... and which of them are read."""
    dtype: torch.dtype
    """Of real numbers; integers and booleans are read as int64."""

    @property
    def number(self) -> int:
        """An operator takes numbers of 64 bits: 60 bits of a hash tell all texts of a process apart."""
        return int(hashlib.sha256(f"{self.digest} {self.prefix}".encode()).hexdigest()[:15], 16)

    def functions(self, names: Sequence[str]) -> "NativeFunctions":
        """The functions of these names."""
        raise NotImplementedError

    def placed(self, tensors: Sequence[Tensor], batched: Sequence[int]) -> "list[Placed]":
        """The inputs as a program reads them; `Placed()` for those of which it reads nothing."""
        return [
            placed(tensor, argument, bool(has_outer), self.dtype) if k in self.used else Placed()
            for k, (tensor, argument, has_outer) in enumerate(zip(tensors, self.inputs, batched, strict=True))
        ]


class NativeFunctions:
    """Compiled functions of one block, of the same inputs."""

    def run(self, name: str, tensors: Sequence[Tensor], batched: Sequence[int], outputs: Sequence[Tensor]) -> None:
        """Fill the outputs, (outer, ..., lanes) and contiguous."""
        raise NotImplementedError

    def address(self, name: str, lanes: int) -> int | None:
        """Where in memory the function is, to be called for that many lanes at once; None where it is not to be."""
        return None


@dataclass(frozen=True)
class Loaded(LoadedProgram):
    """Of a library of a processor."""

    library: ctypes.CDLL
    vector: int
    """Lanes of a vector register."""

    def functions(self, names: Sequence[str]) -> NativeFunctions:
        return LibraryFunctions(self, names)


class LibraryFunctions(NativeFunctions):
    """Those of a processor's library."""

    def __init__(self, loaded: Loaded, names: Sequence[str]):
        self._loaded, self._vector = loaded, loaded.vector
        self._functions = {name: getattr(loaded.library, loaded.prefix + name) for name in names}

    def address(self, name: str, lanes: int) -> int | None:
        return None if lanes >= 2 * LANES_OF_A_THREAD else ctypes.cast(self._functions[name], ctypes.c_void_p).value

    def run(self, name: str, tensors: Sequence[Tensor], batched: Sequence[int], outputs: Sequence[Tensor]) -> None:
        inputs = self._loaded.inputs
        outer, lanes = outputs[0].shape[0], outputs[0].shape[-1]
        placed = self._loaded.placed(tensors, batched)
        placed += [Placed(out, out.stride(0), lanes) for out in outputs]
        count = len(placed)
        data = (ctypes.c_void_p * count)(*[p.tensor.data_ptr() if p.tensor is not None else None for p in placed])
        outer_steps = (ctypes.c_long * count)(*[p.outer_step for p in placed])
        steps = (ctypes.c_long * count)(*[p.step for p in placed])
        function = self._functions[name]
        threads = min(torch.get_num_threads(), lanes // LANES_OF_A_THREAD)
        if threads <= 1:
            function(ctypes.c_long(outer), ctypes.c_long(0), ctypes.c_long(lanes), data, outer_steps, steps)
            return
        vectors = -(-lanes // self._vector)
        lane_bytes = [
            (8 if k < len(inputs) and inputs[k].kind != "real" else self._loaded.dtype.itemsize)
            if k >= len(inputs) or inputs[k].has_lanes
            else 0
            for k in range(count)
        ]

        def part(a: int, b: int) -> None:
            begin, end = a * self._vector, min(b * self._vector, lanes)
            moved = (ctypes.c_void_p * count)(
                *[None if at is None else at + begin * size for at, size in zip(data, lane_bytes, strict=True)]
            )
            function(ctypes.c_long(outer), ctypes.c_long(0), ctypes.c_long(end - begin), moved, outer_steps, steps)

        in_parts(part, vectors, threads)


class NativeProgram:
    """A compiled function of one block and its Jacobian, (rows, columns)."""

    def __init__(self, loaded: LoadedProgram, rows: int, columns: int):
        self.functions = loaded.functions((RESIDUALS, LINEARIZATIONS))
        self.inputs, self.used, self.dtype = loaded.inputs, loaded.used, loaded.dtype
        self.rows, self.columns, self.number = rows, columns, loaded.number
        _PROGRAMS[self.number] = self

    def residuals(self, tensors: Sequence[Tensor], batched: Sequence[bool], outer: int, lanes: int) -> Tensor:
        """(outer, rows, lanes) of inputs that are (outer, ..., lanes), without `outer` where not `batched`, without
        lanes where the program was written so."""
        return native_residuals(list(tensors), [int(b) for b in batched], [self.number, outer, lanes])

    def linearizations(
        self, tensors: Sequence[Tensor], batched: Sequence[bool], outer: int, lanes: int
    ) -> tuple[Tensor, Tensor]:
        """`residuals`, and their Jacobians (outer, rows, columns, lanes)."""
        return native_linearizations(list(tensors), [int(b) for b in batched], [self.number, outer, lanes])


class VectorFunction:
    """A function of one block whose output is a vector of `size` numbers; base of those that are compiled, and of those
    that PyTorch runs."""

    is_compiled: ClassVar[bool] = False

    def __init__(self, dtype: torch.dtype, size: int, number: int):
        self.dtype, self.size, self.number = dtype, size, number

    def values(self, tensors: Sequence[Tensor], batched: Sequence[bool], outer: int, lanes: int) -> Tensor:
        """(outer, size, lanes) of inputs as `NativeProgram.residuals` takes them."""
        return native_values(list(tensors), [int(b) for b in batched], [self.number, outer, lanes])

    def filled(self, tensors: Sequence[Tensor], batched: Sequence[int], outer: int, lanes: int) -> Tensor:
        """`values`, computed now."""
        raise NotImplementedError


class NativeVector(VectorFunction):
    """One that is compiled."""

    is_compiled: ClassVar[bool] = True

    def __init__(self, loaded: LoadedProgram, size: int):
        super().__init__(loaded.dtype, size, loaded.number)
        self._functions = loaded.functions((VALUES,))
        _PROGRAMS[self.number] = self

    def filled(self, tensors: Sequence[Tensor], batched: Sequence[int], outer: int, lanes: int) -> Tensor:
        vector = torch.empty(outer, self.size, lanes, dtype=self.dtype, device=tensors[0].device)
        self._functions.run(VALUES, tensors, batched, (vector,))
        return vector


class UncompiledVector(VectorFunction):
    """Base of those that PyTorch runs. They are found as long as they live."""

    def __init__(self, dtype: torch.dtype, size: int):
        super().__init__(dtype, size, -next(_NUMBERS))
        _REPLAYED[self.number] = self


class SecondOrder(NamedTuple):
    """What a cost of a block is differentiated by at a solution."""

    gradient: VectorFunction
    """In the joint tangent."""
    hessian: VectorFunction
    """The exact one, row by row."""

    @property
    def is_compiled(self) -> bool:
        return self.hessian.is_compiled


class Placed(NamedTuple):
    """A tensor whose entries lie `step` numbers apart, and whose problems `outer_step`; of nothing by default."""

    tensor: Tensor | None = None
    outer_step: int = 0
    step: int = 0


def placed(tensor: Tensor, argument: Argument, has_outer: bool, dtype: torch.dtype) -> Placed:
    """A tensor as a program reads it: copied where its type or its layout is another."""
    wanted = dtype if argument.kind == "real" else torch.int64
    if tensor.dtype != wanted:
        tensor = tensor.to(wanted)
    step = evenly_spaced(tensor.shape, tensor.stride(), argument.has_lanes, has_outer)
    if step is None:
        tensor = tensor.contiguous()
        step = evenly_spaced(tensor.shape, tensor.stride(), argument.has_lanes, has_outer)
        assert step is not None  # of a contiguous tensor there is one
    return Placed(tensor, tensor.stride(0) if has_outer else 0, step)


@functools.lru_cache(maxsize=4096)
def evenly_spaced(shape: torch.Size, strides: tuple[int, ...], has_lanes: bool, has_outer: bool) -> int | None:
    """How far the entries of a block lie apart, row by row; None where not evenly, or the lanes not side by side."""
    shape, strides = shape[has_outer:], strides[has_outer:]
    if has_lanes:
        if shape[-1] > 1 and strides[-1] != 1:
            return None
        shape, strides = shape[:-1], strides[:-1]
    step = after = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if after is None:
            step = after = stride
        elif stride != after:
            return None
        after *= size
    return 1 if step is None else step


@registered("native_residuals")
def native_residuals(tensors: list[Tensor], batched: list[int], numbers: list[int]) -> Tensor:
    """`NativeProgram.residuals`; `numbers` are those of the program, of problems and of lanes."""
    program, outer, lanes = _found(numbers, NativeProgram)
    residual = torch.empty(outer, program.rows, lanes, dtype=program.dtype, device=tensors[0].device)
    program.functions.run(RESIDUALS, tensors, batched, (residual,))
    return residual


@native_residuals.register_fake
def _(tensors: list[Tensor], batched: list[int], numbers: list[int]) -> Tensor:
    program, outer, lanes = _found(numbers, NativeProgram)
    return torch.empty(outer, program.rows, lanes, dtype=program.dtype, device=tensors[0].device)


@registered("native_linearizations")
def native_linearizations(tensors: list[Tensor], batched: list[int], numbers: list[int]) -> tuple[Tensor, Tensor]:
    """`NativeProgram.linearizations`; `numbers` are those of the program, of problems and of lanes."""
    program, outer, lanes = _found(numbers, NativeProgram)
    device = tensors[0].device
    residual = torch.empty(outer, program.rows, lanes, dtype=program.dtype, device=device)
    jacobian = torch.empty(outer, program.rows, program.columns, lanes, dtype=program.dtype, device=device)
    program.functions.run(LINEARIZATIONS, tensors, batched, (residual, jacobian))
    return residual, jacobian


@native_linearizations.register_fake
def _(tensors: list[Tensor], batched: list[int], numbers: list[int]) -> tuple[Tensor, Tensor]:
    program, outer, lanes = _found(numbers, NativeProgram)
    device = tensors[0].device
    residual = torch.empty(outer, program.rows, lanes, dtype=program.dtype, device=device)
    return residual, torch.empty(outer, program.rows, program.columns, lanes, dtype=program.dtype, device=device)


@registered("native_values")
def native_values(tensors: list[Tensor], batched: list[int], numbers: list[int]) -> Tensor:
    """`VectorFunction.values`; `numbers` are those of the program, of problems and of lanes."""
    program, outer, lanes = _found(numbers, VectorFunction)
    return program.filled(tensors, batched, outer, lanes)


@native_values.register_fake
def _(tensors: list[Tensor], batched: list[int], numbers: list[int]) -> Tensor:
    program, outer, lanes = _found(numbers, VectorFunction)
    return torch.empty(outer, program.size, lanes, dtype=program.dtype, device=tensors[0].device)


def called_program(*numbers: int) -> tuple[NativeProgram, int, int]:
    """The program that an operator is called with, and the numbers of problems and of lanes."""
    return _found(list(numbers), NativeProgram)


def _found(numbers: list[int], kind: type[F]) -> tuple[F, int, int]:
    number, outer, lanes = numbers
    program = _PROGRAMS.get(number) or _REPLAYED.get(number)
    if program is None:
        raise RuntimeError(
            "A graph calls a native program that this process has not made. Programs belong to the process of their "
            "solve: record the graph again in this one, with native='never' on the solver."
        )
    assert isinstance(program, kind)  # who made the call knows
    return program, outer, lanes
