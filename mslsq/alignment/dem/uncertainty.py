"""How well shift and bias are known: from what cells of the overlap do to them, and from what cells have in common.

The shift is the root of scores s = Z w r (`polish`), the bias that of S r (`heights`), S the steady columns; what the
shift does to the heights is in both. To first order an error is the sum of the influences of cells. Residuals are the
mean of their cell and what they differ from it by. The latter's influences ψ speak for themselves, whatever the noise:
Σ ψ ψᵀ (Huber, 1967). Noise of elevation models reaches over tens of pixels, and what a bias model lacks over hundreds;
of that no block sees enough. So of the means, with u what a metre in a cell does, the mean square of uᵀe is from the
likelihood of their contrasts, which say what they have in common and what of it is a trend that the bias model lacks
(`correlation`).
"""

from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.alignment.curvature import curvature
from mslsq.alignment.dem.bias import Bias, Frame
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved, robust
from mslsq.alignment.dem.correlation import Field, mean_squares
from mslsq.alignment.dem.heights import Heights
from mslsq.alignment.dem.polish import instruments

CELL = 8
"""Pixels: the variogram is of means over cells of this side, in which the prefilter's correlation is gone."""

SILL = 0.9
"""The range of a variogram: where it reaches this share of its sill."""

FEWEST_BLOCKS = 5
"""Along the overlap's longer side, for `choosing`: fewer are too few folds."""

CORRELATED = 12.57
"""4πσ²: pixels per independent sample after a prefilter of 1 px."""

CELLS = 144
"""That an overlap is divided into: fewer do not show how far residuals are correlated, and more take longer (the
likelihood is of dense matrices)."""

LEAST_SHARE = 0.25
"""Of a cell that must have data for its mean to be one."""


class Cells:
    """Squares of about `side` pixels that divide the reference evenly, a lattice of `shape` (rows, columns); `places`
    (cells, 2) are their columns and rows there."""

    def __init__(self, samples: Comparison) -> None:
        thinning = samples.pair.thinning
        side = max(CELL, (len(samples.pixels) * thinning / CELLS) ** 0.5)
        self.size = samples.pair.size
        self.shape = tuple(max(round(length / side), 1) for length in self.size)
        self.area = float(np.prod(self.size)) / float(np.prod(self.shape)) / thinning
        row, column = np.divmod(np.arange(self.shape[0] * self.shape[1]), self.shape[1])
        self.places = np.stack([column, row], -1)

    def sums(self, samples: Comparison, values: Float[Tensor, "n k"]) -> Float[np.ndarray, "cells k"]:
        """Sums of what samples have."""
        sums = values.new_zeros((len(self.places), values.shape[1]))
        return sums.index_add(0, self.numbers(samples), values).numpy()

    def of(self, samples: Comparison, values: Float[np.ndarray, " cells"]) -> Float[Tensor, " n"]:
        """What the cells of samples have."""
        return torch.from_numpy(values)[self.numbers(samples)]

    def numbers(self, samples: Comparison) -> Int[Tensor, " n"]:
        """Of the cells of samples."""
        along = samples.pixels.new_tensor([m / n for n, m in zip(self.size, self.shape, strict=True)][::-1])
        column, row = (samples.places * along).floor().long().unbind(-1)
        return row.clamp(max=self.shape[0] - 1) * self.shape[1] + column.clamp(max=self.shape[1] - 1)


class Known(NamedTuple):
    """Covariance over (shift in pixels, coefficients in metres); the residuals' correlation length and the side of
    blocks that are independent, in pixels; the number of cells with data; and the share of the gradients that both
    models have in common, in the weakest direction, with what chance makes of it."""

    covariance: Float[np.ndarray, "unknowns unknowns"]
    correlation_length: float
    block: int
    cells: int
    common: float
    by_chance: float


def known(
    pyramids: Pyramids,
    fit: Comparison,
    robust: Solved,
    heights: Heights,
    loss: str | None,
    scale: float,
    held: bool = False,
) -> Known:
    """How well an answer is known; NaN where the samples leave a direction open or there are too few cells.

    `fit` are the samples of the shift, with its scale and the bias that the loss found beside it.
    """
    z = instruments(pyramids, fit)
    free = np.arange(2 if held else 0, z.shape[1])
    normal, products, weight, residual = _sums(fit, z, robust, loss, scale)
    bread = curvature(normal[np.ix_(free, free)], products[np.ix_(free, free)], len(z) / CORRELATED)
    own, cells = heights.samples, Cells(heights.samples)
    left, slopes = _residuals(own, heights.at)
    sums = cells.sums(own, torch.cat([torch.ones_like(left)[:, None], left[:, None], own.columns, slopes], -1))
    used = sums[:, 0] >= LEAST_SHARE * cells.area
    length, covariance = correlation_length(fit, weight * residual), np.full((z.shape[1],) * 2, np.nan)
    if bread is not None:
        means = sums[used, 1:] / sums[used, :1]
        columns = means[:, 1:-2] if held else means[:, 1:]
        turned = np.zeros((z.shape[1], 2))
        turned[free] = 0.0 if held else bread.inverse[:, :2]
        of = _Influence(cells, fit, own, z, turned, slopes)
        level = np.where(used, sums[:, 1] / np.maximum(sums[:, 0], 1), 0.0)
        within = of(weight * (residual - cells.of(fit, level)), left - cells.of(own, level))
        unit = of(weight, torch.ones_like(left))[used]
        followed = len(means) / max(len(means) - len(free), 1)
        trends = [trend[used] for trend in _trends(own, cells, sums[:, 0])]
        field = Field(means[:, 0], sums[used, 0], cells.places[used], columns, trends)
        covariance = followed * within.T @ within + mean_squares(field, unit)
    return Known(
        covariance, length, _side(fit, length), int(used.sum()), _common(normal, products),
        float(np.sqrt(CORRELATED / max(len(z), 1))),
    )  # fmt: skip


