"""separable_fit: amplitudes eliminated exactly; the fit, its errors and derivatives are those of all parameters."""

import pytest
import torch
from torch.func import jacfwd, jacrev

import mslsq
from mslsq.errors import CovarianceWarning
from mslsq.front.fits.projection import eliminated
from mslsq.problem.errors import ProblemError, ShapeError

F64 = torch.float64
T = torch.linspace(0, 4, 40, dtype=F64)
Y = 2.5 * torch.exp(-1.9 * T) + 1.1 * torch.exp(-0.4 * T) + 0.01 * torch.sin(20 * T)
START = torch.tensor([5.0, 1.0], dtype=F64)


def decays(p, t):
    return torch.exp(-p * t[:, None])


def both(p, t):
    return p["a"][0] * torch.exp(-p["k"][0] * t) + p["a"][1] * torch.exp(-p["k"][1] * t)


def joint(y=Y, **options):
    """The fit of all parameters, from the solution's neighbourhood."""
    p0 = {"k": torch.tensor([1.9, 0.4], dtype=F64), "a": torch.tensor([2.5, 1.1], dtype=F64)}
    return mslsq.curve_fit(both, T, y, p0, **options)


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def test_the_amplitudes_are_those_of_lapack():
    columns, y = random(20, 4), random(20, seed=1)
    found = eliminated(columns, y)
    expected = torch.linalg.lstsq(columns, y[:, None]).solution[:, 0]
    torch.testing.assert_close(found.amplitudes, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.residual, columns @ expected - y, rtol=1e-12, atol=1e-13)


def test_badly_conditioned_columns_lose_no_more_than_their_condition():
    columns = torch.linspace(0, 1, 20, dtype=F64)[:, None] ** torch.arange(12, dtype=F64)
    y = columns @ torch.ones(12, dtype=F64)
    condition = float(torch.linalg.cond(columns / columns.norm(dim=0)))
    assert condition > 1e7  # normal equations would leave nothing
    error = (eliminated(columns, y).amplitudes - 1).abs().max()
    assert float(error) < 10 * condition * torch.finfo(F64).eps


def test_dependent_columns_get_zero_and_the_derivative_stays_finite():
    columns = random(12, 3)
    columns = torch.cat([columns, columns[:, :1] - 2 * columns[:, 1:2], torch.zeros(12, 1, dtype=F64)], 1)
    y = random(12, seed=1)
    found = eliminated(columns, y)
    assert found.amplitudes[3:].tolist() == [0, 0]
    least = torch.linalg.lstsq(columns[:, :3], y[:, None]).solution[:, 0]
    torch.testing.assert_close(found.residual, columns[:, :3] @ least - y, rtol=1e-10, atol=1e-12)
    assert bool(torch.isfinite(jacfwd(lambda c: eliminated(c, y).residual)(columns)).all())


def test_the_jacobian_of_the_projected_residual_is_that_of_differences():
    def projected(p):
        return eliminated(decays(p, T), Y).residual

    step = 1e-6
    numeric = torch.stack(
        [(projected(START + step * e) - projected(START - step * e)) / (2 * step) for e in torch.eye(2, dtype=F64)], -1
    )
    torch.testing.assert_close(jacfwd(projected)(START), numeric, rtol=1e-6, atol=1e-8)


def test_the_fit_is_that_of_all_parameters():
    fit, expected = mslsq.separable_fit(decays, T, Y, START), joint()
    torch.testing.assert_close(fit.value["nonlinear"], expected.value["k"], rtol=1e-8, atol=0)
    torch.testing.assert_close(fit.value["linear"], expected.value["a"], rtol=1e-8, atol=0)
    torch.testing.assert_close(fit.standard_errors["linear"], expected.standard_errors["a"], rtol=1e-6, atol=0)
    torch.testing.assert_close(fit.standard_errors["nonlinear"], expected.standard_errors["k"], rtol=1e-6, atol=0)
    assert "linear[1]" in str(fit.report())


def test_weights_missing_points_and_a_covariance_matrix_count_as_in_curve_fit():
    y = Y.clone()
    y[3] = torch.nan
    sigma = torch.linspace(0.5, 2.0, 40, dtype=F64)
    covariance = torch.diag(sigma**2) + 0.1
    for given, values in ((sigma, y), (covariance, Y)):
        fit, expected = mslsq.separable_fit(decays, T, values, START, sigma=given), joint(values, sigma=given)
        torch.testing.assert_close(fit.value["nonlinear"], expected.value["k"], rtol=1e-7, atol=0)
        torch.testing.assert_close(fit.standard_errors["linear"], expected.standard_errors["a"], rtol=1e-5, atol=0)


def test_a_mask_and_absolute_errors_count_as_in_curve_fit():
    used = T < 3
    values = torch.where(used, Y, 99.0)
    sigma = 0.02 * torch.ones_like(Y)
    options = {"mask": used, "sigma": sigma, "absolute_sigma": True}
    fit, expected = mslsq.separable_fit(decays, T, values, START, **options), joint(values, **options)
    alone = mslsq.separable_fit(decays, T[used], Y[used], START, sigma=sigma[used], absolute_sigma=True)
    for own, others in (("nonlinear", "k"), ("linear", "a")):
        torch.testing.assert_close(fit.value[own], expected.value[others], rtol=1e-7, atol=0)
        torch.testing.assert_close(fit.value[own], alone.value[own], rtol=1e-7, atol=0)
        torch.testing.assert_close(fit.standard_errors[own], expected.standard_errors[others], rtol=1e-5, atol=0)
        torch.testing.assert_close(fit.standard_errors[own], alone.standard_errors[own], rtol=1e-5, atol=0)


