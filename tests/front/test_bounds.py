"""Bounds as users state them, at every front door, and what is said where they make no sense."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

import mslsq
from mslsq.problem.errors import ProblemError, ShapeError

F64 = torch.float64
INF = math.inf
START = torch.tensor([0.5, 1.0], dtype=F64)
TARGET = torch.tensor([-1.0, 3.0], dtype=F64)


def close(value: Tensor, expected: list) -> bool:
    return torch.allclose(value, torch.tensor(expected, dtype=F64), rtol=1e-10, atol=1e-12)


def distance(p: Tensor, target: Tensor) -> Tensor:
    return p - target


@pytest.mark.parametrize(
    ("bounds", "value"),
    [
        ((0, 2), [0, 2]),
        ((0.0, None), [0, 3]),
        ((None, 2.0), [-1, 2]),
        ((-INF, 2.0), [-1, 2]),
        (([0.0, -INF], [INF, 1.5]), [0, 1.5]),
        ([np.array([0.25, 0.0]), np.float64(2)], [0.25, 2]),
        ((torch.tensor([0, 0]), torch.tensor(2.0)), [0, 2]),
        (scipy.optimize.Bounds([0.0, 0.0], [1.0, 1.0]), [0, 1]),
        (([-1.0, 1.0], [2.0, 1.0]), [-1, 1]),
    ],
)
def test_what_scipy_takes(bounds, value):
    solution = mslsq.least_squares(distance, START, (TARGET,), bounds=bounds)
    assert bool(solution.converged)
    torch.testing.assert_close(solution.value, torch.tensor(value, dtype=F64), rtol=1e-12, atol=1e-15)


def test_a_pytree_has_bounds_in_its_form():
    start = {"a": torch.tensor(0.5, dtype=F64), "pose": mslsq.SO2.identity(dtype=F64), "b": torch.ones(2, 2, dtype=F64)}

    def residual(p):
        return torch.cat([p["a"][None] + 1, p["pose"].log() - 0.5, (p["b"] - 4).flatten()])

    upper = {"a": None, "b": torch.tensor([2.0, 5.0]), "pose": None}
    solution = mslsq.least_squares(residual, start, bounds=({"a": 0, "b": None, "pose": None}, upper))
    assert float(solution.value["a"]) == 0
    torch.testing.assert_close(solution.value["b"], torch.tensor([[2, 4], [2, 4]], dtype=F64))
    assert solution.active["a"].item() == -1 and solution.active["b"].tolist() == [[1, 0], [1, 0]]
    assert solution.active["pose"].tolist() == [0]
    with pytest.raises(ProblemError, match=r"parts .*'pose'.* lower bound \['a'\]"):
        mslsq.least_squares(residual, start, bounds=({"a": 0}, None))
    with pytest.raises(ProblemError, match="manifold"):
        mslsq.least_squares(residual, start, bounds=({"a": 0, "b": None, "pose": torch.zeros(())}, None))


def test_one_axis_more_than_one_problem_has_is_one_bound_for_each():
    target = TARGET.expand(3, 2)
    lower = torch.tensor([[0.0, 0.0], [-0.5, 0.0], [-2.0, 0.0]], dtype=F64)
    solution = mslsq.least_squares(distance, START, (target,), in_dims=(None, 0), bounds=(lower, 2.0))
    assert close(solution.value, [[0, 2], [-0.5, 2], [-1, 2]])
    scalar = mslsq.least_squares(
        lambda p, y: p - y, torch.tensor(0.0, dtype=F64), (TARGET,), in_dims=(None, 0), bounds=(None, [0.0, 1.0])
    )
    assert close(scalar.value, [-1, 1])
    with pytest.raises(ShapeError, match="one for each problem"):
        mslsq.least_squares(distance, START, (target,), in_dims=(None, 0), bounds=(lower[:2], None))
    with pytest.raises(ShapeError, match=r"expected \(2,\)"):
        mslsq.least_squares(distance, START, (TARGET,), bounds=(lower, None))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((1, 0), "must not be above"),
        ((0, math.nan), "NaN"),
        ((0,), "must be a pair"),
        ("ab", "must be a pair"),
        (({"a": 0}, None), "one tensor"),
        (([0.0, 0.0, 0.0], None), "does not broadcast"),
        (("a", "b"), "must be a number"),
        ((torch.ones(2, dtype=torch.complex128), None), "real"),
    ],
)
def test_what_is_no_box_is_refused(bounds, words):
    with pytest.raises(ProblemError, match=words):
        mslsq.least_squares(distance, START, (TARGET,), bounds=bounds)


def test_a_start_outside_is_an_error_with_its_place_unless_it_is_projected():
    with pytest.raises(ProblemError, match=r"start of x0\[1\] is 1, outside of its bounds \[2, inf\].*project_start"):
        mslsq.least_squares(distance, START, (TARGET,), bounds=([0, 2], None))
    starts = START.expand(3, 2).clone()
    starts[2, 0] = -3
    with pytest.raises(ProblemError, match=r"x0\[0\] of problem 2 is -3"):
        torch.vmap(lambda x: mslsq.least_squares(distance, x, (TARGET,), bounds=(0, None)))(starts)
    solution = mslsq.least_squares(distance, START, (TARGET,), bounds=([0, 2], None), project_start=True)
    assert close(solution.value, [0, 3]) and float(solution.history.cost[0]) == 0.5 * (1.5**2 + 1)


def test_curve_fit_and_prepared_solves_have_bounds():
    t = torch.linspace(0, 1, 12, dtype=F64)
    y = 2 * t + 0.1 * torch.sin(9 * t)
    options = {"bounds": (0.0, [1.5, 1.0]), "project_start": True}
    start = torch.tensor([3.0, 0.5], dtype=F64)

    def model(p: Tensor, t: Tensor) -> Tensor:
        return p[0] * t + p[1]

    fit = mslsq.curve_fit(model, t, y, start, **options)
    expected = scipy.optimize.lsq_linear(np.stack([t.numpy(), np.ones(12)], 1), y.numpy(), (0, [1.5, 1]), tol=1e-14)
    torch.testing.assert_close(fit.value, torch.as_tensor(expected.x), rtol=1e-7, atol=1e-9)
    assert fit.solution.active.tolist() == [1, 0]
    one = mslsq.curve_fit(lambda q, t: 1.5 * t + q[0], t, y, start[1:])  # the parameter on its bound counts as known
    # For the error of y it counts as a parameter, as in the reduced chi-square.
    torch.testing.assert_close(fit.covariance[1:, 1:], one.covariance * 11 / 10, rtol=1e-9, atol=0)
    assert "at its upper bound" in fit.report() and "lower bound" not in fit.report()
    assert not fit.covariance[0].any() and not fit.covariance[:, 0].any()
    prepared = mslsq.prepared(mslsq.curve_fit, model, t, y, start, **options)
    for _ in range(3):
        torch.testing.assert_close(prepared(t, y, start).value, fit.value, rtol=1e-12, atol=0)
    solve = mslsq.prepared(distance, START, (TARGET,), bounds=(0, 2))
    for _ in range(3):
        assert close(solve(START, (TARGET,)).value, [0, 2])
        assert close(solve(START, (-TARGET,)).value, [1, 0])
    with pytest.raises(ProblemError, match="outside"):
        solve(-START, (TARGET,))


@mslsq.cost
def near(x: mslsq.Euclidean, at: Tensor) -> Tensor:
    return x - at


def test_variables_have_bounds_that_data_replace():
    x = mslsq.Variable(
        "x", mslsq.Euclidean(2), count=3, lower=[-0.5, -INF], upper=torch.tensor([[1.0], [0.1], [9.0]], dtype=F64)
    )
    at = torch.tensor([[2.0, 2.0], [0.5, -3.0], [-1.0, -1.0]], dtype=F64)
    problem = mslsq.Problem(near(x, at=at, name="near"), x.fixed([2]))
    start = {"x": torch.zeros(3, 2, dtype=F64)}
    assert close(mslsq.solve(problem, start).value["x"], [[1, 1], [0.1, -3], [0, 0]])
    replaced = mslsq.solve(problem, start, data={"bounds": {"x": (None, 1.5)}})
    assert close(replaced.value["x"], [[1.5, 1.5], [0.5, -3], [0, 0]])
    assert replaced.active["x"].tolist() == [[1, 1], [0, 0], [0, 0]]
    outside = {"x": torch.full((3, 2), 5.0, dtype=F64)}
    with pytest.raises(ProblemError, match=r"start of x\[0, 0\] is 5"):
        mslsq.solve(problem, outside)
    assert bool(mslsq.solve(problem, outside, project_start=True).converged)
    assert bool(mslsq.LeastSquaresLayer(problem, project_start=True)(outside).converged)
    with pytest.raises(ProblemError, match="'y'"):
        mslsq.solve(problem, start, data={"bounds": {"y": (None, 1.5)}})
    with pytest.raises(ShapeError, match="declared by in_dims"):
        mslsq.solve(problem, start, data={"bounds": {"x": (torch.zeros(4, 3, 2, dtype=F64), None)}})
    with pytest.raises(ProblemError, match="fixed"):
        mslsq.prepared(problem, start, {"bounds": {"x": (None, 1.5)}})


def test_manifolds_have_no_bounds_and_costs_are_not_called_so():
    with pytest.raises(ProblemError, match="not ordered"):
        mslsq.Variable("pose", mslsq.SE3, count=2, lower=0.0)
    pose = mslsq.Variable("pose", mslsq.SO2, count=2)
    problem = mslsq.Problem(mslsq.Prior(pose, target=mslsq.SO2.identity(2, dtype=F64), name="prior"))
    with pytest.raises(ProblemError, match="not ordered"):
        mslsq.solve(problem, {"pose": mslsq.SO2.identity(2, dtype=F64)}, data={"bounds": {"pose": (0.0, 1.0)}})
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
    with pytest.raises(ProblemError, match="may not be called 'bounds'"):
        mslsq.Problem(near(x, at=torch.zeros(3, 2), name="bounds"))


def test_pairs_of_every_entry_are_told_what_is_taken_here():
    residual = lambda p: p - torch.tensor([0.2, 2.4], dtype=p.dtype)  # noqa: E731
    start = torch.tensor([0.5, 2.5], dtype=torch.float64)
    for bounds, lower, upper in (
        ([(0, 1), (2, 3)], "[0, 2]", "[1, 3]"),  # as SciPy's least_squares takes it, 0 <= p[0] <= 2
        ([(0, None), (None, 3)], "[0, -inf]", "[inf, 3]"),
    ):
        with pytest.raises(mslsq.ProblemError, match=r"scipy\.optimize\.minimize") as error:
            mslsq.least_squares(residual, start, bounds=bounds)
        assert f"bounds=({lower}, {upper})" in str(error.value)
    three = torch.cat([start, start[:1]])
    with pytest.raises(mslsq.ProblemError, match=r"scipy\.optimize\.minimize"):
        mslsq.least_squares(lambda p: p - 0.5, three, bounds=((0, 1), (2, 3), (0, 1)))
    assert mslsq.least_squares(residual, start, bounds=((0, 2), (1, 3))).value.tolist() == pytest.approx([0.2, 2.4])
