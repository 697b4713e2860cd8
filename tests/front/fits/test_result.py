"""A fit's figures and intervals: against lmfit, SciPy and closed forms; batches, transforms, derivatives."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

import mslsq
from mslsq.errors import ProfileWarning

D = torch.float64

# NIST's set Misra1a (public domain): y, t. What lmfit 1.3.4 says of it stands below, to the digits that it gave.
MISRA_Y = [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78]
MISRA_T = [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0]
LMFIT = {
    "chi_square": 0.12455138894439909,
    "reduced_chi_square": 0.010379282412033257,
    "aic": -62.109319013500965,
    "bic": -60.83120435427045,
    "r_squared": 0.9999815801100362,
}
LMFIT_PROFILE = {
    0.95: ([233.1953079248215, 0.0005343182679045476], [245.0173692444862, 0.0005660298972975388]),
    0.99: ([230.97207790011453, 0.0005279620535400004], [247.55816172370845, 0.0005724201674165656]),
}


def misra(p: dict, t: Tensor) -> Tensor:
    return p["b1"] * (1 - torch.exp(-p["b2"] * t))


def misra_fit(**options) -> mslsq.CurveFit:
    y, t = torch.tensor(MISRA_Y, dtype=D), torch.tensor(MISRA_T, dtype=D)
    return mslsq.curve_fit(misra, t, y, {"b1": 250.0, "b2": 5e-4}, **options)


def decay(p: dict, t: Tensor) -> Tensor:
    return p["a"] * torch.exp(-p["rate"][0] * t) + p["c"]


P0 = {"a": 1.0, "rate": torch.ones(1, dtype=D), "c": 0}


def decays(fits: int | None = None, seed: int = 0, points: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 4, points, dtype=D)
    shape = (points,) if fits is None else (fits, points)
    clean = 2.5 * torch.exp(-1.3 * t) + 0.5
    return t, clean + 0.05 * torch.randn(shape, generator=generator, dtype=D)


@pytest.mark.parametrize("name", LMFIT)
def test_statistics_are_lmfits(name: str) -> None:
    assert float(getattr(misra_fit(), name)) == pytest.approx(LMFIT[name], rel=1e-9)


def test_statistics_with_weights_and_missing_points_are_those_of_numpy() -> None:
    t, y = decays()
    sigma = 0.02 + 0.05 * torch.rand(30, generator=torch.Generator().manual_seed(1), dtype=D)
    y[3] = torch.nan
    used = torch.arange(30) != 7
    fit = mslsq.curve_fit(decay, t, y, P0, sigma=sigma, mask=used)
    keep = used.numpy() & ~y.isnan().numpy()
    predicted = decay(fit.value, t).numpy()[keep]
    data, errors = y.numpy()[keep], sigma.numpy()[keep]
    chi_square = (((predicted - data) / errors) ** 2).sum()
    assert int(fit.num_points) == 28 and int(fit.degrees_of_freedom) == 25
    assert float(fit.chi_square) == pytest.approx(chi_square, rel=1e-10)
    assert float(fit.aic) == pytest.approx(28 * np.log(chi_square / 28) + 6, rel=1e-10)
    assert float(fit.bic) == pytest.approx(28 * np.log(chi_square / 28) + 3 * np.log(28), rel=1e-10)
    about = ((data - data.mean()) ** 2).sum()
    assert float(fit.r_squared) == pytest.approx(1 - ((data - predicted) ** 2).sum() / about, rel=1e-12)


def test_entries_are_named() -> None:
    t, y = decays()
    assert mslsq.curve_fit(decay, t, y, P0).names == ("a", "rate[0]", "c")
    flat = mslsq.curve_fit(lambda p, t: p[0] * t + p[1], t, y, torch.ones(2, dtype=D))
    assert flat.names == ("p[0]", "p[1]")
    nested = {"peak": {"height": 1.0, "at": [1.0, torch.zeros(1, 2, dtype=D)]}}
    fit = mslsq.curve_fit(
        lambda p, t: (
            p["peak"]["height"] * t
            + p["peak"]["at"][0]
            + p["peak"]["at"][1][0, 0] * t**2
            + p["peak"]["at"][1][0, 1] * t**3
        ),
        t,
        y,
        nested,
    )
    assert fit.names == ("peak.height", "peak.at[0]", "peak.at[1][0, 0]", "peak.at[1][0, 1]")


def test_numbers_in_the_start_are_as_good_as_tensors() -> None:
    t, y = decays()
    tensors = {"a": torch.ones((), dtype=D), "rate": torch.ones(1, dtype=D), "c": torch.zeros((), dtype=D)}
    assert torch.equal(mslsq.curve_fit(decay, t, y, P0).covariance, mslsq.curve_fit(decay, t, y, tensors).covariance)
    single = mslsq.curve_fit(decay, t.float(), y.float(), {"a": 1.0, "rate": torch.ones(1), "c": 0})
    assert single.value["a"].dtype == torch.float32


def test_the_report_says_what_is_known() -> None:
    report = misra_fit().report()
    for said in (
        "238.94213",
        "2.707",
        "1.13%",
        "b1, b2  -0.9988",
        "-62.109319",
        "-60.831204",
        "0.99998158",
        "Converged",
    ):
        assert said in report
    assert all(len(line) <= 120 for line in report.splitlines())


def test_a_batch_is_reported_one_by_one_and_tabled_together() -> None:
    t, y = decays(fits=4)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    alone = mslsq.curve_fit(decay, t, y[2], P0)
    own, other = (report.partition("Solve")[0] for report in (fits.report(2), alone.report()))
    assert own == other
    assert fits.aic.shape == fits.r_squared.shape == (4,)
    for name in ("chi_square", "reduced_chi_square", "aic", "bic", "r_squared", "correlation"):
        torch.testing.assert_close(getattr(fits, name)[2], getattr(alone, name), rtol=1e-8, atol=1e-10)
    with pytest.raises(mslsq.ProblemError, match=r"say which one"):
        fits.report()
    with pytest.raises(mslsq.ProblemError, match="no fit"):
        fits.report(4)


def test_the_band_of_a_line_is_the_textbooks() -> None:
    """Draper & Smith, Applied Regression Analysis, 1.4: ŷ ± t s √(1/n + (x − x̄)²/Sxx), and with 1 + under the root."""
    t, y = decays()
    fit = mslsq.curve_fit(lambda p, t: p["slope"] * t + p["offset"], t, y, {"slope": 0.0, "offset": 0.0})
    line = stats.linregress(t.numpy(), y.numpy())
    new = np.array([-1.0, 0.5, 7.0])
    residual = y.numpy() - line.slope * t.numpy() - line.intercept
    s = math.sqrt((residual**2).sum() / 28)
    spread = 1 / 30 + (new - t.numpy().mean()) ** 2 / ((t.numpy() - t.numpy().mean()) ** 2).sum()
    q = stats.t.ppf(0.95, 28)
    for band, extra in (("confidence", 0), ("prediction", 1)):
        mean, lower, upper = fit.predict(torch.tensor(new), level=0.9, band=band)
        np.testing.assert_allclose(mean, line.intercept + line.slope * new, rtol=1e-10)
        np.testing.assert_allclose(upper - mean, q * s * np.sqrt(spread + extra), rtol=1e-8)
        np.testing.assert_allclose(mean - lower, upper - mean, rtol=1e-12)


def test_the_band_of_a_curve_is_lmfits() -> None:
    """`ModelResult.eval_uncertainty(x=[100, 500, 1000], sigma=0.95)` of lmfit 1.3.4, which takes differences."""
    mean, _, upper = misra_fit().predict(torch.tensor([100.0, 500.0, 1000.0], dtype=D))
    np.testing.assert_allclose(mean, [12.790490436693222, 57.46254393456106, 101.10607679708649], rtol=1e-8)
    np.testing.assert_allclose(
        upper - mean, [0.045497925043581834, 0.07295420513237619, 0.33392088193624814], rtol=1e-4
    )


def test_errors_of_new_measurements_are_asked_for_where_they_are_not_known() -> None:
    t, y = decays()
    sigma = torch.linspace(0.04, 0.06, 30, dtype=D)
    fit = mslsq.curve_fit(decay, t, y, P0, sigma=sigma, absolute_sigma=True)
    with pytest.raises(mslsq.ProblemError, match=r"sigma=\.\.\."):
        fit.predict(t[:3], band="prediction")
    given = fit.predict(t[:3], band="prediction", sigma=sigma[:3])
    own = fit.predict(band="prediction")
    torch.testing.assert_close(own.upper[:3], given.upper, rtol=1e-12, atol=0)
    confidence = fit.predict(t[:3])
    q = stats.norm.ppf(0.975)  # sigma is absolute
    torch.testing.assert_close(
        (given.upper - given.mean) ** 2, (confidence.upper - confidence.mean) ** 2 + (q * sigma[:3]) ** 2
    )


def test_bands_of_a_batch_are_those_of_its_fits() -> None:
    t, y = decays(fits=3)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    new = torch.linspace(0, 6, 15, dtype=D).reshape(3, 5)
    shared, own = fits.predict(new[0], band="prediction"), fits.predict(new, in_dims=0)
    for number in range(3):
        alone = fits.of_problem(number)
        torch.testing.assert_close(shared.lower[number], alone.predict(new[0], band="prediction").lower)
        torch.testing.assert_close(own.upper[number], alone.predict(new[number]).upper)


def test_derived_quantities_have_the_errors_of_the_delta_method() -> None:
    fit = misra_fit()

    def derived(p: dict) -> dict:
        return {"slope": p["b1"] * p["b2"], "both": torch.stack([p["b1"], torch.log(p["b2"])])}

    value, errors, covariance = fit.propagate(derived)
    b1, b2 = (float(fit.value[name]) for name in ("b1", "b2"))
    gradient = np.array([[b2, b1], [1, 0], [0, 1 / b2]])
    expected = gradient @ fit.covariance.numpy() @ gradient.T
    np.testing.assert_allclose(covariance, expected, rtol=1e-9)
    assert float(value["slope"]) == pytest.approx(b1 * b2)
    assert float(errors["slope"]) == pytest.approx(expected[0, 0] ** 0.5, rel=1e-9)
    np.testing.assert_allclose(errors["both"], np.sqrt(np.diag(expected)[1:]), rtol=1e-9)


def test_samples_have_the_covariance_of_the_fit() -> None:
    t, y = decays(fits=2)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    draws = fits.sample(100_000, generator=torch.Generator().manual_seed(0))
    assert draws["rate"].shape == (100_000, 2, 1)
    flat = torch.stack([draws["a"], draws["rate"][..., 0], draws["c"]], -1)
    for number in range(2):
        found = torch.cov(flat[:, number].T)
        scale = fits.covariance[number].diagonal().sqrt()
        # The error of an estimated correlation from 1e5 draws is below 0.004.
        torch.testing.assert_close(found / (scale[:, None] * scale), fits.correlation[number], rtol=0, atol=0.015)
        torch.testing.assert_close(
            flat[:, number].mean(0), fits.of_problem(number).fitted.tensors.free, rtol=2e-3, atol=0
        )


def test_linear_intervals_reach_by_students_t() -> None:
    fit = misra_fit()
    lower, upper = fit.confidence_interval(0.9)
    reach = stats.t.ppf(0.95, 12) * float(fit.standard_errors["b1"])
    assert float(upper["b1"] - fit.value["b1"]) == pytest.approx(reach, rel=1e-12)
    assert float(fit.value["b1"] - lower["b1"]) == pytest.approx(reach, rel=1e-12)
    known = misra_fit(sigma=0.1, absolute_sigma=True)
    reach = stats.norm.ppf(0.975) * float(known.standard_errors["b1"])
    assert float(known.confidence_interval().upper["b1"] - known.value["b1"]) == pytest.approx(reach, rel=1e-12)


@pytest.mark.parametrize("level", LMFIT_PROFILE)
def test_profile_intervals_are_lmfits(level: float) -> None:
    lower, upper = misra_fit().confidence_interval(level, method="profile")
    expected = LMFIT_PROFILE[level]
    for found, ends in ((lower, expected[0]), (upper, expected[1])):  # lmfit's own root is good to 1e-6
        np.testing.assert_allclose([float(found["b1"]), float(found["b2"])], ends, rtol=1e-6)


def test_profile_intervals_are_roots_to_the_last_digits() -> None:
    """Of Misra1a's rate: S(c) has a closed form, the amplitude being linear; its root from `scipy.optimize.brentq`."""
    t, y = np.array(MISRA_T), np.array(MISRA_Y)

    def sum_of_squares(rate: float) -> float:
        shape = 1 - np.exp(-rate * t)
        return float(((y - shape * (shape @ y) / (shape @ shape)) ** 2).sum())

    fit = misra_fit()
    lower, upper = fit.confidence_interval(0.99, method="profile")
    rate, bound = (
        float(fit.value["b2"]),
        sum_of_squares(float(fit.value["b2"])) * (1 + stats.t.ppf(0.995, 12) ** 2 / 12),
    )
    for found, far in ((lower, 4e-4), (upper, 7e-4)):
        end = optimize.brentq(lambda c: sum_of_squares(c) - bound, rate, far, xtol=1e-18, rtol=1e-14)
        assert float(found["b2"]) == pytest.approx(end, rel=1e-11)


