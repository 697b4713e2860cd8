"""What is believed of a placement: the blocks' detail must agree, not the energy of the whole."""

import math

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align, belief, synthetic, weighing
from mslsq.alignment.apertures import independent
from mslsq.alignment.evidence import SCATTER, Evidence, clear, compared, evidence
from mslsq.alignment.metrics import METRICS
from mslsq.alignment.models import Frame
from mslsq.alignment.mosaics import cut, ring
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import prepare
from mslsq.alignment.pyramid import build

SIZE = 128
EYE = torch.eye(3, dtype=torch.float64)


def stars(seed: int, size: int = SIZE) -> np.ndarray:
    """A few bright stars and many faint ones on a sky that glows to one side."""
    random = np.random.default_rng(seed)
    field = np.zeros((size, size))
    y, x = random.integers(0, size, (2, 60))
    field[y, x] = random.pareto(1.2, 60).clip(0, 40)
    return scipy.ndimage.gaussian_filter(field, 1.2) + np.linspace(0, 1, size)[:, None]


def slope(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    a, b, c = random.standard_normal(3)
    return a * x + b * y + 0.3 * c * x * y + 0.01 * random.standard_normal((SIZE, SIZE))


def grains(seed: int) -> np.ndarray:
    return scipy.ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((SIZE, SIZE)), 3.0, mode="wrap")


def sky(seed: int) -> np.ndarray:
    """One sky for all, three times as bright as what is under it, which differs."""
    return 3 * np.linspace(0, 1, SIZE)[:, None] ** 2 + grains(seed) / grains(seed).std()


def placed(one: np.ndarray, other: np.ndarray, **options) -> MapStatus:
    result = align([torch.from_numpy(one), torch.from_numpy(other)], **options)
    return MapStatus(int(result.status[1]))


def level_of(one: np.ndarray, other: np.ndarray, index: int = 0) -> tuple[PairLevel, Frame]:
    (fixed, moving), _, _ = prepare([one, other], None)
    height, width = fixed.mask.shape
    frame = Frame(height, width, fixed.values)
    pyramids = [map_.pyramid(3, map_.mean, map_.spread, 1.0) for map_ in (fixed, moving)]
    return PairLevel.of(pyramids[0][index], pyramids[1][index], frame, index), frame


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scene", [stars, slope, grains, sky])
@pytest.mark.parametrize("seed", range(4))
def test_two_scenes_of_one_kind_are_not_placed_on_each_other(scene, seed):
    assert not placed(scene(2 * seed), scene(2 * seed + 1), model=("sim2", "translation")[seed % 2]).ok


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("scene", [stars, grains])
def test_two_parts_of_one_scene_are(scene, noise):
    whole, random = scene(3), np.random.default_rng(0)
    noisy = whole + noise * whole.std() * random.standard_normal((2, *whole.shape))
    result = align([torch.from_numpy(noisy[0][:100, :100]), torch.from_numpy(noisy[1][7:107, 4:104])], model="se2")
    assert result.status[1] == MapStatus.ALIGNED
    torch.testing.assert_close(result.transforms[1][:2, 2], torch.tensor([-4.0, -7.0]).double(), atol=0.3, rtol=0)


def test_the_agreement_of_true_and_false_placements():
    pair = synthetic.make_pair("camera", "translation", seed=5, size=SIZE)
    level, frame = level_of(pair.reference.numpy(), pair.moving.numpy())
    true = evidence(level, frame.from_pixels(pair.transform))
    assert true.agreement > 0.9 and true.suffices(0.6)
    moved = pair.transform.clone()
    moved[0, 2] += 9
    false = evidence(level, frame.from_pixels(moved))
    assert abs(false.agreement) < 0.5 and not false.suffices(0.6)


