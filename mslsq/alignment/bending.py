"""The solve for a `Bend`: least squares of values, with a prior that says how much maps bend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import mslsq
from mslsq.alignment.bends import Bend, grid_of, splines
from mslsq.alignment.descent import UNFINISHED, descend
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.grids import inside
from mslsq.alignment.measures import corners
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel, correlations
from mslsq.alignment.passes import NormalEquations
from mslsq.alignment.sampling import sample_with_gradient_at
from mslsq.alignment.spread import mad_sigma

CURVATURE = 0.05
"""Steps: the standard deviation, before anything is seen, of c_(k-1) - 2 c_k + c_(k+1) along either axis, and of the
mixed difference of four neighbours. A map of 256 px bends a straight line of 32 px by 1.6 px and no more."""

LARGEST = 1.0
"""Steps: the standard deviation of the shifts themselves, so that what no pixel says is known, if only to that."""

UPRIGHT = 0.2
"""The least det(I + ∂s/∂u): where it is less the grid is all but folded."""

STEPS = 30


class Bent(NamedTuple):
    """A bend with the values beside it, and its correlations; or why there is none."""

    bend: Bend | None
    value: Float[Tensor, "2"]
    ncc: float
    detail: float
    corner_sigma: float
    reason: str


class _State(NamedTuple):
    """Control points in normalised coordinates, flattened (x first), log gain and bias."""

    shifts: Float[np.ndarray, " unknowns"]
    value: Float[np.ndarray, "2"]


@dataclass(frozen=True)
class Bending:
    """One level of a pair, to be bent on top of a matrix (normalised)."""

    level: PairLevel
    matrix: Float[Tensor, "3 3"]
    size: tuple[int, int]
    """Height and width of the reference's finest level."""
    loss: str | None
    freedom: Float[np.ndarray, "2"]
    prefilter: float = 1.0
    """Sigma in pixels."""

    @property
    def correlated(self) -> float:
        """Samples that hold as much as one: 4πσ² after a prefilter of σ px."""
        return max(1.0, 4 * math.pi * self.prefilter**2)

    @property
    def like(self) -> Tensor:
        return self.level.planes

    def weights(self) -> tuple[Float[Tensor, "rows r"], Float[Tensor, "columns c"]]:
        """β³ of the rows and the columns of samples for those of the control points."""
        step, rows, columns = grid_of(*self.size)
        pixel = self.level.stride * self.level.factor
        parts = []
        for count, knots, side in zip(self.level.grid, (rows, columns), self.size, strict=True):
            at = (torch.arange(count, device="cpu").to(self.like) * pixel).clamp(max=side - 1)
            parts.append(splines(at / step, knots)[0])
        return parts[0], parts[1]

    def moved(self, shifts: Float[np.ndarray, " unknowns"]) -> tuple[Tensor, Tensor]:
        """Where the samples fall on the map's level, and the derivative (n, 2, 2) of that by their shifts."""
        by_row, by_column = self.weights()
        grid = torch.from_numpy(shifts).to(self.like).reshape(2, by_row.shape[1], by_column.shape[1])
        field = torch.einsum("yr,xc,krc->yxk", by_row, by_column, grid).reshape(-1, 2)
        points = self.level.points + field
        H = self.matrix
        depth = points @ H[2, :2] + H[2, 2]
        there = (points @ H[:2, :2].T + H[:2, 2]) / depth[:, None]
        derivative = (H[:2, :2] - there[:, :, None] * H[2, :2]) / depth[:, None, None]
        scale = self.level.to_level
        return there * scale[0] + scale[1:], derivative * scale[0]

    def look(self, shifts: Float[np.ndarray, " unknowns"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """The map's values at the samples, and which fall on data of both."""
        pixels, _ = self.moved(shifts)
        valid = self.level.known & inside(pixels, self.level.moving.mask)
        return sample_with_gradient_at(self.level.moving.coefficients, torch.nan_to_num(pixels))[0].T, valid

    def residual(self, state: _State) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """exp(α) · map + b - reference."""
        sampled, valid = self.look(state.shifts)
        log_gain, bias = state.value * self.freedom
        return sampled * float(np.exp(log_gain)) + float(bias) - self.level.target, valid

    def normal(
        self, state: _State, valid: Bool[Tensor, " n"], sigma: float, prior: np.ndarray, signal: bool = False
    ) -> NormalEquations:
        """Cost, gradient and JᵀWJ of Σ ρ(r / σ) / n₁ + cᵀ P c, over (shifts, log gain, bias), both halved.

        n₁ is how many samples hold as much as one, of residuals that the prefilter correlates. The field is separable:
        with image W of products of gradients, (JᵀJ) = Byᵀ W Bx in products of two splines each; nothing of size samples
        x unknowns is formed. With `signal`, JᵀWJ is that of the map without its noise, whose gradients tell nothing: of
        half of the residuals' variance, they have σ² / 4σ_p² per axis after a prefilter of σ_p px.
        """
        pixels, derivative = self.moved(state.shifts)
        sampled, slopes = sample_with_gradient_at(self.level.moving.coefficients, torch.nan_to_num(pixels))
        log_gain, bias = state.value * self.freedom
        gain = float(np.exp(log_gain))
        known = valid.to(self.like)
        residual = known * (gain * sampled + float(bias) - self.level.planes) / sigma
        squared = residual.square().sum(0)
        rho, weight = squared, torch.ones_like(squared)
        if self.loss is not None:
            kind = LOSSES[self.loss]
            scale = self.like.new_tensor(kind.tuning)
            rho, weight, _ = kind(scale).derivatives(squared)
        weight = weight * known / self.correlated
        by_shift = gain / sigma * torch.einsum("knd,nde->ken", slopes, derivative)  # channels, 2, n
        by_value = torch.stack(
            [gain * sampled / sigma * self.freedom[0], torch.full_like(sampled, self.freedom[1] / sigma)], 1
        )
        columns = torch.cat([by_shift, by_value], 1)
        products = torch.einsum("kin,kjn,n->ijn", columns, columns, weight)
        if signal:
            of_noise = torch.einsum("nde,ndf,n->efn", derivative, derivative, weight)
            products[:2, :2] -= len(slopes) * of_noise / (4 * max(self.prefilter, 0.5) ** 2)
        slope = torch.einsum("kin,kn,n->in", columns, residual, weight)
        matrix, gradient = self._gathered(products, slope)
        shifts = np.concatenate([state.shifts, np.zeros(2)])
        matrix += prior
        held = np.diag(np.concatenate([np.zeros(len(state.shifts)), 1.0 - self.freedom]))
        gradient += prior @ shifts
        cost = 0.5 * float((rho * known).sum()) / self.correlated + 0.5 * float(shifts @ prior @ shifts)
        return NormalEquations(int(valid.count_nonzero()), cost, gradient, matrix + held)

    def _gathered(
        self, products: Float[Tensor, "4 4 n"], slope: Float[Tensor, "4 n"]
    ) -> tuple[Float[np.ndarray, "unknowns unknowns"], Float[np.ndarray, " unknowns"]]:
        """Sums over the samples, each times the splines of what it is a product of."""
        by_row, by_column = self.weights()
        rows, columns = by_row.shape[1], by_column.shape[1]
        count = rows * columns
        images, slopes = products.unflatten(-1, self.level.grid), slope.unflatten(-1, self.level.grid)
        pairs = [torch.einsum("ni,nj->nij", part, part).flatten(1) for part in (by_row, by_column)]
        out = self.like.new_zeros((2 * count + 2, 2 * count + 2))
        for i in range(2):
            for j in range(2):
                block = (pairs[0].T @ images[i, j] @ pairs[1]).reshape(rows, rows, columns, columns)
                out[i * count : (i + 1) * count, j * count : (j + 1) * count] = block.permute(0, 2, 1, 3).reshape(
                    count, count
                )
            beside = torch.stack([(by_row.T @ images[i, 2 + k] @ by_column).flatten() for k in range(2)], -1)
            out[i * count : (i + 1) * count, 2 * count :] = beside
            out[2 * count :, i * count : (i + 1) * count] = beside.T
        out[2 * count :, 2 * count :] = images[2:, 2:].sum((-2, -1))
        gradient = [(by_row.T @ slopes[i] @ by_column).flatten() for i in range(2)]
        gradient.append(slopes[2:].sum((-2, -1)))
        return out.numpy(force=True), torch.cat(gradient).numpy(force=True)


def prior_of(height: int, width: int, half: float) -> Float[np.ndarray, "unknowns unknowns"]:
    """P of the cost ½ cᵀPc: second differences have a standard deviation of `CURVATURE` steps, shifts one of
    `LARGEST`; in normalised coordinates, with zeros for the values."""
    step, rows, columns = grid_of(height, width)
    identities, seconds, firsts = [], [], []
    for count in (rows, columns):
        identity = np.eye(count)
        identities.append(identity)
        seconds.append(identity[:-2] - 2 * identity[1:-1] + identity[2:])
        firsts.append(identity[1:] - identity[:-1])
    bends = [np.kron(seconds[0], identities[1]), np.kron(identities[0], seconds[1])]
    mixed = np.kron(firsts[0], firsts[1])
    energy = sum(part.T @ part for part in bends) + 2 * mixed.T @ mixed
    unit = half / step
    one = energy * (unit / CURVATURE) ** 2 + np.eye(rows * columns) * (unit / LARGEST) ** 2
    out = np.zeros((2 * rows * columns + 2,) * 2)
    count = rows * columns
    out[:count, :count] = out[count : 2 * count, count : 2 * count] = one
    return out


def bend(
    levels: Sequence[PairLevel],
    estimate: Estimate,
    size: tuple[int, int],
    options: Options,
    freedom: tuple[bool, bool],
) -> Bent:
    """The bend of a map on top of its placement, from the coarsest of `levels` to the finest (which comes first).

    The matrix is held. It is the most probable bend under Gaussian noise (of the residuals' MAD, robust as
    `options.loss` says) and the prior of `prior_of`; its covariance is that of the posterior, (JᵀJ/σ² + P)⁻¹ at the
    end, with the gradients of noise taken out of J.
    """
    free_values = np.array(freedom, dtype=np.float64)
    half, prior = levels[0].frame.half, prior_of(*size, levels[0].frame.half)
    state = _State(np.zeros(len(prior) - 2), estimate.value.numpy(force=True).copy())
    free = np.concatenate([np.ones(len(prior) - 2), free_values]) > 0
    found, bending, valid, sigma = None, None, None, 1.0
    for level in [*reversed(levels), levels[0]]:
        bending = Bending(level, estimate.matrix, size, options.loss, free_values, options.prefilter)
        residual, valid = bending.residual(state)
        sigma = mad_sigma(residual, valid)

        def evaluate(
            at: _State, here: Bending = bending, seen: Tensor = valid, spread: float = sigma
        ) -> NormalEquations:
            return here.normal(at, seen, spread, prior)

        found = descend(evaluate, _moved, state, free, STEPS, 0.1, variance=1.0)
        state = found.state
    assert found is not None and bending is not None and valid is not None  # there is one level at least
    seen = bending.normal(state, valid, sigma, prior, signal=True).matrix
    information = _positive(seen - prior)[free][:, free] + prior[free][:, free]
    covariance = np.linalg.inv(information)[: len(state.shifts), : len(state.shifts)] * half**2
    return _accepted(bending, estimate, state, found.status, covariance)


def _positive(matrix: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """The nearest symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * values.clip(min=0)) @ vectors.T


def _moved(state: _State, step: Float[np.ndarray, " unknowns"]) -> _State:
    return _State(state.shifts + step[:-2], state.value + step[-2:])


def _accepted(
    bending: Bending,
    estimate: Estimate,
    state: _State,
    status: mslsq.Status,
    covariance: Float[np.ndarray, "unknowns unknowns"],
) -> Bent:
    """The bend with its standard errors, or why the placement stays as stiff as it was."""
    level, size, like = bending.level, bending.size, bending.like
    before, was = bending.look(np.zeros_like(state.shifts))
    after, valid = bending.look(state.shifts)
    both = was & valid
    stiff, bent = (correlations(sampled, both, level) for sampled in (before, after))
    step, rows, columns = grid_of(*size)
    shifts = torch.from_numpy(state.shifts.reshape(2, rows, columns) * level.frame.half).to(like)
    found = Bend(shifts, step, size, torch.from_numpy(covariance).to(like))
    if status in UNFINISHED:
        why = status.sentence
    elif sum(bent) < sum(stiff):
        why = f"Bent it would correlate less ({bent[0]:.3f}, {bent[1]:.3f} in detail)."
    elif least_determinant(found) < UPRIGHT:
        why = "Its grid of shifts would fold."
    else:
        sigma = _corner_sigma(found, estimate.matrix, level)
        value = torch.from_numpy(state.value * bending.freedom).to(like)
        return Bent(found, value, *bent, sigma, "Bent.")
    nan = float("nan")
    return Bent(None, estimate.value, nan, nan, nan, f"Not bent: {why}")


def least_determinant(bend: Bend) -> float:
    """The least det(I + ∂s/∂u), on a grid of four points per span: not positive where the reference is folded."""
    rows, columns = bend.shifts.shape[1:]
    at = [torch.linspace(0, count - 3, 4 * (count - 3) + 1, device="cpu").to(bend.shifts) for count in (rows, columns)]
    (by_row, down), (by_column, right) = (splines(part, n) for part, n in zip(at, (rows, columns), strict=True))
    along_x = torch.einsum("yr,xc,krc->kyx", by_row, right, bend.shifts) / bend.step
    along_y = torch.einsum("yr,xc,krc->kyx", down, by_column, bend.shifts) / bend.step
    return float(((1 + along_x[0]) * (1 + along_y[1]) - along_y[0] * along_x[1]).min())


def _corner_sigma(bend: Bend, matrix: Float[Tensor, "3 3"], level: PairLevel) -> float:
    """Root mean square standard error of the reference's four corners, in pixels of the map."""
    (a, b), (c, d) = (matrix[:2, :2] / matrix[2, 2]).tolist()
    scale = abs(a * d - b * c) ** 0.5
    return scale * float(bend.sigma(corners(*bend.size, level.planes)).square().mean().sqrt())
