"""SuperLU through SciPy (BSD, always installed): what is left where neither kernels nor other libraries are.

It is an LU factorisation without pivoting, so it does the work of Cholesky twice, and by single columns: ten times as
slow as the library's own kernels. A = L U with the pivots on the diagonal of U, and A is positive definite if and only
if all of them are positive.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu

from mslsq.linear.sparse.backends.analysis import Lower, NotPositiveDefiniteError

# SuperLU's own sizes of panels and supernodes: others are no faster (sphere2500: 64 to 70 ms), and SciPy 1.17 writes
# beyond its arrays with relax=32, panel_size=32.
OPTIONS = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}


class Factorization:
    """The whole symmetric matrix in an order found once (multiple minimum degree), then factored as it stands."""

    def __init__(self, lower: Lower):
        columns = np.repeat(np.arange(lower.size), np.diff(lower.indptr))
        below = np.flatnonzero(lower.rows != columns)
        row, column = np.r_[lower.rows, columns[below]], np.r_[columns, lower.rows[below]]
        place = np.r_[np.arange(len(columns)), below]
        shape = (lower.size, lower.size)
        # The order comes with a factorisation of something that has one: rows that their diagonal dominates.
        dominated = np.where(row == column, lower.size + 1.0, -1.0)
        found = splu(csc_matrix((dominated, (row, column)), shape), permc_spec="MMD_AT_PLUS_A", **OPTIONS)
        self._order = np.argsort(found.perm_c)
        row, column = found.perm_c[row], found.perm_c[column]
        order = np.lexsort((row, column))
        counts = np.bincount(column, minlength=lower.size)
        indptr = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
        self._place = place[order]
        self._matrix = csc_matrix((dominated[order], row[order].astype(np.int32), indptr), shape)

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        self._matrix.data = entries[self._place]
        try:
            factored = splu(self._matrix, permc_spec="NATURAL", **OPTIONS)
        except RuntimeError as error:  # a pivot that is exactly zero
            raise NotPositiveDefiniteError(str(error)) from error
        # A row exchange means that a pivot was zero. The copy of U that SciPy makes costs a tenth of the factorisation.
        if (factored.perm_r != factored.perm_c).any() or not (factored.U.diagonal() > 0).all():
            raise NotPositiveDefiniteError("a pivot is not positive")
        self._factor = factored

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        solution = np.empty_like(rhs)
        solution[self._order] = self._factor.solve(rhs[self._order])
        return solution
