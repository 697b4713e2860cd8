"""`curve_fit`: a model, points and their errors, in SciPy's meaning: values and their standard errors."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import vmap

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.elsewhere.calls import call_knowing_words
from mslsq.front.answering_residuals import Answered
from mslsq.front.batching import is_whole
from mslsq.front.fits.complex_data import in_pairs
from mslsq.front.fits.covariance import covariance_of_one, on_bounds, warn_where_infinite
from mslsq.front.fits.datasets import Sets, in_one_vector, joined
from mslsq.front.fits.fitted import Fitted
from mslsq.front.fits.limits import bounds_of_free, limits_of
from mslsq.front.fits.orthogonal import ErrorsOfT, corrected, effective, errors_of_t
from mslsq.front.fits.parameters import Parameters, started
from mslsq.front.fits.pieces import in_pieces, is_for_pieces
from mslsq.front.fits.residual import Noise, residual_of
from mslsq.front.fits.result import CurveFit, of_all
from mslsq.front.fits.robust import check_robust, loss_of, of_inliers
from mslsq.front.fits.scheme import Divided, divided, without_ties
from mslsq.front.fits.unread import check_read
from mslsq.front.measurements import Measurements, NanPolicy, Points, check_finite, check_numbers, may_ask, spoiled
from mslsq.front.repeated_fit import FitCall
from mslsq.front.repeated_residual import solved_residual
from mslsq.front.statement import Solved
from mslsq.losses import RobustLoss
from mslsq.manifolds import Manifold
from mslsq.problem.errors import DtypeError, ProblemError
from mslsq.solution import Solution, Status
from mslsq.solvers import GraduatedNonConvexity, LevenbergMarquardt, Solver
from mslsq.validation import boolean, made_a_tensor, one_of


@outside_compiled_regions
@call_knowing_words(LevenbergMarquardt.__dataclass_fields__)
def curve_fit(
    model: Callable[[Any, Any], Tensor],
    t: Any,
    y: Float[Tensor, "*points"],
    p0: Any,
    *,
    sigma: Float[Tensor, "*points"] | Float[Tensor, "points points"] | float | None = None,
    absolute_sigma: bool = False,
    bounds: Any = None,
    project_start: bool = False,
    fixed: Any = None,
    tied: Mapping[str, Callable[[Any], Tensor]] | None = None,
    mask: Bool[Tensor, "*points"] | None = None,
    nan_policy: NanPolicy = "omit",
    noise: Noise = "normal",
    sigma_t: Float[Tensor, "..."] | float | None = None,
    in_dims: Any = None,
    solver: Solver | GraduatedNonConvexity | None = None,
    loss: RobustLoss | None = None,
    adjoint: Adjoint | None = None,
) -> CurveFit:
    """Fit `model(p, t)` to y: minimise ½ Σ ((model(p, t) − y) / sigma)² over p.

    Args:
        model: `model(p, t)` returns what is compared with y, in its shape. Written for one fit, without a batch axis.
        t: where y was measured; a tensor or any pytree, handed to the model as it is.
        y: the measurements, any shape. NaN means that a point is missing. Several sets of data with common parameters
            are a pytree of tensors; the model returns a pytree like it, sigma and mask are such pytrees too (or sigma
            a number). Complex measurements are two each, the real and the imaginary part, with the same sigma; the
            statistics count both, and what is predicted has a last axis (real, imaginary).
        p0: the start; a tensor of any shape or a pytree of tensors, real floating point.
        sigma: the standard deviation of y, in the shape of y or a number; or, for y of shape (points,), the covariance
            matrix (points, points). One for all points by default.
        absolute_sigma: `False`: only the ratios of sigma matter, the covariance is scaled by the reduced chi-square,
            Σ(r/sigma)² / (points − parameters). `True`: sigma is meant in the units of y, nothing is scaled.
        bounds, project_start: as for `least_squares`, in the form of p0. Bounds of a fixed parameter must contain its
            value and may be left out; a tied one has none of its own.
        fixed: parameters that are held. Of a dict p0 a dict by name: a number or tensor to hold it at (differentiable;
            the name may be missing in p0), `True` to hold it at the start, a tensor of bool to hold those entries at
            the start. Of another p0 a tensor of bool, or a tree of them.
        tied: parameters that follow from others: functions by name, `{"b": lambda p: 2 * p["a"]}`. `p` has all that
            are free or fixed, and those tied before. They need no start.
        mask: which points count, in the shape of y (and then mapped as y is) or of the y of one fit. Fits with
            different numbers of points make a batch by padding. Points that do not count have no weight and are no
            degrees of freedom; their t, where it is as long as y and mapped like it, is replaced by that of a point
            that counts, so that padding need not make sense to the model. (Not where y is a pytree.)
        nan_policy: "omit": points whose y is NaN do not count (a fit with fewer points than parameters ends as
            `SINGULAR`). "raise": entries of t, y or sigma that are NaN or infinite are an error.
            "propagate": a fit with a NaN among the t, y or sigma of points that count has NaN as its values, errors and
            statistics; other fits of a batch are what they are.
        noise: "poisson": y are counts, of which the model gives the mean; minimised is half the deviance,
            Σ (y log(y/μ) − y + μ). The covariance is the inverse of Fisher's information, sigma is the counts' own.
        sigma_t: the standard deviation of t, where t has errors as well: orthogonal distance regression, as ODRPACK
            and `scipy.odr` do it. Minimised is ½ Σ ((model(p, t + δ) − y) / sigma)² + ½ Σ (δ / sigma_t)² over p and the
            corrections δ of t, which are `fit.corrections`. y is then (points,), t a tensor (points,) or (points, k);
            sigma_t is a number or broadcasts to t of one fit: (points,) one for each point, (k,) one for each
            coordinate, (points, 1), (points, k); or has the shape of t and is mapped like it. Each point of the model
            must be a function of its own t. Not with a loss, counts, several sets of data, or a matrix as sigma.
        in_dims: `torch.func.vmap`'s, over `(t, y, p0, sigma)`, the last of which may be left out: one independent fit
            per entry. More than 8,192 fits (without bounds, outside of transforms, with a solver that has no callback,
            budget of time or table) are solved in slices; their solution has no history.
        solver, loss, adjoint: as for `least_squares`; a loss acts on (model − y) / sigma of each point. The covariance
            is then that of SciPy with a loss: from the Jacobian scaled by ρ' + 2 ρ'' r². With
            `GraduatedNonConvexity(scale=...)`, scale in units of sigma, the fit and all its statistics are those of the
            points that were not rejected (`fit.solution.weights["residual"]` is 0 of the others); with its
            `loss="geman_mcclure"` those with that loss. Not with counts, `sigma_t`, or a matrix as sigma.

    Returns:
        A `CurveFit`. Where the Jacobian is rank deficient, or there are not more points than parameters to estimate the
        error of y from, the covariance is infinite and a `CovarianceWarning` says so (under transforms, which hide
        values, it is silent).

    Raises:
        ProblemError (a ValueError): shapes, dtypes or in_dims do not fit; the message says what.

    >>> t = torch.linspace(0, 4, 30, dtype=torch.float64)
    >>> y = 2.5 * torch.exp(-1.3 * t) + 0.5 + 0.01 * torch.sin(40 * t)
    >>> fit = mslsq.curve_fit(lambda p, t: p[0] * torch.exp(-p[1] * t) + p[2], t, y, torch.ones(3, dtype=torch.float64))
    >>> fit.value, fit.standard_errors
    """
    boolean("curve_fit: absolute_sigma", absolute_sigma, ProblemError)
    is_ordinary = bounds is fixed is tied is mask is sigma_t is in_dims is loss is None and not project_start
    call = None
    if is_ordinary and nan_policy == "omit" and noise == "normal":
        call = FitCall.of(model, (t, y, p0, sigma), absolute_sigma, solver, adjoint)
        again = None if call is None else call.answered()
        if again is not None:
            if not again.has_covariance:
                warn_where_infinite(again.fit.fitted.tensors, False)
            return again.fit
    asks = may_ask(solver, y)
    is_complex = any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in pytree.leaves(y))
    if is_complex:
        for what, given in (("noise='poisson'", noise == "poisson"), ("sigma_t", sigma_t is not None)):
            if given:
                raise ProblemError(f"curve_fit: complex y does not go with {what}.")
        model, y, sigma, mask, in_dims = in_pairs(model, y, sigma, mask, in_dims)
    check_finite(nan_policy, t=t, y=y, sigma=sigma, sigma_t=sigma_t)
    fit = Fit.of(model, t, y, p0, sigma, mask, in_dims, fixed, tied, bounds, noise, sigma_t, loss, nan_policy, asks)
    fit.check_solver(solver)
    options = {"loss": loss, "bounds": fit.bounds, "project_start": project_start}

    def found(fit: Fit) -> CurveFit:
        ended = solved_residual(fit.residual, fit.start, fit.arguments, solver, adjoint, in_dims=fit.dims, **options)
        result = fit_of(ended, fit, absolute_sigma, loss, solver)
        if call is not None:
            call.remember(result, ended)
        return result

    result = in_pieces(found, fit) if is_for_pieces(fit, solver) else found(fit)
    if asks:
        warn_where_infinite(result.fitted.tensors, nan_policy == "propagate")
    return result


class Fit(NamedTuple):
    """What a call asks for."""

    model: Callable[[Any, Any], Any]
    sets: Sets | None
    residual: Callable[..., Tensor]
    """What is minimised, of the unknowns and the points."""
    start: Any
    """Of the unknowns: the parameters that are free, and the corrections of t."""
    points: Points
    division: Divided
    bounds: Any
    """Of what is free."""
    dims: Any
    """`in_dims` of the unknowns, the points, what is held and the errors of t."""
    t_dims: Any
    sigma: str
    """How the errors of y were given: "none", "number", "each", "matrix"."""
    noise: Noise
    errors_of_t: ErrorsOfT | None
    free_of: Callable[[list[Any]], Any] | None
    """With errors of t: the free parameters from their leaves."""
    propagates: bool
    """Is a fit NaN of which a point that counts is?"""
    asks: bool
    """May its numbers be read, to say what is wrong with them?"""

    @classmethod
    def of(
        cls,
        model: Any,
        t: Any,
        y: Any,
        p0: Any,
        sigma: Any,
        mask: Any,
        in_dims: Any,
        fixed: Any = None,
        tied: Any = None,
        bounds: Any = None,
        noise: Noise = "normal",
        sigma_t: Any = None,
        loss: RobustLoss | None = None,
        nan_policy: NanPolicy = "omit",
        asks: bool = True,
    ) -> "Fit":
        """An error for anything that cannot be fitted; of sigma and counts if it may be asked what they are."""
        one_of("curve_fit: noise", noise, ("normal", "poisson"), ProblemError)
        if noise == "poisson" and sigma is not None:
            raise ProblemError("noise='poisson': the errors of counts follow from their mean, leave sigma out.")
        predicted, sets = model, None
        if not isinstance(y, Tensor):
            y, sigma, mask, in_dims, sets = joined(t, y, p0, sigma, mask, in_dims)
            predicted = in_one_vector(model, sets)
        given = _checked(model, y, p0, sigma)
        start = started(without_ties(p0, tied, fixed), y)
        measurements = Measurements(t, y, start, given, mask, in_dims, sets is None, nan_policy)
        keys = tuple({**p0, **start, **(tied or {})}) if tied else ()
        division = divided(start, measurements.p0_dims, fixed, tied, keys)
        bounds = bounds_of_free(bounds, start, measurements.p0_dims, division, tied, measurements.size)
        check_read(predicted, measurements, p0, fixed, division)
        points, t_dims = measurements.prepare()
        if asks:
            check_numbers(measurements, points, noise)
        kind, x0, x0_dims = measurements.sigma_kind, division.free, division.free_dims
        residual, free_of, errors = residual_of(predicted, division.scheme, noise), None, None
        if sigma_t is not None:
            others = {"several sets of data": sets is not None, "noise='poisson'": noise == "poisson"}
            others["a robust loss"] = loss is not None
            errors = errors_of_t(t, measurements.t_dims[0], y, measurements.y_dim, sigma_t, kind, others)
            residual, x0, x0_dims, bounds, free_of = corrected(residual, x0, x0_dims, bounds, errors)
        dims = None
        if measurements.size is not None:
            dims = (x0_dims, t_dims, 0, 0, 0, division.held_dims, *(() if errors is None else (errors.dim,)))
        solve = residual, x0, points, division, bounds, dims, t_dims
        return cls(model, sets, *solve, kind, noise, errors, free_of, nan_policy == "propagate", asks)

    def check_solver(self, solver: Any) -> None:
        """An error for a solver that rejects points, where it cannot."""
        others = {"noise='poisson'": self.noise == "poisson", "sigma_t": self.errors_of_t is not None}
        check_robust(solver, self.points, self.sigma, others)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the residual, behind p."""
        return (*self.points, self.division.held, *(() if self.errors_of_t is None else (self.errors_of_t.sigma,)))

    def of_parameters(self, solution: Solution) -> tuple[Solution, tuple[Tensor, ...]]:
        """The solution for the free parameters alone; and with errors of t its corrections in standard deviations, and
        these standard deviations."""
        if self.errors_of_t is None or self.free_of is None:
            return solution, ()
        *leaves, u = solution.value
        active = solution.active if solution.active == () else self.free_of(solution.active[:-1])
        return replace(solution, value=self.free_of(leaves), active=active), (u, self.errors_of_t.sigma.expand(u.shape))


