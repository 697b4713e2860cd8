"""Two scenes with one form in common, and nothing else, are no match."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align, choosing
from mslsq.alignment.synthetic import base_raster

SIZE = 112


def dial(random, hands):
    """A ring, marks on a part of it, and two hands, on a pale face."""
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2 - random.uniform(-3, 3, 2)[:, None, None]
    away, angle = np.hypot(x, y) / 44, np.arctan2(y, x)
    face = np.where(away < 1, 0.9, 0.4)
    face[np.abs(away - 0.97) < 0.04] = 0.1
    marks = np.abs((angle * random.integers(9, 24) / 6.28 + random.random()) % 1 - 0.5) < 0.08
    face[marks & (np.abs(away - 0.8) < 0.08) & (np.abs(angle - hands[0]) < 2)] = 0.1
    for hand in hands:
        along, aside = x * np.cos(hand) + y * np.sin(hand), y * np.cos(hand) - x * np.sin(hand)
        face[(along > 0) & (along < 31) & (np.abs(aside) < 1.5)] = 0.2
    noise = 0.01 * random.standard_normal(face.shape)
    return torch.from_numpy(scipy.ndimage.gaussian_filter(face, 0.7) + noise)


@pytest.mark.parametrize("seed", [1, 6])
def test_a_dial_on_another_dial_is_one_form(seed, monkeypatch):
    random = np.random.default_rng(seed)
    maps = [dial(random, (0.4, 2.0)), dial(random, (-1.3, -2.4))]
    found = align(maps, model="translation", metric="auto")
    assert found.status[1] == MapStatus.LOW_CORRELATION and "one form that both maps have in common" in found.reasons[1]
    monkeypatch.setattr(choosing, "form_alone", lambda *_: "")
    monkeypatch.setattr(choosing, "form_contradicted", lambda *_: "")
    assert align(maps, model="translation", metric="auto").status[1] == MapStatus.ALIGNED


def test_another_modality_is_no_form():
    base = np.asarray(base_raster("camera"), dtype=np.float64)
    base = scipy.ndimage.gaussian_filter((base - base.min()) / np.ptp(base), 0.8)
    random = np.random.default_rng(0)
    one, other = (base[100 - y : 228 - y, 200 - x : 328 - x] for x, y in ((0, 0), (5, -7)))
    other = np.sin(9 * other)
    maps = [torch.from_numpy(each + 0.01 * random.standard_normal(each.shape)) for each in (one, other)]
    found = align(maps, model="translation", metric="auto")
    assert found.status[1] == MapStatus.ALIGNED and "strength of edges" in found.reasons[1]
    assert np.hypot(*(found.transforms[1][:2, 2].numpy() - (5, -7))) < 1
