"""Error ellipses, links and outlines: the figures behind the drawings."""

import math
from dataclasses import replace

import pytest
import torch

from mslsq.alignment import align, synthetic
from mslsq.alignment.measures import corners, project
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.mosaics import cut, ring

pytest.importorskip("matplotlib")
from mslsq.alignment.report.placements import (
    WITHIN_95,
    draw_both,
    draw_graph,
    exaggeration,
    links_of,
    outline,
    placement_covariance,
    spots,
)


@pytest.fixture(scope="module")
def pair():
    made = synthetic.make_pair("camera", "homography", seed=2, size=96)
    return align([made.reference, made.moving], model="homography")


@pytest.fixture(scope="module")
def six():
    mosaic = cut(synthetic.base_raster("camera") / 1.0, ring(6, 62, (250, 250)), size=100, seed=1, model="translation")
    return align([*mosaic.maps, torch.zeros(64, 64)], model="translation")


def test_an_ellipse_is_the_scatter_of_a_maps_pixel_in_the_reference_under_its_covariance(pair):
    """Drawn: warps of the tangent's distribution, and where each puts one pixel of the map in the reference."""
    assert pair.aligned == [0, 1]
    frame = Frame(*pair.sizes[0], pair.transforms)
    generator = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(pair.covariance[1])
    steps = torch.randn(20000, 8, generator=generator, dtype=torch.float64) @ root.T
    warp = MODELS["homography"].from_matrix(normalised(pair.transforms[1], frame))
    drawn = frame.to_pixels(warp.retract(steps).matrix())
    at = outline(pair, 1)
    seen = project(pair.transforms[1], at)
    homogeneous = torch.cat([seen, torch.ones(4, 1, dtype=seen.dtype)], 1)
    back = torch.einsum("nij,pj->npi", torch.linalg.inv(drawn), homogeneous)
    places = back[..., :2] / back[..., 2:]
    expected = placement_covariance(pair, 1, at)
    for corner in range(4):
        found = torch.cov(places[:, corner].T)
        assert torch.allclose(found, expected[corner], rtol=0.06, atol=0.02 * float(expected[corner].trace()))


def normalised(matrix, frame):
    x, y = frame.centre.tolist()
    to_pixels = torch.tensor([[frame.half, 0, x], [0, frame.half, y], [0, 0, 1.0]], dtype=torch.float64)
    return torch.linalg.inv(to_pixels) @ matrix @ to_pixels


def test_at_the_corners_of_the_reference_it_is_the_standard_error_that_the_result_has(six):
    """Of a translation, which neither turns nor stretches: the root of the mean of both variances."""
    for index in six.aligned[1:]:
        found = placement_covariance(six, index, corners(*six.sizes[0], like=six.transforms))
        sigma = float(found.diagonal(dim1=-2, dim2=-1).sum(-1).mean().sqrt())
        assert sigma == pytest.approx(float(six.corner_sigma[index]), rel=1e-6)


def test_ellipses_hold_95_percent():
    points = torch.randn(100000, 2, generator=torch.Generator().manual_seed(1))
    assert float((points.norm(dim=1) <= WITHIN_95).double().mean()) == pytest.approx(0.95, abs=0.003)


@pytest.mark.parametrize(("axis", "factor"), [(0.01, 500.0), (0.031, 100.0), (50.0, 1.0), (math.nan, 1.0), (0.0, 1.0)])
def test_ellipses_are_enlarged_by_a_round_number_and_never_made_smaller(axis, factor):
    assert exaggeration([axis, 0.001], 100.0) == factor or math.isnan(axis) or axis == 0
    assert exaggeration([axis], 100.0) == factor


def test_links_say_what_became_of_every_pair_once(six):
    links = links_of(six)
    pairs = [tuple(sorted(link[:2])) for link in links]
    assert len(set(pairs)) == len(pairs)
    held = {index for fixed, moving, status, _ in links if status == "used" for index in (fixed, moving)}
    assert held == set(six.aligned) == {0, 1, 2, 3, 4, 5}
    alone = replace(six, links=[])
    assert [link[:3] for link in links_of(alone)] == [(int(six.parent[i]), i, "used") for i in range(1, 6)]


def test_every_map_has_a_place_of_its_own_in_the_graph(six):
    here = replace(six, transforms=torch.eye(3, dtype=torch.float64).expand(7, 3, 3))  # all on each other
    for result in (six, here):
        where = list(spots(result).values())
        assert len(where) == 7
        apart = [math.dist(a, b) for i, a in enumerate(where) for b in where[:i]]
        assert min(apart) > 0.1 * max(apart)


def test_the_legend_shows_used_links_in_their_own_colour(pair):
    from matplotlib.figure import Figure

    axis = Figure().add_subplot()
    draw_graph(axis, pair)
    (link,) = axis.lines
    (entry,) = axis.get_legend().legend_handles
    assert tuple(entry.get_color()) == tuple(link.get_color())


def test_a_scene_without_any_place_is_drawn(tmp_path):
    nothing = align([torch.zeros(64, 64), torch.rand(64, 64)])
    assert len(draw_both([("a$b", nothing)]).axes) == 3
