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
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.alignment.curvature import Curvature, Seen, curvature
from mslsq.alignment.joint.dense import Dense
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.state import State

CELL = 8.0
"""Pixels of the reference: the side of a cell. The prefilter correlates neighbours up to 3 pixels apart; larger cells
are so few that their scatter is known too badly."""

ROW = 2**22
"""The number of a cell is its column plus this times its row."""

FARTHEST = 12
"""Cells: scores are not asked beyond what they have in common. Bends of 0.2 px of maps of 112² ended after two or
three."""


@dataclass(frozen=True)
class _Sums:
    """Of one overlap: the bread between the two maps, and the scores per cell."""

    bread: Float[np.ndarray, "unknowns unknowns"]
    cells: Int[np.ndarray, " cells"]
    scores: Float[np.ndarray, "cells unknowns"]


def covariance(
    dense: Dense, state: State, of_known: Mapping[int, Float[np.ndarray, "tangent tangent"]], pixel: float = 1.0
) -> Float[np.ndarray, "maps tangent maps tangent"]:
    """Of the steps of all warps, zero for what is held; NaN where the pixels leave a direction open.

    `pixel` is the side of a sample in pixels of the reference. Maps that are held, and known by these covariances of
    their warps (independent of each other), add what their errors do to the others: A Σ Aᵀ with A = -H⁻¹ H_known, the
    columns of the known in H.
    """
    maps, unknowns = dense.free.shape
    size = maps * unknowns
    bread = np.zeros((maps, unknowns, maps, unknowns))
    parts = []
    for overlap, weight in zip(dense.overlaps, dense.weights, strict=True):
        ends = overlap.fixed, overlap.moving
        sums = _sums(dense, state, overlap, CELL * pixel)
        chain = dense.coordinates.chain(state, *ends)
        for one, by_one in zip(ends, chain, strict=True):
            for other, by_other in zip(ends, chain, strict=True):
                bread[one, :, other] += weight * by_one.T @ sums.bread @ by_other
        parts.append((ends, sums.cells, [weight * sums.scores @ by_one for by_one in chain]))
    number = np.unique(np.concatenate([cells for _, cells, _ in parts]))
    scores = np.zeros((len(number), maps, unknowns))
    for ends, cells, by_end in parts:
        rows = np.searchsorted(number, cells)
        for index, score in zip(ends, by_end, strict=True):
            scores[rows, index] += score
    free = dense.free.reshape(-1) > 0
    flat, normal = bread.reshape(size, size), dense.system(state)
    both = np.ix_(free, free)
    found = curvature(normal.matrix[both], flat[both], normal.samples / dense.correlated)
    if found is None:
        return of_warps(dense, None)
    warps = are_warps(dense)
    spread = sandwich(found, scores.reshape(len(number), size)[:, free], warps, number)
    for index, block in of_known.items():
        columns = index * unknowns + np.arange(len(block))
        moved = (found.inverse @ flat[np.ix_(free, columns)])[warps]
        spread += moved @ block @ moved.T
    return of_warps(dense, spread)


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


def sandwich(
    found: Curvature,
    scores: Float[np.ndarray, "cells n"],
    warps: Bool[np.ndarray, " n"],
    number: Int[np.ndarray, " cells"] | None = None,
) -> Float[np.ndarray, "warps warps"]:
    """H⁻¹ Σ s sᵀ H⁻¹ of the warps, with the usual factor for the unknowns that the residuals were fitted by, and for
    what cells have in common where their numbers are given.

    Scatter is judged where white noise has a multiple of the unit matrix: in the metric of H⁻¹ JᵀJ H⁻¹ of the warps.
    With the scores of gains and biases among them the level would be theirs, which the prefilter makes larger (12.6
    times white noise, texture 4 to 8): of tilted maps errors were 2.4 times too large in the mean.
    """
    cells, unknowns = scores.shape
    upper = np.linalg.qr((found.root / found.share)[warps].T)[1]
    root = upper.T
    moved = np.linalg.solve(root, (scores @ found.inverse)[:, warps].T).T
    farther = 1.0 if number is None else shared(number, moved)
    return farther * cells / max(cells - unknowns, 1) * root @ shrunk(moved) @ root.T


def shared(number: Int[np.ndarray, " cells"], scores: Float[np.ndarray, "cells n"]) -> float:
    """Σ s_c·s_d over all cells c and d as far apart as scores agree, over that of the same alone; at
    least 1.

    Residuals after a prefilter of 1 px correlate by exp(-d²/4). Where slopes are even, a sum over cells of 8 px loses a
    quarter of its variance across the borders (the ratio is 1.36). Slopes of a texture change their sign within the
    reach of the prefilter, and little is lost. A bend of the map is common to many cells. So rings of cells around each
    are added, from the nearest on, until one has a sum below zero (as of a Markov chain; Geyer, "Practical Markov chain
    Monte Carlo", 1992).
    """
    total, factor = float(np.square(scores).sum()), 1.0
    for distance in range(1, FARTHEST + 1):
        across = 0.0
        for step in half_ring(distance):
            at = np.searchsorted(number, number + step).clip(max=len(number) - 1)
            apart = number[at] == number + step
            across += float(np.einsum("cu,cu->", scores[apart], scores[at[apart]]))
        if not across > 0:
            break
        factor += 2 * across / total
    return factor


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


def _sums(dense: Dense, state: State, overlap: Overlap, cell: float) -> _Sums:
    at = dense.coordinates.between(state, overlap.fixed, overlap.moving)
    unknowns = dense.free.shape[1]
    bread, cells, scores = np.zeros((unknowns, unknowns)), [], []
    for seen in overlap.samples(at):
        weight = overlap.influence(seen.residual)
        jacobian = seen.jacobian * weight[:, None, None]
        bread += np.einsum("ncu,ncv->uv", jacobian.numpy(force=True), seen.of_target.numpy(force=True), optimize=True)
        where = _cells(dense, state, overlap, seen, cell)
        score = (jacobian * seen.residual[..., None]).sum(1).numpy(force=True)
        found, inverse = np.unique(where, return_inverse=True)
        cells.append(found)
        scores.append(np.stack([np.bincount(inverse, column, len(found)) for column in score.T], -1))
    found, inverse = np.unique(np.concatenate(cells), return_inverse=True)
    total = np.zeros((len(found), unknowns))
    np.add.at(total, inverse, np.concatenate(scores))
    return _Sums(0.5 * (bread + bread.T), found, total)


def _cells(dense: Dense, state: State, overlap: Overlap, seen: Seen, side: float) -> Int[np.ndarray, " n"]:
    """Which cell of the scene each sample is in, as one number."""
    frame = dense.coordinates.frame
    out_of = dense.coordinates.out_of(state, overlap.fixed)
    points: Tensor = seen.points
    moved = dense.coordinates.kind.from_matrix(points.new_tensor(out_of)).act(points)
    cell = (moved * (frame.half / side)).floor().clamp(-(2**20), 2**20).long()
    return (cell[:, 0] + cell[:, 1] * ROW).numpy(force=True)
