"""Factorizations and solves of small matrices, written out: QR by reflections, as LAPACK signs it, and Cholesky.

What PyTorch does by LU (`inv`) is done by QR: the same to rounding, and no choice of pivots.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mslsq.native.arrays import Array, each
from mslsq.native.rules.choices import number_of
from mslsq.native.rules.products import product
from mslsq.native.rules.reductions import total
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar

LARGEST_MATRIX = 6
"""Rows or columns of a matrix that is factored. QR of 6 × 6 takes some 600 operations, the Jacobian times its
columns."""


def mapped(function: Callable[..., Any], *matrices: np.ndarray) -> list[np.ndarray]:
    """`function` of each matrix of batches, and its results stacked as those were."""
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in matrices))
    wide = [np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in matrices]
    if any(size > LARGEST_MATRIX for x in matrices[:1] for size in x.shape[-2:]) or 0 in wide[0].shape:
        raise NotScalarError(f"it factors matrices of {wide[0].shape[-2]} rows and {wide[0].shape[-1]} columns")
    found = [function(*(x[place] for x in wide)) for place in np.ndindex(*batch)]
    results = []
    for parts in zip(*found, strict=True):
        result = np.empty((len(parts), *np.shape(parts[0])), dtype=object)
        for number, part in enumerate(parts):
            result[number] = part
        results.append(result.reshape((*batch, *np.shape(parts[0]))))
    return results


def _reflected(A: np.ndarray) -> tuple[np.ndarray, np.ndarray, Scalar]:
    """Qᵀ (all rows), R, and det Q = ±1 of A = Q R, by the signs of LAPACK.

    LAPACK reflects nothing where all is zero below the diagonal; then the derivative of that reflection is that of the
    one of the formula, up to the sign of a row.
    """
    m, n = A.shape
    program = A[0, 0].program
    one = program.constant(1, "real")
    zero = program.constant(0, "real")
    R = A.copy()
    Qt = np.array([[one if i == j else zero for j in range(m)] for i in range(m)], dtype=object)
    odd = one
    for k in range(min(m - 1, n)):
        alpha, below = R[k, k], R[k + 1 :, k]
        squares = total([x * x for x in below])
        is_upper = squares.is_equal(0)
        length = (alpha * alpha + squares).apply("length")
        beta = -length.apply("copysign", alpha)
        head = alpha - beta
        head = head.is_equal(0).choose(1, head)
        v = np.concatenate([np.array([one], dtype=object), each(lambda x, h=head: x / h, below)])
        factor = (beta - alpha) / beta.is_equal(0).choose(1, beta)
        sign = is_upper.choose(-1, 1)
        for matrix in (R, Qt):
            moved = each(lambda x, f=factor: f * x, product(v[None], matrix[k:])[0])
            matrix[k:] = each(lambda x, y: x - y, matrix[k:], each(lambda a, b: a * b, v[:, None], moved[None]))
            matrix[k] = each(lambda x, s=sign: x * s, matrix[k])
        R[k + 1 :, k] = zero
        # A column of zeros is not reflected at all.
        odd = odd * -sign
    return Qt, R, odd


@rule("linalg_qr")
def _(rec: Any, A: Any, mode: str = "reduced") -> list[Array]:
    def factored(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        Qt, R, _ = _reflected(matrix)
        kept = len(R) if mode == "complete" else min(matrix.shape)
        return Qt[:kept].T, R[:kept]

    dtype = rec.node.meta["val"][0].dtype
    Q, R = mapped(factored, rec.scalars(A, dtype))
    return [rec.array(Q, dtype), rec.array(R, dtype)]


@rule("_linalg_slogdet")
def _(rec: Any, A: Any) -> list[Any]:
    def found(matrix: np.ndarray) -> tuple[Scalar, Scalar]:
        _, R, odd = _reflected(matrix)
        diagonal = list(np.diagonal(R))
        sign = odd.apply("detached")
        for entry in diagonal:
            sign = sign * entry.apply("sign")
        return sign, total([entry.apply("abs").apply("log") for entry in diagonal])

    dtype = rec.node.meta["val"][0].dtype
    sign, size = mapped(found, rec.scalars(A, dtype))
    return [rec.array(sign, dtype), rec.array(size, dtype), None, None]


@rule("linalg_inv_ex")
def _(rec: Any, A: Any, *, check_errors: bool = False) -> list[Array]:
    def inverse(matrix: np.ndarray) -> tuple[np.ndarray, Scalar]:
        Qt, R, _ = _reflected(matrix)
        broken = R[0, 0].is_equal(0)
        for entry in np.diagonal(R)[1:]:
            broken = broken.apply("or", entry.is_equal(0))
        return _substituted(R, Qt, upper=True, unit=False), number_of(broken)

    values, info = rec.node.meta["val"]
    found, broken = mapped(inverse, rec.scalars(A, values.dtype))
    return [rec.array(found, values.dtype), rec.array(broken, info.dtype)]


@rule("linalg_cholesky_ex")
def _(rec: Any, A: Any, *, upper: bool = False, check_errors: bool = False) -> list[Array]:
    def factored(matrix: np.ndarray) -> tuple[np.ndarray, Scalar]:
        matrix = matrix.T if upper else matrix
        zero = matrix[0, 0].like(0)
        L = np.full(matrix.shape, zero, dtype=object)
        broken = zero.is_below(0)
        for k in range(len(matrix)):
            pivot = matrix[k, k]
            for j in range(k):
                pivot = pivot - L[k, j] * L[k, j]
            broken = broken.apply("or", pivot.is_above(0).apply("not"))
            L[k, k] = pivot.apply("sqrt")
            for i in range(k + 1, len(matrix)):
                entry = matrix[i, k]
                for j in range(k):
                    entry = entry - L[i, j] * L[k, j]
                L[i, k] = entry / L[k, k]
        return L.T if upper else L, number_of(broken)

    values, info = rec.node.meta["val"]
    found, broken = mapped(factored, rec.scalars(A, values.dtype))
    return [rec.array(found, values.dtype), rec.array(broken, info.dtype)]


@rule("linalg_solve_triangular")
def _(rec: Any, A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    def solved(T: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
        if left:
            return (_substituted(T, b, upper, unitriangular),)
        return (_substituted(T.T, b.T, not upper, unitriangular).T,)

    return rec.array(mapped(solved, rec.scalars(A, rec.dtype), rec.scalars(B, rec.dtype))[0])


@rule("cholesky_solve")
def _(rec: Any, B: Any, L: Any, upper: bool = False) -> Array:
    def solved(T: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
        lower = T.T if upper else T
        return (_substituted(lower.T, _substituted(lower, b, False, False), True, False),)

    return rec.array(mapped(solved, rec.scalars(L, rec.dtype), rec.scalars(B, rec.dtype))[0])


def _substituted(T: np.ndarray, B: np.ndarray, upper: bool, unit: bool) -> np.ndarray:
    """T⁻¹ B of a triangle; the other one is not read."""
    X = B.copy()
    order = range(len(T) - 1, -1, -1) if upper else range(len(T))
    for i in order:
        for column in range(B.shape[1]):
            entry = X[i, column]
            for j in range(i + 1, len(T)) if upper else range(i):
                entry = entry - T[i, j] * X[j, column]
            X[i, column] = entry if unit else entry / T[i, i]
    return X
