"""`curve_fit` on NumPy functions, and the rule by which a model is one of tensors."""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import mslsq
from mslsq.interop.scipy import curve_fit

X = np.linspace(0, 4, 30)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.05 * np.random.default_rng(0).normal(size=30)
EACH = np.linspace(0.03, 0.07, 30)


def decay(x, a, b, c):
    return a * np.exp(-b * x) + c


def slopes(x, a, b, c):
    e = np.exp(-b * x)
    return np.stack([e, -a * x * e, np.ones_like(x)], 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"jac": slopes},
        {"method": "trf", "jac": "3-point"},
        {"method": "dogbox"},
        {"sigma": EACH},
        {"sigma": EACH, "absolute_sigma": True, "jac": slopes},
        {"sigma": np.diag(EACH**2) + 1e-4, "absolute_sigma": True, "jac": slopes},
        {"sigma": 0.1, "absolute_sigma": True},
        {"bounds": (0, 3)},
        {"bounds": ([0, 0, 0], [2.2, 3, 1])},
        {"maxfev": 50, "epsfcn": 1e-12, "diag": (1, 2, 3), "factor": 10},
    ],
)
def test_the_numbers_are_scipys(options):
    exact = {k: v for k, v in options.items() if k not in ("maxfev", "epsfcn", "diag", "factor")}
    if np.ndim(exact.get("sigma", EACH)) == 0:  # SciPy's own fails at a number where jac is given
        exact["sigma"] = np.full(30, exact["sigma"])
    value, covariance = scipy.optimize.curve_fit(decay, X, Y, **{"jac": slopes, "ftol": 1e-14, "xtol": 1e-14, **exact})
    popt, pcov, information, message, number = curve_fit(decay, X, Y, full_output=True, **options)
    assert type(popt) is np.ndarray and number in (1, 2, 3, 4) and message
    np.testing.assert_allclose(popt, value, rtol=2e-5 if "epsfcn" in options else 1e-6)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-4)
    assert information["fvec"].shape == (30,) and information["nfev"] < 30


def test_the_factor_in_the_dictionary_is_that_of_the_jacobian():
    popt, _, information, _, _ = curve_fit(decay, X, Y, jac=slopes, full_output=True)
    triangle = np.triu(information["fjac"].T[:3])
    jacobian = slopes(X, *popt)[:, information["ipvt"]]
    np.testing.assert_allclose(triangle.T @ triangle, jacobian.T @ jacobian, rtol=1e-6)
    np.testing.assert_allclose(triangle.T @ information["qtf"], jacobian.T @ information["fvec"], atol=1e-8)


def test_units_of_the_data_change_nothing():
    """SciPy's gradient is below 1e-8 at the start, whatever is fitted: the start comes back."""
    popt, pcov = curve_fit(decay, X, Y, bounds=(0, 3))
    small, of_small = curve_fit(lambda x, *p: 1e-9 * decay(x, *p), X, 1e-9 * Y, p0=[1.5, 1.5, 1.5], bounds=(0, 3))
    np.testing.assert_allclose(small, popt, rtol=1e-5)
    np.testing.assert_allclose(of_small, pcov, rtol=1e-3)


def test_a_model_of_tensors_gives_tensors():
    def of_tensors(x, a, b, c):
        return a * torch.exp(-b * x) + c

    expected = curve_fit(decay, X, Y)[0]
    plain = curve_fit(lambda x, a, b, c: a * 2.0 ** (-b * x) + c, torch.tensor(X), Y)[0]  # by its data
    asked = curve_fit(of_tensors, X, Y)[0]  # because torch.exp refuses an array
    made = curve_fit(lambda x, a, b, c: of_tensors(torch.as_tensor(x), a, b, c), X, Y)[0]  # by what it returns
    named = curve_fit(of_tensors, X, Y, solver=mslsq.Dogleg())[0]
    for popt in (plain, asked, made, named):
        assert isinstance(popt, torch.Tensor)
    for popt in (asked, made, named):
        np.testing.assert_allclose(popt, expected, rtol=1e-6)


def test_options_of_the_other_kind_of_model_are_refused():
    with pytest.raises(mslsq.ProblemError, match=r"method, max_nfev= is for models of NumPy arrays.*max_steps"):
        curve_fit(decay, torch.tensor(X), Y, method="trf", max_nfev=3)


def test_errors_of_a_model_are_its_own():
    def wrong(x, a):
        raise TypeError("not today")

    with pytest.raises(TypeError, match="not today"):
        curve_fit(wrong, X, Y)


def test_a_fit_that_does_not_converge_raises():
    with pytest.raises(RuntimeError, match=r"Optimal parameters not found: Number of calls .* maxfev = 3\."):
        curve_fit(decay, X, Y, maxfev=3)


def test_what_cannot_be_estimated_is_infinite():
    with pytest.warns(scipy.optimize.OptimizeWarning, match="could not be estimated"):
        _, pcov = curve_fit(lambda x, a, b: a * x, X, Y)
    assert np.isinf(pcov).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve_fit(decay, X, Y)


def test_numbers_below_a_mask_are_not_fitted():
    """SciPy's own takes them for data, without a word."""
    hidden: Any = np.ma.masked_array(np.where(X > 3, -9999.0, Y), X > 3)
    with pytest.raises(ValueError, match=r"ydata\[~ydata\.mask\]"):
        curve_fit(decay, X, hidden)
    with pytest.raises(mslsq.errors.DtypeError, match=r"mask=torch\.as_tensor\(~np\.ma\.getmaskarray\(y\)\)"):
        mslsq.curve_fit(lambda x, p: p[0] * torch.exp(-p[1] * x) + p[2], torch.from_numpy(X), hidden, torch.ones(3))
    unmasked = curve_fit(decay, X, np.ma.masked_array(Y))[0]
    np.testing.assert_allclose(unmasked, curve_fit(decay, X, Y)[0], rtol=1e-12)
