"""What two maps leave of each other, seen twice: marks at the same pixels of both are named, and refuse nothing."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align, twice
from mslsq.alignment.synthetic import base_raster

SIZE = 128
STAYS, MOVED = "stays at the same pixels", "one thing in two places"


def views(name, shift, seed=0):
    """Two maps of one raster, in [0, 1], the second one moved, with noise."""
    random = np.random.default_rng(seed)
    base = scipy.ndimage.gaussian_filter(np.asarray(base_raster(name), dtype=np.float64), 0.8)
    base = (base - base.min()) / np.ptp(base)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    return [
        scipy.ndimage.map_coordinates(base, [y + 60 - dy, x + 60 - dx], order=3)
        + 0.01 * random.standard_normal((SIZE, SIZE))
        for dx, dy in ((0, 0), shift)
    ]


def mark():
    """Signs all over, half transparent."""
    signs = np.random.default_rng(3).random((SIZE // 4, SIZE // 4)) > 0.8
    return 0.4 * scipy.ndimage.gaussian_filter(np.kron(signs, np.ones((4, 4))), 0.7)


def placed(one, other, **options):
    return align([torch.from_numpy(one), torch.from_numpy(other)], model="translation", **options)


@pytest.mark.parametrize("shift", [(-7.3, 6.6), (3.4, -8.2)])
def test_a_watermark_on_two_views_is_named(shift):
    found = placed(*(one * (1 - mark()) + mark() for one in views("gravel", shift)))
    assert STAYS in found.reasons[1] and float(np.hypot(*(found.transforms[1][:2, 2].numpy() - shift))) < 0.2


def test_stars_that_have_moved_behind_the_pattern_of_a_sensor_are_named():
    """They do not outweigh the pattern, so that the map lies where it lay: refused (`fixed`), but where it is said."""
    random, stars = np.random.default_rng(1), np.zeros((SIZE + 40, SIZE + 40))
    stars[random.integers(0, SIZE + 40, 60), random.integers(0, SIZE + 40, 60)] = random.uniform(0.2, 1, 60)
    sky, pattern = scipy.ndimage.gaussian_filter(stars, 1.2) * 2, 0.06 * random.standard_normal((SIZE, SIZE))
    one, other = (
        sky[20 - y : 20 - y + SIZE, 20 - x : 20 - x + SIZE] + pattern + 0.01 * random.standard_normal((SIZE, SIZE))
        for x, y in ((0, 0), (5, -6))
    )
    assert placed(one, other).status[1] != MapStatus.ALIGNED
    found = placed(one, other, init="identity")
    assert float(found.transforms[1][:2, 2].norm()) < 0.1
    assert MOVED in found.reasons[1] and ("(5, -6) px" in found.reasons[1] or "(-5, 6) px" in found.reasons[1])


@pytest.mark.parametrize("shift", [(-7.3, 6.6), (0.0, 0.0)])
def test_without_marks_nothing_is_said(shift):
    assert placed(*views("gravel", shift)).reasons[1] == "Aligned."


def test_a_lag_of_one_thing_here_and_there_is_a_trough_of_a_half():
    random = torch.Generator().manual_seed(0)
    thing = torch.randn(64, 64, dtype=torch.float64, generator=random)
    seen = thing - thing.roll((5, -8), (0, 1))
    depth, lag = twice.trough(seen[None], torch.ones(64, 64, dtype=torch.float64))
    assert depth == pytest.approx(0.5, abs=0.07) and lag == (8, -5)
