"""CHOLMOD, through scikit-sparse or kvxopt, whichever is installed.

Their builds of CHOLMOD's supernodal part are under the GPL: the library never installs nor asks for them by itself.
"""

from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from mslsq.linear.sparse.backends.analysis import Lower, NotPositiveDefiniteError


class Factorization:
    """By scikit-sparse, else by kvxopt; ImportError where neither is installed."""

    def __init__(self, lower: Lower):
        try:
            self._own: Any = ByScikitSparse(lower)
        except ImportError:
            self._own = ByKvxopt(lower)

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        self._own.factor(entries)

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        return self._own.solve(rhs)


class ByScikitSparse:
    """`sksparse.cholmod` of scikit-sparse, whose names changed with 0.5."""

    def __init__(self, lower: Lower):
        from scipy.sparse import csc_matrix

        library: Any = import_module("sksparse.cholmod")
        self._error = library.CholmodNotPositiveDefiniteError
        self._matrix = csc_matrix(
            (np.ones(len(lower.rows)), lower.rows.astype(np.int32), lower.indptr.astype(np.int32)),
            shape=(lower.size, lower.size),
        )
        if hasattr(library, "CholeskyFactor"):
            # 0.5 unpacks the supernodes of every factor: sphere2500 takes 94 ms where 0.4 takes 45.
            self._factor = library.CholeskyFactor(self._matrix, lower=True, supernodal_mode="supernodal")
            self._refactor, self._solve = self._factor.factorize, self._factor.solve
        else:
            self._factor = library.analyze(self._matrix, mode="supernodal")
            self._refactor, self._solve = self._factor.cholesky_inplace, self._factor.solve_A

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        self._matrix.data = np.ascontiguousarray(entries)
        try:
            self._refactor(self._matrix)
        except self._error as error:
            raise NotPositiveDefiniteError(str(error)) from error

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        return self._solve(rhs)


class ByKvxopt:
    """`kvxopt.cholmod`, whose default is the supernodal factorisation."""

    def __init__(self, lower: Lower):
        library: Any = import_module("kvxopt")
        self._cholmod: Any = import_module("kvxopt.cholmod")
        self._to_matrix = library.matrix
        columns = np.repeat(np.arange(lower.size), np.diff(lower.indptr))
        places = (library.matrix(lower.rows), library.matrix(columns))
        self._matrix = library.spmatrix(1.0, *places, (lower.size, lower.size))
        self._symbolic = self._cholmod.symbolic(self._matrix, uplo="L")

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        self._matrix.V = self._to_matrix(entries)
        try:
            self._cholmod.numeric(self._matrix, self._symbolic)
            # `numeric` does not always say that it failed (kvxopt 1.3.3: not the second time); this does.
            self._cholmod.diag(self._symbolic)
        except (ArithmeticError, ValueError) as error:
            raise NotPositiveDefiniteError(str(error)) from error

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        solution = self._to_matrix(rhs)
        self._cholmod.solve(self._symbolic, solution)
        return np.array(solution)
