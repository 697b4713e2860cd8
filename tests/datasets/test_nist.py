"""NIST's regressions: the certified values reproduce, SciPy finds them, and broken files say where they are broken."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch.func import jacfwd, vmap

from mslsq.datasets import nist

NAMES = list(nist.MODELS)


@pytest.fixture
def regression(request, nist_set):
    return nist_set(request.param)


@pytest.mark.parametrize("regression", NAMES, indirect=True)
def test_the_certified_parameters_give_the_certified_sum_of_squares(regression):
    rss = regression.residual(regression.certified).square().sum().item()
    # the certified values have eleven digits; at a minimum, those of p change the RSS in second order only. (Lanczos1
    # has no noise: 1e-25 is certified, which eleven digits cannot reach.)
    assert rss == pytest.approx(regression.residual_sum_of_squares, rel=1e-9, abs=1e-20)
    freedom = len(regression.y) - len(regression.certified)
    assert (rss / freedom) ** 0.5 == pytest.approx(regression.residual_standard_deviation, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("regression", NAMES, indirect=True)
def test_the_certified_standard_deviations_follow_from_the_model(regression):
    jacobian = jacfwd(regression.residual)(regression.certified)
    scale = jacobian.norm(dim=0)  # columns differ by 1e12 in size
    covariance = torch.linalg.inv((jacobian / scale).T @ (jacobian / scale)) / scale / scale[:, None]
    deviations = regression.residual_standard_deviation * covariance.diagonal().sqrt()
    torch.testing.assert_close(deviations, regression.standard_deviations, rtol=1e-5, atol=0)


@pytest.mark.parametrize("regression", NAMES, indirect=True)
def test_scipy_reaches_the_certified_parameters_from_the_near_start(regression):
    jacobian: Any = lambda p: jacfwd(regression.residual)(torch.from_numpy(p)).numpy()  # noqa: E731
    found = scipy.optimize.least_squares(
        lambda p: regression.residual(torch.from_numpy(p)).numpy(),
        regression.starts[1].numpy(),
        jacobian,
        method="trf",
        x_scale="jac",
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        max_nfev=5000,
    )
    assert regression.digits(torch.from_numpy(found.x)) > 6


@pytest.mark.parametrize("regression", NAMES, indirect=True)
def test_models_are_the_same_one_by_one_and_under_vmap(regression):
    both = vmap(jacfwd(regression.residual))(regression.starts)
    one_by_one = torch.stack([jacfwd(regression.residual)(start) for start in regression.starts])
    torch.testing.assert_close(both, one_by_one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("regression", ["Misra1a"], indirect=True)
def test_the_score_counts_digits(regression):
    assert regression.digits(regression.certified) == 11
    assert regression.digits(regression.certified * torch.tensor([1, 1 + 1e-6], dtype=torch.float64)) == pytest.approx(
        6, abs=1e-3
    )
    assert regression.digits(regression.certified * 3) == 0
    assert regression.digits(regression.certified * torch.nan) == 0


@pytest.mark.parametrize("regression", ["Misra1a"], indirect=True)
def test_columns_and_rows_end_up_where_they_belong(regression):
    assert regression.starts.tolist() == [[500.0, 0.0001], [250.0, 0.0005]]
    assert regression.certified.tolist() == [2.3894212918e2, 5.5015643181e-4]
    assert regression.standard_deviations.tolist() == [2.7070075241, 7.2668688436e-06]
    assert (regression.y[0], regression.t[0]) == (10.07, 77.6)
    assert (regression.y[-1], regression.t[-1]) == (81.78, 760.0)


def test_float32_parameters_give_float32_residuals(shared_data):
    regression = nist.read(shared_data / "nist" / "DanWood.dat")
    assert regression.residual(regression.certified.float()).dtype == torch.float32


def test_a_set_without_model_lists_the_known_ones(shared_data):
    regression = dataclasses.replace(nist.read(shared_data / "nist" / "DanWood.dat"), name="Nelson2")
    with pytest.raises(KeyError, match=r"Nelson2.*Misra1a"):
        _ = regression.model


FILE = """NIST/ITL StRD
Dataset Name:  Tiny              (Tiny.dat)
Model:         Miscellaneous Class
               2 Parameters (b1 and b2)

        Start 1     Start 2           Parameter     Standard Deviation
  b1 =   1           0.7           7.6886226176E-01  1.8281973860E-02
  b2 =   5           4             3.8604055871E+00  5.1726610913E-02

Residual Sum of Squares:                    4.3173084083E-03
Residual Standard Deviation:                3.2853114039E-02
Number of Observations:                             2

Data:  y              x
      2.138E0        1.309E0
      3.421E0        1.471E0
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (FILE, "", 1, "Dataset Name"),
        ("Dataset Name", "Data Name", 16, "Dataset Name"),
        ("3.8604055871E+00", "3.86x", 8, "3.86x"),
        ("3.8604055871E+00", "nan", 8, "not a finite number"),
        ("  b2 =   5           4  ", "  b2 =   5  ", 8, "4 numbers"),
        ("b2 =", "b3 =", 8, "expected b2"),
        ("b1 =", "c1 =", 8, "expected b1"),
        ("2 Parameters", "3 Parameters", 4, "3 parameters are announced, but 2"),
        ("4.3173084083E-03", "", 10, "residual sum of squares"),
        ("Residual Standard", "Standard", 16, "Residual Standard Deviation"),
        ("Observations:                             2", "Observations: 3", 12, "3 observations are announced, but 2"),
        ("Data:  y              x", "Data:  y  x1  x2  x3", 16, "one or two predictors"),
        ("      3.421E0        1.471E0", "      3.421E0", 16, "2 numbers"),
        (
            "Data:  y              x\n      2.138E0        1.309E0\n      3.421E0        1.471E0\n",
            "Data: y x",
            14,
            "data",
        ),
        ("3.421E0", "3.421E0µ", 16, "not ASCII"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name_and_line(tmp_path, old, new, line, says):
    assert old in FILE
    path = tmp_path / "Tiny.dat"
    path.write_text(FILE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(nist.MalformedFileError) as error:
        nist.read(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert says in str(error.value)


def test_the_tiny_file_itself_is_read(tmp_path):
    path = tmp_path / "Tiny.dat"
    path.write_text(FILE.replace("\n", "\r\n"))
    np.testing.assert_array_equal(nist.read(path).y, [2.138, 3.421])