def test_a_common_slope_is_no_evidence():
    """Planes, and what bends as gently, are taken out of every block."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    random = np.random.default_rng(1).standard_normal((2, SIZE, SIZE))
    level, frame = level_of(50 * (x + y * y) + random[0], 50 * (x + y * y) + random[1])
    assert abs(evidence(level, frame.from_pixels(EYE)).agreement) < 0.2


def test_what_one_map_alone_shows_counts_against_the_placement():
    one, other = 0.05 * grains(1), 0.05 * grains(1)
    with_stars = one + stars(2)
    level, frame = level_of(with_stars, other)
    assert evidence(level, frame.from_pixels(EYE)).agreement < 0.5
    level, frame = level_of(with_stars, with_stars)
    assert evidence(level, frame.from_pixels(EYE)).agreement > 0.99


def frames(seed: int, count: int) -> np.ndarray:
    """A drawing: the outlines of some boxes, on paper that is flat to the bit."""
    random, page = np.random.default_rng(seed), np.ones((SIZE, SIZE))
    for _ in range(count):
        top, left = random.integers(4, SIZE - 40, 2)
        height, width = random.integers(16, 36, 2)
        page[top : top + height, left : left + width] = 0.0
        page[top + 2 : top + height - 2, left + 2 : left + width - 2] = 1.0
    return page


def test_blocks_that_are_flat_in_both_maps_say_nothing():
    """Most of two drawings is: what rounding leaves there correlates by 1.00, and was the median."""
    level, frame = level_of(frames(1, 1), frames(2, 1))
    found = evidence(level, frame.from_pixels(EYE))
    assert found.agreement < 0.3 and found.blocks < 22
    level, frame = level_of(frames(1, 1), frames(1, 1))
    found = evidence(level, frame.from_pixels(EYE))
    assert found.agreement > 0.99 and found.blocks < 22


def test_a_block_that_is_flat_in_one_map_alone_speaks_against_the_placement():
    one, other = frames(1, 8), frames(1, 8)
    other[:, SIZE // 2 :] = 1.0
    other[: SIZE // 2] = 1.0
    level, frame = level_of(one, other)
    seen = compared(level, frame.from_pixels(EYE))
    flat = seen.at[:, 0] < 0.5 * SIZE / 16 - 1
    assert flat.sum() > 5 and (seen.correlation[flat] == 0).all()
    assert not evidence(level, frame.from_pixels(EYE)).suffices(0.2)


def test_two_flat_maps_hold_no_evidence():
    page = np.ones((SIZE, SIZE))
    page[-1, -4:] = 0.0
    level, frame = level_of(page, page)
    found = evidence(level, frame.from_pixels(EYE))
    assert math.isnan(found.agreement) and found.blocks == 0 and not found.suffices(-0.9)


def test_two_drawings_are_not_placed_on_each_other_and_two_parts_of_one_are():
    assert not placed(frames(3, 9), frames(4, 9), model="se2").ok
    page = np.pad(frames(5, 9), 8, constant_values=1.0)
    result = align([page[:SIZE, :SIZE].copy(), page[9 : SIZE + 9, 4 : SIZE + 4].copy()], model="se2")
    assert result.status[1] == MapStatus.ALIGNED
    torch.testing.assert_close(result.transforms[1][:2, 2], torch.tensor([-4.0, -9.0]).double(), atol=0.05, rtol=0)


def test_of_a_small_overlap_more_lead_is_asked():
    asked = [belief.asked_lead(Options(min_lead=1.3), overlap) for overlap in (1.0, 0.5, 0.125)]
    assert asked == [1.3, 1.3, pytest.approx(2.6)]


def test_a_metric_says_how_much_less_is_asked_of_a_placement_that_stands_out():
    assert weighing.relieved(Options(min_detail=0.6)) == pytest.approx((0.5, 0.2))
    assert weighing.relieved(Options(metric=METRICS["learned"])) == pytest.approx((0.1, 0.0))


@pytest.mark.parametrize(("noise", "index"), [(1.0, 0), (1.5, 0), (2.0, 0), (2.0, 1), (2.0, 2)])
def test_noise_lowers_the_agreement_of_a_true_placement_to_its_reliability(noise, index):
    scene, random = grains(3), np.random.default_rng(8)
    one, other = (scene + noise * scene.std() * random.standard_normal(scene.shape) for _ in range(2))
    level, _ = level_of(one, other, index)
    found = evidence(level, EYE)
    assert found.agreement < 1 - 0.01 * noise
    assert abs(found.agreement - found.reliability) < 0.06
    assert found.suffices(0.6) and (index or not found._replace(reliability=1.0).suffices(0.7))


def test_parts_that_disagree_are_not_excused_by_noise():
    """As in two views of a street: a third of the scene lies on itself, the rest elsewhere."""
    one, other = grains(4), grains(5)
    other[:, : SIZE // 3] = one[:, : SIZE // 3]
    level, _ = level_of(one, other)
    found = evidence(level, EYE)
    assert found.reliability > 0.95
    assert not found.suffices(0.6)
    assert placed(one, other, model="homography") != MapStatus.ALIGNED


def test_stars_edges_and_flat_areas_are_no_noise():
    for one in (stars(1), frames(3, 9), slope(1) - slope(1) + np.eye(SIZE)):
        level, _ = level_of(one, one)
        assert evidence(level, EYE).reliability > 0.9 or not evidence(level, EYE).blocks


def test_masked_samples_and_channels():
    pair = synthetic.make_pair("astronaut", "translation", seed=2, size=SIZE)
    one = torch.stack((pair.reference, torch.zeros_like(pair.reference))).numpy()
    other = torch.stack((pair.moving, torch.zeros_like(pair.moving))).numpy()
    other[:, 20:50, 10:90] = np.nan
    level, frame = level_of(one, other)
    assert evidence(level, frame.from_pixels(pair.transform)).agreement > 0.9
    level, frame = level_of(one, np.nan_to_num(other))
    assert evidence(level, frame.from_pixels(pair.transform)).agreement < 0.5


def test_more_is_asked_of_fewer_blocks():
    assert Evidence(0.7, 40).suffices(0.6) and not Evidence(0.7, 5).suffices(0.6)
    assert Evidence(math.nan, 0).suffices(0.6) is False
    assert Evidence(0.7, 50).asked(0.6) == pytest.approx(0.6 + SCATTER / 50, abs=2e-3)
    assert 0.98 < Evidence(0.99, 4).asked(0.6) < 1.0


def test_at_minus_one_nothing_is_asked():
    assert Evidence(math.nan, 0).suffices(-1.0) and Evidence(-0.3, 4).suffices(-1.0)


@pytest.mark.parametrize("size", [160, 26])
def test_at_minus_one_a_pair_is_placed_whatever_its_detail(size):
    """Of 26 pixels there are too few blocks: their agreement is NaN, and a lead takes 0.4 off what is asked."""
    raster = grains(1)
    one, other = raster[:size, :size], raster[2 : 2 + size, 1 : 1 + size]
    result = align([one, other], model="translation", min_detail=-1, min_lead=0.01)
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]


def test_other_placements_are_not_searched_for_one_without_detail(monkeypatch):
    asked = []
    monkeypatch.setattr(belief.Pair, "standing", lambda pair, matrix, least: asked.append(matrix))
    result = align([slope(1), slope(2)], model="translation")
    assert result.status[1] != MapStatus.ALIGNED and not asked


def test_a_solve_that_has_not_converged_is_not_aligned():
    pair = synthetic.make_pair("camera", "translation", seed=5, size=SIZE)
    states = {
        placed(pair.reference.numpy(), pair.moving.numpy(), max_steps=steps, model="affine") for steps in (1, 100)
    }
    assert states == {MapStatus.NOT_CONVERGED, MapStatus.ALIGNED}


def test_maps_that_have_drifted_are_placed_to_some_samples_of_the_detail_that_agrees():
    """Thin walls of one building, mapped twice, bent by up to 6 px: no wall lies on itself all along."""
    random, size = np.random.default_rng(2), 512
    walls = np.ones((size, size))
    for _ in range(24):
        row, column, length = random.integers(40, size - 40, 3)
        walls[row : row + 4, min(column, length) : max(column, length)] = 0.0
        walls[min(row, length) : max(row, length), column : column + 4] = 0.0
    y, x = np.mgrid[:size, :size].astype(float)
    bent = [y + 6 * np.sin(x / 90 + 1), x + 6 * np.sin(y / 70)]
    other = scipy.ndimage.map_coordinates(walls, bent, order=1, mode="nearest")
    result = align([torch.from_numpy(walls), torch.from_numpy(other)], model="se2")
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    assert "drifted" in result.reasons[1] and float(result.corner_sigma[1]) >= 15.9
    seen = torch.from_numpy(np.stack([bent[1], bent[0], np.ones_like(x)], -1)).reshape(-1, 3) @ result.transforms[1].T
    apart = (seen[:, :2] - torch.from_numpy(np.stack([x, y], -1)).reshape(-1, 2)).square().sum(-1).mean().sqrt()
    assert float(apart) < 1.5 * float(result.corner_sigma[1])  # 1.0 here


@pytest.mark.slow
def test_a_strong_prefilter_leaves_no_chance_to_blurred_blocks():
    """Two parts of a picture of galaxies: behind 4 px all blocks agreed by 0.85 at a place 161 px off."""
    base = synthetic.base_raster("hubble")
    base = (base - base.min()) / np.ptp(base)
    random, reach = np.random.default_rng(3), 0.62 * 112 + 60
    middle = [random.uniform(reach, side - reach) for side in base.shape[::-1]]
    maps = cut(base, ring(6, 0.62 * 112, (middle[0], middle[1])), 112, 3).maps
    pyramids = [build(one[None], torch.ones(one.shape, dtype=torch.bool), 3, 0.0) for one in maps[:2]]
    levels = [PairLevel.of(a, b, Frame(112, 112, maps[0]), 0) for a, b in zip(*pyramids, strict=True)]
    assert [clear(levels, prefilter) for prefilter in (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0)] == [0, 0, 0, 1, 1, 2, 2]
    assert align(maps, prefilter=4.0).aligned == [0]


@pytest.mark.parametrize(
    ("edges", "least", "most"),
    [
        (lambda x, y: np.sin(x), 5.9, 6.1),
        (lambda x, y: np.sin(x + 0.05 * y), 5.9, 6.3),
        (lambda x, y: np.sin(x + y), 10.9, 11.1),
        (lambda x, y: np.sin(x) * np.sin(y), 35.9, 36.0),
    ],
)
def test_what_blocks_measure_across_edges_and_at_corners(edges, least, most):
    """Of 6 by 6 blocks: bars from top to bottom, 6; slanted ones, 11 diagonals; blobs, all."""
    y, x = np.mgrid[:SIZE, :SIZE] * (2 * np.pi / 8)
    page = edges(x, y) + 0.0 * x
    level, frame = level_of(page, page)
    seen = compared(level, frame.from_pixels(EYE))
    inner = (seen.at % 7 != 0).all(-1)  # the border's blocks are cut
    found = independent(seen.slopes[inner], seen.at[inner], np.ones(36))
    assert least <= found <= most


def test_maps_without_anything_in_common_measure_nothing():
    assert (
        independent(np.array([[-1.0, 0.0, -2.0], [0.0, 0.0, 0.0]]), np.array([[0.0, 0.0], [0.0, 1.0]]), np.ones(2))
        == 0.0
    )
    assert independent(np.zeros((0, 3)), np.zeros((0, 2)), np.zeros(0)) == 0.0


@pytest.mark.parametrize("radius", [40.0, 57.0])
def test_an_arc_that_turns_evenly_is_seen_once(radius):
    """As is a line: where a circle goes is known from three points of it."""
    y, x = np.mgrid[:SIZE, :SIZE] - 63.0
    disc = scipy.ndimage.gaussian_filter((np.hypot(x, y) < radius).astype(float), 1.0)
    level, frame = level_of(disc, disc)
    seen = compared(level, frame.from_pixels(EYE))
    assert independent(seen.slopes, seen.at, np.ones(len(seen.at)), arcs=True) < 4.0 < 16 < len(seen.at)


def test_an_edge_that_bends_is_seen_on_both_sides_of_the_bend():
    edge, bent = [1.0, 0.0, 0.0], [0.5, 0.5, 0.5]  # from top to bottom, then by 45°
    at = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    assert independent(np.array([edge, edge, bent, bent]), at, np.ones(4), arcs=True) > 1.3
    assert independent(np.array([edge] * 4), at, np.ones(4), arcs=True) == pytest.approx(1.0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("metric", ["auto", "gradients", "squared"])
@pytest.mark.parametrize("model", ["translation", "se2"])
def test_other_scenes_behind_one_aperture_are_not_placed_by_its_rim(metric, model):
    y, x = np.mgrid[:SIZE, :SIZE] - 66.0
    field = scipy.ndimage.gaussian_filter((np.hypot(x, y) < 54).astype(float), 0.7)
    one, other = (field * (4.0 + scene(3) / scene(3).std()) for scene in (grains, fibres))
    assert not placed(one, other, metric=metric, model=model).ok


def fibres(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal((SIZE, SIZE))
    return scipy.ndimage.gaussian_filter(noise, (6.0, 0.8), mode="wrap")


def test_a_scene_behind_an_aperture_is_placed_by_what_is_seen():
    y, x = np.mgrid[:SIZE, :SIZE] - 66.0
    field = scipy.ndimage.gaussian_filter((np.hypot(x, y) < 54).astype(float), 0.7)
    scene = 4.0 + grains(3) / grains(3).std()
    assert placed(field * scene, field * (9.0 - scene), metric="auto", model="se2").ok


def test_noise_of_two_maps_is_no_corner():
    """It has slopes in all directions, but not the same ones in both maps."""
    random = np.random.default_rng(6).standard_normal((2, SIZE, SIZE))
    bars = 3 * np.sin(np.arange(SIZE) / 2.5)[None, :] + np.zeros((SIZE, 1))
    level, frame = level_of(bars + random[0], bars + random[1])
    seen = compared(level, frame.from_pixels(EYE))
    assert independent(seen.slopes, seen.at, np.ones(len(seen.at))) < 16


def test_blocks_that_do_not_agree_measure_nothing():
    """Two rails agreed in 35 of 47 blocks; of the others each seemed to show an edge of its own."""
    edge = np.array([[1.0, 0.0, 0.0]] * 4)
    at = np.array([[0.0, 0.0], [0.0, 2.0], [0.0, 4.0], [0.0, 6.0]])
    assert independent(edge, at, np.array([1.0, 1.0, 0.0, 0.0])) == 2.0


def test_what_a_warp_was_fitted_to_is_no_evidence():
    assert Evidence(0.9, 20, independent=24.0).left(6) == 14.0
    assert Evidence(0.9, 20, independent=9.0).left(6) == 3.0
    assert Evidence(0.9, 4, independent=5.0).left(6) == Evidence(0.9, 4, independent=0.0).left(2) == 0.0
    assert Evidence(0.9, 4, independent=5.0).asked(0.6, 6) == pytest.approx(1.0)
    assert Evidence(0.9, 20, independent=24.0).asked(0.6, 6) == pytest.approx(Evidence(0.9, 14).asked(0.6))


def test_pieces_of_one_line_are_not_laid_on_each_other():
    """All of it agrees, along an edge that goes on and on."""
    random = np.random.default_rng(7).standard_normal((2, SIZE, SIZE))
    across = np.arange(8, SIZE - 8)
    page = np.zeros((SIZE, SIZE))
    page[40 + np.abs(across - 50) // 2, across] = 1.0
    line = scipy.ndimage.gaussian_filter(page, 1.2)
    level, frame = level_of(*(line * (1 + 0.3 * noise) for noise in random))
    found = evidence(level, frame.from_pixels(EYE))
    assert found.agreement > 0.95 and found.blocks > 12 and found.independent < 7
    assert not found.suffices(0.6, unknowns=6)
