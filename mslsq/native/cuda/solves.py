"""Whole solves by a GPU: a thread takes the steps of one problem; problems that have stopped leave between launches.

Neighbouring threads step together, as long as the slowest of them. So a launch takes few steps at first; then the
problems that are still running are put side by side, and the next launch has only those. Of 16,384 decays warps then
take 1.2 to 1.4 times the steps and starts that the problems need; in one launch 1.6 to 6.3 times, and 1.7 to 2.5 times
if a thread takes the next problem by itself: it starts it while its neighbours wait, and a start costs what a step
does (counted by benchmarks/cuda_solves.py). Nothing has to be atomic, and between launches Python may be told to stop.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq import solution
from mslsq.native.cuda.driver import Module
from mslsq.native.cuda.programs import LARGEST_GRID, given
from mslsq.native.cuda.text import THREADS
from mslsq.native.operator import Placed
from mslsq.native.tables import Layout
from mslsq.native.whole_solves import OF_NONE, RUNNING, Solved, placed
from mslsq.native.whole_steps import Steps

BEGIN, ADVANCE = "begin", "advance"
"""The two kernels."""

PIECE = "piece"
"""With a number each of those that take a step in place of the second (`native.cuda.pieces`)."""

FIXED = 4
"""What a kernel is given besides what all problems share: states, records, real data and whole numbers."""

RECORD = 5
"""What is noted of a step, as in `cuda_steps.h`."""

FIRST_STEPS = 8
"""Of the first launch; later ones take as many as all before. So the thread of a problem waits for others no longer
than it has stepped, or for these eight steps, and a solve of 1,000 steps asks the device a dozen times."""

MOST_STEPS = 128
"""Of a launch, in between which Python may be told to stop."""

FULL = 2
"""A launch has at most this many times the problems that are still running: where there are more, these are put side by
side, which reads and writes all that is known of each once."""


class _Piece(NamedTuple):
    """What one launch has noted."""

    first: int
    """The step that it begins with."""
    records: Tensor
    """(RECORD, steps, problems), NaN where no step was taken."""
    places: Tensor | None
    """Of these problems in the batch; None of all."""


@dataclass(frozen=True, eq=False)
class _Problems:
    """Problems side by side: (numbers, problems) of each kind."""

    state: Tensor
    """That of `Layout`, and the norm of the gradient as one more."""
    data: Tensor
    integers: Tensor
    places: Tensor | None = None
    """In the batch; None of all."""

    @property
    def count(self) -> int:
        return self.state.shape[1]

    def of(self, chosen: Tensor) -> "_Problems":
        """Those at these places."""
        places = chosen if self.places is None else self.places[chosen]
        state, data, integers = (x.index_select(1, chosen) for x in (self.state, self.data, self.integers))
        return _Problems(state, data, integers, places)


@dataclass(eq=False)
class CudaSolves:
    """A compiled program that solves problems of one structure, any number of them.

    Args:
        module: with the kernels `name_begin` and `name_advance`, or those of pieces.
        dtype: of real numbers.
        pieces: how many kernels a step is; 0 where one kernel takes many.
        room: numbers that pieces hand on to the next ones.
    """

    module: Module
    name: str
    layout: Layout
    dtype: torch.dtype
    pieces: int = 0
    room: int = 0
    _matrix: dict[torch.device, Tensor] = field(default_factory=dict)
    """`Layout.matrix` on the devices that have asked: a list would be sent there in every solve."""

    def solve(
        self,
        values: Sequence[Tensor],
        own: Sequence[Tensor],
        shared: Sequence[Tensor],
        max_steps: int,
        looks: bool = True,
        bending: int = OF_NONE,
    ) -> Solved:
        """Solve all problems.

        Args:
            values: the starts, (batch, ...) of each unknown.
            own: inputs of which each problem has its own part, (batch, ...).
            shared: inputs that all problems have in common.
            looks: may the device be asked whether all is done? It is waited for then, once a launch. If not, one launch
                takes all steps.
            bending: of no meaning here: all steps are straight (`native.whole_solves`).
        """
        common = [placed(x, self.dtype).contiguous() for x in shared]
        whole = self._placed_side_by_side(values, own)
        pieces: list[_Piece] = []
        self._launch(BEGIN, whole, common, 0, 1, pieces)
        running, taken, interrupted = whole, 0, False
        try:
            while taken < max_steps:
                if looks:
                    left = (running.state[self.layout.status] == RUNNING).nonzero()[:, 0]
                    if not len(left):
                        break
                    if len(left) * FULL <= running.count:
                        _take_back(whole, running)
                        running = running.of(left)
                steps = min(max(taken, FIRST_STEPS), MOST_STEPS) if looks else max_steps
                steps = min(steps, max_steps - taken)
                self._launch(ADVANCE, running, common, 1 + taken, steps, pieces)
                taken += steps
        except KeyboardInterrupt:
            interrupted = True
        _take_back(whole, running)
        return self._solved(whole, pieces, looks)._replace(interrupted=interrupted)

    def _placed_side_by_side(self, values: Sequence[Tensor], own: Sequence[Tensor]) -> _Problems:
        """The numbers of all problems, of the states only what is given."""
        batch, device = len(values[0]), values[0].device
        rows = [[*values], [x for x in own if x.is_floating_point()], [x for x in own if not x.is_floating_point()]]
        dtypes = self.dtype, self.dtype, torch.int64
        sizes = [sum(x[:1].numel() for x in tensors) for tensors in rows]
        sizes[0] = self.layout.state + 1
        found = [torch.zeros(n, batch, dtype=dtype, device=device) for n, dtype in zip(sizes, dtypes, strict=True)]
        for tensors, target in zip(rows, found, strict=True):
            first = 0
            for x in tensors:
                size = x[:1].numel()
                target[first : first + size] = x.reshape(batch, size).T
                first += size
        return _Problems(*found)

    def _launch(
        self, kernel: str, problems: _Problems, shared: Sequence[Tensor], first: int, steps: int, pieces: list[_Piece]
    ) -> None:
        """Launch a kernel for these problems; what it notes goes to the pieces."""
        state, count = problems.state, problems.count
        records = state.new_full((RECORD, steps, count), torch.nan)
        pieces.append(_Piece(first, records, problems.places))  # noted before it is done: an interrupt loses nothing
        if not count:
            return
        grid = min(-(-count // THREADS), LARGEST_GRID[0]), 1
        rest = records, problems.data, problems.integers
        if kernel == ADVANCE and self.pieces:
            self._launch_pieces(state, rest, shared, steps, grid)
            return
        numbers = _given([state, *rest], shared), ctypes.c_long(steps), ctypes.c_long(count)
        self.module.launch(f"{self.name}_{kernel}", grid, THREADS, numbers)

    def _launch_pieces(
        self, state: Tensor, rest: Sequence[Tensor], shared: Sequence[Tensor], steps: int, grid: tuple[int, int]
    ) -> None:
        """Some steps, each from one place of the states to another and the next one back."""
        other, handed = torch.empty_like(state), state.new_empty(self.room, state.shape[1])
        ways = [_given([a, *rest], shared, [handed, b]) for a, b in ((state, other), (other, state))]
        for number in range(steps):
            numbers = ways[number % 2], ctypes.c_long(number), ctypes.c_long(state.shape[1])
            for piece in range(self.pieces):
                self.module.launch(f"{self.name}_{PIECE}{piece}", grid, THREADS, numbers)
        if steps % 2:
            state.copy_(other)

    def _solved(self, whole: _Problems, pieces: Sequence[_Piece], looks: bool) -> Solved:
        layout, state = self.layout, whole.state
        num_steps = state[layout.steps].long()
        columns = pieces[-1].first + pieces[-1].records.shape[1]
        if looks and whole.count > solution.WITH_WHOLE_HISTORY:
            columns = int(num_steps.max()) + 1
        figures = state.new_full((RECORD, columns, whole.count), torch.nan)
        for piece in pieces:
            records = piece.records[:, : max(columns - piece.first, 0)]
            target = figures[:, piece.first : piece.first + records.shape[1]]
            target.copy_(records) if piece.places is None else target.index_copy_(2, piece.places, records)
        return Solved(
            tuple(x.T.contiguous() for x in state[: sum(layout.unknowns)].split(layout.unknowns)),
            state[layout.cost].clone(),
            state[layout.state].clone(),
            state.index_select(0, self._matrix_on(state.device)).T.contiguous(),
            state[layout.status].long(),
            num_steps,
            Steps([*(x.T for x in figures[:-1]), figures[-1].T == 1]),
        )

    def _matrix_on(self, device: torch.device) -> Tensor:
        if device not in self._matrix:
            self._matrix[device] = torch.tensor(self.layout.matrix, device="cpu").to(device, non_blocking=True)
        return self._matrix[device]


def _given(columns: Sequence[Tensor], shared: Sequence[Tensor], more: Sequence[Tensor] = ()) -> ctypes.Structure:
    """Where a kernel finds numbers: columns of problems, what all share, and more columns."""
    by_problem = [[Placed(x, 0, x.stride(0)) for x in tensors] for tensors in (columns, more)]
    return given([*by_problem[0], *(Placed(x) for x in shared), *by_problem[1]])


def _take_back(whole: _Problems, part: _Problems) -> None:
    """The states of a part of the problems into those of all."""
    if part.places is not None:
        whole.state.index_copy_(1, part.places, part.state)
