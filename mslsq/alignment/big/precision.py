"""How well places are determined by the tiles that were used, from how the scores of the tiles scatter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from mslsq.alignment.curvature import curvature
from mslsq.alignment.descent import Between
from mslsq.alignment.joint.dense import Dense
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.sandwich import are_warps, covariance, fitted, of_warps, sandwich
from mslsq.alignment.joint.state import State

FEW = 24
"""Tiles: of fewer, cells of 8 px say the standard errors; else whole tiles do, which know of errors that
are common to a tile."""

EVEN = 1.36
"""What cells of 8 px have in common with their neighbours where slopes are even, as a factor: few tiles do not tell how
even they are."""

SUBSET = 1 << 16
"""About as many samples tell which share of JᵀJ is detail."""


@dataclass(frozen=True)
class Tiled:
    """The overlaps of one level, and which of them are of one tile."""

    dense: Dense
    tiles: Sequence[range]
    pixel: float
    """The side of a sample in pixels."""

    def spread(self, state: State) -> Float[np.ndarray, "maps tangent tangent"]:
        """The covariance of every map's warp. Of few tiles from cells of some pixels, else from whole tiles."""
        few = len(self.tiles) < FEW
        whole = EVEN * covariance(self.dense, state, {}, self.pixel) if few else self.covariance(state)
        maps = np.arange(len(self.dense.free))
        return whole[maps, :, maps]

    def covariance(self, state: State) -> Float[np.ndarray, "maps tangent maps tangent"]:
        """`joint.sandwich.covariance` with whole tiles as cells, from one pass and a subset of samples.
        (Of what neighbours have in common tiles lose less than a hundredth.)"""
        dense, coordinates = self.dense, self.dense.coordinates
        scores = np.zeros((len(self.tiles), *dense.free.shape))
        own, both = (np.zeros(dense.free.shape * 2) for _ in range(2))
        share = max(1, sum(overlap.count for overlap in dense.overlaps) // SUBSET)
        taken = 0
        for tile, number in [(tile, number) for tile, members in enumerate(self.tiles) for number in members]:
            overlap, weight = dense.overlaps[number], dense.weights[number]
            ends = overlap.fixed, overlap.moving
            at, chain = coordinates.between(state, *ends), coordinates.chain(state, *ends)
            gradient = overlap.normal_equations(at).gradient
            products = _products(overlap, at, share)
            taken += products.count
            for one, by_one in zip(ends, chain, strict=True):
                scores[tile, one] += weight * by_one.T @ gradient
                for other, by_other in zip(ends, chain, strict=True):
                    own[one, :, other] += weight * by_one.T @ products.own @ by_other
                    both[one, :, other] += weight * by_one.T @ products.both @ by_other
        size, free, normal = dense.free.size, dense.free.reshape(-1) > 0, dense.system(state)
        inner = np.ix_(free, free)
        bread = normal.matrix + normal.samples / max(taken, 1) * (both - own).reshape(size, size)
        found = curvature(normal.matrix[inner], bread[inner], taken / dense.correlated)
        if found is None:
            return of_warps(dense, None)
        of_free = scores.reshape(len(scores), size)[:, free]
        return of_warps(dense, fitted(of_free) * sandwich(found, of_free, are_warps(dense)))


class _Products(NamedTuple):
    """JᵀJ and the product with the other map's own Jacobian, of some samples, and of how many."""

    own: Float[np.ndarray, "unknowns unknowns"]
    both: Float[np.ndarray, "unknowns unknowns"]
    count: int


def _products(overlap: Overlap, at: Between, share: int) -> _Products:
    few = overlap.every(share)
    unknowns = few.kind.tangent_dim + 2
    own, both = np.zeros((2, unknowns, unknowns))
    for seen in few.samples(at):
        weighted = seen.jacobian * overlap.influence(seen.residual)[:, None, None]
        own += torch.einsum("ncu,ncv->uv", weighted, seen.jacobian).numpy(force=True)
        both += torch.einsum("ncu,ncv->uv", weighted, seen.of_target).numpy(force=True)
    return _Products(own, 0.5 * (both + both.T), few.count)
