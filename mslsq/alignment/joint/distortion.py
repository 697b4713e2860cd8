"""How well all maps are determined together where they are distorted: by lenses, drift, paper that has stretched.

A map i shows at its point n what belongs at n + d_i(n), and d_i is no warp of the model: it is orthogonal to all of
them over the whole map, whose place is that of the best warp. It is not over the strip in which the map overlaps a
neighbour: there the warp follows it, and every cell of the strip moves the warp the same way, so that no scatter of
cells tells. What tells is how scores vary over the strips. So every map has a random field

    d_i = Σ_k β_ik φ_k,   β_ik normal with variance τ²,

φ_k orthonormal polynomials without those that a step of the warp makes. With g_β the scores of β at the minimum,
S = H_ββ - H_βθ H⁻¹ H_θβ and V what noise has in g_β, g_β is normal with the covariance V + τ² S Sᵀ. That says τ² (a
variance component; Harville, "Maximum likelihood approaches to variance component estimation and to related problems",
1977), and distortions add τ² T Tᵀ with T = H⁻¹ H_θβ to the covariance of the warps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial.legendre import leggauss, legvander2d

from mslsq.alignment.joint.cells import Scores, Table
from mslsq.alignment.joint.dense import Dense
from mslsq.alignment.joint.sandwich import are_warps, of_held, of_warps, ring_sum, sandwich, shared
from mslsq.alignment.joint.state import State
from mslsq.alignment.models import Frame, velocities
from mslsq.alignment.tangents import change

DEGREE = 3
"""Of the polynomials: from bends of one sign to those that change it once."""

NODES = 8
"""Of Gauss and Legendre's rule along either side of a map: exact for all products of fields and of steps of warps."""

COLUMNS = 128
"""Of the whitened scores: as many tell what noise has in them."""

FAINTEST, STRONGEST, STEPS = 0.1, 1e3, 240
"""The deviations τ that are thought possible, in those that the best seen quarter of the fields would just show, and
how many of them are looked at."""


