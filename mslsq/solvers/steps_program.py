"""The native program of a solver's start and step, whatever is linearized: it is compiled once for a machine.

A step of a problem with two unknowns takes PyTorch 300 operations on tensors of one entry, 1 ms beside the 0.4 of its
linearization. As C++ they take some µs. What they compute depends on the solver and on the shapes of the variables
alone, so that the program serves every residual (`native_steps`).
"""

import dataclasses
import hashlib
import json
import threading
import warnings
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.kernels.build import CompilerError
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.linearize.programs import Drafted
from mslsq.linearize.prospects import PROGRAM_SECONDS
from mslsq.native import noted
from mslsq.native.called_back import SHARED, CalledBack, CalledBackSolves, state_text
from mslsq.native.processor import VECTOR_BYTES, model, target
from mslsq.native.scalars import NotScalarError
from mslsq.native.steps_text import Functions, solving_text
from mslsq.native.store import STORE, Build, kept, request
from mslsq.native.tables import Layout
from mslsq.native.text import source
from mslsq.solution import Status
from mslsq.solvers.few_problems import RELATIVE, differ
from mslsq.solvers.scalar_step import key_of_steps, scalar_steps
from mslsq.solvers.scalar_system import Sums
from mslsq.solvers.solver import MethodState, Solver
from mslsq.solvers.state import Record
from mslsq.solvers.step import Step
from mslsq.solvers.whole_program import LARGEST, NativeDifferenceWarning

NAME = "steps"

ROOMS = (*noted.ROOMS, "solvers", "linear")
"""Where the code is that makes the text."""

SIZE = 64
"""Kinds of steps that a process keeps in mind."""

Places = list[np.ndarray | None]
"""Of every tensor of a state where its numbers are; None of what a direct solver does not keep."""


