"""The motion models: manifold axioms, nesting, the analytic Jacobian."""

import pytest
import torch

from mslsq.alignment import models
from mslsq.manifolds.space import space_of

NAMES = list(models.MODELS)


def element(name, seed=0, batch=()):
    model = models.MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    delta = 0.2 * torch.randn(*batch, model.tangent_dim, dtype=torch.float64, generator=generator)
    return model.identity(*batch, dtype=torch.float64).retract(delta)


@pytest.mark.parametrize("name", NAMES)
def test_local_undoes_retract(name):
    warp = element(name, batch=(5,))
    delta = 0.3 * torch.randn(5, warp.tangent_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(warp.local(warp.retract(delta)), delta, rtol=0, atol=1e-13)
    assert warp.retract(delta).storage.shape == (5, warp.storage_dim)
    torch.testing.assert_close(warp.retract(0 * delta).matrix(), warp.matrix(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_points_by_the_generators_first(name):
    """d/dξ of H R(ξ) n at ξ = 0, in homogeneous coordinates, is H G n up to the scale of H."""
    warp = element(name)
    point = torch.tensor([0.3, -0.8], dtype=torch.float64)
    lifted = torch.cat([point, point.new_ones(1)])

    def moved(delta):
        h = warp.retract(delta).matrix() @ lifted
        return h[:2] / h[2]

    numeric = torch.func.jacfwd(moved)(torch.zeros(warp.tangent_dim, dtype=torch.float64))
    h, hdot = warp.matrix() @ lifted, warp.matrix() @ models.velocities(point, warp.tangent_dim)
    expected = (hdot[:2] - (h[:2] / h[2])[:, None] * hdot[2]) / h[2]
    torch.testing.assert_close(numeric, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_the_pulled_back_gradient_is_autodiffs_and_that_of_finite_differences(name):
    warp = element(name, seed=3)
    point = torch.tensor([-0.4, 0.9], dtype=torch.float64)
    gradient = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    zero = torch.zeros(warp.tangent_dim, dtype=torch.float64)

    def linear(delta):
        return gradient @ warp.retract(delta).act(point)

    found = warp.pull_back(gradient, point)
    torch.testing.assert_close(found, torch.func.jacrev(linear)(zero), rtol=0, atol=1e-13)
    step = 1e-6
    for k in range(warp.tangent_dim):
        ahead, behind = zero.clone(), zero.clone()
        ahead[k], behind[k] = step, -step
        difference = (linear(ahead) - linear(behind)) / (2 * step)
        # Central differences: step² beside rounding / step.
        torch.testing.assert_close(found[:, k], difference, rtol=0, atol=1e-8)


@pytest.mark.parametrize("small", range(len(NAMES)))
@pytest.mark.parametrize("large", range(len(NAMES)))
def test_degrees_of_freedom_grow_without_moving_anything(small, large):
    if small > large:
        pytest.skip("the larger model is not contained in the smaller")
    warp = element(NAMES[small])
    grown = models.MODELS[NAMES[large]].from_matrix(warp.matrix())
    point = torch.rand(7, 2, dtype=torch.float64)
    torch.testing.assert_close(grown.act(point), warp.act(point), rtol=0, atol=1e-14)


def test_leading_tangents_mean_the_same_in_every_model():
    point = torch.tensor([0.2, 0.7], dtype=torch.float64)
    gradient = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    full = models.Homography.identity(dtype=torch.float64).pull_back(gradient, point)
    for model in models.MODELS.values():
        part = model.identity(dtype=torch.float64).pull_back(gradient, point)
        torch.testing.assert_close(part, full[:, : model.tangent_dim])


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_can_wrap_and_map_over_it(name):
    space = space_of(models.MODELS[name])
    storage = element(name, batch=(4,)).storage
    delta = torch.full((4, space.tangent_dim), 0.01, dtype=torch.float64)
    mapped = torch.func.vmap(space.retract)(storage, delta)
    torch.testing.assert_close(mapped, space.retract(storage, delta), rtol=0, atol=1e-15)
    assert space.local(storage, mapped).shape == (4, space.tangent_dim)


def test_the_frame_moves_matrices_between_pixels_and_normalised_coordinates():
    frame = models.Frame(100, 200, like=torch.zeros((), dtype=torch.float64))
    warp = element("homography")
    pixels = 100 * torch.rand(6, 2, dtype=torch.float64)
    transform = frame.to_pixels(warp.matrix())
    lifted = torch.cat([pixels, torch.ones(6, 1, dtype=torch.float64)], -1) @ transform.T
    expected = warp.act(frame.normalise(pixels)) * frame.half + frame.centre
    torch.testing.assert_close(lifted[:, :2] / lifted[:, 2:], expected, rtol=0, atol=1e-10)
    again = models.Homography.from_matrix(frame.from_pixels(transform)).matrix()
    torch.testing.assert_close(again, warp.matrix(), rtol=0, atol=1e-13)


def test_points_behind_the_horizon_stay_finite():
    warp = models.Homography.from_matrix(torch.tensor([[1.0, 0, 0], [0, 1, 0], [5, 0, 1]], dtype=torch.float64))
    point = torch.tensor([-1.0, 0.5], dtype=torch.float64)
    assert warp.act(point).isfinite().all()
    assert warp.pull_back(torch.ones(1, 2, dtype=torch.float64), point).isfinite().all()