@dataclass(frozen=True)
class Fields:
    """The fields φ_k of one map, in its own normalised coordinates."""

    sides: tuple[float, float]
    """Half of the map's, in these coordinates."""
    weights: Float[np.ndarray, "2 monomials fields"]

    @staticmethod
    def of(frame: Frame, tangent: int) -> "Fields":
        """Those that a warp of `tangent` degrees of freedom does not make."""
        x, y = (frame.centre / frame.half).tolist()
        return _fields(max(x, 1e-3), max(y, 1e-3), tangent)

    @property
    def count(self) -> int:
        return self.weights.shape[-1]

    def at(self, points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2 fields"]:
        """φ_k at points."""
        return np.einsum("nm,dmk->ndk", _polynomials(points / np.array(self.sides)), self.weights)


def _polynomials(points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n monomials"]:
    """Products of Legendre polynomials, orthonormal over the square."""
    degree = np.add.outer(np.arange(DEGREE + 1), np.arange(DEGREE + 1)).reshape(-1)
    norm = np.sqrt(np.multiply.outer(*[2 * np.arange(DEGREE + 1) + 1] * 2)).reshape(-1)
    x, y = points.clip(-1, 1).T
    return (legvander2d(x, y, [DEGREE, DEGREE]) * norm)[:, degree <= DEGREE]


@lru_cache(maxsize=64)
def _fields(x: float, y: float, tangent: int) -> Fields:
    nodes, weights = leggauss(NODES)
    points = np.stack([part.ravel() for part in np.meshgrid(nodes, nodes)], -1)
    root = np.sqrt(np.outer(weights, weights).reshape(-1, 1) / 4)
    plain = _polynomials(points) * root
    both = np.kron(np.eye(2), plain)
    where = torch.from_numpy(points * np.array([x, y]))
    moving = velocities(where, tangent)
    steps = (moving[:, :2] - where[..., None] * moving[:, 2:]).numpy().swapaxes(0, 1) * root
    steps = steps.reshape(-1, tangent)
    made = np.linalg.qr(both.T @ steps)[0]
    values, vectors = np.linalg.eigh(made @ made.T)
    return Fields((x, y), vectors[:, values < 0.5].reshape(2, plain.shape[1], -1))


class Distorted(NamedTuple):
    """The covariance of all warps, and what there is in it of distortions."""

    covariance: Float[np.ndarray, "maps tangent maps tangent"]
    sigma: float
    """Root mean square of the maps' distortions in pixels of the reference, as far as they tell; often far below its
    error."""
    share: float
    """Of the variances, in the mean, that of distortions."""


def covariance(dense: Dense, state: State, of_known: Mapping[int, Float[np.ndarray, "tangent tangent"]]) -> Distorted:
    """Of the steps of all warps (`sandwich.covariance`), with what distortions of the maps do to them.

    What cells have in common is measured by the scores of the fields, too, which are more than those of the warps.
    """
    seen = Scores.of(dense, state)
    if seen is None:
        return Distorted(of_warps(dense, None), math.nan, math.nan)
    noise = _Noise.of(dense, state, seen)
    warps = are_warps(dense)
    own = noise.farther * sandwich(seen.found, seen.scores, warps) / seen.left
    variance, moved = deviation(noise.whitened, noise.shown) ** 2, noise.moved[warps]
    spread = own + variance * moved @ moved.T + of_held(dense, seen, of_known)
    of_fields = variance * np.square(moved).sum(1) / spread.diagonal().clip(min=np.finfo(float).tiny)
    # A field has a mean square of 1 over both axes together; so have a map's, all together, as many as there are.
    sigma = math.sqrt(variance * noise.fields) * dense.coordinates.frame.half
    return Distorted(of_warps(dense, spread), sigma, float(of_fields.mean()))


@dataclass(frozen=True)
class _Noise:
    """The scores of the fields, in units of their noise."""

    whitened: Float[np.ndarray, " shown"]
    """V^(-1/2) g_β"""
    shown: Float[np.ndarray, "shown fields"]
    """V^(-1/2) S"""
    moved: Float[np.ndarray, "free fields"]
    """H⁻¹ H_θβ: by how much the fields move what is free."""
    farther: float
    """What cells have in common."""
    fields: int
    """Of one map."""

    @staticmethod
    def of(dense: Dense, state: State, seen: Scores) -> "_Noise":
        frames = dense.coordinates.frames
        fields = {i: Fields.of(frame, dense.coordinates.kind.tangent_dim) for i, frame in frames.items()}
        apart = [displacements(one, frames, fields) for one in seen.tables]
        both, own, score = _by_fields(dense, seen.tables, apart, seen.free)
        count, free = next(iter(fields.values())).count, len(seen.free)
        moved = seen.found.inverse @ both[:free, free:]
        left = np.concatenate([-moved, np.eye(both.shape[0] - free)])
        shown, of_noise = (0.5 * (part + part.T) for part in (left.T @ both @ left, left.T @ own @ left))
        values, vectors = np.linalg.eigh(of_noise)
        known = values > 1e-8 * values[-1]
        root = vectors[:, known] / np.sqrt(values[known])
        some = root[:, :: max(1, root.shape[1] // COLUMNS)]
        by_cell = -seen.scores @ (moved @ some) + _by_cell(dense, seen, apart, some, count)
        # Noise reaches the next cell, as does the prefilter; what reaches farther is what a distortion has.
        level = float(np.square(by_cell).sum()) / by_cell.shape[1]
        scale = math.sqrt(level * max(1 + ring_sum(seen.number, by_cell, 1), 1.0) / seen.left)
        total = root.T @ (score - seen.scores.sum(0) @ moved)
        return _Noise(total / scale, root.T @ shown / scale, moved, shared(seen.number, by_cell), count)


def displacements(
    one: Table, frames: Mapping[int, Frame], fields: Mapping[int, Fields]
) -> tuple[Float[np.ndarray, "cells 2 fields"], Float[np.ndarray, "cells 2 fields"]]:
    """By how much the fields of both maps move the place at which the one shows what the other does, in the normalised
    coordinates of the map that the overlap is seen from.

    With T between both, n of the one is n' of the other where n' + d_b(n') = T(n + d_a(n)): T is moved, before it acts,
    by d_a(n) - DT⁻¹ d_b(T n) to first order.
    """
    fixed, moving = one.ends
    matrix = change(frames[fixed], frames[moving]).numpy(force=True) @ one.between
    points = np.concatenate([one.points, np.ones_like(one.points[:, :1])], 1) @ matrix.T
    there, depth = points[:, :2] / points[:, 2:], points[:, 2:, None]
    derivative = (matrix[:2, :2] - there[:, :, None] * matrix[2, :2]) / depth
    return fields[fixed].at(one.points), -np.linalg.solve(derivative, fields[moving].at(there))


def _by_fields(
    dense: Dense, tables: Sequence[Table], apart: Sequence[tuple[np.ndarray, np.ndarray]], free: np.ndarray
) -> tuple[Float[np.ndarray, "all all"], Float[np.ndarray, "all all"], Float[np.ndarray, " fields"]]:
    """H and JᵀJ over what is free and all fields, and the scores of the fields."""
    (maps, unknowns), count = dense.free.shape, apart[0][0].shape[-1]
    of_steps, of_fields = (maps, unknowns), (maps, count)
    crossed, squared = np.zeros((2, *of_steps, *of_fields)), np.zeros((2, *of_fields, *of_fields))
    plain, score = np.zeros((2, *of_steps, *of_steps)), np.zeros(of_fields)
    for one, by_map in zip(tables, apart, strict=True):
        for k, product in enumerate((one.both, one.own)):
            for end, by_end in zip(one.ends, one.chain, strict=True):
                for other, by_other in zip(one.ends, one.chain, strict=True):
                    plain[k, end, :, other] += one.weight * by_end.T @ product.sum(0) @ by_other
                for other, moved in zip(one.ends, by_map, strict=True):
                    part = np.einsum("cud,cdk->uk", product[:, :, :2], moved, optimize=True)
                    crossed[k, end, :, other] += one.weight * by_end.T @ part
            for end, by_end in zip(one.ends, by_map, strict=True):
                for other, moved in zip(one.ends, by_map, strict=True):
                    part = np.einsum("cdj,cde,cek->jk", by_end, product[:, :2, :2], moved, optimize=True)
                    squared[k, end, :, other] += one.weight * part
        for end, moved in zip(one.ends, by_map, strict=True):
            score[end] += one.weight * np.einsum("cd,cdk->k", one.scores[:, :2], moved)
    size, every = maps * unknowns, maps * count
    whole = []
    for k in range(2):
        steps = plain[k].reshape(size, size)[np.ix_(free, free)]
        mixed = crossed[k].reshape(size, every)[free]
        whole.append(np.block([[steps, mixed], [mixed.T, squared[k].reshape(every, every)]]))
    return whole[0], whole[1], score.reshape(every)


def _by_cell(
    dense: Dense,
    seen: Scores,
    apart: Sequence[tuple[np.ndarray, np.ndarray]],
    some: Float[np.ndarray, "fields columns"],
    count: int,
) -> Float[np.ndarray, "cells columns"]:
    """The scores of some combinations of the fields, cell by cell."""
    by_map = some.reshape(len(dense.free), count, -1)
    found = np.zeros((len(seen.number), some.shape[1]))
    for one, moved in zip(seen.tables, apart, strict=True):
        rows = np.searchsorted(seen.number, one.cells)
        for end, by_end in zip(one.ends, moved, strict=True):
            found[rows] += one.weight * np.einsum("cd,cdk->ck", one.scores[:, :2], by_end) @ by_map[end]
    return found


def deviation(score: Float[np.ndarray, " shown"], shown: Float[np.ndarray, "shown fields"]) -> float:
    """τ: the root of the mean of τ² under score ~ N(0, I + τ² G Gᵀ), G what is `shown` of the fields.

    Before anything is seen no distortion is as likely as some, and of some log τ is even between `FAINTEST` and
    `STRONGEST`. The mean, as errors are then as large as stated in the mean over that prior.
    """
    vectors, lengths, _ = np.linalg.svd(shown)
    squares, seen = np.zeros(len(score)), np.square(vectors.T @ score)
    squares[: len(lengths)] = np.square(lengths)
    best = float(squares[: max(len(squares) // 4, 1)].mean())
    if not best > 0:
        return 0.0
    possible = np.concatenate([[0.0], np.geomspace(FAINTEST, STRONGEST, STEPS) / math.sqrt(best)])
    variance = 1 + np.multiply.outer(possible**2, squares)
    likelihood = -0.5 * (np.log(variance) + seen / variance).sum(1)
    weight = np.exp(likelihood - likelihood.max())
    weight[0] *= STEPS
    return math.sqrt(float(weight @ possible**2 / weight.sum()))
