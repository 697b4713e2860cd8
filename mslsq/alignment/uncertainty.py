"""How well a placement is determined: the covariance of the warp's tangent, and the standard error at the corners."""

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.estimate import Estimate, PairLevel, mad_sigma, residual_at
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.objective import Photometric, photometric_problem
from mslsq.alignment.options import Options


def tangent_covariance(
    estimate: Estimate, level: PairLevel, options: Options, freedom: Float[Tensor, "2"]
) -> Float[Tensor, "tangent tangent"]:
    """σ̂² (JᵀJ)⁻¹ of the warp's tangent, gain and bias marginalised, times 4πσ² for a prefilter of σ px.

    The prefilter correlates neighbouring residuals, so that n samples hold only n / 4πσ² independent ones (12.6 at 1
    px). The noise is that of the MAD. NaN where the samples leave a direction undetermined.

    Not `mslsq.covariance`: the same numbers to 1e-13, but a solve and a plan more, 1.5 s for the first pair of a size
    and twice the time for each (0.16 s instead of 0.09 at 256 x 256).
    """
    kind = MODELS[options.model]
    warp = kind.from_matrix(estimate.matrix)
    residual, valid = residual_at(estimate, level)
    problem = photometric_problem(
        options.model, len(level.points), tuple(level.moving.coefficients.shape), None, residual.dtype, residual.device
    )
    cost = next(module for module in problem.modules() if isinstance(module, Photometric))
    data = level.data(valid, freedom)
    per_block = {name: data.pop(name) for name in ("point", "target", "valid")}

    def one(block: dict[str, Tensor]) -> Tensor:
        return torch.cat(cost.jacobians(warp, estimate.value, **block, **data), -1)

    size = kind.tangent_dim + 2
    # What is not free has no column in J; with a one on the diagonal it has no influence on the rest.
    normal = torch.diag(torch.cat([freedom.new_zeros(kind.tangent_dim), 1 - freedom]))
    for rows in torch.arange(len(level.points), device=residual.device).split(Photometric.chunk):
        jacobian = torch.func.vmap(one)({name: x[rows] for name, x in per_block.items()}).reshape(-1, size)
        normal = normal + jacobian.T @ jacobian
    factor, failed = torch.linalg.cholesky_ex(normal)
    if int(failed) != 0:
        return normal.new_full((kind.tangent_dim, kind.tangent_dim), float("nan"))
    inverse = torch.cholesky_inverse(factor)[: kind.tangent_dim, : kind.tangent_dim]
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
