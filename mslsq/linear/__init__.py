"""Linear algebra on arrays: solvers of damped normal equations, batched. Nothing here has heard of a problem."""

from mslsq.linear.dense import QR, Cholesky
from mslsq.linear.independent_kinds import EliminationError
from mslsq.linear.iterative import ConjugateGradient
from mslsq.linear.linear_solver import LinearSolver
from mslsq.linear.schur import Schur
from mslsq.linear.sparse import SparseCholesky
from mslsq.linear.sparse.backends import BackendMissingError
from mslsq.linear.unrolled import UnrolledCholesky

__all__ = [
    "QR",
    "BackendMissingError",
    "Cholesky",
    "ConjugateGradient",
    "EliminationError",
    "LinearSolver",
    "Schur",
    "SparseCholesky",
    "UnrolledCholesky",
]
