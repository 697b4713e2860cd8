"""Least-squares problems under constraints, of W. Hock and K. Schittkowski's collection, as out-of-place residuals.

Those whose objective is a sum of squares, with the authors' numbers, starts and minima. A residual maps one point x
(n,) to the residuals; `equality` is zero and `inequality` not above zero at a solution (the authors write g ≥ 0).

Source: W. Hock and K. Schittkowski, Test Examples for Nonlinear Programming Codes, Springer (1981).

>>> from mslsq.datasets import constrained
>>> problem = constrained.PROBLEMS["hs42"]
>>> problem.equality(problem.start)
tensor([-1.,  0.], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["PROBLEMS", "ConstrainedProblem"]

Function = Callable[[Float[Tensor, "unknowns"]], Float[Tensor, "rows"]]


@dataclass(frozen=True)
class ConstrainedProblem:
    """A residual, its constraints, where to start, and the least sum of squares."""

    name: str
    residual: Function
    start: Float[Tensor, "unknowns"]
    """float64, on the CPU; the authors', at the nearest point within the bounds."""
    minimum: float
    """Of Σ r² (twice the cost of a solve)."""
    equality: Function | None = None
    inequality: Function | None = None
    lower: Float[Tensor, "unknowns"] | None = None
    upper: Float[Tensor, "unknowns"] | None = None


PROBLEMS: dict[str, ConstrainedProblem] = {}
"""The problems by the authors' number."""

INFINITY = math.inf


def _rows(*entries: Tensor) -> Tensor:
    return torch.stack(entries)


def _enter(
    number: int,
    start: list[float],
    minimum: float,
    residual: Function,
    equality: Function | None = None,
    inequality: Function | None = None,
    bounds: tuple[list[float], list[float]] | None = None,
) -> None:
    point = torch.tensor(start, dtype=torch.float64, device="cpu")
    lower = upper = None
    if bounds is not None:
        lower, upper = (torch.tensor(side, dtype=torch.float64, device="cpu") for side in bounds)
        point = torch.clamp(point, lower, upper)
    name = f"hs{number}"
    PROBLEMS[name] = ConstrainedProblem(name, residual, point, minimum, equality, inequality, lower, upper)


def _rosenbrock(x: Tensor) -> Tensor:
    return _rows(10 * (x[1] - x[0] ** 2), 1 - x[0])


