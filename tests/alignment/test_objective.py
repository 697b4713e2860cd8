"""The cost function: its analytic Jacobian, and the engine's face of it."""

import pytest
import torch

import mslsq
from mslsq.alignment import models
from mslsq.alignment.objective import LOSSES, Photometric, photometric_problem
from mslsq.alignment.sampling import spline_coefficients


def arguments(channels=2):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(channels, 20, 25, dtype=torch.float64, generator=generator)
    return {
        "point": torch.tensor([0.31, -0.22], dtype=torch.float64),
        "target": torch.randn(channels, dtype=torch.float64, generator=generator),
        "valid": torch.tensor(1.0, dtype=torch.float64),
        "coefficients": spline_coefficients(image),
        "to_level": torch.tensor([11.0, 12.0, 9.5], dtype=torch.float64),
        "freedom": torch.ones(2, dtype=torch.float64),
    }


def cost_of(model):
    problem = photometric_problem(model, 5, (2, 20, 25), None, torch.float64, torch.device("cpu"))
    return next(module for module in problem.modules() if isinstance(module, Photometric))


@pytest.mark.parametrize("name", list(models.MODELS))
def test_the_analytic_jacobian_is_that_of_automatic_differentiation(name):
    cost, data = cost_of(name), arguments()
    kind = models.MODELS[name]
    generator = torch.Generator().manual_seed(1)
    warp = kind.identity(dtype=torch.float64).retract(
        0.1 * torch.randn(kind.tangent_dim, dtype=torch.float64, generator=generator)
    )
    value = torch.tensor([0.2, -0.1], dtype=torch.float64)
    by_warp, by_value = cost.jacobians(warp, value, **data)
    zero = torch.zeros(kind.tangent_dim, dtype=torch.float64)
    numeric = torch.func.jacfwd(lambda d: cost.residual(warp.retract(d), value, **data))(zero)
    # Same formula up to the order of operations.
    torch.testing.assert_close(by_warp, numeric, rtol=0, atol=1e-11)
    numeric = torch.func.jacrev(lambda v: cost.residual(warp, v, **data))(value)
    torch.testing.assert_close(by_value, numeric, rtol=0, atol=1e-12)


def test_masked_samples_and_held_values_have_no_influence():
    cost, data = cost_of("sim2"), arguments()
    warp = models.Similarity.identity(dtype=torch.float64)
    value = torch.tensor([0.2, -0.1], dtype=torch.float64)
    masked = data | {"valid": torch.tensor(0.0, dtype=torch.float64)}
    assert cost.residual(warp, value, **masked).abs().max() == 0
    assert all(part.abs().max() == 0 for part in cost.jacobians(warp, value, **masked))
    held = data | {"freedom": torch.zeros(2, dtype=torch.float64)}
    torch.testing.assert_close(cost.residual(warp, value, **held), cost.residual(warp, 0 * value, **held))
    assert cost.jacobians(warp, value, **held)[1].abs().max() == 0


@pytest.mark.parametrize("loss", [None, *LOSSES])
def test_every_loss_makes_a_problem_that_the_engine_solves(loss):
    """A map that is the reference moved by half a pixel, with gain and bias: found to 1e-4 px by the public solver."""
    size = 24
    y, x = torch.meshgrid(*[torch.arange(size, dtype=torch.float64)] * 2, indexing="ij")
    scenery = lambda x, y: torch.sin(x / 3) * torch.cos(y / 4) + 0.05 * x  # noqa: E731
    reference, moving = scenery(x, y), 0.8 * scenery(x - 0.5, y) + 0.3
    frame = models.Frame(size, size, reference)
    inner = (slice(4, -4), slice(4, -4))
    pixels = torch.stack([x[inner].reshape(-1), y[inner].reshape(-1)], -1)
    problem = photometric_problem("translation", len(pixels), (1, size, size), loss, torch.float64, torch.device("cpu"))
    data = {
        "point": frame.normalise(pixels),
        "target": reference[inner].reshape(-1, 1),
        "valid": torch.ones(len(pixels), dtype=torch.float64),
        "coefficients": spline_coefficients(moving[None]),
        "to_level": torch.cat([frame.centre.new_tensor([frame.half]), frame.centre]),
        "freedom": torch.ones(2, dtype=torch.float64),
    }
    start = {"warp": models.Translation.identity(dtype=torch.float64), "value": torch.zeros(2, dtype=torch.float64)}
    solution = mslsq.solve(problem, start, {"photometric": data}, solver=mslsq.LevenbergMarquardt())
    found = frame.to_pixels(solution.value["warp"].matrix())
    # The border's mirror extension reaches 4 px inside with 0.27⁴ = 5e-3 of its kink.
    assert abs(float(found[0, 2]) - 0.5) < 2e-3
    assert abs(float(found[1, 2])) < 2e-3
    assert abs(float(solution.value["value"][0].exp()) - 1 / 0.8) < 2e-3


@pytest.mark.parametrize("name", list(models.MODELS))
def test_a_step_looks_at_the_map_once_and_sees_the_same(name):
    cost, data = cost_of(name), arguments()
    warp = models.MODELS[name].identity(dtype=torch.float64)
    value = torch.tensor([0.2, -0.1], dtype=torch.float64)
    residual, parts = cost.residual_and_jacobians(warp, value, **data)
    # Same formula up to the order of operations.
    torch.testing.assert_close(residual, cost.residual(warp, value, **data), rtol=1e-13, atol=1e-13)
    assert all(torch.equal(a, b) for a, b in zip(parts, cost.jacobians(warp, value, **data), strict=True))
