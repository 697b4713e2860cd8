"""Statistics of a fit as lmfit defines them: goodness, information criteria, correlations."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.front.fits.as_fitted import check_as_fitted
from mslsq.front.fits.fitted import Fitted, One, flat
from mslsq.front.fits.parameters import Parameters
from mslsq.solution import Solution


class Statistics:
    """What follows from a solution, its covariance and the points; a part of `CurveFit`."""

    covariance: Tensor
    solution: Solution
    fitted: Fitted

    @property
    def names(self) -> tuple[str, ...]:
        """Of all entries of the parameters: `a` of {"a": number}, `rate[0]` of {"rate": vector}; of a single tensor
        `p[0]`."""
        return self._parameters.names

    @property
    def notes(self) -> tuple[str, ...]:
        """Per entry of `names`: "fixed", "tied", or nothing for one that was varied."""
        notes = self.fitted.recipe.notes
        return ("",) * len(self.names) if notes is None else notes

    @property
    def num_points(self) -> Int[Tensor, "*batch"]:
        """N: how many points count, masked and missing ones left out."""
        return self.fitted.tensors.used.reshape(*self.solution.cost.shape, -1).sum(-1)

    @property
    def num_parameters(self) -> int:
        """P: how many parameters were varied."""
        return self.fitted.tensors.free.shape[-1]

    @property
    def degrees_of_freedom(self) -> Int[Tensor, "*batch"]:
        """N − P."""
        return self.num_points - self.num_parameters

    @property
    def chi_square(self) -> Float[Tensor, "*batch"]:
        """χ² = Σ((model − y)/sigma)², twice the cost; of a fit with a loss Σρ of these squares. Of counts the
        deviance."""
        return 2 * self.solution.cost

    @property
    def reduced_chi_square(self) -> Float[Tensor, "*batch"]:
        """χ²/(N − P), the variance of a residual; lmfit's definition (1 for N − P where that is not positive)."""
        return self.chi_square / self.degrees_of_freedom.clamp(min=1)

    @property
    def aic(self) -> Float[Tensor, "*batch"]:
        """Akaike's information criterion N log(χ²/N) + 2P, lmfit's definition; smaller is better. To be compared
        between fits of the same points. Of counts the deviance + 2P."""
        return self._deviance() + 2 * self.num_parameters

    @property
    def bic(self) -> Float[Tensor, "*batch"]:
        """The Bayesian information criterion N log(χ²/N) + P log N, lmfit's definition. Of counts the deviance
        + P log N."""
        return self._deviance() + self.num_parameters * self.num_points.to(self.chi_square.dtype).log()

    def _deviance(self) -> Float[Tensor, "*batch"]:
        """N log(χ²/N), with lmfit's floor of 1e-250 N (or the least number of the dtype) under χ²; of counts the
        deviance."""
        if self.fitted.recipe.noise == "poisson":
            return self.chi_square
        floor = max(1e-250, torch.finfo(self.chi_square.dtype).tiny)
        points = self.num_points.to(self.chi_square.dtype)
        return points * (self.chi_square / points).clamp(min=floor).log()

    @property
    def r_squared(self) -> Float[Tensor, "*batch"]:
        """R² = 1 − Σ(y − model)²/Σ(y − mean y)² over the points that count, sigma left out: lmfit's definition.
        With errors of t at the measured t.

        Raises:
            ProblemError: what the model reads has changed since the fit.
        """
        check_as_fitted(self.fitted, self.chi_square, "r_squared")

        def of_one(one: One) -> Tensor:
            recipe = self.fitted.recipe
            missed = (
                flat(recipe.model(recipe.p_of(one.free, one.held), recipe.t_of(one.t))).reshape(one.y.shape) - one.y
            )
            zero = torch.zeros_like(one.y)
            about = one.y - torch.where(one.used, one.y, zero).sum() / one.used.sum()
            left, all_of_it = (torch.where(one.used, part, zero).square().sum() for part in (missed, about))
            return 1 - left / all_of_it.clamp(min=torch.finfo(one.y.dtype).tiny)

        return self.fitted.each(of_one)

    @property
    def correlation(self) -> Float[Tensor, "*batch n n"]:
        """Of the parameters; NaN where a standard error is zero or infinite."""
        deviation = self.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        return self.covariance / (deviation[..., :, None] * deviation[..., None, :])

    @property
    def _parameters(self) -> Parameters:
        return self.fitted.recipe.parameters
