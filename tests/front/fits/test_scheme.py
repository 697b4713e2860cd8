"""Parameters that are held or tied: the same fit as one whose model is written without them."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

import mslsq

D = torch.float64
T = torch.linspace(0, 4, 30, dtype=D)
P0 = {"a": 1.0, "rate": 1.0, "c": 0.2}


def decay(p: dict, t: Tensor) -> Tensor:
    return p["a"] * torch.exp(-p["rate"] * t) + p["c"]


def measured(*shape: int, seed: int = 0) -> Tensor:
    noise = torch.randn(*shape, 30, generator=torch.Generator().manual_seed(seed), dtype=D)
    return 2.5 * torch.exp(-1.3 * T) + 0.5 + 0.05 * noise


@pytest.mark.parametrize("fixed", [{"c": 0.4}, {"c": torch.tensor(0.4, dtype=D)}])
@pytest.mark.parametrize("start", [P0, {"a": 1.0, "rate": 1.0}])
def test_a_held_parameter_is_a_constant_of_the_model(fixed: dict, start: dict) -> None:
    y = measured()
    fit = mslsq.curve_fit(decay, T, y, start, fixed=fixed)
    written = mslsq.curve_fit(lambda p, t: decay({**p, "c": 0.4}, t), T, y, {"a": 1.0, "rate": 1.0})
    assert fit.names == ("a", "rate", "c") and fit.notes == ("", "", "fixed") and fit.num_parameters == 2
    for name in ("a", "rate"):
        torch.testing.assert_close(fit.value[name], written.value[name], rtol=1e-9, atol=0)
        torch.testing.assert_close(fit.standard_errors[name], written.standard_errors[name], rtol=1e-9, atol=0)
    assert float(fit.value["c"]) == 0.4 and float(fit.standard_errors["c"]) == 0.0
    torch.testing.assert_close(fit.covariance[:2, :2], written.covariance, rtol=1e-8, atol=0)
    torch.testing.assert_close(fit.aic, written.aic)
    assert not fit.covariance[2].any()
    for method in ("linear", "profile"):
        own, other = (f.confidence_interval(method=method) for f in (fit, written))
        torch.testing.assert_close(own.lower["rate"], other.lower["rate"], rtol=1e-9, atol=0)
        assert float(own.lower["c"]) == float(own.upper["c"]) == 0.4
    for band in ("confidence", "prediction"):
        torch.testing.assert_close(fit.predict(T, band=band).upper, written.predict(T, band=band).upper)
    assert "fixed" in fit.report()


def test_true_holds_the_start_also_of_a_batch_and_masks_hold_entries() -> None:
    y = measured(3)
    offsets = torch.tensor([0.4, 0.5, 0.6], dtype=D)
    start = {"a": torch.tensor(1.0, dtype=D), "rate": torch.tensor(1.0, dtype=D), "c": offsets}
    dims = (None, 0, {"a": None, "rate": None, "c": 0})
    fits = mslsq.curve_fit(decay, T, y, start, fixed={"c": True}, in_dims=dims)
    for number in range(3):
        alone = mslsq.curve_fit(decay, T, y[number], P0, fixed={"c": float(offsets[number])})
        torch.testing.assert_close(fits.value["rate"][number], alone.value["rate"], rtol=1e-9, atol=0)
        torch.testing.assert_close(fits.covariance[number], alone.covariance, rtol=1e-7, atol=1e-14)
        own, other = (f.partition("Solve")[0] for f in (fits.report(number), alone.report()))
        assert own == other

    def vector(p: Tensor, t: Tensor) -> Tensor:
        return p[0, 0] * torch.exp(-p[0, 1] * t) + p[1, 0] + 0 * p[1, 1]

    p0 = torch.tensor([[1.0, 1.0], [0.4, 9.0]], dtype=D)
    mask = torch.tensor([[False, False], [True, True]])
    fit = mslsq.curve_fit(vector, T, y[0], p0, fixed=mask)
    assert fit.notes == ("", "", "fixed", "fixed") and fit.value[1].tolist() == [0.4, 9.0]
    torch.testing.assert_close(fit.value[0, 1], fits.value["rate"][0], rtol=1e-9, atol=0)
    reordered = mslsq.curve_fit(
        lambda p, t: vector(p.flip(0), t), T, y[0], p0.flip(0), fixed=mask.flip(0), solver=mslsq.LevenbergMarquardt()
    )
    torch.testing.assert_close(reordered.value.flip(0), fit.value, rtol=1e-9, atol=0)


def test_a_tied_parameter_is_a_function_of_the_others() -> None:
    y = measured()

    def substituted(p: dict, t: Tensor) -> Tensor:
        return decay({"a": p["a"], "rate": p["rate"], "c": p["a"] / 5}, t)

    written = mslsq.curve_fit(substituted, T, y, {"a": 1.0, "rate": 1.0})
    fit = mslsq.curve_fit(decay, T, y, P0, tied={"c": lambda p: p["a"] / 5})
    assert fit.names == ("a", "rate", "c") and fit.notes == ("", "", "tied")
    torch.testing.assert_close(fit.value["rate"], written.value["rate"], rtol=1e-9, atol=0)
    torch.testing.assert_close(fit.value["c"], written.value["a"] / 5, rtol=1e-9, atol=0)
    torch.testing.assert_close(fit.standard_errors["c"], written.standard_errors["a"] / 5, rtol=1e-8, atol=0)
    assert float(fit.correlation[0, 2]) == pytest.approx(1)
    torch.testing.assert_close(fit.predict(T).upper, written.predict(T).upper, rtol=1e-9, atol=0)
    half = fit.propagate(lambda p: p["c"] * p["rate"])
    other = written.propagate(lambda p: p["a"] / 5 * p["rate"])
    torch.testing.assert_close(half.standard_errors, other.standard_errors, rtol=1e-8, atol=0)
    draws = fit.sample(5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws["c"], draws["a"] / 5)
    profile = fit.confidence_interval(method="profile")
    torch.testing.assert_close(profile.upper["a"], written.confidence_interval(method="profile").upper["a"])
    assert bool(profile.upper["c"].isnan())
    assert "tied" in fit.report()


def test_ties_may_use_fixed_parameters_and_earlier_ties_and_need_no_start() -> None:
    y = measured()
    fit = mslsq.curve_fit(
        decay,
        T,
        y,
        {"a": 1.0},
        fixed={"c": 0.5},
        tied={"half": lambda p: p["a"] * p["c"], "rate": lambda p: p["half"] + 0.05},
    )
    assert fit.notes == ("", "fixed", "tied", "tied") and fit.names == ("a", "c", "half", "rate")
    written = mslsq.curve_fit(
        lambda p, t: decay({"a": p, "c": 0.5, "rate": p * 0.5 + 0.05}, t), T, y, torch.tensor(1.0, dtype=D)
    )
    torch.testing.assert_close(fit.value["a"], written.value, rtol=1e-10, atol=0)
    torch.testing.assert_close(fit.standard_errors["rate"], 0.5 * written.standard_errors, rtol=1e-9, atol=0)


def test_batches_vmap_and_prepared_fits_hold_and_tie_alike() -> None:
    y = measured(3)
    options = {"fixed": {"c": 0.5}, "tied": {"rate": lambda p: p["a"] / 2}}
    fits = mslsq.curve_fit(decay, T, y, P0, in_dims=(None, 0, None), **options)
    mapped = torch.func.vmap(lambda y: mslsq.curve_fit(decay, T, y, P0, **options))(y)
    prepared = mslsq.prepared(mslsq.curve_fit, decay, T, y[0], P0, **options)
    for number in range(3):
        alone = mslsq.curve_fit(decay, T, y[number], P0, **options)
        for other in (fits.of_problem(number), mapped.of_problem(number), prepared(T, y[number], P0)):
            torch.testing.assert_close(other.covariance, alone.covariance, rtol=1e-8, atol=1e-14)
            torch.testing.assert_close(other.value["rate"], alone.value["rate"], rtol=1e-9, atol=0)
            assert other.notes == alone.notes
    draws = fits.sample(4, generator=torch.Generator().manual_seed(1))
    assert draws["rate"].shape == (4, 3)
    torch.testing.assert_close(draws["rate"], draws["a"] / 2)


def test_the_value_held_carries_a_derivative() -> None:
    y = measured()

    def outcome(c: Tensor) -> Tensor:
        fit = mslsq.curve_fit(decay, T, y, P0, fixed={"c": c})
        return torch.stack([fit.value["rate"], fit.standard_errors["a"], fit.value["c"]])

    c = torch.tensor(0.5, dtype=D)
    numeric = (outcome(c + 1e-5) - outcome(c - 1e-5)) / 2e-5
    torch.testing.assert_close(torch.func.jacrev(outcome)(c), numeric, rtol=1e-5, atol=1e-8)


def test_a_wrong_value_is_not_kept_between_calls() -> None:
    """The functions are written again in every call, with the same code and other numbers in it."""
    y = measured()
    for c in (0.3, 0.5):
        for share in (2.0, 3.0):
            fit = mslsq.curve_fit(decay, T, y, P0, fixed={"c": c}, tied={"rate": lambda p, share=share: p["a"] / share})
            design = np.array([float(fit.value["a"]), float(fit.value["rate"]), float(fit.value["c"])])
            assert design[2] == c and design[1] == pytest.approx(design[0] / share)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fixed": {"d": True}}, "'d'.*Known"),
        ({"fixed": {"a": 1.0, "rate": 1.0, "c": True}}, "nothing to fit"),
        ({"fixed": {"c": 1.0}, "tied": {"c": lambda p: p["a"]}}, "both fixed and tied"),
        ({"tied": {"c": 3.0}}, "must be a function"),
        ({"tied": {"c": lambda p: 3.0}}, "must return a tensor"),
        ({"fixed": {"c": torch.ones(2, dtype=torch.bool)}}, r"shape \(2,\)"),
        ({"fixed": {"c": "0"}}, "must be a real number"),
    ],
)
def test_errors_say_what_does_not_fit(options: dict, said: str) -> None:
    with pytest.raises(mslsq.ProblemError, match=said):
        mslsq.curve_fit(decay, T, measured(), P0, **options)
    with pytest.raises(mslsq.ProblemError, match="p0 must be a dict"):
        mslsq.curve_fit(lambda p, t: p[0] * t, T, measured(), torch.ones(2, dtype=D), tied={"b": lambda p: p})


def fifth(p: dict) -> Tensor:
    return p["a"] / 5


def test_a_fit_with_a_model_that_pickles_pickles() -> None:
    plain = mslsq.curve_fit(decay, T, measured(), P0)
    tied = mslsq.curve_fit(decay, T, measured(), {**P0, "d": 2.0}, fixed={"d": True}, tied={"c": fifth})
    for fit in (plain, tied):
        again = pickle.loads(pickle.dumps(fit))
        assert again.report() == fit.report() and again.names == fit.names
        own, other = (f.confidence_interval(method="profile") for f in (fit, again))
        torch.testing.assert_close(own, other, equal_nan=True)


def test_without_its_model_a_fit_pickles_all_the_same() -> None:
    t = torch.linspace(0, 1, 20, dtype=torch.float64)
    fit = mslsq.curve_fit(lambda p, t: p[0] * t + p[1], t, 2 * t + torch.sin(9 * t), torch.zeros(2, dtype=t.dtype))
    again = pickle.loads(pickle.dumps(fit))
    assert torch.equal(again.value, fit.value) and torch.equal(again.covariance, fit.covariance)
    with pytest.raises(mslsq.errors.ProblemError, match="define the model in a module"):
        again.predict(t)
    assert torch.equal(copy.deepcopy(fit).predict(t).mean, fit.predict(t).mean)