def fit_of(ended: Solved | Answered, fit: Fit, absolute_sigma: bool, loss: RobustLoss | None, solver: Any) -> CurveFit:
    """The solution of `fit.residual` with its covariance; `solver` as the user gave it."""
    solution, of_t = fit.of_parameters(ended.solution)
    points, loss = fit.points, loss_of(solver, loss)
    batched = ended.is_batch
    free, division = Parameters.of(solution.value, int(batched)), fit.division
    recipe = {
        "model": fit.model,
        "sets": fit.sets,
        "free": free,
        "parameters": free,
        "scheme": division.scheme,
        "held_dims": division.held_dims if batched else (None,) * len(division.held),
        "batched": batched,
        "sigma": fit.sigma,
        "noise": fit.noise,
        "absolute_sigma": absolute_sigma or fit.noise == "poisson",
        "loss": loss,
        "solver": ended.solver,
        "mode": ended.jacobian_mode,
    }
    vector = free.vector(solution.value)
    limits = limits_of(ended.statement, vector, len(free.shapes)) if isinstance(ended, Solved) else ()

    def fitted(vector: Tensor, covariance: Tensor, of_t: tuple[Tensor, ...]) -> Fitted:
        return Fitted.of(points, division.held, vector, covariance, fit.t_dims, of_t, limits, **recipe)

    if of_t:
        before = fitted(vector, torch.diag_embed(vector), of_t)  # asked for no errors
        both = before.each(lambda one: effective(before, one, fit.asks))
        r, jacobian = both if batched else (both[0][None], both[1][None])
    else:
        r, jacobian = ended.residual_and_jacobian()
        solution, r, jacobian, points = of_inliers(solver, solution, r, jacobian, points)
    if fit.noise == "poisson":
        before = fitted(vector, torch.diag_embed(vector), of_t)
        rows = before.each(before.information_rows)
        jacobian = rows if batched else rows[None]

    few = points.used.reshape(*solution.cost.shape, -1).sum(-1) < jacobian.shape[-1]
    solution = replace(solution, status=torch.where(few, int(Status.SINGULAR), solution.status))
    held = on_bounds(solution, len(jacobian))

    def covariance(jacobian: Tensor, r: Tensor, used: Tensor, held: Tensor | None) -> Tensor:
        return covariance_of_one(jacobian, r, used, held, recipe["absolute_sigma"], loss)

    if batched:
        matrix = vmap(covariance, in_dims=(0, 0, 0, None if held is None else 0))(jacobian, r, points.used, held)
    else:
        matrix = covariance(jacobian[0], r[0], points.used, None if held is None else held[0])
    if not fit.propagates:
        return of_all(fitted(vector, matrix, of_t), solution)
    nan = fitted(vector, matrix, of_t).each(
        lambda one: spoiled((*one.t, *one.errors_of_t), one.y, one.whitening, one.used)
    )
    vector, matrix, *of_t = (
        torch.where(nan.reshape(*nan.shape, *(1,) * (x.ndim - nan.ndim)), torch.nan, x) for x in (vector, matrix, *of_t)
    )
    solution = replace(solution, value=free.tree(vector), cost=torch.where(nan, torch.nan, solution.cost))
    return of_all(fitted(vector, matrix, tuple(of_t)), solution)


