"""The library's own start and step as scalars, recorded at one problem, around a linearization that is put between."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq.linear.unrolled import UnrolledCholesky
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.native.arrays import Array, each, kind_of
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program, Scalar
from mslsq.native.steps_text import Layout, Source, Stepping
from mslsq.solvers.scalar_linearization import Sums
from mslsq.solvers.solver import Solver
from mslsq.solvers.step import Record, State, Step
from mslsq.tracing.graph import distinct, graph_of

STATE, MODEL = 0, 1
"""The inputs of both programs."""


class ScalarSteps:
    """Start and step of a solver.

    Args:
        linearizer: of one problem.
        values: of one problem, (1, count, storage).
        sums: what the linearization gives.
    """

    def __init__(self, solver: Solver, linearizer: Linearizer, values: Values, sums: Sums):
        self._solver, self._values, self._sums = solver, values, sums
        self._linearizer = replace(linearizer, linear_solver=UnrolledCholesky())
        self._dtype = values[0].dtype
        cost = torch.ones(1, dtype=self._dtype)
        gradient = torch.ones(1, linearizer.structure.num_columns, dtype=self._dtype)
        matrix = torch.eye(sums.size, dtype=self._dtype).expand(1, sums.components, -1, -1).clone()
        self._model = [cost, gradient, matrix]
        example, _ = self._step(lambda _: self._model).start(values, ())
        self._example: State = example
        self._places, self._size = self._placed(example)
        self.start, self.step = self._recorded_start(), self._recorded_step()

    def layout(self, own: Sequence[tuple[int, bool]], shared: int) -> Layout:
        """Where numbers are; `own` and `shared` as `Layout` has them."""
        matrix = self._places[len(self._values) + 2]
        assert matrix is not None
        status, steps = (self._place_of(x) for x in ("status", "num_steps"))
        return Layout(
            tuple(x.numel() for x in self._values),
            tuple(own),
            shared,
            self._size,
            self._place_of("cost"),
            status,
            steps,
            tuple(int(place) for place in matrix.reshape(-1)),
        )

    def _place_of(self, name: str) -> int:
        count = len(self._values)
        number = {"cost": count, "status": len(self._places) - 5, "num_steps": len(self._places) - 4}[name]
        places = self._places[number]
        assert places is not None  # these are kept
        return int(places.reshape(-1)[0])

    def _step(self, linearize: Any) -> Step:
        """A step whose linearization is given; of dense normal equations the right-hand side is the gradient."""

        def model(values: Values, inputs: TermInputs) -> Linearization:
            cost, gradient, matrix = linearize(values)
            return Linearization(cost, gradient, matrix, gradient)

        return Step(self._solver, self._linearizer, model)

    def _placed(self, example: State) -> tuple[list[np.ndarray | None], int]:
        """The places of every tensor of `State.flat`; None of what direct solvers do not keep."""
        flat = example.flat()
        count, places, size = len(self._values), [], 0
        for number, tensor in enumerate(flat):
            of_matrix, of_rhs = number == count + 2, number == count + 3
            if of_rhs:
                places.append(places[count + 1])
            elif number in (len(flat) - 3, len(flat) - 2):  # evaluations are steps and one more; the accuracy is full
                places.append(None)
            elif of_matrix:
                entries = self._sums.matrix()
                places.append(entries - entries.min() + size)
                size += len(np.unique(entries))
            else:
                places.append(np.arange(tensor.numel()).reshape(tuple(tensor.shape[1:])) + size)
                size += tensor.numel()
        return places, size

    def _state_arrays(self, program: Program) -> list[Array]:
        """The state as inputs of a program, in which all numbers are real."""
        arrays = []
        for tensor, places in zip(self._example.flat(), self._places, strict=True):
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

    def _model_arrays(self, program: Program) -> list[Array]:
        """A new model as inputs of a program."""

        def arrays(places: np.ndarray) -> Array:
            return Array(each(lambda place: program.input(MODEL, int(place), "real"), places), self._dtype)

        columns = self._sums.components * self._sums.size
        return [arrays(np.zeros(1)), arrays(np.arange(1, 1 + columns)[None]), arrays(self._sums.matrix()[None])]

    def _recorded_start(self) -> Stepping:
        count = len(self._values)

        def flat(*leaves: Tensor) -> Any:
            state, record = self._step(lambda _: leaves[count:]).start(tuple(leaves[:count]), ())
            return [*state.flat(), *record]

        program = Program(self._dtype)
        values = self._state_arrays(program)[:count]
        outputs = self._scalars(program, flat, [*self._values, *self._model], [*values, *self._model_arrays(program)])
        trial = tuple(x for array in values for x in array.entries.reshape(-1))
        return self._stepping(program, trial, outputs)

    def _recorded_step(self) -> Stepping:
        example = self._example.flat()
        count = len(self._values)
        rhs = count + 3

        def flat(*leaves: Tensor) -> Any:
            given, model = list(leaves[:-3]), leaves[-3:]
            given.insert(rhs, given[count + 1])
            trial: list[Tensor] = []

            def linearize(values: Values) -> Any:
                trial.extend(values)
                return model

            state, record = self._step(linearize)(self._example.like(given), ())
            return [*trial, *state.flat(), *record]

        program = Program(self._dtype)
        arrays = self._state_arrays(program)
        del arrays[rhs], example[rhs]
        outputs = self._scalars(
            program, flat, [*example, *self._model], [*arrays, *self._model_arrays(program)]
        )
        trial = tuple(x for array in outputs[:count] for x in array.reshape(-1))
        return self._stepping(program, trial, outputs[count:])

    def _scalars(self, program: Program, flat: Any, example: list[Tensor], inputs: list[Array]) -> list[np.ndarray]:
        graph = graph_of(flat, distinct(example), guarded=True, functional=True)
        return recorded(program, graph, inputs)

    def _stepping(self, program: Program, trial: tuple[Scalar, ...], outputs: list[np.ndarray]) -> Stepping:
        """From what `State.flat` and the record have come to."""
        split = len(outputs) - len(Record._fields)
        state: dict[int, Scalar] = {}
        for array, places in zip(outputs[:split], self._places, strict=True):
            if places is not None:
                state |= zip(places.reshape(-1).tolist(), array.reshape(-1), strict=True)
        kept = {place: program.input(STATE, place, "real").number for place in state}
        return Stepping(
            program,
            {STATE: Source("s", 0, self._size), MODEL: Source("model", 0, self._sums.count)},
            trial,
            tuple((place, x) for place, x in sorted(state.items()) if x.number != kept[place]),
            tuple(array.reshape(-1)[0] for array in outputs[split:]),
        )
