"""(JᵀJ)⁻¹ of a dense Jacobian, by the two ways of SciPy."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def by_factor(jacobian: Array) -> Array | None:
    """By the triangle of J P = Q R; None where it is singular. Symmetric to the bit."""
    from scipy.linalg import lapack

    triangle, order = _factor(jacobian)[1:]
    inverse, info = cast(Any, lapack).dtrtri(triangle)
    if info != 0:
        return None
    inverse[order] = inverse.copy()
    return inverse @ inverse.T


def by_pseudo_inverse(jacobian: Any) -> Array:
    """By the singular values that are not zero to rounding."""
    from scipy.linalg import svd

    dense = jacobian if isinstance(jacobian, np.ndarray) else jacobian.toarray()
    _, values, rows = svd(dense, full_matrices=False)
    kept = values > np.finfo(float).eps * max(dense.shape) * values[0]
    return (rows[kept].T / values[kept] ** 2) @ rows[kept]


def figures_of_factor(jacobian: Array, residual: Array) -> dict[str, Array]:
    """`fjac`, `ipvt` and `qtf` as SciPy's `leastsq` has them: R by columns, the order of the columns, Qᵀr. Where
    MINPACK keeps the reflections of Q, below the triangle, there are zeros."""
    orthogonal, triangle, order = _factor(jacobian)
    packed = np.zeros((jacobian.shape[1], jacobian.shape[0]))
    packed[:, : len(triangle)] = triangle.T
    return {"fjac": packed, "ipvt": order, "qtf": orthogonal.T @ residual}


def _factor(jacobian: Array) -> tuple[Array, Array, Array]:
    from scipy.linalg import qr

    return cast(Any, qr(jacobian, mode="economic", pivoting=True))
