"""Runs the native program of whole solves on one problem, with as little around it as there can be.

A fit of 32 points takes the program 10 µs. Whatever is around it counts: a tensor more is another 2 µs.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.native.whole_solves import FIRST_BUDGET, UNSOLVED, Job, WholeSolves, by_problem, placed

NUMBERS = {torch.float64: ctypes.c_double, torch.float32: ctypes.c_float}


class SolvedOne(NamedTuple):
    """What a program returns of one problem."""

    values: tuple[Tensor, ...]
    """Of each unknown, in the shape that was asked for."""
    figures: Tensor
    """Cost, gradient norm, and the entries of the matrix."""
    counts: Tensor
    """Status and number of steps."""
    history: Tensor
    """Cost, gradient norm, step norm, damping: (4, max_steps + 1), NaN after the stop."""
    accepted: Tensor
    """(max_steps + 1,)"""
    first_gradient_norm: float
    interrupted: bool = False
    """By a KeyboardInterrupt?"""


class _Slots:
    """What a call of the program takes besides tensors, kept for the next call."""

    def __init__(self, own: int, shared: int, outputs: int, memory_bytes: int):
        self.own = (ctypes.c_void_p * max(own, 1))()
        self.shared = (ctypes.c_void_p * max(shared, 1))()
        self.outputs = (ctypes.c_void_p * outputs)()
        self._steps = (ctypes.c_long * max(own, 1))()
        self._memory = ctypes.create_string_buffer(memory_bytes)
        places = (self._memory, self.own, self._steps, self.shared, self.outputs)
        self.job = Job(0, 1, 0, *map(ctypes.addressof, places))
        self.reference = ctypes.byref(self.job)


@dataclass(eq=False)
class OneSolve:
    """A program that solves one problem at a time, in as many threads as call it."""

    program: WholeSolves
    _spare: list[_Slots] = field(default_factory=list)

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
        real, columns = self.program.dtype, max_steps + 1
        given = [by_problem(x, real) for x in (*values, *own)]
        common = [placed(x, real).contiguous() for x in shared]
        found = tuple([torch.empty(shape, dtype=real) for shape in shapes])
        figures = torch.empty(2 + len(self.program.layout.matrix), dtype=real)
        counts, accepted = torch.full((2,), UNSOLVED), torch.zeros(columns, dtype=torch.bool)
        history = torch.full((4, columns), torch.nan, dtype=real)
        number = NUMBERS[real]
        size = ctypes.sizeof(number)
        at, noted, counted = figures.data_ptr(), history.data_ptr(), counts.data_ptr()
        outputs = [x.data_ptr() for x in found]
        outputs += [at, at + size, at + 2 * size, counted, counted + 8]
        row = size * columns
        outputs += [noted, noted + row, noted + 2 * row, noted + 3 * row, accepted.data_ptr()]
        try:
            slots = self._spare.pop()
        except IndexError:
            slots = _Slots(len(given), len(common), len(outputs), self.program.memory_bytes)
        slots.own[:] = [x.data_ptr() for x in given]
        if common:
            slots.shared[:] = [x.data_ptr() for x in common]
        slots.outputs[:] = outputs
        slots.job.next, slots.job.max_steps = 0, max_steps
        try:
            if not self.program.advance(slots.reference, FIRST_BUDGET):
                self.program.run([slots.job])
        except KeyboardInterrupt:
            solved = SolvedOne(found, figures, counts, history, accepted, 0.0)
            return self._interrupted(solved, values, own, shared)
        self._spare.append(slots)
        return SolvedOne(found, figures, counts, history, accepted, number.from_address(noted + row).value)

    def _interrupted(
        self, solved: SolvedOne, values: Sequence[Tensor], own: Sequence[Tensor], shared: Sequence[Tensor]
    ) -> SolvedOne:
        """The problem where it began, if it has not come to its end."""
        first = float(solved.history[1, 0])
        if int(solved.counts[0]) != UNSOLVED:
            return solved._replace(first_gradient_norm=first, interrupted=True)
        start = self.solve(values, own, shared, 0, [x.shape for x in solved.values])
        for whole, begun in ((solved.history, start.history), (solved.accepted, start.accepted)):
            whole.fill_(torch.nan if whole.is_floating_point() else False)[..., :1] = begun
        return start._replace(history=solved.history, accepted=solved.accepted, interrupted=True)