def _trends(
    samples: Comparison, cells: Cells, counts: Float[np.ndarray, " cells"]
) -> list[Float[np.ndarray, "cells trend"]]:
    """Means over cells of what one and two degrees more of the bias would have explained, of a mean square of 1 over
    the samples' rectangle, and but for the constant of none in the mean."""
    degree, places = samples.bias.degree, samples.places
    low, high = (end.values for end in (places.min(0), places.max(0)))
    frame = Frame(((high - low) / 2).clamp(min=0.5).tolist(), 0.0, 1.0)
    found = []
    for more in (1, 2):
        larger = Bias(degree + more)
        new = [k for k, pair in enumerate(larger.exponents) if sum(pair) > degree]
        sizes = [np.sqrt((2 * i + 1) * (2 * j + 1)) for i, j in larger.exponents if i + j > degree]
        columns = larger.columns(places - low, samples.target, frame)[:, new]
        found.append(cells.sums(samples, columns) / np.maximum(counts, 1)[:, None] * sizes)
    return found


class _Influence:
    """What residuals do to (shift, bias), by cell, the first order of both roots: -H⁻¹ s on the shift, and -(SᵀA)⁻¹
    (S r + SᵀJ δ) on the bias, with J δ what the shift's change δ does to the residuals of the heights."""

    def __init__(
        self, cells: Cells, fit: Comparison, own: Comparison, z: Tensor, turned: np.ndarray, slopes: Tensor
    ) -> None:
        self.cells, self.fit, self.own, self.z, self.turned = cells, fit, own, z, turned
        self.inverse = np.linalg.pinv((own.steady.T @ own.columns).numpy())
        self.pull = (own.steady.T @ slopes).numpy()

    def __call__(
        self, by_fit: Float[Tensor, " n"], by_height: Float[Tensor, " m"]
    ) -> Float[np.ndarray, "cells unknowns"]:
        shift = -self.cells.sums(self.fit, self.z * by_fit[:, None]) @ self.turned
        scores = self.cells.sums(self.own, self.own.steady * by_height[:, None]) + shift @ self.pull.T
        return np.concatenate([shift, -scores @ self.inverse.T], 1)


def _residuals(samples: Comparison, at: Solved) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 2"]]:
    """Residuals, and what a pixel's shift adds to them."""
    parts = [(residual, jacobian[:, :2]) for _, residual, jacobian in samples.jacobians(at)]
    residuals, slopes = zip(*parts, strict=True)
    return torch.cat(residuals), torch.cat(slopes)


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


def _side(samples: Comparison, length: float) -> int:
    """Of the blocks, in pixels: twice the correlation length, as far as there are blocks enough."""
    places = samples.places
    spread = places.max(0).values - places.min(0).values + 1
    return int(max(CELL, min(max(2 * CELL, round(2 * length)), float(spread.max()) / FEWEST_BLOCKS)))


def numbered(samples: Comparison, block: int) -> Int[Tensor, " n"]:
    """Which square of this side each sample is in."""
    place = (samples.places / block).floor().long()
    return torch.unique(place[:, 0] + place[:, 1] * 2**20, return_inverse=True)[1]


def correlation_length(samples: Comparison, residual: Float[Tensor, " n"]) -> float:
    """The range of the residuals' variogram in pixels, at least half a cell; of means over cells of `CELL` pixels. Of
    tiles only those within one are compared."""
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
    slots = samples.pair.slots
    side = None if slots is None or len(slots.corners) == 1 or slots.side % CELL else slots.side // CELL
    return CELL * _range(_apart(means, side), _apart(used.reshape(rows, columns).numpy(), side))


def _apart(field: np.ndarray, side: int | None) -> np.ndarray:
    """(slots, rows, columns) of a raster of slots of this side."""
    return field[None] if side is None else rearrange(field, "(i r) (j c) -> (i j) r c", r=side, c=side)


def _range(field: Float[np.ndarray, "slots rows columns"], used: np.ndarray) -> float:
    """In cells: the first distance at which the covariance is a tenth of the variance, or within its own noise."""
    size = (2 * field.shape[1], 2 * field.shape[2])
    power, window = (
        np.fft.irfft2((np.abs(np.fft.rfft2(raster, size)) ** 2).sum(0), size) for raster in (field, used.astype(float))
    )
    y = np.minimum(np.arange(size[0]), size[0] - np.arange(size[0]))[:, None]
    x = np.minimum(np.arange(size[1]), size[1] - np.arange(size[1]))[None]
    ring = np.rint(np.hypot(x, y)).astype(int)
    longest = max(field.shape[1:]) // 2
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
