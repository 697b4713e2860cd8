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
from mslsq.linear.schur.tables import PADDING, SchurTables
from mslsq.linear.torch_operators import registered

F64 = torch.float64

_factor_pivots = Kernel("schur_factor_pivots", "nTnTnTndndn?nlllln")
_carry_over = Kernel("schur_carry_over", "nTndndndn?nnnlllllnn")
_place_kept = Kernel("schur_place_kept", "nTnTndnnllllll?")
_subtract_pairs = Kernel("schur_subtract_pairs", "ndndn?nlllllnnn")
_carry_back = Kernel("schur_carry_back", "ndndndnnlllnn")
_solve_pivots = Kernel("schur_solve_pivots", "ndndndnnllln")


class Reduction(NamedTuple):
    """What the first half gives; everything in float64."""

    work: Float[Tensor, "batch work"]
    """Y and L (its diagonal inverted), where the plan says."""
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
    # What kernels write need not be zero before: Y is seven megabytes for BAL 49-7776.
    work = values.new_empty(batch, plan.work_size, dtype=F64)
    carried = values.new_empty(batch, plan.num_eliminated, dtype=F64)
    work[:, -PADDING:] = 0
    matrix = values.new_zeros(batch, plan.matrix_size, dtype=F64)
    regular = torch.ones(batch, dtype=torch.bool)
    reduced_rhs = rhs[:, plan.kept_unknowns].to(F64)
    values, rhs = values.contiguous(), rhs.contiguous()
    shift = shift.contiguous() if shift.numel() else values.new_empty(batch, 0)
    of = [(array, array.shape[1]) for array in (values, shift, rhs, work, carried, reduced_rhs, matrix)]
    of_values, of_shift, of_rhs, of_work, of_carried, of_reduced, of_matrix = of
    for p in plan.pivots:
        arrays = len(p.source), p.source, p.column, p.triangle, p.right, p.size
        _factor_pivots(batch, *of_values, *of_shift, *of_rhs, *of_work, *of_carried, regular, *arrays)
    for e in plan.edges:
        arrays = len(e.source), e.source, e.triangle, e.right, e.column, e.target, e.kept_size, e.size
        given = *of_values, *of_work, *of_carried, *of_reduced, regular, e.by_row, e.by_column
        _carry_over(batch, *given, *arrays)
    for k in plan.kept:
        sizes = [torch.full_like(k.source, size) for size in (k.height, k.width)]
        arrays = len(k.source), k.source, k.target, k.stride, k.column, *sizes
        diagonal = torch.full_like(k.source, k.is_diagonal, dtype=torch.bool)
        _place_kept(batch, *of_values, *of_shift, *of_matrix, *arrays, diagonal)
    for q in plan.pairs:
        arrays = len(q.target), q.start, q.target, q.stride, q.left, q.right, q.height, q.size, q.width
        _subtract_pairs(batch, *of_work, *of_matrix, regular, *arrays)
    if not regular.all():
        for part in (work, carried, matrix, reduced_rhs):
            part[~regular] = 0
    return work, carried, matrix, reduced_rhs, regular


@registered("schur_back")
def back(work: Tensor, carried: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    """All unknowns from the kept ones."""
    plan, batch = SchurTables.unpacked(tensors, numbers), len(kept)
    carried, kept = carried.clone(memory_format=torch.contiguous_format), kept.contiguous()
    solution = kept.new_empty(batch, plan.num_unknowns)
    solution[:, plan.kept_unknowns] = kept
    of = [(array, array.shape[1]) for array in (work.contiguous(), kept, carried, solution)]
    of_work, of_kept, of_carried, of_solution = of
    for e in plan.edges:
        arrays = len(e.right), e.right, e.column, e.target, e.kept_size, e.size
        _carry_back(batch, *of_work, *of_kept, *of_carried, *arrays)
    for p in plan.pivots:
        arrays = len(p.column), p.column, p.triangle, p.right, p.size
        _solve_pivots(batch, *of_work, *of_carried, *of_solution, *arrays)
    return solution


@reduce.register_fake
def _(
    values: Tensor, shift: Tensor, rhs: Tensor, tensors: list[Tensor], numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan, batch = SchurTables.unpacked(tensors, numbers), len(values)
    shapes = (plan.work_size, plan.num_eliminated, plan.matrix_size, plan.num_reduced)
    work, carried, matrix, reduced_rhs = (values.new_empty(batch, n, dtype=F64) for n in shapes)
    return work, carried, matrix, reduced_rhs, values.new_empty(batch, dtype=torch.bool)


@back.register_fake
def _(work: Tensor, carried: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return kept.new_empty(len(kept), SchurTables.unpacked(tensors, numbers).num_unknowns)
