"""Maps that are added to an alignment: what was placed stays, the others are placed on it."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import AlignmentOptionError, MapStatus, align, synthetic
from mslsq.alignment.linking import Linker
from mslsq.alignment.measures import corner_error
from mslsq.alignment.mosaics import cut, ring

ENTRIES = ("transforms", "gain", "bias", "covariance", "ncc", "detail", "lead", "overlap", "corner_sigma", "parent")


def base(name):
    raster = scipy.ndimage.gaussian_filter(synthetic.base_raster(name), 0.8)
    return (raster - raster.min()) / np.ptp(raster)


@pytest.fixture(scope="module")
def mosaic():
    return cut(base("camera"), ring(6, 62.0, (250, 250)), 100, seed=1)


@pytest.fixture(scope="module")
def first(mosaic):
    return align(mosaic.maps[:4])


def within_their_errors(result, mosaic, maps):
    """The ring hangs on what stays, so that its errors do not go away where it closes."""
    apart = [corner_error(result.transforms[i], mosaic.transforms[i], 100, 100) for i in maps]
    return max(apart) < 0.35 and all(error < 3 * result.corner_sigma[i] for error, i in zip(apart, maps, strict=True))


def test_what_was_placed_stays_and_the_new_maps_close_the_ring(mosaic, first, monkeypatch):
    pairs = []
    link = Linker.link

    def counted(self, fixed, moving, *args, **kwargs):
        pairs.append({fixed, moving})
        return link(self, fixed, moving, *args, **kwargs)

    monkeypatch.setattr(Linker, "link", counted)
    result = align(mosaic.maps, previous=first)
    assert result.aligned == list(range(6)) and within_their_errors(result, mosaic, [4, 5])
    for name in ENTRIES:
        assert torch.equal(getattr(result, name)[:4].nan_to_num(-7), getattr(first, name).nan_to_num(-7)), name
    assert result.reasons[:4] == first.reasons and result.links[: len(first.links)] == first.links
    assert pairs and all(pair & {4, 5} for pair in pairs)
    torch.testing.assert_close(result.gain, mosaic.gain, atol=0.03, rtol=0)
    torch.testing.assert_close(result.bias, mosaic.bias, atol=0.03, rtol=0)


@pytest.mark.slow
def test_a_new_map_is_no_surer_than_those_that_it_hangs_on(mosaic, first):
    result = align(mosaic.maps, previous=first)
    shaken = replace(first, covariance=400 * first.covariance)
    unsure = align(mosaic.maps, previous=shaken)
    assert torch.equal(unsure.transforms, result.transforms)
    assert (unsure.corner_sigma[4:] > 2 * result.corner_sigma[4:]).all()


@pytest.mark.slow
def test_a_map_that_was_left_out_is_tried_again(mosaic):
    far = mosaic.maps[3]  # the other side of the ring
    alone = align([mosaic.maps[0], far])
    assert alone.status[1] != MapStatus.ALIGNED
    between = [mosaic.maps[i] for i in (1, 2, 4, 5)]
    result = align([mosaic.maps[0], far, *between], previous=alone)
    assert result.aligned == list(range(6))
    assert corner_error(result.transforms[1], mosaic.transforms[3], 100, 100) < 0.2


def test_a_stranger_and_no_new_map_at_all(mosaic, first):
    stranger = torch.from_numpy(base("gravel")[100:200, 100:200].copy())
    result = align([*mosaic.maps[:4], stranger], previous=first)
    assert result.aligned == [0, 1, 2, 3] and result.reasons[4].startswith("Left out")
    again = align(mosaic.maps[:4], previous=first)
    assert torch.equal(again.transforms, first.transforms) and not again.stages


def test_starts_are_used_for_the_new_maps_alone(mosaic, first):
    starts = mosaic.transforms.clone()
    starts[:4] = float("nan")
    result = align(mosaic.maps, previous=first, init=starts)
    assert result.aligned == list(range(6)) and within_their_errors(result, mosaic, [4, 5])
    assert torch.equal(result.transforms[:4], first.transforms)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"previous": 3}, "must be a Alignment object|must be an Alignment object"),
        ({"model": "affine"}, "previous has model='sim2', not 'affine'"),
        ({"reference": 1}, "previous has reference=0, not 1"),
        ({"joint": False}, "added to previous together"),
        ({"few": True}, "previous is of 4 maps, and 2 were given"),
        ({"broken": True}, "previous placed map 2, which cannot be used now"),
    ],
)
def test_what_does_not_go_with_it_is_said(mosaic, first, change, message):
    maps = list(mosaic.maps)
    if change.pop("few", False):
        maps = maps[:2]
    if change.pop("broken", False):
        maps[2] = torch.full((100, 100), float("nan"))
    with pytest.raises(AlignmentOptionError, match=message):
        align(maps, **{"previous": first, **change})


@pytest.mark.parametrize(
    ("order", "side", "message"),
    [((0, 2, 1, 3), 100, "map 1 is not the one that previous has placed"), ((0, 1, 2, 3), 90, "map 1 has .90, 100.")],
)
def test_other_maps_than_those_that_were_placed_are_told(mosaic, first, order, side, message):
    """In another order they were called aligned, 57 px off with 0.03 px stated."""
    maps = [mosaic.maps[index] for index in order]
    maps[1] = maps[1][:side]
    with pytest.raises(AlignmentOptionError, match=message):
        align([*maps, mosaic.maps[4]], previous=first)
