"""The kinds of scenes that placements are judged on: all can be made, and no claim uses a kind that was chosen on."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCENES = Path(__file__).resolve().parents[2] / "benchmarks" / "truth_scenes.py"
SPEC = importlib.util.spec_from_file_location("scenes_of_benchmarks", SCENES)
assert SPEC and SPEC.loader
truth_scenes: Any = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = truth_scenes
SPEC.loader.exec_module(truth_scenes)


@pytest.mark.parametrize("half", ["choose", "claim"])
def test_every_kind_gives_two_finite_rasters_that_are_not_constant(half):
    for kind, make in truth_scenes.WITHOUT_MATCH[half].items():
        for raster in make(128, np.random.default_rng(3)):
            assert raster.ndim == 2 and np.isfinite(raster).all() and np.ptp(raster) > 0, kind


@pytest.mark.parametrize("half", ["choose", "claim"])
def test_every_scene_is_large_enough_to_cut_a_pair_from(half):
    for kind, make in truth_scenes.SCENES[half].items():
        assert min(make(208, np.random.default_rng(4)).shape) >= 208, kind


def test_the_claim_uses_no_kind_that_was_chosen_on():
    assert not set(truth_scenes.WITHOUT_MATCH["choose"]) & set(truth_scenes.WITHOUT_MATCH["claim"])
    assert not set(truth_scenes.SCENES["choose"]) & set(truth_scenes.SCENES["claim"])
