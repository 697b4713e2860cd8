"""Special functions that PyTorch takes for constants have the derivatives of SciPy's, in every mode and nesting."""

import math

import numpy as np
import pytest
import scipy.special
import torch
from torch.func import grad, jacfwd, jacrev, vmap

import mslsq
from mslsq.tracing.capture import capture
from mslsq.tracing.replacements.special import BESSEL, FUNCTIONS, ORDER, POLYNOMIALS

F64 = torch.float64
X = torch.tensor([0.01, 0.3, 0.99, 1.01, 2.4, 4.3], dtype=F64)


def scaled(order):
    def derivative(x, k):
        return np.exp(x) * sum(math.comb(k, j) * scipy.special.kvp(order, x, j) for j in range(k + 1))

    return derivative


EXACT = {
    "bessel_j0": lambda x, k: scipy.special.jvp(0, x, k),
    "bessel_j1": lambda x, k: scipy.special.jvp(1, x, k),
    "bessel_y0": lambda x, k: scipy.special.yvp(0, x, k),
    "bessel_y1": lambda x, k: scipy.special.yvp(1, x, k),
    "modified_bessel_i0": lambda x, k: scipy.special.ivp(0, x, k),
    "modified_bessel_i1": lambda x, k: scipy.special.ivp(1, x, k),
    "modified_bessel_k0": lambda x, k: scipy.special.kvp(0, x, k),
    "modified_bessel_k1": lambda x, k: scipy.special.kvp(1, x, k),
    "scaled_modified_bessel_k0": scaled(0),
    "scaled_modified_bessel_k1": scaled(1),
}
NESTED = [(outer, inner) for outer in (jacfwd, jacrev) for inner in (jacfwd, jacrev)]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("order", range(ORDER + 1))
def test_bessel_functions_have_the_derivatives_of_scipys(name, order):
    function = BESSEL[name]
    for _ in range(order):
        function = grad(function)
    expected = torch.from_numpy(EXACT[name](X.numpy(), order))
    # The values of PyTorch's own J and Y are off by some 1e-8 (torch 2.13).
    torch.testing.assert_close(vmap(function)(X), expected, rtol=1e-7, atol=3e-8)


@pytest.mark.parametrize("name", ["bessel_j0", "bessel_j1", "spherical_bessel_j0", "modified_bessel_i0"])
def test_functions_that_are_smooth_at_zero_have_derivatives_there(name):
    function = BESSEL[name]
    at, h = torch.tensor(0.0, dtype=F64), 1e-3
    steps = [getattr(torch.special, name)(at + k * h) for k in (-1, 0, 1)]
    torch.testing.assert_close(grad(function)(at), (steps[2] - steps[0]) / (2 * h), rtol=1e-6, atol=1e-9)
    second = (steps[2] - 2 * steps[1] + steps[0]) / h**2
    for outer, inner in NESTED:
        torch.testing.assert_close(outer(inner(function))(at), second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [*BESSEL, *POLYNOMIALS])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_what_stands_for_a_function_has_its_values_and_one_second_derivative_in_every_nesting(name, dtype):
    degrees = (3,) if name in POLYNOMIALS else ()
    function, x = getattr(torch.special, name), X.to(dtype)
    own = FUNCTIONS[function]
    close = 1e-9 if dtype == F64 else 1e-4
    torch.testing.assert_close(own(x, *degrees), function(x, *degrees), rtol=close, atol=close)
    nested = [vmap(outer(inner(lambda z: own(z, *degrees).sum())))(x[:, None]) for outer, inner in NESTED]
    for one in nested:
        torch.testing.assert_close(one, nested[0], rtol=close, atol=close)
    assert nested[0].abs().max() > 1e-3


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_of_every_degree_have_the_derivatives_of_differences(name):
    own, theirs, h = POLYNOMIALS[name], getattr(torch.special, name), 1e-4
    x = torch.linspace(-1, 1, 7, dtype=F64)
    for degree in (-1, 0, 1, 2, 6, 1.4, torch.arange(-1, 6), torch.tensor(3), torch.tensor([2.0], dtype=F64)):
        at = x[:, None] if isinstance(degree, torch.Tensor) and degree.ndim else x
        torch.testing.assert_close(own(at, degree), theirs(at, degree), rtol=1e-10, atol=1e-10)
        slope = torch.func.jvp(lambda z, degree=degree: own(z, degree), (at,), (torch.ones_like(at),))[1]
        differences = (theirs(at + h, degree) - theirs(at - h, degree)) / (2 * h)
        torch.testing.assert_close(slope, differences, rtol=1e-4, atol=1e-4)
    assert torch.equal(own(2.0, torch.arange(3)), theirs(2.0, torch.arange(3)))


def test_degrees_beyond_those_of_a_recording_are_no_number():
    x, degrees = torch.tensor([0.3, 0.5], dtype=F64), torch.arange(4)

    def basis(x, degrees):
        return torch.special.legendre_polynomial_p(x[:, None], degrees)

    recorded = capture(basis, (x, degrees), name="basis")
    torch.testing.assert_close(recorded(x, degrees.flip(0)), basis(x, degrees.flip(0)))
    assert recorded(x, degrees + 1)[:, 3].isnan().all() and recorded(x, degrees + 1)[:, :3].isfinite().all()


def fitted(residual, start, y):
    solution = mslsq.least_squares(residual, start, args=(y,))
    assert bool(solution.converged)
    return solution.value


T = torch.linspace(0.2, 5, 25, dtype=F64)
DEGREES = torch.arange(3)
MODELS = {
    "bessel_j0": lambda p, t: p[0] * torch.special.bessel_j0(p[1] * t),
    "bessel_y1": lambda p, t: p[0] * torch.special.bessel_y1(p[1] + t),
    "k0": lambda p, t: p[0] * torch.special.modified_bessel_k0(p[1] * t),
    "legendre": lambda p, t: p[0] * torch.special.legendre_polynomial_p(p[1] * t / 5, 3),
    "a basis": lambda p, t: torch.special.hermite_polynomial_he(p[1] + t[:, None] / 5, DEGREES) @ p[[0, 0, 0]],
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_of_a_special_function_and_its_derivative_in_the_data_are_right(name):
    model, true = MODELS[name], torch.tensor([1.7, 0.8], dtype=F64)
    y = model(true, T) + 0.02 * torch.sin(7 * T)
    start = torch.tensor([1.5, 0.7], dtype=F64)

    def residual(p, y):
        return model(p, T) - y

    best = scipy.optimize.least_squares(
        lambda p: residual(torch.from_numpy(p), y).numpy(), start.numpy(), xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    torch.testing.assert_close(fitted(residual, start, y), torch.from_numpy(best.x), rtol=1e-5, atol=1e-6)
    along, h = torch.cos(3 * T), 1e-4
    moved = [fitted(residual, start, y + sign * h * along) for sign in (1, -1)]
    with_graph = y.clone().requires_grad_()
    x = fitted(residual, start, with_graph)
    slopes = [torch.autograd.grad(one, with_graph, retain_graph=True)[0] @ along for one in x]
    torch.testing.assert_close(torch.stack(slopes), (moved[0] - moved[1]) / (2 * h), rtol=2e-4, atol=1e-6)
