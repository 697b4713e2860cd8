"""Multifrontal Cholesky factorisation and triangular solves on a plan made once (Duff and Reid 1983; Liu 1992).

Every supernode is a dense *front*: a panel of its own columns, stored by columns inside the factor, and the square
update matrix that it leaves to its parent, on a stack. Assemble A's entries and the children's update matrices,
factor the panel, subtract the panel's outer product. Rows and columns are padded to 8
(`register_tiles.TILE`): padded rows are zero, padded columns have a unit pivot.
"""

import numpy as np
from numba import njit

from mslsq.linear.register_tiles import TILE, subtract_product, subtract_product_and_solve

# columns of the table of fronts
WIDTH, PADDED, BELOW, PADDED_BELOW, LD, PANEL, UPDATE, UPDATE_LD, FIRST = range(9)


@njit(cache=True, nogil=True)
def _factor_diagonal(L, at, ld, inverse):
    """Cholesky of the tile at `at`, in place, its diagonal inverted; False at a pivot that is not positive."""
    for j in range(TILE):
        pivot = L[at + j * ld + j]
        for q in range(j):
            pivot -= L[at + q * ld + j] * L[at + q * ld + j]
        if not (pivot > 0 and pivot < np.inf):
            return False
        scale = 1 / np.sqrt(pivot)
        L[at + j * ld + j] = scale  # of the diagonal only its inverse is ever used
        inverse[j] = scale
        for i in range(j + 1, TILE):
            value = L[at + j * ld + i]
            for q in range(j):
                value -= L[at + q * ld + i] * L[at + q * ld + j]
            L[at + j * ld + i] = value * scale
    return True


@njit(cache=True, nogil=True)
def _factor_one(
    values, shift, L, U, inverse, fronts, entry_start, entries, child_start, children, run_start, runs, scalar
):
    for s in range(fronts.shape[0]):
        width, padded, ld = fronts[s, WIDTH], fronts[s, PADDED], fronts[s, LD]
        below, panel = fronts[s, PADDED_BELOW], fronts[s, PANEL]
        update, uld = fronts[s, UPDATE], fronts[s, UPDATE_LD]
        L[panel : panel + ld * padded] = 0
        U[update : update + uld * below] = 0
        for e in range(entry_start[s], entry_start[s + 1]):
            source, by_row, by_column = entries[e, 0], entries[e, 1], entries[e, 2]
            target = entries[e, 5]
            for j in range(entries[e, 4]):
                for i in range(entries[e, 3]):
                    L[target + j * ld + i] = values[source + i * by_row + j * by_column]
        first = fronts[s, FIRST]
        if shift.size > 0:
            for j in range(width):
                L[panel + j * ld + j] += shift[scalar[first + j]]
        for j in range(width, padded):
            L[panel + j * ld + j] = 1
        for k in range(child_start[s], child_start[s + 1]):
            c = children[k]
            source, cld = fronts[c, UPDATE], fronts[c, UPDATE_LD]
            for r in range(run_start[c], run_start[c + 1]):
                begin, position, count = runs[r, 0], runs[r, 1], runs[r, 2]
                for j in range(count):
                    column = source + (begin + j) * cld
                    if position < padded:
                        target = panel + (position + j) * ld
                    else:
                        target = update + (position - padded + j) * uld - padded
                    for i in range(j, count):
                        L_or_U = target + position + i
                        if position < padded:
                            L[L_or_U] += U[column + begin + i]
                        else:
                            U[L_or_U] += U[column + begin + i]
                    for q in range(r + 1, run_start[c + 1]):
                        other = column + runs[q, 0]
                        to = target + runs[q, 1]
                        if position < padded:
                            for i in range(runs[q, 2]):
                                L[to + i] += U[other + i]
                        else:
                            for i in range(runs[q, 2]):
                                U[to + i] += U[other + i]
        rows = padded + below
        for j in range(0, padded, TILE):
            at = panel + j * ld + j
            subtract_product(L, panel + j, ld, L, panel + j, ld, 1, L, at, ld, TILE, j)
            if not _factor_diagonal(L, at, ld, inverse):
                return False
            if rows > j + TILE:
                subtract_product_and_solve(
                    L, panel + j + TILE, ld, panel + j, at + TILE, rows - j - TILE, j, at, inverse
                )
        for j in range(0, below, TILE):
            left = panel + padded + j
            subtract_product(L, left, ld, L, left, ld, 1, U, update + j * uld + j, uld, below - j, width)
    return True


