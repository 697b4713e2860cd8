"""A place whose stated error is a tenth of the map is none, whatever has widened that error last."""

import sys

import pytest
import torch

from mslsq.alignment import MapStatus, align, synthetic, vague
from mslsq.alignment.models import Frame

FRAME = Frame(100, 200, torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("sigma, said", [(19.0, ""), (21.0, "known to 21 px"), (300.0, "undetermined")])
def test_a_tenth_of_the_longer_side_is_the_bar(sigma, said):
    why = vague.why_vague(sigma, FRAME, "Aligned. Averages put it elsewhere.")
    assert said in why and ("Averages put it elsewhere." in why) == bool(said) and "Aligned" not in why


def test_what_is_not_a_number_is_not_known():
    assert "undetermined" in vague.why_vague(float("nan"), FRAME, "Aligned.")


PAIR = synthetic.make_pair("camera", "sim2", seed=1, size=96)


EVERY = ("mslsq.alignment.tree", "mslsq.alignment.align")


@pytest.fixture(params=range(len(EVERY)))
def nothing_is_known(request, monkeypatch):
    """Only from one of the places on where errors are judged, as what comes before may widen them."""
    monkeypatch.setattr(vague, "SHARE", 1e-9)
    for earlier in EVERY[: request.param]:
        monkeypatch.setattr(sys.modules[earlier], "why_vague", lambda *_: "")


def is_left_out(result, index=1):
    assert result.status[index] == MapStatus.AMBIGUOUS and "The place is known to" in result.reasons[index]
    for name in ("transforms", "gain", "bias", "covariance", "ncc", "detail", "overlap", "corner_sigma"):
        assert bool(getattr(result, name)[index].isnan().all()), name
    assert result.parent[index] == -1 and result.metrics[index] == "" and result.bend(index) is None


@pytest.mark.parametrize("options", [{"metric": "squared"}, {"metric": "auto"}, {"model": "piecewise"}])
def test_a_pair_is_left_out(options, nothing_is_known):
    is_left_out(align([PAIR.reference, PAIR.moving], **options))


@pytest.mark.parametrize("joint", [False, True])
def test_maps_that_are_placed_together_are_left_out(joint, nothing_is_known):
    assert align([PAIR.reference, PAIR.moving, PAIR.moving[3:, 2:]], joint=joint).aligned == [0]


def test_a_place_that_was_said_is_left_out(nothing_is_known):
    """Its error is no less for that."""
    is_left_out(align([PAIR.reference, PAIR.moving], init=torch.stack([torch.eye(3), PAIR.transform])))


def test_what_others_may_mend_is_not_refused_before_they_are_asked(monkeypatch):
    """By values a model did not fit, by 21 of 128 px, and along a curve of values it did: true pairs were left out."""
    monkeypatch.setattr(vague, "SHARE", 1e-9)
    for later in EVERY:
        monkeypatch.setattr(sys.modules[later], "why_vague", lambda *_: "")
    assert align([PAIR.reference, PAIR.moving]).status[1] == MapStatus.ALIGNED


def test_what_was_placed_before_stays(monkeypatch):
    before = align([PAIR.reference, PAIR.moving])
    monkeypatch.setattr(vague, "SHARE", 1e-9)
    after = align([PAIR.reference, PAIR.moving, PAIR.moving], previous=before)
    assert after.aligned == [0, 1] and bool((after.transforms[1] == before.transforms[1]).all())
