"""Is a point stationary? Measured so that the answer does not depend on the units of residuals and variables.

In variables scaled by D, the lengths of J's columns, the gradient is D⁻¹g = D⁻¹Jᵀr. Its length is that of a residual:
|r| times the cosines between r and the columns (MINPACK's measure), and its square is twice what steepest descent
promises of each variable alone. So it is compared with |r|, in which the unit of the residuals cancels. Where the
residual itself goes to zero, every entry of the gradient is compared with its own rounding: that of a residual Jx, so
many units in the last place of |JᵀJ||x|, in which every unit cancels. (Not all entries with one number: a variable held
by a weight of 1e6 would hide what all others still have to gain.)
With a robust loss |r|² is twice the cost, Σρ, which is no smaller than that of the weighted residuals.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.solvers.solver import Solver

COSINE = 1e-12
"""The default test of the gradient: |D⁻¹g| ≤ 1e-12 |r|. What is left to gain is 1e-24 of the cost, but for what a bad
condition hides."""

ROUNDING = 4.0
"""A gradient below this many units in the last place of |JᵀJ||x| is zero: no x that can be represented makes it
smaller."""

NEAR = 1e-3
"""No tolerance for the gradient beside its floor is larger."""

NOISE = 128.0
"""Squared cosines below this many units in the last place may be rounding."""

SMALL = 1e-8
"""A step or a decrease below its tolerance means convergence only where |D⁻¹g|² is below this share of |r|² (or ten
times `ftol`), or |g| below ten times `xtol` |JᵀJ||x|. Elsewhere damping or radius made the step short: at a kink the
cosines are of order one, and steps shrink until one meets any tolerance. Of 30 classic problems, 28 runs on NIST's data
and 2048 fits in float64, each by three solvers, none that used to converge is lost by it."""

RUN_AWAY = {torch.float64: 1e10, torch.float32: 1e5}
"""Variables have run away that make this many times the residual of the start, and as many times what they made of it
there. Where a solve arrives they cancel to no more than that residual: of a polynomial of degree ten (NIST's Filip,
from zeros) they make 1e7 times it."""


def squared_sizes(linearizer: Linearizer, values: Values) -> Float[Tensor, "batch columns"]:
    """How large the variable of every column is, squared. A translation has its own unit, beside a rotation that has
    none: with the size of both together the rounding of metres would be that of a quaternion, or the other way round.
    """
    unknowns = linearizer.system.unknowns
    sizes = [unknown.space.tangent_sizes(x) for unknown, x in zip(unknowns, values, strict=True)]
    return linearizer.structure.to_columns(sizes)


def storage_sizes(linearizer: Linearizer, values: Values) -> Float[Tensor, "batch columns"]:
    """How long the storage behind every column is, squared: a start's steps are long or short beside that."""
    unknowns = linearizer.system.unknowns
    sizes = [unknown.space.storage_sizes(x) for unknown, x in zip(unknowns, values, strict=True)]
    return linearizer.structure.to_columns(sizes)


def with_start(
    sizes: Float[Tensor, "batch columns"],
    start_sizes: Float[Tensor, "batch columns"],
    start_reach: Float[Tensor, "batch columns"],
    squared_norms: Float[Tensor, "batch columns"],
) -> Float[Tensor, "batch columns"]:
    """|x|² as rounding knows it: at least that of the start.

    But only as far as the start makes no larger residual now than it made there, |Jᵢ||xᵢ|: an amplitude that has gone
    from 2 to 1e-15 while its exponential grew by as much is not rounding (NIST's MGH10 from its far start).
    """
    reach = start_reach / scales(squared_norms)
    return torch.maximum(sizes, torch.minimum(start_sizes, reach))


