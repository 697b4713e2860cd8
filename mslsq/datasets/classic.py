"""The classic least-squares test problems of Moré, Garbow and Hillstrom, as out-of-place PyTorch residuals.

Every residual maps one point x (n,) to the residuals (m,) in the dtype and on the device of x, and may be mapped over
points by ``torch.func.vmap``. ``PROBLEMS`` lists them with the authors' starts and the known minima.

Source: J. J. Moré, B. S. Garbow and K. E. Hillstrom, Testing unconstrained optimization software, ACM TOMS 7 (1981);
the numbers in brackets are theirs.

>>> from mslsq.datasets import classic
>>> problem = classic.PROBLEMS["rosenbrock"]
>>> problem.residual(problem.start).square().sum().item()
24.199999999999996
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["PROBLEMS", "ClassicProblem"]

Residual = Callable[[Float[Tensor, "unknowns"]], Float[Tensor, "residuals"]]


@dataclass(frozen=True)
class ClassicProblem:
    """A residual, where to start, and what is known about its minima."""

    name: str
    residual: Residual
    start: Float[Tensor, "unknowns"]
    """float64, on the CPU."""
    minima: tuple[float, ...]
    """Known local minima of Σ r² (twice the cost of a solve), the global one first."""
    solution: Float[Tensor, "unknowns"] | None = None
    """A global minimiser, where it is known in closed form."""


PROBLEMS: dict[str, ClassicProblem] = {}
"""The problems by name, in the order of the paper."""


def _problem(
    start: list[float], minima: tuple[float, ...] = (0.0,), solution: list[float] | None = None
) -> Callable[[Residual], Residual]:
    """Enter the decorated residual into PROBLEMS under its own name."""

    def enter(residual: Residual) -> Residual:
        PROBLEMS[residual.__name__] = ClassicProblem(
            name=residual.__name__,
            residual=residual,
            start=torch.tensor(start, dtype=torch.float64, device="cpu"),
            minima=minima,
            solution=None if solution is None else torch.tensor(solution, dtype=torch.float64, device="cpu"),
        )
        return residual

    return enter


def _constants(row: str) -> Callable[[Tensor], Tensor]:
    """Measured data, written in a row: kept in float64, given in the dtype and on the device of x."""
    kept = torch.tensor([float(word) for word in row.split()], dtype=torch.float64, device="cpu")
    return lambda x: kept.to(dtype=x.dtype, device=x.device)


def _counts(x: Tensor, first: int, last: int) -> Tensor:
    """first, ..., last in the dtype and on the device of x."""
    return torch.arange(first, last + 1, dtype=x.dtype, device=x.device)


@_problem([-1.2, 1.0], solution=[1.0, 1.0])
def rosenbrock(x: Tensor) -> Tensor:
    """A banana-shaped valley (1)."""
    return torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


@_problem([0.5, -2.0], (0.0, 48.984253679), solution=[5.0, 4.0])
def freudenstein_roth(x: Tensor) -> Tensor:
    """Two minima, and the usual start leads to the worse one (2)."""
    return torch.stack(
        [-13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1], -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]],
    )


@_problem([0.0, 1.0])
def powell_badly_scaled(x: Tensor) -> Tensor:
    """x₁ x₂ = 1e-4 far from the start: the solution is near (1.098e-5, 9.106) (3)."""
    return torch.stack([1e4 * x[0] * x[1] - 1, (-x[0]).exp() + (-x[1]).exp() - 1.0001])


@_problem([1.0, 1.0], solution=[1e6, 2e-6])
def brown_badly_scaled(x: Tensor) -> Tensor:
    """Unknowns of size 1e6 and 1e-6 (4)."""
    return torch.stack([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2])


@_problem([1.0, 1.0], solution=[3.0, 0.5])
def beale(x: Tensor) -> Tensor:
    """A flat valley towards x₂ = 1 (5)."""
    i = _counts(x, 1, 3)
    return _BEALE_Y(x) - x[0] * (1 - x[1] ** i)


_BEALE_Y = _constants("1.5 2.25 2.625")


@_problem([0.3, 0.4], (124.362182356,))
def jennrich_sampson(x: Tensor) -> Tensor:
    """Ten large residuals; the minimum is at x₁ = x₂ = 0.2578 (6)."""
    i = _counts(x, 1, 10)
    return 2 + 2 * i - ((i * x[0]).exp() + (i * x[1]).exp())


@_problem([-1.0, 0.0, 0.0], solution=[1.0, 0.0, 0.0])
def helical_valley(x: Tensor) -> Tensor:
    """The angle runs along a helix, θ in (−¼, ¾) turns with its cut along the negative x₂ axis (7)."""
    theta = torch.atan2(x[1], x[0]) / (2 * math.pi)
    theta = torch.where((x[0] < 0) & (x[1] < 0), theta + 1, theta)
    return torch.stack([10 * (x[2] - 10 * theta), 10 * ((x[0] ** 2 + x[1] ** 2).sqrt() - 1), x[2]])


@_problem([1.0, 1.0, 1.0], (8.214877306579e-3,))
def bard(x: Tensor) -> Tensor:
    """Fifteen measurements of x₁ + u/(v x₂ + w x₃) (8)."""
    u = _counts(x, 1, 15)
    v = 16 - u
    return _BARD_Y(x) - (x[0] + u / (v * x[1] + torch.minimum(u, v) * x[2]))


_BARD_Y = _constants("0.14 0.18 0.22 0.25 0.29 0.32 0.35 0.39 0.37 0.58 0.73 0.96 1.34 2.10 4.39")


@_problem([0.4, 1.0, 0.0], (1.127932770e-8,))
def gauss(x: Tensor) -> Tensor:
    """A bell curve that fits to five digits (9)."""
    t = (8 - _counts(x, 1, 15)) / 2
    return x[0] * (-x[1] * (t - x[2]) ** 2 / 2).exp() - _GAUSS_Y(x)


_GAUSS_Y = _constants(
    """
    0.0009 0.0044 0.0175 0.0540 0.1295 0.2420 0.3521 0.3989 0.3521 0.2420 0.1295 0.0540 0.0175 0.0044 0.0009
    """
)


@_problem([0.02, 4000.0, 250.0], (87.9458551718,))
def meyer(x: Tensor) -> Tensor:
    """Resistance of a thermistor: badly scaled, and cost 1.7e9 at the start (10)."""
    t = 45 + 5 * _counts(x, 1, 16)
    return x[0] * (x[1] / (t + x[2])).exp() - _MEYER_Y(x)


_MEYER_Y = _constants("34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872")


@_problem([0.0, 10.0, 20.0], solution=[1.0, 10.0, 1.0])
def box_3d(x: Tensor) -> Tensor:
    """Two exponentials; also zero at (10, 1, −1) and wherever x₁ = x₂, x₃ = 0 (12)."""
    t = 0.1 * _counts(x, 1, 10)
    return (-t * x[0]).exp() - (-t * x[1]).exp() - x[2] * ((-t).exp() - (-10 * t).exp())


@_problem([3.0, -1.0, 0.0, 1.0], solution=[0.0, 0.0, 0.0, 0.0])
def powell_singular(x: Tensor) -> Tensor:
    """The Jacobian is singular at the solution, so Gauss–Newton converges linearly (13)."""
    return torch.stack(
        [
            x[0] + 10 * x[1],
            math.sqrt(5) * (x[2] - x[3]),
            (x[1] - 2 * x[2]) ** 2,
            math.sqrt(10) * (x[0] - x[3]) ** 2,
        ]
    )


@_problem([-3.0, -1.0, -3.0, -1.0], solution=[1.0, 1.0, 1.0, 1.0])
def wood(x: Tensor) -> Tensor:
    """Two coupled Rosenbrock valleys with a saddle on the way (14)."""
    return torch.stack(
        [
            10 * (x[1] - x[0] ** 2),
            1 - x[0],
            math.sqrt(90) * (x[3] - x[2] ** 2),
            1 - x[2],
            math.sqrt(10) * (x[1] + x[3] - 2),
            (x[1] - x[3]) / math.sqrt(10),
        ]
    )


@_problem([0.25, 0.39, 0.415, 0.39], (3.075056038492e-4, 1.0273e-3))
def kowalik_osborne(x: Tensor) -> Tensor:
    """Enzyme kinetics, eleven measurements; the second minimum lies at infinity (15)."""
    u = _KOWALIK_U(x)
    return _KOWALIK_Y(x) - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


_KOWALIK_U = _constants("4.0 2.0 1.0 0.5 0.25 0.167 0.125 0.1 0.0833 0.0714 0.0625")
_KOWALIK_Y = _constants("0.1957 0.1947 0.1735 0.1600 0.0844 0.0627 0.0456 0.0342 0.0323 0.0235 0.0246")


@_problem([25.0, 5.0, -5.0, -1.0], (85822.20162635,))
def brown_dennis(x: Tensor) -> Tensor:
    """Twenty large residuals: Gauss–Newton steps are far too long (16)."""
    t = _counts(x, 1, 20) / 5
    return (x[0] + t * x[1] - t.exp()) ** 2 + (x[2] + x[3] * t.sin() - t.cos()) ** 2


@_problem([0.5, 1.5, -1.0, 0.01, 0.02], (5.46489469748e-5,))
def osborne_1(x: Tensor) -> Tensor:
    """A constant and two decays, 33 measurements: NIST's MGH17 (17)."""
    t = 10 * _counts(x, 0, 32)
    return _OSBORNE_1_Y(x) - (x[0] + x[1] * (-t * x[3]).exp() + x[2] * (-t * x[4]).exp())


