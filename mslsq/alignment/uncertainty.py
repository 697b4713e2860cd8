"""How well a placement is determined: the covariance of the warp's tangent, and the standard error at the corners."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import mslsq
from mslsq.alignment import passes
from mslsq.alignment.curvature import curvature, products
from mslsq.alignment.descent import Between, model_matrix
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.models import HORIZON, MODELS, Frame, velocities
from mslsq.alignment.objective import photometric_problem
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level
from mslsq.alignment.spread import spread_at
from mslsq.diagnostics import covariance_of_normal
from mslsq.errors import SingularCovarianceError


def tangent_covariance(
    estimate: Estimate,
    level: PairLevel,
    options: Options,
    freedom: Float[Tensor, "2"],
    normal: passes.NormalEquations | None = None,
    reference: Level | None = None,
) -> Float[Tensor, "tangent tangent"]:
    """σ̂² (JᵀJ)⁻¹ of the warp's tangent, gain and bias marginalised, times 4πσ² for a prefilter of σ px.

    Where noise is a part of JᵀJ that matters, σ̂² H⁻¹ (H + w (JᵀJ - H)) H⁻¹ instead, H the curvature without it and w
    the weight of its noise (`_weight_of_noise`).

    The prefilter correlates neighbouring residuals, so that n samples hold only n / 4πσ² independent ones (12.6 at 1
    px). The noise is that of the MAD. NaN where the samples leave a direction undetermined. `normal` are the plain
    normal equations there, where they are known already: of all pixels, where `level` has some of them. `reference` is
    what `level` has samples of: without it noise is taken to be small.
    """
    kind = MODELS[options.model]
    if not passes.knows(kind, None, level.planes.device):
        return (
            spread_at(estimate, level)[0] ** 2
            * options.correlated
            * _by_covariance(estimate, level, options.model, freedom)
        )
    sigma, valid = spread_at(estimate, level)[0], level.look(estimate.matrix)[1]
    at = Between(model_matrix(kind, estimate.matrix.numpy()), estimate.value.numpy())
    if normal is None:
        normal = passes.normal_equations(level, *at, freedom.numpy(), valid, kind.tangent_dim)
    unknown = np.concatenate([np.ones(kind.tangent_dim), freedom.numpy()]) > 0
    inner = np.ix_(unknown, unknown)
    inverse = covariance_of_normal(torch.from_numpy(normal.matrix[inner])).numpy()
    if reference is not None and _noise_matters(normal, sigma, level, options):
        chosen = valid.nonzero()[:, 0]
        chosen = chosen[:: max(1, len(chosen) // PRODUCTS)]
        seen = products(level, reference.coefficients, kind, freedom.numpy(), at, chosen)
        assert seen.both is not None
        found = curvature(seen.own[inner], seen.both[inner], len(chosen) / options.correlated)
        weight = _weight_of_noise(estimate, sigma, level, options)
        inverse = inverse * np.nan if found is None else found.spread(weight) * (len(chosen) / max(normal.samples, 1))
    return level.planes.new_tensor(sigma**2 * options.correlated * inverse[: kind.tangent_dim, : kind.tangent_dim])


PRODUCTS = 1 << 13
"""About as many samples tell which share of JᵀJ is detail: to some four percent."""

NOISE_MATTERS = 0.05
"""Share of noise in the gradients below which standard errors are those of JᵀJ: 5 % too small at most."""


def _noise_matters(normal: passes.NormalEquations, sigma: float, level: PairLevel, options: Options) -> bool:
    """Is what noise adds to JᵀJ more than a small share of its shifts?

    White noise behind a prefilter of s px has slopes of σ / √2 s, and that of one map is at most all that is seen in
    the residuals.
    """
    slope = sigma / max(options.prefilter, 0.5) * level.frame.half
    of_shifts = float(np.linalg.eigvalsh(normal.matrix[:2, :2])[0])
    return 0.5 * slope**2 * normal.samples > NOISE_MATTERS * of_shifts


def _weight_of_noise(estimate: Estimate, sigma: float, level: PairLevel, options: Options) -> float:
    """What a share of noise in JᵀJ adds to the spread of Jᵀr, beside the same share of detail.

    Behind a Gaussian of s px noise n has the correlation exp(-d²/4s²), its slope n' that times (1/2s²) (1 - dx²/2s²).
    Detail varies slowly, so that the sum of its products with the residuals has the variance of 4πs² samples for each;
    n' of the map times n of the reference has that of πs². And n' n of one map, the derivative of n²/2, adds up to
    nothing: of the residuals' variance the reference's part alone counts. What is measured as white noise
    (`mslsq.alignment.noise`) is taken for that, all else of the residuals for detail. Without this standard errors of
    similarities were twice too large where noise is as strong as the scene.
    """
    of_reference = level.noise.variance
    both = of_reference + level.moving.noise.variance * math.exp(2 * float(estimate.value[0]))
    if both == 0:
        return 1.0
    white = min(both / max(sigma**2, 1e-30), 1.0)
    samples = max(1.0, math.pi * options.prefilter**2) / options.correlated
    return 1 - white + white * samples * of_reference / both


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
    matrix = model_matrix(MODELS[model], estimate.matrix.numpy(force=True).astype(np.float64))
    points, moving = _corners(*(frame.centre / frame.half).tolist(), MODELS[model].tangent_dim)
    x, y, depth = matrix @ points
    moved = np.stack([x, y]) / np.maximum(depth, HORIZON)
    columns = matrix @ moving
    derivative = (columns[:, :2] - moved.T[:, :, None] * columns[:, 2:]) / np.maximum(depth, HORIZON)[:, None, None]
    variance = ((derivative @ covariance.numpy(force=True)) * derivative).sum() / 4
    return float(np.sqrt(np.maximum(variance, 0))) * frame.half


@lru_cache(maxsize=32)
def _corners(x: float, y: float, tangent: int) -> tuple[Float[np.ndarray, "3 4"], Float[np.ndarray, "4 3 tangent"]]:
    """Homogeneous corners at (±x, ±y), and how the generators move them (`models.velocities`)."""
    at = torch.tensor([[-x, -y], [x, -y], [x, y], [-x, y]], dtype=torch.float64, device="cpu")
    return np.concatenate([at.numpy().T, np.ones((1, 4))]), velocities(at, tangent).numpy()
