"""Symbolic Cholesky on blocks: elimination tree, supernodes merged where that saves time, and the plan of every front.

Liu's elimination tree and row subtrees (SIAM J. Matrix Anal. 11, 1990) give exact column counts; neighbouring
columns of equal structure are fundamental supernodes; a child is merged into its parent where the model of the
front's time (arithmetic on padded tiles, traffic of the update matrix, a constant per front) says that one front is
cheaper than two.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from mslsq.kernels import Kernel
from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import starts_of
from mslsq.linear.cost_models import merging_model, speed
from mslsq.linear.operator_plan import OperatorPlan
from mslsq.linear.sparse.fill_reducing import ATTEMPTS, fill_reducing_order
from mslsq.linear.sparse.fronts import BELOW, WIDTH, Numbering, Placed, by_parent, inverse

_elimination_tree = Kernel("elimination_tree", "nilii")
_postorder = Kernel("postorder", "nii")
_column_counts = Kernel("column_counts", "nliilill")
_column_structures = Kernel("column_structures", "nii?llii")
_merge = Kernel("supernodes", "nliilldiiil")
_fronts_nanoseconds = Kernel("fronts_nanoseconds", "nlldd")


def adjacency(n, rows, columns):
    """Compressed rows (start, neighbour) of the symmetric graph of the off-diagonal pairs."""
    apart = rows != columns
    here = np.concatenate((rows[apart], columns[apart]))
    there = np.concatenate((columns[apart], rows[apart]))
    return starts_of(np.bincount(here, minlength=n)), there[np.argsort(here, kind="stable")].astype(np.int32)


def _tree(order: ndarray, start: ndarray, neighbour: ndarray) -> Int[ndarray, "n"]:
    """Parents (in elimination numbering) of Liu's elimination tree."""
    parent = np.empty(order.size, np.int32)
    _elimination_tree(order.size, order, start, neighbour, parent)
    return parent


def _postordered(parent: ndarray) -> Int[ndarray, "n"]:
    """A postorder of the forest: position -> node."""
    order = np.empty(parent.size, np.int32)
    _postorder(parent.size, np.ascontiguousarray(parent, np.int32), order)
    return order


def _counts(
    sizes: ndarray, order: ndarray, parent: ndarray, start: ndarray, neighbour: ndarray
) -> tuple[Int[ndarray, "n"], Int[ndarray, "n"]]:
    """Blocks and scalars below the diagonal of every column of the factor."""
    blocks, scalars = np.empty(order.size, np.int64), np.empty(order.size, np.int64)
    _column_counts(order.size, sizes, order, parent, start, neighbour, blocks, scalars)
    return blocks, scalars


def _structures(
    order: ndarray, parent: ndarray, wanted: ndarray, blocks: ndarray, start: ndarray, neighbour: ndarray
) -> tuple[Int[ndarray, "n+1"], Int[ndarray, "rows"]]:
    """Row blocks below the diagonal, ascending, of the wanted columns."""
    begin = starts_of(np.where(wanted, blocks, 0))
    rows = np.empty(begin[-1], np.int32)
    _column_structures(order.size, order, parent, wanted, begin, start, neighbour, rows)
    return begin, rows


def _supernodes(
    sizes: ndarray, order: ndarray, parent: ndarray, blocks: ndarray, scalars: ndarray
) -> tuple[ndarray, ndarray, ndarray]:
    """The supernode of every column; the topmost column and (in a postorder) the parent of every supernode."""
    of, tops, parents = (np.empty(order.size, np.int32) for _ in range(3))
    count = np.empty(1, np.int64)
    _merge(order.size, sizes, order, parent, blocks, scalars, merging_model(), of, tops, parents, count)
    return of, tops[: count[0]], parents[: count[0]]