def profile_by_scipy(t: np.ndarray, y: np.ndarray, start: np.ndarray, number: int, side: int, q: float) -> float:
    """One end of a profile interval, written down from its definition: a root of S(c) − S (1 + q²/ν)."""

    def residual(p: np.ndarray) -> np.ndarray:
        return p[0] * np.exp(-p[1] * t) + p[2] - y

    options = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    best = optimize.least_squares(residual, start, **options)
    least = 2 * best.cost

    def excess(c: float) -> float:
        others = np.delete(best.x, number)
        held = optimize.least_squares(lambda z: residual(np.insert(z, number, c)), others, **options)
        return 2 * held.cost - least * (1 + q**2 / (len(t) - 3))

    return optimize.brentq(excess, best.x[number], best.x[number] + side * 0.5, xtol=1e-13)


def test_profile_intervals_of_a_batch_are_scipys() -> None:
    t, y = decays(fits=3, points=12)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    interval = fits.confidence_interval(method="profile")
    q = stats.t.ppf(0.975, 9)
    for fit in range(3):
        for number, name in enumerate(("a", "rate", "c")):
            for side, end in ((-1, interval.lower), (1, interval.upper)):
                expected = profile_by_scipy(t.numpy(), y[fit].numpy(), np.array([2.5, 1.3, 0.5]), number, side, q)
                assert float(end[name][fit]) == pytest.approx(expected, rel=1e-8)


