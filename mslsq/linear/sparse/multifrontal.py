"""Multifrontal Cholesky factorisation and triangular solves on a plan made once (Duff and Reid 1983; Liu 1992).

Every supernode is a dense *front*: a panel of its own columns, stored by columns inside the factor, and the square
update matrix that it leaves to its parent, on a stack. Assemble A's entries and the children's update matrices,
factor the panel, subtract the panel's outer product. Rows and columns are padded to 8
(`register_tiles.TILE`): padded rows are zero, padded columns have a unit pivot.
"""

import numpy as np
from numba import njit

from mslsq.linear.sparse.register_tiles import (
    TILE,
    subtract_eight_columns,
    subtract_eight_dots,
    subtract_product,
    subtract_product_and_solve,
)

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
def factor(
    values, shift, L, ok, b0, b1, stack, fronts, entry_start, entries, child_start, children, run_start, runs, scalar
):
    """Factor the batch entries b0 <= b < b1 of `values` into rows of `L`; `shift` (batch, N) or (batch, 0) for none."""
    U = np.empty(stack, L.dtype)
    inverse = np.empty(TILE, L.dtype)
    for b in range(b0, b1):
        A, F = values[b], L[b]
        healthy = True
        for s in range(fronts.shape[0]):
            width, padded, ld = fronts[s, WIDTH], fronts[s, PADDED], fronts[s, LD]
            below, panel = fronts[s, PADDED_BELOW], fronts[s, PANEL]
            update, uld = fronts[s, UPDATE], fronts[s, UPDATE_LD]
            F[panel : panel + ld * padded] = 0
            U[update : update + uld * below] = 0
            for e in range(entry_start[s], entry_start[s + 1]):
                source, by_row, by_column = entries[e, 0], entries[e, 1], entries[e, 2]
                target = entries[e, 5]
                for j in range(entries[e, 4]):
                    for i in range(entries[e, 3]):
                        F[target + j * ld + i] = A[source + i * by_row + j * by_column]
            first = fronts[s, FIRST]
            if shift.shape[1] > 0:
                for j in range(width):
                    F[panel + j * ld + j] += shift[b, scalar[first + j]]
            for j in range(width, padded):
                F[panel + j * ld + j] = 1
            for k in range(child_start[s], child_start[s + 1]):
                c = children[k]
                source, cld = fronts[c, UPDATE], fronts[c, UPDATE_LD]
                for r in range(run_start[c], run_start[c + 1]):
                    begin, position, count = runs[r, 0], runs[r, 1], runs[r, 2]
                    T = F if position < padded else U
                    for j in range(count):
                        column = source + (begin + j) * cld
                        if position < padded:
                            target = panel + (position + j) * ld
                        else:
                            target = update + (position - padded + j) * uld - padded
                        for i in range(j, count):
                            T[target + position + i] += U[column + begin + i]
                        for q in range(r + 1, run_start[c + 1]):
                            other = column + runs[q, 0]
                            to = target + runs[q, 1]
                            for i in range(runs[q, 2]):
                                T[to + i] += U[other + i]
            rows = padded + below
            for j in range(0, padded, TILE):
                at = panel + j * ld + j
                subtract_product(F, panel + j, ld, F, panel + j, ld, 1, F, at, ld, TILE, j)
                if not _factor_diagonal(F, at, ld, inverse):
                    healthy = False
                    break
                if rows > j + TILE:
                    subtract_product_and_solve(
                        F, panel + j + TILE, ld, panel + j, at + TILE, rows - j - TILE, j, at, inverse
                    )
            if not healthy:
                break
            for j in range(0, below, TILE):
                left = panel + padded + j
                subtract_product(F, left, ld, F, left, ld, 1, U, update + j * uld + j, uld, below - j, width)
        ok[b] = healthy


@njit(cache=True, nogil=True)
def _solve_one(L, ok, rhs, out, b0, b1, c, x, t, fronts, row_start, rows, scalar):
    """L Lᵀ x = column c of rhs, x in the padded elimination order, eight columns of L at a time."""
    count = fronts.shape[0]
    for b in range(b0, b1):
        if not ok[b]:
            out[b] = np.nan
            continue
        F = L[b]
        for i in range(scalar.size):
            x[i] = rhs[b, scalar[i], c] if scalar[i] >= 0 else 0
        for s in range(count):
            padded, ld, panel, first = fronts[s, PADDED], fronts[s, LD], fronts[s, PANEL], fronts[s, FIRST]
            height = padded + fronts[s, PADDED_BELOW]
            for i in range(padded):
                t[i] = x[first + i]
            for i in range(padded, height):
                t[i] = 0
            for j in range(0, padded, TILE):
                at = panel + j * ld + j
                for q in range(TILE):
                    value = t[j + q] * F[at + q * ld + q]
                    t[j + q] = value
                    for i in range(q + 1, TILE):
                        t[j + i] -= F[at + q * ld + i] * value
                subtract_eight_columns(F, at + TILE, ld, t, j, t, j + TILE, height - j - TILE)
            for i in range(padded):
                x[first + i] = t[i]
            r = row_start[s]
            for i in range(fronts[s, BELOW]):
                x[rows[r + i]] += t[padded + i]
        for s in range(count - 1, -1, -1):
            padded, ld, panel, first = fronts[s, PADDED], fronts[s, LD], fronts[s, PANEL], fronts[s, FIRST]
            below = fronts[s, PADDED_BELOW]
            r = row_start[s]
            for i in range(padded):
                t[i] = x[first + i]
            for i in range(below):
                t[padded + i] = x[rows[r + i]]
            for j in range(padded - TILE, -1, -TILE):
                at = panel + j * ld + j
                subtract_eight_dots(F, at + TILE, ld, t, j + TILE, t, j, padded + below - j - TILE)
                for q in range(TILE - 1, -1, -1):
                    value = t[j + q]
                    for i in range(q + 1, TILE):
                        value -= F[at + q * ld + i] * t[j + i]
                    t[j + q] = value * F[at + q * ld + q]
            for i in range(padded):
                x[first + i] = t[i]
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
