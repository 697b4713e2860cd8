"""The finest level against coarser ones: what stays at the pixels is a part of the stated error."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mslsq.alignment import align, belief, coarser, grain, synthetic
from mslsq.alignment.estimate import judge
from tests.alignment.grained import dithered, placed, views

SAID = "Averages of"


def repeated(one):
    """Every fifth pixel, held over the next four."""
    return np.kron(one[::5, ::5], np.ones((5, 5)))


@pytest.mark.parametrize(("change", "name"), [(dithered, "elevation"), (repeated, "gravel")])
def test_what_stays_at_the_pixels_is_in_the_error(change, name, monkeypatch):
    monkeypatch.setattr(grain, "WIDER", 0.0)  # which mends these very maps
    maps = [change(one) for one in views(name)]
    off, stated, reason = placed(maps)
    monkeypatch.setattr(coarser, "MOVED", math.inf)
    before = placed(maps)
    assert off == before[0] > 3.5 * before[1] and SAID not in before[2]  # it is the case that it is for
    assert off < 2.5 * stated and SAID in reason


def test_noise_alone_says_nothing(monkeypatch):
    """Asked of noise, coarser levels agree within their errors."""
    random = np.random.default_rng(0)
    maps = [one + 0.01 * random.standard_normal(one.shape) for one in views("brick")]
    found = placed(maps)
    monkeypatch.setattr(coarser, "MOVED", 0.0)
    assert placed(maps) == found and SAID not in found[2]


@pytest.mark.parametrize(("by", "agreeing"), [(0.5, {}), (1.2, {2: 0.999, 4: 0.999}), (0.5, {2: 0.5, 4: 0.98})])
def test_another_hypothesis_of_a_coarser_level_says_nothing(monkeypatch, by, agreeing):
    """What led there was left for a better place on the way: as of the ends of a search. Nor does one that agrees by
    chance, where it overlaps by little, or on the coarsest level alone."""
    random, asked = np.random.default_rng(0), []
    maps = [one + 0.01 * random.standard_normal(one.shape) for one in views("brick")]
    found = placed(maps)

    def judged(estimate, level):
        found = judge(estimate, level)
        far = found.overlap < 1.05 - 0.5 * by
        known = agreeing.get(level.factor) if far else (0.7 if by > 1 else 0.9)
        return replace(found, ncc=known, detail=known) if agreeing else found

    monkeypatch.setattr(coarser, "judge", judged)

    def elsewhere(pair, estimate, *known):
        far = estimate.matrix.clone()
        far[:2, 2] += by
        pair.ends.update(dict.fromkeys(coarser.COARSER, replace(estimate, matrix=far)))
        asked.append(coarser.coarser_place(pair, estimate, *known))
        return asked[-1]

    monkeypatch.setattr(belief, "coarser_place", elsewhere)
    assert placed(maps) == found and [one.pixels for one in asked] == [0.0]


def test_another_hypothesis_says_nothing_of_a_map_that_is_turned(monkeypatch):
    """No pixels lie on pixels there: a level of 4 px preferred another place of a portrait in another modality."""
    pair, asked = synthetic.make_pair("camera", "sim2", seed=1, size=96), []
    maps = [pair.reference, pair.moving]

    def judged(estimate, level):
        found = judge(estimate, level)
        known = 0.8 if found.overlap < 0.4 else 0.3
        return replace(found, ncc=known, detail=known)

    monkeypatch.setattr(coarser, "judge", judged)
    monkeypatch.setattr(coarser, "MOVED", -1.0)
    monkeypatch.setattr(coarser, "APART", 0.0)

    def elsewhere(pair, estimate, *known):
        near, far = (estimate.matrix.clone() for _ in coarser.COARSER)
        near[0, 2] += 1e-4
        far[0, 2] += 0.8
        pair.ends.update({at: replace(estimate, matrix=end) for at, end in ((1, near), (2, far))})
        asked.append(coarser.coarser_place(pair, estimate, *known))
        return asked[-1]

    monkeypatch.setattr(belief, "coarser_place", elsewhere)
    align(maps)
    assert [one.pixels < 1 for one in asked] == [True]
