"""How well shift and bias are known: from sums of scores over blocks as long as the residuals are correlated.

The estimate is the root of the scores s = Z w r (`polish`). Its covariance is H⁻¹ Cov(Σ s) H⁻ᵀ (Huber, 1967). Noise of
elevation models is correlated over tens of pixels, and what a bias model lacks over hundreds: the residuals' variogram
says how far. Scores are summed over blocks of twice that range, and Cov is the sum of the blocks' squares.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.alignment.curvature import Curvature, curvature
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved, robust
from mslsq.alignment.dem.polish import instruments
from mslsq.alignment.joint.sandwich import shrunk

CELL = 8
"""Pixels: the variogram is of means over cells of this side, in which the prefilter's correlation is gone."""

SILL = 0.9
"""The range of a variogram: where it reaches this share of its sill."""

FEWEST_BLOCKS = 5
"""Along the overlap's longer side: with fewer blocks their scatter is known too badly."""

CORRELATED = 12.57
"""4πσ²: pixels per independent sample after a prefilter of 1 px."""


class Known(NamedTuple):
    """Covariance over (shift in pixels, coefficients in metres), the residuals' correlation length and the side of the
    blocks in pixels, their number, and the share of the gradients that both models have in common, in the weakest
    direction, with what chance makes of it."""

    covariance: Float[np.ndarray, "unknowns unknowns"]
    correlation_length: float
    block: int
    blocks: int
    common: float
    by_chance: float


def known(
    pyramids: Pyramids, samples: Comparison, at: Solved, loss: str | None, scale: float, held: bool = False
) -> Known:
    """How well an answer is known; NaN where the samples leave a direction open or there are too few blocks."""
    z = instruments(pyramids, samples)
    count = z.shape[1]
    free = np.arange(2 if held else 0, count)
    normal, products, weight, residual = _sums(samples, z, at, loss, scale)
    length = correlation_length(samples, weight * residual)
    block = _side(samples, length)
    found = curvature(normal[np.ix_(free, free)], products[np.ix_(free, free)], len(z) / CORRELATED)
    full = np.full((count, count), np.nan)
    scores = block_sums(samples, z * (weight * residual)[:, None], block)[:, free]
    common, by_chance = _common(normal, products), float(np.sqrt(CORRELATED / max(len(z), 1)))
    if found is None or len(scores) <= len(free) + 1:
        return Known(full, length, block, len(scores), common, by_chance)
    full[np.ix_(free, free)] = _sandwich(found, scores, min(length / block, 1.0))
    if held:
        full[:2], full[:, :2] = 0.0, 0.0
    return Known(full, length, block, len(scores), common, by_chance)


def _sums(
    samples: Comparison, z: Tensor, at: Solved, loss: str | None, scale: float
) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
    """JᵀψJ, the symmetric part of ZᵀψJ, and the loss's weights and the residuals; ψ is the derivative of w r."""
    normal, products, weights, residuals = 0.0, 0.0, [], []
    for part, residual, jacobian in samples.jacobians(at):
        squared = residual.square()
        weight, bend = torch.ones_like(squared), torch.zeros_like(squared)
        if loss is not None:
            _, weight, bend = robust(loss, scale).derivatives(squared)
        heavy = jacobian * (weight + 2 * squared * bend)[:, None]
        normal = normal + (jacobian.T @ heavy).numpy()
        products = products + (z[part].T @ heavy).numpy()
        weights.append(weight)
        residuals.append(residual)
    products = np.asarray(products)
    return np.asarray(normal), 0.5 * (products + products.T), torch.cat(weights), torch.cat(residuals)


def _common(normal: Float[np.ndarray, "n n"], products: Float[np.ndarray, "n n"]) -> float:
    """The least share, over directions, of the horizontal gradients' energy that is in both models, once what the
    columns explain of it is taken away."""
    reduced = []
    for matrix in (normal, products):
        rest = matrix[2:, 2:]
        reduced.append(matrix[:2, :2] - matrix[:2, 2:] @ np.linalg.pinv(rest, hermitian=True) @ matrix[2:, :2])
    values, vectors = np.linalg.eigh(reduced[0])
    # All of it explained by the columns: an even slope, whose shift is a change of height.
    if not (np.isfinite(values).all() and values[0] > 1e-9 * abs(normal[:2, :2]).max()):
        return 0.0
    white = vectors / np.sqrt(values)
    return float(np.linalg.eigvalsh(white.T @ reduced[1] @ white)[0])


