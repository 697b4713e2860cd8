"""Second derivatives of a term as native programs: what the derivatives of a solution take of it.

Gradient and exact Hessian of a block's cost judge a solution; the mixed derivative ∂/∂d (vᵀ ∂cost/∂x) takes a tangent v
to the inputs d. All are programs of the scalars of the cost, loss and weight inside.
"""

from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.agreement import compare_mixed, compare_second_order, double_backward
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.programs import Pending, motion_of, scalars_of
from mslsq.linearize.ways import sample_at_ends
from mslsq.native.building import WrittenVector
from mslsq.native.curvature import LARGEST_CURVATURE, gradient, hessian, mixed
from mslsq.native.operator import NativeVector, SecondOrder
from mslsq.native.scalars import NotScalarError, Program, Scalar
from mslsq.native.text import Argument
from mslsq.problem.system import Inputs


class SecondOrderDraft(Pending[SecondOrder]):
    """Gradient and exact Hessian."""

    what: ClassVar[str] = "second derivatives of "

    def written(self, block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> list[Any]:
        program, cost, arguments = _cost(block, storages, first)
        motion = motion_of(block, program, twice=True)
        return [
            WrittenVector.of(program, arguments, entries, LARGEST_CURVATURE)
            for entries in (gradient(program, cost, motion), hessian(program, cost, motion))
        ]

    def checked(self, block: BlockTerm, values: Values, inputs: Inputs, programs: list[Any]) -> SecondOrder:
        found, sample = SecondOrder(*programs), sample_at_ends(block, values, inputs)
        compare_second_order(sample, found, _expected(double_backward(sample)))
        return found


class MixedProgram(NamedTuple):
    """∂/∂d (vᵀ ∂cost/∂x) of a block in some of its inputs d, side by side in one vector."""

    vector: NativeVector
    sizes: tuple[tuple[str, int], ...]
    """The inputs, and how many numbers of one block each has."""

    def of_lanes(
        self,
        block: BlockTerm,
        storages: tuple[Tensor, ...],
        dims: tuple[int | None, ...],
        inputs: dict[str, Tensor],
        move: Float[Tensor, "outer tangent lanes"],
    ) -> dict[str, Float[Tensor, "outer entries lanes"]]:
        """By input its derivative for every lane, where each has an input of its own or not.

        Args:
            storages, dims: as `BlockTerm.gather` gives them.
            inputs: as `BlockTerm.prepare` gives them.
            move: v of every block.
        """
        tensors, batched, outer, lanes = block.native_arguments(storages, dims, inputs)
        flat = self.vector.values([*tensors, move], [*batched, True], outer, lanes)
        pieces = flat.split([size for _, size in self.sizes], 1)
        return {name: piece for (name, _), piece in zip(self.sizes, pieces, strict=True)}


class MixedDraft(Pending[MixedProgram]):
    """The mixed derivative in some inputs."""

    what: ClassVar[str] = "mixed derivatives of "

    def __init__(self, block: BlockTerm, values: Values, inputs: Inputs, wanted: tuple[str, ...]):
        self._wanted = wanted
        self._sizes: tuple[tuple[str, int], ...] = ()
        super().__init__(block, values, inputs)

    def written(self, block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]) -> list[Any]:
        program, cost, arguments = _cost(block, storages, first)
        motion = motion_of(block, program)
        self._sizes = tuple((name, first[name].numel()) for name in self._wanted)
        numbers = {name: len(storages) + k for k, name in enumerate(first)}
        data = [program.input(numbers[name], k, "real") for name, size in self._sizes for k in range(size)]
        along = [program.input(len(arguments), k, "real") for k in range(motion.columns)]
        entries = mixed(program, cost, motion, along, data)
        arguments = [*arguments, Argument(motion.columns, True)]
        return [WrittenVector.of(program, arguments, entries, LARGEST_CURVATURE)]

    def checked(self, block: BlockTerm, values: Values, inputs: Inputs, programs: list[Any]) -> MixedProgram:
        found, sample = MixedProgram(programs[0], self._sizes), sample_at_ends(block, values, inputs)
        expected = _expected(double_backward(sample))

        def along(v: Tensor) -> dict[str, Tensor]:
            move = v[None, :, None].expand(sample.block.outer, -1, sample.block.lanes)
            return found.of_lanes(sample.block, sample.storages, sample.dims, sample.inputs, move)

        compare_mixed(sample, along, expected)
        return found


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


def _cost(
    block: BlockTerm, storages: tuple[Tensor, ...], first: dict[str, Tensor]
) -> tuple[Program, Scalar, list[Argument]]:
    """½ρ of one block as a scalar."""
    program, outputs, arguments = scalars_of(
        block, lambda storages, inputs: [block.cost_of_block(storages, inputs)], storages, first
    )
    return program, outputs[0].reshape(-1)[0], arguments


def _expected(expected: list[Any] | None) -> list[Any]:
    if expected is None:
        raise NotScalarError("PyTorch has no second derivative to compare it with")
    return expected
