"""How well a placement is determined: the covariance of the warp's tangent, and the standard error at the corners."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import mslsq
from mslsq.alignment import passes
from mslsq.alignment.estimate import Estimate, PairLevel, spread_at
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
    valid = level.look(estimate.matrix)[1]
    correlated = max(1.0, 4 * torch.pi * options.prefilter**2)
    by_passes = passes.knows(MODELS[options.model], None, level.planes.device)
    inverse = (_by_a_pass if by_passes else _by_covariance)(estimate, level, options.model, freedom, valid)
    return spread_at(estimate, level)[0] ** 2 * correlated * inverse


SMALLEST_EIGENVALUE = 1e-12
"""Of JᵀJ scaled to a diagonal of ones: below it a direction is known by rounding alone."""


def _by_a_pass(
    estimate: Estimate, level: PairLevel, model: str, freedom: Float[Tensor, "2"], valid: Bool[Tensor, " n"]
) -> Float[Tensor, "tangent tangent"]:
    """(JᵀJ)⁻¹ of the warp's tangent, from one pass over the samples."""
    kind, value, free = MODELS[model], estimate.value.numpy(), freedom.numpy()
    tangent = kind.tangent_dim
    matrix = kind.from_matrix(estimate.matrix).matrix().numpy()
    normal = passes.normal_equations(level, matrix / matrix[2, 2], value, free, valid, tangent).matrix
    unknown = np.concatenate([np.ones(tangent), free]) > 0
    normal = normal[unknown][:, unknown]
    nothing = estimate.matrix.new_full((tangent, tangent), float("nan"))
    lengths = np.sqrt(normal.diagonal())
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        return nothing
    values, vectors = np.linalg.eigh(normal / np.outer(lengths, lengths))
    if values[0] < SMALLEST_EIGENVALUE:
        return nothing
    inverse = (vectors / values) @ vectors.T / np.outer(lengths, lengths)
    return torch.from_numpy(np.ascontiguousarray(inverse[:tangent, :tangent]))


def _by_covariance(
    estimate: Estimate, level: PairLevel, model: str, freedom: Float[Tensor, "2"], valid: Bool[Tensor, " n"]
) -> Float[Tensor, "tangent tangent"]:
    """The same by `mslsq.covariance`."""
    kind, like = MODELS[model], level.planes
    rows, shape = level.grid[0] * level.grid[1], tuple(level.moving.coefficients.shape)
    problem = photometric_problem(model, rows, shape, None, like.dtype, like.device, held=True)
    values = {"warp": kind.from_matrix(estimate.matrix), "value": estimate.value}
    data = {"photometric": level.data(valid, freedom), "held": {"freedom": freedom}}
    try:
        return mslsq.covariance(problem, values, "warp", data=data)
    except SingularCovarianceError:
        return like.new_full((kind.tangent_dim, kind.tangent_dim), float("nan"))


def corner_sigma(estimate: Estimate, covariance: Tensor, frame: Frame, model: str) -> float:
    """Root mean square standard error of the four corners in pixels: √(mean trace(D Σ Dᵀ)) with D the corners'
    derivative."""
    warp = MODELS[model].from_matrix(estimate.matrix)
    side = frame.centre / frame.half
    eye = torch.eye(2, dtype=side.dtype, device=side.device)
    corners = side * side.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    derivative = torch.stack([warp.pull_back(eye, corner) for corner in corners])
    variance = torch.einsum("pik,kl,pil->", derivative, covariance, derivative) / 4
    return float(variance.clamp(min=0).sqrt()) * frame.half
