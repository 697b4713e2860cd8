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
from mslsq.native.whole_steps import InRoom, Joined, Merged, Room, Steps

PROBLEMS_OF_A_THREAD = 256
"""Fewer are not given to a thread of their own: starting it takes as long."""

SECONDS_AT_A_TIME = 0.02
"""After which a program returns to Python, which may have been told to stop; it is called again until all is done."""

AT_ONCE = 8192
"""More problems are solved in slices of that many, since there is room for the history of all steps: 33 KB of a problem
with 1,000 steps, of which that is touched which is used."""

OWN_ROOMS = 8
"""More slices share one room: each has up to 54 MB in float64 with 200 steps."""

FIRST_BUDGET = 100
"""Steps of a vector of problems in the first call, of which nothing is known; 5,000 operations of a vector take 10 to
50 microseconds."""


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
        ("rows", ctypes.c_void_p),
        ("next_row", ctypes.c_long),
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
        room = Room(-(-batch // number), max_steps, self.dtype) if number > OWN_ROOMS else None
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
        room: "Room | None" = None,
    ) -> Solved:
        batch = len(values[0])
        room = Room(batch, max_steps, self.dtype) if room is None else room
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
                room.rows.data_ptr(),
                batch * k // threads,
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
        room = Room(1, max_steps, self.dtype)
        return self._empty(1, room), [*room.figures, room.accepted]

    def _empty(self, batch: int, room: Room) -> Solved:
        real, unknowns = self.dtype, self.layout.unknowns
        cost, gradient_norm = torch.empty(batch, dtype=real, device="cpu"), torch.empty(batch, dtype=real, device="cpu")
        matrix = torch.empty(batch, len(self.layout.matrix), dtype=real, device="cpu")
        status, num_steps = torch.full((2, batch), UNSOLVED, device="cpu")
        values = tuple([torch.empty(batch, size, dtype=real, device="cpu") for size in unknowns])
        return Solved(values, cost, gradient_norm, matrix, status, num_steps, InRoom(room, num_steps))


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
        Joined([piece.history for piece in pieces]),
        pieces[-1].interrupted,
    )


def _merged(solved: Solved, at_start: Solved, chosen: Tensor, first: int) -> Solved:
    """With some problems where they began; `at_start` has those from `first` on."""
    own = chosen - first
    for name in ("cost", "gradient_norm", "matrix", "status", "num_steps"):
        getattr(solved, name)[chosen] = getattr(at_start, name)[own]
    for whole, start in zip(solved.values, at_start.values, strict=True):
        whole[chosen] = start[own]
    return solved._replace(history=Merged(solved.history, at_start.history, chosen, own))


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
