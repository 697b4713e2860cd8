"""Any linear solver as one whose steps carry derivatives: solved by its kernels, differentiated by solving again."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.levels import constant
from mslsq.linear.differentiable_inverse import DifferentiableInverse, Opaque
from mslsq.linear.iterative.allowance import Allowance
from mslsq.linear.linear_solver import LinearSolver, SolverAround
from mslsq.linear.storage import LinearizedTerm, Storage, Vector
from mslsq.linear.symmetric_systems import DampedSystem

Numbers = Float[Tensor, "batch values"]


@dataclass(frozen=True)
class DifferentiableSteps(SolverAround):
    """A solver of block-sparse systems, as a differentiable function of their numbers, under any transform.

    Where the solver iterates, its steps are what it found, and the residual that it left is held constant, as the
    damping is.
    """

    accuracy: Tensor | None = field(default=None, compare=False, repr=False)
    """(batch,) how accurately a step was solved by a solver that iterates; None for exactly."""

    @property
    def storage(self) -> Storage:
        return DifferentiableStorage(self.own.storage, self.system)

    def to_accuracy(self, accuracy: Float[Tensor, "batch"]) -> "DifferentiableSteps":
        return replace(self, accuracy=accuracy) if self.iterates else self

    def with_allowance(self, allowance: Allowance) -> "DifferentiableSteps":
        return replace(self, own=self.own.with_allowance(allowance))

    @cached_property
    def system(self) -> DampedSystem:
        return self.own.damped_system()

    def solve(self, matrix: Numbers, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        """A step is taken only if its system could be solved. If rounding makes it singular here, the step is zero and
        its derivatives are NaN: the solution keeps its value."""
        values = self.system.damped(matrix, damping)
        (factor,) = Opaque.apply(self._factored, constant(values))
        if self.accuracy is None:
            (known,) = Opaque.apply(self._solution, factor, constant(rhs))
        else:
            given = (self.accuracy, matrix, rhs) if damping is None else (self.accuracy, matrix, rhs, damping)
            (known,) = Opaque.apply(self._own_solution, *map(constant, given))
        x = DifferentiableInverse.apply(self.system, values, factor, rhs[..., None], known[..., None])
        return -x[..., 0], torch.ones_like(x[:, 0, 0], dtype=torch.bool)

    # ---- on plain tensors

    def _factored(self, values: Numbers) -> tuple[Tensor]:
        return (self.system.factor(values),)

    def _solution(self, factor: Tensor, rhs: Vector) -> tuple[Tensor]:
        return (torch.nan_to_num(self.system.solve(factor, rhs[..., None])[..., 0], nan=0.0),)

    def _own_solution(
        self, accuracy: Tensor, matrix: Numbers, rhs: Vector, damping: Vector | None = None
    ) -> tuple[Tensor]:
        step, _ = self.own.to_accuracy(accuracy).solve(matrix, rhs, damping)
        return (torch.nan_to_num(-step, nan=0.0),)


@dataclass(frozen=True, eq=False)
class DifferentiableStorage(Storage):
    """The storage of a solver of block-sparse systems, its products in operations of PyTorch: kernels have no
    derivative."""

    own: Storage
    system: DampedSystem
    is_dense: ClassVar[bool] = False

    @property
    def is_normal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.own.is_normal

    def part(self, term: LinearizedTerm, jacobian: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        return self.own.part(term, jacobian, residual)

    def joined(self, parts: list[tuple[Tensor, ...]]) -> tuple[Numbers, Vector | None]:
        return self.own.joined(parts)

    def diagonal(self, matrix: Numbers) -> Vector:
        return self.own.diagonal(matrix)

    def product(self, matrix: Numbers, vector: Vector) -> Vector:
        return self.system.product(matrix, vector)


def differentiable(linear: LinearSolver) -> LinearSolver:
    """What takes the same steps, in operations that PyTorch differentiates."""
    return linear.differentiable() if linear.storage.is_dense else DifferentiableSteps(linear)


def harmless(linear: LinearSolver, matrix: Tensor) -> Tensor:
    """What may stand in for matrices whose right-hand side is zero; broadcasts with them."""
    if isinstance(linear, DifferentiableSteps):
        return linear.system.harmless(matrix)
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
