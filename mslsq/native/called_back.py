"""Steps of C++ around a linearization that Python computes: one problem at a time.

The program holds start and step alone, so that it depends on no residual. Whatever Python raises within is raised when
the program has ended, which it does at once: numbers that are not finite are no step.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq.native.one_solve import NUMBERS, NUMPY
from mslsq.native.whole_solves import OF_CREEPING, OF_NONE, Job, Solved, WholeSolves, pointers

LINEARIZATION = """
SEPARATE void {name}_linearize(const Inputs& in, const V* x, V* model) {{
    real* const at = (real*)in.shared[1];
    for (long k = 0; k < {numbers}; k++) at[k] = ((const real*)(x + k))[0];
    ((void (*)())*(const long*)in.shared[0])();
    const real* const sums = (const real*)in.shared[2];
    for (long k = 0; k < {sums}; k++) model[k] = splat(sums[k]);
}}"""

STATE = """
extern "C" __attribute__((visibility("default"))) void* {name}_state(char* memory) {{
    Lanes lanes;
    laid_out(aligned(memory + sizeof(Memory)), {name}_sizes, lanes);
    return lanes.state;
}}"""

SHARED = 3
"""Inputs of such a program: the function, where it reads the values, where it leaves the sums."""

AT_ONCE = 2**40
"""More steps than any solve takes: Python looks for interrupts itself, in every step."""

Sums = Callable[[tuple[Tensor, ...]], Tensor]
"""Cost, gradient and the lower triangle of JᵀJ, in one vector, of the values of one problem."""


@dataclass(frozen=True)
class CalledBack:
    """Stands where a program of whole solves has its linearization.

    Args:
        numbers: of the values of a problem.
        sums: numbers that the function leaves.
    """

    numbers: int
    sums: int

    def text(self, name: str, loops: int = 1) -> str:
        """`name_linearize(in, x, model)`; there are no loops."""
        return LINEARIZATION.format(name=name, numbers=self.numbers, sums=self.sums)

    def count(self, loops: int = 1) -> int:
        """It takes no operations."""
        return 0


def state_text(name: str) -> str:
    """`name_state(memory)`: where the numbers of a problem are between two steps."""
    return STATE.format(name=name)


class Stepped(NamedTuple):
    """What such a program returns."""

    solved: Solved
    states: list[np.ndarray]
    """Before every step, all its numbers, if they were asked for."""


@dataclass(eq=False)
class CalledBackSolves(WholeSolves):
    """A compiled program of such steps.

    Args:
        lanes: of a vector register; the problem is in the first.
    """

    lanes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state = getattr(self.library, f"{self.name}_state")
        self._state.argtypes, self._state.restype = (ctypes.c_void_p,), ctypes.c_void_p

    def solve_one(
        self,
        values: Sequence[Tensor],
        sums: Sums,
        count: int,
        max_steps: int,
        leaves_creeping: bool = True,
        keeps_states: bool = False,
    ) -> Stepped:
        """Solve one problem.

        Args:
            values: the start, (1, ...) of each unknown, of the program's dtype.
            sums: what Python computes, `count` numbers.
            leaves_creeping: is a problem left where its steps would be bent?
            keeps_states: are the numbers before every step wanted?

        Raises:
            BaseException: whatever `sums` raises. A KeyboardInterrupt is told in `solved.interrupted` instead: then the
                steps before it are done.
        """
        stop = _Calls(self, values, sums, count, keeps_states)
        found = stop.run(max_steps, leaves_creeping)
        if stop.raised is None:
            return Stepped(found, stop.states)
        if not isinstance(stop.raised, KeyboardInterrupt) or not stop.calls:
            raise stop.raised
        again = _Calls(self, values, sums, count, keeps_states)  # as far as it came, and no farther
        found = again.run(stop.calls - 1, leaves_creeping)
        if again.raised is not None:
            raise again.raised
        return Stepped(found._replace(interrupted=True), again.states)


class _Calls:
    """One run of a program, and what Python answers to it."""

    def __init__(self, program: CalledBackSolves, values: Sequence[Tensor], sums: Sums, count: int, keeps_states: bool):
        self._program, self._sums, self._keeps_states = program, sums, keeps_states
        self._shapes = [tuple(x.shape) for x in values]
        self._values = [x.detach().contiguous() for x in values]
        self._at = torch.empty(sum(x.numel() for x in values), dtype=program.dtype, device="cpu")
        self._found = torch.empty(count, dtype=program.dtype, device="cpu")
        self.calls = 0
        """Linearizations that have come to their end."""
        self.states: list[np.ndarray] = []
        self.raised: BaseException | None = None

    def run(self, max_steps: int, leaves_creeping: bool) -> Solved:
        program = self._program
        memory = torch.zeros(program.memory_bytes, dtype=torch.uint8, device="cpu")
        self._state = self._view_of(program._state(memory.data_ptr()))
        function = ctypes.CFUNCTYPE(None)(self._called)
        address = torch.tensor([ctypes.cast(function, ctypes.c_void_p).value], device="cpu")
        solved, figures = program.room_for_one(max_steps)
        outputs = [*solved.values, solved.cost, solved.gradient_norm, solved.matrix, solved.status, solved.num_steps]
        arrays = [pointers(x) for x in (self._values, (address, self._at, self._found), [*outputs, *figures])]
        steps = (ctypes.c_long * len(self._values))()
        places = [ctypes.addressof(x) for x in (arrays[0], steps, arrays[1], arrays[2])]
        bending = OF_CREEPING if leaves_creeping else OF_NONE
        job = Job(0, 1, max_steps, memory.data_ptr(), *places, bending, 1)
        while not program.advance(ctypes.byref(job), AT_ONCE):
            pass
        return solved

    def _called(self) -> None:
        if self.raised is not None:
            self._found.fill_(torch.nan)
            return
        try:
            if self._keeps_states and self.calls:
                self.states.append(self._state.copy())
            parts = self._at.clone().split([x.numel() for x in self._values])
            self._found.copy_(self._sums(tuple([x.view(s) for x, s in zip(parts, self._shapes, strict=True)])))
            self.calls += 1
        except BaseException as error:  # it cannot pass through C++
            self.raised = error
            self._found.fill_(torch.nan)

    def _view_of(self, address: int) -> np.ndarray:
        """The numbers of the state there."""
        size, lanes, dtype = self._program.layout.state, self._program.lanes, self._program.dtype
        numbers = (NUMBERS[dtype] * (size * lanes)).from_address(address)
        return np.frombuffer(numbers, NUMPY[dtype]).reshape(size, lanes)[:, 0]
