"""Does anything depend on the variables? Where the Jacobian is zero every start is "stationary".

A residual with a `detach`, a `round`, an `argmax` or a loss that rejects every block has a gradient of zero: the solve
ends at its start, and by the letter of its tolerance it has converged. Said by a warning. A single variable without
influence is normal (an inactive hinge, a block that no cost mentions): `mslsq.explain` finds those.
"""

import warnings

import torch
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.solution import Status
from mslsq.solvers.box import Box, within
from mslsq.tracing.graph import TRANSFORM_LOCK

NEARBY = 1e-2
"""How far from the start, relative to 1 + |x|, the Jacobian is looked at again: beyond rounding, within most models."""


class NoInfluenceWarning(UserWarning):
    """The variables have no influence on any residual at the start, so that the solve ended there."""


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
            "comparison), or for variables that the residual never uses."
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
