"""Sparse Cholesky of block matrices as a linear solver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.kernels import available, may_read
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.differentiable_inverse import constant_inverse
from mslsq.linear.linear_solver import DefiniteFactor, LinearSolver
from mslsq.linear.sparse.backends.analysis import BACKENDS, analysis_of, solve_with_backend
from mslsq.linear.sparse.backends.cudss import is_taken, require_cudss
from mslsq.linear.sparse.elimination import Elimination
from mslsq.linear.sparse.multifrontal import factor, factor_into, solve, solve_by, solve_lower
from mslsq.linear.storage import Storage, Vector, already_bound
from mslsq.linear.stored_blocks import StoredBlocks, Values
from mslsq.linear.symmetric_systems import DampedSystem, StoredSystem
from mslsq.validation import one_of

WITHOUT_KERNELS = ("superlu", "cudss")
"""Backends for where the library's own kernels are not: nothing that they are asked for is done by those."""

LARGEST_KEPT = 32 * 2**20
"""Bytes of factors that are kept from one step to the next. Memory that is handed back and taken again costs 1.6 µs for
each 4 KB: 6.5 ms for the 15.5 MB of sphere2500, where a step takes 11. Larger ones than glibc ever keeps are not kept
here either, so that a solve needs no more memory at once than it did."""


