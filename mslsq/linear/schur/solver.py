"""The Schur complement as a linear solver: eliminate the blocks that do not touch each other, solve for the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.kernels import available, run_on
from mslsq.linear.block_structure import BlockStructure, predicted_nanoseconds
from mslsq.linear.dense import Cholesky
from mslsq.linear.independent_kinds import kinds_to_eliminate
from mslsq.linear.iterative import ConjugateGradient
from mslsq.linear.linear_solver import DefiniteFactor, LinearSolver
from mslsq.linear.schur.plan import SchurPlan, schur_plan
from mslsq.linear.schur.tensors import SchurTensors
from mslsq.linear.schur.torch_operators import (
    F64,
    Packed,
    Reduction,
    back_by_kernels,
    packed,
    reduce_by_kernels,
    unrollable,
)
from mslsq.linear.sparse.solver import SparseCholesky
from mslsq.linear.storage import Storage, Vector
from mslsq.linear.stored_blocks import StoredBlocks, Values
from mslsq.linear.symmetric_systems import DampedSystem, StoredSystem
from mslsq.validation import one_of

Reduced = Literal["auto", "dense", "sparse", "iterative"]

LONGEST_DIRECT = 1e10
"""Nanoseconds that a direct solve of the reduced system may take by estimate before `"auto"` iterates."""

LARGEST_DIRECT = 2e8
"""Numbers in its factor, likewise: 1.6 GB."""


@dataclass(frozen=True)
class Schur(LinearSolver):
    """Eliminates blocks that do not touch each other, one small factorisation each, and solves for the others.

    For a bundle adjustment: the 7776 points of BAL's Ladybug 49 are eliminated, and 441 unknowns of cameras are left;
    5 ms on one core instead of the 90 of a general sparse factorisation. float64 inside, float32 and float64 outside,
    batches of one structure, any device; an entry that is not positive definite is not solved and harms no other.

    The elimination of D. C. Brown, "The bundle adjustment: progress and prospects", 1976; see B. Triggs et al.,
    "Bundle adjustment: a modern synthesis", 2000, section 6.1. The formulas stand in `schur.plan`.

    Args:
        eliminate: the kind of variable to eliminate, or several: names. By default the one, or the several that do
            not touch each other, that leave the fewest unknowns.
        reduced: how the reduced system is solved: `"dense"` (LAPACK), `"sparse"` (block-sparse Cholesky),
            `"iterative"` (conjugate gradients preconditioned by its diagonal blocks, stopped as early as a step
            allows), or `"auto"`, by size and density.

    Raises:
        ValueError: an option that is not valid.
        EliminationError (a ValueError): when it is bound to a problem: blocks that are to be eliminated are in one cost
            function; nothing can be eliminated; no such name. The message says which.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.Schur(eliminate="point"))
    >>> mslsq.linear.Schur(reduced="cholesky")
    Traceback (most recent call last):
    ValueError: Schur: reduced must be one of 'auto', 'dense', 'sparse', 'iterative', not 'cholesky'.
    """

    eliminate: str | tuple[str, ...] | None = None
    reduced: Reduced = "auto"
    plan: SchurPlan | None = field(default=None, compare=False, repr=False)
    """The elimination of the structure that it is bound to; set by the engine."""
    accuracy: Tensor | None = field(default=None, compare=False, repr=False)
    """(batch,) the relative residual of an iterative solve; set by the engine."""
    reason: str = field(default="", compare=False, repr=False, kw_only=True)
    """Why it was chosen, where nobody asked for it."""

    def __post_init__(self) -> None:
        one_of("Schur: reduced", self.reduced, ("auto", "dense", "sparse", "iterative"))
        if isinstance(self.eliminate, list):
            object.__setattr__(self, "eliminate", tuple(self.eliminate))
        names = (self.eliminate,) if isinstance(self.eliminate, str) else self.eliminate
        if names is not None and not (isinstance(names, tuple) and names and all(isinstance(n, str) for n in names)):
            raise ValueError(f"Schur: eliminate must be the name of a variable or several, not {self.eliminate!r}.")

    @property
    def storage(self) -> Storage:
        return StoredBlocks(None if self.plan is None else self.plan.structure)

    def damped_system(self) -> DampedSystem:
        return StoredSystem(self.elimination.structure, self)

    @property
    def is_inexact(self) -> bool:
        return self.plan is not None and self.chosen == "iterative"

    @property
    def iterates(self) -> bool:
        return self.is_inexact

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "Schur":
        return replace(self, accuracy=accuracy)

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "Schur":
        def eliminated() -> "Schur":
            instead = "use SparseCholesky(), which finds an order by itself"
            names = kinds_to_eliminate(self.eliminate, structure, kinds, solver="Schur", instead=instead)
            return replace(self, plan=schur_plan(structure, kinds, names))

        return structure.memo.once(self, eliminated)

    @property
    def elimination(self) -> SchurPlan:
        """What is eliminated, and how."""
        if self.plan is None:
            raise RuntimeError("Schur has no structure yet: it is bound by the solver that uses it.")
        return self.plan

    @cached_property
    def chosen(self) -> Literal["dense", "sparse", "iterative"]:
        """How the reduced system is solved on a CPU; elsewhere dense for sparse."""
        if self.reduced != "auto":
            return self.reduced
        reduced, n = self.elimination.reduced, self.elimination.num_reduced
        if reduced is None:
            return "dense"
        dense, sparse, stored = dense_nanoseconds(n), float("inf"), n**2
        if available():
            sparse, stored = predicted_nanoseconds(reduced), min(n**2, reduced.factor_size)
        if min(dense, sparse) > LONGEST_DIRECT or stored > LARGEST_DIRECT:
            return "iterative"
        return "dense" if dense < sparse else "sparse"

    def _chosen_for(self, tensor: Tensor) -> Literal["dense", "sparse", "iterative"]:
        return "dense" if self.chosen == "sparse" and not self._has_kernels(tensor) else self.chosen

    def summary(self) -> str:
        plan = self.elimination
        names = " and ".join(repr(name) for name in plan.names)
        why = f"; {self.reason}" if self.reason else ""
        return (
            f"Schur (without {len(plan.eliminated)} blocks of {names}: {plan.num_reduced} unknowns, {self.chosen}{why})"
        )

    @property
    def factor_size(self) -> int:
        """How many numbers a factor holds, that of the reduced system included."""
        plan = self.elimination
        own = plan.num_reduced**2 if self.chosen != "sparse" or plan.reduced is None else plan.reduced.factor_size
        return plan.work_size + own

    @cached_property
    def nanoseconds(self) -> float:
        """An estimate of one solve on one core, to compare with other solvers."""
        plan, n = self.elimination, self.elimination.num_reduced
        total = sum(len(p.source) * (15 + 1.2 * p.size**3) for p in plan.pivots)
        total += sum(len(e.source) * (10 + e.kept_size * e.size * (1.2 + 0.3 * e.size)) for e in plan.edges)
        total += sum(len(q.left) * (2 + 0.03 * q.height * q.size * 8 * -(-q.width // 8)) for q in plan.pairs)
        if plan.reduced is None:
            return total
        return total + (dense_nanoseconds(n) if self.chosen == "dense" else predicted_nanoseconds(plan.reduced))

    # ---- solving

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        reduction = self._reduce(matrix, rhs, damping)
        kept, solved = self._solve_reduced(reduction)
        solution = self._back(reduction.work, reduction.carried, kept)
        return -solution.to(rhs.dtype), solved & reduction.regular

    def _solve_reduced(self, reduction: Reduction) -> tuple[Vector, Bool[Tensor, "batch"]]:
        n, reduced, matrix = self.elimination.num_reduced, self.elimination.reduced, reduction.matrix
        if reduced is None:
            return reduction.rhs, reduction.regular
        chosen = self._chosen_for(matrix)
        if chosen == "dense":
            step, solved = Cholesky().solve(matrix.reshape(-1, 1, n, n), reduction.rhs, None)
        else:
            iterative = chosen == "iterative"
            inner = ConjugateGradient(structure=reduced) if iterative else SparseCholesky().bound(reduced, {})
            inner = inner if self.accuracy is None else inner.to_accuracy(self.accuracy.to(F64))
            step, solved = inner.solve(matrix, reduction.rhs, None)
        return -step, solved

    def definite_factor(self, matrix: Values) -> DefiniteFactor:
        if self._has_kernels(matrix):
            return self._direct.definite_factor(matrix)
        n = self.elimination.num_reduced
        none = matrix.new_zeros(len(matrix), self.elimination.structure.num_unknowns)
        reduction = self._tensors(matrix.device, dense=True).reduce(matrix, None, none)
        eye = torch.eye(n, dtype=F64, device=matrix.device)
        reduced = reduction.matrix.reshape(-1, n, n)
        finite = torch.isfinite(reduced).all(-1).all(-1)
        triangle, info = torch.linalg.cholesky_ex(torch.where(finite[:, None, None], reduced, eye))
        definite = reduction.regular & finite & (info == 0)
        triangle = torch.where(definite[:, None, None], triangle, eye)
        work = torch.where(definite[:, None], reduction.work, 0)
        return DefiniteFactor(torch.cat((work, triangle.flatten(1)), 1), definite)

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        if self._has_kernels(factor):
            return self._direct.solve_factored(factor, rhs)
        n, tensors = self.elimination.num_reduced, self._tensors(factor.device, dense=True)
        work, triangle = factor.split((self.elimination.work_size, n * n), 1)
        carried, kept = tensors.carry(work, rhs.to(F64))
        kept = torch.cholesky_solve(kept[..., None], triangle.reshape(-1, n, n))[..., 0]
        return tensors.back(work, carried, kept).to(rhs.dtype)

    @property
    def _direct(self) -> SparseCholesky:
        return SparseCholesky().bound(self.elimination.structure, {})

    # ---- the two halves, by kernels or by tensors

    def _reduce(self, matrix: Values, rhs: Vector, damping: Vector | None) -> Reduction:
        dense = self._chosen_for(matrix) == "dense"
        if self._by_kernels(matrix):
            shift = matrix.new_zeros(0) if damping is None else damping
            return Reduction(*reduce_by_kernels(matrix, shift, rhs, *self._packed(dense)))
        return self._tensors(matrix.device, dense).reduce(matrix, damping, rhs)

    def _back(self, work: Tensor, carried: Tensor, kept: Tensor) -> Tensor:
        dense = self._chosen_for(work) == "dense"
        if self._by_kernels(work):
            return back_by_kernels(work, carried, kept, *self._packed(dense))
        return self._tensors(work.device, dense).back(work, carried, kept)

    def _by_kernels(self, tensor: Tensor) -> bool:
        return self._has_kernels(tensor) and self._small

    def _has_kernels(self, tensor: Tensor) -> bool:
        return run_on(tensor.device)

    @cached_property
    def _small(self) -> bool:
        return unrollable(self.elimination)

    def _packed(self, dense: bool) -> Packed:
        return self.elimination.memo.once(("packed", dense), lambda: packed(self.elimination, dense))

    def _tensors(self, device: torch.device, dense: bool) -> SchurTensors:
        plan = self.elimination
        return plan.memo.once(("tensors", dense, device), lambda: SchurTensors(plan, dense, device))


def dense_nanoseconds(n: int) -> float:
    """The time of forming, factoring and solving a dense system by LAPACK on one core (Zen 5: 1.4 ms for 441 unknowns,
    90 for 1800)."""
    return 2e4 + 1.5 * n**2 + 0.012 * n**3
