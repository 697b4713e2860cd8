"""Correlation, corner error and the synthetic truth."""

import numpy as np
import pytest
import torch

from mslsq.alignment import measures, synthetic


def test_masked_ncc_is_numpys_over_the_mask():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 1, 400, dtype=torch.float64, generator=generator)
    b = b + a
    mask = torch.rand(400, generator=generator) > 0.5
    expected = np.corrcoef(a[0, mask].numpy(), b[0, mask].numpy())[0, 1]
    assert abs(float(measures.masked_ncc(a, b, mask)) - expected) < 1e-12


def test_masked_ncc_of_a_constant_or_of_nothing_is_zero():
    a = torch.rand(1, 10, dtype=torch.float64)
    mask = torch.ones(10, dtype=torch.bool)
    assert measures.masked_ncc(a, torch.ones_like(a), mask) == 0
    assert measures.masked_ncc(a, a, ~mask) == 0


def test_the_horizon_has_no_corner_error():
    behind = torch.eye(3, dtype=torch.float64)
    behind[2] = torch.tensor([-0.1, 0.0, 1.0])
    assert measures.corner_error(behind, torch.eye(3, dtype=torch.float64), 50, 50) == float("inf")


@pytest.mark.parametrize("name", synthetic.NAMES)
def test_bundled_rasters_are_real_and_in_range(name):
    raster = synthetic.base_raster(name)
    assert min(raster.shape) >= 256
    assert raster.min() >= 0
    assert raster.max() <= 1
    assert raster.std() > 0.02


@pytest.mark.parametrize("model", synthetic.MODELS)
def test_the_true_transform_takes_reference_pixels_to_the_moving_map(model):
    from mslsq.alignment.sampling import sample_at, spline_coefficients

    pair = synthetic.make_pair("elevation", model, seed=3, noise=0.0)
    height, width = pair.reference.shape
    y, x = torch.meshgrid(torch.arange(40.0, height - 40), torch.arange(40.0, width - 40), indexing="ij")
    pixels = torch.stack([x.reshape(-1), y.reshape(-1)], -1).double()
    warped = measures.project(pair.transform, pixels)
    inside = (warped >= 5).all(-1) & (warped[:, 0] <= width - 6) & (warped[:, 1] <= height - 6)
    found = pair.gain * sample_at(spline_coefficients(pair.moving[None]), warped)[0] + pair.bias
    expected = pair.reference[pixels[:, 1].long(), pixels[:, 0].long()]
    # Cubic against quintic interpolation of a raster low-passed at 0.8 px: some thousandths of its range.
    assert (found - expected)[inside].abs().quantile(0.99) < 0.01
    # A wrong sign or a half-pixel offset would be seen: the same comparison one pixel off.
    off = pair.gain * sample_at(spline_coefficients(pair.moving[None]), warped + 1.0)[0] + pair.bias
    assert (off - expected)[inside].std() > 5 * (found - expected)[inside].std()


def test_an_unknown_raster_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="camera"):
        synthetic.base_raster("lena")


def test_the_common_area_is_a_share_of_the_smaller_map_at_any_scale():
    """Two maps of one square, in pixels of 1 and of 2: all is common, but for a border of half a pixel."""
    from mslsq.alignment.models import Frame
    from mslsq.alignment.pair_level import PairLevel
    from mslsq.alignment.pyramid import Level

    fine, coarse = (
        Level(torch.rand(1, side, side, dtype=torch.float64), torch.ones(side, side, dtype=torch.bool), 1)
        for side in (80, 40)
    )
    for one, other, scale in ((fine, coarse, 0.5), (coarse, fine, 2.0)):
        frame = Frame(*one.size, one.raster)
        centres = torch.tensor([[scale, 0, (scale - 1) / 2], [0, scale, (scale - 1) / 2], [0, 0, 1]]).double()
        level = PairLevel.of(one, other, frame, 0)
        matrix = frame.from_pixels(centres)
        assert level.share(level.look(matrix)[1], matrix) == pytest.approx(1.0, abs=0.06)
        half = frame.from_pixels(torch.tensor([[1.0, 0, 0.5 * other.size[1]], [0, 1, 0], [0, 0, 1]]).double() @ centres)
        assert level.share(level.look(half)[1], half) == pytest.approx(0.5, abs=0.06)
