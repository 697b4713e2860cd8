"""The Schur complement as a linear solver: eliminate the blocks that do not touch each other, solve for the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.cost_models import AROUND_ELIMINATION, padded, speed
from mslsq.linear.dense import Cholesky
from mslsq.linear.independent_kinds import kinds_to_eliminate
from mslsq.linear.iterative import ConjugateGradient
from mslsq.linear.iterative.allowance import Allowance
from mslsq.linear.linear_solver import DefiniteFactor, LinearSolver
from mslsq.linear.schur import by_kernels, by_tensors
from mslsq.linear.schur.by_kernels import F64, Reduction
from mslsq.linear.schur.plan import SchurPlan, schur_plan
from mslsq.linear.schur.reduced import Reduced, dense_nanoseconds
from mslsq.linear.sparse.solver import SparseCholesky
from mslsq.linear.storage import Storage, Vector, already_bound
from mslsq.linear.stored_blocks import StoredBlocks, Values
from mslsq.linear.symmetric_systems import DampedSystem, StoredSystem
from mslsq.validation import one_of


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
    iterative: ConjugateGradient = field(default_factory=ConjugateGradient, compare=False, repr=False)
    """What an iterative solve is made by; set by the engine."""
    reason: str = field(default="", compare=False, repr=False, kw_only=True)
    """Why it was chosen, where the user did not ask for it."""

    def __post_init__(self) -> None:
        one_of("Schur: reduced", self.reduced, ("auto", "dense", "sparse", "iterative"))
        if isinstance(self.eliminate, Sequence) and not isinstance(self.eliminate, str):
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
        return self.plan is not None and self.plan.chosen == "iterative"

    @property
    def iterates(self) -> bool:
        return self.is_inexact

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "Schur":
        return replace(self, accuracy=accuracy)

    def without_asking(self) -> "Schur":
        return replace(self, iterative=self.iterative.without_asking())

    def with_allowance(self, allowance: Allowance) -> "Schur":
        return replace(self, iterative=self.iterative.with_allowance(allowance))

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "Schur":
        def eliminated() -> "Schur":
            instead = "use SparseCholesky(), which finds an order by itself"
            names = kinds_to_eliminate(self.eliminate, structure, kinds, solver="Schur", instead=instead)
            return replace(self, plan=schur_plan(structure, kinds, names, self.reduced))

        return structure.memo.once(self, eliminated)

    @property
    def elimination(self) -> SchurPlan:
        """What is eliminated, and how."""
        return already_bound(self.plan)

    def summary(self) -> str:
        plan = self.elimination
        names = " and ".join(repr(name) for name in plan.names)
        left, why = plan.tables.num_reduced, f"; {self.reason}" if self.reason else ""
        return f"Schur (without {len(plan.eliminated)} blocks of {names}: {left} unknowns, {plan.chosen}{why})"

    @property
    def factor_size(self) -> int:
        """How many numbers a factor holds, that of the reduced system included."""
        plan, tables = self.elimination, self.elimination.tables
        if plan.chosen != "sparse" or plan.reduced is None:
            return tables.factor_size + tables.num_reduced**2
        return tables.factor_size + plan.reduced.elimination_size

    @property
    def nanoseconds(self) -> float:
        """An estimate of one solve on one core, to compare with other solvers."""
        plan, tables, of = self.elimination, self.elimination.tables, speed().elimination
        total = AROUND_ELIMINATION + of.matrix * tables.matrix_size
        total += sum(len(p.source) * of.pivot * max(1, p.size / 3) ** 3 for p in tables.pivots)
        total += sum(len(e.source) * of.coupling * e.size * padded(e.kept_size) for e in tables.edges)
        for q in tables.pairs:
            total += len(q.factors) * (of.pair + of.product * q.height * q.size * padded(q.width))
        for q in tables.alike:
            total += len(q.row) * of.pair + int(q.count.sum()) * of.product * q.size * q.width * padded(q.width) / 2
        if plan.reduced is None:
            return total
        dense = plan.chosen == "dense"
        return total + (dense_nanoseconds(tables.num_reduced) if dense else plan.reduced.elimination_nanoseconds)

    # ---- solving

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        plan = self.elimination
        if plan.by_kernels:
            shift = matrix.new_zeros(0) if damping is None else damping
            reduction = Reduction(*by_kernels.reduce(matrix, shift, rhs, *plan.tables.packed))
        else:
            reduction = by_tensors.reduce(matrix, damping, rhs, plan.tables)
        kept, solved = self._solve_reduced(reduction)
        given = reduction.work, reduction.carried, kept
        if plan.by_kernels:
            solution = by_kernels.back(matrix, *given, *plan.tables.packed)
        else:
            solution = by_tensors.back(*given, plan.tables)
        return -solution.to(rhs.dtype), solved & reduction.regular

    def _solve_reduced(self, reduction: Reduction) -> tuple[Vector, Bool[Tensor, "batch"]]:
        plan, matrix = self.elimination, reduction.matrix
        if plan.reduced is None:
            return reduction.rhs, reduction.regular
        if plan.chosen == "dense":
            n = plan.tables.num_reduced
            step, solved = Cholesky().solve(matrix.reshape(-1, 1, n, n), reduction.rhs, None)
        else:
            inner = self.iterative if plan.chosen == "iterative" else SparseCholesky()
            inner = inner.bound(plan.reduced, {})
            inner = inner if self.accuracy is None else inner.to_accuracy(self.accuracy.to(F64))
            step, solved = inner.solve(matrix, reduction.rhs, None)
        return -step, solved

    def definite_factor(self, matrix: Values) -> DefiniteFactor:
        plan, tables = self.elimination, self.elimination.tables
        if plan.kernels:
            return self._direct.definite_factor(matrix)
        none = matrix.new_zeros(len(matrix), tables.num_unknowns)
        reduction = by_tensors.reduce(matrix, None, none, tables)
        reduced = reduction.matrix
        if plan.chosen == "iterative":
            assert plan.reduced is not None  # something is iterated on
            entries, n = plan.reduced.entries, tables.num_reduced
            dense = reduced.new_zeros(len(reduced), n * n)
            reduced = dense.index_copy(1, entries.row * n + entries.column, reduced.index_select(1, entries.place))
        eye = torch.eye(tables.num_reduced, dtype=F64, device=matrix.device)
        reduced = reduced.reshape(-1, *eye.shape)
        finite = torch.isfinite(reduced).all(-1).all(-1)
        triangle, info = torch.linalg.cholesky_ex(torch.where(finite[:, None, None], reduced, eye))
        definite = reduction.regular & finite & (info == 0)
        triangle = torch.where(definite[:, None, None], triangle, eye)
        work = torch.where(definite[:, None], reduction.work, 0)
        return DefiniteFactor(torch.cat((work, triangle.flatten(1)), 1), definite)

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        plan, tables = self.elimination, self.elimination.tables
        if plan.kernels:
            return self._direct.solve_factored(factor, rhs)
        work, triangle = factor.split((tables.factor_size, tables.num_reduced**2), 1)
        carried, kept = by_tensors.carry(work, rhs.to(F64), tables)
        triangle = triangle.reshape(-1, tables.num_reduced, tables.num_reduced)
        kept = torch.cholesky_solve(kept[..., None], triangle)[..., 0]
        return by_tensors.back(work, carried, kept, tables).to(rhs.dtype)

    @property
    def _direct(self) -> SparseCholesky:
        return SparseCholesky().bound(self.elimination.structure, {})
