"""A model too small for the truth: the result says so, and its standard error is how far it is off."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import align, synthetic
from mslsq.alignment.measures import corners, project
from mslsq.alignment.misfit import SAYS

CHANGES = {
    "se2": [[np.cos(0.03), -np.sin(0.03), 0], [np.sin(0.03), np.cos(0.03), 0], [0, 0, 1]],
    "sim2": [[1.02, -0.03, 0], [0.03, 1.02, 0], [0, 0, 1]],
    "affine": [[1.02, 0, 0], [0.03, 0.99, 0], [0, 0, 1]],
    "homography": [[1, 0, 0], [0.03, 1, 0], [0.0004, 0, 1]],
}
"""Some of each model that no smaller one has: one to three pixels at the corners of 128²."""


def pair(change: list[list[float]], noise: float) -> tuple[list[np.ndarray], torch.Tensor]:
    """Two maps of grass, and the truth between them: a change about the middle."""
    random = np.random.default_rng(0)
    base = scipy.ndimage.gaussian_filter(synthetic.base_raster("grass")[:208, :208], 0.8)
    about = np.array([[1, 0, -63.5], [0, 1, -63.5], [0, 0, 1.0]])
    transform = np.linalg.inv(about) @ np.array(change) @ about
    moving = synthetic.warp_from_base(base, (40, 40), transform, (128, 128))
    maps = [values + noise * random.standard_normal((128, 128)) for values in (base[40:168, 40:168], moving)]
    return maps, torch.from_numpy(transform)


def corners_off(found: torch.Tensor, truth: torch.Tensor) -> float:
    at = corners(128, 128, truth)
    return float((project(found, at) - project(truth, at)).square().sum(-1).mean().sqrt())


@pytest.mark.parametrize(("asked", "true"), [("se2", "sim2"), ("sim2", "affine"), ("affine", "homography")])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_model_too_small_is_said_and_its_error_is_stated(asked, true, noise):
    maps, truth = pair(CHANGES[true], noise)
    result = align(maps, model=asked)
    off = corners_off(result.transforms[1], truth)
    assert result.aligned == [0, 1] and off > 0.3
    assert SAYS in result.reasons[1] and f'Try model="{true}"' in result.reasons[1]
    assert result.fitting == ["", true]
    assert float(result.corner_sigma[1]) == pytest.approx(off, rel=0.2)


@pytest.mark.parametrize("model", ["se2", "sim2", "affine", "homography"])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_nothing_is_said_of_a_model_that_fits(model, noise):
    maps, truth = pair(CHANGES[model], noise)
    result = align(maps, model=model)
    assert result.reasons[1] == "Aligned." and result.fitting == ["", ""]
    assert corners_off(result.transforms[1], truth) < 3 * float(result.corner_sigma[1])


def test_freedom_that_is_within_the_standard_error_is_not_missed():
    turn = np.deg2rad(0.002)  # 0.003 px at the corners, with a standard error of 0.01 px
    maps, _ = pair([[1, -turn, 2], [turn, 1, 1], [0, 0, 1]], 0.05)
    assert align(maps, model="translation").reasons[1] == "Aligned."


def test_the_word_is_kept_where_three_maps_are_placed_together():
    maps, truth = pair(CHANGES["sim2"], 0.01)
    noise = 0.01 * np.random.default_rng(1).standard_normal((128, 128))
    result = align([*maps, maps[1] + noise], model="se2")
    assert "sim2" in result.fitting
    off = corners_off(result.transforms[1], truth)
    assert off < 3 * float(result.corner_sigma[1])
