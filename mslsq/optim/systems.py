"""The damped Gauss–Newton system (JᵀJ + d) p = −(Jᵀr + λθ) in three forms that have one solution.

d = μD + λ is diagonal: damping, and the weights λ of weight decay. r and J are those of a plain least-squares problem:
robust losses have rescaled them.

==========  =============================================  =============================  ==============================
system      what is solved                                 memory                         for
==========  =============================================  =============================  ==============================
normal      (JᵀJ + d) p = −g, by Cholesky                   n² (J passes by in blocks)     few parameters
dual        (I + J d⁻¹Jᵀ) u = r − J d⁻¹λθ, by Cholesky,     m n, and m²                    fewer residuals
            p = −d⁻¹(Jᵀu + λθ)
cg          the first, by conjugate gradients              some vectors                   many of both
==========  =============================================  =============================  ==============================

The dual form is the push-through identity (JᵀJ + d)⁻¹Jᵀ = d⁻¹Jᵀ(I + J d⁻¹Jᵀ)⁻¹, and Woodbury's for λθ.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linear.iterative.allowance import Allowance, Spent
from mslsq.linear.iterative.conjugate_gradients import always, any_of, conjugate_gradients
from mslsq.optim.jacobian import Block

Vector = Float[Tensor, "n"]


class Diagonals(NamedTuple):
    """What is added to JᵀJ."""

    scale: Vector
    """D, without μ."""
    decay: Vector
    """λ, the weights of weight decay."""
    decays: bool
    """Is one of these not zero?"""
    is_uniform: bool
    """Is d the same everywhere?"""

    def of(self, damping: float) -> Vector:
        return damping * self.scale + self.decay


class System(Protocol):
    """A linearization at the start of a step; solved for several dampings."""

    name: str
    iterations: Int[Tensor, ""]
    """Of conjugate gradients, in all solves."""

    def solve(self, damping: float) -> tuple[Vector, Bool[Tensor, ""]]:
        """The step, and whether it is one: the matrix is positive definite in this precision."""
        ...

    def curvature(self, step: Vector) -> Float[Tensor, ""]:
        """|J p|²."""
        ...


class Normal:
    """By JᵀJ, which blocks of rows are added to one after the other."""

    name = "normal"

    def __init__(self, blocks: Iterable[Block], gradient: Vector, diagonals: Diagonals):
        n = len(gradient)
        self.matrix, self.iterations = gradient.new_zeros(n, n), gradient.new_zeros((), dtype=torch.int64)
        self.gradient, self.diagonals = gradient, diagonals
        for _, block in blocks:
            rows = block.to(gradient.dtype)
            self.matrix.addmm_(rows.T, rows)

    def solve(self, damping: float) -> tuple[Vector, Bool[Tensor, ""]]:
        damped = self.matrix.clone()
        damped.diagonal().add_(self.diagonals.of(damping))
        return _solved(damped, -self.gradient)

    def curvature(self, step: Vector) -> Float[Tensor, ""]:
        return step @ (self.matrix @ step)


class Dual:
    """By J D⁻¹Jᵀ; J is kept."""

    name = "dual"

    def __init__(
        self,
        blocks: Iterable[Block],
        residual: Float[Tensor, "m"],
        parameters: Vector,
        diagonals: Diagonals,
    ):
        self.residual, self.diagonals = residual, diagonals
        self.iterations = residual.new_zeros((), dtype=torch.int64)
        self.jacobian = _gathered(blocks, residual, len(parameters))
        self.pull = diagonals.decay * parameters
        self.gram = None if diagonals.decays else self._gram(diagonals.scale)

    def _gram(self, diagonal: Vector) -> Float[Tensor, "m m"]:
        if self.diagonals.is_uniform:  # the usual case, without a copy of J
            return (self.jacobian @ self.jacobian.T) / diagonal[0]
        return (self.jacobian / diagonal) @ self.jacobian.T

    def solve(self, damping: float) -> tuple[Vector, Bool[Tensor, ""]]:
        diagonal = self.diagonals.of(damping)
        # Without weight decay the same products serve every damping.
        matrix = self._gram(diagonal) if self.gram is None else self.gram / damping
        matrix.diagonal().add_(1)
        u, solved = _solved(matrix, self.residual - self.jacobian @ (self.pull / diagonal))
        return -(self.jacobian.T @ u + self.pull) / diagonal, solved

    def curvature(self, step: Vector) -> Float[Tensor, ""]:
        return (self.jacobian @ step).square().sum()


class Iterative:
    """By products with J and Jᵀ, preconditioned by d. The step is that of a truncated Newton method: what is reached
    after `max_iterations`, or what the allowance allows, is taken, because every iterate lowers the model."""

    name = "cg"

    def __init__(
        self,
        product: Callable[[Vector], Tensor],
        transposed: Callable[[Tensor], Vector],
        gradient: Vector,
        diagonals: Diagonals,
        tolerance: float,
        max_iterations: int,
        allowance: Allowance | None,
    ):
        self.product, self.transposed = product, transposed
        self.gradient, self.diagonals = gradient, diagonals
        self.tolerance, self.max_iterations, self.allowance = tolerance, max_iterations, allowance
        self.iterations = gradient.new_zeros((), dtype=torch.int64)

    def solve(self, damping: float) -> tuple[Vector, Bool[Tensor, ""]]:
        diagonal = self.diagonals.of(damping)

        def multiply(x: Tensor) -> Tensor:
            return (self.transposed(self.product(x[0])) + diagonal * x[0])[None]

        most, goes_on = self.max_iterations, any_of
        if self.allowance is not None:
            most, goes_on = self.allowance.limit(most), always
        given = multiply, -self.gradient[None], lambda r: r / diagonal, self.tolerance, most
        found = conjugate_gradients(*given, goes_on=goes_on, keeps_residuals=self.allowance is not None)
        if self.allowance is not None and found.residuals is not None:
            wanted = torch.full_like(found.residual, self.tolerance)
            self.allowance.spend(Spent(found.residuals, found.iterations), wanted, self.tolerance)
        self.iterations = self.iterations + found.iterations[0]
        return found.solution[0], found.solution.isfinite().all()

    def curvature(self, step: Vector) -> Float[Tensor, ""]:
        return self.product(step).square().sum()


def _gathered(blocks: Iterable[Block], residual: Tensor, columns: int) -> Float[Tensor, "m n"]:
    """J from its blocks; a single one of the right dtype is J itself."""
    jacobian = None
    for which, block in blocks:
        if len(block) == len(residual):
            return block.to(residual.dtype)
        if jacobian is None:
            jacobian = residual.new_empty(len(residual), columns)
        jacobian[which] = block
    assert jacobian is not None  # there is a residual, so there is a block
    return jacobian


def _solved(matrix: Tensor, rhs: Tensor) -> tuple[Tensor, Bool[Tensor, ""]]:
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(rhs[:, None], factor)[:, 0], info == 0
