"""A structure as other libraries want it, analysed once, and one operator of PyTorch for all of them."""

import importlib
import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from mslsq.levels import kept_tensors
from mslsq.linear.block_structure import BlockStructure, starts_of
from mslsq.linear.torch_operators import registered

BACKENDS = {
    "pardiso": "pypardiso",
    "cholmod": "scikit-sparse (or kvxopt; both with the GPL part of CHOLMOD)",
    "mumps": "python-mumps (with MUMPS itself beside it, e.g. Debian's libmumps-seq-dev)",
    "cudss": "nvidia-cudss-cu13 (or -cu12), 1.0 or later",
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
        self,
        values: Float[Tensor, "batch values"],
        shift: Float[Tensor, "batch size"] | None,
        rhs: Float[Tensor, "batch size k"],
    ) -> tuple[Float[Tensor, "batch size k"], Bool[Tensor, "batch"]]:
        """(A + diag(shift))⁻¹ rhs in float64, NaN where that is not positive definite; and where it is."""
        entries, rhs = values[:, self._place].to(torch.float64), rhs.to(torch.float64)
        if shift is not None:
            entries[:, self._diagonal] += shift
        usable = torch.isfinite(entries).all(1)
        with self._lock:
            solution, definite = (self._solved_on_device if self._on_device else self._solved)(entries, rhs, usable)
        solved = usable & definite & torch.isfinite(solution).all((1, 2))
        return torch.where(solved[:, None, None], solution, torch.nan), solved

    def _solved_on_device(self, entries: Tensor, rhs: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """All together, if the library does that."""
        identity = torch.zeros_like(entries[0])
        identity[self._diagonal] = 1.0
        return self._factorization.solve(torch.where(usable[:, None], entries, identity), rhs)

    def _solved(self, entries: Tensor, rhs: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """One after the other."""
        solution, definite = torch.full_like(rhs, torch.nan), torch.zeros_like(usable)
        for number in usable.nonzero()[:, 0].tolist():
            try:
                self._factorization.factor(entries[number].numpy())
                solution[number] = torch.from_numpy(self._factorization.solve(rhs[number].numpy()))
            except NotPositiveDefiniteError:
                continue
            definite[number] = True
        return solution, definite


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
    """(A + diag(shift))⁻¹ rhs for (batch, columns, k), and which entries of the batch could be solved; the others are
    NaN."""
    solution, solved = _ANALYSES[handle].solve(values, shift if shift.numel() else None, rhs)
    return solution.to(rhs.dtype, memory_format=torch.contiguous_format), solved


@solve_with_backend.register_fake
def _(values: Tensor, shift: Tensor, rhs: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    solution = torch.empty_like(rhs, memory_format=torch.contiguous_format)
    return solution, rhs.new_empty(len(rhs), dtype=torch.bool)