def test_an_end_that_does_not_exist_is_infinite() -> None:
    """A rate that the points hardly determine: from above, χ² never rises enough (the first point is the only one that
    has anything of the decay)."""
    t = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], dtype=D)
    y = torch.tensor([3.0, 1.12, 0.96, 1.1, 0.9, 1.04], dtype=D)
    fit = mslsq.curve_fit(decay, t, y, P0)
    with pytest.warns(ProfileWarning, match="1 are NaN"):  # of the amplitude, which runs away with the rate
        interval = fit.confidence_interval(method="profile")
    assert math.isinf(float(interval.upper["rate"])) and math.isfinite(float(interval.lower["rate"]))
    # Independent: a rate of infinity leaves S below the bound.
    q = stats.t.ppf(0.975, 3)
    flat = float(((y[1:] - y[1:].mean()) ** 2).sum())
    assert flat < float(fit.chi_square) * (1 + q**2 / 3)


def test_a_fit_that_is_no_minimum_has_no_profile_and_says_so() -> None:
    t, y = decays()
    early = mslsq.LevenbergMarquardt(max_steps=2)
    fit = mslsq.curve_fit(decay, t, y, P0, solver=early)
    with pytest.warns(ProfileWarning, match="NaN"):
        interval = fit.confidence_interval(method="profile")
    assert bool(interval.lower["a"].isnan())


