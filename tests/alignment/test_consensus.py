"""Scenes of which a part has moved: blocks that agree all but entirely are counted."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align
from mslsq.alignment.consensus import ENOUGH, consensus, united
from mslsq.alignment.evidence import evidence
from mslsq.alignment.models import Frame
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import prepare

SIZE = 128
EYE = torch.eye(3, dtype=torch.float64)
SHIFT = torch.tensor([-4.0, -7.0], dtype=torch.float64)


def grains(seed: int, size: int = SIZE) -> np.ndarray:
    field = scipy.ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((size, size)), 2.0, mode="wrap")
    return field / field.std()


def patches(seed: int, share: float) -> np.ndarray:
    field = scipy.ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((SIZE, SIZE)), 8.0, mode="wrap")
    return field > np.quantile(field, 1 - share)


def moved(seed: int, share: float, noise: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    """A scene, and what is seen of it (4, 7) px farther on, where patches of it are 15 px to the right."""
    whole, random = grains(seed, 200), np.random.default_rng(seed + 100)
    reference, still = whole[20:, 20:][:SIZE, :SIZE], whole[27:, 24:][:SIZE, :SIZE]
    moving = np.where(patches(seed, share), whole[27:, 9:][:SIZE, :SIZE], still)
    one, other = (image + noise * random.standard_normal(image.shape) for image in (reference, moving))
    return one, other


def level_of(one: np.ndarray, other: np.ndarray) -> PairLevel:
    (fixed, moving), _, _ = prepare([one, other], None)
    pyramids = [map_.pyramid(1, map_.mean, map_.spread, 1.0) for map_ in (fixed, moving)]
    return PairLevel.of(pyramids[0][0], pyramids[1][0], Frame(SIZE, SIZE, fixed.values), 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_scene_of_which_a_quarter_has_moved_is_placed_by_what_has_not(seed):
    result = align(moved(seed, 0.28), model="se2")
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    torch.testing.assert_close(result.transforms[1][:2, 2], SHIFT, atol=0.3, rtol=0)


def test_small_blocks_agree_where_the_larger_ones_do_not():
    at = Frame(SIZE, SIZE, EYE).from_pixels(torch.tensor([[1.0, 0, -4], [0, 1, -7], [0, 0, 1]]).double())
    level = level_of(*moved(0, 0.28))
    found = evidence(level, at)
    assert not found.suffices(0.6, 3)
    assert united(level, at, 0.6, 3) and consensus(level, at) > 2 * ENOUGH
    elsewhere = at.clone()
    elsewhere[0, 2] += 0.1
    assert consensus(level, elsewhere) < 3 and not united(level, elsewhere, 0.6, 3)


def test_a_third_of_the_scene_does_not_speak_for_the_rest():
    """All blocks of it agree, which are enough, and not the larger ones in the median."""
    one, other = grains(4), grains(5)
    other[:, : SIZE // 3] = one[:, : SIZE // 3]
    level = level_of(one, other)
    assert consensus(level, EYE) > ENOUGH and not united(level, EYE, 0.6, 3)
    assert not MapStatus(int(align([one, other], model="se2").status[1])).ok


def test_pieces_of_two_lines_are_not_counted_block_by_block():
    page = np.zeros((SIZE, SIZE))
    page[60:62] = 1.0
    line = scipy.ndimage.gaussian_filter(page, 1.2)
    random = np.random.default_rng(2).standard_normal((2, SIZE, SIZE))
    level = level_of(line + 1e-4 * random[0], line + 1e-4 * random[1])
    assert consensus(level, EYE) <= 2.5


def test_more_unknowns_take_more_blocks():
    level = level_of(grains(6), grains(6))
    count = consensus(level, EYE)
    assert united(level, EYE, 0.6, int(count - ENOUGH)) and not united(level, EYE, 0.6, int(count - ENOUGH) + 1)
