"""MUMPS (CeCILL-C) through python-mumps (BSD): multifrontal, its dense work in the BLAS that MUMPS was built with.

`pip install python-mumps` compiles a wrapper around a MUMPS that is already there (Debian: libmumps-seq-dev, conda:
mumps-seq). Threads are the BLAS's, and OpenMP's where MUMPS was built with it.
"""

import threading
import weakref
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from mslsq.linear.sparse.backends.analysis import Lower, NotPositiveDefiniteError

ANALYSE, FACTOR, SOLVE = 1, 2, 3
"""Jobs of MUMPS."""

POSITIVE_DEFINITE = 1
"""SYM: pivots are taken from the diagonal as they come."""

FILL = 2
"""ICNTL(7), approximate minimum fill. Factorisations of sphere2500 and of a grid 100 × 100 × 2, ms: 40 and 20; with
minimum degree 51 and 24, SCOTCH (MUMPS's choice) 57 and 24, PORD 38 and 20, but PORD orders for 12 and 41."""

SINGULAR, WORKSPACE_TOO_SMALL = -10, (-8, -9)
"""INFOG(1)."""

_LIBRARY = threading.RLock()
"""One call at a time, whichever instance it is for: MUMPS has module variables, and four threads without this end in
"PB allocation in DMUMPS_LOAD_INIT"."""


class Factorization:
    """One instance of MUMPS, and the arrays that it holds pointers to."""

    def __init__(self, lower: Lower):
        library: Any = import_module("mumps._mumps")  # its public Context never asks for SYM=1
        columns = np.repeat(np.arange(lower.size), np.diff(lower.indptr))
        self._rows, self._columns = (1 + index.astype(np.int32) for index in (lower.rows, columns))
        self._entries = np.ones(len(columns))
        with _LIBRARY:
            mumps: Any = library.dmumps(False, POSITIVE_DEFINITE)
        self._held = [mumps]
        weakref.finalize(self, _release, self._held)
        mumps.icntl[4] = 0  # prints nothing
        mumps.icntl[7] = FILL
        mumps.set_assembled_matrix(lower.size, self._rows, self._columns, self._entries)
        self._run(ANALYSE)

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        self._entries[:] = entries
        self._run(FACTOR)
        if self._held[0].infog[12] > 0:
            raise NotPositiveDefiniteError(f"{self._held[0].infog[12]} pivots are negative")

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        solution = np.array(rhs, order="F")
        # python-mumps takes no 1 × 1 array
        self._held[0].set_dense_rhs(solution[:, 0] if solution.shape[1] == 1 else solution)
        self._run(SOLVE)
        return solution

    def _run(self, job: int) -> None:
        mumps = self._held[0]
        with _LIBRARY:
            mumps.job = job
            mumps.call()
            while mumps.infog[1] in WORKSPACE_TOO_SMALL:
                mumps.icntl[14] *= 2  # how much more than it estimated, per cent
                mumps.job = job
                mumps.call()
        if mumps.infog[1] == SINGULAR:
            raise NotPositiveDefiniteError("a pivot is zero")
        if mumps.infog[1] < 0:
            raise RuntimeError(
                f"MUMPS failed in job {job} (1 analysis, 2 factorisation, 3 solve) with INFOG(1) = {mumps.infog[1]}, "
                f"INFOG(2) = {mumps.infog[2]}: its users' guide says what that means (-13: out of memory)."
            )


def _release(held: list[Any]) -> None:
    # The instance ends itself with a call of MUMPS, which disturbs no other call while the lock is held.
    with _LIBRARY:
        held.clear()
