"""The classic problems of Moré, Garbow and Hillstrom from their own starts, by each method and linear solver."""

import numpy as np
import pytest
import scipy.optimize
import torch

import mslsq
from mslsq.datasets.classic import PROBLEMS
from mslsq.solvers import Solver

CHOLESKY, QR = mslsq.linear.Cholesky(), mslsq.linear.QR()


def solve(name: str, solver: Solver) -> mslsq.Solution:
    problem = PROBLEMS[name]
    return mslsq.least_squares(problem.residual, problem.start, solver=solver)


def assert_at_a_minimum(name: str, solution: mslsq.Solution) -> None:
    """Σ r² is one of the listed ones: to 1e-5 of it (some are listed to six digits), or below 1e-12 of the start's."""
    problem = PROBLEMS[name]
    squares, start = 2 * float(solution.cost), float(problem.residual(problem.start).square().sum())
    assert any(abs(squares - minimum) <= max(1e-5 * minimum, 1e-12 * start) for minimum in problem.minima), squares
    assert bool(torch.isfinite(solution.value).all())


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", [mslsq.LevenbergMarquardt, mslsq.Dogleg])
@pytest.mark.parametrize("linear", [CHOLESKY, QR], ids=["cholesky", "qr"])
def test_every_method_reaches_a_listed_minimum(request, name, method, linear):
    if name == "biggs_exp6" and method is mslsq.Dogleg and linear is CHOLESKY:
        reason = "after 1000 steps the cost is 0.0038; with QR the minimum is reached in 285"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=False))  # as the processor rounds: 260 on others
    assert_at_a_minimum(name, solve(name, method(linear_solver=linear, max_steps=1000)))


# Where J has full rank on the way and full steps, halved where needed, lead to the minimum.
REGULAR = [
    *("rosenbrock", "helical_valley", "bard", "gauss", "wood", "brown_almost_linear"),
    *("kowalik_osborne", "broyden_tridiagonal", "broyden_banded", "variably_dimensioned", "linear_full_rank"),
    *("extended_rosenbrock", "discrete_boundary_value", "discrete_integral_equation", "osborne_2"),
]


@pytest.mark.parametrize("name", REGULAR)
def test_gauss_newton_reaches_the_regular_ones(name):
    assert_at_a_minimum(name, solve(name, mslsq.GaussNewton(max_steps=200)))


@pytest.mark.parametrize("name", ["rosenbrock", "bard", "kowalik_osborne", "helical_valley", "osborne_1", "beale"])
def test_evaluations_are_of_minpacks_order(name):
    problem = PROBLEMS[name]

    def numbers(x):
        return problem.residual(torch.as_tensor(x)).numpy()

    def jacobian(x):
        return np.asarray(torch.func.jacfwd(problem.residual)(torch.as_tensor(x)))

    minpack = scipy.optimize.least_squares(numbers, problem.start.numpy(), jac=jacobian, method="lm")  # pyright: ignore[reportArgumentType]
    solution = solve(name, mslsq.LevenbergMarquardt())
    assert 2 * float(solution.cost) <= 2 * minpack.cost + 1e-10
    assert int(solution.num_evaluations) <= 3 * minpack.nfev


def test_all_problems_of_one_shape_as_a_batch_of_starts():
    """Rosenbrock from 64 starts: every entry reaches the minimum that it reaches alone."""
    generator = torch.Generator().manual_seed(0)
    starts = 4 * torch.randn(64, 2, generator=generator, dtype=torch.float64)
    solution = mslsq.least_squares(PROBLEMS["rosenbrock"].residual, starts, in_dims=0)
    assert bool(solution.converged.all())
    assert torch.allclose(solution.value, torch.ones(64, 2, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_answer_does_not_depend_on_the_units_of_the_variables(scale):
    """Marquardt's scaling: the iterates in other units are the same points."""
    problem = PROBLEMS["kowalik_osborne"]
    units = torch.tensor([1.0, scale, 1.0, 1 / scale], dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(xtol=0, gtol=0)
    plain = mslsq.least_squares(problem.residual, problem.start, solver=solver)
    other = mslsq.least_squares(lambda z: problem.residual(z / units), problem.start * units, solver=solver)
    assert torch.allclose(other.value / units, plain.value, rtol=1e-4)
    steps = min(int(plain.num_steps), int(other.num_steps), 8)
    assert torch.allclose(other.history.cost[:steps], plain.history.cost[:steps], rtol=1e-6)