def test_one_parameter_has_a_profile() -> None:
    t, y = decays()
    fit = mslsq.curve_fit(lambda p, t: torch.exp(-p * t), t, (y - 0.5) / 2.5, torch.tensor(1.0, dtype=D))
    lower, upper = fit.confidence_interval(method="profile")
    q = stats.t.ppf(0.975, 29)
    data = ((y - 0.5) / 2.5).numpy()
    bound = float(fit.chi_square) * (1 + q**2 / 29)
    for end in (lower, upper):
        assert ((np.exp(-float(end) * t.numpy()) - data) ** 2).sum() == pytest.approx(bound, rel=1e-10)


@pytest.mark.slow
def test_everything_is_the_same_under_vmap() -> None:
    t, y = decays(fits=3)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    mapped = torch.func.vmap(lambda y: mslsq.curve_fit(decay, t, y, P0))(y)
    for ask in (
        lambda fit: fit.predict(t[:4], band="prediction"),
        lambda fit: fit.propagate(lambda p: p["a"] + p["c"]),
        lambda fit: fit.confidence_interval(),
        lambda fit: fit.confidence_interval(method="profile"),
        lambda fit: (fit.aic, fit.r_squared, fit.num_points),
    ):
        inside = torch.func.vmap(lambda y, ask=ask: ask(mslsq.curve_fit(decay, t, y, P0)))(y)
        for found in (ask(mapped), inside):
            for one, other in zip(
                torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(ask(fits)), strict=True
            ):
                torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    assert mapped.of_problem(1).report().partition("Solve")[0] == fits.report(1).partition("Solve")[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["profile", "linear", "band", "propagated", "aic"])
