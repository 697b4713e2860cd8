"""`align` of three maps and more: together, against the truth and against one map after the other."""

import numpy as np
import pytest
import scipy.ndimage
import torch

import mslsq
from mslsq.alignment import AlignmentOptionError, MapStatus, align, grain, synthetic
from mslsq.alignment.descent import Descent
from mslsq.alignment.joint import LinkStatus, settling
from mslsq.alignment.joint.state import State
from mslsq.alignment.measures import corner_error
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.mosaics import cut, ring

EYE = torch.eye(3, dtype=torch.float64)


def base(name):
    raster = scipy.ndimage.gaussian_filter(synthetic.base_raster(name), 0.8)
    return (raster - raster.min()) / np.ptp(raster)


def errors(result, mosaic):
    """Of every map but the reference, at its own corners."""
    apart = [found @ torch.linalg.inv(true) for found, true in zip(result.transforms, mosaic.transforms, strict=True)]
    return [corner_error(apart[i], EYE, *mosaic.maps[i].shape) for i in range(1, len(apart))]


@pytest.fixture(scope="module")
def mosaic():
    return cut(base("camera"), ring(6, 62.0, (250, 250)), 100, seed=1)


@pytest.fixture(scope="module")
def together(mosaic):
    return align(mosaic.maps)


def test_a_ring_is_placed_more_accurately_together_than_one_by_one(mosaic, together):
    one_by_one = align(mosaic.maps, joint=False)
    assert together.aligned == list(range(6))
    joint, tree = (np.sqrt(np.mean(np.square(errors(r, mosaic)))) for r in (together, one_by_one))
    assert joint < 0.1
    assert joint < 0.75 * tree
    torch.testing.assert_close(together.gain, mosaic.gain, atol=0.02, rtol=0)
    torch.testing.assert_close(together.bias, mosaic.bias, atol=0.02, rtol=0)


def test_standard_errors_of_a_ring_are_of_the_size_of_its_errors(mosaic, together):
    frame, kind = Frame(*mosaic.maps[0].shape, EYE), MODELS["sim2"]
    found, true = (kind.from_matrix(frame.from_pixels(m)) for m in (together.transforms[1:], mosaic.transforms[1:]))
    off = found.local(true)
    squares = torch.einsum("nt,ntu,nu->n", off, torch.linalg.inv(together.covariance[1:]), off) / 4
    assert 0.3 < float(squares.mean()) < 3  # of 20 squares, not independent ones


def test_another_reference_says_the_same(mosaic, together):
    other = align(mosaic.maps, reference=3)
    between = together.transforms @ torch.linalg.inv(together.transforms[3])
    for i in range(6):
        assert corner_error(other.transforms[i], between[i] / between[i, 2, 2], *mosaic.maps[i].shape) < 0.02
    gain = together.gain / together.gain[3]
    torch.testing.assert_close(other.gain, gain, atol=2e-3, rtol=0)


@pytest.mark.slow
def test_a_map_that_belongs_elsewhere_is_left_out_with_its_reason(mosaic, together):
    stranger = torch.from_numpy(base("gravel")[100:200, 100:200].copy())
    result = align([*mosaic.maps, stranger])
    assert result.aligned == list(range(6))
    assert result.transforms[6].isnan().all()
    assert result.reasons[6].startswith("Left out")
    torch.testing.assert_close(result.transforms[:6], together.transforms, atol=1e-6, rtol=0)


def test_links_say_what_became_of_every_pair(together):
    used = [link for link in together.links if link.status == 0]
    assert len(used) >= 6
    assert all(link.fixed < link.moving for link in together.links)
    assert all(link.status.sentence.startswith(("Used", "Not used")) for link in together.links)


def test_turned_maps_are_found_by_a_search():
    mosaic = cut(base("astronaut"), ring(4, 45.0, (250, 200)), 100, seed=2, model="se2", degrees=90.0)
    result = align(mosaic.maps, model="se2")
    assert result.aligned == [0, 1, 2, 3], result.message()
    assert max(errors(result, mosaic)) < 0.2


def test_given_starts_are_used_for_all_pairs(mosaic, together):
    result = align(mosaic.maps, init=mosaic.transforms)
    assert result.aligned == list(range(6))
    assert max(corner_error(a, b, 100, 100) for a, b in zip(result.transforms, together.transforms, strict=True)) < 0.05


def test_maps_without_colour_or_with_holes_go_together(mosaic):
    maps = [raster.clone() for raster in mosaic.maps]
    maps[2][30:50, 20:70] = float("nan")
    maps[4] = maps[4].repeat(3, 1, 1)
    result = align(maps)
    assert result.aligned == list(range(6))
    assert max(errors(result, mosaic)) < 0.2


