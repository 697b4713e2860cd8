"""The answer without the bias that noise adds to it: the gradients of one model weigh the differences of both.

Least squares weighs a residual by the gradient of the noisy `dem` at the same place, so that its noise is in both, and
draws the shift towards whole pixels (by V'σ²/2⟨I_x²⟩, `docs/guide/alignment.md`). Zᵀ w r = 0 with Z = (-∇R, A), the
*reference's* gradients, has the noise of the reference alone in common with r, at whole pixels, where a symmetric
gradient does not correlate with the value. The elevations in A are smoothed. Zᵀ w J then holds no noise either: it is
the curvature of the covariance, in which JᵀJ would count noise as detail.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.dem.comparison import CHUNK, Comparison, Pyramids, Solved, weighted
from mslsq.alignment.dem.fitting import Fitted
from mslsq.alignment.sampling import sample_with_gradient_at

ROUNDS = 30
ENOUGH = 1e-5
"""Pixels, and spreads of the elevation: a step below this ends the iteration."""

FARTHEST = 1.0
"""Pixels: a root farther from the least-squares answer is of noise, and is not taken."""


class Polished(NamedTuple):
    """A root, whether one was found, and whether the reference's gradients know where they are."""

    at: Solved
    settled: bool


def instruments(pyramids: Pyramids, samples: Comparison) -> Float[Tensor, "n unknowns"]:
    """Z = (-∇R, A) at samples of the finest level."""
    coefficients = pyramids.reference[0].coefficients
    slope = torch.cat([sample_with_gradient_at(coefficients, part)[1][0] for part in samples.pixels.split(CHUNK)])
    return torch.cat([-slope, samples.steady], -1)


def polish(pyramids: Pyramids, fitted: Fitted, loss: str | None, held: bool = False) -> Polished:
    """The root near a fit on the finest level, by θ ← θ - (Zᵀ w J)⁻¹ Zᵀ w r."""
    samples, at = fitted.samples, fitted.at
    free = slice(2, None) if held else slice(None)
    z = instruments(pyramids, samples)
    for _ in range(ROUNDS):
        matrix, gradient, _ = system(samples, z, at, loss, fitted.scale)
        try:
            step = -np.linalg.solve(matrix[free, free], gradient[free])
        except np.linalg.LinAlgError:
            return Polished(fitted.at, False)
        full = np.zeros(len(gradient))
        full[free] = step
        at = Solved(at.shift + full[:2], at.bias + full[2:])
        if not np.isfinite(full).all() or np.abs(at.shift - fitted.at.shift).max() > FARTHEST:
            return Polished(fitted.at, False)
        if max(np.abs(full[:2]).max(), np.abs(full[2:]).max() / samples.frame.unit) <= ENOUGH:
            return Polished(at, True)
    return Polished(at, False)


class System(NamedTuple):
    """Sums over samples, in pixels and metres."""

    weighed: Float[np.ndarray, "unknowns unknowns"]
    """Zᵀ w J."""
    gradient: Float[np.ndarray, " unknowns"]
    """Zᵀ w r."""
    slope: Float[np.ndarray, "unknowns unknowns"]
    """The derivative of Zᵀ w r: Zᵀ (w + 2 ρ'' r²) J."""

    def plus(self, other: "System") -> "System":
        """Both sums together."""
        return System(*(one + more for one, more in zip(self, other, strict=True)))


def system(samples: Comparison, z: Float[Tensor, "n unknowns"], at: Solved, loss: str | None, scale: float) -> System:
    """Of all samples at an answer; residuals have the sigma `scale`."""
    count = z.shape[1]
    total = System(np.zeros((count, count)), np.zeros(count), np.zeros((count, count)))
    for part, residual, jacobian in samples.jacobians(at):
        _, weight, second = weighted(residual, loss, scale)
        heavy, bent = (z[part] * of[:, None] for of in (weight, weight + 2 * second * residual.square()))
        sums = heavy.T @ jacobian, heavy.T @ residual, bent.T @ jacobian
        total = total.plus(System(*(one.numpy() for one in sums)))
    return total
