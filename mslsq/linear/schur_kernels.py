"""The elimination of small blocks on the CPU: factor them, carry them over to the kept blocks, and back again.

All work is in float64, whatever the matrix is: in float32 the difference U − Y Yᵀ loses what the points leave of the
cameras. Sizes travel as lengths of tuples (`rows`, `depth`, `columns`), so each kernel is compiled once per size and
kept on disk. One entry of the batch at a time.
"""

import numpy as np
from numba import njit

from mslsq.linear.register_products import add_products
from mslsq.linear.register_tiles import TILE


@njit(cache=True, nogil=True)
def factor_pivots(values, shift, rhs, work, carried, source, column, triangle, right, depth):
    """V + shift = L Lᵀ and L⁻¹c of every eliminated block; False at a pivot that is not positive and finite."""
    k = len(depth)
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
    values, work, carried, reduced_rhs, source, by_row, by_column, triangle, right, column, target, rows, depth
):
    """Yᵀ = L⁻¹Wᵀ of every edge, and b − Y L⁻¹c. Entry (k, a) of Wᵀ is at source + k by_row + a by_column."""
    k, a = len(depth), len(rows)
    for e in range(source.size):
        at, v, y, t, c = triangle[e], source[e], target[e], right[e], column[e]
        for j in range(k):
            scale = work[at + j * k + j]
            for r in range(a):
                value = np.float64(values[v + j * by_row + r * by_column])
                for q in range(j):
                    value -= work[at + j * k + q] * work[y + q * a + r]
                work[y + j * a + r] = value * scale
        for r in range(a):
            value = 0.0
            for j in range(k):
                value += work[y + j * a + r] * carried[t + j]
            reduced_rhs[c + r] -= value


@njit(cache=True, nogil=True)
def place_kept(values, shift, reduced, source, target, stride, row, height, width, is_diagonal):
    """The blocks of U, with the damping on their diagonal (`row`: the first unknown of a block's rows)."""
    for e in range(source.size):
        for i in range(height[e]):
            for j in range(width[e]):
                reduced[target[e] + i * stride[e] + j] += values[source[e] + i * width[e] + j]
            if is_diagonal[e] and shift.size > 0:
                reduced[target[e] + i * stride[e] + i] += shift[row[e] + i]


@njit(cache=True, nogil=True)
def subtract_pairs(work, reduced, start, target, stride, left, right, rows, depth, columns):
    """U − Y Yᵀ: one block of the reduced matrix after the other, the sum over its pairs in registers."""
    a, b = len(rows), len(columns)
    padded = TILE * ((b + TILE - 1) // TILE)
    total = np.empty(a * padded)
    for t in range(target.size):
        add_products(work, left, right, start[t], start[t + 1], rows, depth, columns, total)
        for i in range(a):
            for j in range(b):
                reduced[target[t] + i * stride[t] + j] -= total[i * padded + j]


@njit(cache=True, nogil=True)
def carry_back(work, kept, carried, right, column, target, rows, depth):
    """L⁻¹c − Yᵀx, in place of L⁻¹c."""
    k, a = len(depth), len(rows)
    for e in range(right.size):
        y, t, c = target[e], right[e], column[e]
        for j in range(k):
            value = 0.0
            for r in range(a):
                value += work[y + j * a + r] * kept[c + r]
            carried[t + j] -= value


@njit(cache=True, nogil=True)
def solve_pivots(work, carried, out, column, triangle, right, depth):
    """y = L⁻ᵀ(L⁻¹c − Yᵀx) of every eliminated block."""
    k = len(depth)
    for p in range(column.size):
        at, t, c = triangle[p], right[p], column[p]
        for j in range(k - 1, -1, -1):
            value = carried[t + j]
            for q in range(j + 1, k):
                value -= work[at + q * k + j] * carried[t + q]
            carried[t + j] = value * work[at + j * k + j]
            out[c + j] = carried[t + j]
