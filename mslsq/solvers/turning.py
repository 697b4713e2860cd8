"""Turns without any influence, whose columns of J are nothing but rounding: the turn about a measured vertical.

The column of such a turn should be zero, and is 1e-19 where others are 1. A method that scales its steps by the lengths
of columns would turn by 1e17 radians, and no step of any variable would be a success. A column is rounding if one
radian, after which there is nothing new, changes each residual by less than the rounding of what that is made of. Of
variables that are no angles nothing is told: a step of theirs may well have to be 1e17 times as long as they are.
"""

from itertools import groupby

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.holding import Holding
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer
from mslsq.solvers.stationarity import squared_sizes

Columns = Bool[Tensor, "batch columns"]

IDLE = 32.0
"""Units in the last place of what residuals are made of, below which the influence of a radian is none. Rotations that
are applied to a vertical leave columns of up to two."""


def idle_turns(
    linearizer: Linearizer, matrix: Float[Tensor, "..."], values: Values, asks: bool = False
) -> Columns | None:
    """The columns of angles that are rounding; None where there are no angles, or, with `asks`, no such columns.

    Of column i that is |Jᵢ|² ≤ 32 ε (|JᵀJ||x|)ᵢ, with one radian as the size of an angle: rows in which it has no part
    do not count, however long the columns are that they hold.
    """
    spaces = [unknown.space for unknown in linearizer.system.unknowns]
    if not any(any(space.turns) for space in spaces):
        return None
    storage, structure = linearizer.linear_solver.storage, linearizer.structure
    squared = storage.diagonal(matrix)
    share = IDLE * torch.finfo(squared.dtype).eps
    if asks and not bool((squared.amin(-1) <= share**2 * _most(squared, values)).any()):
        return None
    sizes = squared_sizes(linearizer, values)
    turns = structure.to_columns([_as_numbers(space.turns, x) for space, x in zip(spaces, values, strict=True)])
    return (turns > 0) & (squared <= share * storage.magnitude(matrix, sizes.sqrt()))


def _most(squared: Float[Tensor, "batch columns"], values: Values) -> Float[Tensor, "batch"]:
    """More than (|JᵀJ||x|)ᵢ / |Jᵢ|, squared, of any column, in three operations: it is at most Σ |Jₖ||xₖ|."""
    columns = squared.shape[-1]
    lengths = sum((x * x).flatten(1).sum(-1) for x in values) + 1.0
    return columns**2 * squared.amax(-1) * lengths


def _as_numbers(turns: tuple[bool, ...], like: Tensor) -> Tensor:
    """(batch, count, tangent) One for an angle, else zero."""
    pieces = [
        (like.new_ones if turn else like.new_zeros)(*like.shape[:2], len(list(run))) for turn, run in groupby(turns)
    ]
    return torch.cat(pieces, -1)


def without_gradient(model: Linearization, idle: Columns | None) -> Linearization:
    """A linearization in which these columns have no gradient. The right-hand side stays that of all."""
    if idle is None:
        return model
    return model._replace(gradient=torch.where(idle & torch.isfinite(model.gradient), 0, model.gradient))


def holding(linear: LinearSolver, idle: Columns | None) -> LinearSolver:
    """A linear solver that keeps these columns still."""
    return linear if idle is None else Holding(linear, ~idle)
