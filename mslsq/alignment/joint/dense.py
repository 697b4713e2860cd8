"""All warps, gains and biases at once, from the pixels of all overlaps: one dense system of (k + 2) N unknowns.

Each overlap is one pass that leaves (k + 2)² numbers, so that memory is that of one pair. An overlap's squares are
divided by their variance, and by the number of maps that see its pixels: Σ over pairs of (v_i - v_j)² is n Σ (v_i -
mean)², so that without it a place that n maps see would count n times.

The cost knows differences of log gains and of biases alone (each overlap compares in the values of the map it is seen
from), so that any gauge, a sum of zero or the reference's own zero, has the same answer relative to the reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from mslsq.alignment.descent import Descent, descend
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.state import Coordinates, State
from mslsq.alignment.passes import NormalEquations

SHARE = 0.01
"""Standard errors that the solve may end from its minimum, as on the finest level of a pair."""


@dataclass(frozen=True)
class Dense:
    """The overlaps with their weights, and which unknowns are free."""

    overlaps: Sequence[Overlap]
    weights: Float[np.ndarray, " overlaps"]
    coordinates: Coordinates
    free: Float[np.ndarray, "maps unknowns"]
    """1 or 0: those of the reference and of maps placed before are held, and gains or biases that the user holds."""
    correlated: float
    """Residuals that hold as much as one independent one."""

    def system(self, state: State) -> NormalEquations:
        """One pass over every overlap."""
        maps, unknowns = self.free.shape
        samples, cost, gradient = 0, 0.0, np.zeros((maps, unknowns))
        matrix = np.zeros((maps, unknowns, maps, unknowns))
        for overlap, weight in zip(self.overlaps, self.weights, strict=True):
            ends = overlap.fixed, overlap.moving
            normal = overlap.normal_equations(self.coordinates.between(state, *ends))
            samples, cost = samples + normal.samples, cost + weight * normal.cost
            chain = self.coordinates.chain(state, *ends)
            for one, by_one in zip(ends, chain, strict=True):
                gradient[one] += weight * by_one.T @ normal.gradient
                for other, by_other in zip(ends, chain, strict=True):
                    matrix[one, :, other] += weight * by_one.T @ normal.matrix @ by_other
        size = maps * unknowns
        return NormalEquations(samples, cost, gradient.reshape(size), matrix.reshape(size, size))


def settle(dense: Dense, state: State, max_steps: int) -> Descent[State]:
    """The least cost from a start. The residuals are in units of their own standard deviations."""

    def moved(at: State, step: np.ndarray) -> State:
        return at.moved(dense.coordinates.kind, step.reshape(dense.free.shape))

    return descend(dense.system, moved, state, dense.free.reshape(-1) > 0, max_steps, SHARE, variance=1.0)


def weights_of(overlaps: Sequence[Overlap]) -> Float[np.ndarray, " overlaps"]:
    """1 / (σ² n) of every overlap, n the mean number of maps that see its pixels."""
    seen: dict[int, torch.Tensor] = {}
    for overlap in overlaps:
        seen[overlap.fixed] = seen.get(overlap.fixed, 1) + overlap.valid.to(torch.float64)
    number = [
        float(torch.where(overlap.valid, seen[overlap.fixed], 0.0).sum()) / max(overlap.count, 1)
        for overlap in overlaps
    ]
    return np.array([1 / (overlap.sigma**2 * n) for overlap, n in zip(overlaps, number, strict=True)])
