"""Noise at the same pixels of both maps: a place on it is refused by name, and the scene's own is not."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align

SIZE = 128
SCENE = scipy.ndimage.gaussian_filter(np.random.default_rng(5).standard_normal((SIZE + 60, SIZE + 60)), 6.0)
SCENE = (SCENE - SCENE.min()) / np.ptp(SCENE)
RANDOM = np.random.default_rng(7)
THRESHOLDS, PATTERN = RANDOM.random((SIZE, SIZE)), RANDOM.standard_normal((SIZE, SIZE))


def seen(x=0, y=0):
    return SCENE[20 + y : 20 + y + SIZE, 20 + x : 20 + x + SIZE]


def dithered(one, thresholds=THRESHOLDS):
    return (one > thresholds).astype(np.float64)


def placed(one, other, **options):
    result = align([torch.from_numpy(np.ascontiguousarray(m)) for m in (one, other)], model="translation", **options)
    return MapStatus(int(result.status[1])), result.transforms[1][:2, 2].numpy(), result.reasons[1]


@pytest.mark.parametrize("metric", ["squared", "auto"])
def test_a_dither_of_random_thresholds_is_no_place(metric):
    """Believed before, 9 px off."""
    status, _, reason = placed(dithered(seen()), dithered(seen(7, -5)), metric=metric)
    assert status == MapStatus.AMBIGUOUS and "thresholds of a dither" in reason and "identity" in reason


def test_the_pattern_of_a_sensor_is_no_place():
    status, _, reason = placed(seen() + 0.2 * PATTERN, seen(7, -5) + 0.2 * PATTERN)
    assert status == MapStatus.AMBIGUOUS and "pattern of a sensor" in reason
    status, shift, _ = placed(seen() + 0.05 * PATTERN, seen(7, -5) + 0.05 * PATTERN)
    assert status.ok and np.hypot(*(shift - (-7, 5))) < 0.1


@pytest.mark.parametrize("metric", ["gradients", "auto"])
def test_the_pattern_of_a_sensor_is_no_place_by_edges(metric):
    """Two other scenes lay on each other, with 0.1 px stated: values refuse them, edges saw the pattern alone."""
    status, _, reason = placed(seen() + 0.2 * PATTERN, 1 - seen(7, -5)[::-1] + 0.2 * PATTERN, metric=metric)
    assert not status.ok and "pattern of a sensor" in reason
    negative = 1 - seen() + 0.02 * np.random.default_rng(12).standard_normal((SIZE, SIZE))
    assert placed(seen() + 0.02 * PATTERN, negative, metric=metric)[0].ok


def test_one_map_twice_and_a_place_that_was_said_are_believed():
    one = dithered(seen())
    assert placed(one, one)[0].ok
    nearly = one.copy()
    nearly[::9, ::7] = 0.0
    assert placed(one, nearly)[0] == MapStatus.AMBIGUOUS
    assert placed(one, nearly, init="identity")[0].ok
    pattern = seen() + 0.05 * PATTERN
    assert placed(pattern, pattern + 0.02 * np.random.default_rng(12).standard_normal((SIZE, SIZE)))[0].ok


def test_thresholds_of_its_own_leave_the_scene_its_place():
    own = np.random.default_rng(11).random((SIZE, SIZE))
    status, shift, _ = placed(dithered(seen()), dithered(seen(7, -5), own), min_detail=0.2, min_lead=0.5)
    assert status.ok and np.hypot(*(shift - (-7, 5))) < 1.0


def test_maps_together_are_not_placed_on_their_noise():
    """All links would close: the maps lie as they lay."""
    maps = [torch.from_numpy(dithered(seen(*shift))) for shift in ((0, 0), (7, -5), (-6, 9))]
    result = align(maps, model="translation", min_ncc=0.3)
    onto_reference = [link.linked.placed.reason for link in result.links if link.fixed == 0]
    assert result.aligned == [0] and all("thresholds of a dither" in reason for reason in onto_reference)
