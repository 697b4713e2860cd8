"""Dense solvers of the damped Gauss–Newton system (JᵀJ + diag(d)) p = −Jᵀr, batched, each entry failing alone.

Both keep what they need of J between attempts with different damping: `Cholesky` JᵀJ itself, `QR` the triangle R of
J = QR, which squares no condition number.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.linear_solver import LinearSolver, Matrix, Vector


@dataclass(frozen=True)
class Cholesky(LinearSolver):
    """Cholesky factorisation of the normal equations, dense, by LAPACK: fastest, resolves steps while the scaled
    condition of J stays below 1e8 in float64 (3e3 in float32).

    Any device; float64 and float32, each in itself. Independent parts of a problem are a batch of small systems. An
    entry that is not positive definite is not solved and harms no other; nothing is raised.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.Cholesky())
    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=solver)
    """

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
    """Orthogonal factorisation of J, dense, by LAPACK: several times the cost of Cholesky, and accurate up to a
    condition of J near 1e16 in float64 (1e7 in float32).

    Damping is so many rows more, [R; √d] (J. J. Moré, "The Levenberg–Marquardt algorithm: implementation and theory",
    1978). Any device; float64 and float32, each in itself. An entry of deficient rank is not solved and harms no
    other; nothing is raised.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR())
    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=solver)
    """

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

    def magnitude(self, matrix: Matrix, vector: Vector) -> Vector:
        triangle, v = matrix.abs(), vector.abs().reshape(matrix.shape[:-1])[..., None]
        return (triangle.mT @ (triangle @ v))[..., 0].flatten(1)


def triangular_form(
    jacobian: Float[Tensor, "batch rows columns"], residual: Float[Tensor, "batch rows"]
) -> tuple[Matrix, Vector]:
    """R and Qᵀr of J = QR, by one factorisation of [J r]; with fewer rows than columns the missing rows are zero."""
    columns = jacobian.shape[-1]
    joint = torch.linalg.qr(torch.cat((jacobian, residual[..., None]), -1), mode="r").R
    if joint.shape[-2] < columns:
        joint = torch.nn.functional.pad(joint, (0, 0, 0, columns - joint.shape[-2]))
    return joint[:, None, :columns, :columns], joint[:, :columns, columns]
