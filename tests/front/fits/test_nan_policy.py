"""A fit whose data are not numbers: with "propagate" it is NaN, and its batch mates are what they are."""

import warnings

import pytest
import torch
from torch import Tensor

import mslsq

D = torch.float64
T = torch.linspace(0, 4, 30, dtype=D)
START = torch.tensor([1.0, 1.0, 0.2], dtype=D)


def decay(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def measured(*shape: int) -> Tensor:
    noise = torch.randn(*shape, 30, generator=torch.Generator().manual_seed(0), dtype=D)
    return 2.5 * torch.exp(-1.3 * T) + 0.5 + 0.05 * noise


def spoiled(tensor: Tensor, *index: int) -> Tensor:
    return tensor.clone().index_put(tuple(map(torch.tensor, index)), torch.tensor(torch.nan, dtype=D))


@pytest.mark.parametrize("absolute", [False, True])
def test_one_nan_makes_its_fit_nan_and_no_other(absolute: bool) -> None:
    y, options = measured(3), {"in_dims": (None, 0, None), "sigma": 0.05, "absolute_sigma": absolute}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits = mslsq.curve_fit(decay, T, spoiled(y, 1, 4), START, nan_policy="propagate", **options)
    sound = mslsq.curve_fit(decay, T, y, START, **options)
    for name in ("value", "covariance", "standard_errors", "chi_square", "aic", "r_squared"):
        found, expected = getattr(fits, name), getattr(sound, name)
        assert bool(found[1].isnan().all()), name
        torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=1e-9, atol=1e-14)
    assert fits.solution.converged.tolist() == [True, False, True]
    assert fits.num_points.tolist() == [30, 30, 30]
    assert bool(fits.confidence_interval().lower[1].isnan().all()) and "nan" in fits.report(1)
    assert bool(fits.predict(T).mean[1].isnan().all())
    omitted = mslsq.curve_fit(decay, T, spoiled(y, 1, 4), START, **options)
    assert bool(omitted.value.isfinite().all()) and omitted.num_points.tolist() == [30, 29, 30]


@pytest.mark.parametrize("where", ["t", "y", "sigma"])
def test_nan_anywhere_counts_but_where_the_mask_leaves_it_out(where: str) -> None:
    data = {"t": T, "y": measured(), "sigma": torch.full((30,), 0.05, dtype=D)}
    data[where] = spoiled(data[where], 3)

    def fitted(mask: Tensor | None = None) -> mslsq.CurveFit:
        points = data["t"], data["y"], START
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return mslsq.curve_fit(decay, *points, sigma=data["sigma"], nan_policy="propagate", mask=mask)

    fit = fitted()
    assert (
        bool(fit.value.isnan().all()) and bool(fit.standard_errors.isnan().all()) and not bool(fit.solution.converged)
    )
    mask = torch.arange(30) != 3
    alone = mslsq.curve_fit(decay, T[mask], measured()[mask], START, sigma=0.05)
    torch.testing.assert_close(fitted(mask=mask).value, alone.value, rtol=1e-9, atol=0)


def test_it_goes_with_named_fixed_parameters_errors_of_t_vmap_and_prepared_fits() -> None:
    y = spoiled(measured(2), 0, 7)

    def named(p: dict[str, Tensor], t: Tensor) -> Tensor:
        return p["a"] * torch.exp(-p["rate"] * t) + p["c"]

    def fitted(y: Tensor) -> mslsq.CurveFit:
        start = {"a": 1.0, "rate": 1.0, "c": 0.5}
        return mslsq.curve_fit(named, T, y, start, fixed={"c": True}, sigma_t=0.1, sigma=0.05, nan_policy="propagate")

    fits = torch.func.vmap(fitted)(y)
    assert fits.value["rate"].isnan().tolist() == [True, False] and fits.value["c"].tolist() == [0.5, 0.5]
    assert bool(fits.corrections[0].isnan().all()) and bool(fits.corrections[1].isfinite().all())
    prepared = mslsq.prepared(mslsq.curve_fit, decay, T, y[1], START, nan_policy="propagate")
    assert bool(prepared(T, y[0], START).value.isnan().all()) and bool(prepared(T, y[1], START).value.isfinite().all())
    refusing = mslsq.prepared(mslsq.curve_fit, decay, T, y[1], START, nan_policy="raise")
    with pytest.raises(mslsq.ProblemError, match="NaN or infinite"):
        refusing(T, y[0], START)


def test_derivatives_of_batch_mates_are_not_disturbed() -> None:
    y = measured(2)

    def rates(y: Tensor) -> Tensor:
        return mslsq.curve_fit(decay, T, y, START, in_dims=(None, 0, None), nan_policy="propagate").value[:, 1]

    own = torch.func.grad(lambda y: rates(y)[1])(spoiled(y, 0, 7))[1]
    torch.testing.assert_close(own, torch.func.grad(lambda y: rates(y)[1])(y)[1], rtol=1e-7, atol=1e-12)
