"""What a fit implies: predictions with bands, derived quantities with errors, samples of the parameters."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from mslsq import pytree
from mslsq.front.fits.fitted import Fitted, One, flat, variance
from mslsq.problem.errors import ProblemError, ShapeError

Band = Literal["confidence", "prediction"]


class Prediction(NamedTuple):
    """What the model predicts, and a band around it."""

    mean: Any
    lower: Any
    upper: Any


class Propagated(NamedTuple):
    """Derived quantities: their values, their standard errors in the same shapes, and the covariance of all entries."""

    value: Any
    standard_errors: Any
    covariance: Float[Tensor, "*batch m m"]


def predicted(
    fitted: Fitted,
    t: Any,
    own_t: bool,
    noise: Callable[[One, Tensor], Tensor] | None,
    quantile: Float[Tensor, "*batch"],
    scale: Float[Tensor, "*batch"],
) -> Prediction:
    """The model at t with mean ± quantile · √(J Σ Jᵀ + noise² · scale).

    Args:
        fitted: the fits.
        t: the points; None for those of the fit.
        own_t: has each fit points of its own, the first axis of every tensor in t?
        noise: of one fit and its prediction, the standard deviation of new measurements; None: a confidence band.
        quantile: how many standard deviations the band reaches to each side.
        scale: of the noise.
    """
    leaves, structure = pytree.flatten(t)
    given = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def of_one(one: One, given: tuple[Tensor, ...], quantile: Tensor, scale: Tensor) -> Prediction:
        rest = iter(given)
        new = pytree.unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)
        at = fitted.recipe.t_of(one.t) if t is None else new

        def model(free: Tensor) -> Tensor:
            return fitted.recipe.model(fitted.recipe.p_of(free, one.held), at)

        parts, form = pytree.flatten(model(one.free))
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise ShapeError("model(p, t) must return a tensor, or a pytree of them.")
        mean = flat(parts)
        _, jacobian = fitted.with_jacobian(lambda free: flat(model(free)), one)
        spread = variance(jacobian, one.covariance)
        if noise is not None:
            spread = spread + scale * noise(one, mean) ** 2
        reach = quantile * spread.sqrt()

        def like_model(vector: Tensor) -> Any:
            own = vector.split([part.numel() for part in parts])
            return pytree.unflatten([one.reshape(part.shape) for one, part in zip(own, parts, strict=True)], form)

        return Prediction(*map(like_model, (mean, mean - reach, mean + reach)))

    return fitted.each(of_one, given, quantile, scale, dims=(0 if own_t else None, 0, 0))


def noise_of(fitted: Fitted, sigma: Any, at_points: bool) -> Callable[[One, Tensor], Tensor]:
    """The standard deviation of new measurements, relative to the scale of the fit.

    Raises:
        ProblemError: the fit had an error for each point, which says nothing of other points.
    """
    if fitted.recipe.noise == "poisson":
        return lambda _one, mean: mean.sqrt()
    if sigma is not None:
        given = pytree.map_leaves(lambda leaf: torch.as_tensor(leaf, dtype=fitted.tensors.y.dtype, device="cpu"), sigma)
        own = given.reshape(-1) if isinstance(given, Tensor) else flat(given)
        return lambda _one, mean: own.to(mean.device).expand(mean.shape)
    if fitted.recipe.sigma in ("none", "number"):
        return lambda one, mean: (1 / one.whitening.amax()).expand(mean.shape)
    if fitted.recipe.sigma == "each" and at_points:
        return lambda one, _mean: (1 / one.whitening).reshape(-1)
    raise ProblemError(
        "predict(band='prediction'): the fit had a sigma for every point of its own, so the errors of new measurements "
        "are not known. Give them: fit.predict(t, band='prediction', sigma=...)."
    )


def propagated(fitted: Fitted, function: Callable[[Any], Any]) -> Propagated:
    """The delta method: the covariance of function(p) is G Σ Gᵀ, with G its Jacobian at the solution."""

    def of_one(one: One) -> Propagated:
        value = function(fitted.recipe.p_of(one.free, one.held))
        leaves, structure = pytree.flatten(value)
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise ProblemError("propagate: function(p) must return a tensor or a pytree of tensors.")

        def joined(free: Tensor) -> Tensor:
            own = pytree.leaves(function(fitted.recipe.p_of(free, one.held)))
            return torch.cat([leaf.reshape(-1) for leaf in own])

        covariance = covariance_of(fitted, joined, one)
        deviation = covariance.diagonal().clamp(min=0).sqrt().split([leaf.numel() for leaf in leaves])
        errors = [part.reshape(leaf.shape) for part, leaf in zip(deviation, leaves, strict=True)]
        return Propagated(value, pytree.unflatten(errors, structure), covariance)

    return fitted.each(of_one)


def covariance_of(fitted: Fitted, function: Callable[[Tensor], Tensor], one: One) -> Float[Tensor, "m m"]:
    """G Σ Gᵀ of a function of the free parameters of one fit. Infinite where Σ is, but for what depends on nothing."""
    _, jacobian = fitted.with_jacobian(function, one)
    covariance = jacobian @ one.covariance @ jacobian.mT
    constant = (jacobian == 0).all(-1)
    return torch.where(constant[:, None] | constant, 0.0, covariance)


def sampled(fitted: Fitted, count: int, generator: torch.Generator | None) -> Any:
    """`count` draws of the parameters, those that are free from the normal distribution N(p, Σ); the axis of the draws
    first. NaN where Σ is not finite."""
    mean, covariance = fitted.tensors.free, fitted.tensors.covariance
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    # Of the correlations: units of the parameters that differ by 1e16 and more leave no covariance a factor.
    safe = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    correlation = covariance / (safe[..., :, None] * safe[..., None, :])
    correlation = torch.where(eye.bool(), eye, correlation)
    factor, failed = torch.linalg.cholesky_ex(torch.where(torch.isfinite(correlation), correlation, eye))
    sound = (failed == 0) & torch.isfinite(covariance).all(-1).all(-1)
    white = torch.randn((count, *mean.shape), generator=generator, dtype=mean.dtype, device=mean.device)
    draws = mean + deviation * torch.einsum("...ij,s...j->s...i", factor, white)
    draws = torch.where(sound[..., None], draws, torch.nan)
    if fitted.recipe.scheme is None:
        return fitted.recipe.free.tree(draws)
    of_fits = draws.movedim(0, -2)
    trees = fitted.each(lambda one, own: vmap(lambda free: fitted.recipe.p_of(free, one.held))(own), of_fits, dims=(0,))
    return pytree.map_leaves(lambda leaf: leaf.movedim(mean.ndim - 1, 0), trees)
