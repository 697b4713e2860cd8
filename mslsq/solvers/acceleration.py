"""Geodesic acceleration: a step along the parabola that the curvature of the model bends it to."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linear import LinearSolver
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer, TermInputs
from mslsq.solvers.box import Box, coordinates
from mslsq.solvers.solver import Proposal, quotient

Pulled = Callable[[Values, TermInputs, Tensor], Tensor]
"""`linearize.acceleration.pulled_acceleration` of a linearizer, or what stands for it."""


def accelerated(
    proposal: Proposal,
    moved: Values,
    most: float,
    wanted: Bool[Tensor, "batch"] | None,
    pulled: Pulled,
    linearizer: Linearizer,
    model: Linearization,
    linear: LinearSolver,
    values: Values,
    inputs: TermInputs,
    box: Box | tuple[()] = (),
) -> tuple[Proposal, Values]:
    """The step v + ½a instead of v, and where it leads to: (JᵀJ + μD²) a = −Jᵀr″, with r″ the second
    derivative of r along v.

    M. K. Transtrum, J. P. Sethna, "Improvements to the Levenberg–Marquardt algorithm for nonlinear least-squares
    minimization" (2012). They refuse a step whose 2|a|/|v| is above `most`, in the norm |D·|; here a is shortened to
    that. Of NIST's runs on which it was chosen one more arrives than if v is taken alone there (MGH10), and Hahn1 takes
    10 steps instead of 33 if the step is refused.

    A problem that has a variable on a bound, or would be brought to one, takes v.

    Args:
        moved: where v leads to.
        wanted: the problems whose steps are bent; None for all.
        pulled: gives Jᵀr″.
    """
    step = proposal.step
    finite = torch.isfinite(step).all(-1)
    finite = finite if wanted is None else finite & wanted
    safe = torch.where(finite[:, None], step, 0)
    rhs = pulled(values, inputs, safe)
    usable = finite & torch.isfinite(rhs).all(-1)
    rhs = torch.where(usable[:, None], rhs, 0)
    bend, solved = linear.solve(model.matrix, linear.storage.right_hand_side(model.matrix, rhs), proposal.damping)
    usable = usable & solved & torch.isfinite(bend).all(-1)
    bend = torch.where(usable[:, None], bend, 0)
    longest, length = (_length(vector, proposal.damping) for vector in (safe, bend))
    # The model's cost falls by ½(½Jᵀr″)(JᵀJ + μD²)⁻¹(½Jᵀr″) where the step follows the residual's bend.
    worth = quotient(-0.125 * (rhs * bend).sum(-1), proposal.predicted)
    bend = 0.5 * bend * quotient(most * longest, 2 * length).clamp(max=1)[:, None]
    if box:
        x = coordinates(linearizer, values)
        to = x + safe + bend
        inside = (x > box.lower) & (x < box.upper) & (to > box.lower) & (to < box.upper)
        usable = usable & inside.all(-1) & (True if proposal.lands is None else ~proposal.lands)
    bent = torch.where(usable[:, None], safe + bend, 0)
    values = tuple(
        torch.where(usable[:, None, None], new, old)
        for new, old in zip(linearizer.retract(values, bent), moved, strict=True)
    )
    step = torch.where(usable[:, None], bent, step)
    return proposal._replace(step=step, worth=torch.where(usable, worth, 0)), values


def _length(vector: Float[Tensor, "batch columns"], damping: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch"]:
    """|D·|, but for a factor: the damping is μD². Scaled, so that nothing overflows."""
    largest = damping.amax(-1, keepdim=True)
    return (damping / torch.where(largest > 0, largest, 1) * vector * vector).sum(-1).sqrt()