def _sandwich(found: Curvature, scores: Float[np.ndarray, "blocks n"], reach: float) -> Float[np.ndarray, "n n"]:
    """H⁻¹ Σ s sᵀ H⁻ᵀ, larger by what neighbours across the borders of blocks have in common.

    `reach` is the correlation length in sides of a block. Of a correlation exp(-d²/4s²), which is a tenth at 3.03 s, a
    block of side B keeps 1 - 2s/(√π B) along each axis.
    """
    blocks, unknowns = scores.shape
    turned = found.root / found.share
    lost = (1 - 0.372 * reach) ** -2
    return lost * blocks / max(blocks - unknowns, 1) * turned @ shrunk(scores @ found.root) @ turned.T


def _side(samples: Comparison, length: float) -> int:
    """Of the blocks, in pixels: twice the correlation length, as far as there are blocks enough."""
    spread = samples.pixels.max(0).values - samples.pixels.min(0).values + 1
    return int(max(CELL, min(max(2 * CELL, round(2 * length)), float(spread.max()) / FEWEST_BLOCKS)))


def numbered(samples: Comparison, block: int) -> Int[Tensor, " n"]:
    """Which square of this side each sample is in."""
    place = (samples.pixels / block).floor().long()
    return torch.unique(place[:, 0] + place[:, 1] * 2**20, return_inverse=True)[1]


def block_sums(samples: Comparison, scores: Float[Tensor, "n k"], block: int) -> Float[np.ndarray, "blocks k"]:
    """Sums of what samples have over squares of this side."""
    inverse = numbered(samples, block)
    sums = scores.new_zeros((int(inverse.max()) + 1, scores.shape[1])) if len(inverse) else scores.new_zeros((0, 1))
    return sums.index_add(0, inverse, scores).numpy()


def correlation_length(samples: Comparison, residual: Float[Tensor, " n"]) -> float:
    """The range of the residuals' variogram in pixels, at least half a cell; of means over cells of `CELL` pixels."""
    rows, columns = -(-samples.size[0] // CELL), -(-samples.size[1] // CELL)
    place = (samples.pixels / CELL).floor().long()
    flat = place[:, 1] * columns + place[:, 0]
    count = torch.bincount(flat, minlength=rows * columns).double()
    total = torch.bincount(flat, residual, rows * columns)
    used = count >= CELL * CELL / 4
    if int(used.sum()) < 16:
        return CELL / 2
    means = torch.where(used, total / count.clamp(min=1), torch.zeros_like(total))
    means = torch.where(used, means - means[used].mean(), means).reshape(rows, columns).numpy()
    return CELL * _range(means, used.reshape(rows, columns).numpy())


def _range(field: Float[np.ndarray, "rows columns"], used: np.ndarray) -> float:
    """In cells: the first distance at which the covariance is a tenth of the variance, or within its own noise."""
    size = (2 * field.shape[0], 2 * field.shape[1])
    power, window = (
        np.fft.irfft2(np.abs(np.fft.rfft2(raster, size)) ** 2, size) for raster in (field, used.astype(float))
    )
    y = np.minimum(np.arange(size[0]), size[0] - np.arange(size[0]))[:, None]
    x = np.minimum(np.arange(size[1]), size[1] - np.arange(size[1]))[None]
    ring = np.rint(np.hypot(x, y)).astype(int)
    longest = max(field.shape) // 2
    pairs = np.bincount(ring.ravel(), np.rint(window).ravel())[: longest + 1]
    sums = np.bincount(ring.ravel(), power.ravel())[: longest + 1]
    if pairs[0] < 1 or sums[0] <= 0:
        return 0.5
    correlation = (sums / np.maximum(pairs, 1)) / (sums[0] / pairs[0])
    for lag in range(1, longest + 1):
        # each pair of cells is seen from both ends
        if correlation[lag] < max(1 - SILL, 2 * (2 / max(pairs[lag], 1)) ** 0.5):
            return lag - 0.5
    return float(longest)
