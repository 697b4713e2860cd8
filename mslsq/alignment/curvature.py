"""The curvature of a placement's cost without what noise adds to it.

JᵀJ counts the gradients of a map's noise as if they were detail: at a tenth of the range of a smooth scene it is fifty
times too large, and a covariance of its inverse too small. The product of the two maps' own Jacobians is not: their
noise is independent, and drops out of it in the mean.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.alignment.descent import Between
from mslsq.alignment.models import Warp
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.sampling import sample_with_gradient_at
from mslsq.kernels import Kernel

_JACOBIAN_PRODUCTS = Kernel("jacobian_products", "nnnTnnTnnnTddnlddnd")

CHUNK = 1 << 16
"""Samples whose Jacobians are held at a time: 5 MB of them for a homography."""

SMALLEST_EIGENVALUE = 1e-12
"""Of JᵀJ scaled to a diagonal of ones: below it a direction is known by rounding alone."""


class Seen(NamedTuple):
    """Some of the samples: where they are, and the channels' residuals and Jacobians over (tangent, log gain, bias)."""

    points: Float[Tensor, "n 2"]
    residual: Float[Tensor, "n channels"]
    jacobian: Float[Tensor, "n channels unknowns"]
    of_target: Float[Tensor, "n channels unknowns"]
    """The same Jacobian, as the map that is compared with has it: its gradients, its values."""


def samples(
    level: PairLevel,
    coefficients: Float[Tensor, "channels height width"],
    kind: type[Warp],
    freedom: Float[np.ndarray, "2"],
    at: Between,
    chosen: Int[Tensor, " n"],
) -> Iterator[Seen]:
    """The chosen samples of a level, `CHUNK` at a time. `coefficients` are those of the map seen from, there."""
    warp = kind.from_matrix(torch.from_numpy(at.matrix).to(level.planes))
    identity, side = kind.identity(device="cpu").to(level.planes), level.frame.half / level.factor
    free = torch.from_numpy(freedom).to(level.planes)
    log_gain, bias = (at.value * freedom).tolist()
    gain, (factor, *offset) = float(np.exp(log_gain)), level.to_level
    for part in chosen.split(CHUNK):
        columns = level.grid[1]
        pixels = torch.stack([part % columns, part // columns], -1).to(level.planes) * level.stride
        where = pixels * level.factor + pixels.new_tensor(level.corner)
        points, target = level.frame.normalise(where), level.planes[:, part].T
        moved, depth = warp.act_and_depth(points)
        value, slope = sample_with_gradient_at(level.moving.coefficients, moved * factor + torch.stack(offset))
        _, own_slope = sample_with_gradient_at(coefficients, pixels)
        by_warp = _pulled(warp, slope.movedim(0, 1) * (gain * factor), points, moved, depth)
        own = _pulled(identity, own_slope.movedim(0, 1) * side, points, points, torch.ones_like(depth))
        corrected = gain * value.T
        residual = corrected + bias - target
        yield Seen(points, residual, _with_values(by_warp, corrected, free), _with_values(own, target - bias, free))


def _pulled(
    warp: Warp, slope: Tensor, points: Tensor, moved: Tensor, depth: Tensor
) -> Float[Tensor, "n channels tangent"]:
    return torch.func.vmap(lambda g, p, m, d: warp.pull_back(g, p, (m, d)))(slope, points, moved, depth)


def _with_values(by_warp: Tensor, corrected: Tensor, free: Tensor) -> Float[Tensor, "n channels unknowns"]:
    """The columns of log gain and bias beside those of the warp."""
    by_value = torch.stack([corrected * free[0], torch.ones_like(corrected) * free[1]], -1)
    return torch.cat([by_warp, by_value], -1)


class Products(NamedTuple):
    """Of some samples' residuals r and Jacobians J, summed over samples."""

    own: Float[np.ndarray, "unknowns unknowns"]
    """JᵀJ"""
    scores: Float[np.ndarray, "unknowns unknowns"]
    """s sᵀ, with s = Jᵀr of one sample."""
    both: Float[np.ndarray, "unknowns unknowns"] | None
    """JᵀK, K the Jacobian as the map that is compared with has it; None without its coefficients."""


def products(
    level: PairLevel,
    coefficients: Float[Tensor, "channels height width"] | None,
    kind: type[Warp],
    freedom: Float[np.ndarray, "2"],
    at: Between,
    chosen: Int[Tensor, " n"],
) -> Products:
    """Of `samples`, from one pass of a kernel that knows the warp (`passes.knows`)."""
    moving, (rows, columns) = level.moving.coefficients, level.grid
    own = moving if coefficients is None else coefficients
    log_gain, bias = (at.value * freedom).tolist()
    settings = torch.tensor([np.exp(log_gain), bias, *freedom.tolist()], dtype=torch.float64, device="cpu")
    pixels = torch.tensor([level.stride, level.frame.half / level.factor], dtype=torch.float64, device="cpu")
    unknowns = kind.tangent_dim + 2
    found = torch.zeros(3, unknowns, unknowns, dtype=torch.float64, device="cpu")
    H = torch.from_numpy(np.ascontiguousarray(at.matrix, dtype=np.float64))
    _JACOBIAN_PRODUCTS(
        *moving.shape, moving, *own.shape[1:], own.contiguous(), int(coefficients is not None), columns, rows * columns,
        level.planes, level.geometry, pixels, len(chosen), chosen.contiguous(), H, settings, kind.tangent_dim, found,
    )  # fmt: skip
    numbers = found.numpy()
    return Products(numbers[0], numbers[1], None if coefficients is None else numbers[2])


class Curvature(NamedTuple):
    """H in the metric of JᵀJ: H⁻¹ = R diag(1/s) Rᵀ, and R Rᵀ = (JᵀJ)⁻¹."""

    root: Float[np.ndarray, "n n"]
    share: Float[np.ndarray, " n"]
    """What is detail in JᵀJ, by direction: 1 without noise."""
    unsure: float = 0.0
    """The standard error of a share, and the least that one is said to be."""

    @property
    def inverse(self) -> Float[np.ndarray, "n n"]:
        """H⁻¹"""
        return self.root / self.share @ self.root.T

    def spread(self, noise: float = 1.0) -> Float[np.ndarray, "n n"]:
        """H⁻¹ (H + noise · (JᵀJ - H)) H⁻¹: with what noise adds to JᵀJ, weighed; in full in directions of which no
        share of detail is known."""
        weight = noise + (1 - noise) * np.minimum(self.unsure / self.share, 1)
        return self.root * ((self.share + weight * (1 - self.share)) / self.share**2) @ self.root.T


def curvature(
    normal: Float[np.ndarray, "n n"], products: Float[np.ndarray, "n n"], independent: float
) -> Curvature | None:
    """Of the product of both Jacobians, beside JᵀJ. None where JᵀJ has no inverse.

    A share has a standard error of about 1 / √(independent samples).
    """
    lengths = np.sqrt(np.abs(normal.diagonal()))
    if not (np.isfinite(normal).all() and np.isfinite(products).all() and (lengths > 0).all()):
        return None
    values, vectors = np.linalg.eigh(normal / np.outer(lengths, lengths))
    if values[0] < SMALLEST_EIGENVALUE:
        return None
    whitening = vectors / np.sqrt(values) / lengths[:, None]
    share, turned = np.linalg.eigh(whitening.T @ (0.5 * (products + products.T)) @ whitening)
    unsure = min(independent**-0.5, 1.0)
    return Curvature(whitening @ turned, share.clip(unsure), unsure)
