"""Chosen blocks of the inverse of a factored block-sparse matrix, without the inverse.

Takahashi, Fagan, Chen, "Formation of a sparse bus impedance matrix and its application to short circuit study" (1973),
front by front: with A = L Lᵀ and the rows R below the columns C of a front, X = L_RC L_CC⁻¹ gives the blocks of Z = A⁻¹

    Z_RC = −Z_RR X,    Z_CC = L_CC⁻ᵀ L_CC⁻¹ + Xᵀ Z_RR X,

and Z_RR lies within the front's parent. Only the fronts from a chosen block up to its root are visited: the
covariance of one pose of sphere2500 needs a few of them, that of all poses each front once.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.linalg import lapack

from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.sparse.fronts import BELOW, FIRST, LD, PADDED, PANEL, WIDTH

Factors = Float[ndarray, "batch factor"]
"""Of `multifrontal.factor`."""


def diagonal_blocks(
    structure: BlockStructure, factors: Factors, definite: Bool[ndarray, "batch"], blocks: Int[ndarray, "chosen"]
) -> Iterator[tuple[int, Float[ndarray, "batch d d"]]]:
    """(position in `blocks`, diagonal block of A⁻¹) for every chosen block, in the order of elimination from the end.

    NaN for the entries of the batch that are not definite. Computed in float64.
    """
    plan = structure.elimination
    fronts, runs, scalar = plan.fronts.numpy(), plan.runs.numpy(), plan.scalar.numpy()
    child_start, children, run_start = plan.child_start.numpy(), plan.children.numpy(), plan.run_start.numpy()
    place = np.full(structure.num_unknowns, -1, np.int64)
    place[scalar[scalar >= 0]] = np.flatnonzero(scalar >= 0)
    first = place[structure.starts[np.asarray(blocks, np.int64)]]
    home = np.searchsorted(fronts[:, FIRST], first, "right") - 1
    parent = np.full(len(fronts), -1)
    parent[children] = np.repeat(np.arange(len(fronts)), np.diff(child_start))
    wanted = _with_ancestors(parent, home)
    remaining = np.bincount(parent[wanted & (parent >= 0)], minlength=len(fronts))
    order = np.argsort(home, kind="stable")
    chosen = np.searchsorted(home[order], np.arange(len(fronts) + 1))
    kept: dict[int, ndarray] = {}
    for front in np.flatnonzero(wanted)[::-1]:
        up = int(parent[front])
        rows = _rows_in_parent(runs[run_start[front] : run_start[front + 1]], fronts[up]) if up >= 0 else None
        below = None if rows is None else kept[up][:, rows[:, None], rows]
        inverse = _of_front(factors, definite, fronts[front], below)
        if up >= 0:
            remaining[up] -= 1
            if remaining[up] == 0:
                del kept[up]
        if remaining[front]:
            kept[int(front)] = inverse
        for number in order[chosen[front] : chosen[front + 1]]:
            local = np.arange(int(structure.block_sizes[blocks[number]])) + first[number] - fronts[front, FIRST]
            yield int(number), inverse[:, local[:, None], local]


def squared_pivots(structure: BlockStructure, factors: Factors) -> Float[ndarray, "batch unknowns"]:
    """The squared diagonal of L by unknown: what of each column those before it do not explain."""
    fronts, scalar = structure.elimination.fronts.numpy(), structure.elimination.scalar.numpy()
    found = np.empty((len(factors), structure.num_unknowns))
    widths = fronts[:, WIDTH]
    within = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
    at = np.repeat(fronts[:, PANEL], widths) + within * (np.repeat(fronts[:, LD], widths) + 1)
    unknown = scalar[np.repeat(fronts[:, FIRST], widths) + within]
    with np.errstate(divide="ignore", over="ignore"):  # an entry that could not be factored
        found[:, unknown] = factors[:, at].astype(np.float64) ** -2  # of the diagonal the inverse is stored
    return found


def _with_ancestors(parent: ndarray, fronts: ndarray) -> ndarray:
    """Which fronts are chosen, or above a chosen one. Parents come after their children."""
    wanted = np.zeros(len(parent), bool)
    wanted[fronts] = True
    for front in np.flatnonzero(wanted):
        up = parent[front]
        while up >= 0 and not wanted[up]:
            wanted[up] = True
            up = parent[up]
    return wanted


def _rows_in_parent(runs: ndarray, parent: ndarray) -> ndarray:
    """Where the rows of a front stand in its parent, counted without padding."""
    position = np.concatenate([np.arange(at, at + count) for _, at, count in runs]) if len(runs) else np.zeros(0, int)
    return np.where(position < parent[PADDED], position, position - parent[PADDED] + parent[WIDTH])


def _of_front(
    factors: Factors, definite: ndarray, front: ndarray, below: ndarray | None
) -> Float[ndarray, "batch rows rows"]:
    """Z on the columns of a front and the rows below them, where Z of the rows below is known."""
    width, padded, rows = front[WIDTH], front[PADDED], front[BELOW]
    panel = factors[:, front[PANEL] : front[PANEL] + front[LD] * padded].reshape(-1, padded, front[LD])
    result = np.full((len(panel), width + rows, width + rows), np.nan)
    for entry in np.flatnonzero(definite):
        columns = panel[entry, :width].T.astype(np.float64)
        own = np.tril(columns[:width])
        np.fill_diagonal(own, 1 / own.diagonal())
        inverse, _ = lapack.dtrtri(own, lower=1)  # pyright: ignore[reportAttributeAccessIssue]
        result[entry, :width, :width] = inverse.T @ inverse
        if rows:
            assert below is not None  # a front with rows below it has a parent
            x = columns[padded : padded + rows] @ inverse
            z = below[entry]
            zx = z @ x
            result[entry, width:, width:] = z
            result[entry, width:, :width] = -zx
            result[entry, :width, width:] = -zx.T
            result[entry, :width, :width] += x.T @ zx
    return result
