"""Derivatives of a minimum under constraints: closed forms, and central differences of the whole solve."""

import warnings

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

import mslsq
from mslsq.adjoint.warning import NotDifferentiableWarning
from tests.differences import differences

DOUBLE = torch.float64


class Target(mslsq.CostFunction):
    def residual(self, x, target):
        return torch.cat((x - target, 0.3 * torch.sin(x[:1] * x[1:])))


class OnCircle(mslsq.CostFunction):
    def residual(self, x, radius):
        return (x * x).sum()[None] - radius**2


class Below(mslsq.CostFunction):
    def residual(self, x, n, d):
        return ((x * n).sum() + 0.1 * x[0] ** 2 - d)[None]


X = mslsq.Variable("x", mslsq.Euclidean(3))
PROBLEM = mslsq.Problem(
    Target(X, target=torch.zeros(1, 3, dtype=DOUBLE)),
    mslsq.Equality(OnCircle(X, radius=torch.ones(1, dtype=DOUBLE), name="circle")),
    mslsq.Inequality(Below(X, n=torch.zeros(1, 3, dtype=DOUBLE), d=torch.zeros(1, dtype=DOUBLE))),
)
START = {"x": torch.tensor([0.3, -0.4, 0.2], dtype=DOUBLE)}
ACTIVE = torch.tensor([2.0, 1.0, -0.5, 0.2, 1.0, 0.1, 1.3, 0.1], dtype=DOUBLE)
"""Target, normal, radius and distance: the inequality holds the solution back..."""
FREE = torch.tensor([2.0, 1.0, -0.5, 0.2, 1.0, 0.1, 1.3, 5.0], dtype=DOUBLE)
"""... and here it does not."""


def solved(theta, problem=PROBLEM, start=START, **options):
    data = {
        "target": {"target": theta[None, :3]},
        "below": {"n": theta[None, 3:6], "d": theta[7:8]},
        "circle": {"radius": theta[6:7]},
    }
    return mslsq.solve(problem, start, data, **options)


def outputs(theta, **options):
    """The solution, its cost and its multipliers in one vector."""
    solution = solved(theta, **options)
    multipliers = [solution.multipliers[name].reshape(-1) for name in ("circle", "below")]
    return torch.cat([solution.value["x"], solution.cost[None], *multipliers])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("theta", [ACTIVE, FREE], ids=["active", "free"])
@pytest.mark.parametrize("derivative", [jacrev, jacfwd], ids=["reverse", "forward"])
def test_the_derivative_is_that_of_the_whole_solve(theta, derivative):
    found = derivative(outputs)(theta)
    expected = differences(lambda theta: outputs(theta, adjoint=mslsq.Detached()), theta)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("theta", [ACTIVE, FREE], ids=["active", "free"])
def test_backward_is_the_derivative_under_transforms(theta):
    leaf = theta.clone().requires_grad_()
    cotangent = torch.arange(1.0, 7.0, dtype=DOUBLE)
    (outputs(leaf) * cotangent).sum().backward()
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad, cotangent @ jacrev(outputs)(theta), atol=1e-11)


@pytest.mark.slow
def test_second_derivatives_are_differences_of_first_ones():
    found = hessian(lambda theta: outputs(theta).square().sum())(ACTIVE)
    expected = differences(lambda theta: jacrev(lambda t: outputs(t).square().sum())(theta), ACTIVE)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_under_vmap_every_problem_has_its_own():
    """One active, one free, in one batch: each as by itself."""
    thetas = torch.stack([ACTIVE, FREE, ACTIVE + 0.01])
    together = vmap(jacrev(outputs))(thetas)
    alone = torch.stack([jacrev(outputs)(theta) for theta in thetas])
    assert torch.allclose(together, alone, atol=1e-9)


