"""The example's track is that of the same residual in PyTorch; so is the derivative that goes through the kernel."""

import importlib.util
from pathlib import Path

import pytest
import torch

import mslsq

pytest.importorskip("warp", reason="no Warp: pip install 'mslsq[warp]'", exc_type=ImportError)
ROOT = Path(__file__).parents[3]


def test_the_track_and_its_derivative_are_those_of_a_residual_in_pytorch(capsys):
    spec = importlib.util.spec_from_file_location("warp_ranges", ROOT / "examples" / "warp_ranges.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(["--count", "20"])
    assert found["error"] < module.NOISE
    assert "Converged" in capsys.readouterr().out

    track, beacons, ranges = (x.double() for x in module.make_track(20))
    steps = track.diff(dim=0).float() + 0.02 * torch.randn(19, 3, generator=torch.Generator().manual_seed(1))

    def residual(position, beacons):
        distance = torch.linalg.vector_norm(position[:, None] - beacons, dim=-1)
        return (distance - ranges) / module.NOISE, (position.diff(dim=0) - steps.double()) / 0.02

    beacons.requires_grad_()
    solution = mslsq.least_squares(residual, torch.full((20, 3), 0.1, dtype=torch.float64), (beacons,))
    error = float((solution.value.detach() - track).norm(dim=1).mean())
    assert found["error"] == pytest.approx(error, rel=0.02)
    (gradient,) = torch.autograd.grad(solution.value[-1, 0], beacons)
    assert found["gradient"] == pytest.approx(float(gradient[0, 0]), rel=0.05)  # differences in float32
