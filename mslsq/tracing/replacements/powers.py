"""Powers whose exponent is a tensor, where PyTorch's derivatives are no numbers, or wrong.

Second derivatives of `t ** p` in p are NaN where t is zero (the first measurement of many models, such as Hill's), and
forward mode of a complex base to a real exponent that depends on the variables is silently wrong (torch 2.13).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ORDER = 4
"""Derivatives in a base of zero that are right."""


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """`torch.pow` of two tensors; other calls go to PyTorch's own."""
    if not isinstance(base, Tensor) or not isinstance(exponent, Tensor):
        return torch.pow(base, exponent)
    if exponent.is_complex() or base.is_complex():
        return _complex_power(base, exponent)
    if not exponent.is_floating_point():
        return torch.pow(base, exponent)
    zero = base == 0
    away = torch.pow(torch.where(zero, 1, base), exponent)
    return torch.where(zero, _power_of_zero(torch.where(zero, base, 0), exponent), away)


def _power_of_zero(x: Tensor, exponent: Tensor) -> Tensor:
    """xᵉ at x = 0, without a derivative in e: there is none where e ≤ 0, and it is zero elsewhere."""
    e = torch.nextafter(exponent, exponent)
    below = e < 0
    value = torch.where(below, 1 / torch.where(below, x, 1), torch.where(e == 0, 1, 0 * e))
    for k in range(1, ORDER + 1):
        # Between k − 1 and k the k-th derivative is infinite, as that of the middle.
        between = (e > k - 1) & (e < k)
        value = value + torch.where(between, torch.where(between, x, 1) ** (k - 0.5), 0)
        value = value + torch.where(e == k, x**k, 0)
    return value


def _complex_power(base: Tensor, exponent: Tensor) -> Tensor:
    """exp(e log z); of z = 0 PyTorch's own, as a constant."""
    zero = base == 0
    away = (exponent * torch.where(zero, 1, base).log()).exp()
    return torch.where(zero, torch.pow(torch.where(zero, 0, torch.ones_like(base)), exponent.detach()), away)


def float_power(base: Tensor, exponent: Tensor) -> Tensor:
    """`torch.float_power`: in float64."""
    if not isinstance(base, Tensor) or not isinstance(exponent, Tensor):
        return torch.float_power(base, exponent)
    wide = torch.complex128 if base.is_complex() or exponent.is_complex() else torch.float64
    return power(base.to(wide), exponent.to(wide))


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), power),
    Tensor.__rpow__: lambda exponent, base: power(base, exponent),
    **dict.fromkeys((torch.float_power, Tensor.float_power), float_power),
}
"""By function of Python. Most powers are right: `is_critical` tells the others."""


def is_critical(*args: Any) -> bool:
    """Are these base and exponent of a power that PyTorch differentiates wrongly?"""
    tensors = [x for x in args if isinstance(x, Tensor)]
    if len(tensors) < 2 or not all(x.is_floating_point() or x.is_complex() for x in tensors):
        return False
    return any(x.is_complex() or bool((x.detach() == 0).any()) for x in tensors)
