"""Marks of an instrument that two other scenes have in common, at the same pixels of both."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, weighing
from mslsq.alignment.belief import _doubt
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.evidence import evidence
from mslsq.alignment.leads import Pair
from mslsq.alignment.metrics import NormalizedGradients
from mslsq.alignment.models import Frame
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import build

SIZE = 112


def scene(seed):
    return scipy.ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((SIZE, SIZE)), 2.0) * 4


def a_header():
    """Two scenes below the same signs."""
    signs = np.kron(np.random.default_rng(7).random((14, 56)) > 0.5, np.ones((2, 2)))
    return tuple(np.concatenate([5 * signs, scene(seed)[28:]]) for seed in (1, 2))


def a_camera_that_stands_still():
    """One scene, of which a fourth is another in the second picture, each with its own noise."""
    random, one, other = np.random.default_rng(3), scene(1), scene(1)
    other[20:80, 30:82] = scene(2)[20:80, 30:82]
    return tuple(image + 0.02 * random.standard_normal(image.shape) for image in (one, other))


def laid(maps, shift=0.0, **options):
    """What is left of a placement that parts of it speak for, and the options it is asked with."""
    known, like = torch.ones(SIZE, SIZE, dtype=torch.bool), torch.zeros((), dtype=torch.float64)
    reference, moving = (build(torch.from_numpy(one)[None], known, 1) for one in maps)
    frame = Frame(SIZE, SIZE, like)
    level = PairLevel.of(reference[0], moving[0], frame, 0)
    pair = Pair(reference, moving, [level], frame, Options(**options), torch.ones(2).double())
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[0, 2] = shift / frame.half
    estimate = Estimate(matrix, torch.zeros(2, dtype=torch.float64), "identity", ncc=0.9)
    by_parts = weighing.Weighed(evidence(level, matrix), True, None, 2, 0.5, 0.6)
    return weighing._beside_marks(pair, 0, estimate, by_parts), pair.options, estimate


def test_marks_that_are_pulled_by_less_than_a_pixel_are_ambiguous_too():
    assert laid(a_header(), shift=0.8)[0].marks
    assert not laid(a_camera_that_stands_still(), shift=0.8)[0].marks


def test_marks_at_the_same_pixels_are_ambiguous_and_named():
    found, options, estimate = laid(a_header())
    assert found.marks and not found.suffices and found.others is not None and found.others < 0.5
    doubt = _doubt(options, estimate, None, found)
    assert doubt is not None and doubt[0] == MapStatus.AMBIGUOUS
    assert "marks of an instrument" in doubt[1] and 'init="identity"' in doubt[1]


@pytest.mark.parametrize(
    ("maps", "shift", "metric"),
    [
        (a_camera_that_stands_still(), 0.0, {}),  # all but the strongest blocks agree, too
        (a_header(), 1.2, {}),  # who has moved by more than a pixel shows no marks of an instrument
        (a_header(), 0.0, {"metric": NormalizedGradients()}),
    ],
    ids=["one scene", "moved", "edges"],
)
def test_scenes_and_maps_that_have_moved_are_not_marks(maps, shift, metric):
    found, *_ = laid(maps, shift, **metric)
    assert found.suffices and not found.marks
