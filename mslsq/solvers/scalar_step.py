"""The library's own start and step as scalars, recorded at one problem.

What they call of a linearizer and of a linear solver is put between them as functions of C++.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.linear import Cholesky
from mslsq.linear.linear_solver import Matrix, Vector
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.linearize.programs import is_of_library
from mslsq.native.arrays import Array, each, kind_of
from mslsq.native.linearizing_text import Source
from mslsq.native.scalars import Program, Scalar
from mslsq.native.steps_text import Call, Stepping
from mslsq.native.tables import Layout
from mslsq.solvers.box import Box
from mslsq.solvers.scalar_calls import Answer, Callees
from mslsq.solvers.scalar_system import Sums
from mslsq.solvers.solver import Solver
from mslsq.solvers.state import Record, State
from mslsq.solvers.step import Step

STATE = 0
"""The input of a program that holds the state; what its calls return are the next ones."""


@dataclass(frozen=True)
class _Solving(Cholesky):
    """Stands in for the linear solver while a step is recorded."""

    answer: Callable[[Matrix, Vector, Vector | None], Any] = field(default=lambda *_: None)

    def solve(self, matrix: Matrix, rhs: Vector, damping: Vector | None) -> Any:
        return self.answer(matrix, rhs, damping)


MOST_KEPT = 16
"""Starts and steps that a process keeps: recording them takes longer than recording a residual, 0.3 to 0.5 s."""

_KEPT: OrderedDict[Hashable, "ScalarSteps"] = OrderedDict()


def scalar_steps(
    solver: Solver, linearizer: Linearizer, values: Values, sums: Sums, bends: bool, name: str
) -> "ScalarSteps":
    """`ScalarSteps` of these, recorded once for all problems of one structure. The code of a user's manifold may change
    under its name."""
    key = key_of_steps(solver, linearizer, values)
    if key is None:
        return ScalarSteps(solver, linearizer, values, sums, bends, name)
    key = (*key, bends, name)
    if key not in _KEPT:
        _KEPT[key] = ScalarSteps(solver, linearizer, values, sums, bends, name)
        while len(_KEPT) > MOST_KEPT:
            _KEPT.popitem(last=False)
    return _KEPT[key]


def key_of_steps(solver: Solver, linearizer: Linearizer, values: Values) -> tuple[Hashable, ...] | None:
    """All that start and step depend on; None where that is not known."""
    unknowns, structure = linearizer.system.unknowns, linearizer.structure
    spaces = [unknown.space for unknown in unknowns]
    if not all(space.is_euclidean or is_of_library(space) for space in spaces):
        return None
    columns = tuple(tuple(columns.reshape(-1).tolist()) for columns in structure.columns)
    padding = None if structure.padding is None else tuple(structure.padding.tolist())
    places = structure.num_components, structure.size, columns, padding
    bounded = tuple(unknown.is_bounded for unknown in unknowns)
    return solver.key, tuple(spaces), bounded, tuple(x.shape for x in values), values[0].dtype, places


class ScalarSteps:
    """Start and step of a solver.

    Args:
        linearizer: of one problem.
        values: of one problem, (1, count, storage).
        sums: what the linearization gives.
        bends: is there a function for steps that are bent?
        name: of the program: `name_linearize(in, x, model)` is the linearization, `name_pull_linearize` is Jᵀr″.
    """

    def __init__(self, solver: Solver, linearizer: Linearizer, values: Values, sums: Sums, bends: bool, name: str):
        # Of the problems nothing is kept but shapes: no tensor of the user's outlives a solve by this, on no device.
        values = tuple(torch.ones(x.shape, dtype=x.dtype, device="cpu") for x in values)
        system, structure = replace(linearizer.system, terms=(), key=None), linearizer.structure.to("cpu")
        self._linearizer = replace(linearizer, system=system, structure=structure, assemblies=())
        self._solver, self._values, self._sums = solver, values, sums
        self._dtype = values[0].dtype
        self._columns = linearizer.structure.num_columns
        sides = [torch.full((1, self._columns), side, dtype=self._dtype, device="cpu") for side in (-9.0, 9.0)]
        self._box = Box(*sides) if any(unknown.is_bounded for unknown in system.unknowns) else ()
        functions = {
            "linearize": f"{name}_linearize",
            "pull": f"{name}_pull_linearize",
            "solve": f"solve_normal<{sums.components}, {sums.size}>",
        }
        self._callees = Callees(sums, self._dtype, functions)
        example, _ = self._step(lambda name, _: self._callees.example(name)).start(values, (), self._box)
        self._example: State = example
        self.places, self._size = self._placed(example)
        """Of every tensor of `State.flat` where its numbers are; None of what is not kept."""
        self.start, self.step = self._recorded_start(), self._recorded_step(bent=False)
        self.bent = self._recorded_step(bent=True) if bends else None

    def layout(self, own: Sequence[tuple[int, bool]], shared: int) -> Layout:
        """Where numbers are; `own` and `shared` as `Layout` has them."""
        count = len(self._values)
        kept = [self._place_of(name, len(self.places)) for name in ("status", "num_steps")]
        cost, matrix, status, steps = (self.places[k] for k in (count, count + 2, *kept))
        creep = self._solver.creep
        creeps = None if creep is None else self.places[count + len(Linearization._fields) + creep.place]
        assert cost is not None and matrix is not None and status is not None and steps is not None  # they are kept
        return Layout(
            tuple(x.numel() for x in (*self._values, *self._box)),
            tuple(own),
            shared,
            self._size,
            int(cost[()]),
            int(status[()]),
            int(steps[()]),
            tuple(int(place) for place in matrix.reshape(-1)),
            -1 if creeps is None else int(creeps[()]),
            0.0 if creep is None else creep.count,
        )

    def _step(self, answer: Answer, bent: bool = False) -> Step:
        """A step whose calls are answered; of dense normal equations the right-hand side is the gradient."""

        def linearize(values: Values, inputs: TermInputs) -> Linearization:
            cost, gradient, matrix = answer("linearize", values)
            return Linearization(cost, gradient, matrix, gradient)

        def solve(matrix: Matrix, rhs: Vector, damping: Vector | None) -> tuple[Vector, Tensor]:
            step, solved = answer("solve", (matrix, rhs, torch.zeros_like(rhs) if damping is None else damping))
            return step, solved > 0

        def pulled(values: Values, inputs: TermInputs, along: Vector) -> Vector:
            return answer("pull", (*values, along))[0]

        linearizer = replace(self._linearizer, linear_solver=_Solving(solve))
        return Step(self._solver, linearizer, linearize, pulled=pulled if bent else None)

    def _placed(self, example: State) -> tuple[list[np.ndarray | None], int]:
        """The places of every tensor of `State.flat`; None of what direct solvers do not keep."""
        flat = example.flat()
        count, own = len(self._values), self._sums.matrix()
        places: list[np.ndarray | None] = [None] * len(flat)
        bounds = range(len(flat) - len(self._box), len(flat))
        # Evaluations are steps and one more; the accuracy of a direct solver is full.
        unkept = [self._place_of(name, len(flat)) for name in ("num_evaluations", "accuracy")]
        size = 0
        # What is given for a problem comes first.
        for number in (*range(count), *bounds, *range(count, bounds.start)):
            if number in unkept or (number == self._repeated):
                continue
            if number == count + 2:
                places[number] = own - own.min() + size
                size += len(np.unique(own))
                continue
            tensor = flat[number]
            places[number] = np.arange(tensor.numel()).reshape(tuple(tensor.shape[1:])) + size
            size += tensor.numel()
        if self._repeated is not None:
            places[self._repeated] = places[count + 1]
        return places, size

    @property
    def _repeated(self) -> int | None:
        """Where the right-hand side stands in `State.flat`, if it is the gradient: without bounds, which hold some of
        that at zero."""
        return None if self._box else len(self._values) + 3

    def _place_of(self, field: str, count: int) -> int:
        """Where a tensor of this name stands in `State.flat`, of `count` tensors."""
        return count - len(self._box) + State._fields.index(field) - State._fields.index("box")

    def _state_arrays(self, program: Program) -> list[Array]:
        """The state as inputs of a program, in which all numbers are real."""
        arrays = []
        for tensor, places in zip(self._example.flat(), self.places, strict=True):
            kind = kind_of(tensor.dtype)
            if places is None:
                zero = program.constant(0, kind)
                arrays.append(Array(each(lambda _, zero=zero: zero, np.zeros(tuple(tensor.shape))), tensor.dtype))
                continue
            entries = each(lambda place: program.input(STATE, int(place), "real"), places[None])
            if kind == "integer":
                entries = each(lambda x: x.apply("integer"), entries)
            elif kind == "boolean":
                entries = each(lambda x: x.apply("ne", 0), entries)
            arrays.append(Array(entries, tensor.dtype))
        return arrays

    def _recorded_start(self) -> Stepping:
        count = len(self._values)

        def start(given: list[Tensor], answer: Answer) -> list[Tensor]:
            box = Box(*given[count:]) if self._box else ()
            return _flat(*self._step(answer).start(tuple(given[:count]), (), box))

        program = Program(self._dtype)
        arrays = self._state_arrays(program)
        given = [*arrays[:count], *arrays[len(arrays) - len(self._box) :]]
        return self._stepping(program, *self._callees.recorded(program, start, [*self._values, *self._box], given))

    def _recorded_step(self, bent: bool) -> Stepping:
        rhs = self._repeated

        def step(given: list[Tensor], answer: Answer) -> list[Tensor]:
            if rhs is not None:
                given.insert(rhs, given[rhs - 2])
            return _flat(*self._step(answer, bent)(self._example.like(given), ()))

        program = Program(self._dtype)
        arrays, example = self._state_arrays(program), self._example.flat()
        if rhs is not None:
            del arrays[rhs], example[rhs]
        return self._stepping(program, *self._callees.recorded(program, step, example, arrays))

    def _stepping(self, program: Program, calls: tuple[Call, ...], outputs: list[np.ndarray]) -> Stepping:
        """From what `State.flat` and the record have come to."""
        split = len(outputs) - len(Record._fields)
        state: dict[int, Scalar] = {}
        for array, places in zip(outputs[:split], self.places, strict=True):
            if places is not None:
                state |= zip(places.reshape(-1).tolist(), array.reshape(-1), strict=True)
        kept = {place: program.input(STATE, place, "real").number for place in state}
        return Stepping(
            program,
            {STATE: Source("s", 0, self._size)} | {1 + k: call.results for k, call in enumerate(calls)},
            calls,
            tuple((place, x) for place, x in sorted(state.items()) if x.number != kept[place]),
            tuple(array.reshape(-1)[0] for array in outputs[split:]),
        )


def _flat(state: State, record: Record) -> list[Tensor]:
    return [*state.flat(), *record]
