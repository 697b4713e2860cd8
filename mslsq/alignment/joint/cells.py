"""The overlaps of a mosaic by cells of the scene: scores, and what they change by."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
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

SUBSET = 1 << 14
"""About as many samples of an overlap tell how scores change, cell by cell."""

LEVERS = 1 << 22
"""Numbers that are held at a time for `Scores.leverage`: of many maps, of few cells."""


@dataclass(frozen=True)
class Table:
    """One overlap. What is local is over (tangent, log gain, bias) between its two maps, seen from the one."""

    ends: tuple[int, int]
    weight: float
    chain: tuple[Float[np.ndarray, "unknowns unknowns"], Float[np.ndarray, "unknowns unknowns"]]
    """Of the local unknowns by the steps of both maps (`Coordinates.chain`)."""
    between: Float[np.ndarray, "3 3"]
    """In the normalised coordinates of the map that it is seen from."""
    cells: Int[np.ndarray, " cells"]
    points: Float[np.ndarray, "cells 2"]
    """The middle of the samples of every cell, in the same coordinates."""
    scores: Float[np.ndarray, "cells unknowns"]
    own: Float[np.ndarray, "cells unknowns unknowns"]
    """JᵀJ"""
    both: Float[np.ndarray, "cells unknowns unknowns"]
    """The product with the other map's own Jacobian, in which noise is no detail."""
    bread: Float[np.ndarray, "unknowns unknowns"]
    """The same of all cells and all samples."""


