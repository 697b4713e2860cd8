"""Two scenes with forms in common are not placed by these: what is beside the forms must agree."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align
from mslsq.alignment.models import Frame
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import build
from mslsq.alignment.remainder import AGREEING, OUTLINES, agree_everywhere, forms, remainder

SIDE = 128
EYE = torch.eye(3, dtype=torch.float64)


def grains(seed: int, sigma: float | tuple[float, float] = 2.0) -> np.ndarray:
    field = scipy.ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((SIDE, SIDE)), sigma, mode="wrap")
    return field / field.std()


def eye(seed: int, at: tuple[float, float] = (66.0, 62.0)) -> np.ndarray:
    """A pupil, a rim around it, and fibres between the two that are each one's own."""
    y, x = np.mgrid[:SIDE, :SIDE]
    away = np.hypot(x - at[0], y - at[1])
    image = np.where(away < 20, 0.0, np.where(away < 50, 0.45 + 0.1 * grains(seed), 0.85))
    noise = 0.01 * np.random.default_rng(seed + 100).standard_normal((SIDE, SIDE))
    return scipy.ndimage.gaussian_filter(image, 0.7) + noise


def level_of(one: np.ndarray, other: np.ndarray) -> PairLevel:
    known = torch.ones(SIDE, SIDE, dtype=torch.bool)
    fixed, moving = (build(torch.from_numpy(image)[None], known, 1)[0] for image in (one, other))
    return PairLevel.of(fixed, moving, Frame(SIDE, SIDE, EYE), 0)


@pytest.mark.parametrize("metric", ["auto", "squared", "gradients"])
@pytest.mark.parametrize("model", ["translation", "se2"])
def test_two_eyes_of_one_size_are_not_placed_on_each_other(metric, model):
    maps = [torch.from_numpy(eye(seed, at)) for seed, at in ((1, (66.0, 62.0)), (2, (63.0, 65.0)))]
    result = align(maps, model=model, metric=metric)
    assert result.status[1] != MapStatus.ALIGNED, result.reasons[1]


@pytest.mark.parametrize("metric", ["auto", "squared"])
def test_one_eye_seen_twice_is_placed(metric):
    one, noise = eye(1), 0.01 * np.random.default_rng(7).standard_normal((SIDE, SIDE))
    moved = np.roll(one, (3, -2), (0, 1)) + noise
    result = align([torch.from_numpy(one), torch.from_numpy(moved)], model="translation", metric=metric)
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    torch.testing.assert_close(result.transforms[1][:2, 2], torch.tensor([-2.0, 3.0]).double(), atol=0.05, rtol=0)


def test_what_is_beside_two_forms_agrees_by_chance_and_in_one_scene_entirely():
    least, most = OUTLINES
    beside = remainder(level_of(eye(1), eye(2)), EYE)
    assert least < beside.covered < most and beside.blocks > 20
    assert abs(beside.agreement) < AGREEING[1]
    beside = remainder(level_of(eye(1), eye(1)), EYE)
    assert beside.blocks > 20 and beside.agreement > 0.95


def test_forms_are_the_long_edges_of_both_maps():
    y, x = np.mgrid[:SIDE, :SIDE]
    disc = scipy.ndimage.gaussian_filter((np.hypot(x - 60, y - 60) < 30).astype(float), 1.0)
    dot = scipy.ndimage.gaussian_filter((np.hypot(x - 110, y - 110) < 5).astype(float), 1.0)
    known = np.ones((SIDE, SIDE), dtype=bool)
    both = (disc + dot)[None]
    seen = forms(both, both, known)
    away = np.hypot(x - 60, y - 60)[seen]
    assert seen.sum() > 150 and np.abs(away - 30).max() < 4  # the rim, and not the dot
    assert not forms(both, dot[None], known).any()
    assert not forms(np.zeros((1, SIDE, SIDE)), disc[None], known).any()


def test_where_all_blocks_agree_forms_are_not_looked_for():
    scene = grains(3)
    assert agree_everywhere(level_of(scene, scene), EYE)
    half = scene.copy()
    half[:, : SIDE // 2] = grains(4)[:, : SIDE // 2]
    assert not agree_everywhere(level_of(scene, half), EYE)
