"""Very many fits are solved in slices: the same results as at once, in memory that does not grow with the solve's."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq import pytree
from mslsq.front.fits import pieces

D = torch.float64
T = torch.linspace(0, 4, 12, dtype=D)
START = {"a": 1.0, "rate": 1.0, "c": 0.2}
COUNT = 23


def decay(p: dict[str, Tensor], t: Tensor) -> Tensor:
    return p["a"] * torch.exp(-p["rate"] * t) + p["c"]


def measured() -> Tensor:
    noise = torch.randn(COUNT, 12, generator=torch.Generator().manual_seed(0), dtype=D)
    return 2.5 * torch.exp(-1.3 * T) + 0.5 + 0.02 * noise


def alike(sliced: mslsq.CurveFit, whole: mslsq.CurveFit) -> None:
    for name in ("value", "covariance", "standard_errors", "chi_square", "r_squared", "corrections", "num_points"):
        found, expected = (pytree.leaves(getattr(fit, name)) for fit in (sliced, whole))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13, equal_nan=True)
    torch.testing.assert_close(sliced.predict(T).upper, whole.predict(T).upper, rtol=1e-9, atol=0, equal_nan=True)
    assert sliced.notes == whole.notes
    assert sliced.report(COUNT - 1).partition("Solve")[0] == whole.report(COUNT - 1).partition("Solve")[0]


def of_y(y: Tensor) -> dict[str, Any]:
    return {"y": y, "t": T, "p0": START, "in_dims": (None, 0, None)}


def own_points(y: Tensor) -> dict[str, Any]:
    scale = 1 + 0.1 * torch.rand(COUNT, 1, generator=torch.Generator().manual_seed(1), dtype=D)
    t = (T * scale).mT
    start = {"a": torch.linspace(1, 2, COUNT, dtype=D), "rate": 1.0, "c": 0.2}
    dims = (1, 0, {"a": 0, "rate": None, "c": None}, 0)
    return {"y": y, "t": t, "p0": start, "in_dims": dims, "sigma": 0.1 * scale.expand(COUNT, 12)}


def held(y: Tensor) -> dict[str, Any]:
    start = {"rate": 1.0, "c": torch.linspace(0.4, 0.6, COUNT, dtype=D)}
    dims = (None, 0, {"rate": None, "c": 0})
    return {"y": y, "t": T, "p0": start, "in_dims": dims, "fixed": {"c": True}, "tied": {"a": lambda p: 2 * p["rate"]}}


def with_errors_of_t(y: Tensor) -> dict[str, Any]:
    return {
        **of_y(y),
        "t": T.expand(COUNT, 12),
        "in_dims": (0, 0, None),
        "sigma_t": 0.1 * torch.ones(COUNT, 12, dtype=D),
    }


def with_missing_points(y: Tensor) -> dict[str, Any]:
    return {**of_y(y.index_put((torch.tensor(3), torch.tensor(2)), torch.tensor(torch.nan, dtype=D)))}


def propagated(y: Tensor) -> dict[str, Any]:
    return {**with_missing_points(y), "nan_policy": "propagate"}


def counts(y: Tensor) -> dict[str, Any]:
    return {**of_y((20 * y).round()), "p0": {"a": 40.0, "rate": 1.0, "c": 8.0}, "noise": "poisson"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [of_y, own_points, held, with_errors_of_t, with_missing_points, propagated, counts])
def test_slices_find_what_one_solve_finds(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {**case(measured()), "solver": mslsq.LevenbergMarquardt(ftol=1e-14)}
    whole = mslsq.curve_fit(decay, **arguments)
    monkeypatch.setattr(pieces, "MOST_AT_ONCE", 5)
    sliced = mslsq.curve_fit(decay, **arguments)
    alike(sliced, whole)
    assert whole.solution.history.cost.shape[1] > 1 and sliced.solution.history.cost.shape == (COUNT, 0)


def test_slices_have_the_same_derivatives_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_AT_ONCE", 5)
    y = measured().requires_grad_()
    fits = mslsq.curve_fit(decay, **of_y(y))
    own = torch.autograd.grad(fits.standard_errors["rate"][17] + fits.value["a"][17], y)[0]
    alone = y[17].detach().requires_grad_()
    fit = mslsq.curve_fit(decay, T, alone, START)
    expected = torch.autograd.grad(fit.standard_errors["rate"] + fit.value["a"], alone)[0]
    torch.testing.assert_close(own[17], expected, rtol=1e-6, atol=1e-10)
    assert not own[:17].any() and not own[18:].any()
    flat = measured()
    flat[[2, 20]] = 0.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mslsq.curve_fit(decay, T, flat, {"a": 0.0, "rate": 1.0, "c": 0.0}, in_dims=(None, 0, None))
    assert len(said) == 1 and f"2 of {COUNT} fits" in str(said[0].message)


def test_one_solve_is_kept_for_what_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_AT_ONCE", 5)
    y = measured()
    seen = []
    solver = mslsq.LevenbergMarquardt(callback=lambda state: seen.append(state) and None)
    assert mslsq.curve_fit(decay, **of_y(y), solver=solver).solution.history.cost.shape[1] > 1
    with pytest.raises(mslsq.ProblemError, match="of problem 17 is"):
        start = {**START, "c": torch.zeros(COUNT, dtype=D).index_fill(0, torch.tensor(17), -1.0)}
        dims = (None, 0, {"a": None, "rate": None, "c": 0})
        mslsq.curve_fit(decay, T, y, start, in_dims=dims, bounds=(0.0, None))
    mapped = torch.func.vmap(lambda y: mslsq.curve_fit(decay, T, y, START))(y)
    assert mapped.solution.history.cost.shape[1] > 1
