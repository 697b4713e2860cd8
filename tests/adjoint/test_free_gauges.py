"""A free gauge has no derivative, also where the rest of a gradient, or rounding, gives it a little curvature."""

import pytest
import torch

import mslsq

F64 = torch.float64
T = torch.linspace(0.1, 2, 20, dtype=F64)


def noise(count, seed, scale=1.0):
    return scale * torch.randn(count, dtype=F64, generator=torch.Generator().manual_seed(seed))


def two_factors(p, y):
    return p[0] * p[1] * torch.exp(-p[2] * T) - y


def three_factors(p, y):
    return p[0] * p[1] * p[2] * torch.cos(p[3] * T) - y


FREE = {
    # Seeds whose curvature along the gauge was 3e-14 to 4e-13 of that of the columns.
    "two factors": (two_factors, (1.0, 2.0, 0.5), 0.2, 2 * torch.exp(-1.1 * T), (0, 1, 3, 4)),
    "three factors": (three_factors, (1.0, 2.0, 0.7, 1.0), 0.1, 2 * torch.cos(1.1 * T), (6, 21, 23)),
}


@pytest.mark.parametrize("name", FREE)
def test_the_scale_between_factors_has_no_derivative(name):
    residual, start, spread, data, seeds = FREE[name]
    for seed in seeds:
        y = (data + noise(20, seed + 100, 0.05)).requires_grad_()
        begun = torch.tensor(start, dtype=F64) + noise(len(start), seed, spread)
        with pytest.warns(mslsq.errors.NotDifferentiableWarning, match="gauge"):
            solution = mslsq.least_squares(residual, begun, (y,), solver=mslsq.LevenbergMarquardt(native="never"))
        assert not bool(solution.differentiable)


def test_a_sparse_graph_without_datum_has_no_derivative():
    class Level(mslsq.CostFunction):
        def residual(self, a, b, rise, steepness):
            return steepness * (b - a - rise)

    height, i = mslsq.Variable("height", mslsq.Euclidean(1), count=15), torch.arange(15)
    solver = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.SparseCholesky(), native="never")
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        rise = torch.randn(15, 1, dtype=F64, generator=generator).requires_grad_()
        steepness = 0.5 + torch.rand(15, 1, dtype=F64, generator=generator)
        problem = mslsq.Problem(Level(height[i], height[(i + 1) % 15], rise=rise, steepness=steepness))
        start = {"height": torch.randn(15, 1, dtype=F64, generator=generator)}
        with pytest.warns(mslsq.errors.NotDifferentiableWarning):
            assert not bool(mslsq.solve(problem, start, solver=solver).differentiable)


def test_a_little_curvature_of_a_prior_is_enough():
    """The least eigenvalue of the scaled Hessian is some 1e-14: asked twice, and the same."""

    def residual(p, y):
        return torch.cat([p[0] + p[1] + p[2] * torch.exp(-p[3] * T) - y, 1e-6 * (p[0] - 1)[None]])

    y = (2 * torch.exp(-1.1 * T) + 0.3 + noise(20, 100, 0.05)).requires_grad_()
    start = torch.tensor([0.3, 0.2, 1.0, 0.5], dtype=F64)
    solution = mslsq.least_squares(residual, start, (y,), solver=mslsq.LevenbergMarquardt(native="never"))
    assert bool(solution.differentiable)
    (slope,) = torch.autograd.grad(solution.value[0], y)
    assert float(slope.norm()) < 1e-3  # the prior alone decides


def test_powers_of_a_far_variable_keep_their_derivative():
    powers = (T + 10)[:, None] ** torch.arange(4, dtype=F64)

    def residual(p, y):
        return powers @ p - y

    y = (torch.sin(2 * T) + noise(20, 3, 0.01)).requires_grad_()
    solution = mslsq.least_squares(residual, noise(4, 1, 0.1), (y,))
    assert bool(solution.differentiable)
    (slope,) = torch.autograd.grad((powers @ solution.value)[0], y)
    hat = powers @ torch.linalg.pinv(powers)
    torch.testing.assert_close(slope, hat[0], rtol=1e-4, atol=1e-4)


def test_a_residual_of_fewer_digits_is_named():
    """A number of 0 dimensions does not widen data of float32: what is left of the gradient is their rounding."""

    def residual(p, t, y):
        return p[0] * torch.exp(p[1] * t) + p[2] - y

    y = (2 * torch.exp(-1.1 * T) + 0.3 + 0.02 * torch.sin(9 * T)).requires_grad_()
    start = torch.tensor([1.5, -0.8, 0.1], dtype=F64)
    with pytest.warns(mslsq.errors.NotDifferentiableWarning, match=r"computes in torch.float32.*with .double\(\)"):
        mslsq.least_squares(residual, start, (T.float(), y), solver=mslsq.LevenbergMarquardt(native="never"))

    def shifted(p, y):
        turns = torch.exp(-2j * torch.pi * torch.fft.rfftfreq(20) * p[0])  # complex64
        return torch.fft.irfft(torch.fft.rfft(torch.sin(5 * T)) * turns, n=20) * p[1] - y

    y = (0.7 * torch.sin(5 * T - 0.1) + noise(20, 3, 0.02)).requires_grad_()
    with pytest.warns(mslsq.errors.NotDifferentiableWarning, match=r"computes in torch.(float32|complex64)"):
        mslsq.least_squares(shifted, start[:2], (y,), solver=mslsq.LevenbergMarquardt(native="never"))