_OSBORNE_1_Y = _constants(
    """
    0.844 0.908 0.932 0.936 0.925 0.908 0.881 0.850 0.818 0.784 0.751 0.718 0.685
    0.658 0.628 0.603 0.580 0.558 0.538 0.522 0.506 0.490 0.478 0.467 0.457 0.448
    0.438 0.431 0.424 0.420 0.414 0.411 0.406
    """
)


@_problem([1.0, 2.0, 1.0, 1.0, 1.0, 1.0], (0.0, 5.65564992504e-3), solution=[1.0, 10.0, 1.0, 5.0, 4.0, 3.0])
def biggs_exp6(x: Tensor) -> Tensor:
    """Three exponentials (18)."""
    t = 0.1 * _counts(x, 1, 13)
    y = (-t).exp() - 5 * (-10 * t).exp() + 3 * (-4 * t).exp()
    return x[2] * (-t * x[0]).exp() - x[3] * (-t * x[1]).exp() + x[5] * (-t * x[4]).exp() - y


@_problem([1.3, 0.65, 0.65, 0.7, 0.6, 3.0, 5.0, 7.0, 2.0, 4.5, 5.5], (4.01377362935e-2,))
def osborne_2(x: Tensor) -> Tensor:
    """A decay and three bells, 65 measurements (19)."""
    t = 0.1 * _counts(x, 0, 64)
    bells = (x[1:4] * (-x[5:8] * (t[:, None] - x[8:11]) ** 2).exp()).sum(-1)
    return _OSBORNE_2_Y(x) - (x[0] * (-t * x[4]).exp() + bells)


