"""Orthogonal distance regression: errors of t as well as of y.

Boggs, Byrd & Schnabel, A stable and efficient algorithm for nonlinear orthogonal distance regression, SIAM J. Sci.
Stat. Comput. 8 (1987): minimised is ½ Σ ((model(p, t + δ) − y) / sigma)² + ½ Σ (δ / sigma_t)² over p and the
corrections δ. The unknowns of the solve are p and u = δ / sigma_t. The row of a point holds its own u alone: of many
points the solve finds that, and eliminates them first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq import pytree
from mslsq.front.batching import shape_of_one
from mslsq.front.bounds import SIDES, by_leaf, pair_of
from mslsq.front.fits.fitted import Fitted, One
from mslsq.levels import at_the_bottom
from mslsq.linearize.derivatives import value_and_jacobian
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError
from mslsq.pytree import Form


class ErrorsOfT(NamedTuple):
    """The standard deviation of t."""

    sigma: Tensor
    """In the shape of t, the batch axis of a batch in front."""
    dim: int | None
    """0 where each fit has its own."""
    shape: tuple[int, ...]
    """Of t of one fit."""


def errors_of_t(t: Any, t_dims: Any, y: Tensor, y_dim: int | None, sigma_t: Any, sigma: str, others: Any) -> ErrorsOfT:
    """What is asked for, checked.

    Args:
        t, t_dims: as the model takes it, and its batch axis before anything was moved.
        y, y_dim: likewise.
        sigma_t: a number or a tensor.
        sigma: how the errors of y were given.
        others: by what they are called, what cannot go with it and whether it was asked for.

    Raises:
        ProblemError: it does not fit the points, or goes with something that it cannot go with.
    """
    for what, given in {**others, "a covariance matrix as sigma": sigma == "matrix"}.items():
        if given:
            raise ProblemError(
                f"curve_fit: sigma_t, errors of t, does not go with {what}. State the corrections of t as further "
                "parameters of mslsq.least_squares, with (correction / sigma_t) as further residuals."
            )
    if not isinstance(t, Tensor) or t.dtype != y.dtype:
        kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
        raise DtypeError(f"sigma_t: t must then be one tensor of {y.dtype}, the dtype of y, not {kind}.")
    shape, of_y = shape_of_one(t.shape, t_dims), shape_of_one(y.shape, y_dim)
    if len(of_y) != 1 or len(shape) not in (1, 2) or shape[0] != of_y[0]:
        raise ShapeError(
            "sigma_t: y of one fit must then have shape (points,), and t (points,) or (points, coordinates); they "
            f"have {of_y} and {shape}."
        )
    given = (
        torch.full((), float(sigma_t), dtype=t.dtype, device=t.device) if isinstance(sigma_t, (int, float)) else sigma_t
    )
    if not isinstance(given, Tensor) or isinstance(sigma_t, bool) or given.dtype != t.dtype:
        raise DtypeError(f"sigma_t must be a number or a tensor of {t.dtype}, the dtype of t, not {sigma_t!r}.")
    if t_dims is not None and given.shape == t.shape:
        return ErrorsOfT(given.movedim(t_dims, 0), 0, shape)
    try:
        return ErrorsOfT(given.expand(shape), None, shape)
    except RuntimeError:
        whole = "" if t_dims is None else f"{tuple(t.shape)}, one for each fit, or "
        raise ShapeError(
            f"sigma_t has shape {tuple(given.shape)}; expected {whole}what broadcasts to t of one fit, {shape}."
        ) from None


class Corrected(NamedTuple):
    """A fit with the corrections among its unknowns, which are a list: the leaves of p, and u."""

    residual: Callable[..., Tensor]
    start: list[Tensor]
    start_dims: list[int | None]
    bounds: Any
    tree: Callable[[list[Any]], Any]
    """p from its leaves."""


def corrected(plain: Callable[..., Tensor], p0: Any, p0_dims: Any, bounds: Any, errors: ErrorsOfT) -> Corrected:
    """`plain` is the residual without corrections; of bounds p has its own."""
    build, leaves = Form(p0).tree, pytree.leaves(p0)
    dims = [None] * len(leaves) if p0_dims is None else pytree.leaves(p0_dims)
    u = torch.zeros(errors.shape, dtype=errors.sigma.dtype, device=errors.sigma.device)

    def residual(x: list[Tensor], t: Tensor, *rest: Any) -> Tensor:
        *points, sigma_t = rest
        of_y = plain(build(x[:-1]), t + sigma_t * x[-1], *points)
        return torch.cat([of_y, x[-1].reshape(-1)])

    if bounds is not None:
        bounds = tuple(
            [*by_leaf(side, p0, which), None] for side, which in zip(pair_of(bounds, "bounds"), SIDES, strict=True)
        )
    return Corrected(residual, [*leaves, u], [*dims, None], bounds, build)


def effective(fitted: Fitted, one: One, asks: bool) -> tuple[Float[Tensor, "rows"], Float[Tensor, "points n"]]:
    """The residuals of one fit, those of t behind those of y, and the Jacobian of p with the corrections eliminated.

    Args:
        asks: may it be looked whether each point is a function of its own t alone? Where it is not, a ProblemError
            says so; if that may not be asked, the Jacobian is NaN.

    With a = ∂(residual of y)/∂u of a point, its row of the Jacobian divided by √(1 + a·a): the Schur complement of the
    full JᵀJ = [[AᵀA, Aᵀa], [aᵀA, I + aᵀa]] is AᵀA/(1 + a·a) for each point.
    """
    recipe, (u, sigma_t) = fitted.recipe, one.errors_of_t
    (t,) = one.t
    n, k = one.free.shape[0], 1 if t.ndim == 1 else t.shape[1]
    # Two shifts of all points at once, the second by a factor of its own for each: of a model that computes each point
    # from its own t, the derivatives in the second are those in the first times these factors.
    factors = 1 + (0.6180339887 * torch.arange(1, len(t) + 1, dtype=t.dtype, device=t.device)) % 1

    def of_y(z: Tensor) -> Tensor:
        shift = z[n : n + k] + factors[:, None] * z[n + k :]
        at = t + sigma_t * (u + shift.reshape(t.shape))
        p = recipe.free.tree(z[:n])
        return recipe.residual(p, at, one.y, one.whitening, one.used, one.held).reshape(-1)

    r, jacobian = value_and_jacobian(
        of_y, torch.cat([one.free, torch.zeros_like(one.free[:1]).expand(2 * k)]), recipe.mode
    )
    rows, slopes, scaled = jacobian.split([n, k, k], 1)
    mixed = _is_mixed(slopes * factors[:, None], scaled)
    if asks:
        _refuse(mixed)
    stretched = torch.where(mixed, torch.nan, (1 + slopes.square().sum(1)).sqrt())
    return torch.cat([r, u.reshape(-1)]), rows / stretched[:, None]


def _is_mixed(expected: Tensor, found: Tensor) -> Bool[Tensor, ""]:
    """Is a point of the model a function of the t of others?"""
    return (expected - found).abs().amax() > torch.finfo(found.dtype).eps ** 0.5 * expected.abs().amax()


def _refuse(mixed: Bool[Tensor, ""]) -> None:
    def check(mixed: Tensor) -> Tensor:
        if bool(mixed.any()):
            raise ProblemError(
                "sigma_t: model(p, t) computes points from the t of other points. With errors of t each point must be "
                "a function of its own t. (State other models as residuals of mslsq.least_squares.)"
            )
        return mixed

    at_the_bottom(mixed, check)
