"""Conjugate gradients as a linear solver: inexact steps of large problems, and exact solves for the adjoint.

The iteration stands behind one operator of PyTorch, so that a step which calls it can be recorded as a plain graph; how
many iterations are made is decided inside, anew at each replay.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.iterative.block_rows import BlockRows, HessianBlocks, JacobianBlocks
from mslsq.linear.iterative.conjugate_gradients import conjugate_gradients
from mslsq.linear.iterative.operators import Formed, Operator, Reduced
from mslsq.linear.linear_solver import LinearSolver, Vector
from mslsq.linear.sparse import SparseCholesky
from mslsq.linear.torch_operators import registered

OPERATORS: dict[str, type[Operator]] = {
    "formed": Formed,
    "reduced": Reduced,
    "jacobian": JacobianBlocks,
    "hessian": HessianBlocks,
}

LARGEST_DIRECT = 2e8
"""Up to that many numbers in the factor (1.6 GB) derivatives are solved by sparse Cholesky, on a CPU: it proves the
Hessian positive definite, and does not depend on its condition."""

EXACT = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Relative residual that a solve for derivatives aims at."""

ENOUGH = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative residual, recomputed from the matrix, above which such a solve counts as failed: what recurrences lose to
rounding in badly conditioned systems is within it."""

ROUNDS = 4
"""How often a solve for derivatives is begun anew from its own true residual."""

Values = Float[Tensor, "batch values"]


class UnconvergedAdjointWarning(UserWarning):
    """The linear system of a derivative was not solved accurately enough; the derivative is NaN."""


@dataclass(frozen=True)
class ConjugateGradient(LinearSolver):
    """Preconditioned conjugate gradients on the normal equations, stopped as early as the step allows.

    Memory is linear in the blocks of the problem, where a factorisation fills in. Steps are inexact: far from the
    solution a relative residual of `tolerance` is enough, near it the residual falls with the square of the gradient
    (S. C. Eisenstat & H. F. Walker, "Choosing the forcing terms in an inexact Newton method", 1996, choice 2).
    Residuals are measured in the norm of the preconditioner, which depends on no units.

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
        derivatives: `"auto"`, `"direct"` or `"iterative"`, how the Hessian of the adjoint is solved.
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

    def __post_init__(self) -> None:
        for option, known in (
            ("preconditioner", ("block_jacobi", "jacobi", "schur_jacobi")),
            ("forcing", ("adaptive", "constant")),
            ("derivatives", ("auto", "direct", "iterative")),
        ):
            if getattr(self, option) not in known:
                raise ValueError(f"ConjugateGradient: {option} must be one of {known}, not {getattr(self, option)!r}.")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"ConjugateGradient: tolerance must lie between 0 and 1, not {self.tolerance!r}.")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 1:
            raise ValueError(
                f"ConjugateGradient: max_iterations must be a positive integer, not {self.max_iterations!r}."
            )
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
    def form(self) -> Literal["normal", "triangular", "sparse", "blocks"]:
        return "blocks" if self.matrix_free else "sparse"

    @property
    def is_inexact(self) -> bool:
        return self.forcing == "adaptive"

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "ConjugateGradient":
        return replace(self, accuracy=accuracy)

    def summary(self) -> str:
        how = "matrix-free, " if self.matrix_free else ""
        why = f"; {self.reason}" if self.reason else ""
        return f"ConjugateGradient ({how}{self.preconditioner}{why})"

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "ConjugateGradient":
        eliminated = None
        if self.preconditioner == "schur_jacobi":
            eliminated = chosen_blocks(structure, kinds, self.eliminate)
        return replace(self, structure=structure, eliminated=eliminated)

    def bound_to_rows(self, rows: BlockRows) -> "ConjugateGradient":
        return replace(self, rows=rows)

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        kind = "jacobian" if self.matrix_free else "reduced" if self.eliminated is not None else "formed"
        plan, sizes = self._plan(kind, matrix.device)
        x, solved, _ = _iterate(
            matrix,
            rhs,
            matrix.new_zeros(0) if damping is None else damping,
            matrix.new_zeros(0) if self.accuracy is None else self.accuracy,
            plan,
            sizes,
            kind,
            self.preconditioner == "jacobi",
            self.tolerance,
            self.max_iterations,
        )
        return -x, solved

    def squared_column_norms(self, matrix: Values) -> Vector:
        if self.rows is not None:
            return self.rows.squared_column_norms(matrix)
        return matrix[:, torch.from_numpy(self._structure.diagonal_index).to(matrix.device)]

    def quadratic(self, matrix: Values, vector: Vector) -> Float[Tensor, "batch"]:
        kind = "jacobian" if self.matrix_free else "formed"
        return (vector * _multiply(matrix, vector, *self._plan(kind, matrix.device), kind)).sum(-1)

    def product(self, matrix: Values, vector: Vector) -> Vector:
        kind = "hessian" if self.matrix_free else "formed"
        return _multiply(matrix, vector, *self._plan(kind, matrix.device), kind)

    # ---- for the adjoint

    def definite_factor(self, matrix: Values) -> tuple[Tensor, Bool[Tensor, "batch"]]:
        """The matrix itself, and where it is positive definite as far as conjugate gradients with a random right-hand
        side can tell: they converge, and meet every direction on the way. Sparse Cholesky's, where that is used."""
        if self._solves_directly(matrix):
            return self._direct.definite_factor(matrix)
        finite = torch.isfinite(matrix).all(-1)
        generator = torch.Generator().manual_seed(0)
        columns = self.rows.num_columns if self.rows is not None else self._structure.num_unknowns
        probe = torch.randn(columns, generator=generator, dtype=matrix.dtype).to(matrix.device)
        safe = torch.where(finite[:, None], matrix, 0)
        _, residual, definite = self._exact(safe, probe.expand(len(matrix), -1))
        converged = residual <= ENOUGH[matrix.dtype]
        unconverged = finite & definite & ~converged
        if bool(unconverged.any()):
            warnings.warn(
                f"ConjugateGradient: the Hessian at the solution was solved to a relative residual of "
                f"{float(residual[unconverged].max()):.1e} only, in {self._most_iterations(columns)} iterations, so "
                f"derivatives of {int(unconverged.sum())} of {len(matrix)} problems are NaN (or zero). Try "
                "derivatives='direct', a better preconditioner, or linear_solver=mslsq.linear.SparseCholesky().",
                UnconvergedAdjointWarning,
                stacklevel=2,
            )
        usable = finite & definite & converged
        return torch.where(usable[:, None], matrix, 0), usable

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        if self._solves_directly(factor):
            return self._direct.solve_factored(factor, rhs)
        return IterativeInverse.apply(self, factor, rhs[:, None])[:, 0]

    def _exact(self, matrix: Values, rhs: Vector) -> tuple[Vector, Float[Tensor, "entries"], Bool[Tensor, "entries"]]:
        """A⁻¹ rhs, its true relative residual, and whether A looks positive definite; several right-hand sides per
        matrix."""
        kind = "hessian" if self.matrix_free else "formed"
        operator = OPERATORS[kind](matrix, None, *self._plan(kind, matrix.device), False)
        repeat = len(rhs) // max(len(matrix), 1)
        iterations = self._most_iterations(rhs.shape[1])
        length = (rhs * operator.precondition(rhs)).sum(-1)
        length = torch.where(length > 0, length, 1)
        x, left = torch.zeros_like(rhs), rhs
        definite = operator.definite.repeat_interleave(repeat)
        residual = torch.full_like(length, torch.inf)
        for _ in range(ROUNDS):
            # A new round aims below the first by as much as is left.
            tolerance = (EXACT[rhs.dtype] / residual.clamp(max=1)).clamp(max=0.1)
            result = conjugate_gradients(operator.multiply, left, operator.precondition, tolerance, iterations)
            definite = definite & result.definite
            moved = x + result.solution
            left_after = rhs - operator.multiply(moved)
            after = ((left_after * operator.precondition(left_after)).sum(-1).clamp(min=0) / length).sqrt()
            better = after < residual
            x, left = torch.where(better[:, None], moved, x), torch.where(better[:, None], left_after, left)
            residual = torch.where(better, after, residual)
            if bool(((residual <= EXACT[rhs.dtype]) | ~better).all()):
                break
        return x, residual, definite

    def _most_iterations(self, columns: int) -> int:
        return max(self.max_iterations, min(2 * columns, 20_000))

    def _solves_directly(self, matrix: Tensor) -> bool:
        if self.derivatives != "auto" or self.matrix_free or matrix.device.type != "cpu":
            return self.derivatives == "direct"
        return self._structure.factor_size <= LARGEST_DIRECT

    @property
    def _direct(self) -> SparseCholesky:
        return SparseCholesky(structure=self._structure)

    @property
    def _structure(self) -> BlockStructure:
        if self.structure is None:
            raise RuntimeError("ConjugateGradient has no structure yet: it is bound by the solver that uses it.")
        return self.structure

    def _plan(self, kind: str, device: torch.device) -> tuple[list[Tensor], list[int]]:
        """The plan of an operator on a device; made once per structure."""
        home = self.rows if kind in ("jacobian", "hessian") else self._structure
        assert home is not None  # bound by the engine
        cached = home.__dict__.setdefault("_operator_plans", {})
        key = (kind, self.eliminate, device)
        if key not in cached:
            if isinstance(home, BlockRows):
                arrays, sizes = home.plan(hessian=kind == "hessian")
            elif kind == "reduced":
                assert self.eliminated is not None
                arrays, sizes = Reduced.plan(home, self.eliminated)
            else:
                arrays, sizes = Formed.plan(home)
            cached[key] = [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays], sizes
        return cached[key]


