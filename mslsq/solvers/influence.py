"""Does anything depend on the variables? Where the Jacobian is zero every start is "stationary".

A residual with a `detach`, a `round`, an `argmax` or a loss that rejects every block has a gradient of zero: the solve
ends at its start, and by the letter of its tolerance it has converged. Said by a warning. A single variable without
influence is normal (an inactive hinge, a block that no cost mentions): `mslsq.explain` finds those.

A residual of 1e-170 (float32: 1e-23) has a gradient of zero, too, because products of such numbers vanish. That is no
minimum: the status is taken back.
"""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.solution import Status
from mslsq.solvers.box import Box, within
from mslsq.solvers.stationarity import ROUNDING, SMALL
from mslsq.tracing.graph import TRANSFORM_LOCK

NEARBY = 1e-2
"""How far from the start, relative to 1 + |x|, the Jacobian is looked at again: beyond rounding, within most models."""


class NoInfluenceWarning(UserWarning):
    """The variables have no influence on any residual at the start, so that the solve ended there."""


class VanishingSquaresWarning(UserWarning):
    """Residuals are so small that their squares are zero in their dtype, so that the solve ended at its start."""


def first_look(status: Tensor, gradient_norm: Tensor) -> tuple[bool, bool]:
    """Is any problem running, and is the gradient of any exactly zero? One question to the device."""
    answer = int((status == Status.RUNNING).any() + 2 * (gradient_norm == 0).any())
    return bool(answer & 1), bool(answer & 2)


def warn_without_influence(
    linearizer: Linearizer, start: Values, inputs: TermInputs, box: Box | tuple[()] = ()
) -> None:
    """Warn of the problems whose Jacobian is zero at the start though their residuals are not."""
    if linearizer.structure.num_columns == 0:
        return  # everything is held fixed
    with TRANSFORM_LOCK, torch.no_grad():
        at_start = linearizer.linearize(start, inputs)
        idle = _without_columns(linearizer, at_start) & (at_start.cost != 0) & torch.isfinite(at_start.cost)
        if not bool(idle.any()):
            return
        reason = _reason(linearizer, start, inputs, idle, box)
    names = ", ".join(repr(term.name) for term in linearizer.system.terms)
    where = "" if len(idle) == 1 else f" in {int(idle.sum())} of {len(idle)} problems"
    residuals = "residual" if len(linearizer.system.terms) == 1 else "any of the residuals"
    warnings.warn(
        f"The variables have no influence on {residuals} {names} at the start{where}: the Jacobian is zero, so the "
        f"gradient is, and the solve ended where it began. {reason}",
        NoInfluenceWarning,
        stacklevel=2,
    )


def without_squares(linearizer: Linearizer, start: Values, inputs: TermInputs) -> Bool[Tensor, "batch"]:
    """The problems whose gradient is zero at the start only because products of numbers as small as their residuals
    and Jacobians are zero; said by a warning."""
    with TRANSFORM_LOCK, torch.no_grad():
        found = [
            (block, *map(block.batch_first, block.linearizations(start, inputs[n])))
            for n, block in enumerate(linearizer.blocks)
        ]
        height = torch.stack([_largest(r) for _, r, _ in found]).amax(0)
        steepness = torch.stack([_largest(jacobian) for *_, jacobian in found]).amax(0)
        size, limits = torch.stack([_largest(x) for x in start]).amax(0), torch.finfo(height.dtype)
        vanishing = (height > 0) & (steepness > 0) & (torch.maximum(height, steepness) < limits.tiny**0.5)
        vanishing = vanishing & (height > ROUNDING * limits.eps * steepness * size)  # else it is a solution
        if not bool(vanishing.any()):
            return vanishing
        slopes = [
            torch.ones_like(height)
            if block.way.sparsity is not None
            else _largest(_cosines(_lifted(r, height), _lifted(jacobian, steepness)))
            for block, r, jacobian in found
        ]
        vanishing = vanishing & (torch.stack(slopes).amax(0) > SMALL**0.5)
    if bool(vanishing.any()):
        names = ", ".join(repr(term.name) for term in linearizer.system.terms)
        where = "" if len(vanishing) == 1 else f" in {int(vanishing.sum())} of {len(vanishing)} problems"
        largest = float(height[vanishing].amax())
        warnings.warn(
            f"The residuals of {names} are so small{where} (at most {largest:.1e}) that their squares are zero in "
            f"{str(height.dtype).removeprefix('torch.')}, so that nothing can be minimised: give them in other units, "
            "such that they are near one (a weight will do), or use float64.",
            VanishingSquaresWarning,
            stacklevel=2,
        )
    return vanishing


def _largest(x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch"]:
    """The largest entry of each problem."""
    return x.abs().flatten(1).nan_to_num(0, 0, 0).amax(1) if x.numel() else x.new_zeros(len(x))


def _lifted(x: Float[Tensor, "batch ..."], size: Float[Tensor, "batch"]) -> Float[Tensor, "batch ..."]:
    """The numbers of each problem as a share of its largest one."""
    return x / torch.where(size > 0, size, 1).reshape(-1, *(1,) * (x.ndim - 1))


def _cosines(
    r: Float[Tensor, "batch rows *blocks"], jacobian: Float[Tensor, "batch rows tangent *blocks"]
) -> Float[Tensor, "batch tangent *blocks"]:
    """Between the residual of every block and the columns of its Jacobian."""
    lengths = torch.linalg.vector_norm(r, dim=1)[:, None] * torch.linalg.vector_norm(jacobian, dim=1)
    return (r[:, :, None] * jacobian).sum(1) / torch.where(lengths > 0, lengths, 1)


def _reason(linearizer: Linearizer, start: Values, inputs: TermInputs, idle: Tensor, box: Box | tuple[()]) -> str:
    """Why, as far as it can be found out by looking nearby; and what to try."""
    losses = any(block.term.loss is not None for block in linearizer.blocks)
    if losses and any(
        bool(block.linearizations(start, inputs[n])[1].any()) for n, block in enumerate(linearizer.blocks)
    ):
        return (
            "The residuals do depend on them, but the loss gives every block a weight of zero, as Tukey does beyond "
            "its scale: raise the scale, or start closer."
        )
    size = torch.stack([(x * x).sum((1, 2)) for x in start]).sum(0).sqrt()
    columns = linearizer.structure.num_columns
    # Any direction will do that no symmetry singles out.
    direction = torch.sin(1 + 1.7 * torch.arange(columns, dtype=size.dtype, device=size.device))
    moved = linearizer.retract(start, NEARBY * (1 + size)[:, None] * direction)
    nearby = linearizer.linearize(within(linearizer, moved, box) if box else moved, inputs)
    if bool((_without_columns(linearizer, nearby) & idle).any()):
        return (
            "It is zero nearby, too: look for what lets no derivative through (detach, item, numpy, round, argmax, a "
            "comparison, the backward of an autograd.Function), or for variables that the residual never uses."
        )
    return (
        "Nearby it is not: this is a stationary point, by a symmetry perhaps, and need not be a minimum. Start "
        "somewhere else."
    )


def _without_columns(linearizer: Linearizer, model: Linearization) -> Tensor:
    """The problems of whose Jacobian every column is zero."""
    zero = linearizer.linear_solver.storage.diagonal(model.matrix) == 0
    padding = linearizer.structure.padding
    return (zero if padding is None else zero | padding).all(-1)
