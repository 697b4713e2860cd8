"""First and second derivatives at the identity, near it, across the switch from series to closed form, and near pi."""

import math

import mpmath
import numpy as np
import pytest
import torch
from lie_reference import ANGLE, GROUPS, POINT_DIM, directional_derivative, tangent_at
from torch.func import grad, jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.manifolds import Sim2, Sim3, UnitVector, series, similarity

every_group = pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.__name__)
every_manifold = pytest.mark.parametrize("manifold", (*GROUPS, UnitVector), ids=lambda g: g.__name__)
# 0.5 is where the groups change from series to closed form; 0.25 where a unit vector's retraction does.
PLACES = (0.0, 1e-12, 1e-9, 1e-4, 0.2499, 0.2501, 0.4999, 0.5001, 1.0, 3.0, math.pi - 1e-6)
STEP = 2e-4
SECOND = {
    "jacfwd(jacfwd)": lambda f: jacfwd(jacfwd(f)),
    "jacfwd(jacrev)": lambda f: jacfwd(jacrev(f)),
    "jacrev(jacfwd)": lambda f: jacrev(jacfwd(f)),
    "jacrev(jacrev)": lambda f: jacrev(jacrev(f)),
}


def operations(manifold, dtype=torch.float64):
    """name -> (function of (change, tangent vector x), size of the change): every operation, changed about x."""
    generator = torch.Generator().manual_seed(1)
    a, b = (manifold.random(generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    n = manifold.tangent_dim

    # The point that x leads to is not changed; on the sphere only tangential changes have a meaning.
    def at(x):
        return a.retract(x)

    common = {
        "retract": (lambda d, x: a.retract(x + d).storage, n),
        "local to": (lambda d, x: a.local(at(x).retract(d)), n),
        "local from": (lambda d, x: a.retract(d).local(at(x)), n),
    }
    if manifold is UnitVector:
        return common
    points = torch.randn(2, POINT_DIM[manifold], generator=generator, dtype=torch.float64).to(dtype)
    return common | {
        "exp": (lambda d, x: manifold.exp(x + d).storage, n),
        "log": (lambda d, x: manifold.exp(x).retract(d).log(), n),
        "log of storage": (lambda d, x: manifold._wrap(manifold.exp(x).storage + d).log(), manifold.storage_dim),
        "compose": (lambda d, x: (a.retract(x + d) @ b.retract(-d)).storage, n),
        "inverse": (lambda d, x: a.retract(x + d).inverse().storage, n),
        "act": (lambda d, x: manifold.exp(x + d).act(points), n),
    }


def tangents(manifold, angles, dtype=torch.float64):
    """One tangent vector for each angle."""
    generator = torch.Generator().manual_seed(1)
    if manifold is UnitVector:
        x = torch.randn(len(angles), 2, generator=generator, dtype=torch.float64)
        x = torch.tensor(angles, dtype=torch.float64)[:, None] * x / x.norm(dim=-1, keepdim=True)
        return x.to(dtype)
    return torch.stack([tangent_at(manifold, angle, generator) for angle in angles]).to(dtype)


def central(f, size, x):
    """The derivative at no change by central differences of fourth order, for a batch of x; the change last."""
    columns = []
    for e in torch.eye(size, dtype=x.dtype):
        d = STEP * e
        near, below, far, beyond = (vmap(f, (None, 0))(k * d, x) for k in (1.0, -1.0, 2.0, -2.0))
        columns.append((8.0 * (near - below) - (far - beyond)) / (12.0 * STEP))
    return torch.stack(columns, -1)


@every_manifold
def test_derivatives_agree_with_finite_differences_in_every_nesting(manifold):
    angles = (0.0, 1e-9, 1e-4, 0.2499, 0.2501, 0.4999, 0.5001, 1.0, 3.0, math.pi - 1e-6)
    for name, (f, size) in operations(manifold).items():
        # Where the result is an angle, differences would step over pi; the sphere has no derivative there at all, and
        # already at 3 radians derivatives of order k grow like (pi - 3)^-k.
        left_out = 2 if manifold is UnitVector else 1 if "lo" in name else 0
        x = tangents(manifold, angles[: len(angles) - left_out])
        zero = torch.zeros(size, dtype=torch.float64)
        first = vmap(jacrev(f), (None, 0))(zero, x)
        # Truncation ~ STEP⁴ f⁽⁵⁾/30 with f⁽⁵⁾ up to 1e5 (inverse scales), rounding ~ 1e-15/STEP
        expected = central(f, size, x)
        scale = 1.0 + expected.abs().max()
        assert (first - expected).abs().max() <= 1e-10 * scale, name
        assert (vmap(jacfwd(f), (None, 0))(zero, x) - first).abs().max() <= 1e-13 * scale, name
        expected = central(jacrev(f), size, x)
        scale = 1.0 + expected.abs().max()
        for nesting, second in SECOND.items():
            mapped = vmap(second(f), (None, 0))(zero, x)
            assert (mapped - expected).abs().max() <= 1e-9 * scale, (name, nesting)
        for k in (0, 5):
            assert (jacfwd(jacrev(f))(zero, x[k]) - mapped[k]).abs().max() <= 1e-13 * scale, (name, "without vmap")


@every_group
@pytest.mark.parametrize("angle", PLACES)
def test_derivatives_of_exp_are_those_of_the_matrix_exponential_to_full_precision(group, angle):
    generator = torch.Generator().manual_seed(2)
    x = tangent_at(group, angle, generator)

    def f(d):
        return group.exp(d).matrix()

    first, second = jacfwd(f)(x), jacfwd(jacrev(f))(x)
    for _ in range(2):
        u, v = torch.randn(2, group.tangent_dim, generator=generator, dtype=torch.float64)
        np.testing.assert_allclose(first @ u, directional_derivative(group, x, [u]), rtol=0, atol=2e-14)
        # Above the switch second derivatives of the closed form lose a factor 1/0.25² = 16 times a few products.
        np.testing.assert_allclose(second @ u @ v, directional_derivative(group, x, [u, v]), rtol=0, atol=2e-13)


@every_group
def test_the_logarithm_undoes_the_exponential_in_every_derivative(group):
    x = tangents(group, PLACES)

    def f(d):
        return group.exp(d).log()

    eye = torch.eye(group.tangent_dim, dtype=torch.float64).expand(len(x), -1, -1)
    for first in (jacfwd, jacrev):
        torch.testing.assert_close(vmap(first(f))(x), eye, rtol=0, atol=2e-13)
    for nesting, second in SECOND.items():
        # zero; the parts that cancel are up to ten times the square of a translation of size 3
        assert vmap(second(f))(x).abs().max() <= 2e-12, nesting


@every_group
def test_second_derivatives_at_exactly_pi_are_finite(group):
    x = tangents(group, [math.pi])[0]
    for name, (f, size) in operations(group).items():
        for nesting, second in SECOND.items():
            assert second(f)(torch.zeros(size, dtype=x.dtype), x).isfinite().all(), (name, nesting)


@every_manifold
def test_single_precision_derivatives_are_finite_and_close(manifold):
    angles = (0.0, 1e-30, 1e-20, 1e-9, 1e-4, 0.2499, 0.2501, 0.4999, 0.5001, 1.0, 3.0, math.pi)
    single, double = operations(manifold, torch.float32), operations(manifold)
    for name, (f, size) in single.items():
        # The sphere's logarithm has no derivative at pi.
        x = tangents(manifold, angles[:-1] if manifold is UnitVector else angles, torch.float32)
        g, zero = double[name][0], torch.zeros(size)
        first = vmap(jacfwd(f), (None, 0))(zero, x)
        assert first.dtype == torch.float32
        assert first.isfinite().all(), name
        exact = vmap(jacfwd(g), (None, 0))(zero.double(), x.double())
        # At pi the two precisions may be on two sides of the jump. Else the same functions at 1.2e-7, not 2.2e-16.
        assert (first - exact)[:-1].abs().max() <= 3e-5 * (1.0 + exact.abs().max()), name
        exact = vmap(jacfwd(jacrev(g)), (None, 0))(zero.double(), x.double())
        for nesting, second in SECOND.items():
            value = vmap(second(f), (None, 0))(zero, x)
            assert value.dtype == torch.float32
            assert value.isfinite().all(), (name, nesting)
            assert (value - exact)[:-1].abs().max() <= 3e-4 * (1.0 + exact.abs().max()), (name, nesting)


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


@every_manifold
def test_a_gradient_of_a_squared_distance_is_zero_where_it_vanishes(manifold):
    # the norm itself has no derivative there; its square has, if nothing inside takes a root of zero
    a = manifold.random(dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    zero = torch.zeros(manifold.tangent_dim, dtype=torch.float64, requires_grad=True)
    (a.retract(zero).local(a) ** 2).sum().backward()
    assert (zero.grad.abs() <= 1e-15).all()


@every_group
def test_elements_pass_through_transforms_as_pytrees(group):
    a = group.random(5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    assert isinstance(vmap(lambda e: e.inverse())(a), group)
    torch.testing.assert_close(vmap(lambda e: (e @ e).log())(a), (a @ a).log())
    nested = vmap(vmap(lambda e, f: e.local(f), (None, 0)), (0, None))(a, a)
    torch.testing.assert_close(nested, a[:, None].local(a[None]))
    jacobian = jacfwd(lambda e: e.log())(a[0])
    assert isinstance(jacobian, group)  # as jacfwd of a dict gives a dict
    torch.testing.assert_close(jacrev(lambda e: e.log())(a[0]).storage, jacobian.storage)
    trace = make_fx(vmap(lambda e, d: e.retract(d)))(a, torch.zeros(5, group.tangent_dim, dtype=torch.float64))
    replayed = trace(a, 0.1 * torch.ones(5, group.tangent_dim, dtype=torch.float64))
    assert isinstance(replayed, group)
    torch.testing.assert_close(replayed.storage, a.retract(torch.full((group.tangent_dim,), 0.1).double()).storage)


@every_group
def test_a_traced_linearisation_equals_the_eager_one(group):
    def residual(d, a, b):
        return b.local(a.retract(d))

    generator = torch.Generator().manual_seed(6)
    a, b = group.random(2, 4, dtype=torch.float64, generator=generator)
    zero = torch.zeros(4, group.tangent_dim, dtype=torch.float64)
    for jacobian in (jacrev,) if group in (Sim2, Sim3) else (jacfwd, jacrev):  # tracing a similarity takes seconds
        linearise = vmap(jacobian(residual))
        trace = make_fx(linearise)(zero, b, a)  # traced elsewhere than replayed: no branch is baked in
        trace.graph.eliminate_dead_code()
        trace.recompile()
        torch.testing.assert_close(trace(zero, a, b), linearise(zero, a, b), rtol=0, atol=1e-14)


def test_the_angle_is_smooth_where_the_real_part_changes_sign():
    # At half a turn q flips to -q; a derivative on either side is that of its own branch, and neither is NaN.
    for group in (g for g in GROUPS if POINT_DIM[g] == 3):
        for angle in (math.pi - 1e-9, math.pi, math.pi + 1e-9):
            x = tangent_at(group, angle, torch.Generator().manual_seed(7))
            y = group.exp(x)
            inverse = jacfwd(lambda d, y=y: y.retract(d).log())(torch.zeros(group.tangent_dim, dtype=torch.float64))
            assert inverse.isfinite().all()
            assert (y.log()[ANGLE[group]].norm() - math.pi).abs() <= 1.1e-9
