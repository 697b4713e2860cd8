"""Standard errors by the pulls of blocks: of residuals that are not those of noise alone.

σ̂² (JᵀJ)⁻¹ takes the residuals for noise that the prefilter has made, of one strength everywhere, and σ̂ is that of their
median. Where few values, a watermark or a jitter of lines leave residuals with tails that belong together, the error
was up to 16 times what that says. What they do to the place is seen in how unequally the blocks of the map pull: the
covariance is H⁻¹ (Σ g gᵀ) H⁻¹, g the sum of ρ'Jᵀr over a block, H that of (ρ' + 2ρ''r²) JᵀJ, ρ the loss (a sandwich
with clusters: Huber, 1967; Liang and Zeger, 1986). Lines that jitter pull as a whole, so that bands of rows, and of
columns, are asked, too.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.curvature import samples
from mslsq.alignment.descent import Between, model_matrix
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.models import MODELS
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level
from mslsq.alignment.spread import are_heavy, spread_at

SIDE = 16
"""Samples of a block: what is nearer may belong together."""

BAND = 8
"""Rows, or columns, of a band."""

TAILED = 1.2
"""Standard deviation over MAD sigma from which blocks are asked: 1.0 to 1.1 under noise, light and curves of values;
1.28 of lines that jitter and of blocks of JPEG that were three and more stated errors off (the half "choose")."""

FEWEST = 3
"""Blocks for each unknown: of fewer the spread is not known."""


def are_tailed(estimate: Estimate, level: PairLevel) -> bool:
    """Have the residuals the tails of more than noise?"""
    sigma, deviation = spread_at(estimate, level)
    return deviation >= TAILED * sigma


def by_blocks(
    estimate: Estimate,
    level: PairLevel,
    options: Options,
    freedom: Float[Tensor, "2"],
    reference: Level,
) -> list[Float[Tensor, "tangent tangent"]]:
    """Covariances of the warp's tangent, gain and bias marginalised, by blocks and by bands of rows and of columns;
    none where the residuals have no tails, or where these are too few."""
    kind = MODELS[options.model]
    if not are_tailed(estimate, level):
        return []
    sigma, deviation = spread_at(estimate, level)
    at = Between(model_matrix(kind, estimate.matrix.numpy(force=True)), estimate.value.numpy(force=True))
    free, chosen = freedom.numpy(force=True), level.look(estimate.matrix)[1].nonzero()[:, 0]
    down, across = (-(-side // BAND) for side in level.grid)
    cell = chosen // level.grid[1] // BAND * across + chosen % level.grid[1] // BAND
    unknown = np.concatenate([np.ones(kind.tangent_dim), free]) > 0
    loss = options.loss if options.loss and are_heavy(sigma, deviation) else None
    pulls, hessian = level.planes.new_zeros(down * across, len(unknown)), level.planes.new_zeros(2 * (len(unknown),))
    seen = 0
    for part in samples(level, reference.coefficients, kind, free, at, chosen):
        squared = part.residual.square().sum(-1)
        weight, bend = torch.ones_like(squared), torch.ones_like(squared)
        if loss is not None:
            scale = squared.new_tensor(LOSSES[loss].tuning * sigma)
            _, weight, change = LOSSES[loss](scale).derivatives(squared)
            bend = weight + 2 * change * squared
        pull = torch.einsum("n,ncu,nc->nu", weight, part.jacobian, part.residual)
        pulls.index_add_(0, cell[seen : seen + len(pull)], pull)
        hessian += torch.einsum("n,ncu,ncv->uv", bend, part.jacobian, part.jacobian)
        seen += len(pull)
    inner = np.ix_(unknown, unknown)
    inverse = np.linalg.pinv(hessian.numpy(force=True)[inner], hermitian=True)
    cells, found = pulls.numpy(force=True)[:, unknown].reshape(down, across, -1), []
    for mine in (_added(_added(cells, 0, SIDE // BAND), 1, SIDE // BAND), cells.sum(1), cells.sum(0)):
        mine = mine.reshape(-1, mine.shape[-1])
        count = int((mine != 0).any(1).sum())
        if count >= FEWEST * unknown.sum():
            spread = inverse @ (mine.T @ mine) @ inverse * (count / (count - unknown.sum()))
            found.append(level.planes.new_tensor(spread[: kind.tangent_dim, : kind.tangent_dim]))
    return found


def _added(cells: Float[np.ndarray, "down across unknown"], axis: int, few: int) -> np.ndarray:
    """Every few cells along an axis added up."""
    return np.add.reduceat(cells, np.arange(0, cells.shape[axis], few), axis)
