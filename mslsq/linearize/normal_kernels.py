"""Products of the Jacobian blocks of one term, added up where they belong: compiled loops over lanes.

Sizes travel as lengths of tuples (`rows`, `height`, `width`), so each kernel is compiled once per size and kept on
disk; a lane takes some 70 ns on bundle adjustment, of which the layout of J makes no difference.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def add_products(jacobian, values, lanes, offsets, first, second, rows, height, width):
    """values[offset + a width + b] += Σ_r J[r, first + a] J[r, second + b], J (batch, rows, tangent, lanes)."""
    count, h, w = len(rows), len(height), len(width)
    left, right = np.empty(count * h, values.dtype), np.empty(count * w, values.dtype)
    for n in range(values.shape[0]):
        J, A = jacobian[n], values[n]
        for e in range(lanes.size):
            lane, at = lanes[e], offsets[e]
            for r in range(count):
                for a in range(h):
                    left[r * h + a] = J[r, first + a, lane]
                for b in range(w):
                    right[r * w + b] = J[r, second + b, lane]
            for a in range(h):
                for b in range(w):
                    value = A[at + a * w + b]
                    for r in range(count):
                        value += left[r * h + a] * right[r * w + b]
                    A[at + a * w + b] = value


@njit(cache=True, nogil=True)
def add_gradient(jacobian, residual, gradient, lanes, columns, first, rows, height):
    """gradient[column + a] += Σ_r J[r, first + a] r[r], J (batch, rows, tangent, lanes)."""
    count, h = len(rows), len(height)
    for n in range(gradient.shape[0]):
        J, R, g = jacobian[n], residual[n], gradient[n]
        for e in range(lanes.size):
            lane, at = lanes[e], columns[e]
            for a in range(h):
                value = g[at + a]
                for r in range(count):
                    value += J[r, first + a, lane] * R[r, lane]
                g[at + a] = value
