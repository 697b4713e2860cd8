"""Central differences: what derivatives are compared with."""

from collections.abc import Callable

import torch
from torch import Tensor


def differences(function: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-5) -> Tensor:
    """Of second order, (*output, *x): truncation in step², rounding in 1e-16 / step."""
    return _by_entry(x, step, lambda e: (function(x + e) - function(x - e)) / (2 * step))


def fourth_order_differences(function: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-3) -> Tensor:
    """(*output, *x): truncation in step⁴, rounding in 1e-15 / step."""

    def along(e: Tensor) -> Tensor:
        near, far = function(x + e) - function(x - e), function(x + 2 * e) - function(x - 2 * e)
        return (8 * near - far) / (12 * step)

    return _by_entry(x, step, along)


def _by_entry(x: Tensor, step: float, along: Callable[[Tensor], Tensor]) -> Tensor:
    """A derivative in every entry of x, from one for each move of an entry by `step`."""
    moves = step * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    found = [along(move) for move in moves]
    return torch.stack(found, -1).reshape(*found[0].shape, *x.shape)
