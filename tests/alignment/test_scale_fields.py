"""Scale fields of views: exact where the model is, right to its misfit elsewhere, and refusals in words."""

import pytest
import torch

from mslsq import ProblemError, Status
from mslsq.alignment import depths_in_view, scale_fields, scale_sync
from mslsq.alignment.scales.grid import Grid
from mslsq.alignment.scales.room import Room, room
from mslsq.alignment.scales.views import DepthViews, sightings


def with_true_reference(scene: Room) -> tuple[DepthViews, torch.Tensor]:
    """View 0 with its right depths, and the true logs."""
    truth = scene.truth.clone()
    depths = scene.views.depths.clone()
    depths[0] = depths[0] * truth[0]
    truth[0] = 1
    return DepthViews(depths, scene.views.intrinsics, scene.views.poses), truth


def test_views_without_noise_see_the_same_points_at_the_same_depth():
    views = room(amplitude=0, noise=0, outliers=0).views
    found = sightings(views, torch.zeros_like(views.depths), 3)
    assert len(found.first) > 10_000
    assert found.log_ratio.abs().median() < 1e-5  # bilinear depth on walls seen at an angle
    assert found.log_ratio.abs().quantile(0.9) < 1e-3


def test_one_scale_per_view_is_found_exactly():
    views = room(views=4, amplitude=0, noise=0, outliers=0, seed=3, size=(60, 80)).views
    truth = torch.tensor([1.0, 1.2, 0.9, 0.7], dtype=torch.float64)
    found = scale_fields(views.depths / truth[:, None, None], views.intrinsics, views.poses, grid=(1, 1))
    torch.testing.assert_close(found.logs.flatten().exp(), truth, rtol=2e-4, atol=0)
    assert found.status is not Status.MAX_STEPS
    assert not found.alone


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.slow
def test_smooth_fields_are_found_to_a_fraction_of_a_percent(seed):
    views, truth = with_true_reference(room(amplitude=0.03, seed=seed, size=(72, 96)))
    found = scale_fields(views.depths, views.intrinsics, views.poses)
    assert found.noise_before > 0.03
    assert found.noise < 0.008  # 0.5 % of each depth: 0.0071
    error = (found.scales / truth - 1).abs()[1:]
    near = Grid(6, 6, 8, *views.size).dense(found.deviations.flatten())[1:] < 0.003
    assert near.double().mean() > 0.5
    assert error[near].median() < 0.004
    assert (found.scales[0] == 1).all()


def test_single_precision_comes_back_in_it():
    views, _ = with_true_reference(room(views=3, amplitude=0.03, size=(48, 64)))
    found = scale_fields(views.depths.float(), views.intrinsics.float(), views.poses.float(), grid=(2, 2))
    assert found.scales.dtype == found.logs.dtype == torch.float32
    assert found.noise < 0.02


def test_a_view_that_shares_nothing_is_named():
    views = room(views=3, amplitude=0.02).views
    poses = views.poses.clone()
    poses[2, :3, :3] = poses[2, :3, :3] @ torch.diag(torch.tensor([-1.0, 1.0, -1.0])).double()  # looks the other way
    poses[2, :3, 3] = torch.tensor([0.0, 0.0, -2.0])
    found = scale_fields(views.depths, views.intrinsics, poses)
    assert found.alone == [2]
    assert "View 2 shares no point" in found.message()


def test_views_in_one_camera_give_ratios_and_every_cell_that_two_see_is_answered():
    views, _ = with_true_reference(room(amplitude=0.05, noise=0, outliers=0, size=(96, 128)))
    maps = depths_in_view(views, 0, step=4)
    pairs = torch.tensor([(i, j) for i in range(6) for j in range(i + 1, 6)])
    ratios = maps[pairs[:, 0]] / maps[pairs[:, 1]]
    result = scale_sync(ratios, pairs)
    seen = torch.isfinite(maps).sum(0)
    assert torch.equal(torch.isfinite(result.scales).any(0), seen >= 2)
    assert "do not check each other" in result.message()
    assert torch.isnan(result.standard_errors).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, k, p: (d[:1], k[:1], p[:1]), "two views"),
        (lambda d, k, p: (d.long(), k, p), "must be real"),
        (lambda d, k, p: (d, k, p[:2]), "poses"),
        (lambda d, k, p: (d, k, 2 * p), "pose of view 0"),
        (lambda d, k, p: (d, torch.zeros_like(k), p), "intrinsics of view 0"),
        (lambda d, k, p: (torch.cat([d[:2], d[2:] * torch.nan]), k, p), "View 2 has no depth"),
    ],
)
def test_what_makes_no_sense_is_said_in_words(change, words):
    views = room(views=3, size=(24, 32)).views
    with pytest.raises(ProblemError, match=words):
        scale_fields(*change(views.depths, views.intrinsics, views.poses))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reference": 3}, "reference"),
        ({"grid": (0, 4)}, r"grid\[0\]"),
        ({"grid": (4,)}, "two numbers"),
        ({"smoothness": 0.0}, "smoothness"),
        ({"stride": 0}, "stride"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    views = room(views=3, size=(24, 32)).views
    with pytest.raises(ProblemError, match=words):
        scale_fields(views.depths, views.intrinsics, views.poses, **options)
