"""Colourings: groups of columns that no row has two of, so that one derivative along their sum gives them all.

Curtis, Powell, Reid, "On the estimation of sparse Jacobian matrices" (1974); as colouring of a graph: Gebremedhin,
Manne, Pothen, "What color is your Jacobian?" (2005). Greedy, in several orders, the smallest result is taken.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from mslsq.linearize.compressed.sets import Sets, csr

INTERPRETED = 200_000
"""Up to so many neighbours the loop runs as plain Python, in a fifth of a second: numba takes that long to load, and
50 MB."""


def colored(graph: Sets) -> Int[ndarray, "vertices"]:
    """A colour for every vertex of a symmetric graph, different from those of its neighbours; numbered from 0.

    The orders tried: as they come (best for grids), and by decreasing degree (best where a few have many neighbours).
    """
    degrees = np.diff(graph.indptr)
    orders = [np.arange(len(degrees)), np.argsort(-degrees, kind="stable")]
    run = _kernel(graph.nnz)
    results = [run(graph.indptr, graph.indices, order) for order in orders]
    return min(results, key=lambda colors: colors.max(initial=-1))


def neighbours(sets: Sets) -> Sets:
    """The graph of columns that share a row."""
    other = csr(sets.T)
    graph = csr(other @ sets)
    graph.sort_indices()
    return graph


def _greedy(indptr: ndarray, indices: ndarray, order: ndarray) -> ndarray:
    """The smallest colour that no neighbour has, vertex by vertex."""
    colors = np.full(len(indptr) - 1, -1)
    taken = np.full(len(indptr), -1)
    for vertex in order:
        for place in range(indptr[vertex], indptr[vertex + 1]):
            color = colors[indices[place]]
            if color >= 0:
                taken[color] = vertex
        color = 0
        while taken[color] == vertex:
            color += 1
        colors[vertex] = color
    return colors


def _interpreted(indptr: ndarray, indices: ndarray, order: ndarray) -> ndarray:
    """The same for Python's own lists, which it reads ten times as fast as arrays."""
    starts, neighbors = indptr.tolist(), indices.tolist()
    colors = [-1] * (len(starts) - 1)
    for vertex in order.tolist():
        taken = {colors[other] for other in neighbors[starts[vertex] : starts[vertex + 1]]}
        color = 0
        while color in taken:
            color += 1
        colors[vertex] = color
    return np.array(colors, dtype=np.int64)


def _kernel(size: int) -> Callable[..., Any]:
    if size <= INTERPRETED:
        return _interpreted
    from numba import njit

    return njit(cache=True, nogil=True)(_greedy)
