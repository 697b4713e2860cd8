"""Symbolic Cholesky on blocks: elimination tree, supernodes merged where that saves time, and the plan of every front.

Liu's elimination tree and row subtrees (SIAM J. Matrix Anal. 11, 1990) give exact column counts; neighbouring
columns of equal structure are fundamental supernodes; a child is merged into its parent where the model of the
front's time (arithmetic on padded tiles, traffic of the update matrix, a constant per front) says that one front is
cheaper than two.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from mslsq.linear.sparse.multifrontal import BELOW, FIRST, LD, PADDED, PADDED_BELOW, PANEL, UPDATE, UPDATE_LD, WIDTH
from mslsq.linear.sparse.register_tiles import TILE


def adjacency(n, rows, columns):
    """Compressed rows (start, neighbour) of the symmetric graph of the off-diagonal pairs."""
    apart = rows != columns
    here = np.concatenate((rows[apart], columns[apart]))
    there = np.concatenate((columns[apart], rows[apart]))
    return _starts(np.bincount(here, minlength=n)), there[np.argsort(here, kind="stable")].astype(np.int32)


def _starts(counts):
    """Where each of consecutive groups begins, and where the last ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))


@njit(cache=True, nogil=True)
def _tree(order, start, neighbour):
    """Parents (in elimination numbering) of Liu's elimination tree, by paths compressed to the ancestor."""
    n = order.size
    place = np.empty(n, np.int32)
    for k in range(n):
        place[order[k]] = k
    parent = np.full(n, -1, np.int32)
    ancestor = np.full(n, -1, np.int32)
    for i in range(n):
        for e in range(start[order[i]], start[order[i] + 1]):
            k = place[neighbour[e]]
            while k != -1 and k < i:
                following = ancestor[k]
                ancestor[k] = i
                if following == -1:
                    parent[k] = i
                k = following
    return parent


@njit(cache=True, nogil=True)
def _postorder(parent):
    """A postorder of the forest: position -> node."""
    n = parent.size
    head = np.full(n, -1, np.int32)
    sibling = np.full(n, -1, np.int32)
    for i in range(n - 1, -1, -1):
        if parent[i] >= 0:
            sibling[i] = head[parent[i]]
            head[parent[i]] = i
    order = np.empty(n, np.int32)
    stack = np.empty(n, np.int32)
    k = 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        top = 0
        stack[0] = root
        while top >= 0:
            i = stack[top]
            if head[i] >= 0:
                top += 1
                stack[top] = head[i]
                head[i] = sibling[head[i]]
            else:
                order[k] = i
                k += 1
                top -= 1
    return order


@njit(cache=True, nogil=True)
def _counts(sizes, order, parent, start, neighbour):
    """Blocks and scalars below the diagonal of every column of the factor: each row walks its subtree once."""
    n = order.size
    place = np.empty(n, np.int32)
    for k in range(n):
        place[order[k]] = k
    mark = np.full(n, -1, np.int32)
    blocks = np.zeros(n, np.int64)
    scalars = np.zeros(n, np.int64)
    for i in range(n):
        mark[i] = i
        for e in range(start[order[i]], start[order[i] + 1]):
            k = place[neighbour[e]]
            if k < i:
                while mark[k] != i:
                    mark[k] = i
                    blocks[k] += 1
                    scalars[k] += sizes[order[i]]
                    k = parent[k]
    return blocks, scalars


@njit(cache=True, nogil=True)
def _structures(order, parent, wanted, blocks, start, neighbour):
    """Row blocks below the diagonal, ascending, of the wanted columns."""
    n = order.size
    place = np.empty(n, np.int32)
    for k in range(n):
        place[order[k]] = k
    begin = np.zeros(n + 1, np.int64)
    for k in range(n):
        begin[k + 1] = begin[k] + (blocks[k] if wanted[k] else 0)
    at = begin[:n].copy()
    rows = np.empty(begin[n], np.int32)
    mark = np.full(n, -1, np.int32)
    for i in range(n):
        mark[i] = i
        for e in range(start[order[i]], start[order[i] + 1]):
            k = place[neighbour[e]]
            if k < i:
                while mark[k] != i:
                    mark[k] = i
                    if wanted[k]:
                        rows[at[k]] = i
                        at[k] += 1
                    k = parent[k]
    return begin, rows