@dataclass(frozen=True, eq=False)
class Elimination(OperatorPlan):
    """The fronts of a factorisation, as `multifrontal.factor` and `multifrontal.solve` read them: on the CPU, where
    their kernels work."""

    factor_size: int
    """Numbers that a factor stores, padding included."""
    stack: int
    """Room for update matrices."""
    tallest: int
    """Rows of the largest front."""
    fronts: Int[Tensor, "fronts 9"]
    entry_start: Int[Tensor, "fronts+1"]
    entries: Int[Tensor, "pairs 6"]
    """Blocks of the matrix, sorted by front: source, strides by row and by column, height, width, target."""
    child_start: Int[Tensor, "fronts+1"]
    children: Int[Tensor, "children"]
    run_start: Int[Tensor, "fronts+1"]
    runs: Int[Tensor, "runs 3"]
    """Consecutive rows of a front inside its parent: first row, row in the parent, length."""
    scalar: Int[Tensor, "places"]
    """The unknown at every place of the padded elimination order, -1 for padding."""
    row_start: Int[Tensor, "fronts+1"]
    row_places: Int[Tensor, "rows"]
    """The places of the rows below every panel."""


def nanoseconds_of(fronts: Int[ndarray, "fronts columns"]) -> float:
    """The time of one factorisation and solve on one core by estimate: half of the truth or less where the update
    matrices of thousands of tiny fronts do not stay in the cache (large bundle adjustments)."""
    total = np.empty(1)
    width, below = (np.ascontiguousarray(fronts[:, column]) for column in (WIDTH, BELOW))
    _fronts_nanoseconds(len(width), width, below, np.array(speed().fronts), total)
    return float(total[0])


def placed(
    sizes: Int[ndarray, "n"], rows: Int[ndarray, "pairs"], columns: Int[ndarray, "pairs"], attempts: int = ATTEMPTS
) -> Placed:
    """The fronts of a fill-reducing order of blocks with these pairs, the best of some attempts."""
    graph = adjacency(len(sizes), rows, columns)
    return Placed.of(_numbered(sizes, fill_reducing_order(sizes, *graph, attempts), *graph))


def eliminated(
    placed: Placed,
    first: Int[ndarray, "n+1"],
    rows: Int[ndarray, "pairs"],
    columns: Int[ndarray, "pairs"],
    offsets: Int[ndarray, "pairs"],
) -> Elimination:
    """What kernels read of these fronts: pairs (rows, columns) at `offsets` of the values.

    `first` are the blocks' first unknowns.
    """
    entries = placed.entries(rows, columns, offsets)
    children = by_parent(placed.numbering.up)
    below = placed.places_below()
    arrays = (placed.fronts, *entries, *children, *placed.runs(), placed.unknowns(first), *below)
    return Elimination(placed.size, placed.stack, placed.tallest, *kept_tensors(arrays, torch.device("cpu")))


def _numbered(sizes: ndarray, order: ndarray, start: ndarray, neighbour: ndarray) -> Numbering:
    """The final numbering: fronts in a postorder of their tree, blocks inside a front in elimination order."""
    n = sizes.size
    parent = _tree(order, start, neighbour)
    post = _postordered(parent)
    order, parent, place = order[post], parent[post], inverse(post)
    parent = np.where(parent >= 0, place[parent], parent).astype(np.int32)
    blocks, scalars = _counts(sizes, order, parent, start, neighbour)
    front, tops, parents = _supernodes(sizes, order, parent, blocks, scalars)
    wanted = np.zeros(n, np.bool_)
    wanted[tops] = True
    begin, below_blocks = _structures(order, parent, wanted, blocks, start, neighbour)

    sequence = _postordered(parents)
    rank = inverse(sequence)
    tops, up = tops[sequence], parents[sequence].astype(np.int64)
    up = np.where(up >= 0, rank[up], up)
    front = rank[front]
    final = np.argsort(front, kind="stable")
    row_front, row_block = np.repeat(front, np.diff(begin)), inverse(final)[below_blocks]
    keys = np.sort(row_front.astype(np.int64) * n + row_block)
    order = order[final]
    return Numbering(order, sizes[order], front[final].astype(np.int64), up, scalars[tops], keys)
