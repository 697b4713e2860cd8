"""Parts of a map that fit better elsewhere: its standard error is what they say, not what noise says."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align, synthetic
from mslsq.alignment.drift import drift
from mslsq.alignment.models import Frame
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import prepare

SIZE = 256
EYE = torch.eye(3, dtype=torch.float64)


def plan(seed: int) -> np.ndarray:
    """Thin walls."""
    random = np.random.default_rng(seed)
    walls = np.ones((SIZE, SIZE))
    for _ in range(24):
        row, column, length = random.integers(20, SIZE - 20, 3)
        walls[row : row + 3, min(column, length) : max(column, length)] = 0.0
        walls[min(row, length) : max(row, length), column : column + 3] = 0.0
    return walls


def photograph(seed: int) -> np.ndarray:
    return synthetic.base_raster("camera")[40 * seed : 40 * seed + SIZE, 100 : 100 + SIZE]


def bent(raster: np.ndarray, by: float) -> tuple[np.ndarray, np.ndarray]:
    """The raster bent by some pixels, and which pixel (x, y) of it each of its pixels shows."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(float)
    at = np.stack([y + by * np.sin(x / 45 + 1), x + by * np.sin(y / 35)])
    return scipy.ndimage.map_coordinates(raster, at, order=3, mode="nearest"), at[::-1]


def levels_of(one: np.ndarray, other: np.ndarray) -> list[PairLevel]:
    (fixed, moving), _, _ = prepare([one, other], None)
    frame = Frame(SIZE, SIZE, fixed.values)
    pyramids = [map_.pyramid(3, map_.mean, map_.spread, 1.0) for map_ in (fixed, moving)]
    return [PairLevel.of(a, b, frame, index) for index, (a, b) in enumerate(zip(*pyramids, strict=True))]


@pytest.mark.parametrize(("scene", "by"), [(plan, 1.0), (plan, 3.0), (photograph, 2.0), (photograph, 3.0)])
def test_the_standard_error_of_a_bent_map_is_what_it_is_bent_by(scene, by):
    raster = scene(6)
    moving, at = bent(raster, by)
    result = align([torch.from_numpy(raster.copy()), torch.from_numpy(moving)], model="se2")
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    points = torch.from_numpy(np.stack([*at, np.ones_like(at[0])], -1)).reshape(-1, 3)
    y, x = np.mgrid[:SIZE, :SIZE]
    off = (points @ result.transforms[1].T)[:, :2] - torch.from_numpy(np.stack([x, y], -1)).reshape(-1, 2)
    apart = float(off.square().sum(-1).mean().sqrt())
    assert "drifted" in result.reasons[1] and 0.5 < apart / float(result.corner_sigma[1]) < 2.0


@pytest.mark.parametrize("scene", [plan, photograph])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_map_that_is_not_bent_has_no_drift(scene, noise):
    raster, random = scene(2), np.random.default_rng(0)
    noisy = raster + noise * raster.std() * random.standard_normal((2, SIZE, SIZE))
    assert drift(levels_of(noisy[0], noisy[1]), EYE, 0) == 0.0


def test_a_thing_that_has_moved_is_no_drift():
    one, other = photograph(2), photograph(2).copy()
    thing = photograph(5)[:60, :60]
    one = one.copy()
    one[100:160, 80:140], other[104:164, 85:145] = thing, thing
    assert drift(levels_of(one, other), EYE, 0) == 0.0


def test_where_all_parts_are_off_alike_so_are_the_corners():
    raster = photograph(3)
    one, other = raster[10:, 6:][: SIZE - 20, : SIZE - 20], raster[:-10, :-6][: SIZE - 20, : SIZE - 20]
    assert drift(levels_of(one, other), EYE, 0) == pytest.approx(np.hypot(10, 6), rel=0.05)
