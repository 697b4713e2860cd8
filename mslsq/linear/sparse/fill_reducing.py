"""Which elimination order a block graph gets: SciPy's multiple minimum degree, or beyond its reach the library's own.

Operations of the factorisation and milliseconds of the whole analysis, one thread, SciPy's against own: sphere2500
290 M, 6 against 403 M, 4; grid 100 × 100 × 2 89 M, 25 against 111 M, 11; M3500 12.5 M, 7 against 11.8 M, 4; grid
317 × 317 457 M, 480 against 535 M, 250. SciPy's also spares four seconds of compilation while numba's cache is empty.
"""

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

LARGEST_FOR_SCIPY = 20_000  # blocks: its order comes with a numeric factorisation, half a second at 100,000


def fill_reducing_order(sizes, start, neighbour):
    """The elimination order (n,) of the graph in compressed rows (no self loops), `sizes` unknowns per vertex."""
    if sizes.size <= LARGEST_FOR_SCIPY:
        return multiple_minimum_degree(start, neighbour)
    from mslsq.linear.sparse.minimum_degree import minimum_degree

    return minimum_degree(sizes, start, neighbour)


def multiple_minimum_degree(start, neighbour):
    """The order that SuperLU takes for the graph's Laplacian plus the identity, which needs no pivoting."""
    n = start.size - 1
    laplacian = sp.diags(np.diff(start) + 1.0) - sp.csr_matrix((np.ones(neighbour.size), neighbour, start), (n, n))
    options = {"SymmetricMode": True}
    factored = splu(laplacian.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return np.argsort(factored.perm_c).astype(np.int32)
