"""The linearization of one problem as scalars: what every row of the residual adds to cost, gradient and JᵀJ."""

from collections.abc import Sequence

import numpy as np
import torch

from mslsq.linearize.acceleration import weights_of_block
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.programs import moves_of
from mslsq.linearize.robust import robustified
from mslsq.native import derivative
from mslsq.native.arrays import Array
from mslsq.native.copies import Copies
from mslsq.native.linearizing_text import Linearizing, Part
from mslsq.native.recording import recorded
from mslsq.native.rules.reductions import total
from mslsq.native.scalars import LARGEST, NotScalarError, Scalar
from mslsq.problem.system import Inputs
from mslsq.solvers.scalar_system import ScalarSystem, Unit, array_of
from mslsq.tracing.graph import by_place, graph_of


class ScalarLinearization(ScalarSystem):
    """Of a batch of problems, recorded at one of them.

    Args:
        linearizer: of one problem.
        values, inputs: of the whole batch, as given by the user.
        bends: is Jᵀr″ wanted?

    Raises:
        NotScalarError: an operation has no form in scalars, or there are too many.
        DataDependentError, RuntimeError: no graph can be recorded.
    """

    def __init__(self, linearizer: Linearizer, values: Values, inputs: tuple[Inputs, ...], bends: bool = False):
        super().__init__(linearizer, values)
        self.parts: list[Part] = []
        self.bends: list[Part] | None = [] if bends else None
        """What Jᵀr″ adds up, of the tangent that follows the values; None where it is not known as the library's own
        steps compute it."""
        self._add_terms(values, inputs)
        of_bends = [x.number for part in self.bends or [] for _, x in part.sums]
        self.count = self._program.count(x.number for part in self.parts for _, x in part.sums)
        self.count_of_bends = self._program.count(of_bends)
        if self.count > LARGEST:
            raise NotScalarError(f"it takes {self.count:,} operations of scalars, more than {LARGEST:,}")

    def form(self) -> Linearizing:
        """What is written in C++."""
        return Linearizing(self._program, self.reads.sources, self.parts, self._initial())

    def form_of_bends(self) -> Linearizing:
        """Jᵀr″, as `form`."""
        assert self.bends is not None
        initial = [0.0] * self._linearizer.structure.num_columns
        return Linearizing(self._program, self.reads.sources, self.bends, initial)

    def _take(self, term: int, block: BlockTerm, unit: Unit, copies: Copies, numbers: dict[str, int]) -> None:
        self.parts.append(Part(copies, self._added(block, unit, copies)))
        if self.bends is not None:
            self.bends = self._with_bends(self.bends, block, unit, copies)

    def _added(self, block: BlockTerm, unit: Unit, copies: Copies) -> tuple[tuple[int, Scalar], ...]:
        """What one copy of a unit adds to the sums."""
        program, rows = self._program, len(unit.rows)
        residual = list(copies.outputs[:rows])
        columns, slopes = self._jacobian(block, unit, residual, copies.outputs[rows : rows + len(unit.jacobian)])
        program.are_finite = True  # a column that a row does not depend on is 0: its product is, or the cost is not
        try:
            squares = [x * x for x in residual]
            if block.term.loss is not None:
                parameters = copies.outputs[rows + len(unit.jacobian) :]
                squares, residual, slopes = self._robust(block, residual, slopes, parameters)
            added = [(0, total(squares) * 0.5)]
            for k, column in enumerate(columns):
                products = [row[k] * r for row, r in zip(slopes, residual, strict=True) if row[k].value != 0]
                if products:
                    added.append((self.sums.gradient(column), total(products)))
                for j in range(k + 1):
                    place = self.sums.product(column, columns[j])
                    products = [row[k] * row[j] for row in slopes if row[k].value != 0 and row[j].value != 0]
                    if products and place is not None:
                        added.append((place, total(products)))
        finally:
            program.are_finite = False
        return tuple(added)

    def _jacobian(
        self, block: BlockTerm, unit: Unit, residual: list[Scalar], given: Sequence[Scalar]
    ) -> tuple[list[int], list[list[Scalar]]]:
        """The columns of the system that a unit has, and its Jacobian in those."""
        zero = self._program.constant(0, "real")
        moving = self._moving(unit)
        place = {column: k for k, column in enumerate(moving.columns)}
        slopes = [[zero] * len(place) for _ in residual]
        if block.term.jacobians is not None:
            columns = self._linearizer.structure.columns
            joint = [column for number, entry in unit.variables for column in columns[number][entry].tolist()]
            for k, slope in enumerate(given):
                row, column = divmod(k, len(joint))
                if joint[column] in place and slope.value != 0:
                    at = place[joint[column]]
                    slopes[row][at] = slope if slopes[row][at].value == 0 else slopes[row][at] + slope
            return list(moving.columns), slopes
        found = derivative.jacobian(self._program, residual, moving.motion.directions, moving.motion.columns)
        for row, by_direction in enumerate(found):
            for direction, column in moving.kept:
                slopes[row][place[column]] = by_direction[direction] or zero
        return list(moving.columns), slopes

    def _with_bends(self, known: list[Part], block: BlockTerm, unit: Unit, copies: Copies) -> list[Part] | None:
        """What is known of Jᵀr″ with what one copy of a unit adds to it."""
        try:
            added = self._bent(block, unit, copies)
        except NotScalarError:
            return None
        return [*known, Part(copies, added)] if added else known

    def _bent(self, block: BlockTerm, unit: Unit, copies: Copies) -> tuple[tuple[int, Scalar], ...]:
        """What one copy of a unit adds to Jᵀr″ (`linearize.acceleration`)."""
        program, rows = self._program, len(unit.rows)
        residual = list(copies.outputs[:rows])
        columns, slopes = self._jacobian(block, unit, residual, ())
        bends = self._second(unit, residual)
        program.are_finite = True
        try:
            if block.term.loss is not None:
                weights = self._weights(block, residual, copies.outputs[rows:])
                bends = [bend * weight for bend, weight in zip(bends, weights, strict=True)]
            added = []
            for k, column in enumerate(columns):
                products = [
                    row[k] * x for row, x in zip(slopes, bends, strict=True) if 0 not in (row[k].value, x.value)
                ]
                if products:
                    added.append((column, total(products)))
        finally:
            program.are_finite = False
        return tuple(added)

    def _second(self, unit: Unit, residual: list[Scalar]) -> list[Scalar]:
        """The second derivative of every row along the tangent."""
        program, structure = self._program, self._linearizer.structure
        zero, bin_ = program.constant(0, "real"), structure.num_columns
        velocity: dict[int, dict[int, Scalar]] = {}
        force: dict[int, dict[int, Scalar]] = {}
        for variable in dict.fromkeys(unit.variables):
            own = structure.columns[variable[0]][variable[1]].tolist()
            along = [zero if column == bin_ else program.input(self._along, column, "real") for column in own]
            space, number = self._system.unknowns[variable[0]].space, self._variables[variable]
            if space.is_euclidean:
                velocity |= {program.input(number, k, "real").number: {0: v} for k, v in enumerate(along)}
                continue
            moves = moves_of(space, program.dtype)
            for entry, slopes in moves.directions(program, number, 0).items():
                parts = [slope * along[k] for k, slope in slopes.items()]
                velocity[entry] = {0: total(parts).apply("held")} if parts else {}
            sums: dict[int, list[Scalar]] = {}
            for entry, one, other, bend in moves.bends(program, number, 0):
                sums.setdefault(entry, []).append(bend * along[one] * along[other] * (1.0 if one == other else 2.0))
            force |= {entry: {0: total(parts).apply("held")} for entry, parts in sums.items()}
        first = [row or zero for (row,) in derivative.jacobian(program, residual, velocity, 1)]
        second = [row or zero for (row,) in derivative.jacobian(program, first, velocity, 1)]
        if not force:
            return second
        forced = derivative.jacobian(program, residual, force, 1)
        return [bend if pull is None else bend + pull for bend, (pull,) in zip(second, forced, strict=True)]

    def _weights(self, block: BlockTerm, residual: list[Scalar], parameters: Sequence[Scalar]) -> list[Scalar]:
        """ρ' of every row."""
        rows, dtype, names = len(residual), self._program.dtype, block.term.loss_inputs.values()
        own = self._loss_of(block, rows)
        flat = by_place(lambda tensors, given: [weights_of_block(own, tensors[0], given).expand(rows)], 1, names)
        example = [
            torch.ones(rows, dtype=dtype, device="cpu"),
            *(torch.ones((), dtype=dtype, device="cpu") for _ in names),
        ]
        arrays = [array_of(residual, (rows,), dtype), *(array_of([x], (), dtype) for x in parameters)]
        (weights,) = recorded(self._program, graph_of(flat, example, guarded=True, functional=True), arrays)
        return list(weights.reshape(-1))

    def _robust(
        self,
        block: BlockTerm,
        residual: list[Scalar],
        slopes: list[list[Scalar]],
        parameters: Sequence[Scalar],
    ) -> tuple[list[Scalar], list[Scalar], list[list[Scalar]]]:
        """ρ of each group of rows, and residual and Jacobian as plain least squares sees them."""
        rows, columns = len(residual), len(slopes[0])
        own, graphs = self._loss_of(block, rows), self._graphs
        names = block.term.loss_inputs.values()
        dtype = self._program.dtype
        if (rows, columns) not in graphs:
            flat = by_place(lambda tensors, given: robustified(own, tensors[0], tensors[1], given), 2, names)
            shapes = [(1, rows, 1), (1, rows, columns, 1), *(() for _ in names)]
            example = [torch.ones(shape, dtype=dtype, device="cpu") for shape in shapes]
            graphs[rows, columns] = graph_of(flat, example, guarded=True, functional=True)
        flat_slopes = np.empty((1, rows, columns, 1), dtype=object)
        flat_slopes[0, :, :, 0] = slopes
        flat_residual = np.empty((1, rows, 1), dtype=object)
        flat_residual[0, :, 0] = residual
        arrays = [Array(flat_residual, dtype), Array(flat_slopes, dtype)]
        for x in parameters:
            single = np.empty((), dtype=object)
            single[()] = x
            arrays.append(Array(single, dtype))
        rho, r, j = recorded(self._program, graphs[rows, columns], arrays)
        return list(rho.reshape(-1)), list(r.reshape(-1)), [list(row) for row in j.reshape(rows, columns)]
