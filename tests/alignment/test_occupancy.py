"""`metric="occupancy"`: drawn buildings are laid on each other, also where they drifted, and on no others."""

import itertools

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import Alignment, Georeference, MapStatus, align
from mslsq.alignment.metrics import Occupancy
from mslsq.alignment.occupancy.cells import Cells, Plan, plan_of
from mslsq.alignment.occupancy.search import own_score, ranked
from mslsq.alignment.prepared import prepare

SIDE = 400


def building(seed: int) -> np.ndarray:
    """Rooms of random sizes along a corridor: 0 wall, 1 free, 0.5 unknown."""
    random = np.random.default_rng(seed)
    plan = np.full((SIDE, SIDE), 0.5)

    def room(top, left, bottom, right):
        plan[top - 3 : bottom + 3, left - 3 : right + 3] = 0.0
        plan[top:bottom, left:right] = 1.0

    left, middle, corridor = 60, int(random.integers(180, 210)), int(random.integers(14, 24))
    rooms = []
    while left < 300:
        width, up, down = (int(n) for n in random.integers((25, 30, 30), (70, 90, 90)))
        rooms += [(middle - up, left, middle - 4, left + width)]
        if random.random() < 0.7:
            rooms += [(middle + corridor + 4, left, middle + corridor + down, left + width)]
        left += width + 6
    for entry in rooms:
        room(*entry)
    room(middle, 60, middle + corridor, left)
    for top, begin, bottom, end in rooms:
        door = int(random.integers(begin + 4, end - 12))
        first, last = (bottom, middle) if bottom < middle else (middle + corridor, top)
        plan[first:last, door : door + 9] = 1.0
    return plan