def _checked(model: Any, y: Any, p0: Any, sigma: Any) -> Tensor | None:
    """sigma as a tensor; an error for anything that cannot be fitted."""
    if not callable(model):
        raise ProblemError(f"model must be callable as model(p, t), not {type(model).__name__}.")
    code = getattr(model, "__code__", None) if isinstance(model, FunctionType) else None
    if code is not None and code.co_argcount - len(model.__defaults__ or ()) > 2:
        names = ", ".join(code.co_varnames[: code.co_argcount])
        raise ProblemError(
            f"model must be callable as model(p, t), this one is {code.co_name}({names}). SciPy's form f(t, a, b, ...) "
            "is that of mslsq.interop.scipy.curve_fit; here write p[0], p[1] for a, b."
        )
    if not isinstance(y, Tensor) or not y.is_floating_point():
        kind = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise DtypeError(f"y must be a tensor of floating-point or complex numbers, not {kind}.")
    for leaf in pytree.leaves(p0, is_leaf=is_whole):
        if isinstance(leaf, Manifold):
            raise ProblemError(
                f"p0 holds an element of {type(leaf).__name__}: curve_fit fits plain tensors. "
                "Use mslsq.least_squares, or mslsq.solve and mslsq.covariance."
            )
    if sigma is None or isinstance(sigma, Tensor):
        return sigma
    if isinstance(sigma, (int, float)) and not isinstance(sigma, bool):
        return torch.full((), float(sigma), dtype=y.dtype, device=y.device)
    raise ProblemError(f"sigma must be a tensor or a number, not {type(sigma).__name__}.{made_a_tensor(sigma)}")