def chosen_blocks(
    structure: BlockStructure, kinds: Mapping[str, np.ndarray], name: str | None
) -> Bool[np.ndarray, "blocks"]:
    """The blocks to eliminate: those of the named kind, or of the kind with most columns whose blocks do not touch
    each other."""
    apart = {}
    for kind, numbers in kinds.items():
        mask = np.zeros(len(structure.block_sizes), bool)
        mask[numbers[numbers >= 0]] = True
        touching = mask[structure.rows] & mask[structure.cols] & (structure.rows != structure.cols)
        if not touching.any() and mask.any() and not mask.all():
            apart[kind] = mask
    if name is not None and name in apart:
        return apart[name]
    if name is not None:
        why = "its blocks touch each other, or are all there is" if name in kinds else "there is no such variable"
        raise ValueError(f"ConjugateGradient: eliminate={name!r}: {why}. Variables: {', '.join(kinds)}.")
    if not apart:
        raise ValueError(
            "ConjugateGradient: 'schur_jacobi' needs a kind of variable whose blocks do not touch each other, and "
            f"there is none among {', '.join(kinds)}: take preconditioner='block_jacobi'."
        )
    return max(apart.values(), key=lambda mask: int(structure.block_sizes[mask].sum()))


@registered("conjugate_gradients")
def _iterate(
    values: Tensor,
    rhs: Tensor,
    damping: Tensor,
    accuracy: Tensor,
    plan: list[Tensor],
    sizes: list[int],
    kind: str,
    jacobi: bool,
    tolerance: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(A + diag(damping))⁻¹ rhs to an accuracy per entry (an empty one: `tolerance` for all), which entries have moved
    at all, and how many iterations each took."""
    operator = OPERATORS[kind](values, damping if damping.numel() else None, plan, sizes, jacobi)
    result = conjugate_gradients(
        operator.multiply,
        operator.reduced(rhs),
        operator.precondition,
        accuracy.clamp(max=tolerance) if accuracy.numel() else tolerance,
        max_iterations,
    )
    x = operator.expanded(result.solution, rhs)
    solved = torch.isfinite(x).all(-1) & operator.definite & (result.converged | (result.iterations > 0))
    return x, solved, result.iterations


@_iterate.register_fake
def _(
    values: Tensor, rhs: Tensor, damping: Tensor, accuracy: Tensor, plan: Any, sizes: Any, kind: Any, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(rhs, memory_format=torch.contiguous_format),
        rhs.new_empty(len(rhs), dtype=torch.bool),
        rhs.new_empty(len(rhs), dtype=torch.int64),
    )


@registered("operator_product")
def _multiply(values: Tensor, vector: Tensor, plan: list[Tensor], sizes: list[int], kind: str) -> Tensor:
    """A x."""
    return OPERATORS[kind].product(values, vector, plan, sizes)


@_multiply.register_fake
def _(values: Tensor, vector: Tensor, plan: Any, sizes: Any, kind: Any) -> Tensor:
    return torch.empty_like(vector, memory_format=torch.contiguous_format)


class IterativeInverse(torch.autograd.Function):
    """A⁻¹ applied to right-hand sides (batch, k, columns) for a constant symmetric A; linear, so its derivative is
    itself. NaN where the residual stays too large."""

    @staticmethod
    def forward(solver: ConjugateGradient, matrix: Tensor, rhs: Tensor) -> Tensor:
        # A zero matrix stands for one that is not positive definite; what is solved with it is not used.
        usable = (matrix != 0).any(-1)
        x, residual, _ = solver._exact(matrix, rhs.flatten(0, 1))
        good = (residual <= ENOUGH[rhs.dtype]).reshape(rhs.shape[:2])
        x = torch.where(good[..., None], x.reshape(rhs.shape), torch.nan)
        return torch.where(usable[:, None, None], x, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.solver, matrix, _ = inputs
        ctx.save_for_backward(matrix)
        ctx.save_for_forward(matrix)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        (matrix,) = ctx.saved_tensors
        return None, None, IterativeInverse.apply(ctx.solver, matrix, gradient)

    @staticmethod
    def jvp(ctx: Any, _solver: None, _matrix: Any, tangent: Tensor) -> Tensor:
        (matrix,) = ctx.saved_tensors
        return IterativeInverse.apply(ctx.solver, matrix, tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], solver: ConjugateGradient, matrix: Tensor, rhs: Tensor
    ) -> tuple[Tensor, int]:
        _, matrix_dim, rhs_dim = in_dims
        size = info.batch_size
        if matrix_dim is None:
            # One matrix, more right-hand sides.
            rhs = rhs.movedim(rhs_dim, 1)
            solved = IterativeInverse.apply(solver, matrix, rhs.flatten(1, 2))
            return solved.unflatten(1, rhs.shape[1:3]), 1
        matrix = matrix.movedim(matrix_dim, 0)
        rhs = rhs.expand(size, *rhs.shape) if rhs_dim is None else rhs.movedim(rhs_dim, 0)
        solved = IterativeInverse.apply(solver, matrix.flatten(0, 1), rhs.flatten(0, 1))
        return solved.unflatten(0, (size, -1)), 0
