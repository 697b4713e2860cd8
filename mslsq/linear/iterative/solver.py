"""Conjugate gradients as a linear solver: inexact steps of large problems, and exact solves for the adjoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.kernels import run_on
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.differentiable_inverse import constant_inverse
from mslsq.linear.independent_kinds import EliminationError, blocks_of, kinds_to_eliminate
from mslsq.linear.iterative.accurate import Accurate, Foreseen, random_rhs, solve_accurately
from mslsq.linear.iterative.allowance import DEEPEST, Allowance, Spent
from mslsq.linear.iterative.block_rows import BlockRows, HessianBlocks, JacobianBlocks
from mslsq.linear.iterative.conjugate_gradients import always
from mslsq.linear.iterative.implicit_schur import ImplicitSchur, ImplicitSchurPlan
from mslsq.linear.iterative.linear_operators import Formed, FormedPlan, Operator, Vectors
from mslsq.linear.iterative.torch_operators import iterate, step_by
from mslsq.linear.iterative.unformed import UnformedBlocks
from mslsq.linear.linear_solver import DefiniteFactor, LinearSolver
from mslsq.linear.operator_plan import OperatorPlan
from mslsq.linear.sparse import SparseCholesky
from mslsq.linear.storage import Storage, Vector, already_bound
from mslsq.linear.stored_blocks import StoredBlocks
from mslsq.linear.symmetric_systems import DampedSystem, StoredSystem, UnformedSystem
from mslsq.validation import boolean, integer, number, one_of, plain_options

LARGEST_DIRECT = 2e8
"""Up to that many numbers in the factor (1.6 GB) derivatives are solved by sparse Cholesky, on a CPU: it proves the
Hessian positive definite, and does not depend on its condition."""

Values = Float[Tensor, "batch values"]


@dataclass(frozen=True)
class ConjugateGradient(LinearSolver):
    """Preconditioned conjugate gradients on the normal equations, stopped as early as the step allows.

    Memory is linear in the blocks of the problem, where a factorisation fills in. Steps are inexact: far from the
    solution a relative residual of `tolerance` is enough, near it the residual falls with the square of the gradient
    (S. C. Eisenstat & H. F. Walker, "Choosing the forcing terms in an inexact Newton method", 1996, choice 2).
    Residuals are measured in the norm of the preconditioner, which depends on no units. Any device; float64 and
    float32, each in itself. Each entry of a batch stops by itself, and one whose numbers are not finite fails alone.

    Derivatives through the solve are exact all the same: the Hessian is factored by sparse Cholesky where its factor
    fits, or else solved to a relative residual of 1e-12, and where that fails the derivative is NaN, with a warning.

    Args:
        preconditioner: `"block_jacobi"`, the inverses of the diagonal blocks; `"jacobi"`, of the diagonal;
            `"schur_jacobi"` eliminates a kind of variable whose blocks do not touch each other (the points of a
            bundle adjustment), iterates on the implicit Schur complement and inverts that one's diagonal blocks.
        tolerance: largest relative residual of a step.
        max_iterations: per step; what has been reached by then is taken, it is a descent direction all the same.
        matrix_free: never form the normal equations: products straight from the blocks of the Jacobian. Less memory
            where a block touches many variables; cheaper iterations or dearer ones, by the number of rows.
        forcing: `"adaptive"` as above, or `"constant"`: every step to `tolerance`.
        eliminate: with `"schur_jacobi"`, the name of the variable to eliminate; found by itself otherwise.
        derivatives: `"auto"`, `"direct"` or `"iterative"`, how the systems of the adjoint are solved: with the Hessian,
            or with the damped normal equations of every step (`Unrolled`).

    Raises:
        ValueError: options that are not valid, or not together.
        EliminationError (a ValueError): when `"schur_jacobi"` is bound to a problem: the blocks that are to be
            eliminated touch each other, or are all there is; there is no such variable. The message says which.

    >>> solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.ConjugateGradient(tolerance=0.01))
    >>> solution = mslsq.solve(problem, {"pose": T0}, solver=solver)
    """

    preconditioner: Literal["block_jacobi", "jacobi", "schur_jacobi"] = "block_jacobi"
    tolerance: float = 0.1
    max_iterations: int = 500
    matrix_free: bool = False
    forcing: Literal["adaptive", "constant"] = "adaptive"
    eliminate: str | None = None
    derivatives: Literal["auto", "direct", "iterative"] = "auto"
    structure: BlockStructure | None = field(default=None, compare=False, repr=False)
    """The structure it is bound to; set by the engine."""
    rows: BlockRows | None = field(default=None, compare=False, repr=False)
    """The blocks it is bound to, where it is matrix-free; set by the engine."""
    eliminated: np.ndarray | None = field(default=None, compare=False, repr=False)
    reason: str = field(default="", compare=False, repr=False)
    """Why it was chosen, where it was not asked for."""
    accuracy: Tensor | None = field(default=None, compare=False, repr=False)
    """(batch,) the relative residual of the present step; set by the engine."""
    asks: bool = field(default=True, compare=False, repr=False)
    """May it look whether all entries of a batch are solved? Set by the engine."""
    allowance: Allowance | None = field(default=None, compare=False, repr=False)
    """How many iterations a step makes, without looking; set by the engine where looking costs a wait."""

    def __post_init__(self) -> None:
        plain_options(self)
        for option, known in (
            ("preconditioner", ("block_jacobi", "jacobi", "schur_jacobi")),
            ("forcing", ("adaptive", "constant")),
            ("derivatives", ("auto", "direct", "iterative")),
        ):
            one_of(f"ConjugateGradient: {option}", getattr(self, option), known)
        number("ConjugateGradient: tolerance", self.tolerance, above=0, below=1)
        integer("ConjugateGradient: max_iterations", self.max_iterations, 1)
        boolean("ConjugateGradient: matrix_free", self.matrix_free)
        if self.matrix_free and self.preconditioner == "schur_jacobi":
            raise ValueError(
                "ConjugateGradient: 'schur_jacobi' needs the blocks of the normal equations: leave matrix_free out, or "
                "take 'block_jacobi'."
            )
        if self.matrix_free and self.derivatives == "direct":
            raise ValueError("ConjugateGradient: a matrix-free solver has nothing to factor: derivatives='iterative'.")
        if self.eliminate is not None and self.preconditioner != "schur_jacobi":
            raise ValueError("ConjugateGradient: eliminate=... goes with preconditioner='schur_jacobi'.")

    @property
    def storage(self) -> Storage:
        return UnformedBlocks(self.rows) if self.matrix_free else StoredBlocks(self.structure)

    @property
    def is_inexact(self) -> bool:
        return self.forcing == "adaptive"

    @property
    def iterates(self) -> bool:
        return True

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "ConjugateGradient":
        return replace(self, accuracy=accuracy)

    def without_asking(self) -> "ConjugateGradient":
        return replace(self, asks=False)

    def with_allowance(self, allowance: Allowance) -> "ConjugateGradient":
        return replace(self, allowance=allowance)

    def summary(self) -> str:
        how = "matrix-free, " if self.matrix_free else ""
        why = f"; {self.reason}" if self.reason else ""
        return f"ConjugateGradient ({how}{self.preconditioner}{why})"

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "ConjugateGradient":
        eliminated = None
        if self.preconditioner == "schur_jacobi":
            eliminated = self._eliminated(structure, kinds)
        return replace(self, structure=structure, eliminated=eliminated)

    def _eliminated(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> Bool[np.ndarray, "blocks"]:
        """The blocks that `"schur_jacobi"` eliminates."""
        solver, instead = "ConjugateGradient", "take preconditioner='block_jacobi'"
        names = kinds_to_eliminate(self.eliminate, structure, kinds, solver=solver, instead=instead, at_most=1)
        chosen = blocks_of(structure, kinds, names)
        if chosen.all() or not chosen.any():
            what = "is all there is" if chosen.all() else "is held fixed as a whole"
            raise EliminationError(f"{solver}(eliminate={names[0]!r}): {names[0]!r} {what}: {instead}.")
        return chosen

    def bound_to_rows(self, rows: BlockRows) -> "ConjugateGradient":
        return replace(self, rows=rows)

    def for_normal_equations(self) -> "ConjugateGradient":
        return replace(self, matrix_free=False)

    def damped_system(self) -> DampedSystem:
        return StoredSystem(self._structure, self) if self.rows is None else UnformedSystem(self.rows, self)

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        operator, plan = self._operator()
        if self.allowance is not None:
            made = operator(matrix, damping, plan, self.preconditioner == "jacobi")
            return self._rationed(made, rhs, self.allowance)
        x, solved, _ = iterate(
            matrix,
            rhs,
            matrix.new_zeros(0) if damping is None else damping,
            matrix.new_zeros(0) if self.accuracy is None else self.accuracy,
            *plan.packed,
            operator.kind,
            self.preconditioner == "jacobi",
            self.tolerance,
            self.max_iterations,
            self.asks,
        )
        return -x, solved

    def _rationed(self, operator: Operator, rhs: Vector, allowance: Allowance) -> tuple[Vector, Bool[Tensor, "batch"]]:
        """As many iterations as are allowed; none is known to be left out, so this is no part of a recorded graph."""
        wanted = rhs.new_full((len(rhs),), self.tolerance) if self.accuracy is None else self.accuracy
        wanted, allowed = wanted.clamp(max=self.tolerance), allowance.limit(self.max_iterations)
        deep = wanted.clamp(max=DEEPEST)
        x, solved, result = step_by(operator, rhs, deep, allowed, always, keeps_residuals=True)
        allowance.spend(Spent(already_bound(result.residuals), result.iterations), wanted, self.tolerance)
        return -x, solved

    # ---- for the adjoint

    def definite_factor(self, matrix: Values) -> DefiniteFactor:
        """The matrix itself, and where it is positive definite as far as conjugate gradients with a random right-hand
        side can tell: they converge, and meet every direction on the way. Sparse Cholesky's, where that is used."""
        if self._solves_directly:
            return self._direct.definite_factor(matrix)
        finite = torch.isfinite(matrix).all(-1)
        probe = random_rhs(self._num_columns, matrix)
        tried = self._solve_accurately(torch.where(finite[:, None], matrix, 0), probe)
        looked_definite = finite & tried.definite
        usable = looked_definite & tried.converged
        undecided = torch.where(looked_definite & ~tried.converged, tried.residual, torch.nan)
        return DefiniteFactor(torch.where(usable[:, None], matrix, 0), usable, undecided)

    def factor_of_step(self, matrix: Values) -> DefiniteFactor:
        if self._solves_directly:
            return self._direct.definite_factor(matrix)
        finite = torch.isfinite(matrix).all(-1)
        return DefiniteFactor(torch.where(finite[:, None], matrix, 0), finite)

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        if self._solves_directly:
            return self._direct.solve_factored(factor, rhs)
        return constant_inverse(self._solved, factor, rhs[..., None])[..., 0]

    def _solved(self, matrix: Values, rhs: Float[Tensor, "batch columns k"]) -> Float[Tensor, "batch columns k"]:
        """A⁻¹ rhs, NaN where the residual stays too large."""
        tried = self._solve_accurately(matrix, rhs.mT.flatten(0, 1))
        return _trusted(tried, matrix, rhs)

    def solve_damped(
        self, jacobian: Values, damping: Vector, rhs: Float[Tensor, "batch columns k"]
    ) -> Float[Tensor, "batch columns k"]:
        """(JᵀJ + diag(damping))⁻¹ rhs from the blocks of J, as accurately as for derivatives; NaN where the residual
        stays too large."""
        rows = already_bound(self.rows)
        operator = JacobianBlocks(jacobian, damping, rows.jacobian, False)
        given = operator, rhs.mT.flatten(0, 1), self._most_iterations(rhs.shape[1])
        tried = solve_accurately(*given, rows.memo.once("damped solves", Foreseen), self.asks)
        return _trusted(tried, jacobian, rhs)

    def _solve_accurately(self, matrix: Values, rhs: Vectors) -> Accurate:
        if self.rows is not None:
            operator: Operator = HessianBlocks(matrix, None, self.rows.hessian, False)
            memo = self.rows.memo
        else:
            operator = Formed(matrix, None, FormedPlan.of(self._structure), False)
            memo = self._structure.memo
        foreseen = memo.once("accurate solves", Foreseen)
        return solve_accurately(operator, rhs, self._most_iterations(rhs.shape[1]), foreseen, self.asks)

    def _most_iterations(self, columns: int) -> int:
        return max(self.max_iterations, min(2 * columns, 20_000))

    @property
    def _solves_directly(self) -> bool:
        if self.derivatives != "auto" or self.matrix_free or not run_on(self._structure.device):
            return self.derivatives == "direct"
        return self._structure.elimination_size <= LARGEST_DIRECT

    @property
    def _num_columns(self) -> int:
        return self.rows.num_columns if self.rows is not None else self._structure.num_unknowns

    @property
    def _direct(self) -> SparseCholesky:
        return SparseCholesky().bound(self._structure, {})

    @property
    def _structure(self) -> BlockStructure:
        return already_bound(self.structure)

    def _operator(self) -> tuple[type[Operator], OperatorPlan]:
        """What a step multiplies by, and where its numbers stand."""
        if self.rows is not None:
            return JacobianBlocks, self.rows.jacobian
        if self.eliminated is not None:
            return ImplicitSchur, ImplicitSchurPlan.of(self._structure, self.eliminated)
        return Formed, FormedPlan.of(self._structure)


def _trusted(
    tried: Accurate, matrix: Values, rhs: Float[Tensor, "batch columns k"]
) -> Float[Tensor, "batch columns k"]:
    """The solutions that converged, NaN for others. A zero matrix stands for one that is not positive definite; what
    is solved with it is not used."""
    x = torch.where(tried.converged[:, None], tried.solution, torch.nan).reshape(rhs.mT.shape).mT
    return torch.where((matrix != 0).any(-1)[:, None, None], x, 0)
