"""The two halves of a Schur complement by kernels, as operators of PyTorch: reduce to the kept unknowns, and come back.

The operators get their tables packed, so a step that calls them can be recorded as a plain graph; they have no
derivative of their own (the adjoint brings it). All work is in float64, whatever the matrix is: in float32 the
difference U − Y Yᵀ loses what the points leave of the cameras. `by_tensors` does the same in PyTorch's own operations.
The kernels are in `kernels/source/schur.cpp`; every array has the batch first.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.kernels import Kernel
from mslsq.linear.schur.tables import SchurTables
from mslsq.linear.torch_operators import registered

F64 = torch.float64

_reduce = Kernel("schur_reduce", "nTnTnTdddd?lll")
_back = Kernel("schur_back", "nTndddddlll")


class Reduction(NamedTuple):
    """What the first half gives; everything in float64."""

    work: Float[Tensor, "batch work"]
    """L (its diagonal inverted), where the plan says."""
    carried: Float[Tensor, "batch eliminated"]
    """L⁻¹c."""
    matrix: Float[Tensor, "batch reduced_values"]
    """U + damping − Y Yᵀ, dense by rows (its lower blocks), or by stored blocks."""
    rhs: Float[Tensor, "batch reduced"]
    regular: Bool[Tensor, "batch"]
    """Could all blocks be eliminated? Where not, the other tensors are zero."""


@registered("schur_reduce")
def reduce(
    values: Tensor, shift: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The `Reduction` of A + diag(shift) and the right-hand side; an empty `shift` is none."""
    plan, batch = SchurTables.unpacked(tensors, numbers), len(values)
    work, carried, matrix, reduced_rhs, regular = _reduction(values, plan)
    values, rhs, shift = values.contiguous(), rhs.contiguous(), shift.contiguous()
    shifts = shift.shape[1] if shift.numel() else 0
    given = batch, values, values.shape[1], shift, shifts, rhs
    _reduce(*given, work, carried, reduced_rhs, matrix, regular, *plan.arrays)
    return work, carried, matrix, reduced_rhs, regular


def _reduction(values: Tensor, plan: SchurTables) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What it is written to: the kernel sets all of it. (To clear and gather in PyTorch took 3 to 8 % of the time.)"""
    sizes = (plan.num_triangles, plan.num_eliminated, plan.matrix_size, plan.num_reduced)
    work, carried, matrix, reduced_rhs = (values.new_empty(len(values), size, dtype=F64) for size in sizes)
    return work, carried, matrix, reduced_rhs, values.new_empty(len(values), dtype=torch.bool)


@registered("schur_back")
def back(
    values: Tensor, work: Tensor, carried: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]
) -> Tensor:
    """All unknowns from the kept ones."""
    plan, batch = SchurTables.unpacked(tensors, numbers), len(kept)
    work, carried, kept = work.contiguous(), carried.contiguous(), kept.contiguous()
    solution, lost = kept.new_empty(batch, plan.num_unknowns), torch.empty_like(carried)
    _back(batch, values.contiguous(), values.shape[1], work, carried, kept, lost, solution, *plan.arrays)
    return solution


@reduce.register_fake
def _(
    values: Tensor, shift: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _reduction(values, SchurTables.unpacked(tensors, numbers))


@back.register_fake
def _(values: Tensor, work: Tensor, carried: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return kept.new_empty(len(kept), SchurTables.unpacked(tensors, numbers).num_unknowns)
