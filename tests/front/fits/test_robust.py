"""`curve_fit` by graduated non-convexity: the fit of the points that were not rejected, in all that it reports."""

import pytest
import torch
from torch import Tensor

import mslsq

NOISE, SCALE = 0.02, 3.0
T = torch.linspace(0, 1, 40, dtype=torch.float64)
START = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
ROBUST = mslsq.GraduatedNonConvexity(scale=SCALE)


def decay(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def spoiled(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Measured decays (count, 40), a third of whose points are wrong, and which."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.tensor([2.0, 1.5, 0.3], dtype=torch.float64) + 0.2 * torch.rand(
        count, 3, generator=generator, dtype=torch.float64
    )
    y = torch.func.vmap(decay, in_dims=(0, None))(p, T)
    y = y + NOISE * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    wrong = torch.rand(y.shape, generator=generator) < 0.33
    return torch.where(wrong, y + 0.5 + 2 * torch.rand(y.shape, generator=generator, dtype=torch.float64), y), wrong


def rejected(fit: mslsq.CurveFit) -> Tensor:
    return fit.solution.weights["residual"] == 0


def test_all_figures_are_those_of_the_fit_without_the_rejected_points():
    y = spoiled(1)[0][0]
    fit = mslsq.curve_fit(decay, T, y, START, sigma=NOISE, solver=ROBUST)
    plain = mslsq.curve_fit(decay, T, y, START, sigma=NOISE, mask=~rejected(fit))
    assert int(rejected(fit).sum()) >= 8
    assert torch.allclose(fit.value, plain.value, atol=1e-8)
    assert torch.allclose(fit.covariance, plain.covariance, rtol=1e-6)
    for name in ("num_points", "degrees_of_freedom", "chi_square", "aic", "bic", "r_squared"):
        assert torch.allclose(getattr(fit, name), getattr(plain, name), rtol=1e-6), name
    for method in ("linear", "profile"):
        both = zip(fit.confidence_interval(0.95, method), plain.confidence_interval(0.95, method), strict=True)
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in both), method
    assert f"points                {int((~rejected(fit)).sum())}" in fit.report()


def test_a_batch_is_its_fits_with_scales_of_their_own():
    y, _ = spoiled(4)
    scales = torch.tensor([3.0, 3.5, 3.0, 4.0], dtype=torch.float64)
    in_dims = (None, 0, None)
    batch = mslsq.curve_fit(
        decay, T, y, START, sigma=NOISE, in_dims=in_dims, solver=mslsq.GraduatedNonConvexity(scale=scales)
    )
    for number in range(4):
        solver = mslsq.GraduatedNonConvexity(scale=float(scales[number]))
        alone = mslsq.curve_fit(decay, T, y[number], START, sigma=NOISE, solver=solver)
        assert torch.allclose(batch.value[number], alone.value, atol=1e-8)
        assert torch.allclose(batch.covariance[number], alone.covariance, rtol=1e-6)
        assert torch.equal(rejected(batch)[number], rejected(alone))


@pytest.mark.slow
def test_intervals_contain_the_truth_as_often_as_they_say():
    """300 fits; the intervals of 95 % of plain fits contain it in 12 %."""
    generator = torch.Generator().manual_seed(1)
    truth = torch.tensor([2.0, 1.5, 0.3], dtype=torch.float64)
    y = decay(truth, T) + NOISE * torch.randn(300, 40, generator=generator, dtype=torch.float64)
    wrong = torch.rand(y.shape, generator=generator) < 0.2
    y = torch.where(wrong, y + 1 + torch.rand(y.shape, generator=generator, dtype=torch.float64), y)
    options = {"sigma": NOISE, "absolute_sigma": True, "in_dims": (None, 0, None)}

    def coverage(**more: object) -> float:
        fit = mslsq.curve_fit(decay, T, y, START, **options, **more)  # type: ignore[arg-type]
        lower, upper = fit.confidence_interval(0.95, "linear")
        return float(((lower < truth) & (truth < upper)).double().mean())

    assert 0.92 < coverage(solver=mslsq.GraduatedNonConvexity(scale=3.5)) < 0.975
    assert coverage() < 0.3


def test_geman_mcclure_has_the_covariance_of_its_loss():
    y = spoiled(1)[0][0]
    solver = mslsq.GraduatedNonConvexity(scale=SCALE, loss="geman_mcclure")
    fit = mslsq.curve_fit(decay, T, y, START, sigma=NOISE, solver=solver)
    plain = mslsq.curve_fit(decay, T, y, fit.value, sigma=NOISE, loss=mslsq.GemanMcClure(SCALE))
    assert torch.allclose(fit.value, plain.value, atol=1e-6)
    assert torch.allclose(fit.covariance, plain.covariance, rtol=1e-4)
    assert torch.allclose(fit.chi_square, plain.chi_square, rtol=1e-8)


def test_the_derivatives_are_those_of_the_fit_without_the_rejected_points():
    y = spoiled(1)[0][0]
    kept = ~rejected(mslsq.curve_fit(decay, T, y, START, sigma=NOISE, solver=ROBUST))

    def error(y: Tensor, **options: object) -> Tensor:
        fit = mslsq.curve_fit(decay, T, y, START, sigma=NOISE, **options)  # type: ignore[arg-type]
        return fit.standard_errors.sum() + fit.value.sum() + fit.chi_square

    found = torch.func.grad(error)(y, solver=ROBUST)
    expected = torch.func.grad(error)(y, mask=kept)
    assert torch.allclose(found, expected, atol=1e-6 * float(expected.abs().max()))


def test_points_that_do_not_count_are_no_inliers():
    y, _ = spoiled(1)
    y, mask = y[0], torch.ones(40, dtype=torch.bool)
    y[5], mask[7] = torch.nan, False
    fit = mslsq.curve_fit(decay, T, y, START, sigma=NOISE, mask=mask, solver=ROBUST)
    assert int(fit.num_points) == 38 - int(rejected(fit).sum())


def test_a_prepared_fit_is_the_same():
    y, _ = spoiled(3)
    fit = mslsq.prepared(mslsq.curve_fit, decay, T, y[0], START, sigma=NOISE, solver=ROBUST)
    for one in y:
        found = fit(T, one, START, sigma=NOISE)
        expected = mslsq.curve_fit(decay, T, one, START, sigma=NOISE, solver=ROBUST)
        assert torch.allclose(found.value, expected.value, atol=1e-10)
        assert torch.allclose(found.covariance, expected.covariance, rtol=1e-8)
        assert torch.equal(rejected(found), rejected(expected))


@pytest.mark.parametrize(
    ("solver", "options", "says"),
    [
        (ROBUST, {"noise": "poisson"}, "rejects single points, not with noise='poisson'"),
        (ROBUST, {"sigma_t": 0.1}, "not with sigma_t"),
        (ROBUST, {"sigma": torch.eye(40, dtype=torch.float64)}, "which mixes the points"),
        (ROBUST, {"loss": mslsq.Huber(1.0)}, "Leave this one out"),
        (mslsq.GraduatedNonConvexity(), {"mask": T > 0.1}, "Pass scale="),
        (mslsq.GraduatedNonConvexity(loss="geman_mcclure"), {}, "needs its scale"),
        (mslsq.GraduatedNonConvexity(scale=torch.ones(2), loss="geman_mcclure"), {}, "takes one scale here"),
    ],
)
def test_what_it_cannot_do_is_said(solver, options, says):
    y = spoiled(1)[0][0].abs()
    with pytest.raises(mslsq.ProblemError, match=says):
        mslsq.curve_fit(decay, T, y, START, solver=solver, **options)
