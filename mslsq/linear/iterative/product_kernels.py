"""Kernels of products with block matrices, compiled by numba: loops over blocks of any size.

See `block_products` for the tables.
"""

import numpy as np
from numba import njit

WIDTH = 64
"""Lanes that are taken together."""


@njit(cache=True, nogil=True)
def symmetric(values, x, y, below, diagonal):
    """y += A x; of diagonal blocks only the lower triangle is read."""
    repeat = max(x.shape[0] // max(values.shape[0], 1), 1)
    for b in range(x.shape[0]):
        v, p, q = values[b // repeat], x[b], y[b]
        for e in range(below.shape[0]):
            i, j, height, width, at = below[e, 0], below[e, 1], below[e, 2], below[e, 3], below[e, 4]
            for r in range(height):
                total, mirrored, row = p[i] * 0, p[i + r], at + r * width
                for c in range(width):
                    a = v[row + c]
                    total += a * p[j + c]
                    q[j + c] += a * mirrored
                q[i + r] += total
        for e in range(diagonal.shape[0]):
            i, size, at = diagonal[e, 0], diagonal[e, 2], diagonal[e, 4]
            for r in range(size):
                mirrored, row = p[i + r], at + r * size
                total = v[row + r] * mirrored
                for c in range(r):
                    a = v[row + c]
                    total += a * p[i + c]
                    q[i + c] += a * mirrored
                q[i + r] += total


@njit(cache=True, nogil=True)
def rectangular(values, x, y, table):
    """y += B x."""
    repeat = max(x.shape[0] // max(values.shape[0], 1), 1)
    for b in range(x.shape[0]):
        v, p, q = values[b // repeat], x[b], y[b]
        for e in range(table.shape[0]):
            i, j, height, width = table[e, 0], table[e, 1], table[e, 2], table[e, 3]
            at, s, t = table[e, 4], table[e, 5], table[e, 6]
            for r in range(height):
                total = q[i] * 0
                for c in range(width):
                    total += v[at + r * s + c * t] * p[j + c]
                q[i + r] += total


@njit(cache=True, nogil=True)
def normal(values, start, rows, columns, x, y):
    """y += JᵀJ x from blocks (rows, tangent, lanes) of J on these columns (tangent, lanes), flat from `start` on.

    `WIDTH` lanes at a time, so that the loops inside are along memory.
    """
    repeat = max(x.shape[0] // max(values.shape[0], 1), 1)
    tangent, lanes = columns.shape
    own, back = np.empty((tangent, WIDTH), x.dtype), np.empty((tangent, WIDTH), x.dtype)
    image = np.empty(WIDTH, x.dtype)
    for b in range(x.shape[0]):
        v, p, q = values[b // repeat], x[b], y[b]
        for first in range(0, lanes, WIDTH):
            have = min(WIDTH, lanes - first)
            for t in range(tangent):
                for k in range(have):
                    own[t, k] = p[columns[t, first + k]]
                    back[t, k] = 0
            for r in range(rows):
                image[:] = 0
                for t in range(tangent):
                    line, mine = v[start + (r * tangent + t) * lanes + first :], own[t]
                    for k in range(have):
                        image[k] += line[k] * mine[k]
                for t in range(tangent):
                    line, mine = v[start + (r * tangent + t) * lanes + first :], back[t]
                    for k in range(have):
                        mine[k] += line[k] * image[k]
            for t in range(tangent):
                for k in range(have):
                    q[columns[t, first + k]] += back[t, k]


@njit(cache=True, nogil=True)
def by_lanes(values, start, columns, x, y):
    """y += H x from blocks (tangent, tangent, lanes) of H on these columns (tangent, lanes), flat from `start` on."""
    repeat = max(x.shape[0] // max(values.shape[0], 1), 1)
    tangent, lanes = columns.shape
    own, image = np.empty((tangent, WIDTH), x.dtype), np.empty(WIDTH, x.dtype)
    for b in range(x.shape[0]):
        v, p, q = values[b // repeat], x[b], y[b]
        for first in range(0, lanes, WIDTH):
            have = min(WIDTH, lanes - first)
            for t in range(tangent):
                for k in range(have):
                    own[t, k] = p[columns[t, first + k]]
            for r in range(tangent):
                image[:] = 0
                for t in range(tangent):
                    line, mine = v[start + (r * tangent + t) * lanes + first :], own[t]
                    for k in range(have):
                        image[k] += line[k] * mine[k]
                for k in range(have):
                    q[columns[r, first + k]] += image[k]