@dataclass(frozen=True)
class Scores:
    """The scores of all overlaps, cell by cell, and what they change by with what is free."""

    tables: list[Table]
    number: Int[np.ndarray, " cells"]
    scores: Float[np.ndarray, "cells free"]
    found: Curvature
    bread: Float[np.ndarray, "size size"]
    """H over the unknowns of all maps."""
    free: Int[np.ndarray, " free"]
    """Which unknowns are free."""

    @staticmethod
    def of(dense: Dense, state: State, pixel: float = 1.0) -> "Scores | None":
        """At a minimum. None where the pixels leave a direction open. `pixel` is the side of a sample in pixels of the
        reference."""
        maps, unknowns = dense.free.shape
        size = maps * unknowns
        tables = [table(dense, state, n, CELL * pixel) for n in range(len(dense.overlaps))]
        number = np.unique(np.concatenate([one.cells for one in tables]))
        scores, bread = np.zeros((len(number), maps, unknowns)), np.zeros((maps, unknowns, maps, unknowns))
        for one in tables:
            rows = np.searchsorted(number, one.cells)
            for index, by_one in zip(one.ends, one.chain, strict=True):
                scores[rows, index] += one.weight * one.scores @ by_one
                for other, by_other in zip(one.ends, one.chain, strict=True):
                    bread[index, :, other] += one.weight * by_one.T @ one.bread @ by_other
        free, normal = np.flatnonzero(dense.free.reshape(-1) > 0), dense.system(state)
        flat, both = bread.reshape(size, size), np.ix_(free, free)
        found = curvature(normal.matrix[both], flat[both], normal.samples / dense.correlated)
        if found is None:
            return None
        return Scores(tables, number, scores.reshape(len(number), size)[:, free], found, flat, free)

    @property
    def left(self) -> float:
        """The share of the scatter of scores that the fit leaves."""
        return max(1 - self.leverage, 1 / len(self.number))

    @cached_property
    def leverage(self) -> float:
        """Σ tr L_c² / Σ tr L_c, with L_c the share of cell c in JᵀJ, in its metric.

        Of scores whose noise is that of independent pixels the fit follows as much: E[s_c s_cᵀ] is L_c - L_c² in place
        of L_c (Bell and McCaffrey, "Bias reduction in standard errors for linear regression with multi-stage samples",
        2002). A few cells that hold much of the detail have most of it.
        """
        unknowns, count = self.tables[0].own.shape[-1], len(self.free)
        root = np.zeros((len(self.bread), count))
        root[self.free] = self.found.root
        root = root.reshape(-1, unknowns, count)
        step = -(-len(self.number) * count**2 // LEVERS)
        chosen = self.number[:: max(step, 1)]
        shares = np.zeros((len(chosen), count, count))
        for one in self.tables:
            at = np.searchsorted(chosen, one.cells).clip(max=len(chosen) - 1)
            known = chosen[at] == one.cells
            local = one.chain[0] @ root[one.ends[0]] + one.chain[1] @ root[one.ends[1]]
            shares[at[known]] += one.weight * (local.T @ one.own[known] @ local)
        total = float(np.trace(shares, axis1=1, axis2=2).sum())
        return float(np.square(shares).sum()) / total if total > 0 else 0.0


def table(dense: Dense, state: State, position: int, side: float) -> Table:
    """One of the overlaps by cells of some side."""
    overlap = dense.overlaps[position]
    ends = overlap.fixed, overlap.moving
    at, unknowns = dense.coordinates.between(state, *ends), dense.free.shape[1]
    few = -(-overlap.count // SUBSET)
    bread = np.zeros((unknowns, unknowns))
    of_all, of_some = _Sums(), _Sums()
    for seen in overlap.samples(at):
        jacobian = seen.jacobian * overlap.influence(seen.residual)[:, None, None]
        bread += torch.einsum("ncu,ncv->uv", jacobian, seen.of_target).numpy(force=True)
        score = (jacobian * seen.residual[..., None]).sum(1)
        where = _cells(dense, state, overlap, seen, side)
        of_all.add(where, torch.cat([score, seen.points, torch.ones_like(score[:, :1])], 1))
        some = [part[::few] for part in (jacobian, seen.jacobian, seen.of_target)]
        products = [torch.einsum("ncu,ncv->nuv", some[0], part).flatten(1) for part in some[1:]]
        of_some.add(where[::few], few * torch.cat(products, 1))
    cells = np.unique(np.concatenate(of_all.cells))
    sums, products = of_all.total(cells), of_some.total(cells)
    own, both = products.reshape(len(cells), 2, unknowns, unknowns).swapaxes(0, 1)
    points = sums[:, unknowns:-1] / sums[:, -1:]
    chain, weight = dense.coordinates.chain(state, *ends), float(dense.weights[position])
    both, bread = 0.5 * (both + both.swapaxes(1, 2)), 0.5 * (bread + bread.T)
    return Table(ends, weight, chain, at.matrix, cells, points, sums[:, :unknowns], own, both, bread)


@dataclass
class _Sums:
    """Of columns of numbers over cells, some samples at a time."""

    cells: list[Int[np.ndarray, " some"]] = field(default_factory=list)
    sums: list[Float[np.ndarray, "some columns"]] = field(default_factory=list)

    def add(self, where: Int[np.ndarray, " n"], columns: Float[Tensor, "n columns"]) -> None:
        found, inverse = np.unique(where, return_inverse=True)
        self.cells.append(found)
        by_column = columns.numpy(force=True).T
        self.sums.append(np.stack([np.bincount(inverse, column, len(found)) for column in by_column], -1))

    def total(self, cells: Int[np.ndarray, " cells"]) -> Float[np.ndarray, "cells columns"]:
        whole = np.zeros((len(cells), self.sums[0].shape[1]))
        for found, sums in zip(self.cells, self.sums, strict=True):
            whole[np.searchsorted(cells, found)] += sums
        return whole


def _cells(dense: Dense, state: State, overlap: Overlap, seen: Seen, side: float) -> Int[np.ndarray, " n"]:
    """Which cell of the scene each sample is in, as one number."""
    frame = dense.coordinates.frame
    out_of = dense.coordinates.out_of(state, overlap.fixed)
    points: Tensor = seen.points
    moved = dense.coordinates.kind.from_matrix(points.new_tensor(out_of)).act(points)
    cell = (moved * (frame.half / side)).floor().clamp(-(2**20), 2**20).long()
    return (cell[:, 0] + cell[:, 1] * ROW).numpy(force=True)
