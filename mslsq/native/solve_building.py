"""A program of whole solves on its way to the processor."""

import math

import torch

from mslsq.kernels.build import CompilerError
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.steps_text import Functions, solving_text
from mslsq.native.store import Build, request
from mslsq.native.tables import Layout
from mslsq.native.text import source
from mslsq.native.whole_solves import WholeSolves


class SolveMaking:
    """A program of whole solves that is with the compiler.

    Args:
        name: of the functions in C++, and of the program.
        dtype: of real numbers.
    """

    def __init__(self, name: str, functions: Functions, layout: Layout, dtype: torch.dtype):
        self._name, self._layout, self._dtype = name, layout, dtype
        self._bends = functions.bending is not None
        text, width = solving_text(name, functions, layout), VECTOR_BYTES[target()]
        self._source = source([text], dtype, width, ("normal.h", "steps.h"))
        self.build: Build = request(self._source, wait=False)

    def wait(self, patience: float = math.inf) -> None:
        """Wait for the compiler, at most that number of seconds."""
        request(self._source, wait=True, patience=patience)

    def program(self) -> WholeSolves | None:
        """The program; None while it is being compiled.

        Raises:
            CompilerError: there is no compiler, or it failed.
        """
        library = self.build.library()
        if self.build.why:
            raise CompilerError(self.build.why)
        given = self._name, self._layout, self._dtype, self._bends
        return None if library is None else WholeSolves(library, *given)
