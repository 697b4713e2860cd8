"""A structure as other libraries want it, analysed once, and one operator of PyTorch for all of them."""

import importlib
import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.torch_operators import registered

BACKENDS = {"pardiso": "pypardiso", "cholmod": "scikit-sparse<0.5 (or kvxopt, whose build of CHOLMOD is GPL)"}
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


class Backend(Protocol):
    """What a file of this folder defines as `Factorization`."""

    def __init__(self, lower: Lower) -> None:
        """The symbolic analysis."""
        ...

    def factor(self, entries: Float[ndarray, "entries"]) -> None:
        """Factor the matrix with these entries; NotPositiveDefiniteError where it has no factor."""
        ...

    def solve(self, rhs: Float[ndarray, "size k"]) -> Float[ndarray, "size k"]:
        """With the last factor."""
        ...


class Analysis:
    """One structure in one backend. Its methods hold a lock: the libraries keep one factor per analysis."""

    def __init__(self, structure: BlockStructure, backend: str):
        lower, self._place = lower_triangle(structure)
        self._diagonal = lower.indptr[:-1]  # the first of every column
        module = importlib.import_module(f"mslsq.linear.sparse.backends.{backend}")
        try:
            self._factorization: Backend = module.Factorization(lower)
        except ImportError as error:
            raise BackendMissingError(
                f"SparseCholesky(backend={backend!r}) needs {BACKENDS[backend]}, which is not installed: pip install "
                "it, or take backend='auto', the library's own kernels."
            ) from error
        self._lock = threading.Lock()
        self.handle = next(_HANDLES)
        _ANALYSES[self.handle] = self

    def solve(
        self, values: Float[ndarray, "values"], shift: Float[ndarray, "size"] | None, rhs: Float[ndarray, "size"]
    ) -> Float[ndarray, "size"] | None:
        """(A + diag(shift))⁻¹ rhs in float64, None where that is not positive definite."""
        entries = values[self._place].astype(np.float64, copy=False)
        if shift is not None:
            entries[self._diagonal] += shift
        if not np.isfinite(entries).all():
            return None
        with self._lock:
            try:
                self._factorization.factor(entries)
                solution = self._factorization.solve(rhs.astype(np.float64)[:, None])[:, 0]
            except NotPositiveDefiniteError:
                return None
        return solution if np.isfinite(solution).all() else None


# A recorded graph holds numbers and tensors, no objects: it names an analysis by its number. Whoever owns the structure
# keeps the analysis alive.
_ANALYSES: "weakref.WeakValueDictionary[int, Analysis]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count()
_MAKING = threading.Lock()


def analysis_of(structure: BlockStructure, backend: str) -> Analysis:
    """The analysis of a structure by a backend; made once.

    Raises:
        BackendMissingError: its library is not installed.
    """
    with _MAKING:
        made = structure.__dict__.setdefault("_analyses", {})
        if backend not in made:
            made[backend] = Analysis(structure, backend)
        return made[backend]


def lower_triangle(structure: BlockStructure) -> tuple[Lower, Int[ndarray, "entries"]]:
    """The lower triangle entry by entry, and the place of each in the values."""
    heights, widths = structure.block_sizes[structure.rows], structure.block_sizes[structure.cols]
    sizes = heights * widths
    block = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(sizes.sum()) - (np.cumsum(sizes) - sizes)[block]
    row = structure.starts[structure.rows[block]] + within // widths[block]
    column = structure.starts[structure.cols[block]] + within % widths[block]
    place = structure.offsets[block] + within
    order = np.lexsort((row, column))
    order = order[row[order] >= column[order]]
    size = structure.num_unknowns
    counts = np.bincount(column[order], minlength=size)
    return Lower(size, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), row[order]), place[order]


@registered("foreign_cholesky_solve")
def solve_with_backend(values: Tensor, shift: Tensor, rhs: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    """(A + diag(shift))⁻¹ rhs for every entry of a batch, one after the other, and which could be solved."""
    analysis = _ANALYSES[handle]
    solution, solved = torch.full_like(rhs, torch.nan), torch.zeros(len(rhs), dtype=torch.bool)
    for entry in range(len(rhs)):
        own_shift = shift[entry].numpy() if shift.numel() else None
        found = analysis.solve(values[entry].numpy(), own_shift, rhs[entry].numpy())
        if found is not None:
            solution[entry], solved[entry] = torch.from_numpy(found), True
    return solution, solved


@solve_with_backend.register_fake
def _(values: Tensor, shift: Tensor, rhs: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rhs), rhs.new_empty(len(rhs), dtype=torch.bool)
