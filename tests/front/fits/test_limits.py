"""Bounds beside fixed and tied parameters: the same fit as one whose model is written without those."""

import math

import pytest
import torch
from torch import Tensor

import mslsq

D = torch.float64
T = torch.linspace(0, 4, 30, dtype=D)
P0 = {"a": 1.0, "rate": 1.0, "c": 0.2}


def decay(p: dict, t: Tensor) -> Tensor:
    return p["a"] * torch.exp(-p["rate"] * t) + p["c"]


def measured(*shape: int) -> Tensor:
    noise = torch.randn(*shape, 30, generator=torch.Generator().manual_seed(0), dtype=D)
    return 2.5 * torch.exp(-1.3 * T) + 0.5 + 0.05 * noise


def test_bounds_apply_to_what_is_neither_fixed_nor_tied() -> None:
    y = measured()
    bounds = ({"a": 0.0, "rate": 0.0, "c": 0.0}, {"a": 2.0, "rate": 5.0, "c": 1.0})
    fit = mslsq.curve_fit(decay, T, y, P0, bounds=bounds, fixed={"c": 0.4})
    written = mslsq.curve_fit(
        lambda p, t: decay({**p, "c": 0.4}, t), T, y, {"a": 1.0, "rate": 1.0}, bounds=(0.0, {"a": 2.0, "rate": 5.0})
    )
    assert {name: int(side) for name, side in fit.solution.active.items()} == {"a": 1, "rate": 0, "c": 0}
    torch.testing.assert_close(fit.value["rate"], written.value["rate"], rtol=1e-9, atol=0)
    torch.testing.assert_close(fit.covariance[:2, :2], written.covariance, rtol=1e-8, atol=0)
    lines = {line.split()[0]: line for line in fit.report().splitlines()[2:5]}
    assert lines["a"].endswith("at its upper bound") and lines["c"].endswith("fixed")
    assert not lines["rate"].endswith("bound")


def test_a_tied_parameter_follows_one_on_its_bound() -> None:
    y, start, ties = measured(), {**P0, "rate": 1.5}, {"c": lambda p: p["a"] / 5}
    bounds = ({"a": None, "rate": 1.4}, {"a": math.inf, "c": None})
    fit = mslsq.curve_fit(decay, T, y, start, bounds=bounds, tied=ties)
    assert float(fit.value["rate"]) == 1.4 and [int(side) for side in fit.solution.active.values()] == [0, -1, 0]
    design = torch.exp(-1.4 * T) + 0.2  # with the rate known the model is linear in a
    torch.testing.assert_close(fit.value["a"], (design @ y) / (design @ design), rtol=1e-9, atol=0)
    torch.testing.assert_close(fit.value["c"], fit.value["a"] / 5)
    variance = fit.reduced_chi_square / (design @ design)
    torch.testing.assert_close(fit.standard_errors["c"], variance.sqrt() / 5, rtol=1e-8, atol=0)
    assert "at its lower bound" in fit.report() and "tied" in fit.report()


def test_single_entries_are_held_while_others_are_bounded_per_fit() -> None:
    y = measured(3)

    def vector(p: Tensor, t: Tensor) -> Tensor:
        return p[2] * torch.exp(-p[1] * t) + p[0]

    start = torch.tensor([[0.3, 1.0, 1.0], [0.4, 1.0, 1.0], [0.5, 1.0, 1.0]], dtype=D)
    upper = torch.tensor([[0.9, 2.0, 2.2], [0.9, 2.0, 9.0], [0.9, 1.1, 9.0]], dtype=D)
    mask = torch.tensor([True, False, False])
    options = {"in_dims": (None, 0, 0), "fixed": mask}
    fits = mslsq.curve_fit(vector, T, y, start, bounds=(0.0, upper), **options)
    prepared = mslsq.prepared(mslsq.curve_fit, vector, T, y, start, bounds=(0.0, upper), **options)
    mapped = torch.func.vmap(
        lambda y, p, upper: mslsq.curve_fit(vector, T, y, p, bounds=(0.0, upper), fixed=mask), in_dims=(0, 0, 0)
    )(y, start, upper)
    assert fits.solution.active.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]
    for number in range(3):
        alone = mslsq.curve_fit(
            lambda p, t, c=float(start[number, 0]): p[1] * torch.exp(-p[0] * t) + c,
            *(T, y[number], start[number, 1:]),
            bounds=(0.0, upper[number, 1:]),
        )
        for found in (fits, mapped, prepared(T, y, start)):
            torch.testing.assert_close(found.value[number, 1:], alone.value, rtol=1e-8, atol=0)
            torch.testing.assert_close(found.covariance[number, 1:, 1:], alone.covariance, rtol=1e-7, atol=1e-14)


def test_a_bound_beside_fixed_parameters_carries_a_derivative() -> None:
    y = measured()

    def rate(upper: Tensor) -> Tensor:
        return mslsq.curve_fit(decay, T, y, P0, bounds=(None, {"a": upper}), fixed={"c": 0.4}).value["rate"]

    upper = torch.tensor(2.0, dtype=D)
    numeric = (rate(upper + 1e-5) - rate(upper - 1e-5)) / 2e-5
    torch.testing.assert_close(torch.func.grad(rate)(upper), numeric, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bounds": (0, 3), "tied": {"c": lambda p: p["a"]}}, "tied parameter 'c', too"),
        ({"bounds": ({"c": 0.0}, None), "tied": {"c": lambda p: p["a"]}}, "Bound what it is tied to"),
        ({"bounds": (None, {"c": 0.3}), "fixed": {"c": 0.4}}, r"\['c'\] is held outside of its upper bound, by 0.1"),
        ({"bounds": (None, {"d": 0.3}), "fixed": {"c": 0.4}}, r"has the parts .*\['d'\]"),
    ],
)
def test_errors_say_which_bound_does_not_fit(options: dict, said: str) -> None:
    with pytest.raises(mslsq.ProblemError, match=said):
        mslsq.curve_fit(decay, T, measured(), P0, **options)


def test_a_start_that_is_held_outside_its_bound_is_found_in_a_batch() -> None:
    starts = {"a": 1.0, "rate": 1.0, "c": torch.tensor([0.1, 0.2, 0.3], dtype=D)}
    dims = (None, None, {"a": None, "rate": None, "c": 0})
    with pytest.raises(mslsq.ProblemError, match=r"held outside of its upper bound, by 0\.05"):
        mslsq.curve_fit(decay, T, measured(), starts, fixed={"c": True}, bounds=(None, {"c": 0.25}), in_dims=dims)
