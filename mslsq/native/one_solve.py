"""Runs the native program of whole solves on one problem, with as little around it as there can be.

A fit of 32 points takes the program 10 µs. Whatever is around it counts: a tensor more is another 2 µs.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mslsq.native.whole_solves import (
    CREEPS,
    FIRST_BUDGET,
    OF_CREEPING,
    RUNNING,
    UNSOLVED,
    Job,
    WholeSolves,
    by_problem,
    placed,
)
from mslsq.private import empty_maker
from mslsq.solution import Status

NUMPY = {torch.float64: np.float64, torch.float32: np.float32}
NUMBERS = {torch.float64: ctypes.c_double, torch.float32: ctypes.c_float}


class SolvedOne(NamedTuple):
    """What a program returns of one problem."""

    values: tuple[Tensor, ...]
    """Of each unknown, in the shape that was asked for."""
    memory: Tensor
    """The bytes of all else, side by side: a view is made of what is read."""
    places: "_Places"
    """Where in there it is."""
    first_gradient_norm: float
    status: int
    max_steps: int
    interrupted: bool = False
    """By a KeyboardInterrupt?"""

    @property
    def history(self) -> Tensor:
        """Cost, gradient norm, step norm, damping: (4, max_steps + 1), NaN after the stop, in memory of its own."""
        kept = self.memory[: self.places.figures].view(self.places.dtype).view(4, -1)
        return pad(kept, (0, self.max_steps + 1 - self.places.columns), value=torch.nan).clone()

    @property
    def figures(self) -> Tensor:
        """Cost, gradient norm, and the entries of the matrix."""
        return self.memory[self.places.figures : self.places.figures_end].view(self.places.dtype)

    @property
    def cost_and_matrix(self) -> tuple[float, np.ndarray]:
        """The cost, and the entries of the matrix."""
        kept = self.memory.numpy()[self.places.figures : self.places.figures_end].view(NUMPY[self.places.dtype])
        return float(kept[0]), kept[2:]

    @property
    def counts(self) -> Tensor:
        """Status and number of steps."""
        return self.memory[self.places.counts : self.places.accepted].view(torch.int64)

    @property
    def has_converged(self) -> bool:
        """Has it met a tolerance, and was not interrupted?"""
        return not self.interrupted and Status.COST_TOLERANCE <= int(self.counts[0]) <= Status.STEP_TOLERANCE

    @property
    def creeps(self) -> bool:
        """Has the program left it because it creeps?"""
        return self.status == CREEPS

    @property
    def accepted(self) -> Tensor:
        """(max_steps + 1,), in memory of its own."""
        kept = self.memory[self.places.accepted :].view(torch.bool)
        return pad(kept, (0, self.max_steps + 1 - self.places.columns), value=False).clone()

    @property
    def at_start(self) -> Tensor:
        """(4,) of the history."""
        return self.memory[: self.places.figures].view(self.places.dtype).view(4, -1)[:, 0]


class _Places:
    """Where in one piece of memory a program leaves what it returns besides values, in bytes from its begin.

    Four tensors of their own took a call of 30 µs 8 µs.
    """

    def __init__(self, dtype: torch.dtype, matrix: int, max_steps: int):
        self.dtype, self.columns = dtype, max_steps + 1
        size = dtype.itemsize
        row = size * self.columns
        self.figures = 4 * row
        self.figures_end = self.figures + size * (2 + matrix)
        self.counts = -(-self.figures_end // 8) * 8
        self.accepted = self.counts + 16
        self.bytes = self.accepted + self.columns
        self.first_gradient_norm = row
        cost, status = self.figures, self.counts
        of_figures = (cost, cost + size, cost + 2 * size)
        self.outputs = (*of_figures, status, status + 8, *range(0, 4 * row, row), self.accepted)
        """Of what a program writes after the values, in its order."""
        self._empty = empty_maker((self.bytes,), (1,), torch.uint8)

    def made(self) -> tuple[Tensor, int]:
        """Such memory and its address: NaN, UNSOLVED, and nothing accepted."""
        memory = self._empty()
        at = memory.data_ptr()
        ctypes.memset(at, 0xFF, self.accepted)  # all bits of NaN, and of -1
        ctypes.memset(at + self.accepted, 0, self.columns)
        return memory, at


class _Slots:
    """What a call of the program takes besides tensors, kept for the next call."""

    def __init__(self, own: int, shared: int, outputs: int, memory_bytes: int):
        self.own = (ctypes.c_void_p * max(own, 1))()
        self.shared = (ctypes.c_void_p * max(shared, 1))()
        self.outputs = (ctypes.c_void_p * outputs)()
        self._steps = (ctypes.c_long * max(own, 1))()
        self._memory = ctypes.create_string_buffer(memory_bytes)
        places = (self._memory, self.own, self._steps, self.shared, self.outputs)
        self.job = Job(0, 1, 0, *map(ctypes.addressof, places), OF_CREEPING, 1)
        self.reference = ctypes.byref(self.job)


@dataclass(eq=False)
class OneSolve:
    """A program that solves one problem at a time, in as many threads as call it.

    It is given room for the history of few steps, which most solves keep to: of 1,000 that is 33 kB to be filled.
    """

    program: WholeSolves
    _room: int = FIRST_BUDGET
    """Steps of which the history is kept at first."""
    _spare: list[_Slots] = field(default_factory=list)
    _last_places: _Places | None = None
    """Of the last call: calls differ in their number of steps seldom."""

    def solve(
        self,
        values: Sequence[Tensor],
        own: Sequence[Tensor],
        shared: Sequence[Tensor],
        max_steps: int,
        shapes: Sequence[tuple[int, ...]],
    ) -> SolvedOne:
        """Solve one problem.

        Args:
            values: the start, (1, ...) of each unknown.
            own: inputs of which each problem has its own part, (1, ...).
            shared: the others.
            shapes: in which each unknown is returned.
        """
        solved = self._solved(values, own, shared, min(max_steps, self._room), max_steps, shapes)
        if solved is None:  # it takes more steps: the next may, too
            self._room = max_steps
            solved = self._solved(values, own, shared, max_steps, max_steps, shapes)
            assert solved is not None  # there was room for all
        return solved

    def _solved(
        self,
        values: Sequence[Tensor],
        own: Sequence[Tensor],
        shared: Sequence[Tensor],
        room: int,
        max_steps: int,
        shapes: Sequence[tuple[int, ...]],
    ) -> SolvedOne | None:
        """`solve` with room for the history of that many steps; None where it has taken them and would go on."""
        real, places = self.program.dtype, self._places(room)
        given = [by_problem(x, real) for x in (*values, *own)]
        common = [placed(x, real).contiguous() for x in shared]
        found = tuple([torch.empty(shape, dtype=real, device="cpu") for shape in shapes])
        memory, at = places.made()
        outputs = [x.data_ptr() for x in found]
        outputs += [at + place for place in places.outputs]
        try:
            slots = self._spare.pop()
        except IndexError:
            slots = _Slots(len(given), len(common), len(outputs), self.program.memory_bytes)
        slots.own[:] = [x.data_ptr() for x in given]
        if common:
            slots.shared[:] = [x.data_ptr() for x in common]
        slots.outputs[:] = outputs
        slots.job.next, slots.job.max_steps = 0, room
        try:
            if not self.program.advance(slots.reference, FIRST_BUDGET):
                self.program.run([slots.job])
        except KeyboardInterrupt:
            status = ctypes.c_long.from_address(at + places.counts).value
            solved = SolvedOne(found, memory, places, 0.0, status, max_steps)
            return self._interrupted(solved, values, own, shared)
        self._spare.append(slots)
        status = ctypes.c_long.from_address(at + places.counts).value
        if room < max_steps and status == RUNNING:
            return None
        first = NUMBERS[real].from_address(at + places.first_gradient_norm).value
        return SolvedOne(found, memory, places, first, status, max_steps)

    def _places(self, max_steps: int) -> _Places:
        places = self._last_places
        if places is None or places.columns != max_steps + 1:
            places = _Places(self.program.dtype, len(self.program.layout.matrix), max_steps)
            self._last_places = places
        return places

    def _interrupted(
        self, solved: SolvedOne, values: Sequence[Tensor], own: Sequence[Tensor], shared: Sequence[Tensor]
    ) -> SolvedOne:
        """The problem where it began, if it has not come to its end."""
        first = float(solved.at_start[1])
        if solved.status != UNSOLVED:
            return solved._replace(first_gradient_norm=first, interrupted=True)
        start = self.solve(values, own, shared, 0, [x.shape for x in solved.values])
        memory, _ = solved.places.made()
        begun = SolvedOne(
            start.values, memory, solved.places, start.first_gradient_norm, start.status, solved.max_steps, True
        )
        begun.at_start[:] = start.at_start
        begun.figures[:], begun.counts[:] = start.figures, start.counts
        return begun
