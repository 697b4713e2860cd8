"""Starts: shifts, rotations and scales found from nothing, under masks."""

import math

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import grids, pyramid, shifts, starts, synthetic
from mslsq.alignment.estimate import Estimate, sane
from mslsq.alignment.measures import corner_error


def level(image, mask=None, levels=1):
    image = torch.as_tensor(image, dtype=torch.float64)[None]
    mask = torch.ones(image.shape[-2:], dtype=torch.bool) if mask is None else mask
    return pyramid.build(image, mask, levels)[-1]


def turned_pair(name, angle, scale, x, y, size=256, levels=3):
    """Levels of a raster and of it turned, and the true matrix in pixels of that level."""
    base = scipy.ndimage.gaussian_filter(synthetic.base_raster(name), 0.8)
    transform = grids.similarity_about(
        ((size - 1) / 2, (size - 1) / 2),
        ((size - 1) / 2 + x, (size - 1) / 2 + y),
        angle,
        scale,
        torch.zeros(()).double(),
    )
    corner = tuple((np.array(base.shape)[::-1] - size) // 2)
    reference = base[corner[1] : corner[1] + size, corner[0] : corner[0] + size]
    moving = 0.8 * synthetic.warp_from_base(base, corner, transform.numpy(), (size, size)) + 0.1
    shrink = torch.diag(torch.tensor([2.0 ** (levels - 1)] * 2 + [1.0], dtype=torch.float64))
    return level(reference, levels=levels), level(moving, levels=levels), torch.linalg.inv(shrink) @ transform @ shrink


@pytest.mark.parametrize("shift", [(5, -3), (-12, 9), (0, 0)])
def test_phase_correlation_finds_a_shift_to_the_pixel(shift):
    image = synthetic.base_raster("camera")
    x, y = shift
    reference, moving = level(image[100:228, 100:228]), level(image[100 - y : 228 - y, 100 - x : 228 - x])
    assert starts.phase_correlation(reference, moving)[:2, 2].tolist() == [x, y]


def test_masked_correlation_equals_the_direct_sum_at_every_shift():
    random = torch.Generator().manual_seed(0)
    a = torch.randn(9, 8, dtype=torch.float64, generator=random)
    b = torch.randn(7, 10, dtype=torch.float64, generator=random)
    mask_a, mask_b = (torch.rand(t.shape, generator=random) > 0.2 for t in (a, b))
    reference = pyramid.Level(a[None], mask_a, 1)
    known = torch.where(mask_b, b, torch.zeros_like(b))
    a = shifts.whitened(reference)
    scores = shifts.shift_scores(reference, known[None], mask_b[None].double(), 0.3)[0]
    smaller = min(int(mask_a.sum()), int(mask_b.sum()))
    for dx, dy in [(0, 0), (2, -1), (-3, 2), (1, 1)]:
        left, right = [], []
        for y in range(9):
            for x in range(8):
                if 0 <= y + dy < 7 and 0 <= x + dx < 10 and mask_a[y, x] and mask_b[y + dy, x + dx]:
                    left.append(float(a[y, x]))
                    right.append(float(b[y + dy, x + dx]))
        share = len(left) / smaller
        expected = math.atanh(np.corrcoef(left, right)[0, 1]) * math.sqrt(min(share, 1)) if share >= 0.3 else -1.0
        assert abs(float(scores[dy, dx]) - expected) < 1e-9


@pytest.mark.parametrize("masks", ["two rectangles", "a rectangle and another shape"])
def test_sums_over_rectangles_need_no_transform(masks, monkeypatch):
    random = torch.Generator().manual_seed(4)
    known, of_images = torch.zeros(40, 33), torch.zeros(2, 37, 41)
    known[2:38, 3:30], of_images[0, 1:30, 4:41], of_images[1, 5:37, :35] = 1, 1, 1
    if masks != "two rectangles":
        of_images[1, 20, 20] = 0
    reference = pyramid.Level(torch.randn(1, 40, 33, generator=random), known > 0, 1)
    images = of_images * torch.randn(2, 37, 41, generator=random)
    found = shifts.shift_scores(reference, images, of_images, 0.2)
    monkeypatch.setattr(shifts, "_solid_box", lambda mask: None)
    by_transforms = shifts.shift_scores(reference, images, of_images, 0.2)
    assert 100 < int((found > -1).count_nonzero()) < found.numel()
    assert torch.equal(found > -1, by_transforms > -1)
    torch.testing.assert_close(found, by_transforms, rtol=0, atol=1e-4)


def test_only_a_rectangle_is_one():
    mask = torch.zeros(5, 7, dtype=torch.float64)
    assert shifts._solid_box(mask) is None
    mask[1:4, 2:6] = 1
    box = shifts._solid_box(mask)
    assert box is not None and box.tolist() == [1, 3, 2, 5]
    for y, x in [(0, 0), (2, 6), (4, 3), (2, 3)]:
        other = mask.clone()
        other[y, x] = 1 - other[y, x]
        assert shifts._solid_box(other) is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("degrees", [0, 33, 90, 137, 180, -75])
@pytest.mark.parametrize("name", ["camera", "elevation"])
def test_any_rotation_is_found_within_the_basin(name, degrees):
    reference, moving, truth = turned_pair(name, math.radians(degrees), 1.0, 15, -10)
    candidates = [("rotation search", m) for m in starts.rotation_search(reference, moving, 0.3)]
    best = starts.rank(candidates, reference, moving, 0.2)[0]
    # 2.5° of grid at a corner 45 px from the centre of this level is 2 px, rounding of the shift another 0.7.
    assert corner_error(best.matrix, truth, *reference.size) < 3.5


@pytest.mark.parametrize(("degrees", "scale"), [(20, 1.3), (-50, 0.75)])
def test_log_polar_finds_rotation_and_scale_together(degrees, scale):
    reference, moving, truth = turned_pair("camera", math.radians(degrees), scale, 8, 5)
    candidates = starts.search(reference, moving, rotations=True, scales=True, min_overlap=0.2)
    found = [corner_error(m, truth, *reference.size) for origin, m in candidates if origin == "log-polar"]
    assert min(found) < 4.0  # 1.4° and 2.5 % of bins, at a corner 45 px from the centre


def test_the_true_shift_outranks_everything_under_a_mask():
    image = synthetic.base_raster("brick")
    mask = torch.ones(128, 128, dtype=torch.bool)
    mask[:, :50] = False
    spoiled = image[100:228, 130:258].copy()
    spoiled[:, :50] = 9.0
    reference, moving = level(image[100:228, 100:228]), level(spoiled, mask)
    best = starts.rank(starts.search(reference, moving, False, False, 0.2), reference, moving, 0.2)[0]
    assert best.matrix[:2, 2].tolist() == [-30, 0]
    assert best.ncc > 0.99


def test_a_thin_strip_of_chance_does_not_outrank_a_wide_overlap():
    thin = starts.Start("thin", torch.eye(3), ncc=0.8, overlap=0.1)
    wide = starts.Start("wide", torch.eye(3), ncc=0.6, overlap=0.8)
    assert wide.score > thin.score


def test_points_between_pixels_need_all_their_neighbours():
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1, 2] = False
    points = torch.tensor([[0.0, 0.0], [4.0, 3.0], [4.1, 3.0], [1.5, 1.0], [2.0, 0.5], [3.0, 1.0], [float("nan"), 0.0]])
    assert grids.inside(points, mask).tolist() == [True, True, False, False, False, True, False]