@njit(cache=True, nogil=True)
def factor(
    values, shift, L, ok, b0, b1, stack, fronts, entry_start, entries, child_start, children, run_start, runs, scalar
):
    """Factor the batch entries b0 <= b < b1 of `values` into rows of `L`."""
    U = np.empty(stack, L.dtype)
    inverse = np.empty(TILE, L.dtype)
    for b in range(b0, b1):
        ok[b] = _factor_one(
            values[b],
            shift[b],
            L[b],
            U,
            inverse,
            fronts,
            entry_start,
            entries,
            child_start,
            children,
            run_start,
            runs,
            scalar,
        )


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _solve_one(L, ok, rhs, out, b0, b1, c, x, t, fronts, row_start, rows, scalar):
    """L Lᵀ x = column c of rhs, x in the padded elimination order, four columns of L at a time."""
    count = fronts.shape[0]
    for b in range(b0, b1):
        if not ok[b]:
            out[b] = np.nan
            continue
        for i in range(scalar.size):
            x[i] = rhs[b, scalar[i], c] if scalar[i] >= 0 else 0
        for s in range(count):
            width, padded, ld = fronts[s, WIDTH], fronts[s, PADDED], fronts[s, LD]
            below, panel, first = fronts[s, BELOW], fronts[s, PANEL], fronts[s, FIRST]
            height = padded + below
            t[:padded] = x[first : first + padded]
            t[padded:height] = 0
            for j in range(0, width, 4):
                c0 = panel + j * ld
                c1, c2, c3 = c0 + ld, c0 + 2 * ld, c0 + 3 * ld
                x0 = t[j] * L[b, c0 + j]
                x1 = (t[j + 1] - L[b, c0 + j + 1] * x0) * L[b, c1 + j + 1]
                x2 = (t[j + 2] - L[b, c0 + j + 2] * x0 - L[b, c1 + j + 2] * x1) * L[b, c2 + j + 2]
                x3 = (t[j + 3] - L[b, c0 + j + 3] * x0 - L[b, c1 + j + 3] * x1 - L[b, c2 + j + 3] * x2) * L[
                    b, c3 + j + 3
                ]
                x[first + j], x[first + j + 1], x[first + j + 2], x[first + j + 3] = x0, x1, x2, x3
                for i in range(j + 4, height):
                    t[i] -= (L[b, c0 + i] * x0 + L[b, c1 + i] * x1) + (L[b, c2 + i] * x2 + L[b, c3 + i] * x3)
            r = row_start[s] - padded
            for i in range(padded, height):
                x[rows[r + i]] += t[i]
        for s in range(count - 1, -1, -1):
            width, padded, ld = fronts[s, WIDTH], fronts[s, PADDED], fronts[s, LD]
            below, panel, first = fronts[s, BELOW], fronts[s, PANEL], fronts[s, FIRST]
            height = padded + below
            r = row_start[s] - padded
            t[:padded] = x[first : first + padded]
            for i in range(padded, height):
                t[i] = x[rows[r + i]]
            for j in range((width - 1) // 4 * 4, -1, -4):
                c0 = panel + j * ld
                c1, c2, c3 = c0 + ld, c0 + 2 * ld, c0 + 3 * ld
                s0 = t[j] - t[j]
                s1, s2, s3 = s0, s0, s0
                for i in range(j + 4, height):
                    value = t[i]
                    s0 += L[b, c0 + i] * value
                    s1 += L[b, c1 + i] * value
                    s2 += L[b, c2 + i] * value
                    s3 += L[b, c3 + i] * value
                x3 = (t[j + 3] - s3) * L[b, c3 + j + 3]
                x2 = (t[j + 2] - s2 - L[b, c2 + j + 3] * x3) * L[b, c2 + j + 2]
                x1 = (t[j + 1] - s1 - L[b, c1 + j + 2] * x2 - L[b, c1 + j + 3] * x3) * L[b, c1 + j + 1]
                x0 = (t[j] - s0 - L[b, c0 + j + 1] * x1 - L[b, c0 + j + 2] * x2 - L[b, c0 + j + 3] * x3) * L[b, c0 + j]
                t[j], t[j + 1], t[j + 2], t[j + 3] = x0, x1, x2, x3
            x[first : first + padded] = t[:padded]
        for i in range(scalar.size):
            if scalar[i] >= 0:
                out[b, scalar[i], c] = x[i]


@njit(cache=True, nogil=True)
def _solve_eight(L, ok, rhs, out, b0, b1, c, x, t, fronts, row_start, rows, scalar):
    """The same for columns c to c + 7, x (padded order, 8) flat: the factor is read once for all."""
    count = fronts.shape[0]
    for b in range(b0, b1):
        if not ok[b]:
            out[b] = np.nan
            continue
        have = min(TILE, rhs.shape[2] - c)
        for i in range(scalar.size):
            for k in range(have):
                x[i * TILE + k] = rhs[b, scalar[i], c + k] if scalar[i] >= 0 else 0
        for s in range(count):
            width, padded, ld = fronts[s, WIDTH], fronts[s, PADDED], fronts[s, LD]
            below, panel, first = fronts[s, PADDED_BELOW], fronts[s, PANEL], fronts[s, FIRST] * TILE
            for j in range(width):
                scale = L[b, panel + j * ld + j]
                for k in range(TILE):
                    x[first + j * TILE + k] *= scale
                for i in range(j + 1, width):
                    value = L[b, panel + j * ld + i]
                    for k in range(TILE):
                        x[first + i * TILE + k] -= value * x[first + j * TILE + k]
            t[: below * TILE] = 0
            subtract_product(L[b], panel + padded, ld, x, first, TILE, 1, t, 0, below, below, width)
            r = row_start[s]
            for i in range(fronts[s, BELOW]):
                to = rows[r + i] * TILE
                for k in range(TILE):
                    x[to + k] += t[k * below + i]
        for s in range(count - 1, -1, -1):
            width, padded, ld = fronts[s, WIDTH], fronts[s, PADDED], fronts[s, LD]
            below, panel, first = fronts[s, BELOW], fronts[s, PANEL], fronts[s, FIRST] * TILE
            r = row_start[s]
            for i in range(below):
                source = rows[r + i] * TILE
                for k in range(TILE):
                    t[i * TILE + k] = x[source + k]
            for j in range(0, padded, TILE):
                subtract_product(
                    t, 0, TILE, L[b], panel + padded + j * ld, 1, ld, x, first + j * TILE, TILE, TILE, below
                )
            for j in range(width - 1, -1, -1):
                for i in range(j + 1, width):
                    value = L[b, panel + j * ld + i]
                    for k in range(TILE):
                        x[first + j * TILE + k] -= value * x[first + i * TILE + k]
                scale = L[b, panel + j * ld + j]
                for k in range(TILE):
                    x[first + j * TILE + k] *= scale
        for i in range(scalar.size):
            if scalar[i] >= 0:
                for k in range(have):
                    out[b, scalar[i], c + k] = x[i * TILE + k]


def solve(L, ok, rhs, out, b0, b1, tallest, fronts, row_start, rows, scalar):
    """Solve the batch entries b0 <= b < b1 of rhs (batch, N, k) into out; an entry whose factorisation failed gets NaN.

    Up to two right-hand sides go one by one (reading the factor costs all the time), more of them eight at a time.
    """
    sweep, lanes = (_solve_one, 1) if rhs.shape[2] < 3 else (_solve_eight, TILE)
    x = np.zeros(scalar.size * lanes, L.dtype)
    t = np.empty(tallest * lanes, L.dtype)
    for c in range(0, rhs.shape[2], lanes):
        sweep(L, ok, rhs, out, b0, b1, c, x, t, fronts, row_start, rows, scalar)


@njit(cache=True, nogil=True)
def multiply(values, x, y, first, rows, columns, offsets):
    """y += A x, x and y (batch, N, k); of a diagonal block only the lower triangle is read."""
    for b in range(x.shape[0]):
        for e in range(rows.size):
            i, j, at = first[rows[e]], first[columns[e]], offsets[e]
            height, width = first[rows[e] + 1] - i, first[columns[e] + 1] - j
            for r in range(height):
                for c in range(width if i != j else r + 1):
                    a = values[b, at + r * width + c]
                    for k in range(x.shape[2]):
                        y[b, i + r, k] += a * x[b, j + c, k]
                        if i + r != j + c:
                            y[b, j + c, k] += a * x[b, i + r, k]