class StepsProgram(Drafted):
    """Of one solver and one structure: found in the folder of programs, or written once that has paid. `why_not` says
    in words why there will be none.

    Args:
        linearizer: of one problem.
        values: of one problem, (1, count, storage).
        key: under which it is noted beside the programs.
    """

    def __init__(self, solver: Solver, linearizer: Linearizer, values: Values, key: str):
        structure = linearizer.structure
        self.sums = Sums(structure.num_components, structure.size)
        self._solver, self._key, self._dtype = solver, key, values[0].dtype
        self._numbers = sum(x.numel() for x in values)
        self._seconds, self._lock = 0.0, threading.Lock()
        self._layout: Layout | None = None
        self._places: Places = []
        self._build: Build | None = None
        self._text = ""
        self._method: type = tuple
        self._is_compared = False
        """Here, or by a process before."""
        rows, columns = np.tril_indices(structure.size)
        index = np.arange(structure.num_columns * structure.size).reshape(-1, structure.size, structure.size)
        self._triangle = torch.from_numpy(index[:, rows, columns].reshape(-1))
        with self._saying_why():
            self._find()

    @property
    def _sign(self) -> str:
        """Left by a process in which this program has stepped as Python does, on such a processor."""
        assert self._build is not None  # it has begun
        told = self._key, self._build.digest, target(), model()
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]

    @property
    def is_at_hand(self) -> bool:
        """Is the program there, and was it compared, so that nothing is to be paid for it?"""
        return self._build is not None and self._is_compared and not self.why_not

    def note_seconds(self, seconds: float) -> None:
        """Steps like these have taken PyTorch so long."""
        self._seconds += seconds

    def program(self, linearizer: Linearizer, values: Values) -> CalledBackSolves | None:
        """The program, if there is one by now, and it steps as Python does; begun if that has paid."""
        if self.why_not:
            return None
        with self._lock:
            if self._build is None and self._seconds > PROGRAM_SECONDS:
                with self._saying_why():
                    self._begin(linearizer, values)
            if not self.is_ready:
                return None
            self._learn_method(linearizer, values)
            if not self._is_compared:
                if not all(bool(torch.isfinite(x).all()) for x in values):
                    return None  # nothing to compare: next time
                self._compare(linearizer, values)
        return None if self.why_not else self._program

    def sum_up(self, model: Linearization) -> Tensor:
        """A linearization as the program reads it."""
        matrix = model.matrix.reshape(-1)[self._triangle]
        return torch.cat([model.cost.reshape(-1), model.gradient.reshape(-1), matrix])

    def methods(self, states: list[np.ndarray]) -> list[MethodState]:
        """The method's state before every step, (1, ...), from all numbers of the problem then."""
        first, tensors = self._first_of_method, []
        for state in states:
            places = self._places[first : first + len(self._method_dtypes)]
            tensors.append(
                [
                    torch.from_numpy(state[place][None]).to(dtype)  # type: ignore[index]
                    for place, dtype in zip(places, self._method_dtypes, strict=True)
                ]
            )
        return [self._method(*each) for each in tensors]

    # ---- where it comes from

    def _find(self) -> None:
        words = noted.words_of(self._key)
        if words is None:
            return
        digest, layout, places = json.loads(words)
        build = kept(digest)
        if build is not None:
            self._build = build
            self._lay_out(_layout(layout), [None if x is None else np.array(x, dtype=np.int64) for x in places])
            self._is_compared = STORE.has_sign(self._sign)

    def _begin(self, linearizer: Linearizer, values: Values) -> None:
        """Write the text, and give it to the compiler."""
        steps = scalar_steps(self._solver, linearizer, values, self.sums, False, NAME)
        count = steps.start.count + steps.step.count
        if count > LARGEST:
            raise NotScalarError(f"a step takes {count:,} operations of scalars, more than {LARGEST:,}")
        layout = steps.layout((), SHARED)
        functions = Functions(CalledBack(self._numbers, self.sums.count), steps.start, steps.step)
        text = [solving_text(NAME, functions, layout), state_text(NAME)]
        self._text = source(text, self._dtype, VECTOR_BYTES[target()], ("normal.h", "steps.h"))
        self._build = request(self._text, wait=False)
        self._lay_out(layout, steps.places)

    def _lay_out(self, layout: Layout, places: Places) -> None:
        self._layout, self._places, self._making = layout, places, self

    def wait(self, patience: float = 0.0) -> None:
        """Wait for the compiler, at most that number of seconds."""
        if self._text:
            request(self._text, wait=True, patience=patience)

    def _take_up(self) -> None:
        assert self._build is not None and self._layout is not None  # it has begun
        library = self._build.library()
        if self._build.why:
            raise CompilerError(self._build.why)
        if library is None:
            return
        lanes = VECTOR_BYTES[target()] // self._dtype.itemsize
        self._program = CalledBackSolves(library, NAME, self._layout, self._dtype, False, lanes)
        if self._text:
            places = [None if x is None else x.tolist() for x in self._places]
            noted.leave_words(self._key, json.dumps([self._build.digest, dataclasses.astuple(self._layout), places]))
            self._text = ""

    # ---- is it right?

    def _compare(self, linearizer: Linearizer, values: Values) -> None:
        """Does it step as Python does, from these values, on a problem that is made for it? What the user wrote is not
        called."""
        self._is_compared = True
        linearizer, python = self._made(linearizer)
        expected = self._stepped(python, linearizer, values)
        rounded = self._stepped(dataclasses.replace(python, moved=True), linearizer, values)
        program: CalledBackSolves = self._program
        count, sums = self.sums.count, lambda at: self.sum_up(python.linearize(at, ()))
        solved, states = program.solve_one(values, sums, count, 2, False, True)
        methods = [x.to(self._dtype) for state in self.methods(states) for x in state]
        figures = _figures(solved.values, solved.matrix, solved.history.columns, solved.status, methods)
        if differ(figures, expected, rounded, RELATIVE[self._dtype]):
            self.why_not = "its numbers differ from those of PyTorch"
            warnings.warn(
                "The native program of a solver's steps computes other numbers than PyTorch, which is used instead. "
                "Please report this with the solver; native='never' on it avoids the attempt.",
                NativeDifferenceWarning,
                stacklevel=2,
            )
        else:
            STORE.leave_sign(self._sign)

    def _made(self, linearizer: Linearizer) -> tuple[Linearizer, "_Made"]:
        """A problem of this structure that is not the user's."""
        system = dataclasses.replace(linearizer.system, terms=(), key=None)
        return (
            dataclasses.replace(linearizer, system=system, assemblies=()),
            _Made(self.sums, linearizer.structure.num_columns),
        )

    def _learn_method(self, linearizer: Linearizer, values: Values) -> None:
        """Of what kind the method's state is, and where its numbers are."""
        if self._method is not tuple:
            return
        linearizer, python = self._made(linearizer)
        state, _ = Step(self._solver, linearizer, python.linearize).start(values, ())
        self._method_dtypes, self._first_of_method = [x.dtype for x in state.method], len(values) + len(state.model)
        self._method = type(state.method)

    def _stepped(self, python: "_Made", linearizer: Linearizer, values: Values) -> list[Tensor]:
        """What two steps of Python come to, as `_figures` has it."""
        step = Step(self._solver, linearizer, python.linearize)
        state, record = step.start(values, ())
        records, methods = [record], []
        for _ in range(2):
            if int(state.status[0]) != Status.RUNNING:
                break
            methods += [x.to(self._dtype) for x in state.method]
            state, record = step(state, ())
            records.append(record)
        columns = [torch.stack([getattr(x, name) for x in records], 1) for name in Record._fields]
        return _figures(state.values, state.model.matrix, columns, state.status, methods)


