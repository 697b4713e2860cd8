"""Fits of complex measurements: the same as of their real and imaginary parts."""

import pytest
import torch

import mslsq
from mslsq.interop import scipy

T = torch.linspace(0, 3, 24, dtype=torch.float64)
P0 = torch.tensor([1.0, 0.0, 1.8], dtype=torch.float64)
TRUE = torch.tensor([1.5, 0.5, 2.0], dtype=torch.float64)


def signal(p, t):
    return torch.complex(p[0], p[1]) * torch.exp(1j * p[2] * t)


def in_parts(p, t):
    return torch.view_as_real(signal(p, t))


def noisy(*batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = 0.05 * torch.randn(*batch, 24, dtype=torch.complex128, generator=generator)
    return signal(TRUE, T) + noise


SIGMA = torch.linspace(0.02, 0.1, 24, dtype=torch.float64)


@pytest.mark.parametrize("sigma", [None, 0.3, SIGMA])
def test_a_complex_fit_is_that_of_its_parts(sigma):
    fit = mslsq.curve_fit(signal, T, noisy(), P0, sigma=sigma)
    of_parts = sigma if not isinstance(sigma, torch.Tensor) else sigma[:, None].expand(-1, 2)
    parts = mslsq.curve_fit(in_parts, T, torch.view_as_real(noisy()), P0, sigma=of_parts)
    torch.testing.assert_close(fit.value, parts.value)
    torch.testing.assert_close(fit.covariance, parts.covariance)
    assert fit.num_points == 48 and float((fit.value - TRUE).abs().max()) < 0.1
    assert "48" in fit.report()
    assert fit.predict(T[:5]).mean.shape == (5, 2)


def test_standard_errors_hold():
    fits = mslsq.curve_fit(
        signal, T, noisy(400, seed=1), P0, sigma=0.05 / 2**0.5, absolute_sigma=True, in_dims=(None, 0, None)
    )
    scatter = ((fits.value - TRUE) / fits.standard_errors).square().mean(0)
    torch.testing.assert_close(scatter, torch.ones(3, dtype=torch.float64), atol=0.25, rtol=0)


def test_batches_masks_and_missing_points():
    y = noisy(3)
    y[1, 4] = complex(float("nan"), 0.0)
    used = torch.ones(24, dtype=torch.bool)
    used[7] = False
    fits = mslsq.curve_fit(signal, T, y, P0, sigma=SIGMA, mask=used, in_dims=(None, 0, None, None))
    assert fits.num_points.tolist() == [46, 44, 46]
    alone = mslsq.curve_fit(signal, T, y[2], P0, sigma=SIGMA, mask=used)
    torch.testing.assert_close(fits.value[2], alone.value)
    every = mslsq.curve_fit(signal, T.expand(3, -1), y, P0.expand(3, -1), sigma=SIGMA.expand(3, -1), in_dims=0)
    assert every.value.shape == (3, 3)


@pytest.mark.parametrize(
    "missing", [complex("nan"), float("nan"), complex(0.0, float("nan")), complex(1.0, float("nan"))]
)
def test_a_missing_point_has_no_part_that_counts(missing):
    """NaN put into a complex tensor is NaN + 0i, whose imaginary part would be a measurement of zero."""
    y = torch.where(T > 2.0, missing, signal(TRUE, T))
    fit = mslsq.curve_fit(signal, T, y, P0)
    assert fit.num_points == 2 * int((T <= 2.0).sum())
    torch.testing.assert_close(fit.value, TRUE)
    without = mslsq.curve_fit(signal, T, signal(TRUE, T), P0, mask=T <= 2.0)
    torch.testing.assert_close(fit.value, without.value)


def test_sets_of_which_some_are_complex():
    def model(p, t):
        return {"both": signal(p, t), "real": p[0] * t}

    y = {"both": noisy(), "real": TRUE[0] * T}
    fit = mslsq.curve_fit(model, T, y, P0, sigma={"both": SIGMA, "real": torch.ones_like(T)})
    assert fit.num_points == 72 and float((fit.value - TRUE).abs().max()) < 0.1


def test_a_real_model_of_complex_data_has_no_imaginary_part():
    fit = mslsq.curve_fit(lambda p, t: p[0] * t, T, 2 * T + 3j, torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(fit.value, torch.tensor([2.0], dtype=torch.float64))


def test_a_complex_model_of_real_data_is_told_what_to_return():
    y = signal(P0, T).real
    with pytest.raises(mslsq.errors.ProblemError, match=r"returned complex numbers, and y is real.*torch\.complex"):
        mslsq.curve_fit(signal, T, y, P0)
    fit = mslsq.curve_fit(lambda p, t: signal(p, t).real, T, y, P0)
    torch.testing.assert_close(fit.value, P0)


def test_derivatives_with_respect_to_complex_data():
    def amplitude(real, imag):
        return mslsq.curve_fit(signal, T, torch.complex(real, imag), P0).value

    y = noisy()
    assert torch.autograd.gradcheck(amplitude, (y.real.clone().requires_grad_(), y.imag.clone().requires_grad_()))
    mapped = torch.func.vmap(lambda y: mslsq.curve_fit(signal, T, y, P0).value)(noisy(2))
    torch.testing.assert_close(mapped[1], mslsq.curve_fit(signal, T, noisy(2)[1], P0).value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": torch.eye(24, dtype=torch.float64)}, "covariance matrix"),
        ({"sigma": torch.ones(24, dtype=torch.complex128)}, "sigma must be real"),
        ({"noise": "poisson"}, "complex y does not go with noise='poisson'"),
        ({"sigma_t": 0.1}, "complex y does not go with sigma_t"),
        ({"in_dims": -1}, "axes that are not negative"),
        ({"nan_policy": "raise"}, "y has 2 entries that are NaN"),
    ],
)
def test_what_does_not_go_is_said(options, message):
    y = noisy()
    if "nan_policy" in options:
        y[3] = float("nan")
    with pytest.raises(mslsq.ProblemError, match=message):
        mslsq.curve_fit(signal, T, y, P0, **options)


def test_scipys_order_of_arguments_keeps_the_imaginary_part():
    value, _ = scipy.curve_fit(lambda x, a, b, w: signal(torch.stack([a, b, w]), x), T, noisy(), P0)
    torch.testing.assert_close(value, mslsq.curve_fit(signal, T, noisy(), P0).value)
