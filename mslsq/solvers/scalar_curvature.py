"""Gradient, exact Hessian and mixed derivatives of the cost of one problem as scalars, for the ends of whole solves."""

from collections.abc import Iterable

import torch

from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.native import curvature, derivative
from mslsq.native.copies import Copies
from mslsq.native.linearizing_text import Linearizing, Part
from mslsq.native.recording import recorded
from mslsq.native.rules.reductions import total
from mslsq.native.scalars import LARGEST, NotScalarError, Scalar
from mslsq.problem.system import Inputs
from mslsq.solvers.scalar_system import ScalarSystem, Unit, array_of
from mslsq.tracing.graph import by_place, graph_of


class ScalarCurvature(ScalarSystem):
    """Of a batch of problems, recorded at one of them; its gradients and Hessians are those of the residual as it is
    written, whatever Jacobians a term gives.

    Args:
        linearizer: of one problem.
        values, inputs: of the whole batch, as given by the user.

    Raises:
        NotScalarError: an operation has no form in scalars, or there are too many.
        DataDependentError, RuntimeError: no graph can be recorded.
    """

    def __init__(self, linearizer: Linearizer, values: Values, inputs: tuple[Inputs, ...]):
        super().__init__(linearizer, values)
        self._parts: list[Part] = []
        self._add_terms(values, inputs)
        outputs = [x.number for part in self._parts for x in part.scalars]
        self.count = self._program.count(outputs)
        if self.count > LARGEST:
            raise NotScalarError(f"it takes {self.count:,} operations of scalars, more than {LARGEST:,}")
        # The gradient in the data of a difference does not depend on them: they need not be put side by side.
        self.reads = self.reads.without_unread({n for part in self._parts for n in part.read(self._program)})

    def _cost(self, block: BlockTerm, unit: Unit, copies: Copies) -> Scalar:
        """½ρ of one copy of a unit."""
        rows = len(unit.rows)
        residual = list(copies.outputs[:rows])
        if block.term.loss is None:
            return total([x * x for x in residual]) * 0.5
        own, names, dtype = self._loss_of(block, rows), block.term.loss_inputs.values(), self._program.dtype
        if (rows,) not in self._graphs:
            flat = by_place(lambda tensors, given: [own._cost_of_residual(tensors[0], given)], 1, names)
            example = [
                torch.ones(rows, dtype=dtype, device="cpu"),
                *(torch.ones((), dtype=dtype, device="cpu") for _ in names),
            ]
            self._graphs[(rows,)] = graph_of(flat, example, guarded=True, functional=True)
        parameters = copies.outputs[rows + len(unit.jacobian) :]
        arrays = [array_of(residual, (rows,), dtype), *(array_of([x], (), dtype) for x in parameters)]
        (cost,) = recorded(self._program, self._graphs[(rows,)], arrays)
        return cost.reshape(-1)[0]


class ScalarHessian(ScalarCurvature):
    """Gradient and exact Hessian, and the gradient alone."""

    def _take(self, term: int, block: BlockTerm, unit: Unit, copies: Copies, numbers: dict[str, int]) -> None:
        program, cost, moving = self._program, self._cost(block, unit, copies), self._moving(unit, twice=True)
        gradient = curvature.gradient(program, cost, moving.motion)
        hessian = curvature.hessian(program, cost, moving.motion)
        added: list[tuple[int, Scalar]] = []
        size = moving.motion.columns
        for own, column in moving.kept:
            added.append((self.sums.gradient(column), gradient[own]))
            for other, beside in moving.kept:
                place = self.sums.product(column, beside)
                if place is not None and other <= own:
                    added.append((place, hessian[own * size + other]))
        self._parts.append(Part(copies, tuple((place, x) for place, x in added if x.value != 0)))

    def form(self) -> Linearizing:
        """Gradient and Hessian, by the places of `sums`; what is at that of the cost is not written."""
        return Linearizing(self._program, self.reads.sources, self._parts, self._initial())

    def form_of_gradient(self) -> Linearizing:
        """The gradient, by columns."""
        first, count = self.sums.gradient(0), self._linearizer.structure.num_columns
        parts = [
            Part(part.copies, tuple((place - first, x) for place, x in part.sums if first <= place < first + count))
            for part in self._parts
        ]
        return Linearizing(self._program, self.reads.sources, parts, [0.0] * count)


