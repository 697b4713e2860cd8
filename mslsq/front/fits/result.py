"""`CurveFit`: the result of a curve fit, and what one asks of it."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.elsewhere.options import ATTRIBUTES_OF_FITS
from mslsq.front.batching import sent
from mslsq.front.fits import prediction
from mslsq.front.fits.as_fitted import check_as_fitted
from mslsq.front.fits.fitted import Fitted, One
from mslsq.front.fits.intervals import Interval, Method
from mslsq.front.fits.parameters import Parameters
from mslsq.front.fits.prediction import Band, Prediction, Propagated
from mslsq.front.fits.profile import profile_ends
from mslsq.front.fits.quantiles import two_sided
from mslsq.front.fits.report import report_of
from mslsq.front.fits.statistics import Statistics
from mslsq.front.fits.tables import dict_of, frame_of
from mslsq.problem.errors import IndexRangeError, ProblemError
from mslsq.solution import Solution
from mslsq.validation import integer, one_of

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class CurveFit(Statistics):
    """The result of a curve fit: a pytree of tensors, one entry per fit of a batch.

    `value`, `covariance`, `standard_errors` and what is computed from them carry derivatives. χ² is twice the cost,
    Σ((model − y)/sigma)² without a loss, over the N points that count; P is the number of parameters. `print(
    fit.report())` shows all of it.
    """

    value: Any
    """The parameters, in the shape of `p0`; those that are tied among them."""
    covariance: Float[Tensor, "*batch n n"]
    """Of all parameters, in the order of `names`, that of the flattened leaves of `value`: zero for those that are
    fixed or on a bound, by propagation of errors for those tied to others."""
    standard_errors: Any
    """Square roots of the covariance's diagonal, in the shape of `value`."""
    solution: Solution
    """Cost, status, steps of the solve."""
    fitted: Fitted
    """What was fitted: points and model."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property has raised this: that is its own error
            hint = f". Here: {ATTRIBUTES_OF_FITS[name]}" if name in ATTRIBUTES_OF_FITS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

        def __iter__(self) -> Any:
            raise TypeError(
                "A CurveFit is no pair (popt, pcov): they are fit.value and fit.covariance. "
                "mslsq.interop.scipy.curve_fit returns them as SciPy does."
            )

    @property
    def corrections(self) -> Any:
        """Of a fit with `sigma_t` the corrections δ of t, in its shape: the curve is nearest to the measured points at
        t + δ. `()` of other fits."""
        of_t = self.fitted.tensors.errors_of_t
        return of_t[0] * of_t[1] if of_t else ()

    @outside_compiled_regions
    def report(
        self, index: int | tuple[int, ...] | None = None, *, interval: Method | None = None, level: float = 0.95
    ) -> str:
        """The fit as a page of text: parameters with errors, correlations above 0.1, statistics, how the solve ended.

        Args:
            index: which fit of a batch. (Tables of all: `to_pandas()`, or the tensors themselves.)
            interval: with confidence intervals of this method, which also says which of them end at a bound.
            level: of the intervals.
        """
        one = self if index is None and self.solution.cost.ndim == 0 else self.of_problem(index)
        return report_of(one, None if interval is None else one.confidence_interval(level, interval), level)

    def of_problem(self, index: int | tuple[int, ...] | None) -> "CurveFit":
        """One fit of a batch, as if it had been made alone.

        Args:
            index: an integer, or a tuple with one for each batch axis.
        """
        batch = tuple(self.solution.cost.shape)
        if not batch:
            if index in (None, ()):
                return self
            raise ProblemError(f"This is a single fit: leave the index out, it was {index!r}.")
        if index is None:
            raise ProblemError(f"This is a batch of fits, shape {batch}: say which one, for instance fit.report(0).")
        index = (index,) if isinstance(index, int) else tuple(index)
        if len(index) != len(batch) or not all(-n <= i < n for i, n in zip(index, batch, strict=True)):
            raise IndexRangeError(f"There is no fit {index!r} in a batch of shape {batch}.")
        value, covariance, errors, solution = pytree.map_leaves(
            lambda tensor: tensor[index], (self.value, self.covariance, self.standard_errors, self.solution)
        )
        return CurveFit(value, covariance, errors, solution, self.fitted.of_problem(index))

    @outside_compiled_regions
    def predict(
        self,
        t: Any = None,
        level: float = 0.95,
        band: Band = "confidence",
        *,
        sigma: Tensor | float | None = None,
        in_dims: int | None = None,
    ) -> Prediction:
        """The fitted curve at t, and a band around it: mean ± q √(J Σ Jᵀ), J the Jacobian of the model at t.

        q is the quantile of Student's t with N − P degrees of freedom, or of the normal distribution with
        `absolute_sigma=True`.

        Args:
            t: where, as the model takes it; the points of the fit by default.
            level: the probability that the band has at each point.
            band: "confidence": where the true curve is. "prediction": where a new measurement falls, whose variance
                sigma² is added (times the reduced chi-square unless sigma is absolute).
            sigma: the standard deviation of new measurements, a number or in the shape of the prediction, in the units
                of the fit's own sigma. By default that of the fit, where it is one number.
            in_dims: 0 where each fit of a batch has its own t, along the first axis; by default all have the same.

        Returns:
            (mean, lower, upper), each of the shape of the model's output, batch axes in front.

        Raises:
            ProblemError: the errors of new measurements are not known; or what the model reads has changed since the
                fit, so that at its solution it no longer gives what it gave there.
        """
        one_of("predict: band", band, ("confidence", "prediction"), ProblemError)
        one_of("predict: in_dims", in_dims, (0, None), ProblemError)
        check_as_fitted(self.fitted, self.chi_square, "predict")
        noise = None if band == "confidence" else prediction.noise_of(self.fitted, sigma, at_points=t is None)
        scale = self._variance_of_noise()
        return prediction.predicted(self.fitted, t, in_dims == 0, noise, self._quantile(level), scale)

    @outside_compiled_regions
    def propagate(self, function: Callable[[Any], Any]) -> Propagated:
        """Derived quantities with their errors, by the delta method: G Σ Gᵀ, with G the Jacobian of the function.

        Args:
            function: `function(p)` returns a tensor or a pytree of tensors; written for one fit.

        Returns:
            (value, standard_errors, covariance): the first two in the form of what the function returns, the covariance
            of all its entries in the order of the flattened leaves.

        >>> fit.propagate(lambda p: math.log(2) / p["rate"])      # a half-life
        """
        self._check_ties("propagate")
        return prediction.propagated(self.fitted, function)

    @outside_compiled_regions
    def sample(self, count: int, generator: torch.Generator | None = None) -> Any:
        """Draws of the parameters from the normal distribution with the fit's covariance.

        Args:
            count: how many.
            generator: of random numbers; PyTorch's own by default.

        Returns:
            In the form of `value`, with an axis of `count` draws in front of all others. NaN where the covariance is
            not finite.
        """
        integer("sample: count", count, least=1, error=ProblemError)
        self._check_ties("sample")
        return prediction.sampled(self.fitted, count, generator)

    @outside_compiled_regions
    def confidence_interval(self, level: float = 0.95, method: Method = "linear") -> Interval:
        """Where each parameter is with this probability, others varying freely.

        Args:
            level: the probability, 0.95 for instance.
            method: "linear": value ± q · standard error, with q of Student's t for N − P degrees of freedom (of the
                normal distribution with `absolute_sigma=True`). "profile": the parameter is held at a value and all
                others are fitted again; the ends are where χ² has risen by q² times the reduced chi-square (by q² with
                `absolute_sigma=True`), what R's `confint` and lmfit's `conf_interval` do. Such intervals are not
                symmetric; they hold where the model is far from linear. All ends of all fits are sought together.

        Returns:
            (lower, upper), each in the shape of `value`. Ends of a profile that never rises as far are infinite; those
            that could not be found are NaN, with a `ProfileWarning`. Tied parameters have no profile (NaN). Of a fit
            with bounds no profile goes beyond them: where χ² has not risen as far at the bound of a parameter, the end
            is that bound.

        Raises:
            ProblemError: a profile of a fit with errors of t is not known, or one where what the model reads has
                changed since the fit.
        """
        one_of("confidence_interval: method", method, ("linear", "profile"), ProblemError)
        quantile = self._quantile(level)
        if method == "linear":
            value, errors = (self._parameters.vector(tree) for tree in (self.value, self.standard_errors))
            reach = quantile[..., None] * errors
            return Interval(self._parameters.tree(value - reach), self._parameters.tree(value + reach))
        if self.fitted.tensors.errors_of_t:
            raise ProblemError(
                "confidence_interval(method='profile') of a fit with errors of t is not known: its corrections would "
                "have to be found again for every value. Use method='linear'."
            )
        check_as_fitted(self.fitted, self.chi_square, "confidence_interval(method='profile')")
        ends = profile_ends(self.fitted, quantile, self.chi_square, self._variance_of_noise())
        return Interval(self._of_all(ends[..., 0]), self._of_all(ends[..., 1]))

    def to_dict(self) -> dict[str, Any]:
        """Numbers, lists and words alone, ready for JSON: parameters by name, statistics, message."""
        return dict_of(self)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: of one fit a row per parameter, of a batch a row per fit.

        Raises:
            ImportError: pandas is not installed.
        """
        return frame_of(self)

    @outside_compiled_regions
    def plot(
        self, path: "Path | str | None" = None, *, index: int | tuple[int, ...] | None = None, level: float = 0.95
    ) -> Any:
        """A picture: data, fit and bands above, residuals below; see `mslsq.plotting.plot_fit`.

        Args:
            path: of a PNG to write.
            index: which fit of a batch.
            level: of the bands.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from mslsq.plotting import plot_fit  # from a floor above, for the convenience of a method

        return plot_fit(self, path, index=index, level=level)

    def _of_all(self, free: Float[Tensor, "*batch n"]) -> Any:
        """Figures of the free parameters where they belong; those held have their value, those tied NaN."""
        recipe = self.fitted.recipe
        if recipe.scheme is None:
            return recipe.parameters.tree(free)
        figures, notes = self._parameters.vector(self.value), self.notes
        figures = torch.where(torch.tensor([note == "tied" for note in notes], device=free.device), torch.nan, figures)
        places = sent(torch.tensor(recipe.places, device="cpu"), free.device)
        return self._parameters.tree(figures.index_copy(-1, places, free))

    def _check_ties(self, what: str) -> None:
        """Functions that tie parameters are called again as the model is; without them nothing of the fit is."""
        if self.fitted.recipe.scheme is not None:
            check_as_fitted(self.fitted, self.chi_square, what)

    def _quantile(self, level: float) -> Float[Tensor, "*batch"]:
        return two_sided(level, self.degrees_of_freedom, self.fitted.recipe.absolute_sigma, self.chi_square.dtype)

    def _variance_of_noise(self) -> Float[Tensor, "*batch"]:
        """Of a whitened residual: one where sigma is absolute."""
        known = self.fitted.recipe.absolute_sigma
        return torch.ones_like(self.chi_square) if known else self.reduced_chi_square


def of_all(fitted: Fitted, solution: Solution) -> CurveFit:
    """The result from the free parameters and their covariance: with those that are held and tied."""
    recipe, tensors = fitted.recipe, fitted.tensors
    if recipe.scheme is None:
        deviation = tensors.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        return CurveFit(solution.value, tensors.covariance, recipe.parameters.tree(deviation), solution, fitted)
    value = fitted.each(lambda one: recipe.p_of(one.free, one.held))
    parameters = Parameters.of(value, int(recipe.batched))
    notes = tuple(recipe.scheme.notes(parameters.tree(torch.zeros(parameters.count, device="cpu"))))
    fitted = Fitted(tensors, replace(recipe, parameters=parameters, notes=notes))

    def covariance(one: One) -> Tensor:
        return prediction.covariance_of(fitted, lambda free: parameters.vector(recipe.p_of(free, one.held)), one)

    matrix = fitted.each(covariance)
    errors = parameters.tree(matrix.diagonal(dim1=-2, dim2=-1).sqrt())
    active = solution.active
    if active != ():
        free = recipe.free.vector(active)
        places = sent(torch.tensor(fitted.recipe.places, device="cpu"), free.device)
        zeros = torch.zeros((*free.shape[:-1], parameters.count), dtype=free.dtype, device=free.device)
        active = parameters.tree(zeros.index_copy(-1, places, free))
    return CurveFit(value, matrix, errors, replace(solution, value=value, active=active), fitted)


pytree.register(
    CurveFit,
    lambda fit: ([getattr(fit, field.name) for field in fields(CurveFit)], None),
    lambda children, _: CurveFit(*children),
    lambda _: [field.name for field in fields(CurveFit)],
)
