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
    work = values.new_empty(batch, plan.num_triangles, dtype=F64)
    carried = values.new_empty(batch, plan.num_eliminated, dtype=F64)
    matrix = values.new_zeros(batch, plan.matrix_size, dtype=F64)
    regular = torch.ones(batch, dtype=torch.bool)
    reduced_rhs = rhs[:, plan.kept_unknowns].to(F64)
    values, rhs, shift = values.contiguous(), rhs.contiguous(), shift.contiguous()
    shifts = shift.shape[1] if shift.numel() else 0
    given = batch, values, values.shape[1], shift, shifts, rhs
    _reduce(*given, work, carried, reduced_rhs, matrix, regular, *plan.arrays)
    if not regular.all():
        for part in (work, carried, matrix, reduced_rhs):
            part[~regular] = 0
    return work, carried, matrix, reduced_rhs, regular


@registered("schur_back")
def back(
    values: Tensor, work: Tensor, carried: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]
) -> Tensor:
    """All unknowns from the kept ones."""
    plan, batch = SchurTables.unpacked(tensors, numbers), len(kept)
    work, carried, kept = work.contiguous(), carried.contiguous(), kept.contiguous()
    solution, lost = kept.new_empty(batch, plan.num_unknowns), torch.zeros_like(carried)
    solution[:, plan.kept_unknowns] = kept
    _back(batch, values.contiguous(), values.shape[1], work, carried, kept, lost, solution, *plan.arrays)
    return solution


@reduce.register_fake
def _(
    values: Tensor, shift: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan, batch = SchurTables.unpacked(tensors, numbers), len(values)
    shapes = (plan.num_triangles, plan.num_eliminated, plan.matrix_size, plan.num_reduced)
    work, carried, matrix, reduced_rhs = (values.new_empty(batch, n, dtype=F64) for n in shapes)
    return work, carried, matrix, reduced_rhs, values.new_empty(batch, dtype=torch.bool)


@back.register_fake
def _(values: Tensor, work: Tensor, carried: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return kept.new_empty(len(kept), SchurTables.unpacked(tensors, numbers).num_unknowns)
