"""How the Hessian at a solution is factored, and how systems with it are solved."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.adjoint.adjoint import AdjointOptionError
from mslsq.linear import LinearSolver
from mslsq.linear.linear_solver import DefiniteFactor

Matrix = Float[Tensor, "batch components size size"]

TRUSTED = 1e-3
"""Largest relative residual of the adjoint's linear system with which a derivative is given at all. Direct solvers come
to 1e-12 and less, unless the Hessian is singular to working precision; iterative ones refuse far earlier themselves."""


@dataclass(frozen=True)
class Factorization:
    """By the linear solver of the solve, of a Hessian that must be positive definite."""

    hessian: Literal["exact", "gauss_newton"]
    """With the second derivatives of the residuals, or without."""

    def can_be_recorded(self, linear: LinearSolver) -> bool:
        """Dense and block-sparse factors can be a part of a graph; iterative solvers do as they like.

        Raises:
            AdjointOptionError: the Hessians of this linear solver cannot be factored in this way.
        """
        return linear.factors_can_be_recorded

    def factor(self, linear: LinearSolver, hessian: Matrix) -> DefiniteFactor:
        """What stands in for the factor of a Hessian that is not definite is harmless to solve with."""
        return linear.definite_factor(hessian)

    def inverse(self, linear: LinearSolver, factor: Tensor, vector: Tensor) -> Tensor:
        """H⁻¹ applied to (batch, columns)."""
        return linear.solve_factored(factor, vector)

    def inverses(self, linear: LinearSolver, factor: Tensor, vectors: Sequence[Tensor]) -> list[Tensor]:
        """H⁻¹ applied to each of a few (batch, columns)."""
        return linear.solve_factored_each(factor, vectors)

    def inverse_form(self, linear: LinearSolver, factor: Tensor, vector: Tensor) -> Float[Tensor, "batch"]:
        """vᵀH⁻¹v of (batch, columns)."""
        return linear.inverse_form(factor, vector)

    def residual(
        self, linear: LinearSolver, hessian: Matrix, found: DefiniteFactor, solution: Tensor, rhs: Tensor
    ) -> Float[Tensor, "batch"]:
        """How well the system with this right-hand side is solved, relative to it; where the Hessian is not definite
        how far an iterative solver came, else NaN."""
        residual = linear.relative_residual(hessian, solution, rhs)
        return torch.where(found.definite, residual, torch.nan if found.undecided is None else found.undecided)

    def is_trusted(self, residual: Float[Tensor, "batch"]) -> Bool[Tensor, "batch"]:
        """Is such a residual small enough for a derivative?"""
        return residual <= TRUSTED


@dataclass(frozen=True)
class PseudoInverse(Factorization):
    """A with AAᵀ = H⁺, for derivatives of least norm where a gauge is free."""

    def can_be_recorded(self, linear: LinearSolver) -> bool:
        if not linear.storage.is_dense:
            raise AdjointOptionError(
                "Implicit(gauge='minimum_norm') needs the dense Hessian: solve with "
                "linear_solver=mslsq.linear.Cholesky()."
            )
        return False

    def factor(self, linear: LinearSolver, hessian: Matrix) -> DefiniteFactor:
        return DefiniteFactor(*pseudo_inverse_factor(hessian))

    def inverse(self, linear: LinearSolver, factor: Tensor, vector: Tensor) -> Tensor:
        rhs = vector.reshape(factor.shape[:-1])[..., None]
        return (factor @ (factor.mT @ rhs))[..., 0].flatten(1)

    def inverses(self, linear: LinearSolver, factor: Tensor, vectors: Sequence[Tensor]) -> list[Tensor]:
        return [self.inverse(linear, factor, vector) for vector in vectors]

    def inverse_form(self, linear: LinearSolver, factor: Tensor, vector: Tensor) -> Float[Tensor, "batch"]:
        return (vector * self.inverse(linear, factor, vector)).sum(-1)

    def residual(
        self, linear: LinearSolver, hessian: Matrix, found: DefiniteFactor, solution: Tensor, rhs: Tensor
    ) -> Float[Tensor, "batch"]:
        return rhs.new_full(rhs.shape[:1], torch.nan)  # a singular system has none

    def is_trusted(self, residual: Float[Tensor, "batch"]) -> Bool[Tensor, "batch"]:
        return torch.ones_like(residual, dtype=torch.bool)


def pseudo_inverse_factor(hessian: Matrix) -> tuple[Matrix, Bool[Tensor, "batch"]]:
    """A with AAᵀ = H⁺, the pseudo-inverse, and which Hessians are positive semidefinite."""
    eye = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    finite = torch.isfinite(hessian).all(-1).all(-1)
    eigenvalues, vectors = torch.linalg.eigh(torch.where(finite[..., None, None], hessian, eye))
    # Gauge directions: eigenvalues that are rounding of the largest. Three digits of room, H itself carries rounding.
    floor = 1e3 * torch.finfo(hessian.dtype).eps * hessian.shape[-1] * eigenvalues.abs().amax(-1, keepdim=True)
    kept = eigenvalues > floor
    factor = (
        vectors * torch.where(kept, eigenvalues.clamp(min=torch.finfo(hessian.dtype).tiny).rsqrt(), 0)[..., None, :]
    )
    semidefinite = (finite & (eigenvalues > -floor).all(-1)).all(-1)
    return torch.where(semidefinite[:, None, None, None], factor, eye), semidefinite
