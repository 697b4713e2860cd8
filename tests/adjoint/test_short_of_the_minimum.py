"""A solve that its tolerances end just short of the minimum is moved there before it is differentiated."""

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, vmap

import mslsq
from mslsq.adjoint import NotDifferentiableWarning
from tests.differences import differences
from tests.front import test_functional_call as network

F64 = torch.float64
SHAPE = 0.98
"""At d = 0 Gauss–Newton leaves that share of the error in every step (Dennis and Schnabel, example 10.2.4)."""
SOLVERS = [mslsq.LevenbergMarquardt(), mslsq.Dogleg(), mslsq.GaussNewton()]
PER_SOLVER = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
START = torch.tensor([1.0], dtype=F64)
D = torch.tensor([3e-3, 1e-3, 5e-4], dtype=F64)


def residual(x, d):
    """JᵀJ is far more than the Hessian: the residuals are large, and the steps too short."""
    return torch.cat([x + 1, SHAPE * x**2 + x - 1 - d])


def minimum(d: float) -> tuple[float, float]:
    """x*, by bisection, and dx*/dd in closed form."""

    def slope(x):
        return x + 1 + (SHAPE * x * x + x - 1 - d) * (2 * SHAPE * x + 1)

    low, high = 0.0, 3.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    x = 0.5 * (low + high)
    curvature = 1 + (2 * SHAPE * x + 1) ** 2 + 2 * SHAPE * (SHAPE * x * x + x - 1 - d)
    return x, (2 * SHAPE * x + 1) / curvature


def solved(d: Tensor, solver, **options):
    return mslsq.least_squares(residual, START, (d,), solver=solver, **options)


@pytest.mark.sampled(1)
@PER_SOLVER
@pytest.mark.parametrize("trace", ["never", "always"])
@pytest.mark.parametrize("adjoint", [mslsq.Implicit(), mslsq.DirectLossMinimization()], ids=["implicit", "direct loss"])
def test_the_derivative_is_that_of_the_minimum(solver, trace, adjoint):
    solver = dataclasses.replace(solver, trace=trace)
    for number in D.tolist():
        d = torch.tensor([number], dtype=F64, requires_grad=True)
        short, solution = solved(d.detach(), solver), solved(d, solver, adjoint=adjoint)
        x, slope = minimum(number)
        assert abs(float(short.value) - x) > 1e-6  # `ftol` has ended it
        assert solution.converged and solution.differentiable
        assert float(solution.value.detach()) == pytest.approx(x, abs=1e-10)
        assert float(solution.cost.detach()) <= float(short.cost)
        assert float(solution.gradient_norm) < 1e-3 * float(short.gradient_norm)
        assert int(solution.num_steps) == int(short.num_steps)
        (found,) = torch.autograd.grad(solution.value.sum(), d)
        error = 1e-6 if isinstance(adjoint, mslsq.Implicit) else 1e-2  # of second order in ε: 0.3 % here
        assert float(found) == pytest.approx(slope, rel=error)


