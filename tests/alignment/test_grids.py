"""Pixels that fall on data: those of a raster that is moved as a whole, beside single points."""

import numpy as np
import pytest
import torch

from mslsq.alignment.grids import inside, inside_moved, pixel_grid
from mslsq.alignment.pyramid import fill

STEPS = [(0.0, 0.0), (3.0, -2.0), (0.5, 0.25), (-1.3, 4.9999995), (2.0000002, -0.9999998), (40.0, 0.0), (np.nan, 1.0)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [(12, 17), (9, 30)])
def test_a_raster_that_is_moved_falls_on_data_where_its_pixels_do(step, size):
    mask = torch.rand(14, 19, generator=torch.Generator().manual_seed(0)) > 0.1
    points = pixel_grid(*size, torch.zeros((), dtype=torch.float64)) + torch.tensor(step, dtype=torch.float64)
    assert torch.equal(inside_moved(np.array(step), mask, size).reshape(-1), inside(points, mask))


def test_holes_that_are_wanted_are_filled_as_all_are():
    random = torch.Generator().manual_seed(1)
    raster = torch.randn(1, 40, 50, dtype=torch.float64, generator=random)
    mask = torch.ones(40, 50, dtype=torch.bool)
    mask[:12], mask[20:23, 5:40] = False, False
    wanted = torch.zeros_like(mask)
    wanted[10:24] = True
    whole, some = fill(raster, mask), fill(raster, mask, wanted)
    torch.testing.assert_close(some[:, 10:], whole[:, 10:], rtol=0, atol=1e-13)
