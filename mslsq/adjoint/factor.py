"""The Hessian at a solution where a gauge is free: a factor of its pseudo-inverse."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Matrix = Float[Tensor, "batch components size size"]


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
