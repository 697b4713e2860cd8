"""Powers of zero and of complex numbers have the derivatives that differences have, which PyTorch's have not."""

import itertools

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

import mslsq
from mslsq.tracing.replacements.powers import float_power, is_critical, power

F64 = torch.float64
NESTED = list(itertools.product((jacfwd, jacrev), repeat=2))
T = torch.linspace(0, 2, 20, dtype=F64)
Y = 1.3 * T**1.6 / (0.8 + T**1.6) + 0.02 * torch.sin(9 * T)


def number(x):
    return torch.tensor(x, dtype=F64)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 3.7, 5.0, -1.0])
@pytest.mark.parametrize("base", [0.0, 0.7, 2.0])
def test_a_power_has_pytorchs_value_and_first_derivatives(base, exponent):
    b, e = number([base, 0.3]), number([exponent, 1.1])
    assert torch.equal(power(b, e), torch.pow(b, e))
    assert torch.equal(float_power(b.float(), e.float()), torch.float_power(b.float(), e.float()))
    if torch.pow(b, e).isinf().any():
        return  # no number, of which derivatives are infinite or NaN
    for argnums, derivative in itertools.product((0, 1), (jacfwd, jacrev)):
        own = derivative(power, argnums)(b, e)
        torch.testing.assert_close(own, derivative(torch.pow, argnums)(b, e), equal_nan=True)


@pytest.mark.parametrize("nesting", NESTED, ids=lambda n: f"{n[0].__name__} of {n[1].__name__}")
def test_second_derivatives_of_a_power_of_zero_are_numbers(nesting):
    outer, inner = nesting
    for e, in_base in ((1.0, 0.0), (2.0, 2.0), (3.0, 0.0), (3.7, 0.0), (1.5, float("inf"))):
        assert outer(inner(lambda b, e=e: power(b, number(e))))(number(0.0)) == in_base
        assert outer(inner(lambda e: power(number(0.0), e)))(number(e)) == 0
    away = number([0.7, 1.3])
    torch.testing.assert_close(
        vmap(outer(inner(lambda e: power(number(0.7), e))))(away), 0.7**away * number(0.7).log() ** 2
    )


@pytest.mark.parametrize("nesting", NESTED, ids=lambda n: f"{n[0].__name__} of {n[1].__name__}")
def test_a_complex_base_to_an_exponent_that_moves_is_differentiated(nesting):
    z, h = torch.complex(number([0.3, 0.7]), number([0.2, -0.5])), 1e-3

    def length(e):
        return torch.view_as_real(power(z, e)).square().sum() ** 0.5

    at, (outer, inner) = number(0.7), nesting
    assert torch.allclose(power(z, at), torch.pow(z, at))
    first, second = (
        (length(at + h) - length(at - h)) / (2 * h),
        (length(at + h) - 2 * length(at) + length(at - h)) / h**2,
    )
    torch.testing.assert_close(inner(length)(at), first, rtol=1e-5, atol=0)
    torch.testing.assert_close(outer(inner(length))(at), second, rtol=1e-5, atol=0)


def test_only_powers_of_zero_and_complex_ones_are_looked_after():
    assert is_critical(T, number(0.5)) and is_critical(T.to(torch.complex128), number(0.5))
    assert not is_critical(T + 1, number(0.5)) and not is_critical(T, 2) and not is_critical(T, torch.tensor(2))


MODELS = {
    "Hill": (lambda p, t, y: p[0] * t ** p[1] / (p[2] + t ** p[1]) - y, number([1.2, 1.7, 0.9])),
    "allometry": (lambda p, t, y: p[0] * torch.pow(t, p[1]) + p[2] - y, number([1.0, 0.7, 0.1])),
    "sinc": (lambda p, t, y: p[0] * torch.sinc(p[1] * t) + p[2] - y, number([-1.0, 0.4, 1.0])),
    "impedance": (lambda p, t, y: p[0] / (1 + (1j * (t + 0.1) * p[1]) ** p[2]) - y, number([1.0, 1.0, 0.8])),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_and_its_derivative_in_the_data_are_right(name):
    residual, start = MODELS[name]
    solver = mslsq.LevenbergMarquardt(ftol=1e-14, xtol=1e-12, gtol=1e-12)

    def fitted(y):
        return mslsq.least_squares(residual, start, args=(T, y), solver=solver).value

    along, h, y = torch.cos(3 * T), 1e-4, Y.clone().requires_grad_()
    x = fitted(y)
    slopes = torch.stack([torch.autograd.grad(one, y, retain_graph=True)[0] @ along for one in x])
    differences = (fitted(Y + h * along) - fitted(Y - h * along)) / (2 * h)
    torch.testing.assert_close(slopes, differences, rtol=1e-4, atol=1e-5)
