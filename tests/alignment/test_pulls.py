"""Standard errors by the pulls of blocks: of residuals that few values, or a jitter of lines, leave."""

import math

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import align, coarser, pulls
from mslsq.alignment.synthetic import base_raster

SHIFT = np.array([-6.3, 8.6])
SIZE = 128


def views(name):
    """Two maps of one raster, in [0, 1], the second one moved."""
    base = scipy.ndimage.gaussian_filter(np.asarray(base_raster(name), dtype=np.float64), 0.8)
    base = (base - base.min()) / np.ptp(base)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    return [scipy.ndimage.map_coordinates(base, [y + 60 - dy, x + 60 - dx], order=3) for dx, dy in ((0, 0), SHIFT)]


def placed(maps):
    """How far off a placement is, and what is stated."""
    result = align([torch.from_numpy(one) for one in maps], model="translation")
    return float(np.hypot(*(result.transforms[1][:2, 2].numpy() - SHIFT))), float(result.corner_sigma[1])


@pytest.mark.parametrize("name", ["coffee", "astronaut"])
def test_maps_of_few_values_are_as_far_off_as_they_say(name, monkeypatch):
    """Of seven values: the error that noise would have was 8 to 17 times too small."""
    monkeypatch.setattr(coarser, "MOVED", math.inf)  # coarser levels tell some of it, too
    maps = [np.round(6 * one) / 6 for one in views(name)]
    off, stated = placed(maps)
    monkeypatch.setattr(pulls, "TAILED", math.inf)
    assert off < 3.5 * stated and off == placed(maps)[0]
    assert stated > 2 * placed(maps)[1]


def test_noise_alone_has_the_error_of_noise(monkeypatch):
    random = np.random.default_rng(0)
    maps = [one + 0.01 * random.standard_normal(one.shape) for one in views("gravel")]
    found = placed(maps)
    monkeypatch.setattr(pulls, "TAILED", math.inf)
    assert placed(maps) == found


def test_blocks_know_the_error_of_noise_too(monkeypatch):
    """Asked of noise without tails, they say what its variance says."""
    random = np.random.default_rng(0)
    maps = [one + 0.01 * random.standard_normal(one.shape) for one in views("gravel")]
    stated, found = placed(maps)[1], []
    by_blocks = pulls.by_blocks
    monkeypatch.setattr(pulls, "TAILED", 0.0)
    monkeypatch.setattr("mslsq.alignment.belief.by_blocks", lambda *given: found.append(by_blocks(*given)))
    placed(maps)
    across = float(found[-1].diagonal().sum()) ** 0.5 * SIZE / 2
    assert 0.6 * stated < across < 1.4 * stated
