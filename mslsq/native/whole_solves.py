"""Runs the native program of whole solves, for a short time at once: in between Python may stop it."""

import ctypes
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.kernels.threads import in_parts
from mslsq.native.tables import Layout
from mslsq.solution import padded

PROBLEMS_OF_A_THREAD = 256
"""Fewer are not given to a thread of their own: starting it takes as long."""

SECONDS_AT_A_TIME = 0.02
"""After which a program returns to Python, which may have been told to stop; it is called again until all is done."""

AT_ONCE = 8192
"""More problems are solved in slices of that many, since there is room for the history of all steps: 33 KB of a problem
with 1,000 steps, of which that is touched which is used."""

OWN_ROOMS = 8
"""More slices share one room: each has up to 54 MB in float64 with 200 steps."""

GROUP = 8
"""Steps of a problem that stand side by side in the history; as in `steps.h`."""

FIRST_BUDGET = 100
"""Steps of a vector of problems in the first call, of which nothing is known; 5,000 operations of a vector take 10 to
50 microseconds."""


class Steps:
    """What the steps of each problem have come to."""

    def __init__(self, columns: list[Tensor]):
        self._columns = columns

    @property
    def columns(self) -> list[Tensor]:
        """Cost, gradient norm, step norm, damping, NaN after the stop, and whether the step was accepted, each
        (batch, n + 1). n are the steps of the problem that took most, or as many as were launched on a GPU, which is
        asked for it where there are very many problems."""
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        """Cost and gradient norm of the start, (batch,)."""
        return [column[:, 0] for column in self.columns[:2]]


class Solved(NamedTuple):
    """What a program returns, per problem."""

    values: tuple[Tensor, ...]
    """(batch, numbers) of each unknown."""
    cost: Tensor
    gradient_norm: Tensor
    matrix: Tensor
    """(batch, entries)"""
    status: Tensor
    """Of a problem that was still running after the last step: 0."""
    num_steps: Tensor
    history: "Steps"
    interrupted: bool = False
    """By a KeyboardInterrupt? Then some problems are not done, their status 0, and still where they began; on a GPU,
    where their steps have led."""


RUNNING, CREEPS = 0, -2
"""The status of a problem whose steps have run out, and of one that would be bent, which this program does not do; as
in `steps.h`."""

OF_CREEPING, OF_ALL, OF_NONE = range(3)
"""Whose steps are bent: those of problems that creep, of all problems, of none; as in `steps.h`."""

UNSOLVED = -1
"""The status of a problem that no program has come to the end of."""


