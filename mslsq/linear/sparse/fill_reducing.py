"""A fill-reducing elimination order of a block graph: approximate minimum degree, tried from several numberings.

P. R. Amestoy, T. A. Davis, I. S. Duff, "An approximate minimum degree ordering algorithm", SIAM J. Matrix Anal. 17
(1996), on vertices that carry sizes; of vertices of one degree the one that has waited longest goes first. The kernels
are `kernels/source/fill_reducing.cpp` and `minimum_degree.h`.
"""

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from mslsq.kernels import Kernel

ATTEMPTS = 6
"""Numberings that are tried."""

_fill_reducing_order = Kernel("fill_reducing_order", "nllini")


def fill_reducing_order(
    sizes: Int[ndarray, "n"], start: Int[ndarray, "n+1"], neighbour: Int[ndarray, "edges"], attempts: int = ATTEMPTS
) -> Int[ndarray, "n"]:
    """The elimination order of the symmetric graph in compressed rows (no self loops), `sizes` unknowns per vertex.

    Vertices whose degree exceeds 10 sqrt(N) come last: they would be in every list and make the work quadratic.
    """
    order = np.empty(sizes.size, np.int32)
    _fill_reducing_order(sizes.size, sizes, start, neighbour, attempts, order)
    return order