def recorded(
    plan: np.ndarray, degrees: float, drift: float, seed: int, reach: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """The plan as another robot draws it, and the matrix from pixels of the plan to its pixels: turned, bent, with
    ragged walls; of what is left of `reach` alone."""
    random = np.random.default_rng(seed)
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    middle = (SIDE - 1) / 2
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    about = np.array([[1, 0, middle], [0, 1, middle], [0, 0, 1.0]])
    matrix = about @ turn @ np.linalg.inv(about)
    matrix[:2, 2] += random.uniform(-15, 15, 2)
    back = np.linalg.inv(matrix)
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    u, v = (back[row, 0] * x + back[row, 1] * y + back[row, 2] for row in range(2))
    bend = drift * np.sin(2 * np.pi * u / SIDE + random.uniform(0, 6))
    cut = plan.copy()
    cut[:, int(reach * SIDE) :] = 0.5
    ragged = scipy.ndimage.gaussian_filter(random.standard_normal((2, SIDE, SIDE)), (0, 4, 4)) * 10
    drawn = scipy.ndimage.map_coordinates(cut, [v + bend + ragged[0], u + ragged[1]], order=0, cval=0.5)
    return drawn, matrix


def tensors(*maps):
    return [torch.from_numpy(np.ascontiguousarray(one)) for one in maps]


def off(found: torch.Tensor, truth: np.ndarray) -> float:
    """Root mean square distance over the middle of the plan, in pixels."""
    at = np.stack([*np.meshgrid([70.0, 200, 320], [110.0, 200, 280]), np.ones((3, 3))]).reshape(3, -1)
    return float(np.sqrt((((found.numpy() - truth) @ at)[:2] ** 2).sum(0).mean()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("degrees", [0.0, 37.0, 180.0])
def test_a_drifted_map_is_found_in_any_rotation(degrees):
    plan = building(1)
    other, truth = recorded(plan, degrees, drift=5.0, seed=2)
    result = align(tensors(plan, other), model="se2", metric="occupancy")
    assert result.aligned == [0, 1], result.message()
    assert result.metrics == ["", "occupancy"] and "walls" in result.reasons[1]
    assert off(result.transforms[1], truth) < 6.0
    # Two cells of two pixels each, at the corners of what is known, and more at those of the raster.
    assert 4.0 <= float(result.corner_sigma[1]) < 20.0


def test_a_map_that_has_seen_a_part_is_found():
    plan = building(3)
    other, truth = recorded(plan, 20.0, drift=2.0, seed=4, reach=0.7)
    result = align(tensors(plan, other), model="se2", metric="occupancy")
    assert result.aligned == [0, 1], result.message()
    assert off(result.transforms[1], truth) < 5.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("model", "degrees"), [("se2", 70.0), ("translation", 0.0)])
def test_other_buildings_are_left_out(model, degrees):
    plans = [building(seed) for seed in range(10, 18)]
    for one, other in itertools.pairwise(plans):
        turned, _ = recorded(other, degrees, drift=2.0, seed=1)
        result = align(tensors(one, turned), model=model, metric="occupancy")
        assert result.aligned == [0], result.message()
        assert result.status[1] in (MapStatus.AMBIGUOUS, MapStatus.LOW_CORRELATION, MapStatus.NO_OVERLAP)


@pytest.mark.parametrize(("model", "width"), [("se2", 40), ("translation", 60)])
def test_equal_rooms_in_a_row_are_ambiguous(model, width):
    """Two equal rooms: half of the walls fit when the map is laid a room farther."""
    plan = np.full((SIDE, SIDE), 0.5)
    for left in range(60, 340, width):
        plan[150:250, left : left + width + 3] = 0.0
        plan[153:247, left + 3 : left + width] = 1.0
    result = align(tensors(plan, np.roll(plan, 11, 1)), model=model, metric="occupancy")
    assert result.aligned == [0] and result.status[1] in (MapStatus.AMBIGUOUS, MapStatus.LOW_CORRELATION)


def test_a_part_of_a_row_is_not_placed_by_how_far_each_robot_has_seen():
    """Of a row of equal rooms two robots have seen four each, one room apart: values of the unknown, which is grey
    here, would lay the four on the four."""
    row = np.full((SIDE, SIDE), 0.5)
    for left in range(60, 340, 60):
        row[150:250, left : left + 63] = 0.0
        row[153:247, left + 3 : left + 60] = 1.0
    one, other = row.copy(), row.copy()
    one[:, 303:], other[:, :120] = 0.5, 0.5
    result = align(tensors(one, other), model="translation", metric="occupancy")
    assert result.aligned == [0] and result.status[1] == MapStatus.AMBIGUOUS


@pytest.mark.parametrize("degrees", [0.0, 37.0])
def test_noise_of_single_cells_is_no_wall(degrees):
    random, plan = np.random.default_rng(0), building(2)
    other, truth = recorded(plan, degrees, drift=1.0, seed=5)
    noisy = [np.where((random.random(one.shape) < 0.03) & (one != 0.5), 1 - one, one) for one in (plan, other)]
    result = align(tensors(*noisy), model="se2", metric="occupancy")
    assert result.aligned == [0, 1], result.message()
    assert off(result.transforms[1], truth) < 3.0


def test_specks_are_left_out_and_walls_half_drawn_are_not():
    wall = np.zeros((60, 60), dtype=bool)
    wall[30, 5:55:2] = wall[10:13, 10:13] = wall[50, 50] = True
    kept = Plan(wall, ~wall).without_specks(4).wall
    assert not kept[50, 50] and kept[10:13, 10:13].all() and kept[30, 7:53:2].all()


def test_a_place_that_walls_alone_do_not_hold_is_held_by_values():
    """Two drawings of parts of a plan, half of each without a counterpart, with noise of single cells: walls have
    little support there, values of the same cells say the same place."""
    random, plan = np.random.default_rng(3), building(14)
    noisy = [np.where((random.random(plan.shape) < 0.01) & (plan != 0.5), 1 - plan, plan) for _ in range(2)]
    noisy[0][:, 250:], noisy[1][:, :130] = 0.5, 0.5
    shifted = np.roll(noisy[1], (-7, -20), (0, 1))
    result = align(tensors(noisy[0], shifted), model="translation", metric="occupancy")
    assert result.aligned == [0, 1], result.message()
    assert (result.transforms[1][:2, 2] - torch.tensor([-20.0, -7.0]).double()).abs().max() < 0.05
    assert "less than is asked" in result.reasons[1]


def test_what_is_unknown_counts_for_nothing():
    """A search of a plan on itself, of which the other half was never seen, has its best score at no shift."""
    plan = building(5)
    half = plan.copy()
    half[:, 190:] = 0.5
    rasters, _, _ = prepare(tensors(plan, half), None)
    one, other = (Cells.of(plan_of(raster, Occupancy()), 2, raster.values) for raster in rasters)
    best = ranked(one, other, turns=False)[0]
    assert (best.matrix - torch.eye(3, dtype=torch.float64)).abs().max() < 1e-9
    assert best.score == pytest.approx(own_score(other), rel=0.1)


def test_unknown_cells_are_told_by_their_value_or_by_thresholds():
    values = torch.full((40, 40), 205.0)
    values[5:35, 5:35] = 0.0
    values[8:32, 8:32] = 254.0
    for metric in (Occupancy(), Occupancy(free=0.9)):
        (raster,), _, _ = prepare([values], None)
        plan = plan_of(raster, metric)
        assert plan.free.sum() == 24 * 24 and plan.wall.sum() == 30 * 30 - 24 * 24
    masked = torch.where(values == 205.0, torch.nan, values)
    (raster,), _, _ = prepare([masked], None)
    assert plan_of(raster, Occupancy()).free.sum() == 24 * 24


def test_a_map_without_free_space_says_so():
    flat = np.zeros((SIDE, SIDE))
    flat[::7] = 0.2
    flat[0, 0] = 1.0
    result = align(tensors(building(1), -np.abs(flat)), model="se2", metric="occupancy")
    assert result.aligned == [0] and result.status[1] != MapStatus.ALIGNED


def test_a_start_of_the_user_is_solved_without_a_search():
    plan = building(6)
    other, truth = recorded(plan, 12.0, drift=1.0, seed=3)
    start = truth.copy()
    start[:2, 2] += 3.0
    init = torch.stack([torch.eye(3, dtype=torch.float64), torch.from_numpy(start)])
    result = align(tensors(plan, other), model="se2", metric="occupancy", init=init)
    assert result.aligned == [0, 1] and bool(result.lead[1].isnan())
    assert off(result.transforms[1], truth) < 2.5


def test_two_drawings_that_have_not_drifted_are_placed_by_their_values_in_the_end():
    plan = scipy.ndimage.gaussian_filter(building(7), 1.0)
    result = align(tensors(plan[:, :360], plan[8:, 25:]), model="se2", metric="occupancy")
    assert result.aligned == [0, 1], result.message()
    assert (result.transforms[1][:2, 2] - torch.tensor([-25.0, -8.0]).double()).abs().max() < 0.05
    assert result.reasons[1].endswith("Then by the values.") and float(result.corner_sigma[1]) < 0.5


def test_of_two_places_that_score_alike_a_header_chooses_one():
    """A building whose wings are the same, and a map of one wing: its header says which, or nothing, but never a third
    place."""
    wing = building(1)[80:300, 40:320]
    whole = np.full((300, 640), 0.5)
    whole[40:260, 20:300], whole[40:260, 340:620] = wing, wing
    one = np.full((300, 320), 0.5)
    one[40:260, 20:300] = wing
    here = Georeference.from_geotransform((0.0, 0.1, 0.0, 30.0, 0.0, -0.1))

    def placed(column: float) -> Alignment:
        there = Georeference.from_geotransform((0.1 * column, 0.1, 0.0, 30.0, 0.0, -0.1))
        return align(tensors(whole, one), model="translation", metric="occupancy", georeferences=[here, there])

    assert align(tensors(whole, one), model="translation", metric="occupancy").status[1] == MapStatus.AMBIGUOUS
    for column, truth in ((12.0, 0.0), (310.0, 320.0)):
        result = placed(column)
        assert result.aligned == [0, 1], result.message()
        assert float(result.transforms[1][0, 2]) == pytest.approx(-truth, abs=0.5)
    for column in (160.0, 700.0):
        assert placed(column).status[1] == MapStatus.AMBIGUOUS, "the header says neither"
