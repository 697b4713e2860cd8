"""A residual on which the variables have no influence is a warning; what only looks like it is not."""

import warnings

import pytest
import torch

import mslsq
from mslsq.linear import QR, SparseCholesky

F64 = torch.float64
START = torch.tensor([1.0, 2.0], dtype=F64)


def cut_off(x):
    return (x - 3).detach()


def rounded(x):
    return x.round() - 3


def symmetric(x):
    return x**2 - 4


@pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt(), mslsq.Dogleg(), mslsq.GaussNewton()])
@pytest.mark.parametrize("residual", [cut_off, rounded])
def test_a_residual_that_lets_no_derivative_through_is_named(residual, solver):
    with pytest.warns(mslsq.NoInfluenceWarning, match=f"'{residual.__name__}'.*detach"):
        mslsq.least_squares(residual, START, solver=solver)


@pytest.mark.parametrize("linear", ["auto", QR(), SparseCholesky()])
def test_by_every_form_of_the_linear_system(linear):
    with pytest.warns(mslsq.NoInfluenceWarning, match="detach"):
        mslsq.least_squares(cut_off, START, solver=mslsq.LevenbergMarquardt(linear_solver=linear))


def test_a_stationary_start_is_told_apart():
    with pytest.warns(mslsq.NoInfluenceWarning, match="symmetry"):
        mslsq.least_squares(symmetric, torch.zeros(2, dtype=F64))


def test_one_problem_of_a_batch_is_counted():
    starts = torch.tensor([[1.0], [0.0], [-1.0]], dtype=F64)
    with pytest.warns(mslsq.NoInfluenceWarning, match="1 of 3 problems"):
        solution = mslsq.least_squares(symmetric, starts, in_dims=0)
    assert torch.allclose(solution.value[[0, 2], 0].abs(), torch.tensor([2.0, 2.0], dtype=F64))


def test_a_loss_that_rejects_everything_is_told_apart():
    with pytest.warns(mslsq.NoInfluenceWarning, match="loss"):
        mslsq.least_squares(lambda x: x - 100, START, loss=mslsq.Tukey(1.0))


def test_every_cost_of_a_problem_is_named():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(mslsq.cost(cut_off)(x, name="first"), mslsq.cost(rounded)(x, name="second"))
    with pytest.warns(mslsq.NoInfluenceWarning, match="'first', 'second'"):
        mslsq.solve(problem, {"x": START})


HARMLESS = {
    "a start at a zero": (lambda x: x**2, torch.zeros(2, dtype=F64)),
    "a start at the solution": (lambda x: x - START, START),
    "an unused variable": (lambda x: x[:1] - 3, START),
    "an inactive hinge": (lambda x: torch.cat((torch.relu(x - 5), x[:1] - 2)), START),
    "one column zero at the start": (
        lambda x: torch.stack((x[0] ** 2 + x[1] - 3, x[1] - 1)),
        torch.zeros(2, dtype=F64),
    ),
    "no weight at all": (lambda x: 0 * (x - 3), START),
    "data that are not finite": (lambda x: x * torch.nan, START),
}


@pytest.mark.parametrize("case", HARMLESS)
@pytest.mark.parametrize("trace", ["never", "always"])
def test_no_false_alarm(case, trace):
    residual, start = HARMLESS[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error", mslsq.NoInfluenceWarning)
        mslsq.least_squares(residual, start, solver=mslsq.LevenbergMarquardt(trace=trace))


def test_nothing_free_is_no_lack_of_influence():
    x = mslsq.Variable("x", mslsq.Euclidean(2), 1)
    problem = mslsq.Problem(mslsq.Prior(x[[0]], target=torch.zeros(1, 2, dtype=F64)), x.fixed([0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", mslsq.NoInfluenceWarning)
        mslsq.solve(problem, {"x": START[None]})


def test_without_early_stopping_the_device_is_not_asked():
    with warnings.catch_warnings():
        warnings.simplefilter("error", mslsq.NoInfluenceWarning)
        mslsq.least_squares(cut_off, START, solver=mslsq.LevenbergMarquardt(max_steps=3, early_stop=False))
