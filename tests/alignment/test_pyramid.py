"""The pyramid: positions, masks, normalised convolution."""

import numpy as np
import scipy.ndimage
import torch

from mslsq.alignment import pyramid


def whole(raster):
    return torch.ones(raster.shape[-2:], dtype=torch.bool)


def test_blur_is_scipys_gaussian():
    image = torch.rand(1, 40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = scipy.ndimage.gaussian_filter(image[0].numpy(), 1.5, mode="constant", truncate=4.0)
    np.testing.assert_allclose(pyramid.blur(image, 1.5)[0].numpy(), expected, atol=1e-14)


def test_every_level_keeps_positions():
    """A Gaussian blob at (96, 64) must be centred at (96, 64) / 2^l on every level."""
    y, x = torch.meshgrid(
        torch.arange(128.0, dtype=torch.float64), torch.arange(192.0, dtype=torch.float64), indexing="ij"
    )
    blob = torch.exp(-((x - 96) ** 2 + (y - 64) ** 2) / (2 * 12.0**2))[None]
    for level in pyramid.build(blob, whole(blob), 3):
        rows, columns = [torch.arange(n, dtype=torch.float64) for n in level.size]
        mass = level.raster[0].sum()
        centre = (level.raster[0].sum(0) @ columns / mass, level.raster[0].sum(1) @ rows / mass)
        # The blob fades to 1e-6 at the border, where the blur is one-sided.
        assert abs(float(centre[0]) * level.factor - 96) < 1e-3
        assert abs(float(centre[1]) * level.factor - 64) < 1e-3


def test_values_under_the_mask_never_leak():
    image = torch.rand(1, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = whole(image).clone()
    mask[20:30, 40:50] = False
    spoiled = torch.where(mask, image, torch.full_like(image, float("nan")))
    for clean, dirty in zip(pyramid.build(image, mask, 2), pyramid.build(spoiled, mask, 2), strict=True):
        assert torch.equal(clean.raster, dirty.raster)
        assert torch.equal(clean.mask, dirty.mask)
        assert dirty.coefficients.isfinite().all()


def test_two_pixels_are_taken_off_a_border_and_around_a_hole():
    image = torch.rand(1, 64, 64, dtype=torch.float64)
    mask = whole(image).clone()
    mask[20:30, 40:50] = False
    valid = pyramid.build(image, mask, 1)[0].mask
    assert not valid[:2].any()
    assert valid[2, 10]
    assert not valid[18:32, 45].any()
    assert valid[17, 45]


def test_scattered_holes_do_not_empty_the_mask():
    image = torch.rand(1, 64, 64, dtype=torch.float64)
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(3)) > 0.3
    assert all(level.mask.float().mean() > 0.3 for level in pyramid.build(image, mask, 2))


def test_a_constant_stays_constant_under_any_mask():
    mask = torch.rand(33, 41, generator=torch.Generator().manual_seed(4)) > 0.4
    for level in pyramid.build(torch.full((2, 33, 41), 7.0, dtype=torch.float64), mask, 1):
        torch.testing.assert_close(level.raster, torch.full_like(level.raster, 7.0), rtol=0, atol=1e-12)


def test_depth_stops_at_a_short_side_of_about_twenty_four():
    assert [pyramid.depth(n, 2 * n) for n in (8, 24, 47, 48, 256, 1000)] == [1, 1, 1, 2, 4, 6]
