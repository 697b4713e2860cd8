"""Symbolic Cholesky on blocks: elimination tree, supernodes merged where that saves time, and the plan of every front.

Liu's elimination tree and row subtrees (SIAM J. Matrix Anal. 11, 1990) give exact column counts; neighbouring
columns of equal structure are fundamental supernodes; a child is merged into its parent where the model of the
front's time (arithmetic on padded tiles, traffic of the update matrix, a constant per front) says that one front is
cheaper than two.
"""

import numpy as np
from numba import njit

from mslsq.linear.multifrontal import BELOW, FIRST, LD, PADDED, PADDED_BELOW, PANEL, UPDATE, UPDATE_LD, WIDTH
from mslsq.linear.register_tiles import TILE


@njit(cache=True, nogil=True)
def adjacency(n, rows, columns):
    """Compressed rows (start, neighbour) of the symmetric graph of the off-diagonal pairs."""
    start = np.zeros(n + 1, np.int64)
    for e in range(rows.size):
        if rows[e] != columns[e]:
            start[rows[e] + 1] += 1
            start[columns[e] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i]
    at = start[:n].copy()
    neighbour = np.empty(start[n], np.int32)
    for e in range(rows.size):
        i, j = rows[e], columns[e]
        if i != j:
            neighbour[at[i]] = j
            at[i] += 1
            neighbour[at[j]] = i
            at[j] += 1
    return start, neighbour


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
def _time(width, below, model):
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
                gain = _time(width[c], under, model) + _time(width[s], below, model)
                gain -= _time(width[c] + width[s], below, model)
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
def _stagger(ld):
    """An odd multiple of 8: columns of a power-of-two distance would share cache sets."""
    return ld if (ld // TILE) % 2 == 1 or ld < 128 else ld + TILE


@njit(cache=True, nogil=True)
def plan(sizes, first, order, start, neighbour, rows, columns, offsets, model):
    """Everything that `multifrontal.factor` and `.solve` need; see the return statement."""
    n = sizes.size
    parent = _tree(order, start, neighbour)
    post = _postorder(parent)
    order = order[post]
    parent = _tree(order, start, neighbour)
    blocks, scalars = _counts(sizes, order, parent, start, neighbour)
    of, tops, parents = _supernodes(sizes, order, parent, blocks, scalars, model)
    wanted = np.zeros(n, np.bool_)
    for s in range(tops.size):
        wanted[tops[s]] = True
    below_start, below_rows = _structures(order, parent, wanted, blocks, start, neighbour)
    # the final numbering: fronts in a postorder of their tree, columns inside a front in elimination order
    count = tops.size
    sequence = _postorder(parents)
    rank = np.empty(count, np.int32)
    for k in range(count):
        rank[sequence[k]] = k
    column_start = np.zeros(count + 1, np.int64)
    for j in range(n):
        column_start[rank[of[j]] + 1] += 1
    for k in range(count):
        column_start[k + 1] += column_start[k]
    at = column_start[:count].copy()
    final = np.empty(n, np.int32)  # elimination number -> final number
    block_order = np.empty(n, np.int32)
    for j in range(n):
        k = rank[of[j]]
        final[j] = at[k]
        block_order[at[k]] = order[j]
        at[k] += 1
    up = np.full(count, -1, np.int32)
    depth = np.zeros(count, np.int32)
    for k in range(count - 1, -1, -1):
        p = parents[sequence[k]]
        if p >= 0:
            up[k] = rank[p]
            depth[k] = depth[up[k]] + 1
    # fronts: sizes, places in the factor and on the two stacks (fronts of even depth on one, of odd on the other, so
    # that a front's children lie on top of one stack while its own update matrix goes onto the other)
    fronts = np.zeros((count, 9), np.int64)
    block_start = np.zeros(count + 1, np.int64)
    padded_total = 0
    factor_size = 0
    top = np.zeros(2, np.int64)
    peak = np.zeros(2, np.int64)
    tallest = 0
    flops = 0.0
    child_start = np.zeros(count + 1, np.int64)
    for k in range(count):
        if up[k] >= 0:
            child_start[up[k] + 1] += 1
    for k in range(count):
        child_start[k + 1] += child_start[k]
    children = np.empty(child_start[count], np.int32)
    at = child_start[:count].copy()
    for k in range(count):
        if up[k] >= 0:
            children[at[up[k]]] = k
            at[up[k]] += 1
    scalar_place = np.empty(n, np.int64)  # final number -> place in the padded order
    local = np.empty(n, np.int64)  # final number -> row inside its own panel
    row_start = np.zeros(count + 1, np.int64)
    for k in range(count):
        width = 0
        for j in range(column_start[k], column_start[k + 1]):
            scalar_place[j] = padded_total + width
            local[j] = width
            width += sizes[block_order[j]]
        below = scalars[tops[sequence[k]]]
        padded = (width + TILE - 1) // TILE * TILE
        padded_below = (below + TILE - 1) // TILE * TILE
        fronts[k, WIDTH], fronts[k, PADDED], fronts[k, BELOW], fronts[k, PADDED_BELOW] = (
            width,
            padded,
            below,
            padded_below,
        )
        fronts[k, LD] = _stagger(padded + padded_below)
        fronts[k, PANEL] = factor_size
        fronts[k, FIRST] = padded_total
        factor_size += fronts[k, LD] * padded
        padded_total += padded
        fronts[k, UPDATE_LD] = _stagger(padded_below)
        parity = depth[k] % 2
        fronts[k, UPDATE] = top[parity]
        top[parity] += fronts[k, UPDATE_LD] * padded_below
        peak[parity] = max(peak[parity], top[parity])
        if child_start[k + 1] > child_start[k]:
            top[1 - parity] = fronts[children[child_start[k]], UPDATE]
        tallest = max(tallest, padded + padded_below)
        flops += width * width * width / 3.0 + 1.0 * width * width * below + 1.0 * width * below * below
        block_start[k + 1] = block_start[k] + blocks[tops[sequence[k]]]
        row_start[k + 1] = row_start[k] + padded_below
    for k in range(count):
        if depth[k] % 2 == 1:
            fronts[k, UPDATE] += peak[0]
    # rows below the panels: final block numbers, ascending, and their places in the padded order
    block_rows = np.empty(block_start[count], np.int32)
    row_places = np.full(row_start[count], padded_total, np.int32)  # padding points to a slot that stays zero
    for k in range(count):
        t = tops[sequence[k]]
        a = block_start[k]
        for e in range(below_start[t], below_start[t + 1]):
            block_rows[a + e - below_start[t]] = final[below_rows[e]]
        block_rows[a : block_start[k + 1]].sort()
        w = row_start[k]
        for e in range(a, block_start[k + 1]):
            for r in range(sizes[block_order[block_rows[e]]]):
                row_places[w] = scalar_place[block_rows[e]] + r
                w += 1
    # entries of A by front; positions of the rows of the current front in `position`
    place = np.empty(n, np.int32)
    front_of = np.empty(n, np.int32)
    for k in range(count):
        for j in range(column_start[k], column_start[k + 1]):
            place[block_order[j]] = j
            front_of[j] = k
    entry_start = np.zeros(count + 1, np.int64)
    for e in range(rows.size):
        entry_start[front_of[min(place[rows[e]], place[columns[e]])] + 1] += 1
    for k in range(count):
        entry_start[k + 1] += entry_start[k]
    by_front = np.empty(rows.size, np.int64)
    at = entry_start[:count].copy()
    for e in range(rows.size):
        k = front_of[min(place[rows[e]], place[columns[e]])]
        by_front[at[k]] = e
        at[k] += 1
    entries = np.empty((rows.size, 6), np.int64)
    position = np.zeros(n, np.int64)
    run_start = np.zeros(count + 1, np.int64)
    runs = np.empty((block_rows.size, 3), np.int64)
    for k in range(count):  # how many runs come before those of front k: counted as if none could be joined
        run_start[k + 1] = block_start[k + 1]
    run_end = block_start[:count].copy()
    for k in range(count):
        padded = fronts[k, PADDED]
        for j in range(column_start[k], column_start[k + 1]):
            position[j] = local[j]
        p = padded
        for e in range(block_start[k], block_start[k + 1]):
            position[block_rows[e]] = p
            p += sizes[block_order[block_rows[e]]]
        for q in range(entry_start[k], entry_start[k + 1]):
            e = by_front[q]
            i, j = rows[e], columns[e]
            height, width = sizes[i], sizes[j]
            entries[q, 0] = offsets[e]
            if place[i] >= place[j]:
                entries[q, 1], entries[q, 2], entries[q, 3], entries[q, 4] = width, 1, height, width
                r, c = position[place[i]], position[place[j]]
            else:
                entries[q, 1], entries[q, 2], entries[q, 3], entries[q, 4] = 1, width, width, height
                r, c = position[place[j]], position[place[i]]
            entries[q, 5] = fronts[k, PANEL] + c * fronts[k, LD] + r
        for q in range(child_start[k], child_start[k + 1]):
            c = children[q]
            begin = 0
            w = block_start[c]
            for e in range(block_start[c], block_start[c + 1]):
                to = position[block_rows[e]]
                height = sizes[block_order[block_rows[e]]]
                if w > block_start[c] and runs[w - 1, 1] + runs[w - 1, 2] == to and to != padded:
                    runs[w - 1, 2] += height
                else:
                    runs[w, 0], runs[w, 1], runs[w, 2] = begin, to, height
                    w += 1
                begin += height
            run_end[c] = w
    # joined runs leave gaps: close them
    w = 0
    for k in range(count):
        a = block_start[k]
        run_start[k] = w
        if up[k] >= 0:
            for e in range(a, run_end[k]):
                runs[w, 0], runs[w, 1], runs[w, 2] = runs[e, 0], runs[e, 1], runs[e, 2]
                w += 1
    run_start[count] = w
    scalar = np.full(padded_total + 1, -1, np.int64)
    for j in range(n):
        for r in range(sizes[block_order[j]]):
            scalar[scalar_place[j] + r] = first[block_order[j]] + r
    numbers = np.array([factor_size, peak[0] + peak[1], tallest])
    return (
        numbers, flops, block_order, fronts, entry_start, entries, child_start, children,
        run_start, runs[:w].copy(), row_start, row_places, scalar,
    )  # fmt: skip
