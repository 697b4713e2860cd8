"""What a linearization keeps of J for the linear solver: JᵀJ dense or by blocks, the triangle of J, or J's own blocks.

A storage knows how the terms of a linearized problem are put together into one tensor, the `matrix` of every linear
solver, and what can be computed from it without solving. So a linearizer, an adjoint or a trust region asks the storage
and never which solver it is for.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Vector = Float[Tensor, "batch columns"]
Bound = TypeVar("Bound")


class LinearizedTerm:
    """Base: one term of a linearized problem, as its blocks stand in the system."""

    def hessian(self, jacobian: Tensor) -> Tensor:
        """JᵀJ of the term, placed in the normal equations of the system."""
        raise NotImplementedError

    def placed(self, blockwise: Tensor) -> Tensor:
        """A symmetric matrix per block, placed in the same way."""
        raise NotImplementedError

    # ---- a term whose Jacobian is compressed has normal equations only

    def rows(self, jacobian: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the term in the dense Jacobian of the system, (batch, rows, columns), and their residuals."""
        raise NotImplementedError

    def flat(self, blocks: Tensor) -> Float[Tensor, "batch values"]:
        """The numbers of all blocks in one row per problem."""
        raise NotImplementedError

    def squared(self, jacobian: Tensor) -> Tensor:
        """JᵀJ of every block by itself."""
        raise NotImplementedError

    def shared(self, blockwise: Tensor) -> Tensor:
        """A matrix per block; of blocks that share their variables the sum."""
        raise NotImplementedError


