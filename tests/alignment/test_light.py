"""Light that gain and bias do not explain: the place without it, and what is said of it."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from mslsq.alignment import MapStatus, align
from mslsq.alignment.synthetic import base_raster

SHIFT = np.array([-11.3, 7.6])
SIZE = 160


def views(*shifts):
    """Two maps, or one more for each further shift."""
    base = np.asarray(base_raster("gravel"), dtype=np.float64)
    base = (base - base.min()) / np.ptp(base)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    rng = np.random.default_rng(5)
    return [
        ndimage.map_coordinates(base, [y + 60 - dy, x + 60 - dx], order=3)
        + 0.2
        + 0.01 * rng.standard_normal((SIZE, SIZE))
        for dx, dy in ((0.0, 0.0), SHIFT, *shifts)
    ]


def falling(strength):
    """A vignette."""
    v, u = np.mgrid[:SIZE, :SIZE] * 2 / SIZE - 1
    return 1 - strength * (u * u + v * v) / 2


def rising(strength):
    """A lamp on one side."""
    return 1 + strength * (np.mgrid[:SIZE, :SIZE][1] * 2 / SIZE - 1)


@pytest.mark.parametrize("metric", ["squared", "inverted"])
@pytest.mark.parametrize(("of_one", "of_other"), [(falling(0.6), falling(0.6)), (rising(0.0), rising(0.4))])
def test_a_place_under_light_is_as_far_off_as_it_says(of_one, of_other, metric):
    """The vignette alone moved it by 0.08 px, with 0.04 stated."""
    one, other = views()
    other = -of_other * other if metric == "inverted" else of_other * other
    result = align([of_one * one, other], model="translation", metric=metric)
    off = float(np.hypot(*(result.transforms[1][:2, 2].numpy() - SHIFT)))
    assert result.status[1] == MapStatus.ALIGNED
    assert off < 3 * float(result.corner_sigma[1])
    assert off < 0.03
    assert "vary slowly over the map" in result.reasons[1]
    assert "placed there" in result.reasons[1]


def test_without_light_nothing_is_taken_away():
    one, other = views()
    result = align([one, 0.7 * other + 3], model="translation")
    assert result.reasons[1] == "Aligned."
    assert float(np.hypot(*(result.transforms[1][:2, 2].numpy() - SHIFT))) < 0.01
    assert torch.allclose(result.gain[1], torch.tensor(1 / 0.7, dtype=torch.float64), rtol=0.02)


def test_maps_placed_jointly_are_placed_without_light_too():
    """They were 0.03 to 0.12 px off."""
    shifts = [SHIFT, np.array([-50.4, -30.2]), np.array([-20.7, 55.1])]
    maps = [falling(0.4) * one for one in views(*shifts[1:])]
    result = align(maps, model="translation")
    off = [float(np.hypot(*(result.transforms[i][:2, 2].numpy() - shift))) for i, shift in enumerate(shifts, 1)]
    assert max(off) < 0.03
    assert all(error < 3 * float(sigma) for error, sigma in zip(off, result.corner_sigma[1:], strict=True))
    assert all("Residuals vary slowly over the maps" in result.reasons[i] for i in (1, 2, 3))
