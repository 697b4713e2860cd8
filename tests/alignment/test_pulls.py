"""Standard errors by the pulls of blocks: of residuals that few values, or a jitter of lines, leave."""

import math

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import align, coarser, grain, pulls
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
    monkeypatch.setattr(grain, "WIDER", 0.0)  # and a wider Gaussian mends it
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
    monkeypatch.setattr("mslsq.alignment.belief.by_blocks", lambda *given: found.append(by_blocks(*given)) or found[-1])
    placed(maps)
    assert len(found[-1]) == 3  # by blocks, by rows, by columns
    for covariance in found[-1]:
        across = float(covariance.diagonal().sum()) ** 0.5 * SIZE / 2
        assert 0.6 * stated < across < 1.4 * stated


def test_lines_that_jitter_pull_as_a_whole(monkeypatch):
    """Each row of a map moved by an own whole number of pixels, whose mean is no shift: along the rows, its place is
    known to a thirteenth of their spread, and blocks took each row for several."""
    random = np.random.default_rng(4)
    reference, moving = views("astronaut")
    jitter = np.round(1.2 * random.standard_normal(SIZE)).astype(int)
    moving = np.stack([np.roll(row, by) for row, by in zip(moving, jitter, strict=True)])
    stated = placed([reference, moving])[1]
    assert 0.7 < stated / (jitter.std() / math.sqrt(SIZE)) < 2.5
    by_blocks = pulls.by_blocks
    monkeypatch.setattr("mslsq.alignment.belief.by_blocks", lambda *given: by_blocks(*given)[:1])
    assert placed([reference, moving])[1] < 0.7 * stated
