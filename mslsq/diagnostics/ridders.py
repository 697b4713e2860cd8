"""Derivatives by central differences, extrapolated to step zero, with an estimate of their error.

C. J. F. Ridders, "Accurate computation of F'(x) and F'(x) F''(x)", Advances in Engineering Software 4 (1982):
differences with steps h, h/2, h/4, ... are combined by Neville's scheme in h², and of all combinations the one that
changes least is taken.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

LEVELS = 12
"""Steps from h to h/2048: wherever between them a residual is smooth, some combination is good to nine digits."""

FELT = 0.05
"""Steps this long are not enlarged any more."""


def central_differences(
    function: Callable[[Tensor], Tensor], at: Float[Tensor, "n"], steps: Float[Tensor, "n"]
) -> tuple[Float[Tensor, "rows n"], Float[Tensor, "rows n"]]:
    """The Jacobian of `function` at a point and the uncertainty of every entry; `steps` are the largest steps tried."""
    columns = [_one_column(function, at, number, steps[number]) for number in range(len(at))]
    return torch.stack([value for value, _ in columns], 1), torch.stack([error for _, error in columns], 1)


def _one_column(
    function: Callable[[Tensor], Tensor], at: Tensor, number: int, largest: Tensor
) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    direction = torch.zeros_like(at)
    direction[number] = 1
    eps = torch.finfo(at.dtype).eps
    largest = _felt(function, at, direction, largest)
    noise = _noise(function, at, largest * eps**0.5 * direction)
    best = error = None
    previous: list[Tensor] = []
    for level in range(LEVELS):
        step = largest / 2**level
        ahead, behind = function(at + step * direction), function(at - step * direction)
        # What the subtraction cannot resolve: the last places of the residual, and of what it was computed from.
        rounding = 4 * (eps * torch.maximum(ahead.abs(), behind.abs()) + noise) / step
        row = [(ahead - behind) / (2 * step)]
        if best is None or error is None:
            best, error = row[0], torch.full_like(row[0], torch.inf)
        factor = 1.0
        for older in previous:
            factor *= 4
            row.append((factor * row[-1] - older) / (factor - 1))
            change = torch.maximum((row[-1] - row[-2]).abs(), (row[-1] - older).abs()) + rounding
            change = torch.where(torch.isfinite(change), change, torch.inf)
            better = change < error
            best, error = torch.where(better, row[-1], best), torch.where(better, change, error)
        previous = row
    assert best is not None and error is not None  # there is at least one level
    # Where nothing was finite the value is not either, and no uncertainty excuses it.
    return torch.where(torch.isfinite(error), best, torch.nan), torch.where(torch.isfinite(error), 10 * error, 0)


def _felt(function: Callable[[Tensor], Tensor], at: Tensor, direction: Tensor, step: Tensor) -> Tensor:
    """The step, enlarged until the function feels it: a coefficient of 1e-12 does not say what size matters."""
    size = function(at).abs().amax()
    while float(step) < FELT:
        larger = 16 * step
        change = (function(at + step * direction) - function(at - step * direction)).abs().amax()
        if not float(change) < 1e-3 * float(size) or not bool(torch.isfinite(function(at + larger * direction)).all()):
            break
        step = larger
    return step


def _noise(function: Callable[[Tensor], Tensor], at: Tensor, tiny: Tensor) -> Tensor:
    """The rounding of the function: its second differences where steps are too short for any curvature to show."""
    middle = 2 * function(at)
    probes = [(function(at + k * tiny) - middle + function(at - k * tiny)).abs().amax() for k in (1.0, 0.7, 0.4)]
    return torch.stack(probes).amax()