class Job(ctypes.Structure):
    """`Job` of `steps.h`."""

    _fields_ = (
        ("next", ctypes.c_long),
        ("end", ctypes.c_long),
        ("max_steps", ctypes.c_long),
        ("memory", ctypes.c_void_p),
        ("own", ctypes.c_void_p),
        ("own_steps", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("bending", ctypes.c_long),
        ("problems", ctypes.c_long),
    )


@dataclass(eq=False)
class WholeSolves:
    """A compiled program that solves problems of one structure, any number of them.

    Args:
        library: with the functions `name` and `name_bytes`.
        dtype: of real numbers.
        bends: are the steps of problems that creep bent? Those problems are left otherwise.
    """

    library: ctypes.CDLL
    name: str
    layout: Layout
    dtype: torch.dtype
    bends: bool

    def __post_init__(self) -> None:
        self.advance = getattr(self.library, self.name)
        self.advance.argtypes, self.advance.restype = (ctypes.POINTER(Job), ctypes.c_long), ctypes.c_long
        size = getattr(self.library, f"{self.name}_bytes")
        size.restype = ctypes.c_long
        self.memory_bytes = int(size())

    def solve(
        self,
        values: Sequence[Tensor],
        own: Sequence[Tensor],
        shared: Sequence[Tensor],
        max_steps: int,
        looks: bool = True,
        bending: int = OF_CREEPING,
    ) -> Solved:
        """Solve all problems.

        Args:
            values: the starts, (batch, ...) of each unknown.
            own: inputs of which each problem has its own part, (batch, ...).
            shared: inputs that all problems have in common.
            looks: of no meaning here: nothing is waited for (`cuda.solves`).
            bending: of which problems are steps bent?
        """
        batch = len(values[0])
        if batch <= AT_ONCE:
            return self._solved_at_once(values, own, shared, max_steps, bending)
        number = -(-batch // AT_ONCE)
        ends = [batch * piece // number for piece in range(number + 1)]
        # Of very many, one room for one slice after the other; of few, nothing is put in order before it is read.
        room = _Room(-(-batch // number), max_steps, self.dtype) if number > OWN_ROOMS else None
        pieces: list[Solved] = []
        for begin, end in itertools.pairwise(ends):
            starts, data = ([x[begin:end] for x in tensors] for tensors in (values, own))
            steps = 0 if pieces and pieces[-1].interrupted else max_steps
            found = self._solved_at_once(starts, data, shared, steps, bending, room)
            history = found.history if room is None else Steps(found.history.columns)
            is_interrupted = found.interrupted or steps < max_steps
            pieces.append(found._replace(history=history, interrupted=is_interrupted))
        return _joined(pieces)

    def _solved_at_once(
        self,
        values: Sequence[Tensor],
        own: Sequence[Tensor],
        shared: Sequence[Tensor],
        max_steps: int,
        bending: int,
        room: "_Room | None" = None,
    ) -> Solved:
        batch = len(values[0])
        room = _Room(batch, max_steps, self.dtype) if room is None else room
        given = [by_problem(x, self.dtype) for x in (*values, *own)]
        common = [placed(x, self.dtype).contiguous() for x in shared]
        solved = self._empty(batch, room)
        outputs = [*solved.values, solved.cost, solved.gradient_norm, solved.matrix, solved.status, solved.num_steps]
        outputs += [*room.figures, room.accepted]
        steps = (ctypes.c_long * len(given))(*[x.stride(0) if batch > 1 else 0 for x in given])
        arrays = [pointers(tensors) for tensors in (given, common, outputs)]
        threads = max(1, min(torch.get_num_threads(), batch // PROBLEMS_OF_A_THREAD))
        memory = [torch.zeros(self.memory_bytes, dtype=torch.uint8, device="cpu") for _ in range(threads)]
        jobs = [
            Job(
                batch * k // threads,
                batch * (k + 1) // threads,
                max_steps,
                memory[k].data_ptr(),
                ctypes.addressof(arrays[0]),
                ctypes.addressof(steps),
                ctypes.addressof(arrays[1]),
                ctypes.addressof(arrays[2]),
                bending,
                room.problems,
            )
            for k in range(threads)
        ]
        try:
            self.run(jobs)
        except KeyboardInterrupt:
            if max_steps == 0:  # the second one, while those are evaluated that the first one has left
                raise
            solved = solved._replace(interrupted=True)
            unsolved = (solved.status == UNSOLVED).nonzero()[:, 0]
            if not len(unsolved):
                return solved
            # Problems are taken up in their order: from the first to the last of these there are few others.
            first, last = int(unsolved[0]), int(unsolved[-1]) + 1
            starts, data = ([x[first:last] for x in tensors] for tensors in (values, own))
            return _merged(solved, self._solved_at_once(starts, data, shared, 0, bending), unsolved, first)
        return solved

    def run(self, jobs: list[Job]) -> None:
        """Advance all jobs until they are done, each in a thread, for `SECONDS_AT_A_TIME` at a time."""
        budget = FIRST_BUDGET
        while jobs:
            done = [False] * len(jobs)

            def part(begin: int, end: int, done: list[bool] = done, jobs: list[Job] = jobs) -> None:
                for k in range(begin, end):
                    done[k] = bool(self.advance(ctypes.byref(jobs[k]), budget))  # noqa: B023

            started = time.perf_counter()
            in_parts(part, len(jobs), len(jobs))
            seconds = time.perf_counter() - started
            jobs = [job for job, is_done in zip(jobs, done, strict=True) if not is_done]
            budget = max(1, int(budget * min(8.0, SECONDS_AT_A_TIME / max(seconds, 1e-6))))

    def room_for_one(self, max_steps: int) -> tuple[Solved, list[Tensor]]:
        """What a run of one problem writes to, and the history behind that."""
        room = _Room(1, max_steps, self.dtype)
        return self._empty(1, room), [*room.figures, room.accepted]

    def _empty(self, batch: int, room: "_Room") -> Solved:
        real, unknowns = self.dtype, self.layout.unknowns
        cost, gradient_norm = torch.empty(batch, dtype=real, device="cpu"), torch.empty(batch, dtype=real, device="cpu")
        matrix = torch.empty(batch, len(self.layout.matrix), dtype=real, device="cpu")
        status, num_steps = torch.full((2, batch), UNSOLVED, device="cpu")
        values = tuple([torch.empty(batch, size, dtype=real, device="cpu") for size in unknowns])
        return Solved(values, cost, gradient_norm, matrix, status, num_steps, _InRoom(room, num_steps))


class _Room:
    """Room for the history of all steps, of which little is used: 1,000 fits of ten steps would fill 6 MB with NaN, and
    touch as many new pages, in a third of their time."""

    def __init__(self, batch: int, max_steps: int, dtype: torch.dtype):
        groups = max_steps // GROUP + 1
        self.problems = batch
        self.figures = torch.empty(4, groups, batch, GROUP, dtype=dtype, device="cpu")
        self.accepted = torch.empty(groups, batch, GROUP, dtype=torch.bool, device="cpu")

    def columns(self, num_steps: Tensor) -> list[Tensor]:
        """Of the first problems, which took these numbers of steps, as `Steps` has them; in memory of their own."""
        batch, columns = len(num_steps), max(int(num_steps.max()), 0) + 1
        groups = -(-columns // GROUP)
        used = torch.arange(columns, device="cpu") <= num_steps[:, None]

        def side_by_side(x: Tensor) -> Tensor:
            return x[..., :groups, :batch, :].movedim(-2, -3).flatten(-2)[..., :columns]

        figures = side_by_side(self.figures).masked_fill(~used, torch.nan)
        return [*figures.unbind(), side_by_side(self.accepted) & used]


class _InRoom(Steps):
    """Steps that are put in order when they are read, which few do; the room is given back then."""

    def __init__(self, room: _Room, num_steps: Tensor):
        super().__init__([])
        self._room: _Room | None = room
        self._num_steps = num_steps

    @property
    def columns(self) -> list[Tensor]:
        if self._room is not None:
            self._columns, self._room = self._room.columns(self._num_steps), None
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        if self._room is None:
            return super().of_start
        return list(self._room.figures[:2, 0, : len(self._num_steps), 0].clone())


class _Joined(Steps):
    """Those of several solves, joined when they are read."""

    def __init__(self, parts: list[Steps]):
        super().__init__([])
        self._parts = parts

    @property
    def columns(self) -> list[Tensor]:
        if self._parts:
            histories = [part.columns for part in self._parts]
            length = max(columns[0].shape[1] for columns in histories)
            self._columns = [
                torch.cat([padded(column, length - column.shape[1]) for column in columns])
                for columns in zip(*histories, strict=True)
            ]
            self._parts = []
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        if not self._parts:
            return super().of_start
        return [torch.cat(figures) for figures in zip(*(part.of_start for part in self._parts), strict=True)]


def _joined(pieces: list[Solved]) -> Solved:
    """The problems of several solves as those of one."""

    def together(name: str) -> Tensor:
        return torch.cat([getattr(piece, name) for piece in pieces])

    return Solved(
        tuple(torch.cat(x) for x in zip(*(piece.values for piece in pieces), strict=True)),
        together("cost"),
        together("gradient_norm"),
        together("matrix"),
        together("status"),
        together("num_steps"),
        _Joined([piece.history for piece in pieces]),
        pieces[-1].interrupted,
    )


class _Merged(Steps):
    """Those of a solve in which some problems are where they began; put in order when they are read, which takes a
    second of 20,000 problems with 1,000 steps, and who interrupts a solve does not wait for that."""

    def __init__(self, steps: Steps, at_start: Steps, chosen: Tensor, own: Tensor):
        super().__init__([])
        self._parts: tuple[Steps, Steps] | None = steps, at_start
        self._chosen, self._own = chosen, own

    @property
    def columns(self) -> list[Tensor]:
        if self._parts is not None:
            self._columns, at_start = (part.columns for part in self._parts)
            for whole, own in zip(self._columns, at_start, strict=True):
                whole[self._chosen] = torch.nan if whole.is_floating_point() else False
                whole[self._chosen, :1] = own[self._own]
            self._parts = None
        return self._columns

    @property
    def of_start(self) -> list[Tensor]:
        if self._parts is None:
            return super().of_start
        figures, at_start = (part.of_start for part in self._parts)
        for whole, own in zip(figures, at_start, strict=True):
            whole[self._chosen] = own[self._own]
        return figures


def _merged(solved: Solved, at_start: Solved, chosen: Tensor, first: int) -> Solved:
    """With some problems where they began; `at_start` has those from `first` on."""
    own = chosen - first
    for name in ("cost", "gradient_norm", "matrix", "status", "num_steps"):
        getattr(solved, name)[chosen] = getattr(at_start, name)[own]
    for whole, start in zip(solved.values, at_start.values, strict=True):
        whole[chosen] = start[own]
    return solved._replace(history=_Merged(solved.history, at_start.history, chosen, own))


def placed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In the types that a program reads, with the numbers themselves in memory."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype if tensor.is_floating_point() else torch.int64)


def by_problem(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of each problem side by side."""
    tensor = placed(tensor, dtype)
    is_dense = tensor.is_contiguous() or tensor[0].is_contiguous()
    return tensor if is_dense else tensor.contiguous()


def pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Where their numbers begin."""
    return (ctypes.c_void_p * max(len(tensors), 1))(*[x.data_ptr() for x in tensors])
