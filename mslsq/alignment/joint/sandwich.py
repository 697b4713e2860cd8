"""How well all maps are determined together, from the residuals themselves.

The estimate is the root of the scores g = Σ wJᵀr. Its covariance is H⁻¹ Cov(g) H⁻¹ (Huber, 1967), with

- H the expected derivative of g (`curvature`).
- Cov(g) = Σ s_c s_cᵀ over cells c of the scene, s_c the sum of the scores of all overlaps there. A pixel's noise is in
  the scores of all its pairs, with its neighbours' through the prefilter: within a cell all of that is counted once,
  with the signs it has.

What is asked for are warps, and gains and biases are nuisances: of every cell only what it moves the warps by counts,
H⁻¹ s_c without the rows of the values. A slope of the values from border to border is in the scores of all biases, with
one sign everywhere, and in those of the warps with the signs of the texture's slopes.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from mslsq.alignment.curvature import Curvature
from mslsq.alignment.joint.cells import ROW, Scores
from mslsq.alignment.joint.dense import Dense
from mslsq.alignment.joint.state import State

FARTHEST = 12
"""Cells: scores are not asked beyond what they have in common. Bends of 0.2 px of maps of 112² ended after two or
three."""


def covariance(
    dense: Dense, state: State, of_known: Mapping[int, Float[np.ndarray, "tangent tangent"]], pixel: float = 1.0
) -> Float[np.ndarray, "maps tangent maps tangent"]:
    """Of the steps of all warps, zero for what is held; NaN where the pixels leave a direction open.

    `pixel` is the side of a sample in pixels of the reference. Maps that are held, and known by these covariances of
    their warps (independent of each other), add what their errors do to the others: A Σ Aᵀ with A = -H⁻¹ H_known, the
    columns of the known in H.
    """
    seen = Scores.of(dense, state, pixel)
    if seen is None:
        return of_warps(dense, None)
    warps = are_warps(dense)
    factor = shared(seen.number, whitened(seen.found, seen.scores, warps)[1]) * fitted(seen.scores)
    return of_warps(dense, factor * sandwich(seen.found, seen.scores, warps) + of_held(dense, seen, of_known))


def of_held(
    dense: Dense, seen: Scores, of_known: Mapping[int, Float[np.ndarray, "tangent tangent"]]
) -> Float[np.ndarray, "warps warps"]:
    """What the errors of the maps that are held do to the warps that are free."""
    warps, unknowns = are_warps(dense), dense.free.shape[1]
    spread = np.zeros((int(warps.sum()),) * 2)
    for index, block in of_known.items():
        columns = index * unknowns + np.arange(len(block))
        moved = (seen.found.inverse @ seen.bread[np.ix_(seen.free, columns)])[warps]
        spread += moved @ block @ moved.T
    return spread


def are_warps(dense: Dense) -> Bool[np.ndarray, " free"]:
    """Of the unknowns that are free, those of warps, not of values."""
    unknowns = dense.free.shape[1]
    return np.flatnonzero(dense.free.reshape(-1) > 0) % unknowns < unknowns - 2


def of_warps(
    dense: Dense, spread: Float[np.ndarray, "warps warps"] | None
) -> Float[np.ndarray, "maps tangent maps tangent"]:
    """The covariance of all warps from that of those that are free (None: NaN)."""
    free = dense.free[:, :-2].reshape(-1) > 0
    whole = np.zeros((len(free), len(free)))
    whole[np.ix_(free, free)] = np.nan if spread is None else spread
    return whole.reshape(2 * (len(dense.free), dense.free.shape[1] - 2))


def fitted(scores: Float[np.ndarray, "cells n"]) -> float:
    """The usual factor for the unknowns that the residuals were fitted by."""
    cells, unknowns = scores.shape
    return cells / max(cells - unknowns, 1)


def sandwich(
    found: Curvature, scores: Float[np.ndarray, "cells n"], warps: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "warps warps"]:
    """H⁻¹ Σ s sᵀ H⁻¹ of the warps."""
    root, moved = whitened(found, scores, warps)
    return root @ shrunk(moved) @ root.T


def whitened(
    found: Curvature, scores: Float[np.ndarray, "cells n"], warps: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "warps warps"], Float[np.ndarray, "cells warps"]]:
    """By what every cell moves the warps, m = R x, in the metric of R Rᵀ = H⁻¹ JᵀJ H⁻¹ of the warps; R and x.

    There white noise has a multiple of the unit matrix. With the scores of gains and biases among them the level would
    be theirs, which the prefilter makes larger (12.6 times white noise, texture 4 to 8): of tilted maps errors were 2.4
    times too large in the mean.
    """
    root = np.linalg.qr((found.root / found.share)[warps].T)[1].T
    return root, np.linalg.solve(root, (scores @ found.inverse)[:, warps].T).T


def shared(number: Int[np.ndarray, " cells"], scores: Float[np.ndarray, "cells n"]) -> float:
    """Σ s_c·s_d over all cells c and d as far apart as scores agree, over that of the same alone; at
    least 1.

    Residuals after a prefilter of 1 px correlate by exp(-d²/4). Where slopes are even, a sum over cells of 8 px loses a
    quarter of its variance across the borders (the ratio is 1.36). Slopes of a texture change their sign within the
    reach of the prefilter, and little is lost. A bend of the map is common to many cells. So rings of cells around each
    are added, from the nearest on, until one has a sum below zero (as of a Markov chain; Geyer, "Practical Markov chain
    Monte Carlo", 1992).
    """
    factor = 1.0
    for distance in range(1, FARTHEST + 1):
        across = ring_sum(number, scores, distance)
        if not across > 0:
            break
        factor += across
    return factor


def ring_sum(number: Int[np.ndarray, " cells"], scores: Float[np.ndarray, "cells n"], distance: int) -> float:
    """Σ s_c·s_d over all cells c and d at a distance, over Σ s_c·s_c."""
    total, across = float(np.square(scores).sum()), 0.0
    for step in half_ring(distance):
        at = np.searchsorted(number, number + step).clip(max=len(number) - 1)
        apart = number[at] == number + step
        across += float(np.einsum("cu,cu->", scores[apart], scores[at[apart]]))
    return 2 * across / total if total > 0 else 0.0


def half_ring(distance: int) -> list[int]:
    """What the numbers of half of the cells at a distance (in rows or columns, the larger) are larger by; those of the
    other half are smaller by it."""
    beside = [row * ROW + distance for row in range(-distance, distance)]
    return beside + [distance * ROW + column for column in range(-distance + 1, distance + 1)]


def shrunk(scores: Float[np.ndarray, "cells n"]) -> Float[np.ndarray, "n n"]:
    """Σ s sᵀ, drawn towards a multiple of the unit matrix as far as the scatter of its terms says (Ledoit and Wolf,
    2004).

    Few cells hold most of the detail of a scene, so that the sum is known badly, and its inverse is too large in the
    mean: of a covariance with ν degrees of freedom by ν / (ν - n - 1) (Hotelling, 1931). In the metric of JᵀJ the
    scores of white noise have a multiple of the unit matrix.
    """
    cells, unknowns = scores.shape
    mean = scores.T @ scores / cells
    level = float(np.trace(mean)) / unknowns
    towards = level * np.eye(unknowns)
    apart = float(np.square(mean - towards).sum())
    lengths = np.square(scores).sum(1)
    scatter = (float(np.square(lengths).sum()) / cells - float(np.square(mean).sum())) / cells
    share = 1.0 if apart <= 0 else min(max(scatter / apart, 0.0), 1.0)
    return cells * ((1 - share) * mean + share * towards)