class Storage:
    """Base. `matrix` is what `joined` returns, the batch first."""

    is_dense: ClassVar[bool]
    """Is the matrix (batch, components, size, size), independent systems side by side, and not flat (batch, values)?"""
    is_normal: ClassVar[bool]
    """Does it hold JᵀJ itself? Then parts of J add up, so that no more than one need be in memory."""
    keeps_parts: ClassVar[bool] = False
    """Of a problem that several processes solve: does each keep what its own blocks make? Then products are added up,
    and not matrices."""

    @property
    def num_values(self) -> int:
        """How many numbers a matrix has that is not dense, of the blocks that are here."""
        raise NotImplementedError

    # ---- putting together

    def part(self, term: LinearizedTerm, jacobian: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        """What is kept of one term."""
        return (self.squared_part(term, jacobian),)

    def joined(self, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, Vector | None]:
        """The matrix of all terms, and the right-hand side where that is not Jᵀr."""
        return self.joined_hessian([matrix for (matrix,) in parts]), None

    def hessian_part(self, term: LinearizedTerm, blockwise: Tensor) -> Tensor:
        """A symmetric matrix per block of a term, as `joined_hessian` wants it."""
        return term.placed(blockwise)

    def squared_part(self, term: LinearizedTerm, jacobian: Tensor) -> Tensor:
        """JᵀJ of a term, as `joined_hessian` wants it."""
        return term.hessian(jacobian)

    def joined_hessian(self, parts: list[Tensor]) -> Tensor:
        """A symmetric matrix of all terms, in the form that `product` and `LinearSolver.definite_factor` take."""
        return added(parts)

    def restricted(self, hessian: Tensor, free: Bool[Tensor, "batch columns"]) -> Tensor:
        """The symmetric matrix of the system in which only some columns are free: the others have a one on the diagonal
        and nothing else.

        Args:
            hessian: as `joined_hessian` makes it.
        """
        raise NotImplementedError

    # ---- what can be told of a matrix

    def diagonal(self, matrix: Tensor) -> Vector:
        """The diagonal of JᵀJ: the squared lengths of J's columns."""
        raise NotImplementedError

    def diagonal_of_hessian(self, hessian: Tensor) -> Vector:
        """The diagonal of a symmetric matrix of `joined_hessian`."""
        return self.diagonal(hessian)

    def quadratic(self, matrix: Tensor, vector: Vector) -> Float[Tensor, "batch"]:
        """‖Jv‖²."""
        return (vector * self.normal_product(matrix, vector)).sum(-1)

    def normal_product(self, matrix: Tensor, vector: Vector) -> Vector:
        """JᵀJ v."""
        return self.product(matrix, vector)

    def right_hand_side(self, matrix: Tensor, gradient: Vector) -> Vector:
        """What stands for Jᵀu as the right-hand side of `LinearSolver.solve`, given Jᵀu."""
        return gradient

    def moved(self, matrix: Tensor, rhs: Vector, free: Bool[Tensor, "batch columns"], move: Vector) -> Vector:
        """The right-hand side of the step that the free columns make around a move of the others.

        Args:
            move: zero in the free columns.
        """
        return torch.where(free, rhs + self.normal_product(matrix, move), 0)

    def product(self, matrix: Tensor, vector: Vector) -> Vector:
        """A v for the symmetric matrices of `joined_hessian`."""
        raise NotImplementedError

    def magnitude(self, matrix: Tensor, vector: Vector) -> Vector:
        """How large the terms are that JᵀJ v adds up, |JᵀJ| |v|: its rounding is a few units in the last place."""
        return self.product(matrix.abs(), vector.abs())


@dataclass(frozen=True)
class DenseNormal(Storage):
    """JᵀJ, dense; one matrix for each of several components that nothing couples."""

    is_dense: ClassVar[bool] = True
    is_normal: ClassVar[bool] = True

    def restricted(self, hessian: Tensor, free: Bool[Tensor, "batch columns"]) -> Tensor:
        own = free.reshape(hessian.shape[:-1])
        held = torch.diag_embed((~own).to(hessian.dtype))
        return torch.where(own[..., None] & own[..., None, :], hessian, held)

    def diagonal(self, matrix: Tensor) -> Vector:
        return matrix.diagonal(dim1=-2, dim2=-1).flatten(1)

    def product(self, matrix: Tensor, vector: Vector) -> Vector:
        return (matrix @ vector.reshape(matrix.shape[:-1])[..., None])[..., 0].flatten(1)


@dataclass(frozen=True)
class Triangle(DenseNormal):
    """The triangle R of J = QR, which squares no condition number, and Qᵀr. Hessians are dense matrices."""

    is_normal: ClassVar[bool] = False

    def part(self, term: LinearizedTerm, jacobian: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        return term.rows(jacobian, residual)

    def joined(self, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, Vector | None]:
        jacobians, residuals = zip(*parts, strict=True)
        return triangle_of(torch.cat(jacobians, 1), torch.cat(residuals, 1))

    def diagonal_of_hessian(self, hessian: Tensor) -> Vector:
        return super().diagonal(hessian)

    def right_hand_side(self, matrix: Tensor, gradient: Vector) -> Vector:
        """Qᵀu, from Rᵀ(Qᵀu) = Jᵀu; not finite where R is singular."""
        return torch.linalg.solve_triangular(
            matrix.mT, gradient.reshape(matrix.shape[:-1])[..., None], upper=False
        ).flatten(1)

    def moved(self, matrix: Tensor, rhs: Vector, free: Bool[Tensor, "batch columns"], move: Vector) -> Vector:
        return rhs + (matrix @ move.reshape(matrix.shape[:-1])[..., None])[..., 0].flatten(1)

    def normal_product(self, matrix: Tensor, vector: Vector) -> Vector:
        product = matrix @ vector.reshape(matrix.shape[:-1])[..., None]
        return (matrix.mT @ product)[..., 0].flatten(1)

    def diagonal(self, matrix: Tensor) -> Vector:
        return (matrix * matrix).sum(-2).flatten(1)

    def quadratic(self, matrix: Tensor, vector: Vector) -> Float[Tensor, "batch"]:
        product = (matrix @ vector.reshape(matrix.shape[:-1])[..., None])[..., 0]
        return (product * product).sum((-2, -1))

    def magnitude(self, matrix: Tensor, vector: Vector) -> Vector:
        triangle, v = matrix.abs(), vector.abs().reshape(matrix.shape[:-1])[..., None]
        return (triangle.mT @ (triangle @ v))[..., 0].flatten(1)


def already_bound(found: Bound | None) -> Bound:
    """What a linear solver is bound to; RuntimeError before it is bound."""
    if found is None:
        raise RuntimeError("This linear solver has no structure yet: it is bound by the solver that uses it.")
    return found


def triangle_of(
    jacobian: Float[Tensor, "batch rows columns"], residual: Float[Tensor, "batch rows"]
) -> tuple[Float[Tensor, "batch 1 columns columns"], Vector]:
    """R and Qᵀr of J = QR, by one factorisation of [J r]; with fewer rows than columns the missing rows are zero."""
    columns = jacobian.shape[-1]
    joint = torch.linalg.qr(torch.cat((jacobian, residual[..., None]), -1), mode="r").R
    if joint.shape[-2] < columns:
        joint = torch.nn.functional.pad(joint, (0, 0, 0, columns - joint.shape[-2]))
    return joint[:, None, :columns, :columns], joint[:, :columns, columns]


def added(parts: list[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
