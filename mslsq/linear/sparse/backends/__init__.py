"""Sparse Cholesky factorisations of other libraries, one file each, imported when one is asked for.

A file defines a class `Factorization`, made from a `Lower` triangle (the analysis, once per structure), with
`factor(entries)`, which raises NotPositiveDefiniteError where the matrix has no factor, and `solve(rhs)` of
(size, k) with the last factor. They take and return arrays. That of cuDSS is given a device too, and solves a batch of
tensors in one call.
"""

from mslsq.linear.sparse.backends.analysis import (
    BACKENDS,
    Analysis,
    BackendMissingError,
    Lower,
    NotPositiveDefiniteError,
    lower_triangle,
    solve_with_backend,
)

__all__ = [
    "BACKENDS",
    "Analysis",
    "BackendMissingError",
    "Lower",
    "NotPositiveDefiniteError",
    "lower_triangle",
    "solve_with_backend",
]
