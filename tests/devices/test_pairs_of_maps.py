"""Pairs of maps as batches (`benchmarks/cuda_pairs.py` aligns 2,000 of them), on another device: the CPU's numbers."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import mslsq
from tests.devices.claimed import REAL, Device, assert_same, there
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda


def cuda_pairs() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import cuda_pairs
    finally:
        sys.path.pop(0)
    return cuda_pairs


@elsewhere
def test_pairs_are_aligned_from_a_pyramid_to_transforms(device: Device):
    module = cuda_pairs()
    made = module.given(2, module.SMALL_SIDE, torch.device("cpu"), torch.float64)
    solver = mslsq.LevenbergMarquardt(max_steps=6, early_stop=False, native="never")
    expected = module.aligned(made, solver)
    assert (expected - made.truth)[:, :2, 2].abs().max() < 0.1  # pixels
    placed = there(tuple(made))
    module.aligned(module.Given(*placed), solver)  # whatever is planned is planned once
    device.transfers.clear()
    found = module.aligned(module.Given(*placed), solver)
    # Nothing is asked for: a few constants of each level are sent.
    assert REAL is not None or (set(device.transfers) <= {"from the host"} and device.transfers.total() <= 14)
    assert_same(found, expected)
