"""Two scenes behind one aperture are no match, and what has changed in a scene is said."""

import numpy as np
import pytest
import torch

from mslsq.alignment import MapStatus, align, belief, dissent
from mslsq.alignment.linking import Linker
from mslsq.alignment.options import Options
from mslsq.alignment.prepared import prepare
from mslsq.alignment.synthetic import base_raster

SIZE = 112


def part_of(name):
    raster = np.asarray(base_raster(name), dtype=np.float64)[90 : 90 + SIZE, 120 : 120 + SIZE]
    return (raster - raster.min()) / np.ptp(raster)


def noisy(scene, seed):
    return torch.from_numpy(scene + 0.01 * np.random.default_rng(seed).standard_normal(scene.shape))


def seen_through(scene, seed):
    """A round field with a cross of hairs, and a little noise."""
    y, x = np.mgrid[:SIZE, :SIZE] - 56.0
    hair = (np.minimum(abs(x + 0.2 * y), abs(y - 0.2 * x)) < 1) & (np.hypot(x, y) > 10)
    return noisy(scene * np.clip(46 - np.hypot(x, y), 0, 1) * ~hair, seed)


def level_of(one, other):
    return Linker(prepare([one, other], None)[0], Options(), "auto").finest(0, 1)


def share(one, other):
    """What disagrees where they lie."""
    return dissent.dissent(level_of(one, other), torch.eye(3, dtype=torch.float64)).share


def test_two_scenes_behind_one_aperture_are_one_form(monkeypatch):
    maps = [seen_through(part_of("brick"), 1), seen_through(part_of("moon"), 2)]
    found = align(maps, model="translation")
    assert found.status[1] == MapStatus.AMBIGUOUS and "one form that both maps have in common" in found.reasons[1]
    monkeypatch.setattr(belief, "form_alone", lambda *_: "")
    found = align(maps, model="translation")
    assert found.status[1] == MapStatus.ALIGNED and "have only a form in common" in found.reasons[1]


def test_what_edges_find_is_asked_the_same_of_values():
    maps = [seen_through(part_of("camera"), 1), seen_through(part_of("coffee"), 2)]
    found = align(maps, model="translation", metric="auto")
    assert not MapStatus(int(found.status[1])).ok


def test_a_scene_of_which_a_third_is_covered_is_no_form():
    scene, eye = part_of("gravel"), torch.eye(3, dtype=torch.float64)
    other = scene.copy()
    other[:, :36] = part_of("camera")[:, :36]
    level = level_of(noisy(scene, 1), noisy(other, 2))
    assert 0.2 < dissent.dissent(level, eye).share < 0.45
    assert dissent.form_alone([level], 0, eye) == "" and "does not agree" in dissent.doubt([level], 0, eye)


@pytest.mark.parametrize("change", [lambda image: image, lambda image: image**4, lambda image: 1 - image, np.sqrt])
def test_noise_and_curves_of_values_hide_what_they_flatten(change):
    scene = part_of("camera")
    assert share(noisy(scene, 1), noisy(change(scene), 2)) < 0.05
    assert share(noisy(scene, 1), noisy(change(scene[::-1].copy()), 2)) > 0.3
