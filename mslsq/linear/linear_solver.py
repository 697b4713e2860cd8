"""What every linear solver answers: steps for the solvers' loop, definite factors for the adjoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure

Matrix = Float[Tensor, "batch components size size"]
Vector = Float[Tensor, "batch columns"]


class DefiniteFactor(NamedTuple):
    """Factors of a batch of symmetric matrices, for `solve_factored`."""

    factor: Tensor
    definite: Bool[Tensor, "batch"]
    """Which matrices are positive definite. What stands in for the factors of the others is harmless to solve with."""
    undecided: Float[Tensor, "batch"] | None = None
    """Of iterative solvers: at which relative residual they gave up before they could tell; NaN where they could."""


@dataclass(frozen=True)
class LinearSolver:
    """Base of the linear solvers: what the loop asks for steps, and the adjoint for derivatives.

    A solver is data, a frozen dataclass; its methods are functions of tensors with the batch first, and an entry that
    cannot be solved harms no other. `matrix` is what a linearization keeps between attempts with different damping, and
    what it holds is said by `form`: where that is dense, (batch, components, size, size), independent systems side by
    side, and `columns` are `components * size`; where it is by blocks, flat (batch, values). Results have the dtype and
    the device of the right-hand side.

    >>> matrix, rhs = torch.tensor([[[[4.0, 1.0], [1.0, 3.0]]]]), torch.tensor([[1.0, 2.0]])
    >>> step, solved = mslsq.linear.Cholesky().solve(matrix, rhs, None)
    >>> step, solved
    (tensor([[-0.0909, -0.6364]]), tensor([True]))
    """

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

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "LinearSolver":
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
        """The step p, (JᵀJ + diag(damping)) p = −Jᵀr, and whether the system of each entry could be solved.

        Args:
            matrix: in the solver's form.
            rhs: (batch, columns) Jᵀr; Qᵀr where the form is triangular.
            damping: (batch, columns), not negative; None for none.
        """
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

    def magnitude(self, matrix: Matrix, vector: Vector) -> Vector:
        """How large the terms are that JᵀJ v adds up, |JᵀJ| |v|: its rounding is so many units in the last place."""
        return self.product(matrix.abs(), vector.abs())

    def relative_residual(self, matrix: Matrix, solution: Vector, rhs: Vector) -> Float[Tensor, "batch"]:
        """‖b − Ax‖ / ‖b‖ of a symmetric system, 0 for b = 0: how far a solution may be trusted."""
        largest = rhs.abs().amax(-1, keepdim=True) if rhs.shape[-1] else rhs.sum(-1, keepdim=True)
        unit = torch.where(largest > 0, largest, 1)  # squares of 1e30 are too large for float32
        left = torch.linalg.vector_norm((rhs - self.product(matrix, solution)) / unit, dim=-1)
        length = torch.linalg.vector_norm(rhs / unit, dim=-1)
        return left / torch.where(length > 0, length, 1)

    def definite_factor(self, matrix: Matrix) -> DefiniteFactor:
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
        return DefiniteFactor(torch.where(definite[:, None, None, None], factor, eye), definite)

    def factor_of_step(self, matrix: Matrix) -> DefiniteFactor:
        """The same of the damped matrix of a step that has been taken, so that nobody need prove it definite."""
        return self.definite_factor(matrix)

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        """A⁻¹ rhs, differentiable to any order in `rhs` (the factor is a constant)."""
        solved = torch.cholesky_solve(rhs.reshape(factor.shape[:-1])[..., None], factor)
        return solved[..., 0].flatten(1)
