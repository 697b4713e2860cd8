"""Sparse Cholesky factorisations of other libraries, one file each, imported when one is asked for.

A backend is a class made from a `Lower` triangle (the analysis, once per structure) with `factor(entries)` and
`solve(rhs)`.
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
