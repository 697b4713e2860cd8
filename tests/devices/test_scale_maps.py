"""Scale maps on another device: the CPU's numbers; each step of the cells asks once whether all have ended,
fields ask once a solve."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from mslsq.alignment import room, scale_fields, scale_sync
from tests.devices.claimed import REAL, Device, assert_same, there
from tests.devices.doors import normal
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda
F64 = torch.float64
PAIRS = torch.tensor([[0, 1], [1, 0], [0, 2], [2, 0], [1, 2], [2, 1]])


@pytest.mark.parametrize("reference", [0, None])
@elsewhere
def test_scales_from_ratios(reference: int | None, device: Device):
    scales = torch.tensor([1.0, 1.2, 0.8], dtype=F64)[:, None]
    ratios = (scales[PAIRS[:, 1]] / scales[PAIRS[:, 0]]) * (1 + 0.01 * normal(0, 6, 40))
    ratios[0, :8] *= 3  # grossly wrong
    ratios[2:, 30:] = torch.nan  # nothing leads to map 2

    def told(place: Any) -> tuple[Any, ...]:
        found = scale_sync(place(ratios), PAIRS, reference=reference)
        figures = found.scales, found.component, found.status, found.standard_errors, found.support, found.inliers
        return tuple(torch.nan_to_num(x, nan=-7.0) for x in figures)

    for _ in range(2):  # the first plans what the last figures take
        device.transfers.clear()
        found = told(there)
    around = 50  # the noise, the answers about it, one small problem for what is told of a scale
    steps = 30  # until the slowest cell is done
    assert REAL is not None or device.transfers.total() <= steps + around, device.transfers
    assert_same(found, told(lambda tree: tree))


@pytest.mark.skipif(find_spec("imageio") is None, reason="the simulated room needs the extra align")
@elsewhere
def test_scales_of_views_with_poses(device: Device):
    scene = room(views=2, size=(16, 20), amplitude=0.03)
    given = scene.views.depths, scene.views.intrinsics, scene.views.poses

    def told(place: Any) -> tuple[Any, ...]:
        found = scale_fields(*place(given), grid=(2, 3))
        return found.scales, found.logs, found.deviations, found.support, found.believed

    device.transfers.clear()
    found = told(there)
    solves, around = 15, 20  # of a few steps each; checks of the views, and the answer's tensors
    assert REAL is not None or device.transfers.total() <= solves + around, device.transfers
    assert_same(found, told(lambda tree: tree))
