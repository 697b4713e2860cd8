"""curve_fit: values and covariances against SciPy and NIST's certified ones; batches, missing points, derivatives."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import curve_fit as scipy_curve_fit
from torch import Tensor

import mslsq
from mslsq.datasets import nist
from mslsq.errors import CovarianceWarning

D = torch.float64
TIGHT = mslsq.LevenbergMarquardt(ftol=1e-15, gtol=1e-15, xtol=1e-12, max_steps=200)


def decay(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def numpy_decay(t: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
    return a * np.exp(-b * t) + c


def measurements(seed: int = 0, points: int = 30, fits: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(t, y, sigma) of noisy decays."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 4, points, dtype=D)
    shape = (points,) if fits is None else (fits, points)
    sigma = 0.02 + 0.05 * torch.rand(shape, generator=generator, dtype=D)
    noise = sigma * torch.randn(shape, generator=generator, dtype=D)
    return t, decay(torch.tensor([2.5, 1.3, 0.5], dtype=D), t) + noise, sigma


P0 = torch.ones(3, dtype=D)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("kind", ["none", "scalar", "each", "matrix"])
def test_values_and_covariance_are_scipys(kind: str, absolute: bool) -> None:
    t, y, each = measurements()
    lag = (t[:, None] - t[None, :]).abs()
    sigma = {"none": None, "scalar": 0.05, "each": each, "matrix": each[:, None] * each * torch.exp(-lag / 0.3)}[kind]
    fit = mslsq.curve_fit(decay, t, y, P0, sigma=sigma, absolute_sigma=absolute, solver=TIGHT)
    given: Any = sigma.numpy() if isinstance(sigma, Tensor) else None if sigma is None else np.full(len(t), sigma)
    value, covariance = scipy_curve_fit(
        numpy_decay, t.numpy(), y.numpy(), np.ones(3), sigma=given, absolute_sigma=absolute, ftol=1e-14, xtol=1e-14
    )
    # SciPy's Jacobian is a finite difference, good to some 1e-8.
    np.testing.assert_allclose(fit.value.numpy(), value, rtol=1e-6)
    np.testing.assert_allclose(fit.covariance.numpy(), covariance, rtol=1e-5)
    torch.testing.assert_close(fit.standard_errors, fit.covariance.diagonal().sqrt())


@pytest.mark.parametrize(("loss", "name"), [(mslsq.SoftL1(1.0), "soft_l1"), (mslsq.Cauchy(1.0), "cauchy")])
def test_a_loss_means_what_it_means_in_scipy(loss: mslsq.RobustLoss, name: str) -> None:
    t, y, sigma = measurements()
    y = y + torch.where(torch.arange(len(t)) % 7 == 3, 1.0, 0.0)
    fit = mslsq.curve_fit(decay, t, y, P0, sigma=sigma, loss=loss, solver=TIGHT)
    value, covariance = scipy_curve_fit(
        numpy_decay,
        t.numpy(),
        y.numpy(),
        fit.value.numpy(),
        sigma=sigma.numpy(),
        method="trf",
        loss=name,
        ftol=1e-15,
        xtol=1e-15,
        gtol=1e-12,
    )
    np.testing.assert_allclose(fit.value.numpy(), value, rtol=1e-6)
    np.testing.assert_allclose(
        fit.covariance.numpy(), covariance, rtol=1e-4
    )  # SciPy differentiates the model numerically


@pytest.mark.parametrize("name", sorted(nist.MODELS))
def test_standard_errors_are_nists_certified_ones(nist_set: Callable[[str], nist.Regression], name: str) -> None:
    regression = nist_set(name)
    solver = dataclasses.replace(TIGHT, max_steps=1000)  # Bennett5 takes 330
    fit = mslsq.curve_fit(regression.model, regression.t, regression.y, regression.starts[1], solver=solver)
    torch.testing.assert_close(fit.value, regression.certified, rtol=1e-6, atol=0)
    errors = 1e-3 if name == "Lanczos1" else 1e-6  # of residuals that are rounding
    torch.testing.assert_close(fit.standard_errors, regression.standard_deviations, rtol=errors, atol=0)


def test_a_batch_is_the_fits_one_by_one() -> None:
    t, y, sigma = measurements(fits=5)
    together = mslsq.curve_fit(decay, t, y, P0, sigma=sigma, in_dims=(None, 0, None, 0), solver=TIGHT)
    assert together.covariance.shape == (5, 3, 3)
    for number in range(5):
        alone = mslsq.curve_fit(decay, t, y[number], P0, sigma=sigma[number], solver=TIGHT)
        torch.testing.assert_close(together.value[number], alone.value, rtol=1e-8, atol=0)
        torch.testing.assert_close(together.covariance[number], alone.covariance, rtol=1e-7, atol=0)
    axis_last = mslsq.curve_fit(decay, t, y.T, P0, sigma=sigma.T, in_dims=(None, 1, None, 1), solver=TIGHT)
    torch.testing.assert_close(axis_last.standard_errors, together.standard_errors, rtol=1e-8, atol=0)


@pytest.mark.parametrize("how", ["nan", "mask"])
@pytest.mark.parametrize("with_matrix", [False, True])
def test_fits_of_different_numbers_of_points_make_a_batch(how: str, with_matrix: bool) -> None:
    lengths = [30, 12, 7]
    t, y, each = measurements(fits=3)
    # log(t) of the padding, zero, is minus infinity; so is its derivative.
    padded_t = t.expand(3, -1) + 0.5
    matrix = torch.diag_embed(each**2) + 1e-4
    sigma = matrix if with_matrix else each
    used = torch.arange(30) < torch.tensor(lengths)[:, None]
    padded_t = torch.where(used, padded_t, 0.0)
    mask = used if how == "mask" else None
    y_given = torch.where(used, y, torch.nan if how == "nan" else 1e6)

    def model(p: Tensor, t: Tensor) -> Tensor:
        return p[0] * torch.exp(-p[1] * torch.log(t)) + p[2]

    p0 = torch.tensor([1.0, 0.7, 0.1], dtype=D)
    ragged = mslsq.curve_fit(
        model, padded_t, y_given, p0, sigma=sigma, mask=mask, in_dims=(0, 0, None, 0), solver=TIGHT
    )
    for number, length in enumerate(lengths):
        s = sigma[number, :length, :length] if with_matrix else sigma[number, :length]
        alone = mslsq.curve_fit(model, t[:length] + 0.5, y[number, :length], p0, sigma=s, solver=TIGHT)
        torch.testing.assert_close(ragged.value[number], alone.value, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(ragged.covariance[number], alone.covariance, rtol=1e-6, atol=0)


def test_parameters_may_be_a_pytree_and_points_a_grid() -> None:
    generator = torch.Generator().manual_seed(3)
    grid = torch.randn(6, 5, 2, generator=generator, dtype=D)
    truth = {"slope": torch.tensor([[1.0, -2.0]], dtype=D), "offset": torch.tensor(0.3, dtype=D)}

    def plane(p: dict, t: Tensor) -> Tensor:
        return (t * p["slope"][0]).sum(-1) + p["offset"]

    y = plane(truth, grid) + 0.1 * torch.randn(6, 5, generator=generator, dtype=D)
    p0 = {"slope": torch.zeros(1, 2, dtype=D), "offset": torch.zeros((), dtype=D)}
    fit = mslsq.curve_fit(plane, grid, y, p0)
    # Independent: the closed form of linear regression. Leaves in the order of the dict: slope, offset.
    design = torch.cat([grid.reshape(-1, 2), torch.ones(30, 1, dtype=D)], 1)
    solved = torch.linalg.lstsq(design, y.reshape(-1, 1)).solution[:, 0]
    variance = ((design @ solved - y.reshape(-1)) ** 2).sum() / (30 - 3)
    expected = variance * torch.linalg.inv(design.T @ design)
    order = ["slope", "offset"] if list(p0) == ["slope", "offset"] else []
    assert order
    torch.testing.assert_close(fit.covariance, expected, rtol=1e-8, atol=1e-12)
    assert fit.standard_errors["slope"].shape == (1, 2)
    torch.testing.assert_close(fit.standard_errors["offset"], expected[2, 2].sqrt(), rtol=1e-8, atol=0)


def test_too_few_points_give_an_infinite_covariance_and_a_warning() -> None:
    t, y, _ = measurements(points=3)
    with pytest.warns(CovarianceWarning, match="not more points"):
        fit = mslsq.curve_fit(decay, t, y, P0)
    assert bool(torch.isinf(fit.covariance).all())
    exact = mslsq.curve_fit(decay, t, y, P0, sigma=0.1, absolute_sigma=True)  # sigma known: no error to estimate
    assert bool(torch.isfinite(exact.covariance).all())


@pytest.mark.parametrize("left", [0, 2])
def test_a_fit_of_fewer_points_than_parameters_has_not_converged(left: int) -> None:
    t, y, _ = measurements(fits=2)
    y = y.clone()
    y[1, left:] = torch.nan
    with pytest.warns(CovarianceWarning, match="1 of 2 fits"):
        fit = mslsq.curve_fit(decay, t, y, P0, in_dims=(None, 0, None))
    assert fit.solution.status[1] == mslsq.Status.SINGULAR
    assert mslsq.Status(int(fit.solution.status[0])).converged
    torch.testing.assert_close(fit.value[0], mslsq.curve_fit(decay, t, y[0], P0).value)


def test_a_fit_that_cannot_be_determined_does_not_disturb_its_batch_mates() -> None:
    t, y, _ = measurements(fits=2)
    t = torch.stack([t, torch.ones_like(t)])  # all points at one t: three parameters, one number
    with pytest.warns(CovarianceWarning, match="1 of 2 fits"):
        fit = mslsq.curve_fit(decay, t, y, P0, in_dims=(0, 0, None))
    alone = mslsq.curve_fit(decay, t[0], y[0], P0)
    torch.testing.assert_close(fit.covariance[0], alone.covariance, rtol=1e-6, atol=0)
    assert bool(torch.isinf(fit.covariance[1]).all())


def test_derivatives_of_values_and_standard_errors_are_those_of_differences() -> None:
    t, y, _ = measurements()

    def outcome(y: Tensor) -> Tensor:
        fit = mslsq.curve_fit(decay, t, y, P0, solver=TIGHT)
        return torch.cat([fit.value, fit.standard_errors])

    jacobian = torch.func.jacrev(outcome)(y)
    step = torch.zeros_like(y)
    step[4] = 1e-4  # between its square's truncation and the solver's own rounding, 1e-12 over the step
    numeric = (outcome(y + step) - outcome(y - step)) / 2e-4
    torch.testing.assert_close(jacobian[:, 4], numeric, rtol=1e-5, atol=1e-8)
    mapped = torch.func.vmap(outcome)(torch.stack([y, y + step]))
    torch.testing.assert_close(mapped[0], outcome(y), rtol=1e-8, atol=0)


def test_float32_stays_float32() -> None:
    t, y, sigma = (x.float() for x in measurements())
    fit = mslsq.curve_fit(decay, t, y, P0.float(), sigma=sigma)
    assert fit.value.dtype == fit.covariance.dtype == torch.float32
    exact = mslsq.curve_fit(decay, t.double(), y.double(), P0, sigma=sigma.double())
    torch.testing.assert_close(fit.standard_errors.double(), exact.standard_errors, rtol=1e-3, atol=0)


def test_errors_say_what_does_not_fit() -> None:
    t, y, sigma = measurements()
    with pytest.raises(mslsq.ProblemError, match=r"sigma of one fit has shape \(4,\); expected \(30,\)"):
        mslsq.curve_fit(decay, t, y, P0, sigma=sigma[:4])
    with pytest.raises(mslsq.ProblemError, match=r"model\(p, t\) returned shape \(30, 1\)"):
        mslsq.curve_fit(lambda p, t: decay(p, t)[:, None], t, y, P0)
    with pytest.raises(mslsq.ProblemError, match="mask has shape"):
        mslsq.curve_fit(decay, t, y, P0, mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(mslsq.ProblemError, match="plain tensors"):
        mslsq.curve_fit(decay, t, y, mslsq.SO3.identity(dtype=D))