_OSBORNE_2_Y = _constants(
    """
    1.366 1.191 1.112 1.013 0.991 0.885 0.831 0.847 0.786 0.725 0.746 0.679 0.608
    0.655 0.616 0.606 0.602 0.626 0.651 0.724 0.649 0.649 0.694 0.644 0.624 0.661
    0.612 0.558 0.533 0.495 0.500 0.423 0.395 0.375 0.372 0.391 0.396 0.405 0.428
    0.429 0.523 0.562 0.607 0.653 0.672 0.708 0.633 0.668 0.645 0.632 0.591 0.559
    0.597 0.625 0.739 0.710 0.729 0.720 0.636 0.581 0.428 0.292 0.162 0.098 0.054
    """
)


@_problem([0.0] * 6, (2.28767005355e-3,))
def watson(x: Tensor) -> Tensor:
    """A polynomial that solves x' = 1 + x² by collocation; ill-conditioned as n grows, here n = 6 (20)."""
    n = x.shape[-1]
    t = _counts(x, 1, 29)[:, None] / 29
    power = _counts(x, 0, n - 1)
    slope = (power[1:] * t ** (power[1:] - 1)) @ x[1:]
    return torch.cat([slope - ((t**power) @ x) ** 2 - 1, torch.stack([x[0], x[1] - x[0] ** 2 - 1])])


@_problem([-1.2, 1.0] * 5, solution=[1.0] * 10)
def extended_rosenbrock(x: Tensor) -> Tensor:
    """Independent Rosenbrock valleys (21)."""
    a, b = x[0::2], x[1::2]
    return torch.stack([10 * (b - a**2), 1 - a], dim=-1).reshape(-1)


