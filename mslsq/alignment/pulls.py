"""Standard errors by the pulls of blocks: of residuals that are not those of noise alone.

σ̂² (JᵀJ)⁻¹ takes the residuals for noise that the prefilter has made, of one strength everywhere, and σ̂ is that of their
median. Where few values, a watermark or a jitter of lines leave residuals with tails that belong together, the error
was up to 16 times what that says. What they do to the place is seen in how unequally the blocks of the map pull: the
covariance is H⁻¹ (Σ g gᵀ) H⁻¹, g the sum of ρ'Jᵀr over a block, H that of (ρ' + 2ρ''r²) JᵀJ, ρ the loss (a sandwich
with clusters: Huber, 1967; Liang and Zeger, 1986).
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

TAILED = 1.3
"""Standard deviation over MAD sigma from which blocks are asked: 1.0 to 1.1 under noise, light and curves of values."""

FEWEST = 3
"""Blocks for each unknown: of fewer the spread is not known."""


def by_blocks(
    estimate: Estimate,
    level: PairLevel,
    options: Options,
    freedom: Float[Tensor, "2"],
    reference: Level,
) -> Float[Tensor, "tangent tangent"] | None:
    """The covariance of the warp's tangent, gain and bias marginalised; None where the residuals have no tails, or
    blocks are too few."""
    kind, (sigma, deviation) = MODELS[options.model], spread_at(estimate, level)
    if deviation < TAILED * sigma:
        return None
    at = Between(model_matrix(kind, estimate.matrix.numpy(force=True)), estimate.value.numpy(force=True))
    free, chosen = freedom.numpy(force=True), level.look(estimate.matrix)[1].nonzero()[:, 0]
    across = -(-level.grid[1] // SIDE)
    block = chosen // level.grid[1] // SIDE * across + chosen % level.grid[1] // SIDE
    blocks = -(-level.grid[0] // SIDE) * across
    unknown = np.concatenate([np.ones(kind.tangent_dim), free]) > 0
    if len(block.unique()) < FEWEST * unknown.sum():
        return None
    loss = options.loss if options.loss and are_heavy(sigma, deviation) else None
    pulls, hessian = level.planes.new_zeros(blocks, len(unknown)), level.planes.new_zeros(2 * (len(unknown),))
    seen = 0
    for part in samples(level, reference.coefficients, kind, free, at, chosen):
        squared = part.residual.square().sum(-1)
        weight, bend = torch.ones_like(squared), torch.ones_like(squared)
        if loss is not None:
            scale = squared.new_tensor(LOSSES[loss].tuning * sigma)
            _, weight, change = LOSSES[loss](scale).derivatives(squared)
            bend = weight + 2 * change * squared
        pull = torch.einsum("n,ncu,nc->nu", weight, part.jacobian, part.residual)
        pulls.index_add_(0, block[seen : seen + len(pull)], pull)
        hessian += torch.einsum("n,ncu,ncv->uv", bend, part.jacobian, part.jacobian)
        seen += len(pull)
    inner = np.ix_(unknown, unknown)
    inverse = np.linalg.pinv(hessian.numpy(force=True)[inner], hermitian=True)
    mine = pulls.numpy(force=True)[:, unknown]
    count = int((mine != 0).any(1).sum())
    found = inverse @ (mine.T @ mine) @ inverse * (count / max(count - unknown.sum(), 1))
    return level.planes.new_tensor(found[: kind.tangent_dim, : kind.tangent_dim])
