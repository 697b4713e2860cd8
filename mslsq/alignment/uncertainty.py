"""How well a placement is determined: the covariance of the warp's tangent, and the standard error at the corners."""

import torch
from jaxtyping import Float
from torch import Tensor

import mslsq
from mslsq.alignment import passes
from mslsq.alignment.estimate import Estimate, PairLevel, spread_at
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.objective import photometric_problem
from mslsq.alignment.options import Options
from mslsq.diagnostics import covariance_of_normal
from mslsq.errors import SingularCovarianceError


def tangent_covariance(
    estimate: Estimate,
    level: PairLevel,
    options: Options,
    freedom: Float[Tensor, "2"],
    normal: passes.NormalEquations | None = None,
) -> Float[Tensor, "tangent tangent"]:
    """σ̂² (JᵀJ)⁻¹ of the warp's tangent, gain and bias marginalised, times 4πσ² for a prefilter of σ px.

    The prefilter correlates neighbouring residuals, so that n samples hold only n / 4πσ² independent ones (12.6 at 1
    px). The noise is that of the MAD. NaN where the samples leave a direction undetermined. `normal` are the plain
    normal equations there, where they are known already: of all pixels, where `level` has some of them.
    """
    kind = MODELS[options.model]
    correlated = max(1.0, 4 * torch.pi * options.prefilter**2)
    if normal is None and passes.knows(kind, None, level.planes.device):
        valid = level.look(estimate.matrix)[1]
        matrix = kind.from_matrix(estimate.matrix).matrix().numpy()
        at = matrix / matrix[2, 2], estimate.value.numpy(), freedom.numpy()
        normal = passes.normal_equations(level, *at, valid, kind.tangent_dim)
    if normal is None:
        inverse = _by_covariance(estimate, level, options.model, freedom)
    else:
        inverse = _marginal(torch.from_numpy(normal.matrix), kind.tangent_dim, freedom).to(level.planes)
    return spread_at(estimate, level)[0] ** 2 * correlated * inverse


def _marginal(
    normal: Float[Tensor, "unknowns unknowns"], tangent: int, freedom: Float[Tensor, "2"]
) -> Float[Tensor, "tangent tangent"]:
    """(JᵀJ)⁻¹ of the warp's tangent, gain and bias marginalised where they are free."""
    unknown = torch.cat([freedom.new_ones(tangent), freedom]) > 0
    return covariance_of_normal(normal[unknown][:, unknown])[:tangent, :tangent]


def _by_covariance(
    estimate: Estimate, level: PairLevel, model: str, freedom: Float[Tensor, "2"]
) -> Float[Tensor, "tangent tangent"]:
    """The same by `mslsq.covariance`."""
    valid = level.look(estimate.matrix)[1]
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
    corners = side * side.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    derivative = warp.derivative(corners)
    variance = ((derivative @ covariance) * derivative).sum() / 4
    return float(variance.clamp(min=0).sqrt()) * frame.half
