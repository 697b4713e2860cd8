"""Derivatives of solutions on bounds, against central differences of the whole solve at non-zero residuals."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

import mslsq
from mslsq.adjoint.warning import NotDifferentiableWarning
from tests.differences import differences

F64 = torch.float64
T = torch.linspace(0, 3, 30, dtype=F64)
Y = 2 * torch.exp(-1.2 * T) + 0.3 + 0.05 * torch.sin(17 * T)
LOWER = torch.tensor([0.0, 0.0, 0.5], dtype=F64)
UPPER = torch.tensor([1.7, 9.0, 9.0], dtype=F64)
START = torch.tensor([1.0, 1.0, 0.55], dtype=F64)
INPUTS = {"y": (Y, LOWER, UPPER), "lower": (LOWER, Y, UPPER), "upper": (UPPER, Y, LOWER)}


def residual(p: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * T) + p[2] - y


def solution(y: Tensor, lower: Tensor, upper: Tensor, **options: Any) -> mslsq.Solution:
    return mslsq.least_squares(residual, START, (y,), bounds=(lower, upper), **options)


def of_one(name: str, **options: Any):
    """The solution as a function of one input."""
    at = {"y": Y, "lower": LOWER, "upper": UPPER}
    return lambda x: solution(**{**at, name: x}, **options).value


ADJOINTS = [mslsq.Implicit(), mslsq.Unrolled(), mslsq.Truncated(steps=60)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjoint", ADJOINTS, ids=lambda adjoint: type(adjoint).__name__)
@pytest.mark.parametrize("name", INPUTS)
def test_first_derivatives_in_data_and_bounds(name, adjoint):
    assert solution(Y, LOWER, UPPER).active.tolist() == [1, 0, -1]
    function, x = of_one(name, adjoint=adjoint), INPUTS[name][0]
    expected = differences(of_one(name), x)
    cotangent = torch.tensor([0.3, -0.7, 1.1], dtype=F64)
    for _ in range(3):  # from nothing recorded to the recorded pullback
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf) @ cotangent, leaf)
        torch.testing.assert_close(gradient, cotangent @ expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(jacfwd(function)(x), expected, rtol=1e-5, atol=1e-6)
    if not isinstance(adjoint, mslsq.Unrolled):
        torch.testing.assert_close(jacrev(function)(x), expected, rtol=1e-5, atol=1e-6)
        mapped = vmap(jacrev(function))(torch.stack([x, x + 0.01]))
        torch.testing.assert_close(mapped[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", INPUTS)
def test_second_derivatives(name):
    function, x = of_one(name), INPUTS[name][0]
    expected = differences(lambda x: jacrev(function)(x).flatten(), x, 1e-4).reshape(3, len(x), len(x))
    torch.testing.assert_close(jacfwd(jacrev(function))(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(jacrev(jacfwd(function))(x), expected, rtol=1e-4, atol=1e-4)


def test_the_cost_has_the_gradient_of_what_holds_it():
    def cost(lower: Tensor, upper: Tensor) -> Tensor:
        return solution(Y, lower, upper).cost

    found = jacrev(cost, argnums=(0, 1))(LOWER, UPPER)
    torch.testing.assert_close(found[0], differences(lambda x: cost(x, UPPER), LOWER), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], differences(lambda x: cost(LOWER, x), UPPER), rtol=1e-5, atol=1e-6)
    assert found[0][:2].abs().max() == 0 and found[1][1:].abs().max() == 0


def test_equal_bounds_hold_an_entry_and_the_derivative_goes_to_the_lower_one():
    lower, upper = LOWER.clone().requires_grad_(), torch.tensor([1.7, 9.0, 0.5], dtype=F64, requires_grad=True)
    found = solution(Y, lower, upper, project_start=True)
    assert found.active.tolist() == [1, 0, -1] and bool(found.differentiable)
    gradients = torch.autograd.grad(found.value[2], (lower, upper))
    assert gradients[0].tolist() == [0, 0, 1] and not bool(gradients[1].any())


@pytest.mark.parametrize(
    "linear", [mslsq.linear.Cholesky(), mslsq.linear.QR()], ids=lambda linear: type(linear).__name__
)
def test_gauss_newton_hessian_and_qr(linear):
    adjoint = mslsq.Implicit(hessian="gauss_newton", order=8)
    function = of_one("y", adjoint=adjoint, solver=mslsq.LevenbergMarquardt(linear_solver=linear))
    torch.testing.assert_close(jacfwd(function)(Y), differences(of_one("y"), Y), rtol=1e-4, atol=1e-5)


@mslsq.cost
def chain(a: mslsq.Euclidean, b: mslsq.Euclidean, wanted: Tensor) -> Tensor:
    return torch.stack([b[0] - a[0] - wanted[0], torch.sin(a[1] * b[0]) + b[1] - wanted[1]])


@mslsq.cost
def near(a: mslsq.Euclidean, at: Tensor) -> Tensor:
    return a - at


@pytest.mark.parametrize(
    "linear",
    [
        mslsq.linear.SparseCholesky(),
        mslsq.linear.ConjugateGradient(),
        mslsq.linear.ConjugateGradient(matrix_free=True),
    ],
    ids=lambda linear: f"{type(linear).__name__}{getattr(linear, 'matrix_free', '')}",
)
def test_sparse_systems(linear):
    count = 12
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count, lower=-0.3, upper=torch.tensor([2.0, 0.2], dtype=F64))
    generator = torch.Generator().manual_seed(3)
    wanted = torch.randn(count - 1, 2, generator=generator, dtype=F64)
    at = 0.5 * torch.randn(count, 2, generator=generator, dtype=F64)
    problem = mslsq.Problem(
        chain(x[torch.arange(count - 1)], x[torch.arange(1, count)], wanted=wanted, name="chain"),
        near(x, at=at, weight=mslsq.Scale(0.7), name="near"),
    )

    def value(wanted: Tensor, solver: Any = None) -> Tensor:
        start = {"x": torch.zeros(count, 2, dtype=F64)}
        return mslsq.solve(problem, start, data={"chain": {"wanted": wanted}}, solver=solver).value["x"]

    solver = mslsq.LevenbergMarquardt(linear_solver=linear)
    expected = jacfwd(value)(wanted)
    held = mslsq.solve(problem, {"x": torch.zeros(count, 2, dtype=F64)}).active["x"]
    assert 2 < int((held != 0).sum()) < 2 * count - 4
    leaf = wanted.clone().requires_grad_()
    cotangent = torch.randn(count, 2, generator=generator, dtype=F64)
    (gradient,) = torch.autograd.grad((value(leaf, solver) * cotangent).sum(), leaf)
    torch.testing.assert_close(gradient, (cotangent[..., None, None] * expected).sum((0, 1)), rtol=1e-5, atol=1e-6)
    direction = torch.randn(wanted.shape, generator=generator, dtype=F64)
    change = (value(wanted + 1e-6 * direction) - value(wanted - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((expected * direction).sum((-1, -2)), change, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("wanted", "differentiable"), [(0.0, False), (1e-3, True), (-1e-3, True)])
def test_a_variable_that_is_hardly_held_has_no_derivative(wanted, differentiable):
    y = torch.tensor([wanted, 1.0], dtype=F64, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mslsq.least_squares(lambda p, y: p - y, torch.ones(2, dtype=F64), (y,), bounds=(0, None))
    assert bool(found.differentiable) == differentiable
    assert [warning.category for warning in caught] == [NotDifferentiableWarning] * (not differentiable)
    (gradient,) = torch.autograd.grad(found.value.sum(), y)
    assert bool(gradient.isfinite().all()) == differentiable
    if differentiable:
        assert gradient.tolist() == [float(wanted > 0), 1.0]


def test_in_a_batch_one_that_is_hardly_held_harms_no_other():
    y = torch.tensor([[0.0, 1.0], [-0.5, 1.0], [0.5, 1.0]], dtype=F64, requires_grad=True)
    lower = torch.zeros(3, 2, dtype=F64, requires_grad=True)
    with pytest.warns(NotDifferentiableWarning, match="1 problem of 3"):
        found = mslsq.least_squares(
            lambda p, y: p - y, torch.ones(2, dtype=F64), (y,), in_dims=(None, 0), bounds=(lower, None)
        )
    gradients = torch.autograd.grad(found.value.sum(), (y, lower))
    assert bool(gradients[0][0].isnan().all()) and bool(gradients[1][0].isnan().all())
    assert gradients[0][1:].tolist() == [[0, 1], [1, 1]] and gradients[1][1:].tolist() == [[1, 0], [0, 0]]


def test_direct_loss_minimization_refuses_bounds():
    y = Y.clone().requires_grad_()
    with pytest.raises(mslsq.errors.AdjointOptionError, match="without bounds"):
        solution(y, LOWER, UPPER, adjoint=mslsq.DirectLossMinimization())


def test_a_layer_passes_gradients_to_the_bounds_of_its_variables():
    upper = torch.tensor(0.2, dtype=F64, requires_grad=True)
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=3, upper=upper)
    at = torch.tensor([[1.0, 0.0], [0.5, 0.1], [-1.0, -1.0]], dtype=F64)
    layer = mslsq.LeastSquaresLayer(mslsq.Problem(near(x, at=at, name="near")))
    found = layer({"x": torch.zeros(3, 2, dtype=F64)})
    (gradient,) = torch.autograd.grad(found.value["x"].sum(), upper)
    assert float(gradient) == 2 and found.active["x"].tolist() == [[1, 0], [1, 0], [0, 0]]


def test_the_look_for_a_derivative_stays_within_bounds(noting):
    """A free variable all but on its bound: the points that tell whether a derivative exists are next to it."""
    noted, outside = noting(lambda p: p < 0)

    def residual(p, target):
        x = noted(p)
        return torch.stack((x[0] - target, 1 + 0 * x[0]))

    target = torch.tensor(1e-17, dtype=F64, requires_grad=True)
    start = torch.tensor([0.5], dtype=F64)
    solver = mslsq.LevenbergMarquardt(trace="never", native="never")
    with pytest.warns(NotDifferentiableWarning):
        found = mslsq.least_squares(residual, start, (target,), bounds=(0.0, None), solver=solver)
    assert float(found.value.detach()) >= 0 and not bool(found.differentiable)
    assert len(outside) > 5 and not any(outside)
