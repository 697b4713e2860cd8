"""Hot pixels of one sensor in pictures of two scenes are no match."""

import numpy as np
import scipy.ndimage
import torch

from mslsq.alignment import hot
from mslsq.alignment.prepared import prepare


def scenes(width):
    """Two dark scenes with noise, and stars of this width at places of their own."""
    random, maps = np.random.default_rng(0), []
    for _ in range(2):
        points = np.where(random.random((80, 90)) < 0.01, random.uniform(0.3, 1, (80, 90)), 0.0)
        maps.append(scipy.ndimage.gaussian_filter(points, width) * 6.3 * width**2)
    return maps, random


def count(maps):
    prepared = prepare([torch.from_numpy(one) for one in maps], None)[0]
    return hot.in_common(*prepared)


def test_hot_pixels_are_counted_and_stars_are_not():
    (one, other), random = scenes(0.9)
    shine = np.where(random.random(one.shape) < 0.003, 0.7, 0.0)
    noise = 0.01 * random.standard_normal((3, *one.shape))
    number = int((shine[1:-1, 1:-1] > 0).sum())
    assert 0.4 * number <= count([one + shine + noise[0], other + shine + noise[1]]) <= number
    assert count([one + noise[0], 0.5 * one + noise[2]]) < hot.FEWEST


def test_maps_of_other_sizes_have_no_pixels_in_common():
    (one, other), _ = scenes(0.9)
    assert count([one, other[:70]]) == 0