class ScalarMixed(ScalarCurvature):
    """∂/∂d (vᵀ ∂cost/∂x) in some of the inputs d, along a tangent v that follows the values.

    Args:
        wanted: by the number of a term, the names of inputs.
    """

    def __init__(
        self, linearizer: Linearizer, values: Values, inputs: tuple[Inputs, ...], wanted: dict[int, tuple[str, ...]]
    ):
        self.places: dict[tuple[int, str], int] = {}
        """Of the wanted inputs of each problem's own, and behind them of those that all share, where the derivative in
        their first entry goes."""
        self.size = 0
        keys = [(term, name) for term, names in wanted.items() for name in names]
        if any(inputs[term][name].is_complex() for term, name in keys):
            raise NotScalarError("it is differentiated in complex numbers")
        batched = [assembly.block.batched for assembly in linearizer.assemblies]
        for is_own in (True, False):
            for term, name in keys:
                if (name in batched[term]) == is_own:
                    self.places[term, name] = self.size
                    self.size += self.size_of(inputs[term][name], is_own)
            if is_own:
                self.size_of_own = self.size
        super().__init__(linearizer, values, inputs)

    @staticmethod
    def size_of(tensor: torch.Tensor, is_own: bool) -> int:
        """How many numbers of an input one problem has."""
        return tensor[:1].numel() if is_own else tensor.numel()

    def form(self) -> Linearizing:
        """Of the tangent that follows the values."""
        return Linearizing(self._program, self.reads.sources, self._parts, [], self.size)

    def _take(self, term: int, block: BlockTerm, unit: Unit, copies: Copies, numbers: dict[str, int]) -> None:
        program, moving = self._program, self._moving(unit)
        gradient = curvature.gradient(program, self._cost(block, unit, copies), moving.motion)
        parts = [gradient[own] * program.input(self._along, column, "real") for own, column in moving.kept]
        if not parts:
            return
        slope = total(parts)
        firsts = {numbers[name]: place for (number, name), place in self.places.items() if number == term}
        data = dict(self._data(program.needed([slope.number]), copies, firsts))
        if not data:
            return
        one = program.constant(1, "real")
        identity = {number: {column: one} for column, number in enumerate(data)}
        (found,) = derivative.jacobian(program, [slope], identity, len(data))
        scattered = [(places, entry) for places, entry in zip(data.values(), found, strict=True) if entry is not None]
        self._parts.append(Part(copies, (), tuple(scattered)))

    def _data(
        self, needed: Iterable[int], copies: Copies, firsts: dict[int, int]
    ) -> Iterable[tuple[int, tuple[int, ...]]]:
        """The nodes of wanted inputs, and by copy the place of the derivative in them."""
        rounds = len(copies.members)
        looked_up: set[int] = set()
        for number in needed:
            node = self._program.nodes[number]
            if node.operation == "lookup" and node.detail[0] in firsts and node.kind == "real":
                looked_up.add(node.detail[0])
            if node.operation != "input" or node.kind != "real":
                continue
            tensor, entry = node.detail
            if tensor in firsts:
                yield number, (firsts[tensor] + entry,) * rounds
            elif tensor == copies.number and copies.leaves[entry].tensor in firsts:
                leaf = copies.leaves[entry]
                first = firsts[leaf.tensor]  # type: ignore[index]
                yield number, tuple(first + int(place) for place in leaf.entries)
        for tensor in sorted(looked_up):  # all of its entries, wherever the place may be
            size = self.reads.sources[tensor].size
            if size > derivative.MOST_LOOKED_UP:
                raise NotScalarError(f"an index that depends on values, into {size:,} numbers to differentiate in")
            for entry in range(size):
                yield self._program.input(tensor, entry, "real").number, (firsts[tensor] + entry,) * rounds
