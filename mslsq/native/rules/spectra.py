"""Eigenvalues of symmetric matrices of at most 3 rows, and singular values of 2 × 2. Vectors have signs of LAPACK's
choice, and no form here."""

import itertools
from typing import Any

import numpy as np

from mslsq.native.arrays import each
from mslsq.native.rules.matrices import mapped
from mslsq.native.rules.products import product
from mslsq.native.rules.reductions import total
from mslsq.native.rules.registry import rule
from mslsq.native.scalars import NotScalarError, Scalar

LARGEST_SPECTRUM = 3
SWEEPS = 5
"""Of Jacobi's rotations, which converge quadratically: four leave 1e-16 off the diagonal of most matrices."""


def _refuse_vectors(rec: Any, values: int) -> None:
    """NotScalarError where more is used than the values, which are this part of the result."""
    for user in rec.node.users:
        is_part = getattr(user.target, "__name__", "") == "getitem"
        if user.users and not (is_part and user.args[1] == values):
            raise NotScalarError(f"{rec.node.target.__name__.partition('.')[0]} with its vectors")


@rule("_linalg_eigh")
def _(rec: Any, A: Any, triangle: str = "L", *_: Any) -> list[Any]:
    _refuse_vectors(rec, 0)
    dtype = rec.node.meta["val"][0].dtype
    if A.shape[-1] > LARGEST_SPECTRUM:
        raise NotScalarError(f"eigenvalues of {A.shape[-1]} rows")

    def found(matrix: np.ndarray) -> tuple[np.ndarray]:
        return (np.array(_eigenvalues(_symmetric(matrix, triangle == "L")), dtype=object),)

    return [rec.array(mapped(found, rec.scalars(A, dtype))[0], dtype), None]


def _symmetric(matrix: np.ndarray, is_lower: bool) -> np.ndarray:
    """The triangle that LAPACK reads, which moves as the mean of both: PyTorch's derivative goes into both."""
    result = matrix.copy()
    for i, j in itertools.combinations(range(len(matrix)), 2):
        read = matrix[j, i] if is_lower else matrix[i, j]
        mean = (matrix[i, j] + matrix[j, i]) * 0.5
        result[i, j] = result[j, i] = read.apply("detached") + _moving(mean)
    return result


def _moving(x: Scalar) -> Scalar:
    """0 with the derivatives of x."""
    return x - x.apply("detached")


def _eigenvalues(A: np.ndarray) -> list[Scalar]:
    """From small to large."""
    if len(A) == 1:
        return [A[0, 0]]
    if len(A) == 2:
        middle, half = (A[0, 0] + A[1, 1]) * 0.5, (A[0, 0] - A[1, 1]) * 0.5
        radius = (half * half + A[0, 1] * A[0, 1]).apply("length")
        return [middle - radius, middle + radius]
    values = _perturbed(A, _rotated(each(lambda x: x.apply("detached"), A)))
    for i, j in ((0, 1), (1, 2), (0, 1)):
        stays = values[i].is_at_most(values[j])
        values[i], values[j] = stays.choose(values[i], values[j]), stays.choose(values[j], values[i])
    return values


def _rotated(A: np.ndarray) -> np.ndarray:
    """The orthogonal matrix V that makes VᵀAV diagonal: cyclic Jacobi (Golub, Van Loan, Matrix Computations, 8.5)."""
    size, one = len(A), A[0, 0].like(1)
    A, V = A.copy(), np.array([[one.like(float(i == j)) for j in range(size)] for i in range(size)], dtype=object)
    for p, q in [*itertools.combinations(range(size), 2)] * SWEEPS:
        gap, twice = A[q, q] - A[p, p], A[p, q] * 2
        below = gap.apply("abs") + (gap * gap + twice * twice).apply("sqrt")
        tangent = below.is_equal(0).choose(0, twice * one.apply("copysign", gap) / below.is_equal(0).choose(1, below))
        cosine = 1 / (tangent * tangent + 1).apply("sqrt")
        sine = tangent * cosine
        for matrix in (A, V):
            left, right = matrix[:, p].copy(), matrix[:, q].copy()
            matrix[:, p] = each(lambda x, y, c=cosine, s=sine: c * x - s * y, left, right)
            matrix[:, q] = each(lambda x, y, c=cosine, s=sine: s * x + c * y, left, right)
        upper, lower = A[p].copy(), A[q].copy()
        A[p] = each(lambda x, y, c=cosine, s=sine: c * x - s * y, upper, lower)
        A[q] = each(lambda x, y, c=cosine, s=sine: s * x + c * y, upper, lower)
    return V


def _perturbed(A: np.ndarray, V: np.ndarray) -> list[Scalar]:
    """The diagonal of B = VᵀAV with constant V, and the perturbations of second and third order by what moves beside:
    together they have the eigenvalues' derivatives of the first three orders (Kato, Perturbation Theory, II §2)."""
    B = product(V.T, product(A, V))
    size, one = len(B), A[0, 0].like(1)
    moving = each(_moving, B)
    found = []
    for i in range(size):
        others = [j for j in range(size) if j != i]
        inverse = {}
        for j in others:
            gap = B[i, i] - B[j, j]
            inverse[j] = gap.is_equal(0).choose(0, one / gap.is_equal(0).choose(1, gap))
        second = [moving[i, j] * moving[i, j] * inverse[j] for j in others]
        third = [
            moving[i, j] * moving[j, k] * moving[k, i] * inverse[j] * inverse[k]
            for j, k in itertools.permutations(others, 2)
        ]
        found.append(total([B[i, i], *second, *third]))
    return found


@rule("_linalg_svd")
def _(rec: Any, A: Any, *_: Any, **__: Any) -> list[Any]:
    _refuse_vectors(rec, 1)
    if A.shape[-2:] != (2, 2):
        raise NotScalarError(f"singular values of {A.shape[-2]} × {A.shape[-1]}")
    dtype = rec.node.meta["val"][1].dtype

    def found(matrix: np.ndarray) -> tuple[np.ndarray]:
        (a, b), (c, d) = matrix
        sum_ = ((a + d) * (a + d) + (b - c) * (b - c)).apply("length")
        rest = ((a - d) * (a - d) + (b + c) * (b + c)).apply("length")
        return (np.array([(sum_ + rest) * 0.5, (sum_ - rest).apply("abs") * 0.5], dtype=object),)

    return [None, rec.array(mapped(found, rec.scalars(A, dtype))[0], dtype), None]
