"""Robust losses: against closed forms, SciPy, finite differences and each other, at s = 0 and at 1e300."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize._lsq.least_squares import construct_loss_function
from torch.func import grad, jacfwd, jacrev, vmap

from mslsq import pytree
from mslsq.losses import Arctan, Barron, Cauchy, GemanMcClure, Huber, RobustLoss, SoftL1, Tukey, Welsch

ALPHAS = [-math.inf, -1e6, -2.0, -0.3, -1e-12, 0.0, 1e-12, 0.7, 1.0, 1.99999, 2.0]
PLAIN = [Huber, SoftL1, Cauchy, Arctan, Tukey, GemanMcClure, Welsch]
EVERY = [pytest.param(kind, id=kind.__name__) for kind in PLAIN] + [
    pytest.param(lambda scale=1.0, alpha=alpha: Barron(scale, alpha), id=f"Barron[{alpha}]") for alpha in ALPHAS
]
S = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-12, 8, 61, dtype=torch.float64)])


def closed_form(name, z):
    """ρ₁ in mpmath-free textbook form, in extended precision where the platform has it."""
    z = np.asarray(z, dtype=np.longdouble)
    return {
        "Huber": np.where(z <= 1, z, 2 * np.sqrt(z) - 1),
        "SoftL1": 2 * (np.sqrt(1 + z) - 1),
        "Cauchy": np.log1p(z),
        "Arctan": np.arctan(z),
        "Tukey": np.where(z <= 1, (1 - (1 - z) ** 3) / 3, np.longdouble(1) / 3),
        "GemanMcClure": z / (1 + z),
        "Welsch": -np.expm1(-z),
    }[name]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("scale", [0.3, 1.0, 40.0])
def test_rho_is_the_textbook_formula_scaled(kind, scale):
    want = scale**2 * closed_form(kind.__name__, S.numpy() / np.longdouble(scale) ** 2)
    # longdouble subtractions in the textbook forms leave 1e-19 absolute, so the relative bound starts at s = 1e-6
    np.testing.assert_allclose(kind(scale)(S).numpy(), want.astype(float), rtol=1e-12, atol=1e-18 * scale**2)


@pytest.mark.parametrize(
    ("kind", "name"), [(Huber, "huber"), (SoftL1, "soft_l1"), (Cauchy, "cauchy"), (Arctan, "arctan")]
)
@pytest.mark.parametrize("scale", [0.3, 1.0, 40.0])
def test_rho_and_its_derivatives_are_scipys(kind, name, scale):
    residual = np.geomspace(1e-3, 1e4, 71)
    scipys_rho = construct_loss_function(len(residual), name, scale)
    assert scipys_rho is not None
    want = scipys_rho(residual)
    for ours, scipys in zip(kind(scale).derivatives(torch.from_numpy(residual**2)), want, strict=True):
        # SciPy forms 2(√(1+z) − 1) with cancellation: at z = 6e-10 it has 7 digits
        np.testing.assert_allclose(ours, scipys, rtol=1e-6 if name == "soft_l1" else 1e-12, atol=1e-300)


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("scale", [0.3, 1.0, 40.0])
def test_derivatives_are_those_of_rho(make, scale):
    loss = make(scale)
    s = S[1:]
    value, weight, curvature = loss.derivatives(s)
    torch.testing.assert_close(value, loss(s), rtol=1e-15, atol=0)
    torch.testing.assert_close(weight, vmap(grad(loss))(s), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(curvature, vmap(grad(grad(loss)))(s), rtol=1e-7, atol=1e-12 / scale**2)


@pytest.mark.parametrize("make", EVERY)
def test_the_weight_agrees_with_finite_differences(make):
    loss, s = make(1.3), torch.logspace(-3, 3, 40, dtype=torch.float64)
    s = s[(s - 1.3**2).abs() > 1e-2]  # Huber's and Tukey's higher derivatives jump there
    step = 1e-5 * s
    slope = (loss(s + step) - loss(s - step)) / (2 * step)
    torch.testing.assert_close(loss.derivatives(s)[1], slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rho_starts_as_least_squares(make, scale):
    value, weight, _ = make(scale).derivatives(torch.zeros((), dtype=torch.float64))
    assert value == 0
    assert weight == 1


@pytest.mark.sampled(72)
@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("s", [0.0, 5e-324, 1e-300, 1e300])
@pytest.mark.parametrize("scale", [0.1, 1.0, 1e3])
def test_derivatives_of_three_orders_are_finite_at_zero_and_for_huge_residuals(make, s, scale):
    loss = make(scale)
    parameters = loss.state_dict()
    s = torch.tensor(s, dtype=torch.float64)
    for value in loss.derivatives(s):
        assert torch.isfinite(value)

    def rho(s, parameters):
        return loss.rho(s, parameters)

    for first in (jacfwd, jacrev):
        for second in (jacfwd, jacrev):
            jets = first(second(rho, argnums=(0, 1)), argnums=(0, 1))(s, parameters)
            for leaf in pytree.leaves(jets):
                assert torch.isfinite(leaf), jets
    if not isinstance(loss, Barron):  # Barron's third derivative at zero is of size (α − 2)⁻²: no bound holds for all α
        assert torch.isfinite(jacfwd(jacrev(jacrev(rho)))(s, parameters))


@pytest.mark.parametrize("make", EVERY)
def test_nested_transforms_of_a_batch_equal_one_by_one(make):
    loss = make(0.8)
    parameters = loss.state_dict()
    s = torch.tensor([0.0, 0.1, 0.64, 3.0, 1e9], dtype=torch.float64)

    def rho(s, scale):
        return loss.rho(s, {**parameters, "scale": scale})

    scales = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    for transform in (
        jacfwd(rho, argnums=1),
        jacrev(rho, argnums=1),
        jacfwd(jacrev(rho), argnums=1),
        jacrev(jacfwd(rho, argnums=1), argnums=1),
    ):
        one_by_one = torch.stack([transform(a, b) for a, b in zip(s, scales, strict=True)])
        torch.testing.assert_close(vmap(transform)(s, scales), one_by_one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", EVERY)
def test_the_derivative_in_the_scale_agrees_with_finite_differences(make):
    loss = make(1.0)
    parameters, s = loss.state_dict(), torch.tensor([0.0, 0.3, 2.0, 50.0], dtype=torch.float64)

    def rho(scale):
        return loss.rho(s, {**parameters, "scale": scale})

    c, step = torch.tensor(1.2, dtype=torch.float64), 1e-6
    torch.testing.assert_close(jacfwd(rho)(c), (rho(c + step) - rho(c - step)) / (2 * step), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("alpha", [-30.0, -2.0, -0.3, -1e-9, 0.0, 1e-9, 0.7, 1.0, 1.9, 2.4, 4.0])
def test_the_derivative_in_alpha_agrees_with_finite_differences(alpha):
    s = torch.tensor([0.0, 1e-6, 0.3, 2.0, 50.0], dtype=torch.float64)

    def rho(alpha):
        return Barron(1.5).rho(s, {"scale": torch.tensor(1.5), "alpha": alpha})

    a, step = torch.tensor(alpha, dtype=torch.float64), 1e-4
    fourth_order = (8 * (rho(a + step) - rho(a - step)) - (rho(a + 2 * step) - rho(a - 2 * step))) / (12 * step)
    torch.testing.assert_close(jacfwd(rho)(a), fourth_order, rtol=1e-8, atol=1e-10)
    second = (rho(a + step) - 2 * rho(a) + rho(a - step)) / step**2
    torch.testing.assert_close(jacfwd(jacrev(rho))(a), second, rtol=1e-3, atol=1e-4)


def test_barron_contains_the_named_losses():
    for alpha, same in [
        (2.0, lambda s: s),
        (1.0, SoftL1(1.7)),
        (0.0, Cauchy(1.7 * 2**0.5)),
        (-2.0, GemanMcClure(1.7 * 2)),
        (-math.inf, Welsch(1.7 * 2**0.5)),
    ]:
        torch.testing.assert_close(Barron(1.7, alpha)(S), same(S), rtol=1e-12, atol=0)


def test_barron_matches_his_formula_on_both_sides_of_every_switch():
    z = np.geomspace(1e-6, 1e6, 41)
    for alpha in [-100.0, -3.0, -1.0, -0.01, 0.01, 0.3, 1.5, 1.99, 2 - 1e-7, 2 - 1e-9, 2 + 1e-7, 2.01, 2.5, 3.0]:
        b = np.longdouble(abs(alpha - 2))
        want = 2 * b / np.longdouble(alpha) * np.expm1(np.longdouble(alpha) / 2 * np.log1p(z / b))
        np.testing.assert_allclose(Barron(1.0, alpha)(torch.from_numpy(z)).numpy(), want.astype(float), rtol=1e-12)


def test_alpha_can_be_learned_from_exactly_least_squares():
    """At α = 2 the family is singular in α, yet the slope must point towards robustness and stay finite."""
    loss = Barron(1.0, torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)))
    loss(torch.tensor([0.1, 400.0], dtype=torch.float64)).sum().backward()
    assert loss.alpha.grad is not None
    assert torch.isfinite(loss.alpha.grad)
    assert loss.alpha.grad > 0  # less cost for smaller α, as a gross error demands


@pytest.mark.parametrize("kind", [*PLAIN, Barron])
def test_the_tuning_constant_keeps_95_percent_efficiency_for_gaussian_residuals(kind):
    """Efficiency of an M-estimator: (E ψ')² / E ψ² at N(0, 1), with ψ(r) = r ρ'(r²)."""
    loss = kind(kind.tuning)

    def influence(r):
        _, weight, curvature = (float(v) for v in loss.derivatives(torch.tensor(r * r, dtype=torch.float64)))
        return r * weight, weight + 2 * r * r * curvature

    def expect(f):
        breaks = [-kind.tuning, kind.tuning]
        return quad(lambda r: f(r) * math.exp(-r * r / 2) / math.sqrt(2 * math.pi), -9, 9, points=breaks, limit=200)[0]

    efficiency = expect(lambda r: influence(r)[1]) ** 2 / expect(lambda r: influence(r)[0] ** 2)
    assert efficiency == pytest.approx(0.95, abs=5e-4)  # the constants have four digits


@pytest.mark.parametrize("kind", [*PLAIN, Barron])
def test_a_scale_that_is_not_positive_and_finite_is_refused(kind):
    for scale in (0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0])):
        with pytest.raises(ValueError, match=f"{kind.__name__}.*positive and finite"):
            kind(scale)
    for scale in ("wide", "1.0", None, torch.tensor(1j), torch.tensor(True)):
        with pytest.raises(TypeError, match="real"):
            kind(scale)


def test_alpha_nan_is_refused():
    with pytest.raises(ValueError, match="alpha must not be NaN"):
        Barron(1.0, math.nan)


def test_parameters_of_another_loss_are_refused_by_name():
    with pytest.raises(KeyError, match="alpha"):
        Barron().rho(torch.ones(2), {"scale": torch.tensor(1.0)})


def test_integer_squared_norms_are_refused():
    with pytest.raises(TypeError, match="floating"):
        Huber()(torch.ones(2, dtype=torch.int64))


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_result_has_the_dtype_of_the_residual(make, dtype):
    for value in make(0.1).derivatives(S.to(dtype)):
        assert value.dtype == dtype
        assert torch.isfinite(value).all()


def test_a_float_scale_keeps_float64_accuracy():
    assert Huber(0.1).scale.dtype == torch.float64
    assert Huber(0.1)(torch.tensor(1.0, dtype=torch.float64)) == 0.1 * (2 - 0.1)


def test_the_scale_moves_with_the_module_and_is_learned_when_it_is_a_parameter():
    assert Cauchy(2.0).float().scale.dtype == torch.float32
    assert list(dict(Cauchy(2.0).named_parameters())) == []
    assert set(Barron(2.0).state_dict()) == {"scale", "alpha"}
    learned = Cauchy(torch.nn.Parameter(torch.tensor(2.0)))
    assert list(dict(learned.named_parameters())) == ["scale"]
    learned(torch.ones(3)).sum().backward()
    assert learned.scale.grad is not None
    assert learned.scale.grad > 0
    torch.testing.assert_close(copy.deepcopy(learned)(S), learned(S))


def test_a_scale_computed_from_something_differentiable_carries_its_gradient():
    log_scale = torch.tensor(0.5, requires_grad=True)
    Welsch(log_scale.exp())(torch.ones(3)).sum().backward()
    assert log_scale.grad is not None
    assert log_scale.grad > 0


def test_a_loss_may_be_constructed_inside_vmap():
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    s = torch.tensor(3.0, dtype=torch.float64)
    inside = vmap(lambda c: Cauchy(c)(s))(scales)
    torch.testing.assert_close(inside, torch.stack([Cauchy(c)(s) for c in scales]))


def test_scales_per_block_broadcast():
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    s = torch.tensor([3.0, 3.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(Tukey(scales)(s), torch.stack([Tukey(c)(s[0]) for c in scales]))


def test_every_loss_is_named_in_its_repr():
    assert repr(Huber(1.345)) == "Huber(scale=1.345)"
    assert repr(Barron(1.0, -math.inf)) == "Barron(scale=1, alpha=-inf)"
    assert "shape (3,)" in repr(Huber(torch.ones(3)))


def test_the_base_class_says_what_a_subclass_must_define():
    with pytest.raises(NotImplementedError, match="must define rho"):
        RobustLoss()(torch.ones(1))
