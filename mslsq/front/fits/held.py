"""Fits with one parameter held, all of them and both sides together: the solves behind profile intervals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import grad, vmap

from mslsq import pytree
from mslsq.front.fits.fitted import Fitted, One
from mslsq.front.least_squares import least_squares
from mslsq.levels import constant
from mslsq.solvers import LevenbergMarquardt, Solver

MOST_STEPS = 100
"""Of a solve with one parameter held."""


class Scale(NamedTuple):
    """Of one fit: in what distances from the solution are measured, and how far they go."""

    deviation: Float[Tensor, "n"]
    room: Float[Tensor, "n 2"]
    """The distances of the bounds, below and above; infinite where there are none."""


def scale_of(fitted: Fitted, one: One, variance: Float[Tensor, ""]) -> Scale:
    """Standard errors; of a parameter on a bound, which has none, that which it would have if all others were known.

    Args:
        variance: of a residual.
    """
    one, recipe = pytree.map_leaves(constant, one), fitted.recipe
    deviation = one.covariance.diagonal().sqrt()
    if not one.bounds:
        return Scale(
            deviation, torch.full((len(deviation), 2), torch.inf, dtype=deviation.dtype, device=deviation.device)
        )
    points = recipe.t_of(one.t), one.y, one.whitening, one.used, one.held
    _, jacobian = fitted.with_jacobian(lambda free: recipe.residual(recipe.free.tree(free), *points), one)
    alone = constant(variance).sqrt() / torch.linalg.vector_norm(jacobian, dim=0)
    deviation = torch.where(deviation == 0, alone, deviation)
    away = (torch.stack(one.bounds, -1) - one.free[:, None]).abs()
    known = torch.isfinite(deviation)[:, None] | torch.isinf(away)
    room = torch.where(away == 0, 0.0, torch.where(known, away / deviation[:, None], torch.nan))
    return Scale(deviation, room)


def expected(one: One, scale: Scale, distance: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2 others"]:
    """The other parameters where each is held at its distances, if chi-square were quadratic."""
    held = _held(one, scale, distance)
    variance = one.covariance.diagonal()
    slopes = (one.covariance / torch.where(variance == 0, 1.0, variance)).mT  # row k: of all, in the one that is held
    along = one.free + (held - one.free[:, None])[..., None] * slopes[:, None, :]
    return constant(_others(along))


def _others(of_all: Float[Tensor, "n 2 n"]) -> Float[Tensor, "n 2 others"]:
    """Row k without the entry of parameter k."""
    n, device = len(of_all), of_all.device
    other = torch.arange(n - 1, device=device).expand(n, n - 1)
    other = other + (other >= torch.arange(n, device=device)[:, None]).to(other.dtype)
    return of_all.gather(-1, other[:, None, :].expand(n, 2, n - 1))


def tried(
    fitted: Fitted, one: One, scale: Scale, distance: Float[Tensor, "n 2"], start: Float[Tensor, "n 2 others"]
) -> tuple[Float[Tensor, "n 2"], Bool[Tensor, "n 2"], Float[Tensor, "n 2 others"]]:
    """S of one fit with each parameter held at both of its distances from the solution, whether these solves have
    converged, and to which values of the other parameters. Without derivatives."""
    one = pytree.map_leaves(constant, one)
    sums, converged, others = _solved(fitted, one, _held(one, scale, distance), start)
    return constant(sums).reshape(-1, 2), converged.reshape(-1, 2), constant(others).reshape(start.shape)


def polished(
    fitted: Fitted,
    one: One,
    scale: Scale,
    distance: Float[Tensor, "n 2"],
    start: Float[Tensor, "n 2 others"],
    cut: Bool[Tensor, "n 2"],
    quantile: Tensor,
    chi_square: Tensor,
    variance: Tensor,
) -> Float[Tensor, "n 2"]:
    """The ends near these distances after one step of Newton's method for S(c) = S + s² q², whose derivatives are
    those of the ends: dc = −dF / (∂S/∂c) by the implicit function theorem, with F = S(c) − S − s² q². Those that a
    bound has cut off are the bound."""
    held = constant(_held(one, scale, distance))
    sums, _, others = _solved(fitted, one, held, start)
    n, quiet = len(held), pytree.map_leaves(constant, one)

    def sum_of(value: Tensor, others: Tensor, order: Tensor) -> Tensor:
        return _sum(fitted, quiet, torch.cat([others, value[None]])[order])

    # At a minimum over the others the derivative in the parameter held is the partial one.
    slope = vmap(grad(sum_of))(held.reshape(-1), constant(others), _orders(n, held.device))
    excess = sums.reshape(n, 2) - chi_square - variance * quantile**2
    ends = held - excess / torch.where(cut, 1.0, constant(slope).reshape(n, 2))
    return torch.where(cut, torch.stack(one.bounds, -1), ends) if one.bounds else ends


def _held(one: One, scale: Scale, distance: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """The values at these distances, below and above the solution; not beyond the bounds."""
    sides = torch.tensor([-1.0, 1.0], dtype=distance.dtype, device=distance.device)
    value = one.free[:, None] + sides * distance * scale.deviation[:, None]
    return torch.where(distance >= scale.room, torch.stack(one.bounds, -1), value) if one.bounds else value


def _solved(
    fitted: Fitted, one: One, held: Float[Tensor, "n 2"], start: Float[Tensor, "n 2 others"]
) -> tuple[Float[Tensor, "m"], Bool[Tensor, "m"], Float[Tensor, "m others"]]:
    """S, convergence and the other parameters for the m = 2n values held."""
    n = len(held)
    if n == 1:
        sums = vmap(lambda value: _sum(fitted, one, value[None]))(held[0])
        return sums, torch.isfinite(sums), start.reshape(2, 0)
    limits = [_others(side.expand(n, 2, n)).reshape(2 * n, n - 1) for side in one.bounds]
    solution = least_squares(
        _residual_of(fitted),
        start.reshape(2 * n, n - 1),
        (
            held.reshape(-1),
            _orders(n, held.device),
            fitted.recipe.t_of(one.t),
            one.y,
            one.whitening,
            one.used,
            one.held,
        ),
        in_dims=(0, 0, 0, None, None, None, None, None),
        solver=_solver(fitted),
        loss=fitted.recipe.loss,
        bounds=tuple(limits) or None,
        project_start=True,
    )
    return 2 * solution.cost, solution.converged, solution.value


def _orders(n: int, device: torch.device) -> Int[Tensor, "m n"]:
    """Of each of the m = 2n solves: where the entries of the parameters are among (the others, the one that is
    held)."""
    place, held = torch.arange(n, device=device), torch.arange(n, device=device)[:, None]
    order = torch.where(place == held, n - 1, place - (place > held).to(place.dtype))
    return order.repeat_interleave(2, 0)


def _residual_of(fitted: Fitted) -> Callable[..., Tensor]:
    of_all, parameters = fitted.recipe.residual, fitted.recipe.free

    def residual(others: Tensor, held: Tensor, order: Tensor, *points: Any) -> Tensor:
        return of_all(parameters.tree(torch.cat([others, held[None]])[order]), *points)

    return residual


def _sum(fitted: Fitted, one: One, free: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    """Σ ρ(r²) of one fit."""
    squared, loss = fitted.residuals(one, free).square(), fitted.recipe.loss
    return (squared if loss is None else loss(squared)).sum()


def _solver(fitted: Fitted) -> Solver:
    """That of the fit, with a tolerance of the cost that leaves nothing of a τ of one to rounding; and with few steps:
    a start is near, and where a parameter runs to infinity there is no end of them."""
    solver = LevenbergMarquardt() if fitted.recipe.solver is None else fitted.recipe.solver
    steps, tolerance = min(solver.max_steps, MOST_STEPS), min(solver.ftol, 1e-10)
    return replace(solver, max_steps=steps, ftol=tolerance, callback=None, verbose=False)
