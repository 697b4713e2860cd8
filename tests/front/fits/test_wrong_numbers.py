"""Numbers and names of a curve fit that cannot be meant: each is an error that names it, and never a fit."""

import pytest
import torch

import mslsq

F64 = torch.float64
T = torch.linspace(0, 1, 12, dtype=F64)
Y = 2 * torch.exp(-1.1 * T) + 0.1 * torch.cos(5 * T)
START = torch.tensor([1.0, -1.0], dtype=F64)


def decay(p, t):
    return p[0] * torch.exp(p[1] * t)


def named(p, t):
    return p["a"] * torch.exp(p["b"] * t)


def sigma_with(number, place=3):
    sigma = torch.ones_like(Y)
    sigma[place] = number
    return sigma


@pytest.mark.parametrize("number", [0.0, -1.0])
def test_a_sigma_that_is_not_positive_is_named(number):
    with pytest.raises(mslsq.ProblemError, match=rf"sigma\[3\] is {number:g}"):
        mslsq.curve_fit(decay, T, Y, START, sigma=sigma_with(number))
    counts = torch.arange(12) != 3
    left_out = mslsq.curve_fit(decay, T, Y, START, sigma=sigma_with(number), mask=counts)
    torch.testing.assert_close(left_out.value, mslsq.curve_fit(decay, T[counts], Y[counts], START).value)


def test_in_a_batch_such_a_fit_is_none_and_the_others_are_what_they_are():
    sigma = torch.stack([torch.ones_like(Y), sigma_with(-1.0), sigma_with(0.0), sigma_with(2.0)])
    with pytest.warns(mslsq.errors.CovarianceWarning):
        fits = mslsq.curve_fit(decay, T, Y, START, sigma=sigma, in_dims=(None, None, None, 0))
    assert fits.solution.converged.tolist() == [True, False, False, True]
    torch.testing.assert_close(fits.value[3], mslsq.curve_fit(decay, T, Y, START, sigma=sigma[3]).value)


@pytest.mark.parametrize("entry", [-2.0, 0.9])
def test_a_matrix_that_is_no_covariance_is_refused(entry):
    """One that is not positive definite, and one of which only a triangle would be read."""
    matrix = torch.eye(12, dtype=F64)
    matrix[(0, 0) if entry < 0 else (0, 1)] = entry
    with pytest.raises(mslsq.ProblemError, match="symmetric and positive definite"):
        mslsq.curve_fit(decay, T, Y, START, sigma=matrix)


def test_counts_below_zero_are_refused():
    counts = (30 * Y).round()
    counts[4] = -1.0
    with pytest.raises(mslsq.ProblemError, match=r"y\[4\] is -1"):
        mslsq.curve_fit(decay, T, counts, 30 * START, noise="poisson")
    both = torch.stack([counts.clamp(min=0), counts])
    fits = mslsq.curve_fit(
        decay, T, both, torch.tensor([30.0, -1.0], dtype=F64), noise="poisson", in_dims=(None, 0, None)
    )
    assert fits.solution.converged.tolist() == [True, False]
    assert mslsq.Status(int(fits.solution.status[1])) is mslsq.Status.NON_FINITE


@pytest.mark.parametrize("in_dims", [None, (None, 0, None)])
def test_a_fixed_name_that_nothing_reads_is_a_slip_of_the_pen(in_dims):
    y = Y if in_dims is None else torch.stack([Y, 2 * Y])
    with pytest.raises(mslsq.ProblemError, match=r"'bb'.*does not read"):
        mslsq.curve_fit(named, T, y, {"a": 1.0, "b": -1.0}, fixed={"bb": -2.0}, in_dims=in_dims)


def in_one_go(p, t):
    return sum(value * t**number for number, value in enumerate(p.values()))


@pytest.mark.parametrize(
    ("model", "tied"),
    [
        (lambda p, t: named(p, t) + p["c"], None),
        (lambda p, t: named(p, t) + p.get("c", 0.0), None),
        (lambda p, t: named({**p}, t), None),
        (lambda p, t: (lambda a, b, c: a * torch.exp(b * t) + c)(**p), None),
        (lambda p, t: named(p, t), {"b": lambda p: 0.0 * p["a"] + p["c"]}),
        (in_one_go, None),
    ],
)
def test_a_fixed_name_that_the_start_lacks_is_fine_where_it_is_read(model, tied):
    fit = mslsq.curve_fit(model, T, Y, {"a": 1.0, "b": -1.0}, fixed={"c": -0.5}, tied=tied)
    assert fit.solution.converged and float(fit.value["c"]) == -0.5


def test_a_model_in_scipys_form_is_told_where_it_belongs():
    with pytest.raises(mslsq.ProblemError, match=r"\(t, a, b\).*interop\.scipy"):
        mslsq.curve_fit(lambda t, a, b: a * torch.exp(b * t), T, Y, START)
