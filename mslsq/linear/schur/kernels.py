"""The elimination of small blocks on the CPU: factor them, carry them over to the kept blocks, and back again.

All work is in float64, whatever the matrix is: in float32 the difference U − Y Yᵀ loses what the points leave of the
cameras. Sizes travel as lengths of tuples (`rows`, `depth`, `columns`), so each kernel is compiled once per size and
kept on disk. Every array has the batch first; entries that are not `regular` are left alone.
"""

import numpy as np
from numba import njit

from mslsq.linear.schur.register_products import add_products
from mslsq.linear.sparse.register_tiles import TILE


@njit(cache=True, nogil=True)
def factor_pivots(values, shift, rhs, work, carried, regular, source, column, triangle, right, depth):
    """V + shift = L Lᵀ and L⁻¹c of every eliminated block; not `regular` with a pivot that is not positive."""
    k = len(depth)
    for b in range(regular.size):
        if regular[b]:
            regular[b] = _factor(values[b], shift[b], rhs[b], work[b], carried[b], source, column, triangle, right, k)


@njit(cache=True, nogil=True)
def _factor(values, shift, rhs, work, carried, source, column, triangle, right, k):
    for p in range(source.size):
        at, v, c, t = triangle[p], source[p], column[p], right[p]
        for j in range(k):
            for i in range(j, k):
                value = np.float64(values[v + i * k + j])
                if i == j and shift.size > 0:
                    value += shift[c + j]
                for q in range(j):
                    value -= work[at + i * k + q] * work[at + j * k + q]
                if i == j:
                    if not (value > 0 and value < np.inf):
                        return False
                    work[at + j * k + j] = 1 / np.sqrt(value)  # of the diagonal only its inverse is ever used
                else:
                    work[at + i * k + j] = value * work[at + j * k + j]
        for j in range(k):
            value = np.float64(rhs[c + j])
            for q in range(j):
                value -= work[at + j * k + q] * carried[t + q]
            carried[t + j] = value * work[at + j * k + j]
    return True


@njit(cache=True, nogil=True)
def carry_over(
    values,
    work,
    carried,
    reduced_rhs,
    regular,
    by_row,
    by_column,
    source,
    triangle,
    right,
    column,
    target,
    rows,
    depth,
):
    """Yᵀ = L⁻¹Wᵀ of every edge, and b − Y L⁻¹c. Entry (k, a) of Wᵀ is at source + k by_row + a by_column."""
    k, a = len(depth), len(rows)
    for b in range(regular.size):
        if not regular[b]:
            continue
        A, W, C, R = values[b], work[b], carried[b], reduced_rhs[b]
        for e in range(source.size):
            at, v, y, t, c = triangle[e], source[e], target[e], right[e], column[e]
            for j in range(k):
                scale = W[at + j * k + j]
                for r in range(a):
                    value = np.float64(A[v + j * by_row + r * by_column])
                    for q in range(j):
                        value -= W[at + j * k + q] * W[y + q * a + r]
                    W[y + j * a + r] = value * scale
            for r in range(a):
                value = 0.0
                for j in range(k):
                    value += W[y + j * a + r] * C[t + j]
                R[c + r] -= value


@njit(cache=True, nogil=True)
def place_kept(values, shift, reduced, source, target, stride, row, height, width, is_diagonal):
    """The blocks of U, with the damping on their diagonal (`row`: the first unknown of a block's rows)."""
    for b in range(values.shape[0]):
        for e in range(source.size):
            for i in range(height[e]):
                for j in range(width[e]):
                    reduced[b, target[e] + i * stride[e] + j] += values[b, source[e] + i * width[e] + j]
                if is_diagonal[e] and shift.shape[1] > 0:
                    reduced[b, target[e] + i * stride[e] + i] += shift[b, row[e] + i]


@njit(cache=True, nogil=True)
def subtract_pairs(work, reduced, regular, start, target, stride, left, right, rows, depth, columns):
    """U − Y Yᵀ: one block of the reduced matrix after the other, the sum over its pairs in registers."""
    a, c = len(rows), len(columns)
    padded = TILE * ((c + TILE - 1) // TILE)
    total = np.empty(a * padded)
    for b in range(regular.size):
        if not regular[b]:
            continue
        W, M = work[b], reduced[b]
        for t in range(target.size):
            add_products(W, left, right, start[t], start[t + 1], rows, depth, columns, total)
            for i in range(a):
                for j in range(c):
                    M[target[t] + i * stride[t] + j] -= total[i * padded + j]


@njit(cache=True, nogil=True)
def carry_back(work, kept, carried, right, column, target, rows, depth):
    """L⁻¹c − Yᵀx, in place of L⁻¹c."""
    k, a = len(depth), len(rows)
    for b in range(kept.shape[0]):
        W, X, C = work[b], kept[b], carried[b]
        for e in range(right.size):
            y, t, c = target[e], right[e], column[e]
            for j in range(k):
                value = 0.0
                for r in range(a):
                    value += W[y + j * a + r] * X[c + r]
                C[t + j] -= value


@njit(cache=True, nogil=True)
def solve_pivots(work, carried, out, column, triangle, right, depth):
    """y = L⁻ᵀ(L⁻¹c − Yᵀx) of every eliminated block."""
    k = len(depth)
    for b in range(out.shape[0]):
        W, C, X = work[b], carried[b], out[b]
        for p in range(column.size):
            at, t, c = triangle[p], right[p], column[p]
            for j in range(k - 1, -1, -1):
                value = C[t + j]
                for q in range(j + 1, k):
                    value -= W[at + q * k + j] * C[t + q]
                C[t + j] = value * W[at + j * k + j]
                X[c + j] = C[t + j]