def test_constant_maps_give_candidates_and_no_error():
    flat = level(np.ones((40, 40)))
    ranked = starts.rank(starts.search(flat, flat, True, True, 0.2), flat, flat, 0.2)
    assert ranked
    assert all(math.isfinite(start.score) for start in ranked)


def test_shorter_transforms_mix_only_shifts_that_are_not_scored(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    sizes = (40, 33), (37, 41)
    one, other = (torch.randn(1, *size, generator=generator) for size in sizes)
    known = torch.rand(37, 41, generator=generator) > 0.1
    reference = pyramid.Level(one, torch.ones(40, 33, dtype=torch.bool), 1)
    image = torch.where(known, other[0], torch.zeros(()))
    monkeypatch.setattr(shifts, "quick_length", lambda least: least)
    short = shifts.shift_scores(reference, image[None], known[None].float(), 0.2003)[0]
    monkeypatch.setattr(
        shifts, "_lengths", lambda one, other, least: [a + b - 1 for a, b in zip(one, other, strict=True)]
    )
    whole = shifts.shift_scores(reference, image[None], known[None].float(), 0.2003)[0]
    assert short.shape[0] < whole.shape[0] and short.shape[1] < whole.shape[1]
    rows, columns = (torch.arange(-count + 1, size) for count, size in zip(*sizes, strict=True))
    there = whole[rows % whole.shape[0]][:, columns % whole.shape[1]]
    here = short[rows % short.shape[0]][:, columns % short.shape[1]]
    scored = there > -1
    assert 100 < int(scored.count_nonzero()) < scored.numel()
    torch.testing.assert_close(here[scored], there[scored], rtol=0, atol=1e-4)
    assert int((short > -1).count_nonzero()) == int(scored.count_nonzero())


def test_a_gain_that_has_run_away_is_no_place():
    """Its exponential is no number any more: one of 3,055 pairs without a match ended in an OverflowError."""
    like = torch.eye(3, dtype=torch.float64)
    assert sane(Estimate(like, like.new_tensor([5.0, 0.0]), "drawn"))
    assert sane(Estimate(like, like.new_tensor([-800.0, 0.0]), "drawn"))
    assert not sane(Estimate(like, like.new_tensor([800.0, 0.0]), "drawn"))
