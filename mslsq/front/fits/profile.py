"""Profile likelihood: where chi-square, minimised over all other parameters, has risen by as much as the level says.

Bates & Watts, Nonlinear Regression Analysis and Its Applications (1988), section 6.1; R's `confint` of an `nls`. With
S(c) the smallest sum of squares of a fit whose parameter k is held at c, the profile t is
τ(c) = sign(c − p_k) √(S(c) − S) / s. The ends of the interval are where |τ| is the quantile of Student's t. All ends
of all parameters of all fits are sought together: one batched solve per round. With bounds the other parameters stay
within theirs, and an interval ends at the bound of its own parameter where |τ| is smaller than the quantile there.
"""

import warnings
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.front.fits.fitted import Fitted
from mslsq.front.fits.held import Scale, expected, polished, scale_of, tried
from mslsq.levels import constant
from mslsq.private import is_wrapped

ROUNDS = 40
"""Tried at most. Most ends take three to six."""
WIDEST = 1e4
"""Standard errors from the solution beyond which an end is taken to be at infinity."""
TOLERANCE = 1e-5
"""Of τ, relative to its quantile; one step of Newton's method afterwards squares it."""
MOST_FAILURES = 3
"""Solves that do not converge until an end is given up."""
WORSE = 1e-7
"""A chi-square smaller than that of the fit by this share is another minimum, and no rounding."""


class ProfileWarning(UserWarning):
    """A profile could not be followed to its end: that end of the interval is NaN."""


class _Known(NamedTuple):
    """What is known of one place of every profile: (*batch, n, 2), and with an axis for the other parameters."""

    distance: Tensor
    """From the solution, in standard errors."""
    tau: Tensor
    others: Tensor

    def where(self, condition: Tensor, other: "_Known") -> "_Known":
        """This where the condition holds, else the other."""
        one = torch.where(condition, self.distance, other.distance), torch.where(condition, self.tau, other.tau)
        return _Known(*one, torch.where(condition[..., None], self.others, other.others))

    def towards(self, other: "_Known", distance: Tensor) -> Tensor:
        """The other parameters at a distance, on the line through both places."""
        share = (distance - self.distance) / (other.distance - self.distance)
        share = torch.where(torch.isfinite(share), share, 0.0)
        return self.others + share[..., None] * (other.others - self.others)


class _Search(NamedTuple):
    """The ends that are sought."""

    at: Tensor
    """The distances to be tried next, and a start for the other parameters there."""
    start: Tensor
    inner: _Known
    """The farthest place with τ below the quantile."""
    outer: _Known
    """The nearest with τ above it; at infinity before there is one."""
    last: _Known
    """The two places whose solves converged last."""
    before: _Known
    best: _Known
    """That whose τ is nearest to the quantile, of solves that have converged."""
    failures: Tensor
    """How many solves did not converge."""
    room: Tensor
    """The distances of the bounds, beyond which nothing is tried."""

    def next(self, tau: Tensor, converged: Tensor, others: Tensor, quantile: Tensor, halve: bool) -> "_Search":
        """After the solves at the distances tried."""
        here = _Known(self.at, torch.where(torch.isfinite(tau), tau, torch.inf), others)
        below = here.tau < quantile
        inner = here.where(below & (self.at > self.inner.distance), self.inner)
        outer = here.where(~below & (self.at < self.outer.distance), self.outer)
        best = here.where(converged & ((here.tau - quantile).abs() < (self.best.tau - quantile).abs()), self.best)
        moved = converged & (self.at != self.last.distance)
        last, before = here.where(moved, self.last), self.last.where(moved, self.before)
        share = (quantile - inner.tau) / (outer.tau - inner.tau)
        share = torch.where(torch.isfinite(outer.tau) & (not halve), share, 0.5)
        between = inner.distance + share * (outer.distance - inner.distance)
        wider = inner.distance * (1.1 * quantile / inner.tau.clamp(min=1e-3)).clamp(1.2, 4.0)
        wider = torch.where(inner.distance > WIDEST, self.room, wider)
        at = torch.where(torch.isfinite(outer.distance), between, torch.where(inner.distance > 0, wider, self.at / 2))
        at = torch.minimum(at, self.room)
        failures = self.failures + (~converged).to(self.failures.dtype)
        search = _Search(at, self.start, inner, outer, last, before, best, failures, self.room)
        at = torch.where(search.settled(quantile), last.distance, at)  # solved already, so this costs one step
        return search._replace(at=at, start=last.towards(before, at))

    def found(self, quantile: Tensor) -> Bool[Tensor, "*batch n 2"]:
        return (self.best.tau / quantile - 1).abs() <= TOLERANCE

    @property
    def endless(self) -> Bool[Tensor, "*batch n 2"]:
        """Is the end farther away than all that is looked at?"""
        return (self.inner.distance > WIDEST) & torch.isinf(self.outer.distance) & torch.isinf(self.room)

    @property
    def cut(self) -> Bool[Tensor, "*batch n 2"]:
        """Does a bound end the interval, since τ is below its quantile there?"""
        return self.inner.distance >= self.room

    def settled(self, quantile: Tensor) -> Bool[Tensor, "*batch n 2"]:
        """Is there nothing more to find, or to hope for?"""
        return self.found(quantile) | self.cut | self.endless | (self.failures > MOST_FAILURES)


