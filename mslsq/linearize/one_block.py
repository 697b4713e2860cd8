"""What is computed of one block of a term: residual, Jacobian, gradient, Hessian, curvature; no batch, no lanes."""

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mslsq.levels import constant
from mslsq.linearize.derivatives import Mode, Way, value_and_jacobian
from mslsq.manifolds.components import cat_matrices
from mslsq.private import vjp
from mslsq.problem.errors import ProblemError, ShapeError
from mslsq.problem.system import Inputs, System, Term, residual_like, residual_vector


class OneBlock:
    """Base of the terms that are mapped over lanes (`linearize.blocks`): functions of `(storages, inputs)` of one
    block, which every transform may map."""

    term: Term
    system: System
    rows: int
    batch: int
    pairs: int
    way: Way

    @property
    def jacobian_mode(self) -> Mode:
        return self.way.jacobian or ("forward" if self.rows >= sum(self.tangents) else "reverse")

    @property
    def has_forward_mode(self) -> bool:
        """Is its residual known to be right in forward mode? Not where the user gives the Jacobian, and not where its
        sparsity was checked in the mode that takes fewer derivatives."""
        return self.term.jacobians is None and self.way.sparsity is None and self.jacobian_mode == "forward"

    @property
    def tangents(self) -> list[int]:
        """The tangent dimension of each slot."""
        return [self.system.unknowns[slot.unknown].space.tangent_dim for slot in self.term.slots]

    def residual_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "rows"]:
        """The weighted residual of one block, as a real vector; of many where the term broadcasts."""
        return self._whitened(self.term.residual(self.values_of_block(storages), inputs), storages[0], inputs)

    def _whitened(self, output: Any, like: Tensor, inputs: Inputs) -> Float[Tensor, "rows"]:
        """What a residual returned, as a real vector, weighted."""
        vector = output if self.term.broadcasts else residual_vector(output)[0]
        vector = vector.to(like.dtype)  # only ever widens: `block_term` refuses the other way
        return vector if self.term.whiten is None else self.term.whiten(vector, inputs)

    def values_of_block(self, storages: tuple[Tensor, ...]) -> tuple[Any, ...]:
        spaces = [self.system.unknowns[slot.unknown].space for slot in self.term.slots]
        return tuple(space.wrap(storage) for space, storage in zip(spaces, storages, strict=True))

    def _retracted(self, storages: tuple[Tensor, ...], delta: Float[Tensor, "tangent"]) -> tuple[Tensor, ...]:
        """The storages moved by a joint tangent vector."""
        spaces = [self.system.unknowns[slot.unknown].space for slot in self.term.slots]
        pieces = delta.split(self.tangents)
        return tuple(space.retract(s, piece) for space, s, piece in zip(spaces, storages, pieces, strict=True))

    def _in_tangent(
        self, function: Callable[[tuple[Tensor, ...]], Any], storages: tuple[Tensor, ...]
    ) -> tuple[Callable[[Tensor], Any], Tensor]:
        """`function` of the storages as a function of a joint tangent vector, and the vector that stands for the
        storages."""
        spaces = [self.system.unknowns[slot.unknown].space for slot in self.term.slots]
        if all(space.is_euclidean for space in spaces):
            # The vector is the point itself: no retraction in the graph.
            joint = storages[0] if len(storages) == 1 else torch.cat(storages)
            return lambda z: function(z.split(self.tangents) if len(storages) > 1 else (z,)), joint
        zero = storages[0].new_zeros(sum(self.tangents))
        return lambda delta: function(self._retracted(storages, delta)), zero

    def linearization_of_block(
        self, storages: tuple[Tensor, ...], inputs: Inputs
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows tangent"]]:
        """The weighted residual of one block and its Jacobian in the joint tangent of its variables, in its layout; of
        many where the term broadcasts."""
        if self.way.linearization is not None:
            return self.way.linearization(storages, inputs)
        if self.term.jacobians is not None:
            values = self.values_of_block(storages)
            if self.term.residual_and_jacobians is not None:
                output, given = self.term.residual_and_jacobians(values, inputs)
            else:
                output, given = self.term.residual(values, inputs), self.term.jacobians(values, inputs)
            residual = self._whitened(output, storages[0], inputs)
            if self.term.broadcasts:
                jacobian = cat_matrices([part.expand(*residual.shape[:-1], -1, -1) for part in given], -1)
            else:
                jacobian = torch.cat(self._checked_jacobians(given, storages[0]), -1)
            if self.term.whiten_jacobian is not None:
                jacobian = self.term.whiten_jacobian(jacobian, inputs)
            return residual, jacobian

        function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)
        if self.way.sparsity is not None:
            return self.way.sparsity.jacobian.jacobian(function, at, self.batch)
        return value_and_jacobian(function, at, self.jacobian_mode)

    def _checked_jacobians(self, given: tuple[Tensor, ...], like: Tensor) -> list[Tensor]:
        """The user's Jacobians, one (rows, tangent) per slot; of complex residuals as pairs of real rows."""
        others = [type(part).__name__ for part in given if not isinstance(part, Tensor)]
        if others:
            raise ProblemError(f"Cost {self.term.name!r}: its Jacobians must be tensors, not {others[0]}.")
        parts = [
            torch.stack((part.real, part.imag), 1).flatten(0, 1) if part.is_complex() else part.to(like.dtype)
            for part in given
        ]
        expected = [(self.rows, tangent) for tangent in self.tangents]
        if [tuple(part.shape) for part in parts] != expected:
            raise ShapeError(
                f"Cost {self.term.name!r}: the Jacobians of a block have shapes "
                f"{', '.join(str(tuple(p.shape)) for p in given)}; "
                f"expected one per variable, {', '.join(map(str, expected))}: (rows of the residual, dimension of "
                "the tangent)."
            )
        return parts

    def cost_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, ""]:
        """½ρ(‖r‖²) of one block, or ½Σρ(r²) where the loss acts on each entry."""
        return self._cost_of_residual(self.residual_of_block(storages, inputs), inputs)

    def _cost_of_residual(self, residual: Float[Tensor, "rows"], inputs: Inputs) -> Float[Tensor, ""]:
        squared = squared_norms(
            residual[None, :, None], self.pairs, self.term.elementwise_loss or self.term.loss is None
        )
        return 0.5 * self.rho(squared.reshape(-1), inputs).sum()

    def gradient_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent"]:
        """The gradient of the block's cost in the joint tangent of its variables."""
        field, at = self._gradient_field(storages, inputs)
        return field(at)

    def hessian_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent tangent"]:
        """The exact Hessian of the block's cost in the joint tangent of its variables, second derivatives of the
        residual included.

        Its pattern is that of JᵀJ: the second derivatives of one entry of the residual couple the unknowns that this
        entry depends on.
        """
        field, at = self._gradient_field(storages, inputs)
        if self.way.sparsity is not None:
            return self.way.sparsity.hessian.hessian(field, at, self.batch)
        return value_and_jacobian(field, at, self.way.hessian)[1]

    def gradient_and_curvature_of_block(
        self, storages: tuple[Tensor, ...], inputs: Inputs
    ) -> tuple[Float[Tensor, "tangent"], Float[Tensor, "tangent tangent"]]:
        """The gradient of ½‖r‖² of the weighted residual, and its curvature: the one is found on the way to the
        other."""
        if self.term.curvature is not None:
            return self.gradient_of_block(storages, inputs), self.curvature_of_block(storages, inputs)
        function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)

        def gradient(z: Tensor) -> Tensor:
            residual, pull = vjp(function, z)
            # The cotangent is a constant, so that it has no tangent of its own: half of the work.
            return pull(constant(residual), create_graph=True)[0]

        return value_and_jacobian(gradient, at, self.way.hessian)

    def curvature_of_block(self, storages: tuple[Tensor, ...], inputs: Inputs) -> Float[Tensor, "tangent tangent"]:
        """Σᵢ rᵢ ∇²rᵢ of the weighted residual: what the Hessian of ½‖r‖² has beyond JᵀJ."""
        if self.term.curvature is None:
            return self.gradient_and_curvature_of_block(storages, inputs)[1]
        values = self.values_of_block(storages)
        output = self.term.residual(values, inputs)
        vector = residual_vector(output)[0].to(storages[0].dtype)
        if self.term.whiten is not None:
            # rᵀ∇²r of the whitened residual W r is (WᵀW r)ᵀ∇²r.
            whiten = self.term.whiten
            whitened, pull = vjp(lambda v: whiten(v, inputs), vector)
            vector = pull(whitened)[0]
        matrix = self._checked_curvature(self.term.curvature(residual_like(output, vector), values, inputs))
        return 0.5 * (matrix + matrix.mT)

    def _checked_curvature(self, matrix: Tensor) -> Tensor:
        size = sum(self.tangents)
        if tuple(matrix.shape) != (size, size):
            raise ShapeError(
                f"Cost {self.term.name!r}: the curvature of a block has shape {tuple(matrix.shape)}; expected "
                f"{(size, size)}, a matrix in the joint tangent of its variables."
            )
        return matrix

    def _gradient_field(
        self, storages: tuple[Tensor, ...], inputs: Inputs
    ) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """The gradient of the block's cost as a function of a joint tangent vector, and where to take it."""
        function, at = self._in_tangent(lambda moved: self.residual_of_block(moved, inputs), storages)

        def field(z: Tensor) -> Tensor:
            # From the residual back, not from the cost: no graph keeps the cost itself alive.
            residual, pull = vjp(function, z)
            # Without a graph the pullback takes kernels that have no derivative: silu, mish, group_norm.
            return pull(self._slope(residual, inputs), create_graph=True)[0]

        return field, at

    def _slope(self, residual: Float[Tensor, "rows"], inputs: Inputs) -> Float[Tensor, "rows"]:
        """The derivative of the block's cost in its residual."""
        if self.term.loss is None:
            return residual
        one = torch.ones((), dtype=residual.dtype, device=residual.device)
        return vjp(lambda r: self._cost_of_residual(r, inputs), residual)[1](one)[0]

    def rho(self, squared: Tensor, inputs: Inputs) -> Tensor:
        """The loss of squared norms, or the squared norms themselves."""
        if self.term.loss is None:
            return squared
        return self.term.loss.rho(squared, self.loss_parameters(inputs))

    def loss_parameters(self, inputs: Inputs) -> dict[str, Tensor]:
        """The loss's parameters by their own names."""
        return {own: inputs[name] for own, name in self.term.loss_inputs.items()}


def squared_norms(
    residual: Float[Tensor, "outer rows lanes"], pairs: int, elementwise: bool
) -> Float[Tensor, "outer groups lanes"]:
    """|r|² of each entry (the leading `pairs` are complex), or of the whole block."""
    square = residual * residual
    if not elementwise:
        return square.sum(1, keepdim=True)
    if pairs == 0:
        return square
    modulus = rearrange(square[:, : 2 * pairs], "outer (pair part) lanes -> outer pair part lanes", part=2).sum(2)
    return torch.cat((modulus, square[:, 2 * pairs :]), 1)
