"""The kinds of scenes that placements are judged on: all can be made, and no claim uses a kind that was chosen on."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
truth_kinds: Any = importlib.import_module("truth_kinds")

sys.path.pop(0)

MISSING = () if importlib.util.find_spec("gtsam") else ("villa",)
"""Whose photograph is in another package."""


def kinds(of):
    return [(kind, make) for kind, make in of.items() if kind not in MISSING]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("half", ["choose", "claim"])
def test_every_kind_gives_two_finite_rasters_that_are_not_constant(half):
    for kind, make in kinds(truth_kinds.WITHOUT_MATCH[half]):
        for raster in make(128, np.random.default_rng(3)):
            assert raster.ndim == 2 and np.isfinite(raster).all() and np.ptp(raster) > 0, kind


@pytest.mark.sampled(1)
@pytest.mark.parametrize("half", ["choose", "claim"])
def test_every_scene_is_large_enough_to_cut_a_pair_from(half):
    for kind, make in kinds(truth_kinds.SCENES[half]):
        assert min(make(208, np.random.default_rng(4)).shape) >= 208, kind


def test_the_claim_uses_no_kind_that_was_chosen_on():
    assert not set(truth_kinds.WITHOUT_MATCH["choose"]) & set(truth_kinds.WITHOUT_MATCH["claim"])
    assert not set(truth_kinds.SCENES["choose"]) & set(truth_kinds.SCENES["claim"])


def test_flat_areas_of_a_pair_with_a_match_are_flat_to_the_bit():
    for kind, finish in truth_kinds.FINISHED.items():
        scene = (truth_kinds.SCENES["choose"] | truth_kinds.SCENES["claim"])[kind]
        raster = finish(scene(208, np.random.default_rng(5)))
        assert len(np.unique(raster)) <= 256, kind
