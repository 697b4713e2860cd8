"""Attach derivatives to a solution: chord steps on the full gradient, whose value is the solution itself."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mslsq.adjoint.adjoint import Implicit
from mslsq.adjoint.function import Answer, Call
from mslsq.adjoint.levels import constant
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.linearizer import Linearizer, linearizer_of
from mslsq.linearize.trace import TRANSFORM_LOCK
from mslsq.problem.system import Inputs


class Failed(torch.autograd.Function):
    """x, with a derivative that is replaced by `forward_fill` or `backward_fill` in the entries of `mask`.

    A solution gets NaN tangents where it has no derivative, and passes zero back, so that parameters shared with the other entries stay
    clean; its own data get NaN back, from the same Function around them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor, forward_fill: float, backward_fill: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, mask, ctx.forward_fill, ctx.backward_fill = inputs
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, ctx.backward_fill, gradient), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, ctx.forward_fill, tangent)


def attach(
    adjoint: Implicit, call: Call, start: Values, inputs: tuple[Inputs, ...], answer: Answer
) -> tuple[Values, Tensor]:
    """The solution's values and cost with their derivatives in `inputs`, and in the blocks of `start` that are held fixed."""
    linearizer = _linearizer(call)
    failed = ~answer.differentiable
    fill = torch.nan if adjoint.failed == "nan" else 0.0
    star = _with_fixed_blocks(call, start, answer.values)
    inputs = tuple(
        {name: _marked(t, failed, fill, fill) if name in batched else t for name, t in given.items()}
        for given, batched in zip(inputs, call.task.batched, strict=True)
    )
    prepared = linearizer.prepare(inputs)
    x = star
    with TRANSFORM_LOCK:
        for _ in range(adjoint.order):
            gradient = linearizer.gradient(x, prepared)
            # An entry without derivative must not move, whatever its gradient: not even by 0 · NaN.
            gradient = torch.where(failed[:, None], 0, gradient)
            rhs = gradient.reshape(answer.factor.shape[:-1])[..., None]
            step = torch.cholesky_solve(rhs, answer.factor)[..., 0].flatten(1)
            x = linearizer.retract(x, -step)
        cost = linearizer.cost(x, prepared)
    values = tuple(
        _marked(solved + (moved - constant(moved)), failed, fill, 0.0)
        for solved, moved in zip(answer.values, x, strict=True)
    )
    cost = torch.where(failed, 0, cost)
    cost = _marked(answer.cost + (cost - constant(cost)), failed, fill, 0.0)
    return values, cost


def _linearizer(call: Call) -> Linearizer:
    """The system at the level of the caller: batched as the caller sees it, with the residuals as the solve captured them."""
    plan = call.made.plan
    assert plan is not None  # the solve has just been run
    task = call.task
    blocks = []
    for number, (term, batched, size) in enumerate(zip(task.system.terms, task.batched, plan.sizes, strict=True)):
        if number in plan.captured:
            term = dataclasses.replace(term, residual=plan.captured[number])
        blocks.append(BlockTerm(term, task.system, task.batch, batched, *size))
    return linearizer_of(
        task.system, plan.structure, tuple(blocks), task.solver.chosen_linear_solver(plan.structure.num_components)
    )


def _with_fixed_blocks(call: Call, start: Values, solved: Values) -> Values:
    """Fixed blocks are data of the problem: the solution depends on where they are held."""
    result = []
    for unknown, before, after in zip(call.task.system.unknowns, start, solved, strict=True):
        result.append(after if unknown.free is None else torch.where(unknown.free[None, :, None], after, before))
    return tuple(result)


def _marked(x: Tensor, failed: Tensor, forward_fill: float, backward_fill: float) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return x
    mask = failed.reshape(-1, *(1,) * (x.ndim - 1))
    # Only the failed entries pass through the Function: its second derivatives are not to be trusted (pytorch #197867).
    return torch.where(mask, Failed.apply(x, mask, forward_fill, backward_fill), x)
