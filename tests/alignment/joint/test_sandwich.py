"""The scatter of the scores of a mosaic, where few cells tell it."""

import numpy as np
import pytest
import scipy.ndimage

from mslsq.alignment.joint.sandwich import ROW, shared, shrunk

UNKNOWNS = 12


def scores(cells: int, seed: int, heavy: bool = False) -> np.ndarray:
    """Of cells with a unit total covariance; `heavy`: a tenth of them hold most of it."""
    random = np.random.default_rng(seed)
    size = np.where(random.random(cells) < 0.1, 3.0, 0.3) if heavy else np.ones(cells)
    return size[:, None] * random.standard_normal((cells, UNKNOWNS)) / np.sqrt(np.square(size).sum())


@pytest.mark.parametrize("heavy", [False, True])
def test_the_mean_square_in_standard_errors_is_one_where_the_plain_sum_makes_it_much_larger(heavy):
    random, plain, found = np.random.default_rng(0), [], []
    for seed in range(200):
        some, error = scores(150 if heavy else 40, seed, heavy), random.standard_normal(UNKNOWNS)
        plain.append(error @ np.linalg.solve(some.T @ some, error) / UNKNOWNS)
        found.append(error @ np.linalg.solve(shrunk(some), error) / UNKNOWNS)
    assert np.mean(plain) > 1.4
    assert 0.85 < np.mean(found) < 1.15


def test_the_trace_is_kept_and_many_cells_are_believed():
    uneven = scores(20000, 1) * np.linspace(0.5, 1.5, UNKNOWNS)
    total = uneven.T @ uneven
    assert np.trace(shrunk(uneven)) == pytest.approx(np.trace(total))
    np.testing.assert_allclose(shrunk(uneven), total, atol=0.02)
    few = uneven[:30]
    assert np.trace(shrunk(few)) == pytest.approx(np.trace(few.T @ few))


def test_scores_of_nothing_stay_nothing():
    assert not shrunk(np.zeros((5, UNKNOWNS))).any()


def test_what_neighbours_have_in_common_is_counted_once_more():
    """White noise has nothing in common across borders; what a prefilter of 1 px leaves has 1.36 in sums over 8 px."""
    random = np.random.default_rng(5)
    side, cell = 480, 8
    row, column = np.divmod(np.arange((side // cell) ** 2), side // cell)
    number = column + row * ROW
    field = random.standard_normal((UNKNOWNS, side, side))
    for smooth, expected in ((field, 1.0), (scipy.ndimage.gaussian_filter(field, (0, 1, 1)), 1.36)):
        sums = smooth.reshape(UNKNOWNS, side // cell, cell, side // cell, cell).sum((2, 4))
        assert shared(number, sums.reshape(UNKNOWNS, -1).T) == pytest.approx(expected, abs=0.05)
    assert shared(number, np.zeros((len(number), UNKNOWNS))) == 1.0