@pytest.mark.slow
def test_by_in_dims_too():
    thetas = torch.stack([ACTIVE, FREE, ACTIVE + 0.01]).requires_grad_()
    data = {
        "target": {"target": thetas[:, None, :3]},
        "below": {"n": thetas[:, None, 3:6], "d": thetas[:, 7:8]},
        "circle": {"radius": thetas[:, 6:7]},
    }
    dims = ({"x": None}, {"target": {"target": 0}, "below": {"n": 0, "d": 0}, "circle": {"radius": 0}})
    solution = mslsq.solve(PROBLEM, START, data, in_dims=dims)
    cotangent = torch.randn(3, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((solution.value["x"] * cotangent).sum(), thetas)
    for number in range(3):
        expected = cotangent[number] @ jacrev(outputs)(thetas[number].detach())[:3]
        assert torch.allclose(gradient[number], expected, atol=1e-9)


def test_the_multiplier_is_the_derivative_of_the_cost():
    """The envelope theorem: d cost / d d = −λ of n·x ≤ d."""
    solution = solved(ACTIVE)
    slope = jacrev(lambda theta: solved(theta).cost)(ACTIVE)
    assert float(slope[7]) == pytest.approx(-float(solution.multipliers["below"]), rel=1e-7)


@pytest.mark.slow
def test_a_sparse_problem_has_the_derivatives_of_the_dense_one():
    class Smooth(mslsq.CostFunction):
        def residual(self, a, b, stiffness):
            return stiffness * (b - a)

    class Circle(mslsq.CostFunction):
        def residual(self, a, radius):
            return (a * a).sum()[None] - radius**2

    count = 6
    p = mslsq.Variable("p", mslsq.Euclidean(2), count)
    i = torch.arange(count)
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(count, 2, dtype=DOUBLE, generator=generator)
    problem = mslsq.Problem(
        Smooth(p[i[:-1]], p[i[1:]], stiffness=torch.ones(count - 1, 1, dtype=DOUBLE)),
        mslsq.Prior(p[i], target=near),
        mslsq.Equality(Circle(p[i[::3]], radius=torch.ones(2, 1, dtype=DOUBLE))),
    )

    def found(theta, linear_solver):
        data = {"smooth": {"stiffness": theta[: count - 1, None]}, "circle": {"radius": theta[count - 1 :, None]}}
        solver = mslsq.LevenbergMarquardt(linear_solver=linear_solver)
        return mslsq.solve(problem, {"p": near}, data, solver=solver).value["p"]

    theta = torch.linspace(0.5, 1.5, count + 1, dtype=DOUBLE)
    sparse = jacrev(found)(theta, mslsq.linear.SparseCholesky())
    dense = jacrev(found)(theta, mslsq.linear.Cholesky())
    assert torch.allclose(sparse, dense, atol=1e-8)
    plain = differences(lambda theta: found(theta, mslsq.linear.Cholesky()), theta)
    assert torch.allclose(dense, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_bounds_and_constraints_together():
    x = mslsq.Variable("x", mslsq.Euclidean(3), upper=torch.tensor([0.9, torch.inf, torch.inf], dtype=DOUBLE))
    problem = mslsq.Problem(
        Target(x, target=torch.zeros(1, 3, dtype=DOUBLE)),
        mslsq.Equality(OnCircle(x, radius=torch.ones(1, dtype=DOUBLE), name="circle")),
        mslsq.Inequality(Below(x, n=torch.zeros(1, 3, dtype=DOUBLE), d=torch.zeros(1, dtype=DOUBLE))),
    )
    solution = solved(ACTIVE, problem)
    assert bool(solution.converged) and int(solution.active["x"][0]) == 1
    found = jacrev(lambda theta: outputs(theta, problem=problem))(ACTIVE)
    plain = lambda theta: outputs(theta, problem=problem, adjoint=mslsq.Detached())  # noqa: E731
    assert torch.allclose(found, differences(plain, ACTIVE), rtol=1e-5, atol=1e-6)


def test_a_constraint_that_is_just_met_has_no_derivative():
    """The unconstrained solution lies on the boundary: data decide on which side it is."""
    free = solved(FREE)
    x = free.value["x"].detach()
    touching = FREE.clone()
    touching[7] = (x * touching[3:6]).sum() + 0.1 * x[0] ** 2
    touching.requires_grad_()
    with pytest.warns(NotDifferentiableWarning, match="holds nothing back"):
        solution = solved(touching)
    assert bool(solution.converged) and not bool(solution.differentiable)
    (gradient,) = torch.autograd.grad(solution.value["x"].sum(), touching)
    assert torch.isnan(gradient).any()


def test_constraints_that_say_the_same_have_no_derivative():
    x = mslsq.Variable("x", mslsq.Euclidean(3))
    radius = torch.ones(1, dtype=DOUBLE)
    problem = mslsq.Problem(
        Target(x, target=torch.zeros(1, 3, dtype=DOUBLE)),
        mslsq.Equality(OnCircle(x, radius=radius, name="circle")),
        mslsq.Equality(OnCircle(x, radius=radius, name="again")),
    )
    target = ACTIVE[None, :3].clone().requires_grad_()
    data = {"target": {"target": target}}
    with pytest.warns(NotDifferentiableWarning, match="depend on each other"):
        solution = mslsq.solve(problem, START, data)
    assert bool(solution.converged) and not bool(solution.differentiable)


def test_in_a_batch_one_without_derivative_harms_no_other():
    touching = FREE.clone()
    x = solved(FREE).value["x"].detach()
    touching[7] = (x * touching[3:6]).sum() + 0.1 * x[0] ** 2
    thetas = torch.stack([ACTIVE, touching, FREE])
    radius = torch.tensor([1.3], dtype=DOUBLE, requires_grad=True)  # shared by all of them
    data = {
        "target": {"target": thetas[:, None, :3]},
        "below": {"n": thetas[:, None, 3:6], "d": thetas[:, 7:8]},
        "circle": {"radius": radius},
    }
    dims = ({"x": None}, {"target": {"target": 0}, "below": {"n": 0, "d": 0}, "circle": {"radius": None}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = mslsq.solve(PROBLEM, START, data, in_dims=dims)
        (gradient,) = torch.autograd.grad(solution.value["x"].sum(), radius)
    assert solution.differentiable.tolist() == [True, False, True]
    expected = sum(jacrev(outputs)(theta)[:3, 6].sum() for theta in (ACTIVE, FREE))
    assert float(gradient) == pytest.approx(float(expected), abs=1e-8)


@pytest.mark.parametrize("adjoint", [mslsq.Unrolled(), mslsq.Truncated(2), mslsq.DirectLossMinimization(1e-3)])
def test_other_adjoints_say_that_they_do_not_go_through_rounds(adjoint):
    with pytest.raises(ValueError, match="Implicit"):
        solved(ACTIVE, adjoint=adjoint)


@pytest.mark.slow
def test_a_layer_trains_through_constraints():
    """The radius of the circle is learned from where the solution should be."""
    radius = torch.nn.Parameter(torch.tensor([0.7], dtype=DOUBLE))
    circle = OnCircle(X, radius=radius, name="circle")
    problem = mslsq.Problem(Target(X, target=ACTIVE[None, :3]), mslsq.Equality(circle))
    layer = mslsq.LeastSquaresLayer(problem)
    wanted = mslsq.solve(problem, START, {"circle": {"radius": torch.tensor([1.4], dtype=DOUBLE)}}).value["x"].detach()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(120):
        optimizer.zero_grad()
        (layer(START).value["x"] - wanted).square().sum().backward()
        optimizer.step()
    assert float(radius.detach().abs()) == pytest.approx(1.4, abs=1e-2)


@pytest.mark.parametrize("trace", ["always", "auto"])
def test_native_programs_and_recorded_graphs_change_no_derivative(trace):
    """The Newton steps before take the same gradients: what they record, a derivative may not be taken of."""
    plain = jacrev(lambda theta: outputs(theta, solver=mslsq.LevenbergMarquardt(native="never", trace="never")))(ACTIVE)
    solver = mslsq.LevenbergMarquardt(native="wait", trace=trace)
    for _ in range(3):
        theta = ACTIVE.clone().requires_grad_()
        found = torch.autograd.grad(outputs(theta, solver=solver).sum(), theta)[0]
        assert torch.allclose(found, plain.sum(0), atol=1e-9)
