"""How well the linear system behind a derivative was solved is reported, and an unconverged one gives no number."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

import mslsq
from mslsq.adjoint.warning import UnconvergedAdjointWarning
from tests.adjoint import test_transforms as matrix

F64 = torch.float64


@dataclass(frozen=True)
class Sloppy(mslsq.linear.Cholesky):
    """A linear solver whose factor solves only nearly: as an iterative one that has run out of iterations."""

    error: float = 1e-2

    def solve_factored(self, factor, rhs):
        return (1 + self.error) * super().solve_factored(factor, rhs)


def fit(y, linear, adjoint=None):
    solver = mslsq.LevenbergMarquardt(linear_solver=linear, **matrix.TIGHT)
    return mslsq.least_squares(matrix.decay, matrix.START, (matrix.T, y), solver=solver, adjoint=adjoint)


@pytest.mark.parametrize("linear", [mslsq.linear.Cholesky(), mslsq.linear.QR()])
def test_direct_solvers_report_rounding(linear):
    solution = fit(matrix.Y.clone().requires_grad_(), linear)
    assert float(solution.adjoint_residual) < 1e-12
    assert solution.differentiable


def test_iterative_solvers_report_what_they_have_reached():
    measured = matrix.SE2_MEASURED.storage.clone().requires_grad_()
    start = {"pose": mslsq.SE2.exp(torch.zeros(5, 3, dtype=F64))}
    linear = mslsq.linear.ConjugateGradient(derivatives="iterative")
    solver = mslsq.LevenbergMarquardt(linear_solver=linear)
    solution = mslsq.solve(matrix.SE2_LOOP, start, {"between": {"measured": measured}}, solver=solver)
    assert 0 < float(solution.adjoint_residual) < 1e-9
    assert solution.differentiable


def test_one_figure_per_problem_also_under_vmap():
    y = torch.stack([matrix.Y, matrix.Y + 0.1])
    solution = mslsq.least_squares(matrix.decay, matrix.START, (matrix.T, y.requires_grad_()), in_dims=(None, None, 0))
    assert solution.adjoint_residual.shape == (2,)

    def residual_of(y):
        return jacrev(lambda y: (fit(y, "auto").value, fit(y, "auto").adjoint_residual), has_aux=False)(y)

    derivative, of_residual = vmap(residual_of)(y.detach())
    assert derivative.shape == (2, 3, 12)
    assert not of_residual.any()  # a figure, not a function of the data


def test_without_derivatives_nothing_is_reported():
    assert torch.isnan(fit(matrix.Y, "auto").adjoint_residual)


@pytest.mark.parametrize("failed", ["nan", "zero"])
def test_an_unconverged_system_gives_a_warning_and_no_derivative(failed):
    y = matrix.Y.clone().requires_grad_()
    with pytest.warns(UnconvergedAdjointWarning, match=r"relative residual of 1\.0e-02 only.*adjoint_residual"):
        solution = fit(y, Sloppy(), mslsq.Implicit(failed=failed))
    assert solution.converged
    assert not solution.differentiable
    assert float(solution.adjoint_residual) == pytest.approx(1e-2, rel=1e-6)
    solution.value.sum().backward()
    assert torch.isnan(y.grad).all() if failed == "nan" else not y.grad.any()
    with pytest.warns(UnconvergedAdjointWarning):
        forward = jacfwd(lambda y: fit(y, Sloppy(), mslsq.Implicit(failed=failed)).value)(matrix.Y)
    assert torch.isnan(forward).all() if failed == "nan" else not forward.any()


def test_a_solver_that_gives_up_gets_one_warning_with_its_figure(monkeypatch):
    """One iteration a round cannot tell whether the Hessian is definite: nothing is said about gauges."""
    linear = mslsq.linear.ConjugateGradient(derivatives="iterative")
    monkeypatch.setattr(mslsq.linear.ConjugateGradient, "_most_iterations", lambda self, columns: 1)
    start = {"pose": mslsq.SE2.exp(torch.zeros(5, 3, dtype=F64))}
    measured = matrix.SE2_MEASURED.storage.clone().requires_grad_()
    solver = mslsq.LevenbergMarquardt(linear_solver=linear)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = mslsq.solve(matrix.SE2_LOOP, start, {"between": {"measured": measured}}, solver=solver)
    assert [type(warning.message) for warning in caught] == [UnconvergedAdjointWarning]
    assert solution.converged
    assert not solution.differentiable
    assert 1e-9 < float(solution.adjoint_residual) < torch.inf
    solution.value["pose"].storage.sum().backward()
    assert torch.isnan(measured.grad).all()


def test_a_nearly_converged_system_is_taken_with_its_figure():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = fit(matrix.Y.clone().requires_grad_(), Sloppy(error=1e-5))
    assert solution.differentiable
    assert float(solution.adjoint_residual) == pytest.approx(1e-5, rel=1e-5)
