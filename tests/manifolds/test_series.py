"""The scalar functions behind the groups, to full precision with two derivatives, across the switch to closed forms."""

import mpmath
import pytest
import torch
from torch.func import grad, jacfwd, vmap

from mslsq.manifolds import series, similarity


def _mp_derivative(f, x, order):
    with mpmath.workdps(150):
        h, x = mpmath.mpf(10) ** -20, mpmath.mpf(x)
        if order == 0:
            return f(x)
        if order == 1:
            return (f(x + h) - f(x - h)) / (2 * h)
        return (f(x + h) - 2 * f(x) + f(x - h)) / h**2


def _mean_motion(sigma, part):
    def f(t):
        z = mpmath.mpc(sigma, t)
        g = (mpmath.exp(z) - 1) / z
        real = (mpmath.exp(mpmath.mpf(sigma)) - 1) / mpmath.mpf(sigma)
        return g.imag / t if part == 1 else (real - g.real) / t**2

    return lambda t: similarity.translation_coefficients(torch.full_like(t, sigma), t * t, HALF(t * t / 4))[part], f


HALF = series.half_angle
FUNCTIONS = {
    # name: (ours, in mpmath, bound on the errors of the value and of two derivatives)
    "sinc": (lambda t: HALF(t * t).sinc, lambda t: mpmath.sin(t) / t, (3e-16, 1e-15, 1e-14)),
    "cosine": (lambda t: HALF(t * t).cosine, mpmath.cos, (3e-16, 1e-15, 1e-14)),
    "(θ - sin θ)/θ³": (
        lambda t: series.sine_remainder(HALF(t * t / 4)),
        lambda t: (t - mpmath.sin(t)) / t**3,
        (5e-16, 5e-15, 2e-14),
    ),
    # multiplied by x² where it is used, so an error of 16 · 16 eps in the second derivative is one of 16 eps there
    "(1 - x cot x)/x²": (
        lambda t: series.cotangent_remainder(HALF(t * t)),
        lambda t: (1 - t * mpmath.cot(t)) / t**2,
        (3e-15, 2e-14, 1e-12),
    ),
    "x/sin x": (
        lambda t: series.angle_ratios(t.sin() ** 2, t.cos())[0],
        lambda t: t / mpmath.sin(t),
        (1e-15, 3e-15, 2e-14),
    ),
    "(1 - x cot x)/x² of a direction": (
        lambda t: series.angle_ratios(t.sin() ** 2, t.cos())[1],
        lambda t: (1 - t * mpmath.cot(t)) / t**2,
        (3e-15, 2e-14, 1e-12),
    ),
    "(cos θ - 1 + θ²/2)/θ⁴": (
        lambda t: series.higher_remainders(HALF(t * t / 4))[1],
        lambda t: (mpmath.cos(t) - 1 + t * t / 2) / t**4,
        (3e-15, 2e-14, 1e-12),
    ),
    "(sin θ - θ + θ³/6)/θ⁵": (
        lambda t: series.higher_remainders(HALF(t * t / 4))[2],
        lambda t: (mpmath.sin(t) - t + t**3 / 6) / t**5,
        (3e-15, 2e-14, 1e-12),
    ),
    **{
        f"{'ABC'[part]}(σ = {sigma})": (*_mean_motion(sigma, part), (2e-15, 1e-14, 1e-13))
        for part in (1, 2)
        for sigma in (1e-9, 1e-3, 0.1, 0.4, -0.4999, 0.5001, -2.0)
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_has_no_dip_at_the_switch_from_series_to_closed_form(name):
    ours, exact, bounds = FUNCTIONS[name]
    places = (1e-9, 1e-4, 1e-2, 0.1, 0.2, 0.2499, 0.2501, 0.3, 0.4, 0.4999, 0.5001, 0.6, 1.0, 1.5)
    t = torch.tensor(places, dtype=torch.float64)
    derivatives = (vmap(ours)(t), vmap(grad(ours))(t), vmap(jacfwd(grad(ours)))(t))
    for order, (values, bound) in enumerate(zip(derivatives, bounds, strict=True)):
        for value, place in zip(values.tolist(), places, strict=True):
            assert abs(value - float(_mp_derivative(exact, place, order))) <= bound, (order, place)


def test_the_derivative_at_the_very_end_of_the_series_is_right():
    """There the closed form holds, and must see x²: in torch 2.15 the derivative of `clamp(min=)` at its limit is 0."""
    x2 = torch.tensor(series.THRESHOLD, dtype=torch.float64)
    x = x2.sqrt()
    expected = {"sinc": (x.cos() - x.sin() / x) / (2 * x2), "cosine": -x.sin() / (2 * x)}
    for name, slope in expected.items():
        assert torch.allclose(jacfwd(lambda z, name=name: getattr(HALF(z), name))(x2), slope, rtol=1e-12)
        assert torch.allclose(grad(lambda z, name=name: getattr(HALF(z), name))(x2), slope, rtol=1e-12)
