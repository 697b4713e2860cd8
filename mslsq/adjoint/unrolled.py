"""Derivatives of the iteration itself: all of its steps, or a few more at its end."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mslsq import pytree
from mslsq.adjoint.adjoint import FAILED, Adjoint, AdjointOptionError
from mslsq.adjoint.attachment import Attachment, per_entry
from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.judging import judged
from mslsq.adjoint.linear_steps import differentiable, harmless
from mslsq.adjoint.outputs import Attached, Ended, Prepared
from mslsq.levels import constant
from mslsq.linear import LinearSolver
from mslsq.linear.holding import Holding
from mslsq.linear.iterative.allowance import Allowance
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization, Linearizer
from mslsq.private import transforms_are_active
from mslsq.solvers.box import box_of, moved_by, with_projected_gradient
from mslsq.tracing.graph import TRANSFORM_LOCK
from mslsq.validation import boolean, integer, one_of, plain_options


@dataclass(frozen=True)
class Unrolled(Adjoint):
    """Differentiate every accepted step of the solve, also with respect to the start.

    The steps are taken again, with their damping (or trust region) as it was: that is held constant, and so is the
    residual that a linear solver that iterates has left; rejected steps have no influence. Derivatives of all orders,
    forward and reverse, are those of the computed iterate, which for a converged solve tend to the implicit ones; for
    a solve cut short on purpose (`max_steps=5` in a learned optimiser) they are what training wants.

    Cost: one linearization and one factorisation per accepted step, in memory too, unless `checkpoint` recomputes
    them in the backward pass (reverse mode only); linear in the number of blocks with every linear solver, but for
    what a factor fills in. A problem that met numbers that are not finite has NaN derivatives, or zero ones
    (`failed="zero"`).
    """

    keeps_trajectory: ClassVar[bool] = True
    differentiates_start: ClassVar[bool] = True
    checkpoint: bool = False
    failed: Literal["nan", "zero"] = "nan"

    def __post_init__(self) -> None:
        one_of("Unrolled: failed", self.failed, FAILED, AdjointOptionError)
        boolean("Unrolled: checkpoint", self.checkpoint, AdjointOptionError)

    def attach(self, attachment: Attachment) -> Attached:
        fill = torch.nan if self.failed == "nan" else 0.0
        linearizer, prepared = _differentiable(attachment.linearizer), attachment.prepared(fill)
        solver = attachment.call.task.solver
        if solver.bends_always:
            raise AdjointOptionError(
                "Unrolled does not differentiate steps that are bent by their acceleration: take Implicit(), or a "
                "solver without acceleration."
            )
        linearize = attachment.linearization(linearizer, prepared)
        x = attachment.start
        bounds = attachment.guarded_bounds(fill)
        box = box_of(linearizer, x, bounds) if bounds else ()

        def again(x: Values, number: int) -> Values:
            was = pytree.map_leaves(lambda steps: steps[:, number], trajectory)
            linear = linearizer.linear_solver.to_accuracy(was.accuracy)
            linear = linear.with_allowance(Allowance(allowed[number])) if allowed else linear
            model = linearize(x, prepared)
            model = with_projected_gradient(linearizer, model, x, box) if box else model
            model = model if all_moved else _guarded(model, was.accepted, linear)
            _, moved = moved_by(solver, linearizer, model, was.method, linear, x, box)
            return moved if all_moved else _of(was.accepted, moved, x)

        trajectory = attachment.answer.trajectory
        count, allowed = trajectory.accepted.shape[1] if trajectory else 0, attachment.call.made.iterations
        # Where no number may be read nothing is known to have gone well.
        all_moved = bool(trajectory) and attachment.nothing_failed and bool(trajectory.accepted.all())
        recompute = self.checkpoint and not transforms_are_active()
        with TRANSFORM_LOCK:
            for number in range(count):
                x = _checkpointed(again, x, number) if recompute else again(x, number)
            cost = attachment.cost_of(linearizer, prepared)(x, prepared)
        if not count:
            # No problem took a step: the derivative is zero, but there is one for `backward` to find.
            x = tuple(y + torch.where(torch.zeros_like(cost, dtype=torch.bool), cost, 0)[:, None, None] for y in x)
        return attachment.with_value(Attached(x, cost), fill)


@dataclass(frozen=True)
class Truncated(Adjoint):
    """Differentiate `steps` undamped Gauss–Newton steps taken from the solution.

    With k steps the derivative is off by the k-th power of the rate at which Gauss–Newton converges there (0.01 to
    0.5 for moderate residuals, 0 for none), so it needs no second derivatives beyond those of one linearization, and
    is exact in the limit. It is wrong where Gauss–Newton diverges (large residuals, strong curvature); use
    `Implicit` there. A problem that has not converged has NaN derivatives, or zero ones (`failed="zero"`).

    Cost: `steps` linearizations and factorisations, in memory too, with every linear solver.
    """

    steps: int = 5
    failed: Literal["nan", "zero"] = "nan"

    def __post_init__(self) -> None:
        plain_options(self)
        integer("Truncated: steps", self.steps, 1, error=AdjointOptionError)
        one_of("Truncated: failed", self.failed, FAILED, AdjointOptionError)

    def prepare(self, ended: Ended) -> Prepared:
        return judged(ended, Factorization("gauss_newton"))  # for its verdict: a singular JᵀJ has no step

    def attach(self, attachment: Attachment) -> Attached:
        fill = torch.nan if self.failed == "nan" else 0.0
        linearizer, prepared = _differentiable(attachment.linearizer), attachment.prepared(fill)
        x, usable, all_usable = attachment.solution(fill), attachment.answer.differentiable, attachment.nothing_failed
        linearize, linear = attachment.linearization(linearizer, prepared), linearizer.linear_solver
        linear = linear if attachment.free is None else Holding(linear, attachment.free)
        with TRANSFORM_LOCK:
            for _ in range(self.steps):
                model = linearize(x, prepared)
                model = model if all_usable else _guarded(model, usable, linear)
                step, _solved = linear.solve(model.matrix, attachment.of_free(model.rhs), None)
                step = step - constant(step)
                if not all_usable:
                    step = torch.where(usable[:, None], step, 0)
                moved = linearizer.retract(x, step)
                x = moved if all_usable else _of(usable, moved, x)
            cost = attachment.cost_of(linearizer, prepared)(x, prepared)
        return attachment.with_value(Attached(x, cost), fill)


def _checkpointed(again: Callable[[Values, int], Values], x: Values, number: int) -> Values:
    """A step whose intermediate tensors are not kept but computed again in the backward pass."""
    try:
        return checkpoint(again, x, number, use_reentrant=False)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        raise AdjointOptionError(
            "Unrolled(checkpoint=True) does not work where Jacobians come from reverse mode (a residual with fewer "
            "rows than its variables have columns), which PyTorch does not checkpoint. Write jacobians(...) in closed "
            "form, or use Unrolled()."
        ) from error


def _differentiable(linearizer: Linearizer) -> Linearizer:
    """With normal equations in place of QR, whose derivative would need Q: they give the same step."""
    return dataclasses.replace(linearizer, linear_solver=differentiable(linearizer.linear_solver))


def _guarded(model: Linearization, usable: Tensor, linear: LinearSolver) -> Linearization:
    """The model, and for problems that take no step one that is harmless to solve: a NaN behind a mask is still a
    NaN gradient."""
    return Linearization(
        model.cost,
        torch.where(usable[:, None], model.gradient, 0),
        torch.where(per_entry(usable, model.matrix), model.matrix, harmless(linear, model.matrix)),
        torch.where(usable[:, None], model.rhs, 0),
    )


def _of(usable: Tensor, moved: Values, x: Values) -> Values:
    """A step for the usable problems; the others stay."""
    return tuple(torch.where(per_entry(usable, new), new, old) for new, old in zip(moved, x, strict=True))
