"""Damped linear least squares of one Jacobian: by orthogonal factorisation, or by LSMR where it is not dense.

A system holds J and r of one linearization. `step` solves min ‖r + J(m + p)‖² + ‖√d p‖² over the free entries of p,
around a given move m of the others.
"""

import functools
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

EXACT = {"atol": 1e-12, "btol": 1e-12, "conlim": 0.0}
"""LSMR's tolerances where the user gives none: steps as good as those of a factorisation."""


class Dense:
    """J as the triangle of J = QR, which squares no condition number (Moré, "The Levenberg–Marquardt algorithm:
    implementation and theory", 1978)."""

    def __init__(self, jacobian: Array, residual: Array):
        rows, count = jacobian.shape
        whole = np.empty((rows, count + 1), order="F")
        whole[:, :count], whole[:, count] = jacobian, residual
        whole = _factored(whole)[:count]
        places = np.arange(count)
        self._triangle = np.where(places[: len(whole), None] <= places, whole[:, :count], 0.0)
        self._rhs = whole[:, count]
        self.squared_norms = np.einsum("ij,ij->j", self._triangle, self._triangle)
        """The squared lengths of the columns."""

    def times(self, vector: Array) -> Array:
        """Qᵀ J v, which is as long as J v."""
        return self._triangle @ vector

    def normal_product(self, vector: Array) -> Array:
        """JᵀJ v."""
        return (self._triangle @ vector) @ self._triangle

    def magnitude(self, sizes: Array) -> Array:
        """|J|ᵀ|J| |x|: how large a gradient x can make."""
        triangle = np.abs(self._triangle)
        return (triangle @ sizes) @ triangle

    def step(self, damping: Array, free: Array | None = None, move: Array | None = None) -> Array | None:
        """p, zero where it is not free; None where the system is singular."""
        triangle, rhs = self._triangle, self._rhs
        if move is not None:
            rhs = rhs + triangle @ move
        if free is not None:
            triangle, damping = triangle[:, free], damping[free]
        rows, count = triangle.shape
        joint = np.zeros((rows + count, count + 1), order="F")
        joint[:rows, :count], joint[:rows, count] = triangle, rhs
        joint[rows:, :count].flat[:: count + 1] = np.sqrt(damping)
        factor = _factored(joint)
        solution, info = _lapack().dtrtrs(factor[:count, :count], -factor[:count, count]) if count else (np.zeros(0), 0)
        if info:
            return None
        if free is None:
            return solution
        step = np.zeros(len(free))
        step[free] = solution
        return step


def _factored(matrix: Array) -> Array:
    """R of a QR factorisation, above and on the diagonal. LAPACK's own: NumPy's and SciPy's functions around it take
    longer than it does for three columns."""
    return _lapack().dgeqrf(matrix, lwork=64 * matrix.shape[1], overwrite_a=1)[0]


@functools.cache
def _lapack() -> Any:
    from scipy.linalg import lapack

    return lapack


class Iterative:
    """J sparse, or a LinearOperator: LSMR (Fong and Saunders, 2011) in variables scaled by the damping.

    Args:
        options: of `scipy.sparse.linalg.lsmr`.
    """

    def __init__(self, jacobian: Any, residual: Array, options: dict[str, Any]):
        from scipy.sparse.linalg import aslinearoperator

        self._jacobian, self._operator = jacobian, aslinearoperator(jacobian)
        self._residual = residual
        self._options = {"maxiter": max(100, 4 * min(jacobian.shape)), **EXACT, **options}
        self.squared_norms = self._lengths()

    def _lengths(self) -> Array:
        if isinstance(self._jacobian, np.ndarray):
            return np.einsum("ij,ij->j", self._jacobian, self._jacobian)
        if not self._is_sparse:
            return np.ones(self._jacobian.shape[1])
        return np.asarray(self._jacobian.multiply(self._jacobian).sum(axis=0)).reshape(-1)

    @property
    def _is_sparse(self) -> bool:
        from scipy.sparse import issparse

        return bool(issparse(self._jacobian))

    def times(self, vector: Array) -> Array:
        return self._operator.matvec(vector)

    def normal_product(self, vector: Array) -> Array:
        return self._operator.rmatvec(self._operator.matvec(vector))

    def magnitude(self, sizes: Array) -> Array:
        if isinstance(self._jacobian, np.ndarray) or self._is_sparse:
            absolute = abs(self._jacobian)
            return absolute.T @ (absolute @ sizes)
        return np.abs(self.normal_product(sizes))

    def step(self, damping: Array, free: Array | None = None, move: Array | None = None) -> Array | None:
        from scipy.sparse.linalg import LinearOperator, lsmr

        scale = 1 / np.sqrt(damping)
        if free is not None:
            scale = np.where(free, scale, 0)
        rhs = self._residual if move is None else self._residual + self.times(move)
        operator = cast(Any, LinearOperator)(
            shape=self._operator.shape,
            dtype=np.float64,
            matvec=lambda v: self._operator.matvec(scale * np.ravel(v)),
            rmatvec=lambda u: scale * self._operator.rmatvec(np.ravel(u)),
        )
        solution = scale * lsmr(operator, -rhs, damp=1.0, **self._options)[0]
        return solution if np.isfinite(solution).all() else None


System = Dense | Iterative
