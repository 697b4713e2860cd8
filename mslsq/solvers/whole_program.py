"""The native program of whole solves on its way: recorded, with the compiler, compared with Python's steps."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.unrolled import UnrolledCholesky
from mslsq.linearize.acceleration import bends_exactly, pulled_acceleration
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.linearize.programs import Drafted
from mslsq.native.cuda.solve_building import CudaSolveMaking, making_solves
from mslsq.native.cuda.solves import CudaSolves
from mslsq.native.one_solve import OneSolve, SolvedOne
from mslsq.native.scalars import NotScalarError
from mslsq.native.solve_building import SolveMaking
from mslsq.native.steps_text import Bending, Functions
from mslsq.native.tables import Layout
from mslsq.native.whole_solves import OF_ALL, OF_CREEPING, OF_NONE, Solved, WholeSolves
from mslsq.problem.system import Inputs
from mslsq.solution import Status, padded
from mslsq.solvers.box import Box
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.few_problems import MOVED, RELATIVE, FewProblems, differ, some_of
from mslsq.solvers.scalar_linearization import ScalarLinearization
from mslsq.solvers.scalar_step import scalar_steps
from mslsq.solvers.scalar_system import as_read, sizes_of_own
from mslsq.solvers.step import Step
from mslsq.solvers.task import Task
from mslsq.solvers.witness import DERIVATIVE_ROUNDING
from mslsq.tracing.graph import TRANSFORM_LOCK

LARGEST = 6_000
"""Operations of a program, of start, step and linearization together."""

NAME = "solves"

STALE = "it does not hold what the residual reads now"


class NativeDifferenceWarning(UserWarning):
    """A native program computes other numbers than PyTorch; it is not used."""


class RecordedSolves(NamedTuple):
    """Whole solves as scalars."""

    functions: Functions
    layout: Layout
    own: list[tuple[int, str]]
    """Term and name of the inputs of which each problem has its own part..."""
    shared: list[tuple[int, str]]
    """... and of the others."""


class SolveDraft(Drafted):
    """The program of whole solves: written when this is made, compared with Python before a plan takes it up.

    Nothing is ever raised: `why_not` says in words why there will be none, or no more.

    Args:
        values, inputs: as given by the user.
    """

    def __init__(self, task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]):
        self._making: SolveMaking | CudaSolveMaking | None = None
        self._program: WholeSolves | CudaSolves | None = None
        self._one: OneSolve | None = None
        self._is_known_to_step = False
        self.seconds = 0.0
        """Of the processor, that writing it and the comparisons have taken the calling thread."""
        with self._saying_why(), self._timed():
            recorded = recorded_solves(task, plan, values, inputs)
            self._own, self._shared, self._dtype = recorded.own, recorded.shared, values[0].dtype
            given = NAME, recorded.functions, recorded.layout, self._dtype
            self._making = making_solves(*given, values[0].device)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - begin

    @property
    def sentence(self) -> str:
        """What has become of it, for `verbose`."""
        if self.why_not or self._making is None:
            return f"Whole solves have no native program: {self.why_not}"
        return self._making.build.sentence("whole solves")

    def _take_up(self) -> None:
        super()._take_up()
        if isinstance(self._program, WholeSolves):
            self._one = OneSolve(self._program)

    @property
    def solves_one(self) -> bool:
        """Is there a way for a single problem, `solve_one`?"""
        return self._one is not None

    @property
    def leaves_creeping(self) -> bool:
        """Does it leave problems that creep, for others to bend their steps? A GPU goes on with straight ones."""
        return isinstance(self._program, WholeSolves) and not self._program.bends

    def solve(
        self,
        values: Values,
        inputs: tuple[Inputs, ...],
        box: Box | tuple[()],
        max_steps: int,
        looks: bool = True,
        bending: int = OF_CREEPING,
    ) -> Solved:
        """Solve all problems by the program, which `is_ready`; `looks` if a device may be asked whether all is done,
        `bending` is whose steps are bent (`native.whole_solves`)."""
        assert self._program is not None
        solved = self._program.solve([*values, *box], *self._read(inputs), max_steps, looks, bending)
        return solved._replace(values=solved.values[: len(values)])

    def _compared(
        self,
        values: Values,
        inputs: tuple[Inputs, ...],
        box: Box | tuple[()],
        max_steps: int,
        bending: int = OF_CREEPING,
    ) -> Solved:
        """`solve` for a comparison, of which nothing is kept: a KeyboardInterrupt ends it, and is not a solution."""
        found = self.solve(values, inputs, box, max_steps, bending=bending)
        if found.interrupted:
            raise KeyboardInterrupt
        return found

    def solve_one(
        self, values: Values, inputs: tuple[Inputs, ...], max_steps: int, shapes: Sequence[tuple[int, ...]]
    ) -> SolvedOne:
        """Solve one problem without bounds by the program, which `is_ready` and `solves_one`; `shapes` are those of
        what it finds."""
        assert self._one is not None
        return self._one.solve(values, *self._read(inputs), max_steps, shapes)

    def _read(self, inputs: tuple[Inputs, ...]) -> tuple[list[Tensor], list[Tensor]]:
        """What each problem has for itself, and what they share."""
        return as_read(inputs, self._own), as_read(inputs, self._shared)

    def agrees(self, task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...], box: Box | tuple[()]) -> bool:
        """Does the program, which `is_ready`, come to what Python comes to now, from points near some starts?

        Its linearization is compared, to rounding: what a residual reads may have changed by little since the program
        was written. Before its first use its first step is, too. Where it does not agree, `why_not` says so.
        """
        with self._timed():
            return self._agrees(task, plan, values, inputs, box)

    def _agrees(self, task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...], box: Box | tuple[()]) -> bool:
        starts = self._compared(values, inputs, box, 0)
        chosen = some_of(torch.isfinite(starts.history.of_start[1]))
        if not len(chosen):
            return False  # nothing to compare: next time
        with TRANSFORM_LOCK, torch.no_grad():
            python = _Python.of(chosen, task, plan, inputs, box)
            moved = python.moved(tuple(x.index_select(0, chosen) for x in values), MOVED)
            if not self._is_known_to_step and not self._steps_alike(python, moved):
                return False
            if self._starts_alike(python, moved):
                return True
        self.why_not = STALE
        return False

    def _steps_alike(self, python: "_Python", moved: Values) -> bool:
        """Is the first step that of Python, straight and bent?"""
        kinds = (False, True) if isinstance(self._program, WholeSolves) and self._program.bends else (False,)
        for bent in kinds:
            expected = python.step(moved, linear_solver_of(python.task, python.plan), bent)
            gradient_norm = expected[len(moved) + 2][:, 0]
            if not bool(torch.isfinite(gradient_norm).all()):
                return False  # no number of PyTorch to compare with (the root of zero, say): next time
            if not self._is_alike(python, moved, bent, expected):
                self.why_not = "its numbers differ from those of PyTorch"
                warnings.warn(
                    "The native program of a whole solve computes other numbers than PyTorch, which is used instead. "
                    "Please report this with the residual; native='never' on the solver avoids the attempt.",
                    NativeDifferenceWarning,
                    stacklevel=2,
                )
                return False
        self._is_known_to_step = True
        return True

    def _is_alike(self, python: "_Python", moved: Values, bent: bool, expected: list[Tensor]) -> bool:
        """Is one step what is expected of it, that of Python?"""
        nearby = python.moved(moved, 8 * torch.finfo(self._dtype).eps)
        rounded = python.step(nearby, UnrolledCholesky(), bent)
        # A step is known to the rounding of the values that it moves: where the residual is a column of the Jacobian,
        # the other variables move by nothing else.
        length, place = torch.cat([x.flatten(1) for x in moved], 1).norm(dim=1), len(moved) + OF_STEP_NORM
        noise = (rounded[place] - expected[place]).abs().clamp(min=torch.finfo(self._dtype).eps * length[:, None])
        rounded[place] = expected[place] + noise
        whose = OF_ALL if bent else OF_NONE
        found = _figures(self._compared(moved, python.inputs, python.box, 1, whose))
        return not differ(found, expected, rounded, RELATIVE[self._dtype])

    def _starts_alike(self, python: "_Python", moved: Values) -> bool:
        """Are cost and matrix those of Python?"""
        nearby = python.moved(moved, 8 * torch.finfo(self._dtype).eps)
        found = self._compared(moved, python.inputs, python.box, 0)
        expected, rounded = python.start(moved), python.start(nearby)
        columns = expected.matrix.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        columns = torch.where(columns > 0, columns, 1)

        def figures(cost: Tensor, matrix: Tensor) -> list[Tensor]:
            scaled = matrix.reshape_as(expected.matrix) / columns[..., None] / columns[..., None, :]
            return [scaled.flatten(1), cost[:, None]]

        relative = DERIVATIVE_ROUNDING[self._dtype] * torch.finfo(self._dtype).eps
        return not differ(figures(found.cost, found.matrix), figures(*expected), figures(*rounded), relative)


def recorded_solves(task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...]) -> RecordedSolves:
    """What a program of whole solves is made of.

    Raises:
        NotScalarError: it has none; names the operation.
        DataDependentError, RuntimeError: no graph can be recorded.
    """
    dtype = values[0].dtype
    if dtype not in (torch.float64, torch.float32):
        raise NotScalarError(f"programs are of float64 and float32, the variables are of {dtype}")
    with TRANSFORM_LOCK, torch.no_grad():
        linearizer = plan.linearizer(task.system, 1, task.batched, linear_solver_of(task, plan))
        bends = task.solver.creep is not None and values[0].device.type == "cpu"  # the steps of a GPU are straight
        # Where r″ is a difference in PyTorch, the steps of both would not be the same.
        pairs = zip(linearizer.blocks, inputs, strict=True)
        bends = bends and all(bends_exactly(block, values, given) for block, given in pairs)
        linearization = ScalarLinearization(linearizer, values, inputs, bends)
        bends = linearization.bends is not None and linearization.count_of_bends <= LARGEST
        steps = scalar_steps(task.solver, linearizer, tuple(x[:1] for x in values), linearization.sums, bends, NAME)
    count = linearization.count + steps.start.count + steps.step.count
    if count > LARGEST:
        raise NotScalarError(f"a step takes {count:,} operations of scalars, more than {LARGEST:,}")
    reads = linearization.reads
    own = sizes_of_own(inputs, reads)
    layout = steps.layout(own, len(reads.shared))
    functions = Functions(linearization.form(), steps.start, steps.step)
    if steps.bent is not None:
        functions = replace(functions, bending=Bending(linearization.form_of_bends(), steps.bent))
    return RecordedSolves(functions, layout, reads.own, reads.shared)


class _Start(NamedTuple):
    """Of a linearization: cost (problems,), and normal equations (problems, components, columns, columns)."""

    cost: Tensor
    matrix: Tensor


class _Python(FewProblems):
    """The library's own step on a few problems."""

    def start(self, values: Values) -> "_Start":
        """What a linearization comes to."""
        linearizer = self.linearizer(UnrolledCholesky())
        found = linearizer.linearize(values, linearizer.prepare(self.inputs))
        return _Start(found.cost, found.matrix)

    def step(self, values: Values, linear: LinearSolver, bent: bool) -> list[Tensor]:
        """What the first step comes to, as `_figures` has it."""
        linearizer, solver = self.linearizer(linear), self.task.solver
        given = linearizer.prepare(self.inputs)
        step = Step(solver, linearizer, linearizer.linearize)
        if bent:
            pulled = partial(pulled_acceleration, linearizer)
            step = replace(step, solver=solver.bending_always(), pulled=pulled)
        before, first = step.start(values, given, self.box)
        after, second = step(before, given)
        is_running = before.status == Status.RUNNING
        history = [torch.stack(pair, 1) for pair in zip(first[:4], second[:4], strict=True)]
        history = [torch.where(torch.stack((is_running | True, is_running), 1), x, torch.nan) for x in history]
        return [
            *(x.flatten(1) for x in after.values),
            after.model.matrix.flatten(1),
            *history,
            after.status.to(values[0].dtype)[:, None],
            (second.accepted & is_running).to(values[0].dtype)[:, None],
        ]


OF_STEP_NORM = 3
"""Where `_figures` has it, behind the values."""


def _figures(solved: Solved) -> list[Tensor]:
    """What is compared of a solve of one step."""
    dtype = solved.cost.dtype
    *history, accepted = [padded(x, 2 - x.shape[1]) for x in solved.history.columns]
    return [*solved.values, solved.matrix, *history, solved.status.to(dtype)[:, None], accepted[:, 1:].to(dtype)]
