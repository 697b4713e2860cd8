"""White noise of one map: measured behind a prefilter and on coarser levels, and what a fitted surface leaves of it."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment.noise import NONE, left, measured
from mslsq.alignment.pyramid import build

SIDE = 256


def noisy(scene: np.ndarray, sigma: float) -> torch.Tensor:
    random = np.random.default_rng(3)
    return torch.from_numpy(scene + sigma * random.standard_normal(scene.shape))[None]


@pytest.mark.parametrize("prefilter", [0.0, 0.7, 1.0, 2.0])
def test_the_noise_of_a_smooth_scene_is_known_to_a_tenth_on_every_level(prefilter):
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    scene = 10 * np.sin(3 * x) * y
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    found = build(noisy(scene, 0.5), mask, 3, prefilter)
    alone = build(noisy(scene, 0.5) - noisy(scene, 0.0), mask, 3, prefilter)
    for one, noise in zip(found, alone, strict=True):
        assert one.noise.variance == pytest.approx(float(noise.raster.var()), rel=0.12)


def test_channels_add_up_and_holes_do_not_count():
    raster = torch.cat([noisy(np.zeros((SIDE, SIDE)), sigma) for sigma in (0.3, 0.4)])
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    mask[40:90, 30:200] = False
    raster[:, ~mask] = 1e6
    assert measured(raster, mask, 0.0).variance == pytest.approx(0.25, rel=0.05)


def test_edges_and_lamps_are_no_noise():
    scene = np.zeros((SIDE, SIDE))
    scene[100:, 80:] = 1.0
    scene[::16, ::16] = 5.0
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    assert build(torch.from_numpy(scene)[None], mask, 1)[0].noise.variance < 1e-6


def test_of_a_map_that_is_too_small_or_unknown_there_is_none():
    assert measured(torch.rand(1, 2, 50), torch.ones(2, 50, dtype=torch.bool), 1.0) == NONE
    assert measured(torch.rand(1, 20, 50), torch.zeros(20, 50, dtype=torch.bool), 1.0) == NONE


@pytest.mark.parametrize(("side", "sigma"), [(16, 1.0), (8, 0.6)])
def test_what_a_surface_leaves_of_blurred_noise_is_what_least_squares_leaves(side, sigma):
    random = np.random.default_rng(5)
    field = scipy.ndimage.gaussian_filter(random.standard_normal((512, 512)), sigma, mode="wrap")
    blocks = field.reshape(512 // side, side, -1, side).swapaxes(1, 2).reshape(-1, side * side)
    y, x = (part.ravel() for part in np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j])
    design = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], 1)
    rest = blocks.T - design @ np.linalg.lstsq(design, blocks.T, rcond=None)[0]
    # A Gaussian of 0.6 samples has few of them: its correlation is that of the continuous one to some 5 %.
    assert left(side, sigma**2) == pytest.approx(float(np.var(rest) / np.var(field)), rel=0.05)
