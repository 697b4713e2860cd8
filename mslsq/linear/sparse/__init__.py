"""Block-sparse Cholesky: order, eliminate, factor and solve by blocks, with kernels of its own or other libraries'."""

from mslsq.linear.sparse.solver import SparseCholesky

__all__ = ["SparseCholesky"]