@_problem([1 - j / 10 for j in range(1, 11)], solution=[1.0] * 10)
def variably_dimensioned(x: Tensor) -> Tensor:
    """x − 1, a weighted sum and its square (25)."""
    weighted = (_counts(x, 1, x.shape[-1]) * (x - 1)).sum()
    return torch.cat([x - 1, torch.stack([weighted, weighted**2])])


@_problem([0.1] * 10, (0.0, 2.79506e-5))
def trigonometric(x: Tensor) -> Tensor:
    """Every residual holds every cosine; from the usual start most methods end in the local minimum (26)."""
    n = x.shape[-1]
    return n - x.cos().sum() + _counts(x, 1, n) * (1 - x.cos()) - x.sin()


@_problem([0.5] * 10, (0.0, 1.0), solution=[1.0] * 10)
def brown_almost_linear(x: Tensor) -> Tensor:
    """Linear but for the product of all unknowns; a second minimum at (0, ..., 0, n + 1) (27)."""
    n = x.shape[-1]
    product = torch.stack(x.unbind(-1)).prod()
    return torch.cat([x[:-1] + x.sum() - (n + 1), (product - 1)[None]])


def _neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    """x₍ᵢ₋₁₎ and x₍ᵢ₊₁₎, zero beyond the ends."""
    zero = x.new_zeros(1)
    return torch.cat([zero, x[:-1]]), torch.cat([x[1:], zero])


_GRID = [j / 11 for j in range(1, 11)]


@_problem([t * (t - 1) for t in _GRID])
def discrete_boundary_value(x: Tensor) -> Tensor:
    """x'' = (x + t + 1)³/2 by finite differences (28)."""
    n = x.shape[-1]
    step = 1 / (n + 1)
    before, after = _neighbours(x)
    return 2 * x - before - after + step**2 * (x + step * _counts(x, 1, n) + 1) ** 3 / 2


@_problem([t * (t - 1) for t in _GRID])
def discrete_integral_equation(x: Tensor) -> Tensor:
    """The same boundary-value problem as an integral equation, hence a dense Jacobian (29)."""
    n = x.shape[-1]
    step = 1 / (n + 1)
    t = step * _counts(x, 1, n)
    green = torch.where(t <= t[:, None], (1 - t[:, None]) * t, t[:, None] * (1 - t))
    return x + step / 2 * (green @ (x + t + 1) ** 3)


@_problem([-1.0] * 10)
def broyden_tridiagonal(x: Tensor) -> Tensor:
    """Each residual holds its unknown and both neighbours (30)."""
    before, after = _neighbours(x)
    return (3 - 2 * x) * x - before - 2 * after + 1


@_problem([-1.0] * 10)
def broyden_banded(x: Tensor) -> Tensor:
    """Each residual holds its unknown, five before and one after (31)."""
    i = _counts(x, 1, x.shape[-1])
    offset = i - i[:, None]
    band = ((offset >= -5) & (offset <= 1) & (offset != 0)).to(x.dtype)
    return x * (2 + 5 * x**2) + 1 - band @ (x * (1 + x))


@_problem([1.0] * 5, (5.0,), solution=[-1.0] * 5)
def linear_full_rank(x: Tensor) -> Tensor:
    """Ten linear residuals of five unknowns: one Gauss–Newton step (32)."""
    shared = -2 / 10 * x.sum() - 1
    return torch.cat([x + shared, shared.expand(10 - x.shape[-1])])


@_problem([1.0] * 5, (10 * 9 / (2 * 21),))
def linear_rank_one(x: Tensor) -> Tensor:
    """Ten linear residuals of one combination of five unknowns: every normal matrix is singular (33)."""
    return _counts(x, 1, 10) * (_counts(x, 1, x.shape[-1]) * x).sum() - 1


@_problem([j / 9 for j in range(1, 9)], (3.516873725677e-3,))
def chebyquad(x: Tensor) -> Tensor:
    """Nodes of equal-weight quadrature: the first n Chebyshev moments, none of them exact at n = 8 (35)."""
    y = 2 * x - 1
    before, now = torch.ones_like(y), y
    residuals = []
    for degree in range(1, x.shape[-1] + 1):
        moment = 1 / (degree**2 - 1) if degree % 2 == 0 else 0.0
        residuals.append(now.mean() + moment)
        before, now = now, 2 * y * now - before
    return torch.stack(residuals)