def scales(squared_norms: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch columns"]:
    """D², positive also where a column vanishes: its gradient vanishes with it."""
    return squared_norms.clamp(min=torch.finfo(squared_norms.dtype).tiny)


def is_hidden(
    solver: Solver, gradient: Float[Tensor, "batch columns"], squared_norms: Float[Tensor, "batch columns"]
) -> Bool[Tensor, "batch"]:
    """Is the square of a column's length beyond what the dtype can hold, since variables or residuals are so large, or
    so small? The cosine there is not known, whatever its gradient is. (Zeros alone are a variable without influence.)

    A `gtol` that the user gave is in the units of the gradient, and asks for no cosine.
    """
    vanishes = (squared_norms < torch.finfo(squared_norms.dtype).tiny) & ((squared_norms > 0) | (gradient != 0))
    hidden = (vanishes | ~torch.isfinite(squared_norms)).any(-1)
    return hidden if solver.gtol is None else torch.zeros_like(hidden)


def has_run_away(
    start_cost: Float[Tensor, "batch"], floor: "Floor", start_reach: Float[Tensor, "batch columns"]
) -> Bool[Tensor, "batch"]:
    """Have variables run away until beside them every step is short, and every gradient small? A step along a column
    of nothing but rounding leads there (1e13 rad, of the angle of an ellipse that begins as a circle)."""
    return floor.reach * RUN_AWAY[start_cost.dtype] ** -2 > known_at_start(start_cost, start_reach)


def known_at_start(
    start_cost: Float[Tensor, "batch"], start_reach: Float[Tensor, "batch columns"]
) -> Float[Tensor, "batch"]:
    """The residual of the start, or what the variables made of it there, squared."""
    return torch.maximum(2 * start_cost, start_reach.sum(-1))


def squared_length(gradient: Float[Tensor, "batch columns"], scale: Tensor) -> Float[Tensor, "batch"]:
    """|D⁻¹g|²; in this order, because g² alone would vanish in small units and float32."""
    return (gradient / scale * gradient).sum(-1)


class Floor(NamedTuple):
    """What the gradient is compared with where the residual goes to zero."""

    gradient: Float[Tensor, "batch columns"]
    """|JᵀJ||x|: that of a residual as large as the variables make it, entry by entry."""
    reach: Float[Tensor, "batch"]
    """|Dx|²: about how large that residual is, squared."""


def gradient_floor(
    solver: Solver,
    linear: LinearSolver,
    matrix: Tensor,
    sizes: Float[Tensor, "batch columns"],
    length: Float[Tensor, "batch"],
    cost: Float[Tensor, "batch"],
    asks: bool,
) -> Floor:
    """The floor at a point.

    Args:
        sizes: |x|², as `squared_sizes` has them.
        length: |D⁻¹g|².
        asks: may the numbers be asked? Then nothing is multiplied where neither test reads a floor: of Ladybug 49's
            steps of 28 ms that takes 5.
    """
    floor = Floor(torch.zeros_like(sizes), _known((linear.storage.diagonal(matrix) * sizes).sum(-1)))
    if asks and not bool((_rests_on_rounding(cost, floor) | _is_near(solver, length, floor)).any()):
        return floor
    return floor._replace(gradient=_known(linear.storage.magnitude(matrix, sizes.sqrt())))


def _known(floor: Tensor) -> Tensor:
    """Zero where it is infinite: below that is everything. Of a variable of 1e160 (float32: 1e20) the square is."""
    return torch.where(torch.isfinite(floor), floor, 0)


def gradient_met(
    solver: Solver,
    gradient: Float[Tensor, "batch columns"],
    gradient_norm: Float[Tensor, "batch"],
    length: Float[Tensor, "batch"],
    cost: Float[Tensor, "batch"],
    floor: Floor,
) -> Bool[Tensor, "batch"]:
    """Is the gradient small enough to stop? A `gtol` that the user gave is SciPy's: the largest entry, in its units.

    Args:
        length: |D⁻¹g|².
        floor: of `gradient_floor`.
    """
    if solver.gtol is not None:
        return gradient_norm <= solver.gtol
    eps = torch.finfo(cost.dtype).eps
    zero = _rests_on_rounding(cost, floor) & _below(gradient, ROUNDING * eps, floor)
    return (length * max(COSINE, eps) ** -2 <= 2 * cost) & has_squares(cost, gradient) | zero


def has_squares(cost: Float[Tensor, "batch"], gradient: Float[Tensor, "batch columns"]) -> Bool[Tensor, "batch"]:
    """Is the cost a number that the dtype holds, or the gradient zero? Of a residual of 1e-165 (float32: 1e-23) |r|²
    and |D⁻¹g|² are both zero, whatever the cosine is."""
    return (cost >= torch.finfo(cost.dtype).tiny) | (gradient == 0).all(-1)


def _rests_on_rounding(cost: Float[Tensor, "batch"], floor: Floor) -> Bool[Tensor, "batch"]:
    """Is |r| no more than the rounding of a residual as large as the variables make it?"""
    return 2 * cost * (ROUNDING * torch.finfo(cost.dtype).eps) ** -2 <= floor.reach


def _is_near(solver: Solver, length: Float[Tensor, "batch"], floor: Floor) -> Bool[Tensor, "batch"]:
    """Is |D⁻¹g| small beside |Dx|?"""
    return length * _near(solver, length.dtype) ** -2 <= floor.reach


def _near(solver: Solver, dtype: torch.dtype) -> float:
    """The share of its floor below which every entry of the gradient is small."""
    return min(max(10 * solver.xtol, ROUNDING * torch.finfo(dtype).eps), NEAR)


def _below(gradient: Float[Tensor, "batch columns"], share: float, floor: Floor) -> Bool[Tensor, "batch"]:
    """Is every entry of the gradient below this share of its floor?"""
    return (gradient.abs() <= share * floor.gradient).all(-1)


def nearly_stationary(
    solver: Solver,
    gradient: Float[Tensor, "batch columns"],
    length: Float[Tensor, "batch"],
    cost: Float[Tensor, "batch"],
    floor: Floor,
) -> Bool[Tensor, "batch"]:
    """May a short step, or a small decrease, be taken for convergence? Arguments as in `gradient_met`."""
    small = _is_near(solver, length, floor) & _below(gradient, _near(solver, cost.dtype), floor)
    return (length * (1 / share(solver, cost.dtype)) <= 2 * cost) & has_squares(cost, gradient) | small


def share(solver: Solver, dtype: torch.dtype) -> float:
    """The share of |r|² below which |D⁻¹g|² is small."""
    return max(SMALL, 10 * solver.ftol, NOISE * torch.finfo(dtype).eps)


def rests_at_zero(
    solver: Solver,
    gradient: Float[Tensor, "batch columns"],
    cost: Float[Tensor, "batch"],
    scale: Float[Tensor, "batch columns"],
) -> Bool[Tensor, "batch"]:
    """Where no step helps any more: are residual and gradient zero to the rounding of variables of size one?

    Asked last, because it has a unit: a start at the solution x = 0, with a residual of 1e-16 left by rounding, tells
    nothing of how large its variables are.
    """
    if solver.gtol is not None:
        return torch.zeros_like(gradient[:, 0], dtype=torch.bool)
    share = ROUNDING * torch.finfo(gradient.dtype).eps
    small = (2 * cost * share**-2 <= scale.sum(-1)) & (gradient.abs() <= share * scale).all(-1)
    return small & has_squares(cost, gradient)