_enter(6, [-1.2, 1.0], 0.0, lambda x: _rows(1 - x[0]), lambda x: _rows(10 * (x[1] - x[0] ** 2)))
_enter(
    *(14, [2.0, 2.0], 9 - 2.875 * math.sqrt(7), lambda x: _rows(x[0] - 2, x[1] - 1)),
    equality=lambda x: _rows(x[0] - 2 * x[1] + 1),
    inequality=lambda x: _rows(0.25 * x[0] ** 2 + x[1] ** 2 - 1),
)
_enter(
    *(15, [-2.0, 1.0], 306.5, _rosenbrock),
    inequality=lambda x: _rows(1 - x[0] * x[1], -x[0] - x[1] ** 2),
    bounds=([-INFINITY, -INFINITY], [0.5, INFINITY]),
)
_enter(
    *(16, [-2.0, 1.0], 0.25, _rosenbrock),
    inequality=lambda x: _rows(-x[0] - x[1] ** 2, -(x[0] ** 2) - x[1]),
    bounds=([-0.5, -INFINITY], [0.5, 1.0]),
)
_enter(
    *(17, [-2.0, 1.0], 1.0, _rosenbrock),
    inequality=lambda x: _rows(x[0] - x[1] ** 2, x[1] - x[0] ** 2),
    bounds=([-0.5, -INFINITY], [0.5, 1.0]),
)
_enter(
    *(18, [2.0, 2.0], 5.0, lambda x: _rows(0.1 * x[0], x[1])),
    inequality=lambda x: _rows(25 - x[0] * x[1], 25 - x[0] ** 2 - x[1] ** 2),
    bounds=([2.0, 0.0], [50.0, 50.0]),
)
_enter(
    *(20, [-2.0, 1.0], 81.5 - 25 * math.sqrt(3), _rosenbrock),
    inequality=lambda x: _rows(-x[0] - x[1] ** 2, -(x[0] ** 2) - x[1], 1 - x[0] ** 2 - x[1] ** 2),
    bounds=([-0.5, -INFINITY], [0.5, INFINITY]),
)
_enter(
    *(21, [-1.0, -1.0], 0.04, lambda x: _rows(0.1 * x[0], x[1])),
    inequality=lambda x: _rows(10 + x[1] - 10 * x[0]),
    bounds=([2.0, -50.0], [50.0, 50.0]),
)
_enter(
    *(22, [2.0, 2.0], 1.0, lambda x: _rows(x[0] - 2, x[1] - 1)),
    inequality=lambda x: _rows(x[0] + x[1] - 2, x[0] ** 2 - x[1]),
)
_enter(
    *(23, [3.0, 1.0], 2.0, lambda x: x),
    inequality=lambda x: _rows(
        1 - x[0] - x[1],
        1 - x[0] ** 2 - x[1] ** 2,
        9 - 9 * x[0] ** 2 - x[1] ** 2,
        x[1] - x[0] ** 2,
        x[0] - x[1] ** 2,
    ),
    bounds=([-50.0, -50.0], [50.0, 50.0]),
)
_enter(
    *(26, [-2.6, 2.0, 2.0], 0.0, lambda x: _rows(x[0] - x[1], (x[1] - x[2]) ** 2)),
    equality=lambda x: _rows((1 + x[1] ** 2) * x[0] + x[2] ** 4 - 3),
)
_enter(
    *(27, [2.0, 2.0, 2.0], 0.04, lambda x: _rows(0.1 * (x[0] - 1), x[1] - x[0] ** 2)),
    equality=lambda x: _rows(x[0] + x[2] ** 2 + 1),
)
_enter(
    *(28, [-4.0, 1.0, 1.0], 0.0, lambda x: _rows(x[0] + x[1], x[1] + x[2])),
    equality=lambda x: _rows(x[0] + 2 * x[1] + 3 * x[2] - 1),
)
_enter(
    *(31, [1.0, 1.0, 1.0], 6.0, lambda x: _rows(3 * x[0], x[1], 3 * x[2])),
    inequality=lambda x: _rows(1 - x[0] * x[1]),
    bounds=([-10.0, 1.0, -10.0], [10.0, 10.0, 1.0]),
)
_enter(
    *(42, [1.0, 1.0, 1.0, 1.0], 28 - 10 * math.sqrt(2), lambda x: x - torch.arange(1.0, 5.0, device="cpu").to(x)),
    equality=lambda x: _rows(x[0] - 2, x[2] ** 2 + x[3] ** 2 - 2),
)
_enter(
    *(43, [0.0, 0.0, 0.0, 0.0], 35.875),
    lambda x: _rows(x[0] - 2.5, x[1] - 2.5, math.sqrt(2) * (x[2] - 5.25), x[3] + 3.5),
    inequality=lambda x: _rows(
        (x * x).sum() + x[0] - x[1] + x[2] - x[3] - 8,
        x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2 + 2 * x[3] ** 2 - x[0] - x[3] - 10,
        2 * x[0] ** 2 + x[1] ** 2 + x[2] ** 2 + 2 * x[0] - x[1] - x[3] - 5,
    ),
)
_enter(
    *(46, [math.sqrt(0.5), 1.75, 0.5, 2.0, 2.0], 0.0),
    lambda x: _rows(x[0] - x[1], x[2] - 1, (x[3] - 1) ** 2, (x[4] - 1) ** 3),
    equality=lambda x: _rows(x[0] ** 2 * x[3] + torch.sin(x[3] - x[4]) - 1, x[1] + x[2] ** 4 * x[3] ** 2 - 2),
)
_enter(
    *(48, [3.0, 5.0, -3.0, 2.0, -2.0], 0.0, lambda x: _rows(x[0] - 1, x[1] - x[2], x[3] - x[4])),
    equality=lambda x: _rows(x.sum() - 5, x[2] - 2 * (x[3] + x[4]) + 3),
)
_enter(
    *(49, [10.0, 7.0, 2.0, -3.0, 0.8], 0.0),
    lambda x: _rows(x[0] - x[1], x[2] - 1, (x[3] - 1) ** 2, (x[4] - 1) ** 3),
    equality=lambda x: _rows(x[0] + x[1] + x[2] + 4 * x[3] - 7, x[2] + 5 * x[4] - 6),
)
_enter(
    *(50, [35.0, -31.0, 11.0, 5.0, -5.0], 0.0),
    lambda x: _rows(x[0] - x[1], x[1] - x[2], (x[2] - x[3]) ** 2, x[3] - x[4]),
    equality=lambda x: x[:3] + 2 * x[1:4] + 3 * x[2:] - 6,
)


