"""A structure as other libraries want it, analysed once, and one operator of PyTorch for all of them."""

import importlib
import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import BlockStructure, starts_of
from mslsq.linear.torch_operators import registered

BACKENDS = {
    "pardiso": "pypardiso",
    "cholmod": "scikit-sparse (or kvxopt; both with the GPL part of CHOLMOD)",
    "mumps": "python-mumps (with MUMPS itself beside it, e.g. Debian's libmumps-seq-dev)",
    "cudss": "nvmath-python[cu13] (or [cu12])",
    "superlu": "scipy",
}
"""The backends, and what to install for each."""


class BackendMissingError(ImportError):
    """A backend of SparseCholesky was asked for that is not installed."""


class NotPositiveDefiniteError(ArithmeticError):
    """What a backend raises where a matrix has no Cholesky factor."""


@dataclass(frozen=True, eq=False)
class Lower:
    """The lower triangle of a symmetric matrix in compressed columns, the rows in order: the upper one by rows."""

    size: int
    indptr: Int[ndarray, "size+1"]
    rows: Int[ndarray, "entries"]


class Analysis:
    """One structure in one backend. Its methods hold a lock: the libraries keep one factor per analysis."""

    def __init__(self, structure: BlockStructure, backend: str):
        device, (lower, place) = structure.device, lower_triangle(structure)
        first = lower.indptr[:-1]  # of every column, where its diagonal is
        self._place, self._diagonal = kept_tensors([place, first], device)
        self._on_device = backend == "cudss"
        module = importlib.import_module(f"mslsq.linear.sparse.backends.{backend}")
        try:
            given = (lower, device) if self._on_device else (lower,)
            self._factorization: Any = module.Factorization(*given)
        except ImportError as error:
            raise missing(backend) from error
        self._lock = threading.Lock()
        self.handle = next(_HANDLES)
        _ANALYSES[self.handle] = self

    def solve(
        self, values: Float[Tensor, "values"], shift: Float[Tensor, "size"] | None, rhs: Float[Tensor, "size k"]
    ) -> Float[Tensor, "size k"] | None:
        """(A + diag(shift))⁻¹ rhs in float64, None where that is not positive definite."""
        entries = values[self._place].to(torch.float64)
        if shift is not None:
            entries[self._diagonal] += shift
        if not torch.isfinite(entries).all():
            return None
        rhs = rhs.to(torch.float64)
        with self._lock:
            try:
                if self._on_device:
                    self._factorization.factor(entries)
                    solution = self._factorization.solve(rhs)
                else:
                    self._factorization.factor(entries.numpy())
                    solution = torch.from_numpy(self._factorization.solve(rhs.numpy()))
            except NotPositiveDefiniteError:
                return None
        return solution if torch.isfinite(solution).all() else None


def missing(backend: str) -> BackendMissingError:
    """The error that says what to install."""
    return BackendMissingError(
        f"SparseCholesky(backend={backend!r}) needs {BACKENDS[backend]}, which is not installed: pip install "
        "it, or take backend='auto', the library's own kernels."
    )


# A recorded graph holds numbers and tensors, no objects: it names an analysis by its number. The owner of the structure
# keeps the analysis alive.
_ANALYSES: "weakref.WeakValueDictionary[int, Analysis]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count()
_MAKING = threading.Lock()


def analysis_of(structure: BlockStructure, backend: str) -> Analysis:
    """The analysis of a structure by a backend, on the device of the structure; made once.

    Raises:
        BackendMissingError: its library is not installed.
    """
    with _MAKING:
        return structure.memo.once(("analysis", backend), lambda: Analysis(structure, backend))


def lower_triangle(structure: BlockStructure) -> tuple[Lower, Int[ndarray, "entries"]]:
    """The lower triangle entry by entry, and the place of each in the values."""
    row, column = structure.places
    order = np.lexsort((row, column))
    order = order[row[order] >= column[order]]
    counts = np.bincount(column[order], minlength=structure.num_unknowns)
    return Lower(structure.num_unknowns, starts_of(counts), row[order]), order


@registered("foreign_cholesky_solve")
def solve_with_backend(values: Tensor, shift: Tensor, rhs: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    """(A + diag(shift))⁻¹ rhs for (batch, columns, k), one entry of the batch after the other, and which could be
    solved; the others are NaN."""
    analysis = _ANALYSES[handle]
    solution = torch.full_like(rhs, torch.nan, memory_format=torch.contiguous_format)
    solved = torch.zeros(len(rhs), dtype=torch.bool, device=rhs.device)
    for entry in range(len(rhs)):
        found = analysis.solve(values[entry], shift[entry] if shift.numel() else None, rhs[entry])
        if found is not None:
            solution[entry], solved[entry] = found, True
    return solution, solved


@solve_with_backend.register_fake
def _(values: Tensor, shift: Tensor, rhs: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    solution = torch.empty_like(rhs, memory_format=torch.contiguous_format)
    return solution, rhs.new_empty(len(rhs), dtype=torch.bool)
