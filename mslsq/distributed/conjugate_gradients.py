"""Conjugate gradients on rows of J that lie on several ranks: each multiplies by its own blocks, the products add up.

The vectors of the iteration are whole on every rank. A product, and the blocks on the diagonal for the preconditioner,
are sums over the ranks; whether another product is wanted is for the first rank to say.
"""

from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.distributed.group import Together
from mslsq.linear.iterative.accurate import Accurate, random_rhs, solve_accurately
from mslsq.linear.iterative.block_rows import HessianBlocks, JacobianBlocks
from mslsq.linear.iterative.conjugate_gradients import conjugate_gradients
from mslsq.linear.iterative.linear_operators import damped
from mslsq.linear.iterative.solver import ConjugateGradient
from mslsq.linear.iterative.unformed import UnformedBlocks
from mslsq.linear.linear_solver import DefiniteFactor
from mslsq.linear.storage import Storage, Vector, already_bound

Values = Float[Tensor, "batch values"]


@dataclass(frozen=True, eq=False)
class BlocksOfRanks(UnformedBlocks):
    """The blocks of J of this rank; what is told of JᵀJ is told of all ranks' blocks."""

    keeps_parts: ClassVar[bool] = True
    ranks: Together | None = None

    @property
    def _ranks(self) -> Together:
        return already_bound(self.ranks)

    def diagonal(self, matrix: Values) -> Vector:
        return self._ranks.product_sum(super().diagonal(matrix))

    def diagonal_of_hessian(self, hessian: Values) -> Vector:
        return self._ranks.product_sum(super().diagonal_of_hessian(hessian))

    def _multiply(self, matrix: Values, vector: Vector, hessian: bool) -> Vector:
        return self._ranks.product_sum(super()._multiply(matrix, vector, hessian))


class _OverRanks(JacobianBlocks):
    """JᵀJ of all ranks' blocks."""

    def __init__(self, values: Values, damping: Tensor | None, plan: object, jacobi: bool, ranks: Together):
        self._ranks, self._is_wanted = ranks, True
        super().__init__(values, damping, plan, jacobi)  # type: ignore[arg-type]

    def multiply(self, x: Tensor) -> Tensor:
        own = self.product(self._values, x, self._plan)
        # With the product goes whether the first rank has anything left to multiply: nothing is asked between.
        moves = x.new_full((1,), float(self._ranks.is_first and bool((x != 0).any())))
        total = self._ranks.product_sum(torch.cat((own.reshape(-1), moves)))
        self._is_wanted = bool(total[-1] > 0)
        return damped(total[:-1].reshape(x.shape), x, self._damping)

    def is_wanted(self, active: Bool[Tensor, "entries"]) -> bool:
        """Had the first rank still something to multiply in the last product? So one product is made for nothing at the
        end, in the place of one more collective in each iteration."""
        return self._is_wanted

    def goes_on(self, entries: Bool[Tensor, "entries"]) -> bool:
        (self._is_wanted,) = self._ranks.any(bool(entries.any()) and self._ranks.is_first)
        return self._is_wanted

    def _of_all(self, blocks: list[Tensor]) -> list[Tensor]:
        return list(self._ranks.summed(*blocks))


class _HessianOverRanks(_OverRanks, HessianBlocks):
    """A symmetric matrix that is the sum of all ranks' blocks."""


@dataclass(frozen=True)
class ConjugateGradientOverRanks(ConjugateGradient):
    """`ConjugateGradient(matrix_free=True)` of a problem whose blocks lie on several ranks."""

    ranks: Together | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(solver: ConjugateGradient, ranks: Together) -> "ConjugateGradientOverRanks":
        """The same solver over ranks."""
        own = {one.name: getattr(solver, one.name) for one in fields(ConjugateGradient)}
        return ConjugateGradientOverRanks(**own, ranks=ranks)

    @property
    def storage(self) -> Storage:
        return BlocksOfRanks(self.rows, self.ranks)

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        plan = already_bound(self.rows).jacobian
        operator = _OverRanks(matrix, damping, plan, self.preconditioner == "jacobi", already_bound(self.ranks))
        tolerance = self.tolerance if self.accuracy is None else self.accuracy.clamp(max=self.tolerance)
        given = operator.multiply, rhs, operator.precondition, tolerance, self.max_iterations
        found = conjugate_gradients(*given, goes_on=operator.is_wanted)
        moved = found.converged | (found.iterations > 0)
        return -found.solution, torch.isfinite(found.solution).all(-1) & operator.definite & moved

    def definite_factor(self, matrix: Values) -> DefiniteFactor:
        """As `ConjugateGradient.definite_factor`. The factor is the matrix, and NaN at its end where it is of no use:
        the ranks have numbers of their own, and must judge alike."""
        finite = ~torch.tensor(already_bound(self.ranks).any(not bool(torch.isfinite(matrix).all())), device="cpu")
        probe = random_rhs(already_bound(self.rows).num_columns, matrix)
        tried = self._solve_accurately(torch.where(finite[:, None], matrix, 0), probe)
        looked_definite = finite & tried.definite
        usable = looked_definite & tried.converged
        undecided = torch.where(looked_definite & ~tried.converged, tried.residual, torch.nan)
        return DefiniteFactor(torch.where(usable[:, None], matrix, 0), usable, undecided)

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        if already_bound(self.ranks).any(bool((factor != 0).any())) == (False,):
            return torch.zeros_like(rhs)  # it stands for a matrix that is not definite: what is solved is not used
        tried = self._solve_accurately(factor, rhs)
        return torch.where(tried.converged[:, None], tried.solution, torch.nan)

    def _solve_accurately(self, matrix: Values, rhs: Tensor) -> Accurate:
        plan = already_bound(self.rows).hessian
        operator = _HessianOverRanks(matrix, None, plan, False, already_bound(self.ranks))
        return solve_accurately(operator, rhs, self._most_iterations(rhs.shape[1]))
