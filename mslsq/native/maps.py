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
from mslsq.native.whole_solves import PROBLEMS_OF_A_THREAD, by_problem, placed, pointers

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
        places: list[int | None] = [None] * len(sizes)
        for k, x in zip(numbers, returned, strict=True):
            places[k] = x.data_ptr()
        steps = (ctypes.c_long * len(given))(*[x.stride(0) if problems > 1 else 0 for x in given])
        arrays = pointers(given), steps, pointers(common), (ctypes.c_void_p * max(len(places), 1))(*places)
        at = [ctypes.addressof(array) for array in arrays]
        threads = max(1, min(torch.get_num_threads(), problems // PROBLEMS_OF_A_THREAD))
        parts = max(-(-problems // AT_ONCE), threads)
        sums = torch.empty(parts, self.table.sums, dtype=self.dtype, device="cpu")

        def work(first: int, last: int) -> None:
            for part in range(first, last):
                begin, end = problems * part // parts, problems * (part + 1) // parts
                self._function(Work(begin, end, *at, sums.data_ptr() + part * sums.stride(0) * sums.itemsize))

        in_parts(work, parts, threads)
        return Mapped(returned, sums[0] if parts == 1 else sums.sum(0))


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
