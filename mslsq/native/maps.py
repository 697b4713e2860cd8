"""Runs a native program that maps a function over problems of one structure: at the ends of whole solves."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.kernels.build import CompilerError
from mslsq.kernels.threads import in_parts
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.store import Build, request
from mslsq.native.tables import Table
from mslsq.native.text import source
from mslsq.native.whole_solves import PROBLEMS_OF_A_THREAD, by_problem, placed

AT_ONCE = 16_384
"""Problems of a call, after which Python may have been told to stop: some milliseconds."""


class Mapped(NamedTuple):
    """What a program returns."""

    outputs: list[Tensor]
    """(problems, numbers) each; those that are wanted."""
    sums: Tensor
    """(numbers,) over all problems."""


class Work(ctypes.Structure):
    """`Work` of `maps.h`."""

    _fields_ = (
        ("begin", ctypes.c_long),
        ("end", ctypes.c_long),
        ("own", ctypes.c_void_p),
        ("own_steps", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
    )


class _Slots:
    """Pointers, strides and sizes of a call, kept for the next: made each time they were 7 of the 18 µs of a call
    for one problem."""

    def __init__(self, own: int, shared: int, outputs: int):
        self.own = (ctypes.c_void_p * max(own, 1))()
        self.steps = (ctypes.c_long * max(own, 1))()
        self.shared = (ctypes.c_void_p * max(shared, 1))()
        self.outputs = (ctypes.c_void_p * max(outputs, 1))()
        self.addresses = tuple(map(ctypes.addressof, (self.own, self.steps, self.shared, self.outputs)))
        self.work = Work(0, 0, *self.addresses, None)
        self.reference = ctypes.byref(self.work)


@dataclass(eq=False)
class MappedProgram:
    """A compiled program of a function of one problem.

    Args:
        library: with the function `name`.
        dtype: of real numbers.
    """

    library: ctypes.CDLL
    name: str
    table: Table
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self._function = getattr(self.library, self.name)
        self._function.argtypes, self._function.restype = (ctypes.POINTER(Work),), None
        self._spare: list[_Slots] = []
        self._no_sums = torch.empty(0, dtype=self.dtype, device="cpu")

    def __call__(self, own: Sequence[Tensor], shared: Sequence[Tensor], wanted: Sequence[int] | None = None) -> Mapped:
        """The function of every problem.

        Args:
            own: (problems, ...) tensors of which each problem has its own part, as the table has them.
            shared: what all problems have in common.
            wanted: the numbers of the outputs that are returned, by default all.
        """
        problems, sizes = own[0].shape[0], self.table.outputs
        given = [by_problem(x, self.dtype) for x in own]
        common = [placed(x, self.dtype).contiguous() for x in shared]
        numbers = range(len(sizes)) if wanted is None else wanted
        returned = [torch.empty(problems, sizes[k], dtype=self.dtype, device="cpu") for k in numbers]
        try:
            slots = self._spare.pop()
        except IndexError:
            slots = _Slots(len(given), len(common), len(sizes))
        for k, x in enumerate(given):
            slots.own[k], slots.steps[k] = x.data_ptr(), x.stride(0) if problems > 1 else 0
        for k, x in enumerate(common):
            slots.shared[k] = x.data_ptr()
        slots.outputs[: len(sizes)] = [None] * len(sizes)
        for k, x in zip(numbers, returned, strict=True):
            slots.outputs[k] = x.data_ptr()
        threads = min(torch.get_num_threads(), problems // PROBLEMS_OF_A_THREAD) if problems > 1 else 1
        sums = self._run(slots, problems, max(threads, 1))
        self._spare.append(slots)
        return Mapped(returned, sums)

    def _run(self, slots: _Slots, problems: int, threads: int) -> Tensor:
        """Fill the outputs; the sums."""
        parts = max(-(-problems // AT_ONCE), threads)
        if parts == 1:
            sums = torch.empty(self.table.sums, dtype=self.dtype, device="cpu") if self.table.sums else self._no_sums
            slots.work.end, slots.work.sums = problems, sums.data_ptr()
            self._function(slots.reference)
            return sums
        each = torch.empty(parts, self.table.sums, dtype=self.dtype, device="cpu")

        def work_of(first: int, last: int) -> None:
            for part in range(first, last):
                begin, end = problems * part // parts, problems * (part + 1) // parts
                at = each.data_ptr() + part * each.stride(0) * each.itemsize
                self._function(Work(begin, end, *slots.addresses, at))

        in_parts(work_of, parts, threads)
        return each.sum(0)


class MapMaking:
    """A program that maps a function that is with the compiler.

    Args:
        name: of the program in C++, which is called so in `text`.
        dtype: of real numbers.
    """

    def __init__(self, name: str, text: str, table: Table, dtype: torch.dtype):
        self._name, self._table, self._dtype = name, table, dtype
        self._source = source([text], dtype, VECTOR_BYTES[target()], ("steps.h", "factors.h", "maps.h"))
        self.build: Build = request(self._source, wait=False)

    def wait(self, patience: float = math.inf) -> None:
        """Wait for the compiler, at most that number of seconds."""
        request(self._source, wait=True, patience=patience)

    def program(self) -> MappedProgram | None:
        """The program; None while it is being compiled.

        Raises:
            CompilerError: there is no compiler, or it failed.
        """
        library = self.build.library()
        if self.build.why:
            raise CompilerError(self.build.why)
        return None if library is None else MappedProgram(library, self._name, self._table, self._dtype)
