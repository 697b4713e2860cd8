"""Counts: R's published numbers for Dobson's trial, SciPy's maximum of the likelihood, and the residual itself."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

import mslsq
from mslsq.front.fits.poisson import deviance_residual

D = torch.float64
T = torch.linspace(0, 5, 40, dtype=D)


def decay(p: dict, t: Tensor) -> Tensor:
    return p["a"] * torch.exp(-p["rate"] * t) + p["c"]


def counted(*batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    mean = 60 * torch.exp(-1.1 * T) + 2
    return torch.poisson(mean.expand(*batch, -1), generator=generator)


P0 = {"a": 40.0, "rate": 1.0, "c": 3.0}


def test_dobsons_trial_is_rs() -> None:
    """`example(glm)` of R: counts by outcome and treatment (Dobson 1990, page 93), family = poisson()."""
    counts = torch.tensor([18, 17, 15, 20, 10, 20, 25, 13, 12], dtype=D)
    outcome, treatment = torch.arange(9) % 3, torch.arange(9) // 3
    columns = [torch.ones(9), outcome == 1, outcome == 2, treatment == 1, treatment == 2]
    design = torch.stack([column.to(D) for column in columns], 1)
    start = torch.tensor([2.0, 0, 0, 0, 0], dtype=D)
    fit = mslsq.curve_fit(lambda p, x: torch.exp(x @ p), design, counts, start, noise="poisson")
    np.testing.assert_allclose(fit.value, [3.045, -0.4543, -0.2930, 0, 0], atol=6e-4)
    np.testing.assert_allclose(fit.standard_errors, [0.1709, 0.2022, 0.1927, 0.2, 0.2], atol=6e-5)
    assert float(fit.chi_square) == pytest.approx(5.1291, abs=6e-5)
    # R's AIC, 56.76, has the likelihood of the saturated model in it.
    saturated = sum(y * math.log(y) - y - math.lgamma(y + 1) for y in counts.tolist())
    assert float(fit.aic) - 2 * saturated == pytest.approx(56.76, abs=6e-3)


def test_values_and_errors_are_those_of_the_likelihood() -> None:
    y = counted()
    assert bool((y == 0).any())
    fit = mslsq.curve_fit(decay, T, y, P0, noise="poisson")
    t, counts = T.numpy(), y.numpy()

    def negative(p: np.ndarray) -> float:
        mean = p[0] * np.exp(-p[1] * t) + p[2]
        return float((mean - counts * np.log(mean)).sum())

    found = optimize.minimize(negative, [60, 1.1, 2], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-13})
    value = np.array([float(fit.value[name]) for name in ("a", "rate", "c")])
    np.testing.assert_allclose(value, found.x, rtol=1e-6)
    a, rate, c = value
    decayed = np.exp(-rate * t)
    gradient = np.stack([decayed, -a * t * decayed, np.ones_like(t)], 1)
    information = gradient.T @ (gradient / (a * decayed + c)[:, None])
    np.testing.assert_allclose(fit.covariance, np.linalg.inv(information), rtol=1e-6)
    assert "deviance" in fit.report() and "those of counts" in fit.report()


def test_a_profile_is_where_the_deviance_has_risen_by_the_quantile() -> None:
    fit = mslsq.curve_fit(decay, T, counted(), P0, noise="poisson")
    lower, upper = fit.confidence_interval(method="profile")
    for end in (lower, upper):
        held = mslsq.curve_fit(decay, T, counted(), P0, noise="poisson", fixed={"rate": end["rate"]})
        assert float(held.chi_square - fit.chi_square) == pytest.approx(1.959963984540054**2, rel=1e-8)


def test_batches_missing_points_and_maps_are_the_fits_one_by_one() -> None:
    y = counted(3)
    y[1, 5] = torch.nan
    fits = mslsq.curve_fit(decay, T, y, P0, noise="poisson", in_dims=(None, 0, None))
    mapped = torch.func.vmap(lambda y: mslsq.curve_fit(decay, T, y, P0, noise="poisson"))(y)
    for number in range(3):
        keep = ~y[number].isnan()
        alone = mslsq.curve_fit(decay, T[keep], y[number][keep], P0, noise="poisson")
        for other in (fits.of_problem(number), mapped.of_problem(number)):
            torch.testing.assert_close(other.covariance, alone.covariance, rtol=1e-6, atol=1e-12)
            torch.testing.assert_close(other.chi_square, alone.chi_square)


def test_a_band_for_new_counts_has_their_variance() -> None:
    fit = mslsq.curve_fit(decay, T, counted(), P0, noise="poisson")
    curve, new = fit.predict(T), fit.predict(T, band="prediction")
    q = 1.959963984540054
    torch.testing.assert_close((new.upper - new.mean) ** 2, (curve.upper - curve.mean) ** 2 + q**2 * curve.mean)


def test_the_residual_squared_is_the_deviance_and_smooth() -> None:
    counts = torch.tensor([1.0, 7.0, 500.0, 0.0], dtype=D)[:, None]
    mean = counts.clamp(min=1) * torch.tensor([1e-3, 0.5, 0.97, 0.99, 1.019, 1.021, 1.5, 40.0], dtype=D)
    safe = counts.clamp(min=1e-300)
    expected = 2 * (counts * torch.log(safe / mean) * (counts > 0) - counts + mean)
    torch.testing.assert_close(deviance_residual(mean, counts).square(), expected, rtol=1e-9, atol=1e-12)
    at = torch.tensor([4.0], dtype=D)
    jet = [deviance_residual(at, at)]
    slope = torch.func.grad(lambda m: deviance_residual(m, at).sum())
    curvature = torch.func.grad(lambda m: slope(m).sum())
    jet += [slope(at), curvature(at)]
    # r = √y (u − u²/3 + ...), u = (μ − y)/y
    torch.testing.assert_close(torch.cat(jet), torch.tensor([0.0, 0.5, -2 / 3 * 2 / 16], dtype=D))
    for mean in (4 * 1.02 * (1 - 1e-9), 4 * 1.02 * (1 + 1e-9)):  # on both sides of the border of the series
        torch.testing.assert_close(
            slope(torch.tensor([mean], dtype=D)), (1 - at / mean) / deviance_residual(torch.tensor([mean], dtype=D), at)
        )


def test_derivatives_are_those_of_differences() -> None:
    y = counted() + 0.5

    def outcome(y: Tensor) -> Tensor:
        fit = mslsq.curve_fit(decay, T, y, P0, noise="poisson")
        return torch.stack([fit.value["rate"], fit.standard_errors["rate"]])

    step = torch.zeros_like(y)
    step[3] = 1e-3
    numeric = (outcome(y + step) - outcome(y - step)) / 2e-3
    torch.testing.assert_close(torch.func.jacrev(outcome)(y)[:, 3], numeric, rtol=1e-5, atol=1e-9)


def test_sigma_and_unknown_kinds_are_refused() -> None:
    with pytest.raises(mslsq.ProblemError, match="leave sigma out"):
        mslsq.curve_fit(decay, T, counted(), P0, sigma=1.0, noise="poisson")
    with pytest.raises(mslsq.ProblemError, match="Did you mean 'poisson'"):
        mslsq.curve_fit(decay, T, counted(), P0, noise="poison")
