"""What every linear solver answers: steps for the solvers' loop, definite factors for the adjoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.storage import Storage, Vector

if TYPE_CHECKING:
    from mslsq.linear.iterative.allowance import Allowance
    from mslsq.linear.iterative.block_rows import BlockRows
    from mslsq.linear.symmetric_systems import DampedSystem

Matrix = Float[Tensor, "batch components size size"]


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
    cannot be solved harms no other. `matrix` is what a linearization keeps between attempts with different damping; its
    `storage` says what that holds: where it is dense, (batch, components, size, size), independent systems side by
    side, and `columns` are `components * size`; where it is by blocks, flat (batch, values). Results have the dtype and
    the device of the right-hand side.

    >>> matrix, rhs = torch.tensor([[[[4.0, 1.0], [1.0, 3.0]]]]), torch.tensor([[1.0, 2.0]])
    >>> step, solved = mslsq.linear.Cholesky().solve(matrix, rhs, None)
    >>> step, solved
    (tensor([[-0.0909, -0.6364]]), tensor([True]))
    """

    may_be_asked: ClassVar[bool] = False
    """May a method read numbers of a step, to leave out a system that they make needless? Not where it is recorded."""

    @property
    def storage(self) -> Storage:
        """What a linearization keeps for this solver as `matrix`, and what can be told of it without solving."""
        raise NotImplementedError

    @property
    def factors_can_be_recorded(self) -> bool:
        """Are `definite_factor` and `solve_factored` operations that a recorded graph can hold?"""
        return self.storage.is_dense

    @property
    def is_inexact(self) -> bool:
        """Does it solve only as accurately as `to_accuracy` asks, to save work far from the solution?"""
        return False

    @property
    def iterates(self) -> bool:
        """Does it come to its solutions step by step, to some accuracy?"""
        return False

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "LinearSolver":
        """The solver whose steps have a relative residual of at most `accuracy`; direct ones are always exact."""
        return self

    def with_workspace(self) -> "LinearSolver":
        """The solver with memory that it takes again from step to step, for as long as that object lives."""
        return self

    def without_asking(self) -> "LinearSolver":
        """The solver whose steps read no number of another device than a CPU, where each would be waited for."""
        return self

    def with_allowance(self, allowance: "Allowance") -> "LinearSolver":
        """The solver whose steps make as many iterations as they are allowed, and read no number either."""
        return self

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "LinearSolver":
        """The solver for block-sparse matrices of this structure.

        Args:
            structure: which blocks are stored.
            kinds: the matrix's blocks by the kind of variable they belong to: per name (count,) numbers of blocks, -1
                for those that are held fixed.
        """
        return self

    def bound_to_rows(self, rows: "BlockRows") -> "LinearSolver":
        """The solver for the blocks of J, where normal equations are never formed."""
        raise NotImplementedError

    def for_normal_equations(self) -> "LinearSolver | None":
        """What takes its place where nothing but normal equations is to be had (one big residual, compressed)."""
        return self if self.storage.is_normal else None

    def elsewhere(self) -> "LinearSolver | None":
        """What takes its place on a device that is not a CPU; None where nothing does."""
        return self

    def differentiable(self) -> "LinearSolver":
        """What takes its place where the derivatives of a step are to be taken by PyTorch: it takes the same step."""
        return self

    def damped_system(self) -> "DampedSystem":
        """The damped systems of a solver bound to its structure, as derivatives of a step need them."""
        raise TypeError(f"{type(self).__name__} is not a linear solver of block-sparse systems bound to a structure.")

    def summary(self) -> str:
        """What it is, and what it has chosen, in a few words."""
        return type(self).__name__

    def solve(self, matrix: Matrix, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        """The step p, (JᵀJ + diag(damping)) p = −Jᵀr, and whether the system of each entry could be solved.

        Args:
            matrix: as the storage makes it.
            rhs: (batch, columns) Jᵀr; Qᵀr where the storage holds the triangle.
            damping: (batch, columns), not negative; None for none.
        """
        raise NotImplementedError

    def relative_residual(self, matrix: Matrix, solution: Vector, rhs: Vector) -> Float[Tensor, "batch"]:
        """‖b − Ax‖ / ‖b‖ of a symmetric system, 0 for b = 0: how far a solution may be trusted."""
        largest = rhs.abs().amax(-1, keepdim=True) if rhs.shape[-1] else rhs.sum(-1, keepdim=True)
        unit = torch.where(largest > 0, largest, 1)  # squares of 1e30 are too large for float32
        left = torch.linalg.vector_norm((rhs - self.storage.product(matrix, solution)) / unit, dim=-1)
        length = torch.linalg.vector_norm(rhs / unit, dim=-1)
        return left / torch.where(length > 0, length, 1)

    def definite_factor(self, matrix: Matrix) -> DefiniteFactor:
        """A factor of symmetric matrices, as `Storage.joined_hessian` makes them, and which are positive definite. What
        stands in for the others is harmless to solve with."""
        raise NotImplementedError

    def factor_of_step(self, matrix: Matrix) -> DefiniteFactor:
        """The same of the damped matrix of a step that has been taken, which is known to be definite."""
        return self.definite_factor(matrix)

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        """A⁻¹ rhs, differentiable to any order in `rhs` (the factor is a constant)."""
        raise NotImplementedError

    def solve_factored_each(self, factor: Tensor, vectors: Sequence[Vector]) -> list[Vector]:
        """A⁻¹ applied to each of a few vectors, as differentiable."""
        return [self.solve_factored(factor, vector) for vector in vectors]

    def inverse_form(self, factor: Tensor, vector: Vector) -> Float[Tensor, "batch"]:
        """vᵀA⁻¹v, not to be differentiated; not a number where the vector is not finite."""
        return (vector * self.solve_factored(factor, vector)).sum(-1)

    def solve_factored_rows(
        self, factor: Tensor, rows: Float[Tensor, "batch k columns"]
    ) -> Float[Tensor, "batch k columns"]:
        """A⁻¹ applied to each of many vectors, on plain tensors, without derivatives."""
        return torch.stack([self.solve_factored(factor, row) for row in rows.unbind(1)], 1)


@dataclass(frozen=True)
class SolverAround(LinearSolver):
    """A linear solver that changes what another one solves, and leaves the matrix and the accuracy to it."""

    own: LinearSolver

    @property
    def storage(self) -> Storage:
        return self.own.storage

    @property
    def is_inexact(self) -> bool:
        return self.own.is_inexact

    @property
    def iterates(self) -> bool:
        return self.own.iterates
