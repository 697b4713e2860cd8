"""A residual on which the variables have no influence is a warning; what only looks like it is not."""

import warnings

import pytest
import torch

import mslsq
from mslsq.errors import VanishingSquaresWarning
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


T = torch.linspace(0, 1, 12, dtype=F64)
Y = 2 * torch.exp(-1.1 * T) + 0.3 * torch.cos(5 * T)
DECAY_START = torch.tensor([1.0, -1.0], dtype=F64)


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) - y


@pytest.fixture(scope="module")
def minimum():
    return mslsq.least_squares(decay, DECAY_START, args=(T, Y)).value


@pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt(max_steps=30), mslsq.Dogleg(), mslsq.GaussNewton()])
@pytest.mark.parametrize("unit", ["residual", "variables"])
@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        (F64, [1e300, 1e156, 1e140, 1e-140, 1e-156, 1e-161, 1e-165, 1e-300]),
        (torch.float32, [1e30, 1e20, 1e17, 1e-17, 1e-20, 1e-22, 1e-30]),
    ],
)
def test_numbers_whose_squares_vanish_or_overflow_never_pass_for_a_minimum(dtype, scales, unit, solver, minimum):
    """Products of such numbers are zero or infinite, and so are gradients and cosines."""
    t, y, scale = T.to(dtype), Y.to(dtype), torch.tensor(scales, dtype=dtype)
    of_residual = unit == "residual"
    start = DECAY_START.to(dtype) * (torch.ones_like(scale) if of_residual else scale)[:, None]

    def residual(p, scale):
        return scale * decay(p, t, y) if of_residual else decay(p / scale, t, y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = mslsq.least_squares(residual, start, args=(scale,), in_dims=(0, 0), solver=solver)
    value = solution.value if of_residual else solution.value / scale[:, None]
    right = ((value.to(F64) - minimum).abs() <= 1e-3).all(-1)
    assert not (solution.converged & ~right).any()
    harmless = scale.log10().abs() < (145 if dtype == F64 else 18)
    assert solution.converged[harmless & (scale < 1)].all()


def test_residuals_that_are_too_small_to_square_are_named():
    with pytest.warns(VanishingSquaresWarning, match=r"'tiny'.*1\.1e-30.*float32"):
        solution = mslsq.least_squares(tiny, torch.ones(2))
    assert mslsq.Status(int(solution.status)) is mslsq.Status.STALLED


@pytest.mark.sampled(5)
@pytest.mark.parametrize("native", ["never", "wait"])
@pytest.mark.parametrize("kind", [mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg])
@pytest.mark.parametrize(("dtype", "scale"), [(F64, 1e-165), (F64, 1e-300), (torch.float32, 1e-25)])
def test_an_amplitude_as_small_as_its_data_is_not_said_to_be_fitted_where_the_cost_is_no_number(
    dtype, scale, kind, native
):
    t = torch.linspace(0, 2, 30, dtype=dtype)
    y = scale * (2 * torch.exp(-1.3 * t) + 0.05 * torch.cos(9 * t))
    start = torch.tensor([scale, -1.0], dtype=dtype)  # the column of the rate is as small as the residual
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VanishingSquaresWarning)
        solution = mslsq.least_squares(
            lambda p, t, y: p[0] * torch.exp(p[1] * t) - y, start, args=(t, y), solver=kind(native=native)
        )
    assert not solution.converged


def tiny(x):
    return 1e-30 * torch.stack([x[0] - 2.0, x[1] - 0.5, x[0] + x[1] - 0.9])


def test_one_problem_of_a_batch_with_such_residuals_does_not_disturb_the_others():
    scale = torch.tensor([1.0, 1e-30, 1.0])
    with pytest.warns(VanishingSquaresWarning, match="in 1 of 3 problems"):
        solution = mslsq.least_squares(lambda x, s: s * (x - 3.0), torch.ones(2), args=(scale,), in_dims=(None, 0))
    assert solution.converged.tolist() == [True, False, True]
    torch.testing.assert_close(solution.value[[0, 2]], torch.full((2, 2), 3.0))


@pytest.mark.parametrize("scale", [1.0, 1e-100, 1e-170])
def test_a_solution_at_the_start_is_one_in_every_unit(scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = mslsq.least_squares(lambda x: scale * (x - 2.0), torch.full((3,), 2.0, dtype=F64))
    assert solution.converged