def _chain(x: Tensor) -> Tensor:
    return _rows(x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4])


_enter(
    *(51, [2.5, 0.5, 2.0, -1.0, 0.5], 0.0, lambda x: _rows(x[0] - x[1], x[1] + x[2] - 2, x[3] - 1, x[4] - 1)),
    equality=lambda x: _chain(x) - torch.tensor([4.0, 0.0, 0.0], device="cpu").to(x),
)
_enter(
    *(52, [2.0] * 5, 1859 / 349, lambda x: _rows(4 * x[0] - x[1], x[1] + x[2] - 2, x[3] - 1, x[4] - 1)),
    equality=_chain,
)
_enter(
    *(53, [2.0] * 5, 176 / 43, lambda x: _rows(x[0] - x[1], x[1] + x[2] - 2, x[3] - 1, x[4] - 1)),
    equality=_chain,
    bounds=([-10.0] * 5, [10.0] * 5),
)
_enter(
    *(60, [2.0, 2.0, 2.0], 0.03256820025, lambda x: _rows(x[0] - 1, x[0] - x[1], (x[1] - x[2]) ** 2)),
    equality=lambda x: _rows(x[0] * (1 + x[1] ** 2) + x[2] ** 4 - 4 - 3 * math.sqrt(2)),
    bounds=([-10.0] * 3, [10.0] * 3),
)
_enter(
    *(65, [-5.0, 5.0, 0.0], 0.9535288567, lambda x: _rows(x[0] - x[1], (x[0] + x[1] - 10) / 3, x[2] - 5)),
    inequality=lambda x: _rows((x * x).sum() - 48),
    bounds=([-4.5, -4.5, -5.0], [4.5, 4.5, 5.0]),
)
_enter(
    *(77, [2.0] * 5, 0.24150513),
    lambda x: _rows(x[0] - 1, x[0] - x[1], x[2] - 1, (x[3] - 1) ** 2, (x[4] - 1) ** 3),
    equality=lambda x: _rows(
        x[0] ** 2 * x[3] + torch.sin(x[3] - x[4]) - 2 * math.sqrt(2),
        x[1] + x[2] ** 4 * x[3] ** 2 - 8 - math.sqrt(2),
    ),
)
_enter(
    *(79, [2.0] * 5, 0.0787768209),
    lambda x: _rows(x[0] - 1, x[0] - x[1], x[1] - x[2], (x[2] - x[3]) ** 2, (x[3] - x[4]) ** 2),
    equality=lambda x: _rows(
        x[0] + x[1] ** 2 + x[2] ** 3 - 2 - 3 * math.sqrt(2),
        x[1] - x[2] ** 2 + x[3] + 2 - 2 * math.sqrt(2),
        x[0] * x[4] - 2,
    ),
)
