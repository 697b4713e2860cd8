"""Multifrontal Cholesky A = L Lᵀ of symmetric positive definite matrices that share one structure, and triangular
solves (Duff and Reid 1983; Liu 1992).

Both are operators of PyTorch that take the `Elimination` packed, so a step that calls them can be recorded as a plain
graph and replayed; they have no derivative of their own (the adjoint brings it). They run on the CPU, in the dtype of
the values. The kernels are in `kernels/source/multifrontal.cpp`.

>>> import numpy as np
>>> from mslsq.linear.block_structure import analyze
>>> structure = analyze(np.array([2, 2]), rows=np.array([1]), cols=np.array([0]))
>>> values = torch.zeros(1, structure.num_values, dtype=torch.float64)  # blocks (0, 0), (1, 0), (1, 1), each by rows
>>> values[:, structure.diagonal_index] = 4.0
>>> offset, transposed = structure.offset_of(1, 0)
>>> values[0, offset : offset + 4] = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
>>> plan = structure.elimination.packed
>>> factors, definite = factor(values, values.new_zeros(0), *plan)
>>> solve(factors, definite, values.new_ones(1, 4, 1), *plan)[0, :, 0]
tensor([0.2000, 0.2000, 0.2000, 0.2000], dtype=torch.float64)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.kernels import Kernel, in_parts
from mslsq.linear.sparse.elimination import Elimination
from mslsq.linear.torch_operators import registered


class _Kernels(NamedTuple):
    factor: Kernel
    solve: Kernel


KERNELS = _Kernels(
    Kernel("multifrontal_factor", "TnTnTn?nnnnllllllll"),
    Kernel("multifrontal_solve", "Tn?TTnnnnnnllilnn"),
)
"""Values, shifts, factors, which are definite, and the part of the batch, then `fronts_of` a plan; factors, which are
usable, right-hand sides, solutions, the part of the batch, their sizes, `rows_of` it, then whether L alone is solved
with."""

WORTH_THREADS = 100_000
"""Numbers in the factors of a batch (some 0.1 ms of a solve) from which on its entries are shared out to threads."""


@registered("block_cholesky_factor")
def factor(values: Tensor, shift: Tensor, tensors: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    """Factors (batch, factor) of A_b + diag(shift_b), an empty `shift` being none, and which entries of the batch could
    be factored: one that is not positive definite, or not finite, harms no other. Its factor is zero."""
    plan = Elimination.unpacked(tensors, numbers)
    factors = values.new_empty(len(values), plan.factor_size)
    return factors, factor_into(factors, values, shift, plan)


def factor_into(factors: Tensor, values: Tensor, shift: Tensor, plan: Elimination) -> Tensor:
    """`factor` into memory that is there, (batch, factor), whatever it holds: which entries could be factored."""
    batch, values = len(values), values.contiguous()
    shift = shift.contiguous() if shift.numel() else values.new_empty(batch, 0)
    definite = torch.zeros(batch, dtype=torch.bool, device="cpu")
    arrays = values, values.shape[1], shift, shift.shape[1], factors, plan.factor_size, definite
    fronts = fronts_of(plan)
    in_parts(lambda begin, end: KERNELS.factor(*arrays, begin, end, *fronts), batch, _threads(factors))
    if not bool(definite.all()):
        factors[~definite] = 0
    return definite


@registered("block_cholesky_solve")
def solve(factors: Tensor, usable: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    """A⁻¹ rhs for (batch, columns, k); NaN where not usable.

    Reading the factor costs all the time: two right-hand sides go together, more of them eight at a time.
    """
    return solve_by(Elimination.unpacked(tensors, numbers), factors, usable, rhs)


@registered("block_cholesky_solve_lower")
def solve_lower(factors: Tensor, usable: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    """L⁻¹ rhs for (batch, columns, k), in the order of the columns; NaN where not usable. Half of `solve`, for
    ‖L⁻¹v‖² = vᵀA⁻¹v."""
    return solve_by(Elimination.unpacked(tensors, numbers), factors, usable, rhs, half=True)


def solve_by(plan: Elimination, factors: Tensor, usable: Tensor, rhs: Tensor, half: bool = False) -> Tensor:
    """`solve`, or `solve_lower`, with the plan as it is."""
    solved = torch.empty_like(rhs, memory_format=torch.contiguous_format)
    arrays = factors.contiguous(), plan.factor_size, usable.contiguous(), rhs.contiguous(), solved
    rest = *rhs.shape[1:], *rows_of(plan), int(half)
    in_parts(lambda begin, end: KERNELS.solve(*arrays, begin, end, *rest), len(rhs), _threads(factors))
    return solved


def fronts_of(plan: Elimination) -> tuple[int | Tensor, ...]:
    """What the factorisation is told of a plan."""
    return (
        *(plan.stack, len(plan.fronts), plan.fronts, plan.entry_start, plan.entries),
        *(plan.child_start, plan.children, plan.run_start, plan.runs, plan.scalar),
    )


def rows_of(plan: Elimination) -> tuple[int | Tensor, ...]:
    """What the solves are told of it."""
    rows = plan.fronts, plan.row_start, plan.row_places, plan.scalar, len(plan.scalar)
    return plan.tallest, len(plan.fronts), *rows


def _threads(factors: Tensor) -> int:
    """As many as PyTorch takes itself, where the factors are large enough to be worth starting them."""
    return torch.get_num_threads() if factors.numel() > WORTH_THREADS else 1


@factor.register_fake
def _(values: Tensor, shift: Tensor, tensors: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    size = Elimination.unpacked(tensors, numbers).factor_size
    return values.new_empty(len(values), size), values.new_empty(len(values), dtype=torch.bool)


@solve.register_fake
@solve_lower.register_fake
def _(factors: Tensor, usable: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return torch.empty_like(rhs, memory_format=torch.contiguous_format)
