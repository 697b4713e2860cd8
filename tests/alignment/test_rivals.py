"""A placement must stand out from every other shift of the map: else it is ambiguous, and the map is left out."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align, synthetic
from mslsq.alignment.grids import similarity_about, translation
from mslsq.alignment.pyramid import Level
from mslsq.alignment.rivals import Standing, standing, turned

EYE = torch.eye(3, dtype=torch.float64)


def wall(size: int, period: int, seed: int, change: float) -> np.ndarray:
    """One window again and again, each changed a little."""
    random = np.random.default_rng(seed)
    window = scipy.ndimage.gaussian_filter(np.random.default_rng(0).standard_normal((period, period)), 2.0, mode="wrap")
    grains = scipy.ndimage.gaussian_filter(random.standard_normal((size, size)), 2.0, mode="wrap")
    count = size // period + 1
    return np.tile(window / window.std(), (count, count))[:size, :size] + change * grains / grains.std()


def level(raster: np.ndarray, factor: int = 1) -> Level:
    values = torch.from_numpy(np.ascontiguousarray(raster, dtype=np.float64))
    return Level(values[None], torch.ones(values.shape, dtype=torch.bool), factor)


def placed(one: np.ndarray, other: np.ndarray, **options):
    return align([torch.from_numpy(one.copy()), torch.from_numpy(other.copy())], model="translation", **options)


@pytest.mark.parametrize("shift", [(0, 0), (5, -9), (-20, 13)])
def test_a_true_placement_stands_out_wherever_the_map_lies(shift):
    x, y = shift
    base = synthetic.base_raster("gravel")[100:300, 100:300]
    one, other = base[40:104, 40:104], base[40 - y : 104 - y, 40 - x : 104 - x]
    found = standing(level(one), level(other), translation(x, y, EYE), 0.1)
    assert found.lead > 2 and found.score > 1


def test_the_rival_is_where_it_is_said_to_be():
    random = np.random.default_rng(1)
    patch = scipy.ndimage.gaussian_filter(random.standard_normal((64, 64)), 1.0)
    # The second map shows the first 20 px to the right, and once more, hardly changed, 11 px down.
    other = patch + 0.9 * np.roll(patch, 11, 0)
    found = standing(level(patch, 2), level(other, 2), EYE, 0.2)
    assert found.shift == (0.0, -22.0), "moved up by 11 px of this level, the copy lies on the reference"
    assert 0 < found.rival < found.score


def test_the_standing_does_not_depend_on_a_rotation_that_is_undone():
    base = synthetic.base_raster("grass")[:160, :160]
    whole = level(base)
    turn = similarity_about((31.5, 31.5), (79.5, 79.5), 0.3, 1.0, EYE)
    from mslsq.alignment.canvas import Canvas, seen_on

    seen, known = seen_on(Canvas(0, 0, 64, 64), whole.coefficients, whole.mask, turn)
    found = standing(Level(seen, known, 1), whole, turn, 0.2)
    assert found.lead > 2


def test_what_a_lead_is():
    assert Standing(1.0, 0.5, (0, 0)).lead == pytest.approx(1.0), "twice the rival's"
    assert Standing(2.8, 2.0, (0, 0)).lead == pytest.approx(1.0), "0.8 more"
    assert Standing(0.4, 0.5, (0, 0)).lead < 0
    assert np.isfinite(Standing(0.5, -1.0, (0, 0)).lead), "no rival"


@pytest.mark.parametrize("seeds", [(1, 2), (3, 4)])
def test_two_walls_with_the_same_windows_are_ambiguous(seeds):
    one, other = (wall(128, 18, seed, 0.3) for seed in seeds)
    result = placed(one, other, min_detail=0.2)
    assert result.status[1] == MapStatus.AMBIGUOUS, result.reasons[1]
    assert "min_lead" in result.reasons[1] and "Moved by" in result.reasons[1]
    assert bool(result.transforms[1].isnan().all())


def test_two_parts_of_one_such_wall_are_placed():
    whole = wall(160, 18, 5, 0.3)
    result = placed(whole[:128, :128], whole[9:137, 14:142])
    assert result.status[1] == MapStatus.ALIGNED and float(result.lead[1]) > 1
    torch.testing.assert_close(result.transforms[1][:2, 2], torch.tensor([-14.0, -9.0]).double(), atol=0.05, rtol=0)


def test_a_start_that_is_given_says_which_of_the_alike_is_meant():
    one, other = wall(128, 18, 1, 0.1), wall(128, 18, 2, 0.1)
    given = torch.stack([EYE, translation(18, 0, EYE)])
    for init, x in (("identity", 0.0), (given, 18.0)):
        result = placed(one, other, init=init)
        assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
        assert float(result.transforms[1][0, 2]) == pytest.approx(x, abs=0.3) and bool(result.lead[1].isnan())


def test_nothing_is_asked_with_a_lead_of_zero():
    result = placed(wall(128, 18, 1, 0.1), wall(128, 18, 2, 0.1), min_lead=0)
    assert result.status[1] == MapStatus.ALIGNED


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_as_strong_as_the_signal_does_not_hide_a_placement_without_rivals(seed):
    random = np.random.default_rng(seed)
    whole = scipy.ndimage.gaussian_filter(random.standard_normal((160, 160)), 3.0)
    whole = whole / whole.std() + scipy.ndimage.gaussian_filter(random.standard_normal((160, 160)), 12.0) * 90
    noisy = whole + whole.std() * random.standard_normal((2, 160, 160))
    one, other = noisy[0][:128, :128], noisy[1][6:134, 11:139]
    result = placed(one, other)
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    assert float(result.lead[1]) > 3
    torch.testing.assert_close(result.transforms[1][:2, 2], torch.tensor([-11.0, -6.0]).double(), atol=1.5, rtol=0)


def flower(turn: float, petals: int, seed: int) -> np.ndarray:
    """Petals around a middle, and noise."""
    down, right = np.mgrid[:128, :128] - 63.5
    distance, angle = np.hypot(right, down), np.arctan2(down, right) - turn
    drawn = np.cos(petals * angle) * np.exp(-(((distance - 35) / 14) ** 2)) + np.exp(-((distance / 9) ** 2))
    return drawn + 0.05 * np.random.default_rng(seed).standard_normal(drawn.shape)


def rim(angle: float, seed: int, radius: float = 90.0) -> np.ndarray:
    """A window on the edge of a cell, at some angle around it. Its own faint detail, and what that is at other angles
    has nothing to do with it."""
    down, right = np.mgrid[:128, :128] - 63.5
    distance = np.hypot(right + radius * np.cos(angle), down + radius * np.sin(angle))
    random = np.random.default_rng(seed)
    inside = 1 / (1 + np.exp((distance - radius) / 2))
    detail = 8 * scipy.ndimage.gaussian_filter(random.standard_normal((128, 128)), 4.0)
    halo = np.exp(-(((distance - radius - 10) / 8) ** 2))
    return inside - 0.4 * halo + 0.05 * inside * detail + 0.01 * random.standard_normal((128, 128))


@pytest.mark.parametrize("petals", [5, 6])
def test_a_flower_that_is_turned_by_a_petal_is_ambiguous(petals):
    """Turned by 360° / petals + 3° it was placed at 3°, with a lead of 9 over all shifts."""
    one, other = flower(0.0, petals, 1), flower(2 * np.pi / petals + np.deg2rad(3), petals, 2)
    result = align([torch.from_numpy(one), torch.from_numpy(other)], model="se2")
    assert result.status[1] == MapStatus.AMBIGUOUS, result.reasons[1]
    assert "Turned by" in result.reasons[1]
    # Who knows that maps are not turned gets their shift.
    unturned = align([torch.from_numpy(flower(0.0, petals, seed)) for seed in (1, 2)], model="translation")
    assert unturned.status[1] == MapStatus.ALIGNED, unturned.reasons[1]


def test_an_arc_on_itself_is_not_placed():
    """The same edge 23° further on, without any overlap: it was aligned."""
    maps = [torch.from_numpy(rim(angle, seed)) for seed, angle in enumerate((0.3, 0.7))]
    result = align(maps, model="sim2")
    assert result.status[1] != MapStatus.ALIGNED, result.reasons[1]


def test_an_arc_leads_over_shifts_and_not_over_rotations():
    """Laid on itself about the middle of the cell, 40 px along its edge."""
    one, other = (level(rim(angle, seed)[::2, ::2]) for seed, angle in enumerate((0.3, 0.7)))
    middle = (31.75 - 45 * np.cos(0.3), 31.75 - 45 * np.sin(0.3)), (31.75 - 45 * np.cos(0.7), 31.75 - 45 * np.sin(0.7))
    lying = similarity_about(*middle, 0.4, 1.0, EYE)
    assert standing(one, other, lying, 0.1).lead > 1.3
    assert turned(one, other, lying, 0.1).lead < 0.3


def test_rotations_are_compared_wherever_the_map_lies():
    base = synthetic.base_raster("grass")[:160, :160]
    for angle in (0.0, 0.5):
        turn = similarity_about((31.5, 31.5), (79.5, 79.5), angle, 1.0, EYE)
        from mslsq.alignment.canvas import Canvas, seen_on

        whole = level(base)
        seen, known = seen_on(Canvas(0, 0, 64, 64), whole.coefficients, whole.mask, turn)
        assert turned(Level(seen, known, 1), whole, turn, 0.2).lead > 2
    petals = level(flower(0.0, 5, 1)[::2, ::2])
    found = turned(petals, level(flower(0.0, 5, 2)[::2, ::2]), EYE, 0.2)
    assert found.lead < 0.3 and min(abs(found.turn - 72 * n) for n in range(1, 5)) <= 1.25, found
