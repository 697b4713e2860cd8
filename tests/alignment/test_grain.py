"""Pixels that repeat, dithers and few values: placed behind a wider Gaussian, where they pull at the place no more."""

import numpy as np
import pytest

from mslsq.alignment import grain
from tests.alignment.grained import SIZE, dithered, placed, views

SAID = "placed behind a Gaussian"


def averaged(one, every=4):
    """Averages of pixels, each held over as many."""
    few = one.reshape(SIZE // every, every, SIZE // every, every).mean((1, 3))
    return np.kron(few, np.ones((every, every)))


def of_seven_values(one):
    return np.round(6 * one) / 6


@pytest.mark.parametrize("metric", ["squared", "auto"])
@pytest.mark.parametrize(
    ("change", "name", "why"),
    [
        (dithered, "elevation", "few values"),
        (of_seven_values, "coffee", "few values"),
        (averaged, "gravel", "repeat, every 4:"),
    ],
)
def test_a_grain_is_left_behind_a_wider_gaussian(change, name, why, metric, monkeypatch):
    maps = [change(one) for one in views(name)]
    off, stated, reason = placed(maps, metric=metric)
    monkeypatch.setattr(grain, "WIDER", 0.0)
    before = placed(maps, metric=metric)
    assert SAID in reason and why in reason and SAID not in before[2]
    assert off < 0.4 * before[0] and off < 3 * stated


def test_a_prefilter_of_ones_own_stays():
    maps = [averaged(one) for one in views("gravel")]
    assert SAID not in placed(maps, prefilter=0.0)[2]
    assert SAID not in placed(maps, prefilter=4.0)[2]


def test_plain_maps_have_no_grain():
    random = np.random.default_rng(0)
    for name in ("brick", "gravel", "coffee"):
        one, other = (view[None] + 0.01 * random.standard_normal((SIZE, SIZE)) for view in views(name))
        assert grain.repeated_every(one, other) == 0.0
        assert not grain.has_few_values(one)
    assert grain.repeated_every(np.zeros((1, 20, 20)), np.zeros((1, 20, 20))) == 0.0


@pytest.mark.parametrize("every", [2, 3, 4, 5, 6])
def test_the_period_of_repeated_pixels_is_found(every):
    random = np.random.default_rng(1)
    short = SIZE // every
    repeated = np.kron(random.standard_normal((2, 1, short, short)), np.ones((every, every)))
    repeated = repeated + 0.3 * random.standard_normal(repeated.shape)
    assert grain.repeated_every(*repeated) == pytest.approx(every, rel=0.03)
    once = repeated[0, :, : short * every : every]  # rows of one, columns that repeat
    assert grain.repeated_every(once, once) == pytest.approx(every, rel=0.03)
    assert grain.repeated_every(repeated[0], random.standard_normal((1, SIZE, SIZE))) == 0.0
