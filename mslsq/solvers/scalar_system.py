"""A system of one problem as scalars, term by term: what every row of the residual adds to sums over all of them.

Rows, or blocks, whose code is the same for other entries of the data become a loop (`native.copies`).
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.first_block import of_a_block
from mslsq.linearize.linearizer import Linearizer
from mslsq.linearize.programs import moves_of
from mslsq.native.arrays import Array, kind_of
from mslsq.native.copies import Copies, Copying
from mslsq.native.curvature import Motion
from mslsq.native.linearizing_text import DATA, INTEGERS, SHARED, Source
from mslsq.native.recording import recorded
from mslsq.native.scalars import NotScalarError, Program, Scalar
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

    def without_unread(self, read: Collection[int]) -> "Reads":
        """The same without the tensors of each problem's own that are not among those of these numbers."""
        kept, own = Reads(shared=list(self.shared)), iter(self.own)
        for number, source in self.sources.items():
            if source.array not in (DATA, INTEGERS):
                kept.sources[number] = source
                continue
            term, name = next(own)
            if number in read:
                kept.add(number, term, name, source.size, source.array == DATA, is_own=True)
        return kept


def as_read(inputs: tuple[Inputs, ...], names: Sequence[tuple[int, str]]) -> list[Tensor]:
    """Inputs by term and name as programs read them: complex numbers as pairs of reals, side by side."""
    found = [inputs[term][name] for term, name in names]
    return [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in found]


def sizes_of_own(inputs: tuple[Inputs, ...], reads: Reads) -> list[tuple[int, bool]]:
    """Of inputs of which each problem has its own part: how many numbers, and whether they are real."""
    return [(x[:1].numel(), x.is_floating_point()) for x in as_read(inputs, reads.own)]


class Moving(NamedTuple):
    """How what a unit reads follows the columns of the system that move it."""

    motion: Motion
    """In columns of its own..."""
    kept: tuple[tuple[int, int], ...]
    """... of which these, by number, are columns of the system; the others are held."""
    columns: tuple[int, ...]
    """Those of the system, in order."""


class ScalarSystem:
    """Base of what is added up over all rows of a problem, recorded at one of a batch.

    Args:
        linearizer: of one problem.
        values: of the whole batch.
    """

    def __init__(self, linearizer: Linearizer, values: Values):
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
        self._graphs: dict[tuple[int, ...], fx.GraphModule] = {}
        """Of the loss of the term at hand, by shapes."""

    def _initial(self) -> list[float]:
        """The sums before anything is added to them: one in the place of each padded column's square."""
        initial, padding = [0.0] * self.sums.count, self._linearizer.structure.padding
        for column in [] if padding is None else padding.nonzero().reshape(-1).tolist():
            place = self.sums.product(column, column)
            assert place is not None  # of one component
            initial[place] = 1.0
        return initial

    def _take(self, term: int, block: BlockTerm, unit: Unit, copies: Copies, numbers: dict[str, int]) -> None:
        """Note what one copy of a unit of this term adds; `numbers` are those of the term's inputs."""
        raise NotImplementedError

    def _add_terms(self, values: Values, inputs: tuple[Inputs, ...]) -> None:
        """Take all units of all terms; the inputs are those of the whole batch, as given by the user.

        Raises:
            NotScalarError: an operation has no form in scalars, or there are too many.
            DataDependentError, RuntimeError: no graph can be recorded.
        """
        for number, (block, given) in enumerate(zip(self._linearizer.blocks, inputs, strict=True)):
            self._add_term(number, block, values, given)

    def _new_number(self) -> int:
        self._next += 1
        return self._next - 1

    def _add_term(self, number: int, block: BlockTerm, values: Values, inputs: Inputs) -> None:
        """What all blocks of a term add."""
        tensors = {name: self._new_number() for name in inputs}
        for name, x in inputs.items():
            is_own = name in block.batched
            size = (x[:1].numel() if is_own else x.numel()) * (2 if x.is_complex() else 1)
            self.reads.add(tensors[name], number, name, size, x.is_complex() or kind_of(x.dtype) == "real", is_own)
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
        self._graphs = {}
        for copies in found:
            self._take(number, block, units[copies.members[0]], copies, tensors)

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
            for unknown, entry in variables_of(block, index)
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
        variables = variables_of(block, index)

        def unit(rows: Sequence[int]) -> Unit:
            slopes = [slope for row in rows for slope in jacobian[row]]
            return Unit(tuple(residual[row] for row in rows), tuple(slopes), tuple(parameters), variables)

        everything = range(len(residual))
        if term.num_blocks > 1 or (term.loss is not None and not term.elementwise_loss):
            return [unit(everything)]
        pairs = 0 if term.loss is None else block.pairs
        return [unit((2 * k, 2 * k + 1)) for k in range(pairs)] + [unit((row,)) for row in everything[2 * pairs :]]

    def _loss_of(self, block: BlockTerm, rows: int) -> BlockTerm:
        """The term as the loss of a unit with this number of rows sees it."""
        pairs = block.pairs if block.term.num_blocks > 1 or not block.term.elementwise_loss else rows // 2
        return dataclasses.replace(block, rows=rows, pairs=pairs, batch=1)

    def _moving(self, unit: Unit, twice: bool = False) -> Moving:
        """How a unit moves; `twice` with the second derivatives of retractions."""
        program, structure = self._program, self._linearizer.structure
        one, bin_ = program.constant(1, "real"), structure.num_columns
        directions: dict[int, dict[int, Scalar]] = {}
        bends: list[tuple[int, int, int, Scalar]] = []
        first, kept = 0, []
        for variable in dict.fromkeys(unit.variables):
            own = structure.columns[variable[0]][variable[1]].tolist()
            if all(column == bin_ for column in own):
                continue
            space, number = self._system.unknowns[variable[0]].space, self._variables[variable]
            if space.is_euclidean:
                directions |= {program.input(number, k, "real").number: {first + k: one} for k in range(len(own))}
            else:
                moves = moves_of(space, program.dtype)
                directions |= moves.directions(program, number, first)
                bends += moves.bends(program, number, first) if twice else []
            kept += [(first + k, column) for k, column in enumerate(own) if column != bin_]
            first += len(own)
        columns = tuple(sorted(column for _, column in kept))
        return Moving(Motion(directions, bends, first), tuple(kept), columns)


def array_of(scalars: Sequence[Scalar], shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    entries = np.empty(shape, dtype=object)
    entries.reshape(-1)[:] = scalars
    return Array(entries, dtype)


def _graph_of_block(block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> fx.GraphModule:
    """The residual of a block, with its Jacobian where the term gives that, recorded at these numbers."""
    function = block.residual_of_block if block.term.jacobians is None else block.linearization_of_block
    example = distinct([*storages, *first.values()])
    return graph_of(by_place(function, len(storages), first), example, guarded=True, functional=True)


def variables_of(block: BlockTerm, index: int) -> tuple[Variable, ...]:
    """The variables of each slot in one block."""
    return tuple((slot.unknown, slot.of_block(index)) for slot in block.term.slots)
