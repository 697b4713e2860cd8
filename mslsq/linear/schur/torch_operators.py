"""The two halves of a Schur complement as operators of PyTorch: reduce to the kept unknowns, and come back.

The kernels get their plan as tensors, so a step that calls them can be recorded as a plain graph; they have no
derivative of their own (the adjoint brings it). `schur.tensors` does the same in PyTorch's own operations: for other
devices and for large blocks.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.levels import kept_tensors
from mslsq.linear.schur import kernels
from mslsq.linear.schur.plan import PADDING, SchurPlan
from mslsq.linear.torch_operators import registered

F64 = torch.float64

MOST_UNROLLED_PRODUCTS = 4096
"""Up to that many multiplications of vectors of eight in a product of small blocks kernels with the sizes built in are
compiled."""


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


class Packed(NamedTuple):
    """A plan as the operators take it: arrays as tensors that share memory, sizes as integers."""

    arrays: list[Tensor]
    numbers: list[int]


def packed(plan: SchurPlan, dense: bool) -> Packed:
    """The plan for a reduced matrix that is stored dense, or by the blocks of its structure."""
    target, stride, size = reduced_places(plan, dense)
    arrays: list[np.ndarray] = []
    numbers = [plan.structure.num_unknowns, plan.num_reduced, size, plan.work_size, plan.num_eliminated]
    numbers.append(len(plan.pivots))
    for group in plan.pivots:
        arrays += [group.source, group.column, group.triangle, group.right]
        numbers.append(group.size)
    numbers.append(len(plan.edges))
    for edges in plan.edges:
        arrays += [edges.source, edges.triangle, edges.right, edges.column, edges.target]
        numbers += [edges.kept_size, edges.size, int(edges.transposed)]
    numbers.append(len(plan.pairs))
    for pairs in plan.pairs:
        arrays += [pairs.start, target[pairs.target], stride[pairs.target], pairs.left, pairs.right]
        numbers += [pairs.height, pairs.size, pairs.width]
    arrays.append(plan.kept_unknowns)
    if plan.reduced is not None:
        reduced, at = plan.reduced, plan.kept_target
        row, col = reduced.rows[at], reduced.cols[at]
        arrays += [plan.kept_source, target[at], stride[at], plan.kept_unknowns[reduced.starts[row]]]
        arrays += [reduced.block_sizes[row], reduced.block_sizes[col], row == col]
    return Packed(kept_tensors(arrays, torch.device("cpu")), numbers)


def reduced_places(plan: SchurPlan, dense: bool) -> tuple[Int[np.ndarray, "blocks"], Int[np.ndarray, "blocks"], int]:
    """Where each stored block of the reduced matrix begins, the distance of its rows, and how many numbers there
    are."""
    reduced = plan.reduced
    if reduced is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    if not dense:
        return reduced.offsets, reduced.block_sizes[reduced.cols], reduced.num_values
    n = reduced.num_unknowns
    return reduced.starts[reduced.rows] * n + reduced.starts[reduced.cols], np.full(len(reduced.rows), n), n * n


def unrollable(plan: SchurPlan) -> bool:
    """Are all blocks small enough for kernels with the sizes built in?"""
    sizes = [(pairs.height, pairs.size, pairs.width) for pairs in plan.pairs]
    sizes += [(edges.kept_size, edges.size, 1) for edges in plan.edges]
    return all(a * k * -(-b // 8) <= MOST_UNROLLED_PRODUCTS for a, k, b in sizes)


@registered("schur_reduce")
def reduce_by_kernels(
    values: Tensor, shift: Tensor, rhs: Tensor, arrays: list[Tensor], numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The `Reduction` of A + diag(shift) and the right-hand side; an empty `shift` is none."""
    batch, (_, count, size, work_size, eliminated) = len(values), numbers[:5]
    # What kernels write need not be zero before: Y is seven megabytes for BAL 49-7776.
    work, carried = values.new_empty(batch, work_size, dtype=F64), values.new_empty(batch, eliminated, dtype=F64)
    work[:, -PADDING:] = 0
    matrix = values.new_zeros(batch, size, dtype=F64)
    regular = torch.ones(batch, dtype=torch.bool)
    pivots, edges, pairs, rest = _groups(arrays, numbers)
    reduced_rhs = rhs[:, rest[0]].to(F64)
    values, rhs = values.contiguous(), rhs.contiguous()
    shift = shift.contiguous() if shift.numel() else values.new_empty(batch, 0)
    for k, given in pivots:
        kernels.factor_pivots(values, shift, rhs, work, carried, regular, given, k)
    for (a, k, transposed), given in edges:
        by_row, by_column = (1, k) if transposed else (a, 1)
        kernels.carry_over(values, work, carried, reduced_rhs, regular, by_row, by_column, given, a, k)
    if count:
        kernels.place_kept(values, shift, matrix, rest[1:])
    for (a, k, c), given in pairs:
        kernels.subtract_pairs(work, matrix, regular, given, a, k, c)
    if not regular.all():
        for part in (work, carried, matrix, reduced_rhs):
            part[~regular] = 0
    return work, carried, matrix, reduced_rhs, regular


@registered("schur_back")
def back_by_kernels(work: Tensor, carried: Tensor, kept: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    """All unknowns from the kept ones."""
    pivots, edges, _, rest = _groups(arrays, numbers)
    carried, kept = carried.clone(memory_format=torch.contiguous_format), kept.contiguous()
    solution = kept.new_empty(len(kept), numbers[0])
    solution[:, rest[0]] = kept
    work = work.contiguous()
    for (a, k, _), (_, _, right, column, target) in edges:
        kernels.carry_back(work, kept, carried, right, column, target, a, k)
    for k, (_, column, triangle, right) in pivots:
        kernels.solve_pivots(work, carried, solution, column, triangle, right, k)
    return solution


@reduce_by_kernels.register_fake
def _(
    values: Tensor, shift: Tensor, rhs: Tensor, arrays: list[Tensor], numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, (_, count, size, work_size, eliminated) = len(values), numbers[:5]
    shapes = (work_size, eliminated, size, count)
    work, carried, matrix, reduced_rhs = (values.new_empty(batch, n, dtype=F64) for n in shapes)
    return work, carried, matrix, reduced_rhs, values.new_empty(batch, dtype=torch.bool)


@back_by_kernels.register_fake
def _(work: Tensor, carried: Tensor, kept: Tensor, arrays: list[Tensor], numbers: list[int]) -> Tensor:
    return kept.new_empty(len(kept), numbers[0])


def _groups(plan: list[Tensor], numbers: list[int]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """The arrays of every group with its sizes, and those of the kept blocks."""
    arrays, sizes = iter(plan), iter(numbers[5:])

    def take(count: int) -> list[Tensor]:
        return [next(arrays) for _ in range(count)]

    pivots = [(next(sizes), take(4)) for _ in range(next(sizes))]
    edges = [((next(sizes), next(sizes), next(sizes)), take(5)) for _ in range(next(sizes))]
    pairs = [((next(sizes), next(sizes), next(sizes)), take(5)) for _ in range(next(sizes))]
    return pivots, edges, pairs, list(arrays)