def test_what_is_no_number_is_refused_where_that_is_asked_for():
    with pytest.raises(ProblemError, match=r"y has 1 entries that are NaN or infinite, the first at \[3\]"):
        mslsq.separable_fit(decays, T, torch.where(T[3] == T, torch.nan, Y), START, nan_policy="raise")


def test_a_start_out_of_bounds_is_moved_onto_them_where_that_is_asked_for():
    bounds, far = (torch.tensor([1.0, 0.1], dtype=F64), 3.0), torch.tensor([9.0, 0.0], dtype=F64)
    with pytest.raises(ProblemError, match="project_start"):
        mslsq.separable_fit(decays, T, Y, far, bounds=bounds)
    fit = mslsq.separable_fit(decays, T, Y, far, bounds=bounds, project_start=True)
    torch.testing.assert_close(fit.value["nonlinear"], joint().value["k"], rtol=1e-7, atol=0)


def test_a_detached_fit_has_no_derivative():
    y = Y.clone().requires_grad_()
    fit = mslsq.separable_fit(decays, T, y, START, adjoint=mslsq.Detached())
    assert not fit.value["nonlinear"].requires_grad and not fit.value["linear"].requires_grad


@pytest.mark.parametrize("derivative", [jacfwd, jacrev])
def test_derivatives_of_both_kinds_are_those_of_differences(derivative):
    def fitted(y):
        value = mslsq.separable_fit(decays, T, y, START).value
        return torch.cat([value["nonlinear"], value["linear"]])

    jacobian, step = derivative(fitted)(Y), 1e-5
    for k in (0, 11, 39):
        e = torch.zeros_like(Y)
        e[k] = step
        numeric = (fitted(Y + e) - fitted(Y - e)) / (2 * step)
        torch.testing.assert_close(jacobian[:, k], numeric, rtol=1e-5, atol=1e-7)


def test_a_batch_and_vmap_are_the_fits_one_by_one():
    ys = torch.stack([Y, 2 * Y, Y + 0.02 * random(40)])
    starts = torch.stack([START, START, 2 * START])
    batch = mslsq.separable_fit(decays, T, ys, starts, in_dims=(None, 0, 0))
    last = mslsq.separable_fit(decays, T, ys.T, starts, in_dims=(None, 1, 0))
    mapped = torch.func.vmap(lambda y, p: mslsq.separable_fit(decays, T, y, p).value["linear"])(ys, starts)
    for k in range(3):
        alone = mslsq.separable_fit(decays, T, ys[k], starts[k])
        for found in (batch.value["linear"][k], last.value["linear"][k], mapped[k]):
            torch.testing.assert_close(found, alone.value["linear"], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(batch.value["nonlinear"][k], alone.value["nonlinear"], rtol=1e-7, atol=1e-9)


def test_a_far_start_of_nist_arrives():
    """MGH10: straight steps of all parameters do not arrive in 5,000, bent ones in 786; these in 49."""
    t = 45.0 + 5 * torch.arange(1, 17, dtype=F64)
    y = torch.tensor(
        [34780.0, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872],
        dtype=F64,
    )
    start = torch.tensor([4e5, 2.5e4], dtype=F64)
    solver = mslsq.LevenbergMarquardt(max_steps=100, acceleration=0.75)
    fit = mslsq.separable_fit(lambda p, t: torch.exp(p[0] / (t + p[1]))[:, None], t, y, start, solver=solver)
    certified = torch.tensor([6.1813463463e3, 3.4522363462e2], dtype=F64)
    torch.testing.assert_close(fit.value["nonlinear"], certified, rtol=1e-6, atol=0)
    torch.testing.assert_close(fit.value["linear"], torch.tensor([5.6096364710e-3], dtype=F64), rtol=1e-6, atol=0)


def test_bounds_hold_the_nonlinear_parameters():
    bounds = (torch.tensor([2.2, 0.0], dtype=F64), torch.inf)
    fit = mslsq.separable_fit(decays, T, Y, START, bounds=bounds)
    assert fit.value["nonlinear"][0] == 2.2
    assert fit.solution.active["nonlinear"].tolist() == [-1, 0]
    expected = joint(bounds=({"k": bounds[0], "a": None}, None), project_start=True)
    torch.testing.assert_close(fit.value["linear"], expected.value["a"], rtol=1e-6, atol=0)


def test_float32_stays_float32():
    fit = mslsq.separable_fit(decays, T.float(), Y.float(), START.float())
    assert fit.value["linear"].dtype == torch.float32
    torch.testing.assert_close(fit.value["nonlinear"].double(), joint().value["k"], rtol=1e-2, atol=1e-2)


def test_two_columns_that_are_the_same_have_no_covariance():
    def twice(p, t):
        return torch.stack([torch.exp(-p * t), torch.exp(-p * t)], -1)

    with pytest.warns(CovarianceWarning):
        fit = mslsq.separable_fit(twice, T, 3 * torch.exp(-T), torch.tensor(2.0, dtype=F64))
    assert float(fit.value["nonlinear"]) == pytest.approx(1.0, abs=1e-6)
    assert float(fit.value["linear"].sum()) == pytest.approx(3.0, abs=1e-6)


def test_a_basis_of_another_shape_is_refused_with_what_is_expected():
    with pytest.raises(ShapeError, match=r"\(40,\).*terms"):
        mslsq.separable_fit(lambda p, t: torch.exp(-p * t), T, Y, torch.tensor(1.0, dtype=F64))
    with pytest.raises(ProblemError, match="one tensor"):
        mslsq.separable_fit(decays, T, {"a": Y}, START)  # pyright: ignore[reportArgumentType]
