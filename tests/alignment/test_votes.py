"""Where blocks lie best: votes for a placement, in other modalities and of scenes in which things have moved."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align
from mslsq.alignment.metrics import NormalizedGradients, SquaredDifference
from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.models import Frame
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import prepare
from mslsq.alignment.votes import ENOUGH, TIMES, Votes, elected, votes, voting_level

SIZE = 128
EYE = torch.eye(3, dtype=torch.float64)
VALUES, EDGES = SquaredDifference(), NormalizedGradients()


def grains(seed: int, sigma: float = 2.0, size: int = SIZE) -> np.ndarray:
    field = scipy.ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((size, size)), sigma, mode="wrap")
    return field / field.std()


def level_of(one: np.ndarray, other: np.ndarray, metric: Metric = VALUES) -> PairLevel:
    (fixed, moving), _, _ = prepare([one, other], None)
    pyramids = [map_.pyramid(1, map_.mean, map_.spread, 1.0, metric) for map_ in (fixed, moving)]
    return PairLevel.of(pyramids[0][0], pyramids[1][0], Frame(*one.shape, fixed.values), 0)


def moved(share: float) -> tuple[np.ndarray, np.ndarray]:
    """A scene, and the same where patches of this share are 15 px farther on."""
    scene = grains(1)
    field = grains(2, 8.0)
    return scene, np.where(field > np.quantile(field, 1 - share), np.roll(scene, 15, 1), scene)


def test_every_block_of_one_scene_votes_for_where_it_is():
    found = votes(level_of(grains(0), grains(0) + 0.05 * grains(9)), EYE)
    assert found.count == found.blocks > 180 and found.rival == 0 and found.own > 0.5 * found.count


def test_a_placement_a_few_pixels_off_has_no_votes():
    shifted = EYE.clone()
    shifted[0, 2] = 6 / ((SIZE - 1) / 2)
    found = votes(level_of(grains(0), grains(0)), shifted)
    assert found.count == 0 and found.rival > 100


def test_what_has_moved_votes_for_one_other_place():
    found = votes(level_of(*moved(0.3)), EYE)
    assert found.count > TIMES * found.rival > 0 and found.rival > 10
    assert elected(level_of(*moved(0.3)), EYE, 4) and not elected(level_of(*moved(0.7)), EYE, 4)


@pytest.mark.parametrize("seed", range(3))
def test_two_scenes_have_the_votes_of_chance(seed):
    found = votes(level_of(grains(2 * seed), grains(2 * seed + 1)), EYE)
    assert found.count < 4


def test_a_texture_that_repeats_itself_has_votes_for_many_places():
    tile = np.tile(grains(3, size=16), (8, 8))
    random = np.random.default_rng(4).standard_normal((2, SIZE, SIZE))
    assert not elected(level_of(tile + 0.1 * random[0], tile + 0.1 * random[1]), EYE, 4)


def test_one_line_on_another_is_not_counted_block_by_block():
    page = np.zeros((SIZE, SIZE))
    page[60:62] = 1.0
    line, random = scipy.ndimage.gaussian_filter(page, 1.2), np.random.default_rng(2).standard_normal((2, SIZE, SIZE))
    assert votes(level_of(line + 1e-4 * random[0], line + 1e-4 * random[1]), EYE).own < 5


def test_edges_of_another_modality_vote_where_values_do_not():
    scene = grains(5, 3.0)
    level = level_of(scene, np.cos(2.5 * scene), EDGES)
    assert elected(level, EYE, 4)
    assert votes(level_of(scene, np.cos(2.5 * scene)), EYE).own < ENOUGH


def test_nothing_votes_where_nothing_is_known():
    hole = np.where(np.arange(SIZE) % 8 < 3, np.nan, grains(0))
    assert votes(level_of(grains(0), hole), EYE) == Votes(0.0, 0, 0, 0)
    small = grains(0)[:10, :10]
    assert votes(level_of(small, small), EYE).blocks == 0


def test_large_levels_do_not_vote():
    levels = [level_of(*2 * [grains(0, size=size)]) for size in (320, 160, 80)]
    assert voting_level(levels, 0) is levels[2]
    assert voting_level(levels[:2], 0) is levels[1]


def test_the_channels_of_a_map_vote_together():
    one = np.stack([grains(0), grains(1)])
    (fixed, moving), _, _ = prepare([one, one], None)
    pyramids = [map_.pyramid(1, map_.mean, map_.spread, 1.0) for map_ in (fixed, moving)]
    found = votes(PairLevel.of(pyramids[0][0], pyramids[1][0], Frame(SIZE, SIZE, fixed.values), 0), EYE)
    assert found.count == found.blocks > 180


def test_a_part_of_two_scenes_is_not_the_scene():
    one, other = grains(6), grains(7)
    other[:, : SIZE // 3] = one[:, : SIZE // 3]
    result = align([one, other], model="se2", metric="auto")
    assert not MapStatus(int(result.status[1])).ok


@pytest.mark.parametrize("metric", ["squared", "auto"])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_row_of_equal_rooms_is_not_placed_by_where_its_ends_are(metric, noise):
    """Two robots have seen four of six rooms each, one room apart; what they have not seen is grey."""
    row, random = np.full((240, 400), 0.5), np.random.default_rng(1)
    for left in range(20, 380, 60):
        row[70:170, left : left + 63] = 0.0
        row[73:167, left + 3 : left + 60] = 1.0
    one, other = row.copy(), row.copy()
    one[:, 263:], other[:, :80], other[:, 323:] = 0.5, 0.5, 0.5
    seen = [np.where((random.random(row.shape) < noise) & (row != 0.5), 1 - row, row) for row in (one, other)]
    result = align(seen, model="se2", metric=metric)
    assert result.status[1] == MapStatus.AMBIGUOUS, result.reasons[1]
