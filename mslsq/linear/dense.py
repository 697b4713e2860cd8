"""Dense solvers of the damped Gauss–Newton system (JᵀJ + diag(d)) p = −Jᵀr, batched, each entry failing alone.

Both keep what they need of J between attempts with different damping: `Cholesky` JᵀJ itself, `QR` the triangle R of
J = QR, which squares no condition number.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.linear_solver import DefiniteFactor, LinearSolver, Matrix
from mslsq.linear.storage import DenseNormal, Storage, Triangle, Vector

LEAST_PIVOT = 8.0
"""A pivot of n rows below n times as many units in the last place of what stood there before elimination is rounding.
Of 40 starts of a fit with a free gauge 21 had a derivative with one unit, 2 with eight (AVX2)."""


class DenseSolver(LinearSolver):
    """Base of the dense solvers: the adjoint's factors are LAPACK's, whatever takes the steps."""

    def definite_factor(self, matrix: Matrix) -> DefiniteFactor:
        """What stands in for matrices that are not definite is the identity, before anything is solved: a factor that
        is replaced afterwards would have turned the gradients of parameters shared with good problems into NaN."""
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        finite = torch.isfinite(matrix).all(-1).all(-1)
        factor, found = self.factored(torch.where(finite[..., None, None], matrix, eye))
        pivots = factor.diagonal(dim1=-2, dim2=-1) ** 2
        # A pivot that is only rounding of what stood there before elimination: singular to working precision.
        before = matrix.diagonal(dim1=-2, dim2=-1)
        regular = (pivots > LEAST_PIVOT * torch.finfo(matrix.dtype).eps * matrix.shape[-1] * before).all(-1)
        definite = (finite & found & regular).all(-1)
        return DefiniteFactor(torch.where(definite[:, None, None, None], factor, eye), definite)

    def factored(self, matrix: Matrix) -> tuple[Matrix, Bool[Tensor, "batch components"]]:
        """The lower triangle L of symmetric matrices LLᵀ, and which have one."""
        factor, info = torch.linalg.cholesky_ex(matrix)
        return factor, info == 0

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        solved = torch.cholesky_solve(rhs.reshape(factor.shape[:-1])[..., None], factor)
        return solved[..., 0].flatten(1)

    def solve_factored_rows(
        self, factor: Tensor, rows: Float[Tensor, "batch k columns"]
    ) -> Float[Tensor, "batch k columns"]:
        by_part = rows.unflatten(2, factor.shape[1:3]).permute(0, 2, 3, 1)  # batch, components, size, k
        return torch.cholesky_solve(by_part, factor).permute(0, 3, 1, 2).flatten(2)


@dataclass(frozen=True)
class Cholesky(DenseSolver):
    """Cholesky factorisation of the normal equations, dense, by LAPACK: fastest, resolves steps while the scaled
    condition of J stays below 1e8 in float64 (3e3 in float32).

    Any device; float64 and float32, each in itself. Independent parts of a problem are a batch of small systems. An
    entry that is not positive definite is not solved and harms no other; nothing is raised.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.Cholesky())
    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=solver)
    """

    @property
    def storage(self) -> Storage:
        return DenseNormal()

    def solve(self, matrix: Matrix, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        if damping is not None:
            matrix = matrix + torch.diag_embed(damping.reshape(matrix.shape[:-1]))
        factor, info = torch.linalg.cholesky_ex(matrix)
        step = torch.cholesky_solve(rhs.reshape(matrix.shape[:-1])[..., None], factor)
        return -step.reshape(rhs.shape), (info == 0).all(-1)


@dataclass(frozen=True)
class QR(DenseSolver):
    """Orthogonal factorisation of J, dense, by LAPACK: several times the cost of Cholesky, and accurate up to a
    condition of J near 1e16 in float64 (1e7 in float32).

    Damping adds as many rows, [R; √d] (J. J. Moré, "The Levenberg–Marquardt algorithm: implementation and theory",
    1978). Any device; float64 and float32, each in itself. An entry of deficient rank is not solved and harms no
    other; nothing is raised.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.QR())
    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=solver)
    """

    @property
    def storage(self) -> Storage:
        return Triangle()

    def differentiable(self) -> LinearSolver:
        return Cholesky()  # the derivative of QR would need Q

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
