"""Solves in one precision while PyTorch's default is another: what every script that calls `set_default_dtype` has."""

import pytest
import torch

import mslsq

COUNT = 400
"""More unknowns in one part than are solved by dense algebra."""

SOLVERS = {
    "levenberg_marquardt": mslsq.LevenbergMarquardt,
    "gauss_newton": mslsq.GaussNewton,
    "dogleg": mslsq.Dogleg,
}
LINEAR = {
    "auto": "auto",
    "dense": mslsq.linear.Cholesky(),
    "sparse": mslsq.linear.SparseCholesky(),
    "iterative": mslsq.linear.ConjugateGradient(),
    "qr": mslsq.linear.QR(),
}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["default32", "default64"])
def default(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["x32", "x64"])
@pytest.mark.parametrize("linear", LINEAR)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_large_solve_keeps_its_precision_whatever_the_default_is(default, solver, linear, dtype):
    def chain(x, y):
        return torch.cat([torch.sinh(x[1:] - x[:-1]), x - y])

    y = torch.linspace(-1, 1, COUNT, dtype=dtype) ** 3
    chosen = SOLVERS[solver](linear_solver=LINEAR[linear], max_steps=12)
    solution = mslsq.least_squares(chain, torch.zeros(COUNT, dtype=dtype), (y,), solver=chosen)
    assert solution.value.dtype == solution.cost.dtype == dtype
    # The gradient at a minimum: each unknown and its two neighbours, in closed form.
    x = solution.value.double()
    step = x.diff()
    slope = torch.sinh(step) * torch.cosh(step)
    gradient = x - y.double()
    gradient[1:] += slope
    gradient[:-1] -= slope
    assert float(gradient.abs().max()) < (1e-4 if dtype == torch.float32 else 1e-8)
