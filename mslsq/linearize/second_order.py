"""Second derivatives of a term as programs of scalars: what the derivatives of a solution take of it.

Gradient and exact Hessian of a block's cost judge a solution; the mixed derivative ∂/∂d (vᵀ ∂cost/∂x) takes a tangent v
to the inputs d. All are programs of the scalars of the cost, loss and weight inside, compiled or run by PyTorch.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linear.storage import added
from mslsq.linearize.agreement import compare_mixed, compare_second_order, double_backward
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.programs import (
    P,
    Pending,
    arguments_of,
    graph_of_block,
    is_of_library,
    kept_moves,
    motion_of,
    scalars_of,
)
from mslsq.linearize.ways import sample_at_ends
from mslsq.manifolds.space import Space
from mslsq.native.building import WrittenVector, linearized
from mslsq.native.curvature import LARGEST_CURVATURE, gradient, hessian, mixed
from mslsq.native.operator import SecondOrder, VectorFunction
from mslsq.native.replaying import ReplayedProgram, ReplayedVector
from mslsq.native.scalars import NotScalarError, Program, Scalar
from mslsq.native.text import Argument
from mslsq.private import vjp
from mslsq.problem.system import Inputs
from mslsq.tracing.graph import TRANSFORM_LOCK


class Cost(NamedTuple):
    """Residual and cost of one block as scalars: what all second derivatives are made from."""

    program: Program
    """To be copied, not to be added to."""
    inputs: tuple[Argument, ...]
    residual: tuple[int, ...]
    """The whitened residual, by its nodes."""
    cost: int
    """½ρ."""

    @staticmethod
    def of(block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> "Cost":
        """Recorded at the numbers of one block."""

        def both(storages: tuple[Tensor, ...], inputs: Inputs) -> list[Tensor]:
            residual = block.residual_of_block(storages, inputs)
            return [residual, block._cost_of_residual(residual, inputs)]

        graph = graph_of_block(both, storages, first)
        program, (residual, cost) = scalars_of(graph, storages, first)
        numbers = tuple(entry.number for entry in residual.reshape(-1))
        return Cost(program, arguments_of(block, storages, first), numbers, cost.reshape(-1)[0].number)

    def value(self, program: Program) -> Scalar:
        """½ρ in a copy of the program."""
        return Scalar(program, self.cost)


class Replayable(Pending[P]):
    """Programs that PyTorch can run, too, as long as they are not compiled."""

    def begin(self) -> None:
        """Begin with the compiler, if that has not been done and can be."""
        if not self.why_not:
            with self._saying_why():
                self.compile()

    @property
    def is_compiled(self) -> bool:
        """Is the compiler done with it, and nothing known against what it made?"""
        return not self.why_not and self._making is not None and self._making.is_settled

    def replayed(self, block: BlockTerm, values: Values, inputs: Inputs) -> P | None:
        """The program as operations of PyTorch, if it is right on blocks of this term."""
        if self._scalars:
            with self._saying_why():
                return self.checked(block, values, inputs, [scalars.replayed() for scalars in self._scalars])
            self._scalars.clear()
        return None


class SecondOrderDraft(Replayable[SecondOrder]):
    """Gradient and exact Hessian."""

    what: ClassVar[str] = "second derivatives of "
    cost: "Cost | None" = None
    """What was recorded."""
    _differentiable: "Differentiable | None" = None

    def written(self, block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> list[Any]:
        self.cost = Cost.of(block, storages, first)
        program, cost = self.cost.program.copy(), self.cost.value
        motion = motion_of(block, program, twice=True)
        return [
            WrittenVector.of(program, self.cost.inputs, entries, LARGEST_CURVATURE)
            for entries in (gradient(program, cost(program), motion), hessian(program, cost(program), motion))
        ]

    def differentiable(self, block: BlockTerm) -> "Differentiable | None":
        """Gradient and cost for those who differentiate them again; None where there is none."""
        if self._differentiable is None and self.cost is not None:
            with self._saying_why(), TRANSFORM_LOCK, torch.no_grad():
                self._differentiable = Differentiable.of(block, self.cost)
        return self._differentiable

    def guard(self, block: BlockTerm) -> ReplayedProgram | None:
        """Residual and Jacobian of the same recording, by which it is noticed that it has gone stale; None where there
        is none, and where the user has given Jacobians, which are not those of the recording."""
        if self.cost is None or block.term.jacobians is not None:
            return None
        with self._saying_why():
            program = self.cost.program.copy()
            residual = [Scalar(program, number) for number in self.cost.residual]
            jacobian = linearized(program, residual, motion_of(block, program).directions, sum(block.tangents))
            written = WrittenVector.of(program, self.cost.inputs, [*residual, *jacobian], LARGEST_CURVATURE)
            return ReplayedProgram(written.replayed(), len(residual))
        return None

    def checked(self, block: BlockTerm, values: Values, inputs: Inputs, programs: list[Any]) -> SecondOrder:
        found, sample = SecondOrder(*programs), sample_at_ends(block, values, inputs)
        compare_second_order(sample, found, _expected(double_backward(sample)))
        return found


class Differentiable(NamedTuple):
    """Gradient and cost of a block as operations of PyTorch, which differentiates them any further."""

    gradient: ReplayedVector
    cost: ReplayedVector

    @staticmethod
    def of(block: BlockTerm, cost: Cost) -> "Differentiable":
        """Raises NotScalarError where PyTorch cannot run it."""
        program = cost.program.copy()
        slope = gradient(program, cost.value(program), motion_of(block, program))
        vectors = [
            WrittenVector.of(program, cost.inputs, entries, LARGEST_CURVATURE)
            for entries in (slope, [cost.value(program)])
        ]
        return Differentiable(*[vector.replayed() for vector in vectors])


class MixedProgram(NamedTuple):
    """∂/∂d (vᵀ ∂cost/∂x) of a block in some of its inputs d, side by side in one vector."""

    vector: VectorFunction
    sizes: tuple[tuple[str, int], ...]
    """The inputs, and how many numbers of one block each has."""

    @property
    def is_compiled(self) -> bool:
        return self.vector.is_compiled

    def of_lanes(
        self,
        block: BlockTerm,
        storages: tuple[Tensor, ...],
        inputs: dict[str, Tensor],
        move: Float[Tensor, "outer tangent lanes"],
    ) -> dict[str, Float[Tensor, "outer entries lanes"]]:
        """By input its derivative for every lane, where each has an input of its own or not.

        Args:
            storages: as `BlockTerm.gather` gives them.
            inputs: as `BlockTerm.prepare` gives them.
            move: v of every block.
        """
        tensors, batched, outer, lanes = block.native_arguments(storages, inputs)
        flat = self.vector.values([*tensors, move], [*batched, True], outer, lanes)
        pieces = flat.split([size for _, size in self.sizes], 1)
        return {name: piece for (name, _), piece in zip(self.sizes, pieces, strict=True)}


class MixedDraft(Replayable[MixedProgram]):
    """The mixed derivative in some inputs."""

    what: ClassVar[str] = "mixed derivatives of "

    def __init__(
        self,
        block: BlockTerm,
        values: Values,
        inputs: Inputs,
        cost: "Cost | None",
        wanted: tuple[str, ...],
        compiled: bool = True,
    ):
        self._cost, self._wanted = cost, wanted
        self._sizes: tuple[tuple[str, int], ...] = ()
        super().__init__(block, values, inputs, compiled)

    def written(self, block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> list[Any]:
        recorded = self._cost or Cost.of(block, storages, first)
        program, arguments = recorded.program.copy(), recorded.inputs
        motion = motion_of(block, program)
        self._sizes = tuple((name, first[name].numel()) for name in self._wanted)
        numbers = {name: len(storages) + k for k, name in enumerate(first)}
        data = [program.input(numbers[name], k, "real") for name, size in self._sizes for k in range(size)]
        along = [program.input(len(arguments), k, "real") for k in range(motion.columns)]
        entries = mixed(program, recorded.value(program), motion, along, data)
        arguments = [*arguments, Argument(motion.columns, True)]
        return [WrittenVector.of(program, arguments, entries, LARGEST_CURVATURE)]

    def checked(self, block: BlockTerm, values: Values, inputs: Inputs, programs: list[Any]) -> MixedProgram:
        found, sample = MixedProgram(programs[0], self._sizes), sample_at_ends(block, values, inputs)
        expected = _expected(double_backward(sample))

        def along(v: Tensor) -> dict[str, Tensor]:
            move = v[None, :, None].expand(sample.block.outer, -1, sample.block.lanes)
            return found.of_lanes(sample.block, sample.storages, sample.inputs, move)

        compare_mixed(sample, along, expected)
        return found


@dataclass(frozen=True, eq=False)
class WrittenSystem:
    """Gradient and cost of a whole system from what its terms were written as: what the user's Python said when it was
    recorded, also where it is differentiated later."""

    linearizer: Linearizer
    terms: tuple[Differentiable, ...]

    def gradient(self, values: Values, inputs: TermInputs) -> Float[Tensor, "batch columns"]:
        """As `Linearizer.gradient`."""
        linearizer = self.linearizer
        parts = zip(linearizer.assemblies, self.terms, inputs, strict=True)
        return added(
            [assembly.placed_vector(_filled(assembly.block, term.gradient, values, x)) for assembly, term, x in parts]
        )

    def cost(self, values: Values, inputs: TermInputs) -> Float[Tensor, "batch"]:
        """As `Linearizer.cost`."""
        parts = zip(self.linearizer.blocks, self.terms, inputs, strict=True)
        costs = [(block, _filled(block, term.cost, values, x)) for block, term, x in parts]
        return added([block.summed(cost) for block, cost in costs])


def _filled(block: BlockTerm, vector: ReplayedVector, values: Values, inputs: dict[str, Tensor]) -> Tensor:
    return vector.filled(*block.native_arguments(block.gather(values), inputs))


def pulled_through_retraction(
    linearizer: Linearizer, values: Values, towards: Values
) -> Float[Tensor, "batch columns"]:
    """Cotangents of the values as one of a step from them, in the columns of the system."""
    unknowns, structure = linearizer.system.unknowns, linearizer.structure
    pieces = [_pulled(unknown.space, *pair) for unknown, *pair in zip(unknowns, values, towards, strict=True)]
    joint = pieces[0].flatten(1) if len(pieces) == 1 else torch.cat([piece.flatten(1) for piece in pieces], 1)
    if structure.natural:
        return joint
    index = torch.cat([columns.reshape(-1) for columns in structure.columns])
    # The last one takes the blocks that are held fixed.
    return joint.new_zeros(len(joint), structure.num_columns + 1).index_add(1, index, joint)[:, :-1]


def _pulled(
    space: Space, x: Float[Tensor, "batch count storage"], towards: Float[Tensor, "batch count storage"]
) -> Float[Tensor, "batch count tangent"]:
    if space.is_euclidean:
        return towards
    if is_of_library(space) and x.device.type == "cpu":
        return _kept_pullback(space, x.dtype).filled([x.mT, towards.mT], [True, True], len(x), x.shape[1]).mT
    with TRANSFORM_LOCK:
        return vjp(lambda delta: space.retract(x, delta), x.new_zeros(*x.shape[:2], space.tangent_dim))[1](towards)[0]


@cache
def _kept_pullback(space: Space, dtype: torch.dtype) -> ReplayedVector:
    with TRANSFORM_LOCK, torch.no_grad():
        program, entries = kept_moves(space, dtype).pullback()
    inputs = [Argument(space.storage_dim, True)] * 2
    return WrittenVector.of(program, inputs, entries, LARGEST_CURVATURE).replayed()


def gradients_by_input(
    block: BlockTerm, found: dict[str, Float[Tensor, "outer entries lanes"]], inputs: Inputs
) -> dict[str, Tensor]:
    """What each lane has found of the inputs, added up where they share one, in the layout of the `inputs` as given by
    the user."""
    return {name: _in_layout_of(inputs[name], block, name, part) for name, part in found.items()}


def _in_layout_of(given: Tensor, block: BlockTerm, name: str, part: Float[Tensor, "outer entries lanes"]) -> Tensor:
    if block.lanes_are_batch:
        part = part[0].T if name in block.batched else part[0].sum(-1)
    else:
        part = part.movedim(-1, 1) if name in block.term.per_block else part.sum(-1)
        part = part if name in block.batched else part.sum(0)
    return part.reshape(given.shape).to(given.dtype)


def _expected(expected: list[Any] | None) -> list[Any]:
    if expected is None:
        raise NotScalarError("PyTorch has no second derivative to compare it with")
    return expected
