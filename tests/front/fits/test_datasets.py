"""Several sets of data with common parameters: the same as one long vector; against SciPy; batched."""

import numpy as np
import pytest
import torch
from scipy.optimize import curve_fit as scipy_curve_fit

import mslsq

D = torch.float64
T = {"early": torch.linspace(0, 2, 15, dtype=D), "late": torch.linspace(1, 5, 9, dtype=D)}
P0 = {"rate": 1.0, "a": [1.0, 1.0], "c": 0.0}


def model(p: dict, t: dict) -> dict:
    """One rate and one offset, two amplitudes."""
    return {
        name: a * torch.exp(-p["rate"] * t[name]) + p["c"] for name, a in zip(("early", "late"), p["a"], strict=True)
    }


def measured(*batch: int, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    truth = model({"rate": 1.3, "a": [2.5, 4.0], "c": 0.5}, T)
    return {name: y + 0.03 * torch.randn(*batch, len(y), generator=generator, dtype=D) for name, y in truth.items()}


def test_a_global_fit_is_scipys_of_the_joined_data() -> None:
    y = measured()
    sigma = {"early": torch.full((15,), 0.02, dtype=D), "late": torch.full((9,), 0.05, dtype=D)}
    fit = mslsq.curve_fit(model, T, y, P0, sigma=sigma, absolute_sigma=True)
    times = torch.cat(list(T.values())).numpy()
    first = np.arange(24) < 15

    def joined(t: np.ndarray, rate: float, a: float, b: float, c: float) -> np.ndarray:
        return np.where(first, a, b) * np.exp(-rate * t) + c

    value, covariance = scipy_curve_fit(
        joined,
        times,
        torch.cat(list(y.values())).numpy(),
        [1, 1, 1, 0],
        sigma=torch.cat(list(sigma.values())).numpy(),
        absolute_sigma=True,
        xtol=1e-14,
        ftol=1e-14,
    )
    assert fit.names == ("rate", "a[0]", "a[1]", "c")
    found = [fit.value["rate"], *fit.value["a"], fit.value["c"]]
    np.testing.assert_allclose(torch.stack(found), value, rtol=1e-6)
    np.testing.assert_allclose(fit.covariance, covariance, rtol=1e-5)
    assert int(fit.num_points) == 24
    prediction = fit.predict(T)
    assert {name: band.shape for name, band in prediction.upper.items()} == {"early": (15,), "late": (9,)}
    torch.testing.assert_close(prediction.mean["late"], model(fit.value, T)["late"])
    band = fit.predict(T, band="prediction", sigma=sigma)
    q = 1.959963984540054
    noise = (band.upper["late"] - band.mean["late"]) ** 2 - (prediction.upper["late"] - prediction.mean["late"]) ** 2
    torch.testing.assert_close(noise, torch.full_like(noise, (q * 0.05) ** 2))
    assert "a[1]" in fit.report()


@pytest.mark.parametrize("own_times", [False, True])
def test_a_batch_of_global_fits_is_the_fits_one_by_one(own_times: bool) -> None:
    y = measured(3)
    t = {name: own.expand(3, -1) + 0.01 * torch.arange(3)[:, None] for name, own in T.items()} if own_times else T
    missing = {"early": torch.zeros(3, 15, dtype=torch.bool), "late": torch.zeros(3, 9, dtype=torch.bool)}
    missing["late"][1, 4] = True
    mask = {name: ~own for name, own in missing.items()}
    fits = mslsq.curve_fit(model, t, y, P0, mask=mask, in_dims=(0 if own_times else None, 0, None))
    mapped = torch.func.vmap(
        lambda t, y, mask: mslsq.curve_fit(model, t, y, P0, mask=mask), in_dims=(0 if own_times else None, 0, 0)
    )(t, y, mask)
    for number in range(3):
        t_one = {name: own[number] for name, own in t.items()} if own_times else t
        y_one = {name: torch.where(missing[name][number], torch.nan, own[number]) for name, own in y.items()}
        alone = mslsq.curve_fit(model, t_one, y_one, P0)
        for other in (fits.of_problem(number), mapped.of_problem(number)):
            torch.testing.assert_close(other.covariance, alone.covariance, rtol=1e-7, atol=1e-14)
            torch.testing.assert_close(other.r_squared, alone.r_squared)
            torch.testing.assert_close(other.predict().upper["late"], alone.predict().upper["late"])
    assert fits.num_points.tolist() == [24, 23, 24]


def test_a_batch_may_share_one_of_its_sets() -> None:
    y = measured(3)
    y["early"] = y["early"][0]
    fits = mslsq.curve_fit(model, T, y, P0, in_dims=(None, {"early": None, "late": 0}, None))
    alone = mslsq.curve_fit(model, T, {"early": y["early"], "late": y["late"][2]}, P0)
    torch.testing.assert_close(fits.covariance[2], alone.covariance, rtol=1e-7, atol=1e-14)


def test_derivatives_reach_every_set() -> None:
    y = measured()
    gradient = torch.func.grad(lambda y: mslsq.curve_fit(model, T, y, P0).value["rate"])(y)
    step = 1e-5
    for name in y:
        moved = [{**y, name: y[name] + sign * step * torch.eye(len(y[name]), dtype=D)[2]} for sign in (1, -1)]
        high, low = (mslsq.curve_fit(model, T, each, P0).value["rate"] for each in moved)
        torch.testing.assert_close(gradient[name][2], (high - low) / (2 * step), rtol=1e-5, atol=1e-8)


def test_a_profile_of_a_common_parameter_is_that_of_the_joined_fit() -> None:
    y = measured()
    fit = mslsq.curve_fit(model, T, y, P0)
    plain = mslsq.curve_fit(
        lambda p, t: torch.cat([p[1] * torch.exp(-p[0] * t[:15]), p[2] * torch.exp(-p[0] * t[15:])]) + p[3],
        torch.cat(list(T.values())),
        torch.cat(list(y.values())),
        torch.ones(4, dtype=D),
    )
    own, other = (f.confidence_interval(method="profile") for f in (fit, plain))
    torch.testing.assert_close(own.lower["rate"], other.lower[0], rtol=1e-8, atol=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sigma": torch.ones(24, dtype=D)}, "sigma must be a pytree like y"),
        ({"model": lambda p, t: model(p, t)["early"]}, "must return a pytree like y"),
        ({"model": lambda p, t: {name: y[:3] for name, y in model(p, t).items()}}, r"\(3,\) for a set"),
        ({"y": {"early": torch.ones(15), "late": torch.ones(9, dtype=D)}}, "different dtypes"),
        ({"y": {"early": 3, "late": torch.ones(9, dtype=D)}}, "pytree of them"),
    ],
)
def test_errors_say_which_set_does_not_fit(change: dict, said: str) -> None:
    arguments: dict = {"model": model, "t": T, "y": measured(), "p0": P0, **change}
    with pytest.raises(mslsq.ProblemError, match=said):
        mslsq.curve_fit(**arguments)


def test_a_picture_shows_all_sets() -> None:
    pytest.importorskip("matplotlib")
    figure = mslsq.curve_fit(model, T, measured(), P0).plot()
    assert len(figure.axes[1].containers[0].lines[0].get_ydata()) == 24
