"""The elimination of small blocks on the CPU: factor them, carry them over to the kept blocks, and back again.

All work is in float64, whatever the matrix is: in float32 the difference U − Y Yᵀ loses what the points leave of the
cameras. Every array has the batch first; entries that are not `regular` are left alone. The kernels are in
`kernels/source/schur.cpp`; the names of the plan's arrays are those of `plan.Pivots`, `plan.Edges` and `plan.Pairs`.
"""

from typing import Any

from torch import Tensor

from mslsq.kernels import Kernel

_factor_pivots = Kernel("schur_factor_pivots", "nTnTnTndndn?nlllln")
_carry_over = Kernel("schur_carry_over", "nTndndndn?nnnlllllnn")
_place_kept = Kernel("schur_place_kept", "nTnTndnnllllll?")
_subtract_pairs = Kernel("schur_subtract_pairs", "ndndn?nlllllnnn")
_carry_back = Kernel("schur_carry_back", "ndndndnnlllnn")
_solve_pivots = Kernel("schur_solve_pivots", "ndndndnnllln")


def factor_pivots(
    values: Tensor, shift: Tensor, rhs: Tensor, work: Tensor, carried: Tensor, regular: Tensor, plan: Any, depth: int
) -> None:
    """V + shift = L Lᵀ and L⁻¹c of every eliminated block; not `regular` with a pivot that is not positive."""
    source, *others = plan
    arrays = *_sized(values, shift, rhs, work, carried), regular
    _factor_pivots(len(values), *arrays, len(source), source, *others, depth)


def carry_over(
    values: Tensor,
    work: Tensor,
    carried: Tensor,
    reduced_rhs: Tensor,
    regular: Tensor,
    by_row: int,
    by_column: int,
    plan: Any,
    rows: int,
    depth: int,
) -> None:
    """Yᵀ = L⁻¹Wᵀ of every edge, and b − Y L⁻¹c. Entry (k, a) of Wᵀ is at source + k by_row + a by_column."""
    source, *others = plan
    arrays = *_sized(values, work, carried, reduced_rhs), regular
    _carry_over(len(values), *arrays, by_row, by_column, len(source), source, *others, rows, depth)


def place_kept(values: Tensor, shift: Tensor, matrix: Tensor, plan: Any) -> None:
    """The blocks of U, with the damping on their diagonal."""
    source, *others = plan
    _place_kept(len(values), *_sized(values, shift, matrix), len(source), source, *others)


def subtract_pairs(
    work: Tensor, matrix: Tensor, regular: Tensor, plan: Any, rows: int, depth: int, columns: int
) -> None:
    """U − Y Yᵀ: one block of the reduced matrix after the other, the sum over its pairs in registers."""
    start, target, stride, left, right = plan
    arrays = *_sized(work, matrix), regular
    _subtract_pairs(len(work), *arrays, len(target), start, target, stride, left, right, rows, depth, columns)


def carry_back(
    work: Tensor, kept: Tensor, carried: Tensor, right: Tensor, column: Tensor, target: Tensor, rows: int, depth: int
) -> None:
    """L⁻¹c − Yᵀx, in place of L⁻¹c."""
    _carry_back(len(work), *_sized(work, kept, carried), len(right), right, column, target, rows, depth)


def solve_pivots(
    work: Tensor, carried: Tensor, out: Tensor, column: Tensor, triangle: Tensor, right: Tensor, depth: int
) -> None:
    """y = L⁻ᵀ(L⁻¹c − Yᵀx) of every eliminated block."""
    _solve_pivots(len(work), *_sized(work, carried, out), len(column), column, triangle, right, depth)


def _sized(*arrays: Tensor) -> list[Any]:
    """Every array and how many numbers an entry of the batch has in it."""
    return [part for array in arrays for part in (array, array.shape[1])]
