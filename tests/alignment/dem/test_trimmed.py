"""The bias that the better part of the terrain agrees on, from means over cells."""

import numpy as np
import pytest

from mslsq.alignment.dem.comparison import Solved
from mslsq.alignment.dem.trimmed import _explained, _lopsided

SIDE = 12
ROW, COLUMN = (place.ravel() / (SIDE - 1) - 0.5 for place in np.mgrid[:SIDE, :SIDE])
COLUMNS = np.stack([np.ones(SIDE**2), COLUMN, ROW], 1)


def slopes():
    """Of hills half as wide as the terrain: metres per pixel of a shift, east and south."""
    return 12 * np.stack([np.cos(7 * COLUMN + 2 * ROW), np.sin(5 * ROW - 3 * COLUMN)], 1)


def test_a_shift_that_followed_a_change_is_found_with_the_bias():
    noise = 0.05 * np.random.default_rng(0).standard_normal(SIDE**2)
    shift, bias = np.array([0.9, -0.4]), np.array([3.0, 5.0, -2.0])
    changed = np.abs(ROW + 0.3 * COLUMN) < 0.2
    values = noise - COLUMNS @ bias - slopes() @ shift - 14.0 * changed
    left, at = _explained(values, COLUMNS, slopes(), Solved(np.array([10.0, 20.0]), np.zeros(3)), 0.5)
    assert np.allclose(at.shift, [10.9, 19.6], atol=0.02) and np.allclose(at.bias, bias, atol=0.1)
    assert np.abs(left[~changed]).max() < 0.5 and np.allclose(left[changed], -14, atol=0.5)


def test_a_shift_that_is_right_is_kept_to_the_bit():
    noise = 0.05 * np.random.default_rng(1).standard_normal(SIDE**2)
    at = Solved(np.array([10.0, 20.0]), np.zeros(3))
    found = _explained(noise - 14.0 * (COLUMN < -0.2), COLUMNS, slopes(), at, 0.5)[1]
    assert np.array_equal(found.shift, at.shift) and np.abs(found.bias).max() < 0.1


def test_a_change_without_a_border_leaves_lopsided_means():
    rng = np.random.default_rng(2)
    values = np.concatenate([0.02 * rng.standard_normal(60), rng.uniform(0, 4.3, 84)])
    constant = np.ones((144, 1))
    away = _lopsided(values, constant, np.array([-values.mean()]), 0.2)
    assert away is not None and abs(-values.mean() + away[0]) < 0.1, "the better third has not changed"
    assert _lopsided(values, constant, np.array([-values.mean()]), 10.0) is None


@pytest.mark.parametrize("seed", range(4))
def test_normal_means_are_not_lopsided(seed):
    values = np.random.default_rng(seed).standard_normal(144)
    assert _lopsided(values, np.ones((144, 1)), np.array([-values.mean()]), 1e-3) is None