def test_derivatives_are_those_of_differences(kind: str) -> None:
    t, y = decays(points=12)

    def outcome(y: Tensor) -> Tensor:
        fit = mslsq.curve_fit(decay, t, y, P0)
        if kind == "band":
            return fit.predict(t[3:5], band="prediction").upper
        if kind == "propagated":
            return fit.propagate(lambda p: p["a"] * p["rate"]).standard_errors
        if kind == "aic":
            return fit.aic[None]
        interval = fit.confidence_interval(method=kind)
        return torch.stack([interval.lower["rate"][0], interval.upper["a"]])

    jacobian = torch.func.jacrev(outcome)(y)
    step = torch.zeros_like(y)
    step[2] = 1e-4
    numeric = (outcome(y + step) - outcome(y - step)) / 2e-4
    torch.testing.assert_close(jacobian[..., 2], numeric, rtol=1e-5, atol=1e-7)
    forward = torch.func.jvp(outcome, (y,), (step / 1e-4,))[1]
    torch.testing.assert_close(forward, numeric, rtol=1e-5, atol=1e-7)


def test_a_dict_of_a_fit_is_json() -> None:
    fit = misra_fit()
    found = json.loads(json.dumps(fit.to_dict()))
    assert found["parameters"]["b1"]["value"] == float(fit.value["b1"])
    assert found["aic"] == pytest.approx(LMFIT["aic"], rel=1e-9)
    assert found["correlations"] == {"b1, b2": pytest.approx(-0.99877617, abs=1e-7)}
    t, y = decays(fits=4)
    batch = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None)).to_dict()
    assert len(batch["bic"]) == len(batch["parameters"]["rate[0]"]["standard_error"]) == 4
    json.dumps(batch)


def test_a_table_of_a_fit_is_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = misra_fit().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.loc["b1", "value"] == pytest.approx(238.94213, rel=1e-7)
    t, y = decays(fits=4)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    table = fits.to_pandas()
    assert table.shape[0] == 4 and table.loc[3, "rate[0]"] == float(fits.value["rate"][3, 0])


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        misra_fit().to_pandas()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda fit: fit.predict(level=95), r"Write 0.95"),
        (lambda fit: fit.confidence_interval(1.0), "between 0 and 1"),
        (lambda fit: fit.confidence_interval(method="profil"), "Did you mean 'profile'"),
        (lambda fit: fit.predict(band="both"), "'confidence', 'prediction'"),
        (lambda fit: fit.report(0), "single fit"),
        (lambda fit: fit.sample(0), "positive integer"),
        (lambda fit: fit.propagate(lambda p: 3), "must return a tensor"),
    ],
)
def test_errors_say_what_to_write(ask, said: str) -> None:
    with pytest.raises(mslsq.ProblemError, match=said):
        ask(misra_fit())


def test_stated_intervals_hold_what_they_say() -> None:
    """400 fits: 95 % of the intervals hold the truth; the share has a standard deviation of 1.1 %."""
    t, y = decays(fits=400, seed=5, points=15)
    fits = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    truth = {"a": 2.5, "rate": 1.3, "c": 0.5}
    for method in ("linear", "profile"):
        interval = fits.confidence_interval(method=method)
        for name, true in truth.items():
            inside = (interval.lower[name] <= true) & (true <= interval.upper[name])
            assert 0.91 < float(inside.double().mean()) < 0.985
    band = fits.predict(t[:5])
    inside = (band.lower <= 2.5 * torch.exp(-1.3 * t[:5]) + 0.5) & (2.5 * torch.exp(-1.3 * t[:5]) + 0.5 <= band.upper)
    assert 0.91 < float(inside.double().mean()) < 0.985
