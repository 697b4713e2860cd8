"""A program of whole solves as CUDA C: its kernels, and their way to a GPU."""

import math
import time
from typing import NamedTuple

import torch

from mslsq.kernels.build import CompilerError
from mslsq.native.cuda.nvrtc import Compiled
from mslsq.native.cuda.pieces import MORE, moved_bytes, pieces_of, room_of
from mslsq.native.cuda.programs import MOST_ARGUMENTS, Cuda, CudaBuild, Tools
from mslsq.native.cuda.solves import ADVANCE, BEGIN, FIXED, CudaSolves
from mslsq.native.cuda.splitting import OPERATIONS_PER_BYTE
from mslsq.native.cuda.text import source
from mslsq.native.scalars import NotScalarError
from mslsq.native.solve_building import SolveMaking
from mslsq.native.steps_text import Functions
from mslsq.native.tables import Layout

LOOPS = (1, 2, 4)
"""Among which the sums of a linearization may be divided: each computes the rows and their Jacobians again."""


def making_solves(
    name: str, functions: Functions, layout: Layout, dtype: torch.dtype, device: torch.device
) -> "SolveMaking | CudaSolveMaking":
    """A program of whole solves for a device, on its way. CompilerError where no program can be for it."""
    if device.type == "cpu":
        return SolveMaking(name, functions, layout, dtype)
    if device.type == "cuda":
        return CudaSolveMaking(name, functions, layout, dtype, Cuda(device))
    raise CompilerError(f"no programs are written for the device {device.type!r}")


class Chosen(NamedTuple):
    """What was compiled, and how."""

    compiled: Compiled
    loops: int
    """Of the linearization."""
    pieces: int = 0
    """Kernels of a step; 0 where one kernel takes many steps..."""
    room: int = 0
    """... and how many numbers they hand on."""


class CudaSolveMaking:
    """A program of whole solves for a GPU, as `native.solve_building` has it for a processor. It is compiled when it is
    waited for, in the thread that waits."""

    def __init__(self, name: str, functions: Functions, layout: Layout, dtype: torch.dtype, tools: Tools):
        if layout.shared + FIXED > MOST_ARGUMENTS:
            raise NotScalarError(f"all problems share {layout.shared} tensors, more than {MOST_ARGUMENTS - FIXED}")
        self._name, self._layout, self._dtype, self._tools = name, layout, dtype, tools
        self._functions: Functions | None = functions
        self._program: CudaSolves | None = None
        self.build = CudaBuild()

    def wait(self, patience: float = math.inf) -> None:
        """Compile, if that has not been done, however long it takes."""
        if self._functions is None:
            return
        started = time.perf_counter()
        try:
            found = self.compiled(self._functions)
            module, compiled = self._tools.load(found.compiled.image), found.compiled
        except (CompilerError, OSError) as error:
            self.build.why = " ".join(str(error).split()).removesuffix(".")
        else:
            self._program = CudaSolves(module, self._name, self._layout, self._dtype, found.pieces, found.room)
            self.build.seconds, self.build.resources = time.perf_counter() - started, compiled.resources
        self._functions = None  # megabytes

    def compiled(self, functions: Functions) -> Chosen:
        """What the compiler makes of it: of as few loops of the linearization as do not spill, else of those that cost
        least, with one kernel for many steps or several for each.

        A cost is in bytes: spilled, moved between kernels, and the operations that take as long. (What a loop spills
        is counted once: in which of its lines that is, ptxas does not tell.) CompilerError where the compiler fails.
        """
        tried: list[tuple[float, Chosen]] = []
        may_be_divided = self._layout.shared + FIXED + MORE <= MOST_ARGUMENTS
        for is_divided in (False, True)[: 1 + may_be_divided]:
            for loops in LOOPS:
                found, moved = self._tried(functions, loops, is_divided)
                spilled = sum(one.spilled for one in found.compiled.resources.values())
                if not spilled and not is_divided:
                    return found
                tried.append((spilled + moved + functions.count(loops) / OPERATIONS_PER_BYTE[self._dtype], found))
                if not spilled:
                    break  # more loops compute more
        return min(tried, key=lambda one: one[0])[1]

    def _tried(self, functions: Functions, loops: int, is_divided: bool) -> tuple[Chosen, int]:
        """Compiled, and bytes that are moved between kernels."""
        compiled = self._tools.compiled(self.source(functions, loops, is_divided))
        if not is_divided:
            return Chosen(compiled, loops), 0
        pieces = pieces_of(self._name, functions.step, self._layout)
        return Chosen(compiled, loops, len(pieces), room_of(functions.step)), moved_bytes(pieces, self._dtype)

    def source(self, functions: Functions, loops: int = 1, is_divided: bool = False) -> str:
        """The whole text."""
        parts = [functions.text(self._name, loops), kernels_text(self._name, self._layout, is_divided)]
        if is_divided:
            parts += [piece.text for piece in pieces_of(self._name, functions.step, self._layout)]
        return source(parts, self._dtype, ("normal.h", "cuda_steps.h"))

    def program(self) -> CudaSolves | None:
        """The program; None as long as it has not been waited for.

        Raises:
            CompilerError: there is no compiler or no driver, or one of them failed.
        """
        if self.build.why:
            raise CompilerError(self.build.why)
        return self._program


def kernels_text(name: str, layout: Layout, is_divided: bool = False) -> str:
    """The kernels around linearization, start and, unless that is divided, step."""
    given = f"const Given<{FIXED + layout.shared}> given, const long steps, const long lanes"
    begin = f"begin<{layout.state}, {sum(layout.unknowns)}, {name}_start>(given, lanes)"
    advance = f"advance<{layout.state}, {layout.status}, {name}_step>(given, steps, lanes)"
    return "\n".join(
        f"""
extern "C" __global__ void __launch_bounds__(THREADS)
{name}_{kernel}({given}) {{
    {call};
}}"""
        for kernel, call in ((BEGIN, begin), (ADVANCE, advance))[: 1 if is_divided else 2]
    )
