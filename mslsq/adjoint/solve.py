"""From the task of a solve and its tensors to a solution with derivatives: what every front door comes to."""

from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import Adjoint, DerivativeOrderError
from mslsq.adjoint.attachment import attachment_of
from mslsq.adjoint.function import Call, Solve, with_batch_axis
from mslsq.adjoint.limit import limited
from mslsq.adjoint.rejection import with_found
from mslsq.levels import backward_may_come, constant, count_transforms, has_plain_tangent
from mslsq.linearize.blocks import Values
from mslsq.linearize.plan import Plan
from mslsq.private import forward_level_is_open, transforms_are_active, without_saved_tensor_hooks
from mslsq.problem.system import Inputs
from mslsq.solution import Solution
from mslsq.solvers.task import Task


class SolvedSystem(NamedTuple):
    """A solution, and the plan that it was found by."""

    solution: Solution
    """Its `value` the tuple of storages (batch, count, storage); every figure has the batch axis."""
    plan: Plan
    interrupted: bool
    """By a KeyboardInterrupt?"""


def solve_system(
    task: Task, values: Values, inputs: tuple[Inputs, ...], bounds: Inputs, adjoint: Adjoint
) -> SolvedSystem:
    """Solve, and attach derivatives where they are taken.

    Args:
        values: start of every unknown, (batch, count, storage).
        inputs: per term its tensors by name; those named in `task.batched` have a leading batch axis.
        bounds: by the names of `Unknown.bounds`, (count, tangent); those named in `task.batched_bounds` have a leading
            batch axis.
    """
    device = values[0].device.type
    if torch.is_autocast_enabled(device):
        # A network around the solve may use lower precision, the solve keeps the dtype of its start: a matrix product
        # in bfloat16 inside a residual would leave two digits.
        with torch.autocast(device, enabled=False):
            return solve_system(task, values, inputs, bounds, adjoint)
    tensors = [tensor for given in (*inputs, bounds) for tensor in given.values()]
    starts = [
        x
        for unknown, x in zip(task.system.unknowns, values, strict=True)
        if unknown.free is not None or adjoint.differentiates_start
    ]
    transforms = count_transforms([*tensors, *starts])
    levels = transforms + any(map(backward_may_come, [*tensors, *starts]))
    if forward_level_is_open() and any(map(has_plain_tangent, [*tensors, *starts])):
        raise DerivativeOrderError(
            "A tensor with a tangent of torch.autograd.forward_ad (dual_level, make_dual) was given to a solve, which "
            "would lose it. Use torch.func.jvp or torch.func.jacfwd for forward derivatives."
        )
    order = adjoint.highest_order
    if order is not None and transforms > order:
        raise DerivativeOrderError(
            f"{transforms} nested derivatives are being taken through a solve, but {adjoint!r} is exact up to order "
            f"{order} only. Use Implicit(order={transforms}), or Unrolled()."
        )
    if levels and order is not None:
        inputs = tuple({name: limited(tensor, transforms, order) for name, tensor in given.items()} for given in inputs)
        values = tuple(limited(x, transforms, order) for x in values)
        bounds = {name: limited(bound, transforms, order) for name, bound in bounds.items()}
    call = Call(task, tuple(tuple(given) for given in (*inputs, bounds)), adjoint if levels else None)
    # The solve itself never sees a differentiating level: derivatives are attached to its answer.
    if transforms_are_active():
        answer = call.answer(Solve.apply(call, *map(constant, call.flatten(values, inputs, bounds))))
    else:
        with torch.no_grad(), without_saved_tensor_hooks():
            answer = call.run(
                tuple(map(constant, values)),
                tuple({name: constant(tensor) for name, tensor in given.items()} for given in inputs),
                {name: constant(bound) for name, bound in bounds.items()},
            )
    value, cost, multipliers = answer.values, answer.cost, answer.multipliers
    if levels:
        inputs = with_found(inputs, answer.given)
        attached = adjoint.attach(attachment_of(call, values, inputs, bounds, answer))
        value, cost, multipliers = attached.values, attached.cost, dict(attached.multipliers) or multipliers
    solution = Solution(
        value,
        cost,
        answer.status,
        answer.num_steps,
        answer.num_evaluations,
        answer.gradient_norm,
        answer.differentiable,
        answer.history,
        answer.adjoint_residual,
        _active(task, answer.values, bounds) if bounds else (),
        answer.weights,
        multipliers,
        answer.violation,
    )
    assert call.made.plan is not None  # the solve has been run
    return SolvedSystem(solution, call.made.plan, call.made.interrupted)


def _active(task: Task, values: Values, bounds: Inputs) -> tuple[Tensor, ...]:
    """Of every unknown (batch, count, tangent): -1 on the lower bound, 1 on the upper one, else 0."""
    given = with_batch_axis(task, {name: constant(bound) for name, bound in bounds.items()})
    found = []
    for unknown, x in zip(task.system.unknowns, values, strict=True):
        if not unknown.is_bounded:
            found.append(torch.zeros(*x.shape[:2], unknown.space.tangent_dim, dtype=torch.int8, device=x.device))
            continue
        lower, upper = (given[name] for name in unknown.bounds)
        side = (x >= upper).to(torch.int8)
        found.append(torch.where(x <= lower, -torch.ones_like(side), side))
    return tuple(found)
