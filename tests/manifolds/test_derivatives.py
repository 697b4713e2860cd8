"""First and second derivatives at the identity, near it, across the switch from series to closed form, and near pi."""

import math

import numpy as np
import pytest
import torch
from lie_reference import ANGLE, GROUPS, POINT_DIM, directional_derivative, tangent_at
from torch.func import jacfwd, jacrev, vmap

from mslsq.manifolds import UnitVector

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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(8)
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


@pytest.mark.sampled(2)
@every_group
def test_second_derivatives_at_exactly_pi_are_finite(group):
    x = tangents(group, [math.pi])[0]
    for name, (f, size) in operations(group).items():
        for nesting, second in SECOND.items():
            assert second(f)(torch.zeros(size, dtype=x.dtype), x).isfinite().all(), (name, nesting)


@pytest.mark.sampled(2)
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


@every_manifold
def test_a_gradient_of_a_squared_distance_is_zero_where_it_vanishes(manifold):
    # the norm itself has no derivative there; its square has, if nothing inside takes a root of zero
    a = manifold.random(dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    zero = torch.zeros(manifold.tangent_dim, dtype=torch.float64, requires_grad=True)
    (a.retract(zero).local(a) ** 2).sum().backward()
    assert (zero.grad.abs() <= 1e-15).all()


def test_the_angle_is_smooth_where_the_real_part_changes_sign():
    # At half a turn q flips to -q; a derivative on either side is that of its own branch, and neither is NaN.
    for group in (g for g in GROUPS if POINT_DIM[g] == 3):
        for angle in (math.pi - 1e-9, math.pi, math.pi + 1e-9):
            x = tangent_at(group, angle, torch.Generator().manual_seed(7))
            y = group.exp(x)
            inverse = jacfwd(lambda d, y=y: y.retract(d).log())(torch.zeros(group.tangent_dim, dtype=torch.float64))
            assert inverse.isfinite().all()
            assert (y.log()[ANGLE[group]].norm() - math.pi).abs() <= 1.1e-9
