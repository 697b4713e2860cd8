"""Dense solvers of the damped Gauss–Newton system (JᵀJ + diag(d)) p = −Jᵀr, batched, each entry failing alone.

Both keep what they need of J between attempts with different damping: `Cholesky` JᵀJ itself, `QR` the triangle R of
J = QR, which squares no condition number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    from mslsq.linear.block_cholesky import BlockStructure

Matrix = Float[Tensor, "batch components size size"]
Vector = Float[Tensor, "batch columns"]


@dataclass(frozen=True)
class LinearSolver:
    """Base of the linear solvers. `columns` are `components * size`: independent dense systems side by side."""

    @property
    def form(self) -> Literal["normal", "triangular", "sparse", "blocks"]:
        """What `matrix` holds: JᵀJ, dense or by its blocks; the triangle R of J = QR (and `rhs` Jᵀr, or Qᵀr); or the
        blocks of J itself."""
        raise NotImplementedError

    @property
    def is_inexact(self) -> bool:
        """Does it solve only as accurately as `to_accuracy` asks, to save work far from the solution?"""
        return False

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "LinearSolver":
        """The solver whose steps have a relative residual of at most `accuracy`; direct ones are always exact."""
        return self

    def bound(self, structure: "BlockStructure", kinds: Mapping[str, np.ndarray]) -> "LinearSolver":
        """The solver for block-sparse matrices of this structure.

        Args:
            kinds: the matrix's blocks by the kind of variable they belong to: per name (count,) numbers of blocks, -1
                for those that are held fixed.
        """
        return self

    def summary(self) -> str:
        """What it is, and what it has chosen, in a few words."""
        return type(self).__name__

    def solve(self, matrix: Matrix, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        """The step p, and whether the system of each entry could be solved."""
        raise NotImplementedError

    def squared_column_norms(self, matrix: Matrix) -> Vector:
        """The diagonal of JᵀJ."""
        raise NotImplementedError

    def quadratic(self, matrix: Matrix, vector: Vector) -> Float[Tensor, "batch"]:
        """‖Jv‖²."""
        raise NotImplementedError

    def product(self, matrix: Matrix, vector: Vector) -> Vector:
        """A v for symmetric matrices in the form of normal equations, as `definite_factor` takes them."""
        return (matrix @ vector.reshape(matrix.shape[:-1])[..., None])[..., 0].flatten(1)

    def relative_residual(self, matrix: Matrix, solution: Vector, rhs: Vector) -> Float[Tensor, "batch"]:
        """‖b − Ax‖ / ‖b‖ of a symmetric system, 0 for b = 0: how far a solution may be trusted."""
        left = torch.linalg.vector_norm(rhs - self.product(matrix, solution), dim=-1)
        length = torch.linalg.vector_norm(rhs, dim=-1)
        return left / torch.where(length > 0, length, 1)

    def definite_factor(self, matrix: Matrix) -> tuple[Tensor, Bool[Tensor, "batch"]]:
        """A factor of symmetric matrices (in the form of normal equations), and which of them are positive definite.

        What stands in for the others is harmless to solve with, before anything is solved: a factor that is replaced
        afterwards would have turned the gradients of parameters shared with good problems into NaN.
        """
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        finite = torch.isfinite(matrix).all(-1).all(-1)
        factor, info = torch.linalg.cholesky_ex(torch.where(finite[..., None, None], matrix, eye))
        pivots = factor.diagonal(dim1=-2, dim2=-1) ** 2
        # A pivot that is only rounding of what stood there before elimination: singular to working precision.
        before = matrix.diagonal(dim1=-2, dim2=-1)
        regular = (pivots > torch.finfo(matrix.dtype).eps * matrix.shape[-1] * before).all(-1)
        definite = (finite & (info == 0) & regular).all(-1)
        return torch.where(definite[:, None, None, None], factor, eye), definite

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        """A⁻¹ rhs, differentiable to any order in `rhs` (the factor is a constant)."""
        solved = torch.cholesky_solve(rhs.reshape(factor.shape[:-1])[..., None], factor)
        return solved[..., 0].flatten(1)


@dataclass(frozen=True)
class Cholesky(LinearSolver):
    """Cholesky factorisation of the normal equations: fastest, resolves steps while the scaled condition of J stays
    below 1e8."""

    @property
    def form(self) -> Literal["normal", "triangular"]:
        return "normal"

    def solve(self, matrix: Matrix, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        if damping is not None:
            matrix = matrix + torch.diag_embed(damping.reshape(matrix.shape[:-1]))
        factor, info = torch.linalg.cholesky_ex(matrix)
        step = torch.cholesky_solve(rhs.reshape(matrix.shape[:-1])[..., None], factor)
        return -step.reshape(rhs.shape), (info == 0).all(-1)

    def squared_column_norms(self, matrix: Matrix) -> Vector:
        return matrix.diagonal(dim1=-2, dim2=-1).flatten(1)

    def quadratic(self, matrix: Matrix, vector: Vector) -> Float[Tensor, "batch"]:
        v = vector.reshape(matrix.shape[:-1])
        return (v * (matrix @ v[..., None])[..., 0]).sum((-2, -1))


@dataclass(frozen=True)
class QR(LinearSolver):
    """Orthogonal factorisation of J: several times the cost of Cholesky, and accurate up to a condition of J near
    1e16."""

    @property
    def form(self) -> Literal["normal", "triangular"]:
        return "triangular"

    def solve(self, matrix: Matrix, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        rhs = rhs.reshape(matrix.shape[:-1])
        triangle = matrix
        if damping is not None:
            root = torch.diag_embed(damping.reshape(matrix.shape[:-1]).sqrt())
            augmented = torch.cat(
                (torch.cat((matrix, root), -2), torch.cat((rhs, torch.zeros_like(rhs)), -1)[..., None]), -1
            )
            joint = torch.linalg.qr(augmented, mode="r").R
            n = matrix.shape[-1]
            triangle, rhs = joint[..., :n, :n], joint[..., :n, n]
        diagonal = triangle.diagonal(dim1=-2, dim2=-1).abs()
        # A column of which nothing but rounding is left after the columns before it; independent of the columns' units.
        lengths = torch.linalg.vector_norm(triangle, dim=-2)
        regular = diagonal > torch.finfo(matrix.dtype).eps * matrix.shape[-1] * lengths
        solvable = regular.all(-1, keepdim=True)
        safe = torch.where(
            solvable[..., None], triangle, torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        )
        step = torch.linalg.solve_triangular(safe, rhs[..., None], upper=True)[..., 0]
        return -step.flatten(1), solvable[..., 0].all(-1)

    def squared_column_norms(self, matrix: Matrix) -> Vector:
        return (matrix * matrix).sum(-2).flatten(1)

    def quadratic(self, matrix: Matrix, vector: Vector) -> Float[Tensor, "batch"]:
        product = (matrix @ vector.reshape(matrix.shape[:-1])[..., None])[..., 0]
        return (product * product).sum((-2, -1))


def triangular_form(
    jacobian: Float[Tensor, "batch rows columns"], residual: Float[Tensor, "batch rows"]
) -> tuple[Matrix, Vector]:
    """R and Qᵀr of J = QR, by one factorisation of [J r]; with fewer rows than columns the missing rows are zero."""
    columns = jacobian.shape[-1]
    joint = torch.linalg.qr(torch.cat((jacobian, residual[..., None]), -1), mode="r").R
    if joint.shape[-2] < columns:
        joint = torch.nn.functional.pad(joint, (0, 0, 0, columns - joint.shape[-2]))
    return joint[:, None, :columns, :columns], joint[:, :columns, columns]
