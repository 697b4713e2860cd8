"""The finest level against coarser ones: what stays at the pixels is a part of the stated error."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import align, belief, coarser, grain
from mslsq.alignment.synthetic import base_raster

SHIFT = np.array([-6.3, 8.6])
SIZE = 160
SAID = "Averages of"


def views(name):
    """Two maps of one raster, in [0, 1], the second one moved."""
    base = scipy.ndimage.gaussian_filter(np.asarray(base_raster(name), dtype=np.float64), 0.8)
    base = base if base.ndim == 2 else base.mean(-1)
    base = (base - base.min()) / np.ptp(base)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    return [scipy.ndimage.map_coordinates(base, [y + 60 - dy, x + 60 - dx], order=3) for dx, dy in ((0, 0), SHIFT)]


def dithered(one):
    """Of two values, by the ordered dither of Bayer (4 x 4): the same thresholds at the same pixels of all maps."""
    order = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])
    return (one > np.tile((order + 0.5) / 16, (SIZE // 4, SIZE // 4))).astype(np.float64)


def repeated(one):
    """Every fifth pixel, held over the next four."""
    return np.kron(one[::5, ::5], np.ones((5, 5)))


def placed(maps):
    """How far off a placement is, what is stated, and the reason."""
    result = align([torch.from_numpy(one) for one in maps], model="translation")
    off = float(np.hypot(*(result.transforms[1][:2, 2].numpy() - SHIFT)))
    return off, float(result.corner_sigma[1]), result.reasons[1]


@pytest.mark.parametrize(("change", "name"), [(dithered, "elevation"), (repeated, "gravel")])
def test_what_stays_at_the_pixels_is_in_the_error(change, name, monkeypatch):
    monkeypatch.setattr(grain, "WIDER", 0.0)  # which mends these very maps
    maps = [change(one) for one in views(name)]
    off, stated, reason = placed(maps)
    monkeypatch.setattr(coarser, "MOVED", math.inf)
    before = placed(maps)
    assert off == before[0] > 3.5 * before[1] and SAID not in before[2]  # it is the case that it is for
    assert off < 2.5 * stated and SAID in reason


def test_noise_alone_says_nothing(monkeypatch):
    """Asked of noise, coarser levels agree within their errors."""
    random = np.random.default_rng(0)
    maps = [one + 0.01 * random.standard_normal(one.shape) for one in views("brick")]
    found = placed(maps)
    monkeypatch.setattr(coarser, "MOVED", 0.0)
    assert placed(maps) == found and SAID not in found[2]


def test_another_hypothesis_of_a_coarser_level_says_nothing(monkeypatch):
    """What led there was left for a better place on the way: as of the ends of a search."""
    random, asked = np.random.default_rng(0), []
    maps = [one + 0.01 * random.standard_normal(one.shape) for one in views("brick")]
    found = placed(maps)

    def elsewhere(pair, estimate, *known):
        far = estimate.matrix.clone()
        far[:2, 2] += 0.5
        pair.ends.update(dict.fromkeys(coarser.COARSER, replace(estimate, matrix=far)))
        asked.append(coarser.coarser_place(pair, estimate, *known))
        return asked[-1]

    monkeypatch.setattr(belief, "coarser_place", elsewhere)
    assert placed(maps) == found and [one.pixels for one in asked] == [0.0]
