"""Errors of t as well as of y: the published fit of Pearson's data with York's weights, and ODRPACK's numbers."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mslsq

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    odr: Any = pytest.importorskip("scipy.odr")

D = torch.float64
PEARSON_X = torch.tensor([0.0, 0.9, 1.8, 2.6, 3.3, 4.4, 5.2, 6.1, 6.5, 7.4], dtype=D)
PEARSON_Y = torch.tensor([5.9, 5.4, 4.4, 4.6, 3.5, 3.7, 2.8, 2.8, 2.4, 1.5], dtype=D)
YORK: dict[str, Any] = {
    "sigma": torch.tensor([1, 1.8, 4, 8, 20, 20, 70, 70, 100, 500], dtype=D) ** -0.5,
    "sigma_t": torch.tensor([1000, 1000, 500, 800, 200, 80, 60, 20, 1.8, 1], dtype=D) ** -0.5,
}
TIGHT = mslsq.LevenbergMarquardt(ftol=1e-15, gtol=1e-13)
START = torch.tensor([2.0, 1.0, 0.3], dtype=D)


def line(p: Tensor, t: Tensor) -> Tensor:
    return p[0] + p[1] * t


def decay(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def surface(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t[:, 0]) + p[2] * t[:, 1] ** 2


def measured(*batch: int, points: int = 25, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    true = torch.linspace(0, 4, points, dtype=D)
    noise = torch.randn(2, *batch, points, generator=generator, dtype=D)
    return true + 0.1 * noise[0], 2.5 * torch.exp(-1.3 * true) + 0.5 + 0.05 * noise[1]


def odrpack(model: Callable[[Tensor, Tensor], Tensor], t: Tensor, y: Tensor, p0: Tensor, **errors: Any) -> Any:
    def by_numpy(p: np.ndarray, x: np.ndarray) -> np.ndarray:
        at = torch.as_tensor(x).mT if x.ndim == 2 else torch.as_tensor(x)
        return model(torch.as_tensor(p), at).numpy()

    data = odr.RealData(t.mT.numpy() if t.ndim == 2 else t.numpy(), y.numpy(), **errors)
    solver = odr.ODR(data, odr.Model(by_numpy), beta0=p0.numpy(), sstol=1e-15, partol=1e-13, maxit=300)
    solver.set_job(deriv=1)  # central differences
    return solver.run()


def test_pearsons_data_with_yorks_weights_have_the_published_line() -> None:
    fit = mslsq.curve_fit(line, PEARSON_X, PEARSON_Y, torch.tensor([5.0, -0.5], dtype=D), solver=TIGHT, **YORK)
    # Reed, Linear least-squares fits with errors in both coordinates, Am. J. Phys. 57 (1989), 642; York (1966).
    assert float(fit.value[0]) == pytest.approx(5.47991022, abs=1e-7)
    assert float(fit.value[1]) == pytest.approx(-0.480533407, abs=1e-8)
    assert float(fit.chi_square) == pytest.approx(11.8663531941, rel=1e-9)
    largest = (fit.corrections / YORK["sigma_t"]).abs().max()
    assert f"corrections of t      up to {float(largest):.3g} standard deviations" in fit.report()
    assert int(fit.degrees_of_freedom) == 8 and "chi-square            11.866353" in fit.report()
    theirs = odrpack(
        line,
        PEARSON_X,
        PEARSON_Y,
        torch.tensor([5.0, -0.5], dtype=D),
        sx=YORK["sigma_t"].numpy(),
        sy=YORK["sigma"].numpy(),
    )
    np.testing.assert_allclose(fit.standard_errors, theirs.sd_beta, rtol=1e-6)
    np.testing.assert_allclose(fit.corrections, theirs.delta, atol=1e-6)


@pytest.mark.parametrize("points", [25, 1500])
def test_a_nonlinear_fit_has_odrpacks_values_errors_and_corrections(points: int) -> None:
    t, y = measured(points=points)
    fit = mslsq.curve_fit(decay, t, y, START, sigma=0.05, sigma_t=0.1, solver=TIGHT)
    theirs = odrpack(decay, t, y, START, sx=0.1, sy=0.05)
    np.testing.assert_allclose(fit.value, theirs.beta, rtol=2e-6)
    np.testing.assert_allclose(fit.standard_errors, theirs.sd_beta, rtol=1e-4)
    np.testing.assert_allclose(fit.corrections, theirs.delta, atol=1e-5)
    assert float(fit.chi_square) == pytest.approx(theirs.sum_square, rel=1e-9)
    absolute = mslsq.curve_fit(decay, t, y, START, sigma=0.05, sigma_t=0.1, solver=TIGHT, absolute_sigma=True)
    np.testing.assert_allclose(absolute.covariance, theirs.cov_beta, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("errors", [(0.1, 0.02), (0.1, 0.1)])
def test_points_have_several_coordinates(errors: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(3)
    true = torch.rand(40, 2, generator=generator, dtype=D) * 2
    truth = torch.tensor([2.0, 0.8, 0.5], dtype=D)
    y = surface(truth, true) + 0.05 * torch.randn(40, generator=generator, dtype=D)
    t = true + torch.tensor(errors, dtype=D) * torch.randn(40, 2, generator=generator, dtype=D)
    given = torch.tensor(errors, dtype=D) if errors[0] != errors[1] else errors[0]
    fit = mslsq.curve_fit(surface, t, y, truth, sigma=0.05, sigma_t=given, solver=TIGHT)
    theirs = odrpack(surface, t, y, truth, sx=np.array(errors)[:, None] * np.ones((2, 40)), sy=0.05)
    np.testing.assert_allclose(fit.value, theirs.beta, rtol=2e-6)
    np.testing.assert_allclose(fit.standard_errors, theirs.sd_beta, rtol=1e-4)
    np.testing.assert_allclose(fit.corrections, theirs.delta.T, atol=1e-5)


def test_the_covariance_is_the_block_of_the_inverse_of_the_whole_system() -> None:
    t, y = measured()
    fit = mslsq.curve_fit(decay, t, y, START, sigma=0.05, sigma_t=0.1, absolute_sigma=True)

    def whole(x: Tensor) -> Tensor:
        return torch.cat([(decay(x[:3], t + x[3:]) - y) / 0.05, x[3:] / 0.1])

    jacobian = torch.func.jacfwd(whole)(torch.cat([fit.value, fit.corrections]))
    torch.testing.assert_close(fit.covariance, torch.linalg.inv(jacobian.mT @ jacobian)[:3, :3], rtol=1e-8, atol=0)
    gradient = whole(torch.cat([fit.value, fit.corrections])) @ jacobian
    assert float(gradient.abs().max()) < 1e-3


def test_batches_vmap_and_prepared_fits_agree_with_single_ones() -> None:
    t, y = measured(4)
    sigma_t = 0.05 + 0.1 * torch.rand(4, 25, generator=torch.Generator().manual_seed(1), dtype=D)
    options = {"sigma": 0.05, "solver": TIGHT}
    fits = mslsq.curve_fit(decay, t, y, START, sigma_t=sigma_t, in_dims=(0, 0, None), **options)
    moved = mslsq.curve_fit(decay, t.mT, y.mT, START, sigma_t=sigma_t.mT, in_dims=(1, 1, None), **options)
    mapped = torch.func.vmap(lambda t, y, s: mslsq.curve_fit(decay, t, y, START, sigma_t=s, **options))(t, y, sigma_t)
    prepared = mslsq.prepared(mslsq.curve_fit, decay, t[0], y[0], START, sigma_t=sigma_t[0], **options)
    for number in range(4):
        alone = mslsq.curve_fit(decay, t[number], y[number], START, sigma_t=sigma_t[number], **options)
        again = prepared(t[number], y[number], START, sigma=0.05, sigma_t=sigma_t[number])
        for found in (fits.of_problem(number), moved.of_problem(number), mapped.of_problem(number), again):
            torch.testing.assert_close(found.value, alone.value, rtol=1e-7, atol=0)
            torch.testing.assert_close(found.covariance, alone.covariance, rtol=1e-6, atol=0)
            torch.testing.assert_close(found.corrections, alone.corrections, rtol=0, atol=1e-8)
    assert fits.predict(t[0]).lower.shape == (4, 25) and fits.corrections.shape == (4, 25)


def test_parameters_are_named_fixed_tied_and_bounded_as_in_other_fits() -> None:
    t, y = measured()

    def named(p: dict[str, Tensor], t: Tensor) -> Tensor:
        return p["a"] * torch.exp(-p["rate"] * t) + p["c"]

    fit = mslsq.curve_fit(
        named,
        *(t, y, {"a": 2.0, "rate": 1.0, "d": 1.0}),
        fixed={"d": 5.0},
        tied={"c": lambda p: p["a"] / p["d"]},
        bounds=({"a": 0.0}, {"a": 2.2}),
        sigma=0.05,
        sigma_t=0.1,
        solver=TIGHT,
    )
    written = mslsq.curve_fit(
        lambda p, t: 2.2 * torch.exp(-p * t) + 0.44,
        t,
        y,
        torch.tensor(1.0, dtype=D),
        sigma=0.05,
        sigma_t=0.1,
        solver=TIGHT,
    )
    assert fit.notes == ("", "", "fixed", "tied") and float(fit.value["c"]) == pytest.approx(0.44)
    assert {name: int(side) for name, side in fit.solution.active.items()} == {"a": 1, "rate": 0, "d": 0, "c": 0}
    torch.testing.assert_close(fit.value["rate"], written.value, rtol=1e-7, atol=0)
    torch.testing.assert_close(fit.corrections, written.corrections, rtol=0, atol=1e-8)


def test_missing_points_have_no_correction_and_no_weight() -> None:
    t, y = measured()
    y = y.clone()
    y[3], t[3] = torch.nan, torch.nan
    keep = torch.arange(25) != 3
    fit = mslsq.curve_fit(decay, t, y, START, sigma_t=0.1, sigma=0.05, solver=TIGHT)
    alone = mslsq.curve_fit(decay, t[keep], y[keep], START, sigma_t=0.1, sigma=0.05, solver=TIGHT)
    torch.testing.assert_close(fit.value, alone.value, rtol=1e-8, atol=0)
    torch.testing.assert_close(fit.covariance, alone.covariance, rtol=1e-7, atol=0)
    assert float(fit.corrections[3]) == 0 and int(fit.num_points) == 24


def test_without_errors_of_t_it_is_the_ordinary_fit() -> None:
    t, y = measured()
    fit = mslsq.curve_fit(decay, t, y, START, sigma_t=0.0, solver=TIGHT)
    plain = mslsq.curve_fit(decay, t, y, START, solver=TIGHT)
    torch.testing.assert_close(fit.value, plain.value, rtol=1e-8, atol=0)
    torch.testing.assert_close(fit.covariance, plain.covariance, rtol=1e-8, atol=0)
    assert not fit.corrections.any() and plain.corrections == ()


@pytest.mark.parametrize("points", [12, 400])
def test_values_errors_and_corrections_have_exact_derivatives(points: int) -> None:
    t, y = measured(points=points)
    direction = torch.randn(3, points, generator=torch.Generator().manual_seed(5), dtype=D)

    def outcome(step: Tensor) -> Tensor:
        fit = mslsq.curve_fit(
            *(decay, t + step * direction[0], y + step * direction[1], START),
            sigma=0.05 * (1 + step),
            sigma_t=0.1 * torch.exp(step * direction[2]),
            solver=TIGHT,
        )
        return torch.cat([fit.value, fit.standard_errors, fit.corrections[:4]])

    zero = torch.zeros((), dtype=D)
    numeric = (outcome(zero + 1e-5) - outcome(zero - 1e-5)) / 2e-5
    torch.testing.assert_close(torch.autograd.functional.jacobian(outcome, zero), numeric, rtol=2e-4, atol=2e-5)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    t, y = measured(1000, points=20)
    fits = mslsq.curve_fit(decay, t, y, START, sigma=0.05, sigma_t=0.1, in_dims=(0, 0, None))
    truth, interval = torch.tensor([2.5, 1.3, 0.5], dtype=D), fits.confidence_interval(0.95)
    share = ((interval.lower < truth) & (truth < interval.upper)).double().mean(0)
    assert bool(((share > 0.92) & (share < 0.97)).all()), share  # three standard deviations of a share are 2 %


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise": "poisson", "sigma": None}, "does not go with noise='poisson'"),
        ({"loss": mslsq.Huber(1.0)}, "does not go with a robust loss"),
        ({"sigma": torch.eye(25, dtype=D)}, "does not go with a covariance matrix"),
        ({"sigma_t": torch.ones(24, dtype=D)}, r"shape \(24,\).*\(25,\)"),
        ({"sigma_t": "0.1"}, "must be a number or a tensor"),
    ],
)
def test_what_does_not_combine_is_said(change: dict, said: str) -> None:
    t, y = measured()
    with pytest.raises(mslsq.ProblemError, match=said):
        mslsq.curve_fit(decay, t, y, START, **{"sigma": 0.05, "sigma_t": 0.1, **change})


def test_other_points_and_profiles_are_refused() -> None:
    t, y = measured()
    with pytest.raises(mslsq.ProblemError, match="several sets of data"):
        mslsq.curve_fit(lambda p, t: {"a": decay(p, t["a"])}, {"a": t}, {"a": y}, START, sigma_t=0.1)
    with pytest.raises(mslsq.ProblemError, match="y of one fit must then have shape"):
        mslsq.curve_fit(lambda p, t: decay(p, t)[:, None], t, y[:, None], START, sigma_t=0.1)
    with pytest.raises(mslsq.ProblemError, match="t must then be one tensor"):
        mslsq.curve_fit(lambda p, t: decay(p, t[0]), (t,), y, START, sigma_t=0.1)
    with pytest.raises(mslsq.ProblemError, match="from the t of other points"):
        mslsq.curve_fit(lambda p, t: decay(p, t + 0.1 * (t - t.mean())), t, y, START, sigma_t=0.1)
    with pytest.raises(mslsq.ProblemError, match="Use method='linear'"):
        mslsq.curve_fit(decay, t, y, START, sigma_t=0.1).confidence_interval(method="profile")
