"""B-spline sampling against SciPy's and against finite differences."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import sampling


def raster(height=37, width=23, channels=2, dtype=torch.float64):
    return torch.randn(channels, height, width, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(37, 23), (64, 5), (2, 3), (1, 9)])
def test_the_prefilter_is_scipys_with_mirror_borders(shape):
    image = raster(*shape)
    expected = np.stack([scipy.ndimage.spline_filter(c, order=3, mode="mirror") for c in image.numpy()])
    # Both are the same linear operator; the truncation at |pole|^28 and SciPy's own recursion leave rounding only.
    np.testing.assert_allclose(sampling.spline_coefficients(image).numpy(), expected, rtol=0, atol=1e-13)


def test_values_are_scipys_inside_and_one_raster_outside():
    image = raster()
    points = torch.rand(500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    points = (points * 3 - 1) * torch.tensor([20.0, 34.0])  # width 23, height 37
    expected = np.stack(
        [scipy.ndimage.map_coordinates(c, points.flip(-1).T.numpy(), order=3, mode="mirror") for c in image.numpy()]
    )
    found = sampling.sample_at(sampling.spline_coefficients(image), points)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_the_gradient_equals_finite_differences_and_autodiff():
    coefficients = sampling.spline_coefficients(raster())
    points = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 30 - 5
    value, gradient = torch.func.vmap(sampling.sample_with_gradient, in_dims=(None, 0))(coefficients, points)
    assert torch.equal(value.isfinite(), torch.ones_like(value, dtype=torch.bool))
    step = 1e-6
    for axis in range(2):
        offset = torch.zeros(2, dtype=torch.float64)
        offset[axis] = step
        ahead = sampling.sample_at(coefficients, points + offset)
        behind = sampling.sample_at(coefficients, points - offset)
        # Central differences: step² · third derivative ~ 1e-11 beside rounding 1e-16 / 1e-6.
        torch.testing.assert_close(gradient[..., axis], ((ahead - behind) / (2 * step)).T, rtol=0, atol=1e-8)
    for jac in (torch.func.jacfwd, torch.func.jacrev):
        by_autodiff = torch.func.vmap(jac(sampling.sample, argnums=1), in_dims=(None, 0))(coefficients, points)
        torch.testing.assert_close(gradient, by_autodiff, rtol=0, atol=1e-12)


def test_the_gradient_is_continuous_across_pixel_borders():
    coefficients = sampling.spline_coefficients(raster())
    for whole in ([7.0, 9.5], [3.2, 4.0]):
        point = torch.tensor(whole, dtype=torch.float64)
        _, left = sampling.sample_with_gradient(coefficients, point - 1e-10)
        _, right = sampling.sample_with_gradient(coefficients, point + 1e-10)
        torch.testing.assert_close(left, right, rtol=0, atol=1e-8)


def test_a_cubic_polynomial_is_reproduced_exactly_away_from_the_border():
    y, x = torch.meshgrid(*[torch.arange(80, dtype=torch.float64)] * 2, indexing="ij")
    polynomial = lambda x, y: 1 + (x / 40) ** 3 - (y / 40) ** 2 * x / 40 + y  # noqa: E731
    coefficients = sampling.spline_coefficients(polynomial(x, y)[None])
    points = 35 + 10 * torch.rand(20, 2, dtype=torch.float64)
    # 30 px from the border the mirror extension has decayed to |pole|^30 = 1e-17.
    torch.testing.assert_close(
        sampling.sample_at(coefficients, points)[0], polynomial(points[:, 0], points[:, 1]), rtol=0, atol=1e-11
    )


def test_sampling_is_linear_and_differentiable_in_the_raster():
    image = raster(12, 10, 1)
    point = torch.tensor([4.3, 6.8], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda r: sampling.sample(sampling.spline_coefficients(r), point), (image.requires_grad_(),)
    )


def test_points_that_are_not_finite_give_no_number_and_no_crash():
    coefficients = sampling.spline_coefficients(raster())
    bad = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [1e300, -1e300], [2.0, 3.0]], dtype=torch.float64)
    found = sampling.sample_at(coefficients, bad)
    assert found[:, 0].isnan().all()
    torch.testing.assert_close(found[:, 3], raster()[:, 3, 2], rtol=0, atol=1e-12)


def test_single_precision_stays_single_precision():
    coefficients = sampling.spline_coefficients(raster(dtype=torch.float32))
    value, gradient = sampling.sample_with_gradient(coefficients, torch.tensor([4.0, 5.0]))
    assert coefficients.dtype == value.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(value, raster(dtype=torch.float32)[:, 5, 4], rtol=0, atol=1e-5)
