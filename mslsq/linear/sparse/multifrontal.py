"""Multifrontal Cholesky factorisation and triangular solves on a plan made once (Duff and Reid 1983; Liu 1992).

The kernels are in `kernels/source/multifrontal.cpp`; here is how they are called. Arrays are NumPy's or PyTorch's.
"""

from collections.abc import Sequence
from typing import Any

from mslsq.kernels import Kernel

TILE = 8
"""What rows and columns of fronts are padded to."""

# columns of the table of fronts
WIDTH, PADDED, BELOW, PADDED_BELOW, LD, PANEL, UPDATE, UPDATE_LD, FIRST = range(9)

_factor = Kernel("multifrontal_factor", "TnTnTn?nnnnllllllll")
_solve = Kernel("multifrontal_solve", "Tn?TTnnnnnnlliln")


def factor(
    values: Any, shift: Any, factors: Any, ok: Any, begin: int, end: int, stack: int, plan: Sequence[Any]
) -> None:
    """Factor the batch entries begin <= b < end of `values` into rows of `factors`; `shift` (batch, N) or (batch, 0)
    for none. `plan` is the `numeric` part of an elimination, `stack` its room for update matrices."""
    fronts, *others = plan
    sizes = values.shape[1], shift.shape[1], factors.shape[1]
    _factor(values, sizes[0], shift, sizes[1], factors, sizes[2], ok, begin, end, stack, len(fronts), fronts, *others)


def solve(factors: Any, ok: Any, rhs: Any, out: Any, begin: int, end: int, tallest: int, plan: Sequence[Any]) -> None:
    """Solve the batch entries begin <= b < end of rhs (batch, N, k) into out; an entry whose factorisation failed gets
    NaN. `plan` is the `triangular` part of an elimination.

    Up to two right-hand sides go one by one (reading the factor costs all the time), more of them eight at a time.
    """
    fronts, starts, rows, scalar = plan
    _, unknowns, columns = rhs.shape
    sizes = begin, end, unknowns, columns, tallest, len(fronts)
    _solve(factors, factors.shape[1], ok, rhs, out, *sizes, fronts, starts, rows, scalar, len(scalar))
