"""Sparse Cholesky of block matrices as a linear solver, its kernels behind operators of PyTorch.

The operators take the plan of the elimination as tensors, so a step that calls them can be recorded as a plain graph
and replayed; they have no derivative of their own (the adjoint brings it).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure, predicted_nanoseconds
from mslsq.linear.linear_solver import LinearSolver, Vector
from mslsq.linear.sparse.backends.analysis import BACKENDS, analysis_of, solve_with_backend
from mslsq.linear.torch_operators import registered

TRIANGULAR = 4
"""How many arrays the triangular solves read."""

Values = Float[Tensor, "batch values"]
"""The stored blocks of a matrix, in the order of its `BlockStructure`."""


@dataclass(frozen=True)
class SparseCholesky(LinearSolver):
    """Cholesky of the normal equations by blocks: analysed once per structure, refactored each step, batches together.

    Args:
        backend: `"auto"` and `"mslsq"` are the library's own multifrontal kernels (numba, CPU), which are the fastest
            of these where measured (`benchmarks/sparse_cholesky.py`). `"pardiso"` (pip install pypardiso) and
            `"cholmod"` (scikit-sparse below 0.5, or kvxopt) solve the steps where they are installed, in float64, the
            entries of a batch one by one; derivatives use the library's own kernels all the same.
    """

    backend: Literal["auto", "mslsq", "pardiso", "cholmod"] = "auto"
    structure: BlockStructure | None = field(default=None, compare=False, repr=False)
    """The structure it is bound to; set by the engine."""

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "mslsq", *BACKENDS):
            known = ", ".join(map(repr, ("auto", "mslsq", *BACKENDS)))
            raise ValueError(f"SparseCholesky: backend must be one of {known}, not {self.backend!r}.")

    @property
    def form(self) -> Literal["normal", "triangular", "sparse"]:
        return "sparse"

    def bound(self, structure: BlockStructure, kinds: Mapping[str, np.ndarray]) -> "SparseCholesky":
        if self.backend in BACKENDS:
            analysis_of(structure, self.backend)  # a missing library is said before anything is computed
        return replace(self, structure=structure)

    def summary(self) -> str:
        return f"SparseCholesky ({'mslsq' if self.backend == 'auto' else self.backend})"

    @property
    def _structure(self) -> BlockStructure:
        if self.structure is None:
            raise RuntimeError("SparseCholesky has no structure yet: it is bound by the solver that uses it.")
        return self.structure

    @property
    def factor_size(self) -> int:
        """How many numbers a factor holds."""
        return self._structure.factor_size

    @cached_property
    def nanoseconds(self) -> float:
        """An estimate of one solve on one core, to compare with other solvers."""
        return predicted_nanoseconds(self._structure)

    def solve(self, matrix: Values, rhs: Vector, damping: Vector | None) -> tuple[Vector, Bool[Tensor, "batch"]]:
        if self.backend in BACKENDS:
            shift = matrix.new_zeros(0) if damping is None else damping
            solution, solved = solve_with_backend(matrix, shift, rhs, analysis_of(self._structure, self.backend).handle)
            return -solution, solved
        arrays, numbers = packed(self._structure)
        factor, solved = _factor(matrix, matrix.new_zeros(0) if damping is None else damping, arrays, numbers)
        return -_solve(factor, solved, rhs[..., None], arrays, numbers)[..., 0], solved

    def squared_column_norms(self, matrix: Values) -> Vector:
        return matrix[:, torch.from_numpy(self._structure.diagonal_index)]

    def quadratic(self, matrix: Values, vector: Vector) -> Float[Tensor, "batch"]:
        return (vector * self.product(matrix, vector)).sum(-1)

    def product(self, matrix: Values, vector: Vector) -> Vector:
        arrays, numbers = packed(self._structure)
        return _multiply(matrix, vector[..., None], arrays, numbers)[..., 0]

    def definite_factor(self, matrix: Values) -> tuple[Tensor, Bool[Tensor, "batch"]]:
        arrays, numbers = packed(self._structure)
        factor, definite = _factor(matrix, matrix.new_zeros(0), arrays, numbers)
        return torch.where(definite[:, None], factor, 0), definite

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        return SparseInverse.apply(self._structure, factor, rhs[..., None])[..., 0]


@registered("block_cholesky_factor")
def _factor(values: Tensor, shift: Tensor, arrays: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    """Factors of A_b + diag(shift_b), an empty `shift` being none, and which entries of the batch could be factored."""
    from mslsq.linear.sparse import multifrontal

    size, stack, _, count = numbers
    batch = len(values)
    plan = [array.numpy() for array in arrays[:count]]
    moved = shift.contiguous().numpy() if shift.numel() else np.empty((batch, 0), values.numpy().dtype)
    factor = values.new_empty(batch, size)
    solved = torch.zeros(batch, dtype=torch.bool)
    multifrontal.factor(values.contiguous().numpy(), moved, factor.numpy(), solved.numpy(), 0, batch, stack, *plan)
    return factor, solved


@registered("block_cholesky_solve")
def _solve(factor: Tensor, usable: Tensor, rhs: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    """A⁻¹ rhs for (batch, columns, k); NaN where not usable."""
    from mslsq.linear.sparse import multifrontal

    _, _, tallest, count = numbers
    plan = [array.numpy() for array in arrays[count : count + TRIANGULAR]]
    solved = torch.empty_like(rhs, memory_format=torch.contiguous_format)
    multifrontal.solve(
        factor.contiguous().numpy(),
        usable.contiguous().numpy(),
        rhs.contiguous().numpy(),
        solved.numpy(),
        0,
        len(rhs),
        tallest,
        *plan,
    )
    return solved


@registered("block_multiply")
def _multiply(values: Tensor, vectors: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    """A x for (batch, columns, k)."""
    from mslsq.linear.sparse import multifrontal

    plan = [array.numpy() for array in arrays[numbers[3] + TRIANGULAR :]]
    product = torch.zeros_like(vectors, memory_format=torch.contiguous_format)
    multifrontal.multiply(values.contiguous().numpy(), vectors.contiguous().numpy(), product.numpy(), *plan)
    return product


@_factor.register_fake
def _(values: Tensor, shift: Tensor, arrays: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    return values.new_empty(len(values), numbers[0]), values.new_empty(len(values), dtype=torch.bool)


@_solve.register_fake
def _(factor: Tensor, usable: Tensor, rhs: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    return torch.empty_like(rhs, memory_format=torch.contiguous_format)


@_multiply.register_fake
def _(values: Tensor, vectors: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    return torch.empty_like(vectors, memory_format=torch.contiguous_format)


class SparseInverse(torch.autograd.Function):
    """A⁻¹ applied to right-hand sides (batch, columns, k), for a constant factor; linear, so its derivative is
    itself."""

    @staticmethod
    def forward(structure: BlockStructure, factor: Tensor, rhs: Tensor) -> Tensor:
        arrays, numbers = packed(structure)
        # A zero factor stands for a matrix that has none; what is solved with it is not used.
        usable = (factor != 0).any(-1)
        return torch.nan_to_num(_solve(factor, usable, rhs, arrays, numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.structure, factor, _ = inputs
        ctx.save_for_backward(factor)
        ctx.save_for_forward(factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        (factor,) = ctx.saved_tensors
        return None, None, SparseInverse.apply(ctx.structure, factor, gradient)

    @staticmethod
    def jvp(ctx: Any, _structure: None, _factor: Any, tangent: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return SparseInverse.apply(ctx.structure, factor, tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], structure: BlockStructure, factor: Tensor, rhs: Tensor
    ) -> tuple[Tensor, int]:
        _, factor_dim, rhs_dim = in_dims
        size = info.batch_size
        if factor_dim is None:
            # One factor, more right-hand sides.
            rhs = rhs.movedim(rhs_dim, -1)
            solved = SparseInverse.apply(structure, factor, rhs.flatten(2))
            return solved.unflatten(2, rhs.shape[2:]), 3
        factor = factor.movedim(factor_dim, 0)
        rhs = rhs.expand(size, *rhs.shape) if rhs_dim is None else rhs.movedim(rhs_dim, 0)
        solved = SparseInverse.apply(structure, factor.flatten(0, 1), rhs.flatten(0, 1))
        return solved.unflatten(0, (size, -1)), 0


def packed(structure: BlockStructure) -> tuple[list[Tensor], list[int]]:
    """The plan of an elimination as tensors (sharing memory) and integers; made once per structure."""
    cached = structure.__dict__.get("_packed")
    if cached is None:
        arrays = (
            *structure._numeric,
            *structure._triangular,
            structure.starts,
            structure.rows,
            structure.cols,
            structure.offsets,
        )
        numbers = [structure.factor_size, structure._stack, structure._tallest, len(structure._numeric)]
        cached = ([torch.from_numpy(array) for array in arrays], numbers)
        structure.__dict__["_packed"] = cached
    return cached