@njit(cache=True, nogil=True)
def front_nanoseconds(width, below, model):
    """Nanoseconds of a front of `width` columns and `below` rows under them (fitted on one Zen 5 core)."""
    w = (width + TILE - 1) // TILE * TILE
    r = (below + TILE - 1) // TILE * TILE
    arithmetic = w * w * w / 3.0 + 1.0 * w * w * r + 1.0 * width * r * r
    return model[0] + model[1] * w + model[2] * arithmetic + model[3] * w * (w + r) + model[4] * r * r


@njit(cache=True, nogil=True)
def _supernodes(sizes, order, parent, blocks, scalars, model):
    """The supernode of every column, and (in a postorder) the parents, first merging equal columns, then cheap ones."""
    n = order.size
    of = np.empty(n, np.int32)
    count = 0
    for j in range(n):
        if j > 0 and parent[j - 1] == j and blocks[j - 1] == blocks[j] + 1:
            of[j] = count - 1
        else:
            of[j] = count
            count += 1
    width = np.zeros(count, np.int64)
    last = np.zeros(count, np.int32)
    for j in range(n):
        width[of[j]] += sizes[order[j]]
        last[of[j]] = j
    head = np.full(count, -1, np.int32)
    sibling = np.full(count, -1, np.int32)
    into = np.full(count, -1, np.int32)
    up = np.full(count, -1, np.int32)
    for s in range(count):
        below = scalars[last[s]]
        # largest update matrix first: it saves most
        changed = True
        while changed:
            changed = False
            best = -1
            best_gain = 0.0
            before = -1
            best_before = -1
            c = head[s]
            while c >= 0:
                under = scalars[last[c]]
                gain = front_nanoseconds(width[c], under, model) + front_nanoseconds(width[s], below, model)
                gain -= front_nanoseconds(width[c] + width[s], below, model)
                if gain > best_gain:
                    best, best_gain, best_before = c, gain, before
                before = c
                c = sibling[c]
            if best >= 0:
                changed = True
                into[best] = s
                width[s] += width[best]
                if best_before >= 0:
                    sibling[best_before] = sibling[best]
                else:
                    head[s] = sibling[best]
        p = parent[last[s]]
        if p >= 0:
            up[s] = of[p]
            sibling[s] = head[of[p]]
            head[of[p]] = s
    for s in range(count - 1, -1, -1):  # merged into the topmost
        if into[s] >= 0 and into[into[s]] >= 0:
            into[s] = into[into[s]]
    # number the survivors
    number = np.full(count, -1, np.int32)
    survivors = 0
    for s in range(count):
        if into[s] < 0:
            number[s] = survivors
            survivors += 1
    tops = np.empty(survivors, np.int32)
    parents = np.full(survivors, -1, np.int32)
    for s in range(count):
        if into[s] < 0:
            tops[number[s]] = last[s]
            if up[s] >= 0:
                q = up[s]
                parents[number[s]] = number[into[q]] if into[q] >= 0 else number[q]
    for j in range(n):
        s = of[j]
        of[j] = number[into[s]] if into[s] >= 0 else number[s]
    return of, tops, parents


