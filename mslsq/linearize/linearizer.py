"""The whole system as pure functions: residuals, cost, linearization, exact gradient and Hessian."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.storage import added
from mslsq.linearize.assembly import Assembly
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.robust import losses, robustified
from mslsq.private import jvp
from mslsq.problem.structure import Structure
from mslsq.problem.system import Inputs, System
from mslsq.ranks import ALONE, Ranks

TermInputs = tuple[dict[str, Tensor], ...]
"""The tensors of every term, prepared for the lanes."""


class Linearization(NamedTuple):
    """The Gauss–Newton model of the cost around a point: cost + gᵀp + ½‖J̃p‖²."""

    cost: Float[Tensor, "batch"]
    gradient: Float[Tensor, "batch columns"]
    matrix: Float[Tensor, "batch components size size"]
    """J̃ᵀJ̃, the triangle R of J̃ = QR, or blocks: as the storage of the linear solver has it."""
    rhs: Float[Tensor, "batch columns"]
    """J̃ᵀr̃ (the gradient), or Qᵀr̃."""


@dataclass(frozen=True, eq=False)
class Linearizer:
    """Pure, out-of-place functions of a system; nothing here is specific to a solver."""

    system: System
    structure: Structure
    assemblies: tuple[Assembly, ...]
    linear_solver: LinearSolver
    ranks: Ranks = ALONE
    """The processes that have the blocks of the problem: cost, gradient and matrix are sums over all of them."""

    @property
    def blocks(self) -> tuple[BlockTerm, ...]:
        return tuple(assembly.block for assembly in self.assemblies)

    def without_programs(self) -> "Linearizer":
        """The same in PyTorch's operations alone, which can be differentiated."""
        return replace(self, assemblies=tuple(assembly.without_program() for assembly in self.assemblies))

    @property
    def has_second_order(self) -> bool:
        """Are gradient and exact Hessian of all terms native code?"""
        return all(block.second is not None for block in self.blocks)

    def prepare(self, inputs: tuple[Inputs, ...]) -> TermInputs:
        """The users' tensors in the layout of the lanes."""
        return tuple(block.prepare(given) for block, given in zip(self.blocks, inputs, strict=True))

    def residuals(self, values: Values, inputs: TermInputs) -> tuple[Float[Tensor, "outer rows lanes"], ...]:
        """The weighted residuals of every term, before any loss."""
        return tuple(block.residuals(values, given) for block, given in zip(self.blocks, inputs, strict=True))

    def cost(self, values: Values, inputs: TermInputs) -> Float[Tensor, "batch"]:
        """½Σρ."""
        costs = [
            0.5 * block.summed(losses(block, block.residuals(values, given), given))
            for block, given in zip(self.blocks, inputs, strict=True)
        ]
        if not costs:
            return self.ranks.sum_of(self._nothing(values))
        return self.ranks.sum_of(torch.stack(costs).sum(0) if len(costs) > 1 else costs[0])

    def linearize(self, values: Values, inputs: TermInputs) -> Linearization:
        """Cost, gradient, and what the linear solver keeps of J, at a point."""
        return self.together(self.own_linearization(values, inputs))

    def own_linearization(self, values: Values, inputs: TermInputs) -> Linearization:
        """The linearization of the blocks of this process."""
        storage = self.linear_solver.storage
        if not self.assemblies:
            gradient = self._nothing(values, self.structure.num_columns)
            return Linearization(self._nothing(values), gradient, self._no_matrix(values), gradient)
        costs, gradients, parts = [], [], []
        for assembly, given in zip(self.assemblies, inputs, strict=True):
            if assembly.comes_in_pieces:
                by_piece, gradient, matrix = assembly.accumulated(values, given)
                costs += [0.5 * assembly.block.summed(rho) for rho in by_piece]
                gradients.append(gradient)
                parts.append((matrix,))
                continue
            for rho, residual, jacobian in self._rescaled(assembly, values, given):
                costs.append(0.5 * assembly.block.summed(rho))
                gradient, part = assembly.equations(storage, jacobian, residual)
                gradients.append(gradient)
                parts.append(part)
        matrix, rhs = storage.joined(parts)
        gradient = added(gradients)
        return Linearization(added(costs), gradient, matrix, gradient if rhs is None else rhs)

    def together(self, own: Linearization) -> Linearization:
        """The linearization of all processes' blocks, from that of the blocks of this one."""
        if self.ranks.is_alone:
            return own._replace(matrix=self._padded(own.matrix))
        if self.linear_solver.storage.keeps_parts:
            cost, gradient = self.ranks.summed(own.cost, own.gradient)
            return Linearization(cost, gradient, own.matrix, gradient)
        cost, gradient, matrix = self.ranks.summed(own.cost, own.gradient, own.matrix)
        return Linearization(cost, gradient, self._padded(matrix), gradient)

    def _nothing(self, values: Values, *shape: int) -> Tensor:
        """What a process without blocks adds to a sum: (batch, *shape)."""
        return values[0].new_zeros(len(values[0]), *shape)

    def _no_matrix(self, values: Values) -> Tensor:
        """The same of a matrix."""
        structure, storage = self.structure, self.linear_solver.storage
        if storage.is_dense:
            return self._nothing(values, structure.num_components, structure.size, structure.size)
        return self._nothing(values, storage.num_values)

    def _matrix_of_all(self, own: Tensor) -> Tensor:
        """A symmetric matrix, from that of the blocks of this process."""
        return self._padded(own if self.linear_solver.storage.keeps_parts else self.ranks.sum_of(own))

    def gradient(self, values: Values, inputs: TermInputs) -> Float[Tensor, "batch columns"]:
        """The exact gradient of the cost in the tangent at `values`, differentiable to any order."""
        gradients = [
            assembly.placed_vector(assembly.block.gradients_of(assembly.block.gather(values), given))
            for assembly, given in zip(self.assemblies, inputs, strict=True)
        ]
        own = added(gradients) if gradients else self._nothing(values, self.structure.num_columns)
        return self.ranks.sum_of(own)

    def hessian(
        self, values: Values, inputs: TermInputs, exact: bool = True
    ) -> Float[Tensor, "batch components size size"]:
        """The exact Hessian of the cost in the tangent at `values`, or without second derivatives of the residuals
        (J̃ᵀJ̃)."""
        storage = self.linear_solver.storage
        if exact:
            parts = [self._hessian(one, values, given) for one, given in zip(self.assemblies, inputs, strict=True)]
        else:
            parts = [
                storage.squared_part(assembly, jacobian)
                for assembly, given in zip(self.assemblies, inputs, strict=True)
                for _, _, jacobian in self._rescaled(assembly, values, given)
            ]
        return self._matrix_of_all(storage.joined_hessian(parts) if parts else self._no_matrix(values))

    def _hessian(self, assembly: Assembly, values: Values, given: dict[str, Tensor]) -> Tensor:
        """The exact Hessian of one term, as the storage wants it."""
        storage, block = self.linear_solver.storage, assembly.block
        if (
            block.second is not None
            or block.term.curvature is None
            or block.term.loss is not None
            or not assembly.knows_curvature
        ):
            return storage.hessian_part(assembly, self._blockwise_hessian(block, values, given))
        _, jacobian = block.linearizations(values, given)
        curvature = block.over_lanes(block.curvature_of_block, values, given)
        return storage.squared_part(assembly, jacobian) + storage.hessian_part(assembly, curvature)

    @staticmethod
    def _blockwise_hessian(
        block: BlockTerm, values: Values, given: dict[str, Tensor]
    ) -> Float[Tensor, "outer tangent tangent lanes"]:
        """The exact Hessians of all blocks: through all of the cost, or by its parts where the term knows its own
        curvature: for ½ρ(s), ρ'(JᵀJ + Σ r ∇²r) + 2ρ'' (Jᵀr)(Jᵀr)ᵀ."""
        term = block.term
        by_parts = term.curvature is not None and not (term.elementwise_loss and term.loss is not None)
        if block.second is not None or not by_parts:
            return block.hessians_of(block.gather(values), given)
        residual, jacobian = block.linearizations(values, given)
        plain = block.way.layout.squared(jacobian) + block.over_lanes(block.curvature_of_block, values, given)
        if term.loss is None:
            return plain
        squared = (residual * residual).sum(1, keepdim=True)
        _, slope, bend = term.loss.derivatives(squared, block.loss_parameters_by_lane(given))
        gradient = block.way.layout.pulled(jacobian, residual)
        return slope[:, :, None] * plain + 2 * bend[:, :, None] * gradient[:, :, None] * gradient[:, None]

    @property
    def normal_equations_are_exact(self) -> bool:
        """Is the matrix of a linearization JᵀJ itself: no loss in it, and no Jacobian that a user vouches for alone?"""
        # (Of several processes one may have a loss, and another none.)
        return (
            self.ranks.is_alone
            and self.linear_solver.storage.is_normal
            and all(
                assembly.knows_curvature
                and assembly.block.term.loss is None
                and (assembly.block.term.jacobians is None or assembly.block.term.curvature is not None)
                for assembly in self.assemblies
            )
        )

    def curvature(self, values: Values, inputs: TermInputs, normal: Tensor) -> Tensor:
        """The exact Hessian from the normal equations JᵀJ of the same point: they lack Σ r ∇²r."""
        parts = [
            assembly.placed(assembly.block.over_lanes(assembly.block.curvature_of_block, values, given))
            for assembly, given in zip(self.assemblies, inputs, strict=True)
        ]
        return normal + added(parts)

    def gradient_and_curvature(
        self, values: Values, inputs: TermInputs, normal: Tensor
    ) -> tuple[Float[Tensor, "batch columns"], Tensor]:
        """`gradient` and `curvature` of one point, in fewer evaluations than both take; there are no losses."""
        gradients, parts = [], []
        for assembly, given in zip(self.assemblies, inputs, strict=True):
            block = assembly.block
            gradient, curvature = block.over_lanes(block.gradient_and_curvature_of_block, values, given)
            gradients.append(assembly.placed_vector(gradient))
            parts.append(assembly.placed(curvature))
        return added(gradients), normal + added(parts)

    def slope(self, values: Values, inputs: TermInputs, move: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch"]:
        """The derivative of the cost along a tangent vector, differentiable in the inputs."""

        def residuals(delta: Tensor) -> tuple[Tensor, ...]:
            return self.residuals(self.retract(values, delta), inputs)

        pair: Any = jvp(residuals, (torch.zeros_like(move),), (move,))
        slopes = []
        for block, given, residual, tangent in zip(self.blocks, inputs, *pair, strict=True):
            if block.term.loss is None:
                slopes.append(block.summed(residual * tangent))
                continue

            def rho(r: Tensor, block: BlockTerm = block, given: dict[str, Tensor] = given) -> Tensor:
                return losses(block, r, given)

            slopes.append(0.5 * block.summed(jvp(rho, (residual,), (tangent,))[1]))
        return self.ranks.sum_of(added(slopes))

    def _padded(self, matrix: Tensor) -> Tensor:
        """A one on the diagonal for the columns that pad a component to the common size keeps them out of
        everything."""
        if self.structure.padding is None:
            return matrix
        return matrix + torch.diag_embed(self.structure.padding.to(matrix.dtype).reshape(matrix.shape[1:3]))

    def retract(self, values: Values, step: Float[Tensor, "batch columns"]) -> Values:
        """Every block moved by its part of a step; fixed blocks stay."""
        pieces = self.structure.to_blocks(step)
        return tuple(
            unknown.space.retract(x, piece)
            for unknown, x, piece in zip(self.system.unknowns, values, pieces, strict=True)
        )

    def _rescaled(
        self, assembly: Assembly, values: Values, inputs: dict[str, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Loss, residual and Jacobian as plain least squares sees them, in pieces where their matrices add up."""
        lanes = assembly.blocks_at_a_time if self.linear_solver.storage.is_normal else None
        for part, (residual, jacobian) in assembly.block.linearizations_in_pieces(values, inputs, lanes):
            yield robustified(assembly.block, residual, jacobian, part)
