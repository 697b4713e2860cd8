"""The scatter of the scores of a mosaic, where few cells tell it."""

import numpy as np
import pytest
import scipy.ndimage

from mslsq.alignment.curvature import Curvature
from mslsq.alignment.joint.cells import ROW
from mslsq.alignment.joint.sandwich import fitted, half_ring, sandwich, shared, shrunk

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


@pytest.mark.parametrize("sigma", [4.0, 10.0])
def test_what_is_common_to_many_cells_is_counted_as_far_as_it_goes(sigma):
    """Smooth white noise has exp(-d²/4σ²) / 4πσ² in common; of a sum over all of it nothing is lost."""
    random = np.random.default_rng(6)
    side, cell = 640, 8
    row, column = np.divmod(np.arange((side // cell) ** 2), side // cell)
    smooth = scipy.ndimage.gaussian_filter(random.standard_normal((UNKNOWNS, side, side)), (0, sigma, sigma))
    sums = smooth.reshape(UNKNOWNS, side // cell, cell, side // cell, cell).sum((2, 4))
    apart = np.subtract.outer(np.arange(cell), np.arange(cell))
    of_cell = np.exp(-(apart**2) / (4 * sigma**2)).sum() ** 2 / (4 * np.pi * sigma**2)
    found = shared(column + row * ROW, sums.reshape(UNKNOWNS, -1).T)
    assert found == pytest.approx(cell**2 / of_cell, rel=0.15)


def test_every_cell_around_one_is_counted_once():
    for distance in (1, 2, 5):
        steps = half_ring(distance)
        around = {(row, column) for row in range(-distance, distance + 1) for column in range(-distance, distance + 1)}
        inside = {(row, column) for row, column in around if max(abs(row), abs(column)) < distance}
        assert {*steps, *(-step for step in steps)} == {row * ROW + column for row, column in around - inside}
        assert len({*steps, *(-step for step in steps)}) == 2 * len(steps)


def test_what_is_common_to_all_scores_of_values_is_in_no_error_of_a_warp():
    """A slope of the values makes their scores ten times larger; those of the warps are as they were."""
    random = np.random.default_rng(7)
    values = np.arange(UNKNOWNS) % 6 >= 4
    identity = Curvature(np.eye(UNKNOWNS), np.ones(UNKNOWNS))
    even = random.standard_normal((40, UNKNOWNS))
    sloped = np.where(values, 10 * even, even)
    spread = sandwich(identity, sloped, ~values)
    np.testing.assert_allclose(spread, sandwich(identity, even, ~values), rtol=1e-9, atol=1e-12)
    assert np.trace(spread) == pytest.approx(np.square(even[:, ~values]).sum())
    assert fitted(even) == pytest.approx(40 / 28)
