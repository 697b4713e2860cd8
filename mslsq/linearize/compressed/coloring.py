"""Colourings: groups of columns that no row has two of, so that one derivative along their sum gives them all.

Curtis, Powell, Reid, "On the estimation of sparse Jacobian matrices" (1974); as colouring of a graph: Gebremedhin,
Manne, Pothen, "What color is your Jacobian?" (2005). Greedy, in several orders, the smallest result is taken.
"""

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from mslsq.kernels import Kernel
from mslsq.linearize.compressed.sets import Sets, csr

_coloring = Kernel("greedy_coloring", "nllll")


def colored(graph: Sets) -> Int[ndarray, "vertices"]:
    """A colour for every vertex of a symmetric graph, different from those of its neighbours; numbered from 0.

    The orders tried: as they come (best for grids), and by decreasing degree (best where a few have many neighbours).
    """
    degrees = np.diff(graph.indptr)
    orders = [np.arange(len(degrees)), np.argsort(-degrees, kind="stable")]
    return min((_greedy(graph, order) for order in orders), key=lambda colors: colors.max(initial=-1))


def neighbours(sets: Sets) -> Sets:
    """The graph of columns that share a row."""
    other = csr(sets.T)
    graph = csr(other @ sets)
    graph.sort_indices()
    return graph


def _greedy(graph: Sets, order: Int[ndarray, "vertices"]) -> Int[ndarray, "vertices"]:
    """The smallest colour that no neighbour has, vertex by vertex."""
    start, neighbour = (np.ascontiguousarray(part, np.int64) for part in (graph.indptr, graph.indices))
    colors = np.empty(len(order), np.int64)
    _coloring(len(order), start, neighbour, np.ascontiguousarray(order, np.int64), colors)
    return colors
