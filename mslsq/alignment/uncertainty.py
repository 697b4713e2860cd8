"""How well a placement is determined: the covariance of the warp's tangent, and the standard error at the corners."""

import torch
from jaxtyping import Float
from torch import Tensor

import mslsq
from mslsq.alignment.estimate import Estimate, PairLevel, mad_sigma, residual_at
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.objective import photometric_problem
from mslsq.alignment.options import Options
from mslsq.errors import SingularCovarianceError


def tangent_covariance(
    estimate: Estimate, level: PairLevel, options: Options, freedom: Float[Tensor, "2"]
) -> Float[Tensor, "tangent tangent"]:
    """σ̂² (JᵀJ)⁻¹ of the warp's tangent, gain and bias marginalised, times 4πσ² for a prefilter of σ px.

    The prefilter correlates neighbouring residuals, so that n samples hold only n / 4πσ² independent ones (12.6 at 1
    px). The noise is that of the MAD. NaN where the samples leave a direction undetermined.
    """
    kind = MODELS[options.model]
    residual, valid = residual_at(estimate, level)
    shape = tuple(level.moving.coefficients.shape)
    problem = photometric_problem(
        options.model, len(level.points), shape, None, residual.dtype, residual.device, held=True
    )
    values = {"warp": kind.from_matrix(estimate.matrix), "value": estimate.value}
    data = {"photometric": level.data(valid, freedom), "held": {"freedom": freedom}}
    try:
        inverse = mslsq.covariance(problem, values, "warp", data=data)
    except SingularCovarianceError:
        return residual.new_full((kind.tangent_dim, kind.tangent_dim), float("nan"))
    correlated = max(1.0, 4 * torch.pi * options.prefilter**2)
    return mad_sigma(residual, valid) ** 2 * correlated * inverse


def corner_sigma(estimate: Estimate, covariance: Tensor, frame: Frame, model: str) -> float:
    """Root mean square standard error of the four corners in pixels: √(mean trace(D Σ Dᵀ)) with D the corners'
    derivative."""
    warp = MODELS[model].from_matrix(estimate.matrix)
    side = frame.centre / frame.half
    corner = side * side.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    eye = torch.eye(2, dtype=side.dtype, device=side.device)
    derivative = torch.func.vmap(lambda point: warp.pull_back(eye, point))(corner)
    variance = torch.einsum("pik,kl,pil->", derivative, covariance, derivative) / 4
    return float(variance.clamp(min=0).sqrt()) * frame.half
