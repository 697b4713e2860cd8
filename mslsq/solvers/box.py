"""Bounds on variables: which columns a step may move, where it is cut off, and what is left of the gradient.

A projected method with an active set. A column whose variable is on a bound, and whose gradient pushes it outwards, is
held (D. P. Bertsekas, "Projected Newton methods for optimization problems with simple constraints", 1982); the method
proposes its step for the others. Where that step leaves the box, those variables go to their bounds, and the step of
the rest is proposed once more around that move. What still leaves the box is cut off. With the damping of
Levenberg–Marquardt large enough the step is that of the scaled gradient, projected, so a rejected step always has a
better one behind it (C. Kanzow, N. Yamashita, M. Fukushima, "Levenberg–Marquardt methods with strong local convergence
properties for solving nonlinear equations with convex constraints", 2004). Once the right columns are held the step is
that of the problem without them: Gauss–Newton's rate is kept.

Variables are set to their bounds, to the bit, and not moved there: `x == lower` tells that a bound is active.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linear.holding import Holding
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer
from mslsq.problem.system import Inputs, System
from mslsq.solvers.solver import MethodState, Proposal, Solver

Columns = Bool[Tensor, "batch columns"]


class Box(NamedTuple):
    """The bounds of every column; infinite where there is none."""

    lower: Float[Tensor, "batch columns"]
    upper: Float[Tensor, "batch columns"]


class Landing(NamedTuple):
    """Which columns a step ends on their bounds."""

    lower: Columns
    upper: Columns


def limits_of(system: System, values: Values, bounds: Inputs) -> tuple[Values, Values]:
    """The least and the largest storage of every unknown, (batch, count, storage); infinite without bounds.

    Args:
        bounds: by the names of `Unknown.bounds`, (batch, count, tangent) or (1, count, tangent).
    """

    def side(number: int, nothing: float) -> Values:
        return tuple(
            bounds[unknown.bounds[number]].expand_as(x) if unknown.is_bounded else torch.full_like(x, nothing)
            for unknown, x in zip(system.unknowns, values, strict=True)
        )

    return side(0, -torch.inf), side(1, torch.inf)


def box_of(linearizer: Linearizer, values: Values, bounds: Inputs) -> Box:
    """The bounds of a solve by column.

    Args:
        bounds: by the names of `Unknown.bounds`, (batch, count, tangent) or (1, count, tangent).
    """
    sides = []
    for side, nothing in ((0, -torch.inf), (1, torch.inf)):
        blocks = [
            bounds[unknown.bounds[side]].expand_as(x)
            if unknown.is_bounded
            else x.new_full((*x.shape[:2], unknown.space.tangent_dim), nothing)
            for unknown, x in zip(linearizer.system.unknowns, values, strict=True)
        ]
        sides.append(linearizer.structure.to_columns(blocks, nothing))
    return Box(*sides)


def on_bounds(linearizer: Linearizer, values: Values, box: Box) -> Landing:
    """Which columns are on their bounds; of two that are equal, on the lower one."""
    x = coordinates(linearizer, values)
    at_lower = x <= box.lower
    return Landing(at_lower, (x >= box.upper) & ~at_lower)


def with_projected_gradient(linearizer: Linearizer, model: Linearization, values: Values, box: Box) -> Linearization:
    """The linearization with a gradient of zero where a bound holds a variable: what is left of it at a minimum.

    The right-hand side stays that of all columns.
    """
    x, gradient = coordinates(linearizer, values), model.gradient
    pushed = ((x <= box.lower) & (gradient > 0)) | ((x >= box.upper) & (gradient < 0)) | (box.lower == box.upper)
    return model._replace(gradient=torch.where(pushed & torch.isfinite(gradient), 0, gradient))


def moved_by(
    solver: Solver,
    linearizer: Linearizer,
    model: Linearization,
    method: MethodState,
    linear: LinearSolver,
    values: Values,
    box: Box | tuple[()],
    asks: bool = False,
) -> tuple[Proposal, Values]:
    """The step of a method, within bounds if there are some, and where it leads to. Arguments as `propose_within`."""
    if box:
        proposal, landing = propose_within(solver, linearizer, model, method, linear, values, box, asks)
        return proposal, within(linearizer, linearizer.retract(values, _finite(proposal.step)), box, landing)
    proposal = solver.propose(model, method, linear)
    return proposal, linearizer.retract(values, _finite(proposal.step))


def _finite(step: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch columns"]:
    """A step without what is not a number: problems that have none stay."""
    return torch.nan_to_num(step, posinf=0.0, neginf=0.0)


def propose_within(
    solver: Solver,
    linearizer: Linearizer,
    model: Linearization,
    method: MethodState,
    linear: LinearSolver,
    values: Values,
    box: Box,
    asks: bool = False,
) -> tuple[Proposal, Landing]:
    """A step that ends within the box, and where it ends on it.

    Args:
        model: `with_projected_gradient`.
        asks: may numbers be read? Then nothing is proposed twice where no bound is met.
    """
    x = coordinates(linearizer, values)
    free = ~(((x <= box.lower) | (x >= box.upper)) & (model.gradient == 0))
    storage = linear.storage

    def proposed(free: Columns, move: Tensor) -> Proposal:
        gradient = torch.where(free, model.gradient + storage.normal_product(model.matrix, move), 0)
        rhs = storage.moved(model.matrix, model.rhs, free, move)
        return solver.propose(model._replace(gradient=gradient, rhs=rhs), method, Holding(linear, free))

    def landing(step: Tensor, among: Columns) -> Landing:
        at = x + step
        return Landing(among & (at <= box.lower), among & (at >= box.upper))

    if asks and bool(free.all()):
        proposal = solver.propose(model, method, linear)
    else:
        proposal = proposed(free, torch.zeros_like(x))
    first = landing(proposal.step, free)
    met = first.lower | first.upper
    if asks and not bool(met.any()):
        return proposal, first
    move = torch.where(first.lower, box.lower - x, torch.where(first.upper, box.upper - x, 0))
    proposal = proposed(free & ~met, move)
    cut = landing(proposal.step, free & ~met)
    lower, upper = first.lower | cut.lower, first.upper | cut.upper
    step = torch.where(cut.lower, box.lower - x, torch.where(cut.upper, box.upper - x, proposal.step + move))
    promised = -(model.gradient * step).sum(-1) - 0.5 * storage.quadratic(model.matrix, step)
    is_cut = (cut.lower | cut.upper).any(-1)
    proposal = proposal._replace(
        step=step,
        predicted=torch.where(met.any(-1) | is_cut, promised, proposal.predicted),
        resolved=proposal.resolved & ~is_cut,
        lands=met.any(-1) | is_cut,
    )
    return proposal, Landing(lower, upper)


def within(linearizer: Linearizer, values: Values, box: Box, landing: Landing | None = None) -> Values:
    """Values moved to the nearest point within the box, and on their bounds, to the bit, where a step ends there."""
    structure = linearizer.structure
    sides = [structure.to_blocks(box.lower, -torch.inf), structure.to_blocks(box.upper, torch.inf)]
    sides += [] if landing is None else [structure.to_blocks(side, False) for side in landing]
    result = []
    for number, (unknown, x) in enumerate(zip(linearizer.system.unknowns, values, strict=True)):
        if unknown.is_bounded:
            lower, upper, *at = (side[number] for side in sides)
            x = torch.minimum(torch.maximum(x, lower), upper)
            x = torch.where(at[0], lower, torch.where(at[1], upper, x)) if at else x
        result.append(x)
    return tuple(result)


def free_of_bounds(linearizer: Linearizer, values: Values, bounds: Inputs) -> tuple[Columns, ...]:
    """Which columns are on no bound; empty where there are no bounds."""
    if not bounds:
        return ()
    held = on_bounds(linearizer, values, box_of(linearizer, values, bounds))
    return (~(held.lower | held.upper),)


def distances(linearizer: Linearizer, values: Values, bounds: Inputs) -> tuple[Tensor, Tensor]:
    """(batch, columns) How far each column is above its lower bound, and below its upper one."""
    box, x = box_of(linearizer, values, bounds), coordinates(linearizer, values)
    return x - box.lower, box.upper - x


def coordinates(linearizer: Linearizer, values: Values) -> Float[Tensor, "batch columns"]:
    """The bounded variables by column; zero in the columns of others."""
    blocks = [
        x if unknown.is_bounded else x.new_zeros(*x.shape[:2], unknown.space.tangent_dim)
        for unknown, x in zip(linearizer.system.unknowns, values, strict=True)
    ]
    return linearizer.structure.to_columns(blocks)
