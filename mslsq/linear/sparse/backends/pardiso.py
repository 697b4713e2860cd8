"""MKL PARDISO through pypardiso (BSD; MKL itself is closed and free to use): supernodal, threaded."""

import weakref
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from mslsq.linear.sparse.backends.analysis import Lower, NotPositiveDefiniteError

ANALYSE, FACTOR, SOLVE = 11, 22, 33
"""Phases of PARDISO."""


class Factorization:
    """Symmetric positive definite (mtype 2), the upper triangle by rows, which is the lower one by columns."""

    def __init__(self, lower: Lower):
        from scipy.sparse import csr_matrix

        library: Any = import_module("pypardiso.pardiso_wrapper")
        self._error, self._solver = library.PyPardisoError, library.PyPardisoSolver(mtype=2)
        data = np.ones(len(lower.rows))
        self._matrix = csr_matrix(
            (data, lower.rows.astype(np.int32), lower.indptr.astype(np.int32)), shape=(lower.size, lower.size)
        )
        self._no_rhs = np.zeros(lower.size)
        self._call(ANALYSE, self._no_rhs)
        weakref.finalize(self, self._solver.free_memory, everything=True)

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        self._matrix.data = np.ascontiguousarray(entries)
        try:
            self._call(FACTOR, self._no_rhs)
        except self._error as error:
            raise NotPositiveDefiniteError(str(error)) from error

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        return self._call(SOLVE, np.asfortranarray(rhs))

    def _call(self, phase: int, rhs: ndarray) -> ndarray:
        # pypardiso's public calls analyse again for every matrix, and compare all its numbers to find out.
        self._solver.set_phase(phase)
        return self._solver._call_pardiso(self._matrix, rhs)
