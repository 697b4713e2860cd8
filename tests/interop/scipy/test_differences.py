"""Finite differences of small variables: steps that are no large part of a number, and above rounding."""

import numpy as np
import pytest

from mslsq.interop.scipy import least_squares
from mslsq.interop.scipy.steps import SHORT, Steps

TIMES = np.linspace(0, 3e7, 40)
DECAY = 2 * np.exp(-1.3e-7 * TIMES) + 0.01 * np.sin(TIMES)
EPS = np.finfo(float).eps


def decay(p):
    return p[0] * np.exp(-p[1] * TIMES) - DECAY


def slopes(p):
    e = np.exp(-p[1] * TIMES)
    return np.stack((e, -p[0] * TIMES * e), 1)


@pytest.mark.parametrize("method", ["trf", "dogbox", "lm"])
def test_a_rate_of_1e_7_is_fitted_as_with_its_derivative(method):
    """SciPy's forward steps are 0.1 of it, its central ones 40 times as long."""
    exact = least_squares(decay, [1.0, 3e-7], slopes, method=method)
    for jac in ("2-point", "3-point", "cs"):
        found = least_squares(decay, [1.0, 3e-7], jac, method=method)
        assert found.success and found.nfev == exact.nfev, jac
        np.testing.assert_allclose(found.x, exact.x, rtol=1e-5)
        np.testing.assert_allclose(found.cost, exact.cost, rtol=1e-9)


def test_a_solve_does_not_depend_on_the_unit_of_a_small_number():
    options = {"x_scale": "jac", "gtol": None}
    evaluations = [
        least_squares(lambda p, unit=unit: decay([p[0], p[1] * unit]), [1.0, 3e-7 / unit], **options).nfev
        for unit in (1.0, 1e-7, 1e-4)
    ]
    assert len(set(evaluations)) == 1


def test_steps_are_scipys_but_for_small_numbers():
    x, residual = np.array([0.5, 2.0, 0.0, 1e-6]), np.array([3.0, 4.0])
    steps = Steps()
    steps.meet(x, residual)
    usual = np.sqrt(EPS) * np.maximum(1, np.abs(x))
    np.testing.assert_array_equal(steps.at(x, residual, "2-point")[0], usual)  # no Jacobian is known
    steps.learn(np.diag([1.0, 1.0, 1.0, 1e9])[:, :])
    found, longer = steps.at(x, residual, "2-point")
    np.testing.assert_array_equal(found[:3], usual[:3])
    np.testing.assert_allclose([found[3], longer], [np.sqrt(EPS) * SHORT * 1e-6, 1 / (SHORT * 1e-6)])
    # It passes zero, and began at 1e-6.
    np.testing.assert_allclose(steps.at(x * 1e-20, residual, "2-point")[0][3], np.sqrt(EPS) * SHORT * 1e-6)
    # A column so short that the variable matters over 5e4 keeps the usual step; one that is no number does, too.
    for length in (1e-4, np.nan):
        steps.learn(np.diag([1.0, 1.0, 1.0, length]))
        np.testing.assert_array_equal(steps.at(x, residual, "2-point")[0], usual)


def test_a_first_jacobian_is_taken_again_only_where_its_steps_were_far_too_long():
    calls = []

    def counted(p, unit):
        calls.append(1)
        return decay([p[0], p[1] * unit])

    for unit, expected in ((1.0, 1 + 2 * 2), (1e-6, 1 + 2)):
        calls.clear()
        least_squares(counted, [1.0, 3e-7 / unit], "2-point", args=(unit,), max_nfev=1)
        assert len(calls) == expected