@pytest.mark.slow
def test_ambiguous_links_place_no_brick_on_another():
    """Loops of them close on wrong bricks, too: a map was placed so with an overlap of 92 %."""
    ring_of_bricks = cut(base("brick"), ring(6, 69.0, (256, 256)), 112, seed=0)
    result = align(ring_of_bricks.maps)
    assert not any(link.is_open for link in result.links if link.linked.placed.status == MapStatus.AMBIGUOUS)
    off = np.array(errors(result, ring_of_bricks))
    assert not (off[np.isfinite(off)] > 0.5).any(), result.message()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("status", [mslsq.Status.MAX_STEPS, mslsq.Status.SINGULAR, mslsq.Status.NON_FINITE])
def test_where_the_solve_of_all_maps_fails_links_place_them(mosaic, together, status, monkeypatch):
    def failing(dense, state, max_steps):
        return Descent(State(np.full_like(state.warps, 7.0), state.values + 3), status, [1.0], dense.system(state))

    monkeypatch.setattr(settling, "settle", failing)
    result = align(mosaic.maps)
    assert result.aligned == list(range(6))
    assert max(errors(result, mosaic)) < 0.3
    torch.testing.assert_close(result.gain, together.gain, atol=0.05, rtol=0)
    torch.testing.assert_close(result.bias, together.bias, atol=0.05, rtol=0)
    assert all(result.covariance[1:].flatten(1).isfinite().all(-1)) and (result.corner_sigma[1:] > 0).all()
    assert all("The solve of all maps together failed" in result.reasons[i] for i in range(1, 6))
    assert "failed" not in together.reasons[1]


def test_where_the_solve_of_all_maps_fails_what_no_loop_holds_is_left_out(mosaic, monkeypatch):
    """Of a chain of three no map but the reference is placed, and the reason says why."""

    def failing(dense, state, max_steps):
        return Descent(state, mslsq.Status.MAX_STEPS, [1.0], dense.system(state))

    chain = mosaic.maps[:3]
    assert align(chain).aligned == [0, 1, 2]
    monkeypatch.setattr(settling, "settle", failing)
    result = align(chain)
    ends = {link.pair for link in result.links if link.status == LinkStatus.USED}
    assert ends == {(0, 1), (1, 2)} and result.aligned == [0]
    assert [result.status[i] for i in (1, 2)] == [MapStatus.NOT_CONVERGED] * 2
    assert all("no loop" in result.reasons[i] for i in (1, 2)) and bool(result.transforms[1:].isnan().all())


def test_under_gammas_maps_are_placed_along_curves_of_values(mosaic, monkeypatch):
    """Each map but the first has a power of its own, which a gain and a bias leave a part of."""
    random, bent = np.random.default_rng(0), []
    for one, power in zip(mosaic.maps, (1.0, 0.7, 1.4, 1.2, 0.65, 1.5), strict=True):
        values = ((one - one.min()) / (one.max() - one.min())).numpy() ** power
        bent.append(torch.from_numpy(values + 0.005 * random.standard_normal(values.shape)))
    found = align(bent)
    off = np.array(errors(found, mosaic))
    assert all("along curves" in found.reasons[i] for i in range(1, 6))
    assert (off < 2.5 * found.corner_sigma[1:].numpy()).all()
    monkeypatch.setattr(settling.Settling, "along_curves", lambda *_: None)
    assert np.sqrt(np.mean(off**2)) < 0.5 * np.sqrt(np.mean(np.array(errors(align(bent), mosaic)) ** 2))


def test_maps_whose_pixels_repeat_are_placed_behind_a_wider_gaussian(monkeypatch):
    """Averages of 4 x 4 pixels, held over these."""
    mosaic = cut(base("camera"), ring(3, 30.0, (250, 250)), 128, seed=1, model="translation")
    held = [torch.nn.functional.avg_pool2d(one[None], 4)[0] for one in mosaic.maps]
    held = [one.repeat_interleave(4, 0).repeat_interleave(4, 1) for one in held]
    found = align(held, model="translation")
    off = np.array(errors(found, mosaic))
    assert all("repeat, every 4" in found.reasons[i] and "Averages of" not in found.reasons[i] for i in range(1, 3))
    assert (off < 4 * found.corner_sigma[1:].numpy()).all()
    for own in (0.0, 4.0):  # is what the user wants
        assert "placed behind" not in align(held, model="translation", prefilter=own).message()
    monkeypatch.setattr(grain, "in_common", lambda *_: None)
    before = np.array(errors(align(held, model="translation"), mosaic))
    assert np.sqrt(np.mean(off**2)) < 0.3 * np.sqrt(np.mean(before**2))


def test_joint_is_true_false_or_auto(mosaic):
    with pytest.raises(AlignmentOptionError, match="'auto'"):
        align(mosaic.maps, joint="yes")
    pair = align(mosaic.maps[:2], joint=True)
    assert pair.status[1] == MapStatus.ALIGNED
    assert pair.links
    assert not align(mosaic.maps[:2]).links