def _figures(values: Any, matrix: Tensor, columns: list[Tensor], status: Tensor, methods: list[Tensor]) -> list[Tensor]:
    """What is compared, each (1, numbers)."""
    dtype, (*history, accepted) = values[0].dtype, columns
    found = [*values, matrix, *history, accepted[:, 1:].to(dtype), status.to(dtype), *methods]
    return [x.reshape(1, -1) for x in found if x.numel()]


@dataclasses.dataclass(frozen=True)
class _Made:
    """A problem whose steps are neither small nor all accepted, with slopes that no code of a user's has computed.

    Args:
        moved: is everything rounded otherwise?
    """

    sums: Sums
    columns: int
    moved: bool = False

    def linearize(self, values: Values, inputs: TermInputs) -> Linearization:
        """A residual (components, size + 2) that bends with all values, and a Jacobian that follows it."""
        x = torch.cat([x.reshape(-1) for x in values])
        eps = 8 * torch.finfo(x.dtype).eps
        along = (x * torch.arange(1, len(x) + 1, device="cpu").to(x) ** 0.5).sum() * (1 + eps * self.moved)
        parts, size = self.sums.components, self.sums.size
        number = torch.arange(parts * (size + 2) * size, device="cpu").to(x).reshape(parts, size + 2, size)
        jacobian = 0.4 * torch.cos(1.7 * number**1.1 + along) + torch.eye(size + 2, size, device="cpu").to(x)
        residual = 1 + torch.sin(number[..., 0] + 3 * along)
        gradient = torch.einsum("crs,cr->cs", jacobian, residual)
        matrix = torch.einsum("crs,crt->cst", jacobian, jacobian)
        flat = gradient.reshape(1, -1)
        return Linearization(0.5 * (residual**2).sum()[None], flat, matrix[None], flat)


def _layout(fields: list[Any]) -> Layout:
    """From what `json` made of its fields."""
    unknowns, own, shared, state, cost, status, steps, matrix, creep, patience = fields
    given = tuple(unknowns), tuple((n, is_real) for n, is_real in own), shared, state
    return Layout(*given, cost, status, steps, tuple(matrix), creep, patience)


_KNOWN: OrderedDict[Hashable, StepsProgram] = OrderedDict()
_LOCK = threading.Lock()


def steps_program(solver: Solver, linearizer: Linearizer, values: Values) -> StepsProgram | None:
    """That of such steps; None where it is not known what they depend on.

    Args:
        linearizer: of one problem.
        values: of one problem, (1, count, storage).
    """
    if values[0].dtype not in (torch.float64, torch.float32):
        return None
    key = key_of_steps(solver, linearizer, values)
    told = "" if key is None else repr(key)
    if key is None or " at 0x" in told:
        return None
    with _LOCK:
        if key not in _KNOWN:
            _KNOWN[key] = StepsProgram(solver, linearizer, values, noted.hashed(ROOMS, NAME, told, target()))
            while len(_KNOWN) > SIZE:
                _KNOWN.popitem(last=False)
        return _KNOWN[key]
