"""The Hessian at a solution where a gauge is free: its pseudo-inverse, or a warning in words."""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Matrix = Float[Tensor, "batch components size size"]


TRUSTED = 1e-3
"""Largest relative residual of the adjoint's linear system with which a derivative is given at all. Direct solvers come
to 1e-12 and less, unless the Hessian is singular to working precision; iterative ones refuse far earlier themselves."""


class NotDifferentiableWarning(UserWarning):
    """A solve converged, but its solution is not a differentiable function of the data."""


class UnconvergedAdjointWarning(UserWarning):
    """The linear system of a derivative was not solved accurately enough; the derivative is NaN (or zero)."""


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


def warn_about_gauge(num_singular: int, num_problems: int) -> None:
    """Say in words why converged problems have no derivative."""
    which = "The problem" if num_problems == 1 else f"{num_singular} problems of {num_problems}"
    warnings.warn(
        f"{which} converged to a point whose Hessian is not positive definite, so the solution is not a differentiable "
        "function of the data and its derivatives are NaN (or zero). Usually a gauge is free: hold a block with "
        "variable.fixed(index), add a Prior, or ask for Implicit(gauge='minimum_norm').",
        NotDifferentiableWarning,
        stacklevel=3,
    )


def warn_about_residual(worst: float, num_unsolved: int, num_problems: int) -> None:
    """Say in words why problems with a definite Hessian have no derivative."""
    which = "the problem" if num_problems == 1 else f"{num_unsolved} of {num_problems} problems"
    warnings.warn(
        f"The linear system of the derivative was solved to a relative residual of {worst:.1e} only, so derivatives of "
        f"{which} are NaN (or zero); `solution.adjoint_residual` has the figures. The Hessian is singular to working "
        "precision (hold a block with variable.fixed(index), scale the variables, add a Prior), or the linear solver "
        "did not converge (try mslsq.linear.SparseCholesky(), or ConjugateGradient(derivatives='direct')).",
        UnconvergedAdjointWarning,
        stacklevel=3,
    )
