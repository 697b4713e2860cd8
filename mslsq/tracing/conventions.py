"""The derivatives at limits, ties and NaN that PyTorch has changed from version to version: found by asking it.

In torch 2.13 a limit of `clamp` belongs to the inside, and of equal arguments of `fmax` and of `clamp` with tensors the
first has the whole derivative. In torch 2.15 limits that are numbers belong to the outside, and equal tensors share.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from mslsq.private import outside_of_transforms, without_modes


@cache
def limits_belong_to_the_inside() -> bool:
    """Is the derivative of `clamp(x, min=0.0)` at 0 that of x?"""
    return _slope_at_zero(lambda x: torch.clamp(x, min=0.0), 1) == 1


@cache
def share_at_a_limit() -> float:
    """The derivative of `clamp(x, min=limit)` in x where limit is a tensor equal to x."""
    return _slope_at_zero(lambda x, limit: torch.clamp(x, min=limit), 2)


@cache
def nan_is_within_limits() -> bool:
    """Is the derivative in x of `clamp(x, min=limit)` 1 where one of them is NaN? In torch 2.13 it is 0."""
    return _slope_at_zero(lambda x: torch.clamp(x, min=torch.full_like(x, torch.nan)), 1) == 1


@cache
def share_ignoring_nan() -> float:
    """The derivative of `fmax` (and `fmin`) in the first of two equal arguments."""
    return _slope_at_zero(torch.fmax, 2)


@cache
def ignored_nan_has_no_slope() -> bool:
    """Is the derivative of `fmax(x, y)` (and `fmin`) in x 0 where x is NaN, and y the value? In torch 2.14 it is 1 in
    reverse mode, and in forward mode where y is NaN that in x is 0."""
    return _slope_at_zero(lambda x: torch.fmax(x + torch.nan, torch.ones_like(x)), 1) == 0


def _slope_at_zero(function: Callable[..., Tensor], count: int) -> float:
    """The derivative in the first of `count` arguments, all of them zero. Not asked while the package is imported: on a
    machine with CUDA a process that has run autograd once cannot do so in a fork."""
    with outside_of_transforms(), without_modes(), torch.inference_mode(False), torch.enable_grad():
        arguments = [torch.zeros((), dtype=torch.float64, device="cpu", requires_grad=True) for _ in range(count)]
        return float(torch.autograd.grad(function(*arguments), arguments)[0])
