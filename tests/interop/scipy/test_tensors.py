"""SciPy's curve_fit and ours of the same name take the same arguments and return the same numbers."""

import inspect

import numpy as np
import pytest
import torch
from scipy.optimize import curve_fit as original

import mslsq
from mslsq.interop.scipy import curve_fit

X = np.linspace(0, 4, 30)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.05 * np.random.default_rng(0).normal(size=30)
EACH = np.linspace(0.03, 0.07, 30)


def numpy_decay(x, a, b, c):
    return a * np.exp(-b * x) + c


def decay(x, a, b, c):
    return a * torch.exp(-b * x) + c


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"p0": [2.0, 1.0, 0.0]},
        {"sigma": EACH},
        {"sigma": EACH, "absolute_sigma": True},
        {"sigma": np.diag(EACH**2) + 1e-4, "absolute_sigma": True},
        {"bounds": (-np.inf, np.inf)},
    ],
)
def test_the_numbers_are_scipys(options: dict) -> None:
    value, covariance = original(numpy_decay, X, Y, xtol=1e-14, ftol=1e-14, **options)
    popt, pcov = curve_fit(decay, X, Y, **options)
    assert isinstance(popt, torch.Tensor) and popt.dtype == torch.float64
    np.testing.assert_allclose(popt, value, rtol=1e-6)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-5)


def test_arguments_by_position_are_in_scipys_order() -> None:
    ours = [name for name, p in inspect.signature(curve_fit).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    theirs = list(inspect.signature(original).parameters)
    assert ours == theirs[: len(ours)]
    positional = (decay, X, Y, [1.0, 1.0, 1.0], EACH, True)
    popt, pcov = curve_fit(*positional)
    value, covariance = original(numpy_decay, *positional[1:])
    np.testing.assert_allclose(popt, value, rtol=1e-5)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-4)


def test_missing_points_are_an_error_or_left_out_as_in_scipy() -> None:
    y = Y.copy()
    y[4] = np.nan
    with pytest.raises(ValueError, match=r"y has 1 entries .* at \[4\]: nan"):
        curve_fit(decay, X, y)
    popt, _ = curve_fit(decay, X, y, nan_policy="omit")
    value, _ = original(numpy_decay, X, y, nan_policy="omit", xtol=1e-14, ftol=1e-14)
    np.testing.assert_allclose(popt, value, rtol=1e-6)


def test_integers_are_numbers_and_one_parameter_is_a_vector() -> None:
    popt, pcov = curve_fit(lambda x, a: a * x, [1, 2, 3], [2, 4, 7])
    value, covariance = original(lambda x, a: a * x, [1, 2, 3], [2, 4, 7])
    np.testing.assert_allclose(popt, value, rtol=1e-7)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-6)
    assert popt.shape == (1,) and pcov.shape == (1, 1)


def test_the_whole_fit_comes_with_full_output() -> None:
    popt, _, fit = curve_fit(decay, X, Y, full_output=True)
    assert isinstance(fit, mslsq.CurveFit) and torch.equal(fit.value, popt)
    assert "p[2]" in fit.report()


def test_it_is_mapped_and_differentiated() -> None:
    y = torch.tensor(Y).expand(2, -1) + torch.tensor([[0.0], [0.1]])
    values = torch.func.vmap(lambda y: curve_fit(decay, X, y)[0])(y)
    torch.testing.assert_close(values[1] - values[0], torch.tensor([0.0, 0.0, 0.1]).double(), atol=1e-7, rtol=0)
    jacobian = torch.func.jacrev(lambda y: curve_fit(decay, X, y)[0])(y[0])
    torch.testing.assert_close(jacobian.sum(1), torch.tensor([0.0, 0.0, 1.0]).double(), atol=1e-6, rtol=0)
    with pytest.raises(mslsq.ProblemError, match="NaN"):
        torch.func.vmap(lambda y: curve_fit(decay, X, y)[0])(y.where(y < 2, torch.nan))


def test_what_cannot_be_known_is_asked_for() -> None:
    with pytest.raises(mslsq.ProblemError, match="give p0"):
        curve_fit(lambda x, *p: p[0] * x, X, Y)
    with pytest.raises(mslsq.ProblemError, match="Did you mean 'omit'"):
        curve_fit(decay, X, Y, nan_policy="omits")