def test_under_every_transform_and_to_second_order():
    solver = mslsq.LevenbergMarquardt()

    def end(d):
        return solved(d, solver).value.sum()

    expected = torch.tensor([minimum(number)[1] for number in D.tolist()], dtype=F64)
    torch.testing.assert_close(vmap(grad(end))(D[:, None])[:, 0], expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(vmap(jacfwd(end))(D[:, None])[:, 0], expected, rtol=1e-7, atol=0)
    second = differences(lambda d: torch.tensor([minimum(float(d))[1]], dtype=F64), D[:1], 1e-6)
    torch.testing.assert_close(hessian(end)(D[:1]).reshape(-1), second.reshape(-1), rtol=1e-5, atol=0)


@pytest.mark.slow
def test_in_a_batch_each_is_what_it_is_alone_and_who_had_arrived_stays_to_the_bit():
    """The last has a solution of zero residual, to which Gauss–Newton converges quadratically."""
    solver = mslsq.LevenbergMarquardt(native="never")

    def weighted(x, d, w):
        return torch.cat([w * (x + 1), SHAPE * x**2 + x - 1 - d])

    d, w = torch.cat([D, D[:1]]).requires_grad_(), torch.tensor([1.0, 1, 1, 0], dtype=F64)
    options = {"in_dims": (None, 0, 0), "solver": solver}
    together = mslsq.least_squares(weighted, START, (d[:, None], w), **options)
    plain = mslsq.least_squares(weighted, START, (d.detach()[:, None], w), **options)
    (found,) = torch.autograd.grad(together.value.sum(), d)
    assert together.differentiable.all()
    assert torch.equal(together.value[3].detach(), plain.value[3])
    assert not torch.equal(together.value[:3].detach(), plain.value[:3])
    for k in range(4):
        alone = d.detach()[k : k + 1].requires_grad_()
        one = mslsq.least_squares(weighted, START, (alone, w[k]), solver=solver)
        torch.testing.assert_close(together.value[k].detach(), one.value.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(found[k : k + 1], torch.autograd.grad(one.value.sum(), alone)[0], rtol=1e-9, atol=0)


def test_beside_a_variable_on_its_bound():
    bounds = (torch.tensor([-3.0, 0.5], dtype=F64), torch.tensor([3.0, 2.0], dtype=F64))
    for number in D.tolist():
        d = torch.tensor([number], dtype=F64, requires_grad=True)
        solution = mslsq.least_squares(
            lambda x, d: torch.cat([residual(x[:1], d), x[1:]]),
            torch.tensor([1.0, 1.0], dtype=F64),
            (d,),
            bounds=bounds,
            solver=mslsq.LevenbergMarquardt(),
        )
        assert solution.differentiable
        assert float(solution.value[1].detach()) == 0.5
        (found,) = torch.autograd.grad(solution.value[0], d)
        assert float(found) == pytest.approx(minimum(number)[1], rel=1e-6)


def test_what_is_further_away_than_tolerances_explain_stays_and_says_so():
    d = D[:1].clone().requires_grad_()
    with pytest.warns(NotDifferentiableWarning, match="gradient does not vanish"):
        solution = solved(d, mslsq.LevenbergMarquardt(gtol=0.3))
    assert solution.converged and not solution.differentiable
    assert torch.equal(solution.value.detach(), solved(D[:1], mslsq.LevenbergMarquardt(gtol=0.3)).value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("linear", [mslsq.linear.QR(), mslsq.linear.SparseCholesky(), mslsq.linear.ConjugateGradient()])
def test_with_every_linear_solver(linear):
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=3)

    @mslsq.cost
    def both(x, d):
        return residual(x, d)

    problem = mslsq.Problem(both(x[torch.arange(3)], d=torch.zeros(3, 1, dtype=F64)))
    solver = mslsq.LevenbergMarquardt(linear_solver=linear)

    def end(d):
        start = {"x": torch.ones(3, 1, dtype=F64)}
        return mslsq.solve(problem, start, {"both": {"d": d[:, None]}}, solver=solver).value["x"][:, 0]

    expected = torch.tensor([minimum(number)[1] for number in D.tolist()], dtype=F64)
    torch.testing.assert_close(jacfwd(end)(D), torch.diag(expected), rtol=1e-6, atol=1e-9)


@pytest.mark.sampled(1)
@PER_SOLVER
@pytest.mark.slow
def test_a_network_that_ftol_ends_has_the_derivatives_of_its_minimum(solver):
    """Of 13 weights with a ridge: linear convergence, a gradient of 1e-7 at the end."""
    some = torch.tensor([3, 11])

    def end(y, solver):
        return mslsq.least_squares(network.residual, network.start(), (y,), solver=solver).value["2.bias"].sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error", NotDifferentiableWarning)
        found = grad(lambda y: end(y, solver))(network.Y)[some, 0]
    tight = grad(lambda y: end(y, network.SOLVER))(network.Y)[some, 0]
    torch.testing.assert_close(found, tight, rtol=1e-6, atol=1e-9)