@dataclass(frozen=True)
class SparseCholesky(LinearSolver):
    """Cholesky of the normal equations by blocks: analysed once per structure, refactored each step, batches together.

    Multifrontal, on supernodes in a fill-reducing order (I. S. Duff & J. K. Reid, "The multifrontal solution of
    indefinite sparse symmetric linear equations", 1983; J. W. H. Liu, "The multifrontal method for sparse matrix
    solution", 1992). On CPUs, float64 and float32, each in itself. On CUDA by cuDSS where that is installed and has
    proved itself (`make cuda`); else `Cholesky()` stands in, as on any other device. An entry that is not positive
    definite is not solved and harms no other.

    Args:
        backend: `"auto"` is the fastest: on CPUs `"mslsq"`, the library's own multifrontal kernels, which take less
            time than the others wherever it was measured (`benchmarks/sparse_cholesky.py`); on CUDA `"cudss"` (1.0 or
            later, never run so far) where `make cuda` has seen it right and faster than dense factors. Others take the
            steps where they are installed and asked for, in float64, the entries of a batch one by one (those of cuDSS
            in one call, where that has proved itself): `"pardiso"` (pip install pypardiso), `"cholmod"` (scikit-sparse
            or kvxopt), `"mumps"` (python-mumps), `"superlu"` (SciPy's, always there). With `"superlu"` and `"cudss"`
            derivatives use the same library, which factors again for each of their systems; with the others they use
            the library's own kernels.

    Raises:
        ValueError: no such backend.
        BackendMissingError (an ImportError): when it is bound to a problem: the backend's library is not installed. The
            message says what to install.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.SparseCholesky())
    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=solver)
    """

    backend: Literal["auto", "mslsq", "pardiso", "cholmod", "mumps", "cudss", "superlu"] = "auto"
    structure: BlockStructure | None = field(default=None, compare=False, repr=False)
    """The structure it is bound to; set by the engine."""
    workspace: list[Tensor] | None = field(default=None, compare=False, repr=False)
    """Memory for the factors of the next step, in one solve of a problem."""

    def __post_init__(self) -> None:
        one_of("SparseCholesky: backend", self.backend, ("auto", "mslsq", *BACKENDS))

    @property
    def storage(self) -> Storage:
        return StoredBlocks(self.structure)

    @property
    def factors_can_be_recorded(self) -> bool:
        return self.backend not in WITHOUT_KERNELS  # other libraries keep their factors to themselves

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "SparseCholesky":
        if self.backend == "auto" and not available():
            return replace(self, backend="superlu", structure=structure)
        if self.backend == "cudss":
            require_cudss()
        elif self.backend in BACKENDS:
            analysis_of(structure, self.backend)  # a missing library is said before anything is computed
        return replace(self, structure=structure)

    def with_workspace(self) -> "SparseCholesky":
        return replace(self, workspace=[])

    def elsewhere(self) -> "SparseCholesky | None":
        """cuDSS, None where it is not to be had, or has not proved itself."""
        if self.backend == "cudss":
            return self
        return replace(self, backend="cudss") if self.backend == "auto" and is_taken() else None

    def damped_system(self) -> DampedSystem:
        return StoredSystem(self._structure, self)

    def summary(self) -> str:
        return f"SparseCholesky ({'mslsq' if self.backend == 'auto' else self.backend})"

    @property
    def _structure(self) -> BlockStructure:
        return already_bound(self.structure)

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        if self.backend in BACKENDS:
            solution, solved = _solved_by(self._structure, self.backend, matrix, damping, rhs[..., None])
            return -solution[..., 0], solved
        damping, plan = matrix.new_zeros(0) if damping is None else damping, self._structure.elimination
        if may_read(matrix, rhs, damping):
            return self._solved_at_once(matrix, rhs, damping, plan)
        factors, solved = factor(matrix, damping, *plan.packed)
        return -solve(factors, solved, rhs[..., None], *plan.packed)[..., 0], solved

    def _solved_at_once(
        self, matrix: Values, rhs: Vector, damping: Vector, plan: Elimination
    ) -> tuple[Vector, Bool[Tensor, "batch"]]:
        """`solve` of plain tensors, the factors in memory that the next call takes again."""
        kept, shape = [] if self.workspace is None else self.workspace, (len(matrix), plan.factor_size)
        factors = kept.pop() if kept else None  # of two threads one finds none
        if factors is None or factors.shape != shape or factors.dtype != matrix.dtype:
            factors = matrix.new_empty(shape)
        solved = factor_into(factors, matrix, damping, plan)
        step = -solve_by(plan, factors, solved, rhs[..., None])[..., 0]
        if factors.nbytes <= LARGEST_KEPT and not factors.is_inference():
            kept.append(factors)
        return step, solved

    def definite_factor(self, matrix: Values) -> DefiniteFactor:
        if self.backend in WITHOUT_KERNELS:
            # These libraries keep their factors to themselves: what is handed on is the matrix, to be factored again.
            none = matrix.new_zeros(len(matrix), self._structure.num_unknowns, 1)
            _, definite = _solved_by(self._structure, self.backend, matrix, None, none)
            return DefiniteFactor(torch.where(definite[:, None], matrix, 0), definite)
        return DefiniteFactor(*factor(matrix, matrix.new_zeros(0), *self._structure.elimination.packed))

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        solve = partial(_solved, self._structure, self.backend)
        return constant_inverse(solve, factor, rhs[..., None])[..., 0]

    def solve_factored_each(self, factor: Tensor, vectors: Sequence[Vector]) -> list[Vector]:
        solve = partial(_solved, self._structure, self.backend)
        return list(constant_inverse(solve, factor, torch.stack(list(vectors), -1)).unbind(-1))

    def inverse_form(self, factor: Tensor, vector: Vector) -> Float[Tensor, "batch"]:
        if self.backend in WITHOUT_KERNELS:
            return super().inverse_form(factor, vector)
        lower = solve_lower(factor, _usable(factor), vector[..., None], *self._structure.elimination.packed)
        return lower.square().sum((-2, -1))

    def solve_factored_rows(
        self, factor: Tensor, rows: Float[Tensor, "batch k columns"]
    ) -> Float[Tensor, "batch k columns"]:
        return _solved(self._structure, self.backend, factor, rows.mT.contiguous()).mT


def _solved(
    structure: BlockStructure,
    backend: str,
    factors: Float[Tensor, "batch factor"],
    rhs: Float[Tensor, "batch columns k"],
) -> Float[Tensor, "batch columns k"]:
    # A zero factor stands for a matrix that has none; what is solved with it is not used. (Its first number is enough:
    # all of a factor takes as long to look at as to solve with.)
    if backend in WITHOUT_KERNELS:
        return torch.nan_to_num(_solved_by(structure, backend, factors, None, rhs)[0])
    return torch.nan_to_num(solve(factors, _usable(factors), rhs, *structure.elimination.packed))


def _usable(factors: Float[Tensor, "batch factor"]) -> Bool[Tensor, "batch"]:
    return (factors[:, :1] != 0).any(-1)


def _solved_by(
    structure: BlockStructure, backend: str, matrix: Values, damping: Vector | None, rhs: Tensor
) -> tuple[Float[Tensor, "batch columns k"], Bool[Tensor, "batch"]]:
    shift = matrix.new_zeros(0) if damping is None else damping
    return solve_with_backend(matrix, shift, rhs, analysis_of(structure, backend).handle)
