"""Scales that metadata contradict: a placement that has them is refused, and one that has the right one is not."""

import pytest
import torch

from mslsq.alignment import MapStatus, align, synthetic
from mslsq.alignment.grids import similarity_about
from mslsq.alignment.leads import Pair
from mslsq.alignment.models import Frame
from mslsq.alignment.options import AlignmentOptionError, Options
from mslsq.alignment.pyramid import Level

EYE = torch.eye(3, dtype=torch.float64)


@pytest.fixture(scope="module")
def maps():
    """A map, and the same at 1.25 times the scale: its pixels are 0.8 of the other's."""
    base = torch.from_numpy(synthetic.base_raster("camera")).double()[100:260, 100:260]
    larger = torch.nn.functional.interpolate(base[None, None], scale_factor=1.25, mode="bicubic")[0, 0]
    return [base, larger]


def test_a_scale_that_pixel_sizes_say_is_placed(maps):
    result = align(maps, pixel_sizes=[10.0, 8.0], scale_range=(0.95, 1.05))
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    assert float(result.transforms[1][0, 0]) == pytest.approx(1.25, abs=0.01)


@pytest.mark.parametrize(
    "given", [{"pixel_sizes": [10.0, 10.0], "scale_range": (0.9, 1.1)}, {"scale_range": (0.9, 1.1)}]
)
def test_a_scale_that_they_contradict_is_refused(maps, given):
    result = align(maps, **given)
    assert result.status[1] == MapStatus.WRONG_SCALE and bool(result.transforms[1].isnan().all())
    assert "(It is 1.25 to 1.25; 0.9 to 1.1 is allowed.)" in result.reasons[1]


def test_without_either_any_scale_is_placed(maps):
    assert align(maps).status[1] == MapStatus.ALIGNED


def test_the_range_of_a_pair_is_that_of_its_own_pixels():
    options = Options(pixel_sizes=(10.0, 5.0, 2.0), scale_range=(0.9, 1.1))
    assert options.between(0, 1).scale_range == pytest.approx((1.8, 2.2))
    assert options.between(2, 1).scale_range == pytest.approx((0.36, 0.44))
    assert Options(scale_range=(0.9, 1.1)).between(0, 1).scale_range == (0.9, 1.1)


def test_both_directions_of_a_warp_are_asked():
    frame = Frame(64, 64, EYE)
    pair = Pair([], [], [], frame, Options(scale_range=(0.9, 1.1)), EYE[0, :2])
    stretched = torch.diag(torch.tensor([1.0, 1.3, 1.0], dtype=torch.float64))
    assert pair.stretch(stretched) == pytest.approx((1.0, 1.3)) and not pair.allows(stretched)
    turned = frame.from_pixels(similarity_about((31.5, 31.5), (40.0, 30.0), 1.0, 1.05, EYE))
    assert pair.stretch(turned) == pytest.approx((1.05, 1.05)) and pair.allows(turned)
    homography = EYE.clone()
    homography[2, 0] = 0.1
    assert pair.stretch(homography) == pytest.approx((1.0, 1.0)), "at the middle"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pixel_sizes": [1.0]}, "for 2 maps"),
        ({"pixel_sizes": [1.0, -2.0]}, "above 0"),
        ({"scale_range": (1.2, 0.8)}, "least, most"),
        ({"pixel_sizes": [1.0, 2.0], "model": "se2"}, "resample that map"),
        ({"pixel_sizes": [1.0, 2.0], "metric": "occupancy"}, "metric='occupancy'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_aligned(given, words):
    with pytest.raises(AlignmentOptionError, match=words):
        align([torch.zeros(32, 32), torch.zeros(32, 32)], **given)


def test_a_homography_with_a_corner_beyond_its_horizon_is_no_place_to_turn_from():
    raster = torch.zeros(1, 32, 32, dtype=torch.float64)
    level = Level(raster, torch.ones(32, 32, dtype=torch.bool), 1)
    frame = Frame(32, 32, raster)
    pair = Pair([level], [level], [], frame, Options(), EYE[0, :2])
    folded = torch.tensor([[5.5, -0.4, 8.4], [9.1, 8.4, -185.0], [0.31, 0.04, 1.0]], dtype=torch.float64)
    assert pair.before_horizon(EYE) and not pair.before_horizon(frame.from_pixels(folded))
