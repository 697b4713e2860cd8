"""A limit on the number of backward passes: a derivative beyond the order of an adjoint raises instead of being wrong.

Nested `torch.func` transforms are counted beforehand (`levels.count_transforms`), but it is not known beforehand how
often `backward(create_graph=True)` will be called on a result: a network's parameters require grad, whether or not
anybody calls it. So the inputs pass through an identity whose derivative is an operation that knows its order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mslsq.adjoint.adjoint import DerivativeOrderError
from mslsq.levels import at_the_bottom, backward_may_come


def limited(tensor: Tensor, taken: int, order: int) -> Tensor:
    """The tensor, which `backward` may differentiate `order - taken` times where `taken` transforms do so already.

    Under transforms nothing stands in the way of the tensor itself: it gets a zero added that knows its order, on the
    level of `backward` alone.
    """
    if not backward_may_come(tensor):
        return tensor
    if not taken:
        # A view, not a leaf itself: `Function.apply` would ask a leaf for its accumulator with Python's lock held, and
        # wait for ever (torch 2.13) for another thread that has begun to make one and needs that lock.
        return Limited.apply(tensor.view_as(tensor), taken, order)
    return tensor + at_the_bottom(tensor, lambda plain: _zero(plain, taken, order))


def _zero(plain: Tensor, taken: int, order: int) -> Tensor:
    """Zeros, also where x is not finite, that depend on x in name only."""
    never = torch.zeros_like(plain, dtype=torch.bool)
    return torch.where(never, Limited.apply(plain, taken, order), 0)


def limited_gradient(gradient: Tensor | None, x: Tensor, taken: int, order: int) -> Tensor | None:
    """A gradient in x that can be differentiated once less than x, of which `taken` derivatives had been taken."""
    _check(taken + 1, order)
    if gradient is None or not torch.is_grad_enabled():
        return gradient  # no derivative of it will be taken
    return _Derivative.apply(gradient, x, taken + 1, order)


class Limited(Function):
    """x, which can be differentiated `order - taken` times."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, taken: int, order: int) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.taken, ctx.order = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        return limited_gradient(gradient, x, ctx.taken, ctx.order), None, None


class _Derivative(Function):
    """The derivative of order `taken`. It depends on x in name only, so that the next derivative finds it whatever
    the loss."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, taken: int, order: int) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x, ctx.taken, ctx.order = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        _check(ctx.taken + 1, ctx.order)
        (x,) = ctx.saved_tensors
        return gradient, _Derivative.apply(gradient * 0, x, ctx.taken + 1, ctx.order), None, None


def _check(number: int, order: int) -> None:
    """May derivative `number` be taken?"""
    if number > order:
        raise DerivativeOrderError(
            f"Derivative number {number} is being taken through a solve whose adjoint is exact up to order {order} "
            f"only. Use Implicit(order={number}), or Unrolled()."
        )
