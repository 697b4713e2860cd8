"""cuDSS on CUDA through nvmath-python (Apache-2.0; cuDSS itself is closed and free to use).

Written by its documentation and its source (nvmath-python 1.0, cuDSS 0.8): **it has never run**, for want of a GPU.
What was run is this file with a stand-in of `DirectSolver`, and `tests/linear/sparse/test_cudss.py` has what would run.
"""

import threading
import warnings
import weakref
from functools import cache
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linear.sparse.backends.analysis import Lower, NotPositiveDefiniteError, missing

DEVICE = "cuda"

_MAKING = threading.Lock()


@cache
def is_installed() -> bool:
    """Are there a GPU, nvmath-python and cuDSS itself?"""
    if not torch.cuda.is_available():
        return False
    try:
        nvmath()
    except ImportError:
        return False
    return True


def require_cudss() -> None:
    """BackendMissingError where nvmath-python or cuDSS is missing."""
    try:
        nvmath()
    except ImportError as error:
        raise missing("cudss") from error


def nvmath() -> Any:
    """`nvmath.sparse.advanced`; ImportError where it, or cuDSS, is missing."""
    library = import_module("nvmath.sparse.advanced")
    try:
        import_module("nvmath.bindings.cudss").get_property(0)  # cuDSS is loaded when it is first called
    except RuntimeError as error:
        raise ImportError(str(error)) from error
    return library


class Factorization:
    """Symmetric positive definite, the upper triangle by rows, which is the lower one by columns; float64.

    One matrix and one right-hand side live on the device for good: the solver is planned for their addresses, and what
    it is to factor or solve is copied there.
    """

    def __init__(self, lower: Lower, device: torch.device):
        library = nvmath()
        if device.type != DEVICE:
            raise ValueError(
                f"SparseCholesky(backend='cudss') solves on CUDA devices, and this problem is on {device}: move it "
                "there, or take backend='auto', which has the fastest for each device."
            )
        indptr, columns = (torch.from_numpy(index).to(device, torch.int32) for index in (lower.indptr, lower.rows))
        entries = torch.zeros(len(lower.rows), dtype=torch.float64, device=device)
        entries[indptr[:-1].long()] = 1.0  # the diagonal: the first of every row
        with _MAKING, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            size = (lower.size, lower.size)
            matrix = torch.sparse_csr_tensor(indptr, columns, entries, size, check_invariants=False)
        self._entries, self._rhs = matrix.values(), entries.new_zeros(lower.size)
        options = library.DirectSolverOptions(
            sparse_system_type=library.DirectSolverMatrixType.SPD,
            sparse_system_view=library.DirectSolverMatrixViewType.UPPER,
        )
        self._solver = library.DirectSolver(matrix, self._rhs, options=options)
        weakref.finalize(self, self._solver.free)
        self._solver.plan()

    def factor(self, entries: Float[Tensor, "entries"]) -> None:
        self._entries.copy_(entries)
        # Reading `info` waits for the device. It is not zero where a pivot is not positive (Ceres relies on it too).
        if self._solver.factorize().info != 0:
            raise NotPositiveDefiniteError("cuDSS found a pivot that is not positive")

    def solve(self, rhs: Float[Tensor, "size k"]) -> Float[Tensor, "size k"]:
        solutions = []
        for column in rhs.unbind(1):  # the number of right-hand sides is part of the plan: one
            self._rhs.copy_(column)
            solutions.append(self._solver.solve())
        return torch.stack(solutions, 1)