def profile_ends(
    fitted: Fitted,
    quantile: Float[Tensor, "*batch"],
    chi_square: Float[Tensor, "*batch"],
    scale: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch n 2"]:
    """The lower and the upper end of every free parameter, with first derivatives.

    Args:
        fitted: the fits.
        quantile: of |τ|.
        chi_square: S at the solution.
        scale: s², the variance of a residual.
    """
    start = constant(fitted.tensors.free)
    bound = constant(quantile)[..., None, None].expand(*start.shape, 2)
    minimum, variance = constant(chi_square)[..., None, None], constant(scale)[..., None, None]
    measure = fitted.each(lambda one, scale: scale_of(fitted, one, scale), scale, dims=(0,))
    search, smaller = _begun(fitted, measure, bound), torch.zeros_like(bound, dtype=torch.bool)
    worse = max(WORSE, 100 * torch.finfo(start.dtype).eps)
    for number in range(ROUNDS):
        sums, converged, others = fitted.each(
            lambda one, *rest: tried(fitted, one, *rest), measure, search.at, search.start, dims=(0, 0, 0)
        )
        smaller = smaller | (sums < minimum * (1 - worse))
        tau = ((sums - minimum).clamp(min=0) / variance).sqrt()
        search = search.next(tau, converged, others, bound, halve=number > 8 and number % 2 == 0)
        if not is_wrapped(search.at) and bool((search.settled(bound) | smaller).all()):
            break
    ends = fitted.each(
        lambda one, *rest: polished(fitted, one, *rest),
        measure,
        search.best.distance,
        search.best.others,
        search.cut,
        quantile,
        chi_square,
        scale,
        dims=(0,) * 7,
    )
    sides = torch.tensor([-torch.inf, torch.inf], dtype=ends.dtype, device=ends.device)
    known = torch.where((search.found(bound) | search.cut) & ~smaller, ends, torch.nan)
    result = torch.where(search.endless & ~smaller, sides, known)
    _warn(result, smaller)
    return result


def _begun(fitted: Fitted, measure: Scale, bound: Tensor) -> _Search:
    """The first distances are those of a quadratic chi-square."""
    zero, far, first_at = torch.zeros_like(bound), torch.full_like(bound, torch.inf), torch.minimum(bound, measure.room)
    here, there = (fitted.each(expected, measure, at, dims=(0, 0)) for at in (zero, first_at))
    solution, first = _Known(zero, zero, here), _Known(first_at, far, there)
    outer = _Known(far, far, there)
    return _Search(first_at, there, solution, outer, solution, first, first, zero, measure.room)


def _warn(result: Tensor, smaller: Tensor) -> None:
    """Say which ends could not be found, where values can be looked at."""
    if is_wrapped(result) or not bool(torch.isnan(result).any()):
        return
    found = int(smaller.sum())
    if found:
        reason = (
            f"at {found} of them a solve with one parameter held found a smaller chi-square than that of the fit, "
            "which is no global minimum: start it elsewhere, or with tighter tolerances"
        )
    else:
        reason = "the solves with one parameter held did not converge there, or its standard error is not finite"
    warnings.warn(
        f"Of {result.numel()} ends of profile intervals {int(torch.isnan(result).sum())} are NaN: {reason}.",
        ProfileWarning,
        stacklevel=4,
    )