@njit(cache=True, nogil=True)
def _stacks(up, needs):
    """Where the update matrices lie, on two stacks one behind the other, and the room for both.

    Fronts of even depth push onto one, fronts of odd depth onto the other: a front's children lie on top of one stack
    while its own update matrix goes onto the other, and nothing is ever moved.
    """
    count = up.size
    odd = np.zeros(count, np.bool_)
    for k in range(count - 1, -1, -1):
        if up[k] >= 0:
            odd[k] = not odd[up[k]]
    first_child = np.full(count, -1, np.int64)
    place = np.zeros(count, np.int64)
    top = np.zeros(2, np.int64)
    peak = np.zeros(2, np.int64)
    for k in range(count):
        own = int(odd[k])
        place[k] = top[own]
        top[own] += needs[k]
        peak[own] = max(peak[own], top[own])
        if first_child[k] >= 0:
            top[1 - own] = place[first_child[k]]
        if up[k] >= 0 and first_child[up[k]] < 0:
            first_child[up[k]] = k
    for k in range(count):
        if odd[k]:
            place[k] += peak[0]
    return place, peak[0] + peak[1]


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
class Plan:
    """What `multifrontal.factor` and `multifrontal.solve` read: see `plan` for each."""

    order: np.ndarray
    factor_size: int
    stack: int
    tallest: int
    flops: float
    numeric: tuple[np.ndarray, ...]
    triangular: tuple[np.ndarray, ...]


def plan(sizes, first, order, start, neighbour, rows, columns, offsets, model):
    """Fronts from an elimination order of the blocks: pairs (rows, columns) at `offsets` of the values.

    `first` are the blocks' first unknowns, (start, neighbour) the graph, `model` the five costs of `_time`.
    """
    n = sizes.size
    parent = _tree(order, start, neighbour)
    post = _postorder(parent)
    order, parent, place = order[post], parent[post], _inverse(post)
    parent = np.where(parent >= 0, place[parent], parent)
    blocks, scalars = _counts(sizes, order, parent, start, neighbour)
    front, tops, parents = _supernodes(sizes, order, parent, blocks, scalars, model)
    wanted = np.zeros(n, np.bool_)
    wanted[tops] = True
    begin, below_blocks = _structures(order, parent, wanted, blocks, start, neighbour)

    # the final numbering: fronts in a postorder of their tree, blocks inside a front in elimination order
    sequence = _postorder(parents)
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
    panels, places = _starts(ld * padded), _starts(padded)
    fronts[:, WIDTH], fronts[:, PADDED], fronts[:, BELOW], fronts[:, PADDED_BELOW] = width, padded, below, padded_below
    fronts[:, LD], fronts[:, PANEL], fronts[:, UPDATE_LD], fronts[:, FIRST] = ld, panels[:-1], update_ld, places[:-1]
    fronts[:, UPDATE], stack = _stacks(up, update_ld * padded_below)
    w, r = width.astype(float), below.astype(float)
    flops = float((w**3 / 3 + w**2 * r + w * r**2).sum())

    # a block's unknowns inside its own panel, and in the padded elimination order; the last slot there is always zero
    before = _starts(size)[:-1]
    local = before - before[np.searchsorted(front, np.arange(count))][front]
    block_place = places[front] + local
    scalar = np.full(places[-1] + 1, -1, np.int64)
    within = np.arange(first[-1]) - np.repeat(before, size)
    scalar[np.repeat(block_place, size) + within] = np.repeat(first[order], size) + within

    # rows below the panels, ascending within a front, and their unknowns
    row_keys = np.sort(row_front.astype(np.int64) * n + row_block)
    row_front, row_block = row_keys // n, row_keys % n
    height = size[row_block]
    row_before = _starts(height)[:-1]
    row_local = row_before - _starts(below)[:-1][row_front]
    row_start = _starts(padded_below)
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
    entry_start = _starts(np.bincount(k, minlength=count))

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
    run_start = _starts(np.bincount(row_front[heads], minlength=count))
    inner = np.flatnonzero(up >= 0)
    children = inner[np.argsort(up[inner], kind="stable")]
    child_start = _starts(np.bincount(up[inner], minlength=count))
    return Plan(
        order=order,
        factor_size=int(panels[-1]),
        stack=int(stack),
        tallest=int((padded + padded_below).max()),
        flops=flops,
        numeric=(fronts, entry_start, entries, child_start, children, run_start, runs, scalar),
        triangular=(fronts, row_start, row_places, scalar),
    )
