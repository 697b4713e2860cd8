"""What maps are compared by: each metric finds the pairs it is for, refuses those without a match, and says why."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import AlignmentOptionError, MapStatus, align, choosing, metrics, synthetic
from mslsq.alignment.evenness import share_of_means
from mslsq.alignment.learned.appearance import other_curve
from mslsq.alignment.measures import corner_error
from mslsq.alignment.metrics.gradients import gradient_length, inner
from mslsq.alignment.pyramid import Level, build


@pytest.fixture(scope="module")
def pair():
    return synthetic.make_pair("coffee", "se2", seed=3, size=128, shift=8.0)


def unit(values):
    """In [0, 1]."""
    return (values - values.min()) / (values.max() - values.min())


def negative(pair):
    return pair.reference, 1.0 - pair.moving


def under_gamma(pair):
    return pair.reference, unit(pair.moving) ** 3


def under_a_lamp(pair):
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, 128, dtype=torch.float64)] * 2, indexing="ij")
    return pair.reference, pair.moving * torch.exp(-0.7 * ((x - 0.4) ** 2 + y**2)) + 0.4 * y


def in_another_modality(pair):
    curve = other_curve(unit(scipy.ndimage.gaussian_filter(pair.moving.numpy(), 0.5)), np.random.default_rng(2))
    return pair.reference, torch.from_numpy(curve)


CASES = {
    "inverted": [(negative, 0.1)],
    "local": [(under_gamma, 0.5), (under_a_lamp, 1.0)],
    "gradients": [(negative, 0.2), (under_gamma, 0.5), (under_a_lamp, 0.5), (in_another_modality, 1.0)],
    "learned": [(negative, 0.2), (under_gamma, 0.5), (under_a_lamp, 0.5), (in_another_modality, 1.0)],
    "auto": [(negative, 0.1), (under_gamma, 0.5), (under_a_lamp, 0.5), (in_another_modality, 1.0)],
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("metric", "change", "within"),
    [(metric, change, within) for metric, cases in CASES.items() for change, within in cases],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_each_metric_finds_the_pairs_it_is_for(pair, metric, change, within):
    result = align(change(pair), model="se2", metric=metric)
    assert result.aligned == [0, 1], result.message()
    assert corner_error(result.transforms[1], pair.transform, 128, 128) < within
    assert result.metrics[1] == metric or metric == "auto"


def test_values_are_compared_by_default_and_auto_leaves_such_a_pair_as_it_is_to_the_bit(pair):
    maps = pair.reference, pair.moving
    plain, named, automatic = (align(maps, model="se2", **options) for options in ({}, SQUARED, AUTO))
    for other in (named, automatic):
        assert torch.equal(plain.transforms, other.transforms) and torch.equal(plain.covariance, other.covariance)
        assert other.metrics == ["", "squared"] and other.reasons == plain.reasons


SQUARED, AUTO = {"metric": "squared"}, {"metric": "auto"}


def test_a_negative_has_a_negative_gain(pair):
    for metric in ("inverted", "auto"):
        result = align(negative(pair), model="se2", metric=metric)
        # reference = gain · moving + bias, and what is given is 1 - moving
        assert float(result.gain[1]) == pytest.approx(-pair.gain, rel=0.02)
        assert float(result.bias[1]) == pytest.approx(pair.bias + pair.gain, abs=0.02)
        assert result.metrics[1] == "inverted"


def test_a_metric_that_compares_no_values_still_says_how_they_relate(pair):
    for maps, gain in ((negative(pair), -pair.gain), ((pair.reference, pair.moving), pair.gain)):
        result = align(maps, model="se2", metric="gradients")
        assert float(result.gain[1]) == pytest.approx(gain, rel=0.05)
    held = align((pair.reference, pair.moving), model="se2", metric="gradients", value="none")
    assert (float(held.gain[1]), float(held.bias[1])) == (1.0, 0.0)


def test_auto_says_what_it_chose_and_why(pair):
    negatives = align(negative(pair), model="se2", metric="auto").reasons[1]
    assert "Found by the strength of edges" in negatives and "then by the values, inverted" in negatives
    lamps = align(under_a_lamp(pair), model="se2", metric="auto").reasons[1]
    assert "By the strength of edges: values leave residuals" in lamps or "as values were refused" in lamps


@pytest.mark.parametrize("metric", ["inverted", "local", "gradients", "learned", "auto"])
def test_maps_without_a_match_are_left_out(metric):
    def crop(name):
        return torch.from_numpy(unit(synthetic.base_raster(name)[100:228, 100:228]))

    result = align([crop("coffee"), 1.0 - crop("moon")], metric=metric)
    assert result.aligned == [0], result.message()
    assert result.metrics == ["", ""]
    if metric == "auto":
        assert "By the strength of edges, no better" in result.reasons[1]


def test_nodata_in_both_maps_does_not_pull(pair):
    reference, moving = (values.clone() for values in negative(pair))
    reference[30:60, 40:80], moving[70:110, 20:50] = float("nan"), float("nan")
    moving[:, 118:] = float("nan")
    for metric in ("inverted", "gradients", "learned", "auto"):
        result = align([reference, moving], model="se2", metric=metric)
        assert corner_error(result.transforms[1], pair.transform, 128, 128) < 0.3, (metric, result.message())


@pytest.mark.parametrize("metric", list(metrics.METRICS.values()), ids=lambda metric: metric.name)
def test_what_is_compared_is_finite_and_reads_nothing_beyond_the_mask(metric):
    random = torch.Generator().manual_seed(0)
    values = torch.randn(2, 40, 50, generator=random, dtype=torch.float64)
    mask = torch.ones(40, 50, dtype=torch.bool)
    mask[10:20, 15:30] = False
    for dtype in (torch.float32, torch.float64):
        one, other = (
            [metric.level(level) for level in build(torch.where(mask, values, hidden).to(dtype), mask, 3)]
            for hidden in (torch.tensor(0.0), torch.tensor(float("nan")))
        )
        for a, b in zip(one, other, strict=True):
            assert a.raster.dtype == dtype and bool(a.raster.isfinite().all()) and a.raster.shape[1:] == a.mask.shape
            assert bool(a.mask.any()) and torch.equal(a.raster[:, a.mask], b.raster[:, b.mask])


@pytest.mark.parametrize("metric", list(metrics.METRICS.values()), ids=lambda metric: metric.name)
def test_a_quarter_turn_before_is_a_quarter_turn_after(metric):
    values = torch.randn(1, 24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = torch.ones(24, 24, dtype=torch.bool)
    mask[3:6, 10:14] = False
    straight = metric.level(Level(values, mask, 1))
    turned = metric.level(Level(values.rot90(1, (-2, -1)), mask.rot90(), 1))
    single = 1e-5 if metric.name == "learned" else 1e-12  # a network of single precision
    assert torch.allclose(straight.raster.rot90(1, (-2, -1)), turned.raster, atol=single)
    assert torch.equal(straight.mask.rot90(), turned.mask)


def test_edges_are_the_same_in_a_negative_and_flat_maps_have_none():
    values = torch.randn(1, 24, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mask, edges = torch.ones(24, 30, dtype=torch.bool), metrics.NormalizedGradients()
    one, other = (edges.level(Level(sign * 3.0 * values + 5.0, mask, 1)).raster for sign in (1, -1))
    assert torch.allclose(one, other, atol=1e-12)
    flat = edges.level(Level(torch.ones(1, 24, 30, dtype=torch.float64), mask, 1)).raster
    assert torch.equal(flat, torch.zeros_like(flat))


def test_the_length_of_a_gradient_is_that_of_a_plane_over_all_channels():
    y, x = torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")
    length = gradient_length(torch.stack([3 * x, 4 * y]))
    assert torch.allclose(length[0, 1:-1, 1:-1], torch.full((4, 5), 5.0))
    assert gradient_length(torch.ones(1, 1, 1)).tolist() == [[[0.0]]]


def test_a_pixel_beside_a_hole_has_no_gradient():
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2, 3] = False
    expected = torch.zeros(5, 6, dtype=torch.bool)
    expected[1:4, 1:5] = True
    expected[2, 2:5] = expected[1, 3] = expected[3, 3] = False
    assert torch.equal(inner(mask), expected)


def test_residuals_that_vary_slowly_are_told_from_noise():
    noise = torch.randn(1, 64, 70, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    slow = torch.linspace(-1, 1, 70, dtype=torch.float64).expand(1, 64, 70)
    known = torch.ones(1, 64, 70, dtype=torch.float64)
    shares = [share_of_means(values, known) / float(values.square().sum()) for values in (noise, slow)]
    assert shares[0] < 0.02 and shares[1] > 0.9


def test_maps_that_are_left_out_by_values_are_placed_beside_those_that_are_not(pair):
    one = synthetic.make_pair("astronaut", "translation", seed=5, size=128, shift=6.0)
    maps = [one.reference, one.moving, 1.0 - one.reference.roll((3, -2), (0, 1))[:110, :110]]
    result = align(maps, model="translation", metric="auto")
    assert result.aligned == [0, 1, 2], result.message()
    assert result.metrics == ["", "squared", "inverted"] and float(result.gain[2]) < 0
    assert torch.allclose(result.transforms[2][:2, 2], torch.tensor([-2.0, 3.0]).double(), atol=0.1)
    without = align(maps, model="translation")
    assert without.aligned == [0, 1] and without.status[2] == MapStatus.LOW_CORRELATION


def test_maps_are_added_to_what_values_have_placed_and_to_nothing_else(pair):
    maps = negative(pair)
    before = align(maps, model="se2", metric="inverted")
    with pytest.raises(AlignmentOptionError, match="placed map 1 by 'inverted'"):
        align([*maps, maps[0]], model="se2", previous=before)
    with pytest.raises(AlignmentOptionError, match="not by metric='gradients'"):
        align([*maps, maps[0]], model="se2", previous=before, metric="gradients")


@dataclass(frozen=True)
class Squares(metrics.Metric):
    """Squares of values: a metric of a user."""

    name: ClassVar[str] = "squares"
    words: ClassVar[str] = "squares"

    def level(self, level):
        return level.with_raster((level.raster + 3.0).square())


def test_a_metric_of_a_user_is_taken(pair):
    result = align([pair.reference, pair.moving], model="se2", metric=Squares())
    assert result.metrics == ["", "squares"] and result.aligned == [0, 1]
    assert corner_error(result.transforms[1], pair.transform, 128, 128) < 0.2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metric": "gradient"}, "Did you mean 'gradients'?"),
        ({"metric": metrics.NormalizedGradients}, r"Did you mean NormalizedGradients\(\)?"),
        ({"metric": 3}, "metric must be a Metric object, not 3. There are 'auto', 'squared'"),
        ({"metric": "inverted", "value": "bias"}, "'inverted' needs a gain"),
        ({"metric": "gradients", "joint": True}, "joint=True compares values"),
    ],
)
def test_a_metric_that_is_not_valid_is_refused_with_what_is(pair, options, says):
    with pytest.raises(AlignmentOptionError, match=says):
        align([pair.reference, pair.moving], **options)


def edges_elsewhere(monkeypatch):
    """Residuals are always doubted, and edges from that place are not sure and 2 px away."""
    monkeypatch.setattr(choosing, "UNEVEN", 0.0)
    again = choosing.Choice._again

    def elsewhere(self, linked, metric):
        found, _ = again(self, linked, metric)
        return unsure(found), 2.0

    monkeypatch.setattr(choosing.Choice, "_again", elsewhere)
    monkeypatch.setattr(choosing, "ASKED_AGAIN", ())


def unsure(linked):
    return replace(linked, placed=replace(linked.placed, status=MapStatus.LOW_CORRELATION))


def test_values_that_are_doubted_and_contradicted_are_refused(pair, monkeypatch):
    """Such pairs are rare: here edges are said to lie elsewhere, and to be unsure where they are searched for, too."""
    maps = pair.reference, pair.moving
    monkeypatch.setattr(choosing, "UNEVEN", 0.0)
    agreed = align(maps, model="se2", metric="auto")
    assert agreed.metrics[1] == "gradients" and "vary slowly" in agreed.reasons[1]
    edges_elsewhere(monkeypatch)
    searched = choosing.Choice._by_edges
    monkeypatch.setattr(choosing.Choice, "_by_edges", lambda *args: unsure(searched(*args)))
    result = align(maps, model="se2", metric="auto", init="identity")
    assert result.aligned == [0] and "puts it 2.0 px away" in result.reasons[1]


def test_edges_that_are_not_sure_from_there_are_searched_for(pair, monkeypatch):
    """What they find so counts, where it is the same place."""
    edges_elsewhere(monkeypatch)
    result = align((pair.reference, pair.moving), model="se2", metric="auto", init="identity")
    assert result.aligned == [0, 1] and result.metrics[1] == "gradients"
