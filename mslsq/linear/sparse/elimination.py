"""Symbolic Cholesky on blocks: elimination tree, supernodes merged where that saves time, and the plan of every front.

Liu's elimination tree and row subtrees (SIAM J. Matrix Anal. 11, 1990) give exact column counts; neighbouring
columns of equal structure are fundamental supernodes; a child is merged into its parent where the model of the
front's time (arithmetic on padded tiles, traffic of the update matrix, a constant per front) says that one front is
cheaper than two.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from mslsq.kernels import Kernel
from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import starts_of
from mslsq.linear.cost_models import front_model
from mslsq.linear.operator_plan import OperatorPlan

TILE = 8
"""What rows and columns of fronts are padded to."""

# columns of the table of fronts
WIDTH, PADDED, BELOW, PADDED_BELOW, LD, PANEL, UPDATE, UPDATE_LD, FIRST = range(9)

_elimination_tree = Kernel("elimination_tree", "nilii")
_postorder = Kernel("postorder", "nii")
_column_counts = Kernel("column_counts", "nliilill")
_column_structures = Kernel("column_structures", "nii?llii")
_merge = Kernel("supernodes", "nliilldiiil")
_update_stacks = Kernel("update_stacks", "nllll")
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
    _merge(order.size, sizes, order, parent, blocks, scalars, front_model(), of, tops, parents, count)
    return of, tops[: count[0]], parents[: count[0]]


def _stacks(up: Int[ndarray, "fronts"], needs: Int[ndarray, "fronts"]) -> tuple[Int[ndarray, "fronts"], int]:
    """Where the update matrices lie, on two stacks one behind the other, and the room for both."""
    place, room = np.empty(up.size, np.int64), np.empty(1, np.int64)
    _update_stacks(up.size, up, needs, place, room)
    return place, int(room[0])


def _padded(count):
    return (count + TILE - 1) // TILE * TILE


def _staggered(ld):
    """An odd multiple of 8: columns at a distance of a power of two would share cache sets."""
    return np.where((ld // TILE % 2 == 1) | (ld < 128), ld, ld + TILE)


def _inverse(order):
    inverse = np.empty_like(order)
    inverse[order] = np.arange(order.size, dtype=order.dtype)
    return inverse


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

    @cached_property
    def nanoseconds(self) -> float:
        """The time of one factorisation on one core by the model that also merges supernodes: right for pose graphs, a
        third of the truth where thousands of tiny fronts add to a few large ones (bundle adjustment)."""
        total = np.empty(1)
        width, below = (np.ascontiguousarray(self.fronts.numpy()[:, column]) for column in (WIDTH, BELOW))
        _fronts_nanoseconds(len(width), width, below, front_model(), total)
        return float(total[0])


def eliminated(sizes, first, order, start, neighbour, rows, columns, offsets) -> Elimination:
    """Fronts from an elimination order of the blocks: pairs (rows, columns) at `offsets` of the values.

    `first` are the blocks' first unknowns, (start, neighbour) the graph.
    """
    n = sizes.size
    parent = _tree(order, start, neighbour)
    post = _postordered(parent)
    order, parent, place = order[post], parent[post], _inverse(post)
    parent = np.where(parent >= 0, place[parent], parent).astype(np.int32)
    blocks, scalars = _counts(sizes, order, parent, start, neighbour)
    front, tops, parents = _supernodes(sizes, order, parent, blocks, scalars)
    wanted = np.zeros(n, np.bool_)
    wanted[tops] = True
    begin, below_blocks = _structures(order, parent, wanted, blocks, start, neighbour)

    # the final numbering: fronts in a postorder of their tree, blocks inside a front in elimination order
    sequence = _postordered(parents)
    rank = _inverse(sequence)
    tops, up = tops[sequence], parents[sequence].astype(np.int64)
    up = np.where(up >= 0, rank[up], up)
    front = rank[front]
    final = np.argsort(front, kind="stable")
    row_front, row_block = np.repeat(front, np.diff(begin)), _inverse(final)[below_blocks]
    front, order = front[final].astype(np.int64), order[final]
    size, place = sizes[order], _inverse(order)

    # the table of fronts
    count = tops.size
    fronts = np.zeros((count, 9), np.int64)
    width = np.bincount(front, weights=size, minlength=count).astype(np.int64)
    below = scalars[tops]
    padded, padded_below = _padded(width), _padded(below)
    ld, update_ld = _staggered(padded + padded_below), _staggered(padded_below)
    panels, places = starts_of(ld * padded), starts_of(padded)
    fronts[:, WIDTH], fronts[:, PADDED], fronts[:, BELOW], fronts[:, PADDED_BELOW] = width, padded, below, padded_below
    fronts[:, LD], fronts[:, PANEL], fronts[:, UPDATE_LD], fronts[:, FIRST] = ld, panels[:-1], update_ld, places[:-1]
    fronts[:, UPDATE], stack = _stacks(up, update_ld * padded_below)

    # a block's unknowns inside its own panel, and in the padded elimination order; the last slot there is always zero
    before = starts_of(size)[:-1]
    local = before - before[np.searchsorted(front, np.arange(count))][front]
    block_place = places[front] + local
    scalar = np.full(places[-1] + 1, -1, np.int64)
    within = np.arange(first[-1]) - np.repeat(before, size)
    scalar[np.repeat(block_place, size) + within] = np.repeat(first[order], size) + within

    # rows below the panels, ascending within a front, and their unknowns
    row_keys = np.sort(row_front.astype(np.int64) * n + row_block)
    row_front, row_block = row_keys // n, row_keys % n
    height = size[row_block]
    row_before = starts_of(height)[:-1]
    row_local = row_before - starts_of(below)[:-1][row_front]
    row_start = starts_of(padded_below)
    row_places = np.full(row_start[-1], places[-1], np.int32)
    within = np.arange(height.sum()) - np.repeat(row_before, height)
    row_places[np.repeat(row_start[row_front] + row_local, height) + within] = (
        np.repeat(block_place[row_block], height) + within
    )

    def position(k, block):
        """Row of a block inside front k."""
        below_it = (
            row_local[np.minimum(np.searchsorted(row_keys, k * n + block), row_keys.size - 1)] if row_keys.size else 0
        )
        return np.where(front[block] == k, local[block], padded[k] + below_it)

    # entries of A: source, strides by row and by column, height, width, target in the factor
    i, j = place[rows].astype(np.int64), place[columns].astype(np.int64)
    upright = i >= j
    low, high = np.minimum(i, j), np.maximum(i, j)
    k = front[low]
    one = np.ones_like(offsets)
    entries = np.stack(
        (
            offsets,
            np.where(upright, size[j], one),
            np.where(upright, one, size[j]),
            size[high],
            size[low],
            panels[k] + local[low] * ld[k] + position(k, high),
        ),
        1,
    )[np.argsort(k, kind="stable")]
    entry_start = starts_of(np.bincount(k, minlength=count))

    # runs of consecutive rows of a front inside its parent: first row, row in the parent, length; none across the
    # border between panel and update matrix
    target = position(up[row_front], row_block)
    joined = (
        (target[1:] == target[:-1] + height[:-1])
        & (row_front[1:] == row_front[:-1])
        & (target[1:] != padded[up[row_front[1:]]])
    )
    heads = np.flatnonzero(np.concatenate((np.ones(min(1, joined.size + 1), bool), ~joined))[: row_keys.size])
    lengths = np.add.reduceat(height, heads) if heads.size else height
    runs = np.stack((row_local[heads], target[heads], lengths), 1)
    run_start = starts_of(np.bincount(row_front[heads], minlength=count))
    inner = np.flatnonzero(up >= 0)
    children = inner[np.argsort(up[inner], kind="stable")]
    child_start = starts_of(np.bincount(up[inner], minlength=count))
    arrays = (fronts, entry_start, entries, child_start, children, run_start, runs, scalar, row_start, row_places)
    sizes = int(panels[-1]), int(stack), int((padded + padded_below).max())
    return Elimination(*sizes, *kept_tensors(arrays, torch.device("cpu")))
