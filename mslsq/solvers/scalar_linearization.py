"""The linearization of one problem as scalars: what every row of the residual adds to cost, gradient and JᵀJ.

Rows, or blocks, whose code is the same for other entries of the data become a loop (`native.copies`).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, fx

from mslsq.linearize.acceleration import weights_of_block
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.first_block import of_a_block
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.programs import moves_of
from mslsq.linearize.robust import robustified
from mslsq.native import derivative
from mslsq.native.arrays import Array, kind_of
from mslsq.native.copies import Copies, Copying, refuse_lookups
from mslsq.native.recording import recorded
from mslsq.native.rules.reductions import total
from mslsq.native.scalars import LARGEST, NotScalarError, Program, Scalar
from mslsq.native.steps_text import DATA, INTEGERS, SHARED, Linearizing, Part, Source
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import by_place, distinct, graph_of

Variable = tuple[int, int]
"""The number of an unknown, and of a block of it."""


class Sums:
    """The numbers that a linearization adds up: cost, gradient, and the lower triangle of each JᵀJ."""

    def __init__(self, components: int, size: int):
        self.components, self.size = components, size
        self._of_component = size * (size + 1) // 2

    @property
    def count(self) -> int:
        return 1 + self.components * (self.size + self._of_component)

    def gradient(self, column: int) -> int:
        return 1 + column

    def entry(self, component: int, a: int, b: int) -> int:
        """The place of an entry of JᵀJ, the same for both triangles."""
        a, b = max(a, b), min(a, b)
        return 1 + self.components * self.size + component * self._of_component + a * (a + 1) // 2 + b

    def product(self, a: int, b: int) -> int | None:
        """That of two columns; None where they are of different components."""
        (component, a), (other, b) = divmod(a, self.size), divmod(b, self.size)
        return self.entry(component, a, b) if component == other else None

    def matrix(self) -> np.ndarray:
        """The places of all matrices, (components, size, size)."""
        places = np.empty((self.components, self.size, self.size), dtype=np.int64)
        for place in np.ndindex(*places.shape):
            places[place] = self.entry(*place)
        return places


@dataclass(frozen=True)
class Unit:
    """Rows that no loss and no code of a block takes apart: a row, a complex number, or a block."""

    rows: tuple[Scalar, ...]
    jacobian: tuple[Scalar, ...]
    """Where the term gives it, (rows, joint tangent), row by row; else empty."""
    parameters: tuple[Scalar, ...]
    """Of the loss."""
    variables: tuple[Variable, ...]
    """Of each slot."""


@dataclass
class Reads:
    """The inputs of a program: which tensors, and where they are found."""

    sources: dict[int, Source] = field(default_factory=dict)
    own: list[tuple[int, str]] = field(default_factory=list)
    """Term and name of the inputs of which each problem has its own part..."""
    shared: list[tuple[int, str]] = field(default_factory=list)
    """... and of those that all problems have in common."""
    data: int = 0
    integers: int = 0

    def add(self, number: int, term: int, name: str, size: int, is_real: bool, is_own: bool) -> None:
        if not is_own:
            self.sources[number] = Source(SHARED, len(self.shared), size, is_real)
            self.shared.append((term, name))
            return
        self.sources[number] = Source(DATA if is_real else INTEGERS, self.data if is_real else self.integers, size)
        self.own.append((term, name))
        self.data += size if is_real else 0
        self.integers += 0 if is_real else size


class ScalarLinearization:
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
        self._linearizer, self._system = linearizer, linearizer.system
        structure = linearizer.structure
        self.sums = Sums(structure.num_components, structure.size)
        self.reads = Reads()
        self._program = Program(values[0].dtype)
        self._variables: dict[Variable, int] = {}
        place = 0
        for number, unknown in enumerate(self._system.unknowns):
            for block in range(unknown.count):
                self._variables[number, block] = len(self._variables)
                size = unknown.space.storage_dim
                self.reads.sources[self._variables[number, block]] = Source("x", place, size)
                place += size
        self._next = len(self._variables)
        self._along = self._new_number()
        self.reads.sources[self._along] = Source("x", place, structure.num_columns)
        self.parts: list[Part] = []
        self.bends: list[Part] | None = [] if bends else None
        """What Jᵀr″ adds up, of the tangent that follows the values; None where it is not known as the library's own
        steps compute it."""
        for number, (block, given) in enumerate(zip(linearizer.blocks, inputs, strict=True)):
            self._add_term(number, block, values, given)
        of_bends = [x.number for part in self.bends or [] for _, x in part.sums]
        outputs = [*(x.number for part in self.parts for _, x in part.sums), *of_bends]
        own = {number for number, source in self.reads.sources.items() if source.array != SHARED}
        refuse_lookups(self._program, outputs, frozenset(own))
        self.count = self._program.count(x.number for part in self.parts for _, x in part.sums)
        self.count_of_bends = self._program.count(of_bends)
        if self.count > LARGEST:
            raise NotScalarError(f"it takes {self.count:,} operations of scalars, more than {LARGEST:,}")

    def form(self) -> Linearizing:
        """What is written in C++."""
        initial = [0.0] * self.sums.count
        padding = self._linearizer.structure.padding
        for column in [] if padding is None else padding.nonzero().reshape(-1).tolist():
            place = self.sums.product(column, column)
            assert place is not None  # of one component
            initial[place] = 1.0
        return Linearizing(self._program, self.reads.sources, self.parts, initial)

    def form_of_bends(self) -> Linearizing:
        """Jᵀr″, as `form`."""
        assert self.bends is not None
        initial = [0.0] * self._linearizer.structure.num_columns
        return Linearizing(self._program, self.reads.sources, self.bends, initial)

    def _new_number(self) -> int:
        self._next += 1
        return self._next - 1

    def _add_term(self, number: int, block: BlockTerm, values: Values, inputs: Inputs) -> None:
        """What all blocks of a term add."""
        tensors = {name: self._new_number() for name in inputs}
        for name, x in inputs.items():
            is_own = name in block.batched
            size = x[:1].numel() if is_own else x.numel()
            self.reads.add(tensors[name], number, name, size, kind_of(x.dtype) == "real", is_own)
        graph = of_a_block(
            lambda storages, first: _graph_of_block(block, storages, first), block.term, block.batched, values, inputs
        )
        units = [
            unit
            for index in range(block.term.num_blocks)
            for unit in self._units(block, self._block(block, graph, index, inputs, tensors), index, inputs, tensors)
        ]
        copying = Copying(self._program, frozenset(tensors.values()), self._next)
        found = copying.found(
            [(*unit.rows, *unit.jacobian, *unit.parameters) for unit in units],
            [(len(unit.rows), unit.variables) for unit in units],
        )
        self._next += len(found)
        graphs: dict[tuple[int, int], fx.GraphModule] = {}
        for copies in found:
            unit = units[copies.members[0]]
            self.parts.append(Part(copies, self._added(block, unit, copies, graphs)))
            if self.bends is not None:
                self.bends = self._with_bends(self.bends, block, unit, copies)

    def _array(self, block: BlockTerm, name: str, tensor: Tensor, number: int, index: int) -> Array:
        """An input of one block."""
        shape = tensor.shape[1:] if name in block.batched else tensor.shape
        places = np.arange(int(np.prod(shape))).reshape(tuple(shape))
        return Array(places[index] if name in block.term.per_block else places, tensor.dtype, number)

    def _block(
        self, block: BlockTerm, graph: fx.GraphModule, index: int, inputs: Inputs, tensors: dict[str, int]
    ) -> list[np.ndarray]:
        """Residual of a block, and its Jacobian where the term gives that."""
        dtype = self._program.dtype
        storages = [
            Array(np.arange(self._system.unknowns[unknown].space.storage_dim), dtype, self._variables[unknown, entry])
            for unknown, entry in _variables_of(block, index)
        ]
        given = [self._array(block, name, x, tensors[name], index) for name, x in inputs.items()]
        return recorded(self._program, graph, [*storages, *given])

    def _units(
        self, block: BlockTerm, outputs: list[np.ndarray], index: int, inputs: Inputs, tensors: dict[str, int]
    ) -> list[Unit]:
        """The units of one block."""
        term, residual = block.term, list(outputs[0].reshape(-1))
        jacobian = list(outputs[1].reshape(len(residual), -1)) if len(outputs) > 1 else [()] * len(residual)
        parameters: list[Scalar] = []
        for name in term.loss_inputs.values():
            scalars = self._array(block, name, inputs[name], tensors[name], index).scalars(self._program)
            # A single number of PyTorch takes the dtype of what it is multiplied by.
            is_alike = inputs[name].ndim == 0 or inputs[name].dtype == self._program.dtype
            if scalars.size != 1 or not is_alike or kind_of(inputs[name].dtype) != "real":
                raise NotScalarError(f"the parameter {name} of its loss is not one number of the variables' dtype")
            parameters.append(scalars.reshape(-1)[0])
        variables = _variables_of(block, index)

        def unit(rows: Sequence[int]) -> Unit:
            slopes = [slope for row in rows for slope in jacobian[row]]
            return Unit(tuple(residual[row] for row in rows), tuple(slopes), tuple(parameters), variables)

        everything = range(len(residual))
        if term.num_blocks > 1 or (term.loss is not None and not term.elementwise_loss):
            return [unit(everything)]
        pairs = 0 if term.loss is None else block.pairs
        return [unit((2 * k, 2 * k + 1)) for k in range(pairs)] + [unit((row,)) for row in everything[2 * pairs :]]

    def _added(
        self,
        block: BlockTerm,
        unit: Unit,
        copies: Copies,
        graphs: dict[tuple[int, int], fx.GraphModule],
    ) -> tuple[tuple[int, Scalar], ...]:
        """What one copy of a unit adds to the sums."""
        program, rows = self._program, len(unit.rows)
        residual = list(copies.outputs[:rows])
        columns, slopes = self._jacobian(block, unit, residual, copies.outputs[rows : rows + len(unit.jacobian)])
        program.are_finite = True  # a column that a row does not depend on is 0: its product is, or the cost is not
        try:
            squares = [x * x for x in residual]
            if block.term.loss is not None:
                parameters = copies.outputs[rows + len(unit.jacobian) :]
                squares, residual, slopes = self._robust(block, residual, slopes, parameters, graphs)
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
        program, structure = self._program, self._linearizer.structure
        zero, one = program.constant(0, "real"), program.constant(1, "real")
        by_variable = {v: structure.columns[v[0]][v[1]].tolist() for v in dict.fromkeys(unit.variables)}
        bin_ = structure.num_columns
        columns = sorted({c for found in by_variable.values() for c in found if c != bin_})
        place = {column: k for k, column in enumerate(columns)}
        if block.term.jacobians is not None:
            joint = [column for variable in unit.variables for column in by_variable[variable]]
            slopes = [[zero] * len(columns) for _ in residual]
            for k, slope in enumerate(given):
                row, column = divmod(k, len(joint))
                if joint[column] != bin_ and slope.value != 0:
                    at = place[joint[column]]
                    slopes[row][at] = slope if slopes[row][at].value == 0 else slopes[row][at] + slope
            return columns, slopes
        directions: dict[int, dict[int, Scalar]] = {}
        first, kept = 0, []
        for variable, own in by_variable.items():
            if all(column == bin_ for column in own):
                continue
            space, number = self._system.unknowns[variable[0]].space, self._variables[variable]
            if space.is_euclidean:
                found = {program.input(number, k, "real").number: {first + k: one} for k in range(len(own))}
            else:
                found = moves_of(space, program.dtype).directions(program, number, first)
            directions |= found
            kept += [(first + k, column) for k, column in enumerate(own) if column != bin_]
            first += len(own)
        found = derivative.jacobian(program, residual, directions, first)
        slopes = [[zero] * len(columns) for _ in residual]
        for row, by_direction in enumerate(found):
            for direction, column in kept:
                slopes[row][place[column]] = by_direction[direction] or zero
        return columns, slopes

    def _with_bends(self, known: list[Part], block: BlockTerm, unit: Unit, copies: Copies) -> list[Part] | None:
        """What is known of Jᵀr″ with what one copy of a unit adds to it."""
        if not block.has_forward_mode:
            return None  # the library's own steps take a difference
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
        pairs = block.pairs if block.term.num_blocks > 1 or not block.term.elementwise_loss else rows // 2
        own = dataclasses.replace(block, rows=rows, pairs=pairs, batch=1)
        flat = by_place(lambda tensors, given: [weights_of_block(own, tensors[0], given).expand(rows)], 1, names)
        example = [torch.ones(rows, dtype=dtype), *(torch.ones((), dtype=dtype) for _ in names)]
        arrays = [_array_of(residual, (rows,), dtype), *(_array_of([x], (), dtype) for x in parameters)]
        (weights,) = recorded(self._program, graph_of(flat, example, guarded=True, functional=True, runs=False), arrays)
        return list(weights.reshape(-1))

    def _robust(
        self,
        block: BlockTerm,
        residual: list[Scalar],
        slopes: list[list[Scalar]],
        parameters: Sequence[Scalar],
        graphs: dict[tuple[int, int], fx.GraphModule],
    ) -> tuple[list[Scalar], list[Scalar], list[list[Scalar]]]:
        """ρ of each group of rows, and residual and Jacobian as plain least squares sees them."""
        rows, columns = len(residual), len(slopes[0])
        pairs = block.pairs if block.term.num_blocks > 1 or not block.term.elementwise_loss else rows // 2
        own = dataclasses.replace(block, rows=rows, pairs=pairs, batch=1)
        names = block.term.loss_inputs.values()
        dtype = self._program.dtype
        if (rows, columns) not in graphs:
            flat = by_place(lambda tensors, given: robustified(own, tensors[0], tensors[1], given), 2, names)
            shapes = [(1, rows, 1), (1, rows, columns, 1), *(() for _ in names)]
            example = [torch.ones(shape, dtype=dtype, device="cpu") for shape in shapes]
            graphs[rows, columns] = graph_of(flat, example, guarded=True, functional=True, runs=False)
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


def _array_of(scalars: Sequence[Scalar], shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    entries = np.empty(shape, dtype=object)
    entries.reshape(-1)[:] = scalars
    return Array(entries, dtype)


def _graph_of_block(block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> fx.GraphModule:
    """The residual of a block, with its Jacobian where the term gives that, recorded at these numbers."""
    function = block.residual_of_block if block.term.jacobians is None else block.linearization_of_block
    example = distinct([*storages, *first.values()])
    return graph_of(by_place(function, len(storages), first), example, guarded=True, functional=True, runs=False)


def _variables_of(block: BlockTerm, index: int) -> tuple[Variable, ...]:
    """The variables of each slot in one block."""
    return tuple((slot.unknown, slot.of_block(index)) for slot in block.term.slots)
