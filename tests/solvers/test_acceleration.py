"""Geodesic acceleration: steps bent by the second derivative along them reach the same minima in fewer steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jacfwd, jacrev
from torch.utils.checkpoint import checkpoint

import mslsq
from mslsq.adjoint import AdjointOptionError
from mslsq.datasets.classic import PROBLEMS
from mslsq.solvers import acceleration as room
from mslsq.solvers.solver import SolverOptionError

F64 = torch.float64
BENT = mslsq.LevenbergMarquardt(acceleration=0.75)
STRAIGHT = mslsq.LevenbergMarquardt(acceleration=None)


def penalty(x):
    """Penalty II of Moré, Garbow and Hillstrom (24), n = 4: a long curved valley."""
    i = torch.arange(2, 5, dtype=x.dtype)
    y, e = (i / 10).exp() + ((i - 1) / 10).exp(), (x / 10).exp()
    low = 1e-5**0.5 * (e[1:] - torch.tensor(-0.1, dtype=x.dtype).exp())
    norm = (torch.arange(4, 0, -1, dtype=x.dtype) * x * x).sum() - 1
    return torch.cat([(x[:1] - 0.2), 1e-5**0.5 * (e[1:] + e[:-1] - y), low, norm[None]])


def bent_step(monkeypatch, residual, x0, linear: Any = "auto", **options):
    """The first step and the straight one that it was, with the damping, as the solver has them."""
    seen = []

    def noting(proposal, *rest):
        bent = original(proposal, *rest)
        seen.append((proposal.step[0], proposal.damping[0], bent[0].step[0]))
        return bent

    original = room.accelerated
    monkeypatch.setattr("mslsq.solvers.step.accelerated", noting)
    solver = mslsq.LevenbergMarquardt(
        1, acceleration=1e9, trace="never", native="never", initial_damping=0.1, linear_solver=linear
    )
    mslsq.least_squares(residual, x0, solver=solver, **options)
    return seen[0]


def expected_bend(residual, x0, v, damping, weight=None):
    """½a from Hessians of every entry of the residual."""
    second = torch.einsum("rij,i,j->r", hessian(residual)(x0), v, v)
    jacobian = jacfwd(residual)(x0)
    weighted = second if weight is None else weight * second
    normal = jacobian if weight is None else weight.sqrt()[:, None] * jacobian
    return -0.5 * torch.linalg.solve(normal.T @ normal + torch.diag(damping), jacobian.T @ weighted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", [F.silu, F.mish, F.glu], ids=lambda function: function.__name__)
@pytest.mark.parametrize("inside", [False, True], ids=["plain", "inside of grad"])
def test_operators_without_a_forward_derivative_of_their_forward_derivative_are_bent(monkeypatch, function, inside):
    """`silu_backward` has no rule in forward mode: the derivative there is one of reverse mode. `glu` has none."""

    def residual(x):
        energy = lambda q: function(q).square().sum()  # noqa: E731
        value = grad(energy)(x) if inside else function(x)
        return torch.cat([value, x - 0.5])

    x0 = torch.tensor([0.3, -0.7, 0.5, 1.2], dtype=F64)
    v, damping, bent = bent_step(monkeypatch, residual, x0)
    h = 1e-3
    second = (residual(x0 + h * v) - 2 * residual(x0) + residual(x0 - h * v)) / h**2
    jacobian = jacrev(residual)(x0)
    expected = v - 0.5 * torch.linalg.solve(jacobian.T @ jacobian + torch.diag(damping), jacobian.T @ second)
    tolerance = 0.3 * (bent - v).norm() if function is F.glu else 1e-5  # a difference is bent by a part of r‴
    assert (bent - expected).norm() <= tolerance


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [F.silu, F.mish], ids=lambda function: function.__name__)
def test_native_programs_of_such_operators_are_compared_and_taken(function):
    def residual(x, scale):
        return torch.cat([0.1 * grad(lambda q: function(scale * q).square().sum())(x), x - 0.5])

    x0 = torch.tensor([0.3, -0.7], dtype=F64)
    solutions, slopes = [], []
    for native in ("never", "wait"):
        solver = mslsq.LevenbergMarquardt(native=native)
        scale = torch.tensor([1.0, 0.9], dtype=F64, requires_grad=True)
        solutions.append(mslsq.least_squares(residual, x0, (scale,), solver=solver).value)
        slopes.append(torch.autograd.grad(solutions[-1].sum(), scale)[0])
    torch.testing.assert_close(*solutions, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("linear", ["auto", mslsq.linear.QR()], ids=["cholesky", "qr"])
@pytest.mark.parametrize("name", ["osborne_1", "bard", "rosenbrock"])
def test_the_bend_is_the_one_that_hessians_give(monkeypatch, name, linear):
    problem = PROBLEMS[name]
    v, damping, bent = bent_step(monkeypatch, problem.residual, problem.start, linear)
    expected = expected_bend(problem.residual, problem.start, v, damping)
    torch.testing.assert_close(bent - v, expected, rtol=1e-6, atol=1e-9 * float(v.abs().max()))


def test_a_residual_that_recomputes_itself_is_bent_as_one_that_does_not(monkeypatch):
    """A backward pass takes no saved tensor hooks, those of `checkpoint`: native="wait" and creeping fits raised."""

    def residual(x):
        return torch.cat([checkpoint(lambda a: torch.exp(-a[:1] * a) - 0.3, x, use_reentrant=False), x - 0.5])

    def plain(x):
        return torch.cat([torch.exp(-x[:1] * x) - 0.3, x - 0.5])

    x0 = torch.tensor([0.8, 0.4], dtype=F64)
    v, damping, bent = bent_step(monkeypatch, residual, x0)
    torch.testing.assert_close(bent - v, expected_bend(plain, x0, v, damping), rtol=1e-9, atol=1e-12)
    found = [mslsq.least_squares(residual, x0, solver=replace(BENT, native=native)) for native in ("never", "wait")]
    torch.testing.assert_close(found[0].value, found[1].value)


def test_without_forward_mode_a_difference_gives_nearly_the_same_bend(monkeypatch):
    problem = PROBLEMS["osborne_1"]
    v, damping, bent = bent_step(monkeypatch, problem.residual, problem.start, jac=jacfwd(problem.residual))
    expected = expected_bend(problem.residual, problem.start, v, damping)
    torch.testing.assert_close(bent - v, expected, rtol=0.1, atol=0.05 * float(expected.abs().max()))


def test_a_valley_takes_a_third_of_the_steps():
    start = torch.full((4,), 0.5, dtype=F64)
    straight, bent = (mslsq.least_squares(penalty, start, solver=solver) for solver in (STRAIGHT, BENT))
    assert bool(bent.converged)
    assert 2 * float(bent.cost) == pytest.approx(9.37629301e-6, rel=1e-6)  # the authors' minimum
    assert 3 * int(bent.num_steps) <= int(straight.num_steps)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", list(PROBLEMS)[::3])
def test_a_listed_minimum_of_the_classic_problems_is_reached(name):
    problem = PROBLEMS[name]
    solution = mslsq.least_squares(problem.residual, problem.start, solver=BENT)
    squares = 2 * float(solution.cost)
    start = float(problem.residual(problem.start).square().sum())
    assert any(abs(squares - least) <= max(1e-5 * least, 1e-12 * start) for least in problem.minima), squares


@pytest.mark.slow
def test_a_batch_goes_as_its_problems_go_alone():
    starts = torch.tensor([[0.5] * 4, [5.0] * 4, [torch.nan] * 4, [-0.3, 0.2, 0.9, 2.0]], dtype=F64)
    batch = mslsq.least_squares(penalty, starts, in_dims=0, solver=BENT)
    mapped = torch.func.vmap(lambda x: mslsq.least_squares(penalty, x, solver=BENT).value)(starts)
    assert not bool(batch.converged[2])
    for k in (0, 1, 3):
        alone = mslsq.least_squares(penalty, starts[k], solver=BENT)
        assert abs(int(batch.num_steps[k]) - int(alone.num_steps)) <= 1
        torch.testing.assert_close(batch.cost[k], alone.cost, rtol=1e-6, atol=0)
        torch.testing.assert_close(mapped[k], batch.value[k], rtol=1e-5, atol=1e-7)


def test_float32_arrives_as_well():
    solution = mslsq.least_squares(PROBLEMS["rosenbrock"].residual, torch.tensor([-1.2, 1.0]), solver=BENT)
    torch.testing.assert_close(solution.value, torch.ones(2), rtol=1e-4, atol=1e-4)


def test_a_whole_solve_as_a_native_program_does_not_drop_it():
    start = torch.full((4,), 0.5, dtype=F64)
    waiting = mslsq.LevenbergMarquardt(acceleration=0.75, native="wait")
    never = mslsq.LevenbergMarquardt(acceleration=0.75, native="never")
    steps = [int(mslsq.least_squares(penalty, start, solver=solver).num_steps) for solver in (never, waiting, waiting)]
    assert max(steps) <= steps[0] + 1 < int(mslsq.least_squares(penalty, start, solver=STRAIGHT).num_steps)


def test_bounds_are_kept_and_the_minimum_within_them_is_found():
    problem = PROBLEMS["rosenbrock"]
    for upper in (torch.tensor([0.8, 2.0]), torch.tensor([2.0, 2.0])):
        upper = upper.to(F64)
        bounds = (torch.full((2,), -2.0, dtype=F64), upper)

        def residual(x, upper):  # there is nothing outside
            return torch.where((x >= -2).all() & (x <= upper).all(), problem.residual(x), torch.nan)

        bent, straight = (
            mslsq.least_squares(residual, problem.start, (upper,), bounds=bounds, solver=solver)
            for solver in (BENT, STRAIGHT)
        )
        assert bool(bent.converged)
        torch.testing.assert_close(bent.value, straight.value, rtol=1e-6, atol=1e-6)
        assert torch.equal(bent.active, straight.active)


def test_the_weights_of_a_robust_loss_weigh_the_acceleration(monkeypatch):
    problem = PROBLEMS["bard"]
    r = problem.residual(problem.start)
    weight = 1 / (1 + (r / 0.5) ** 2)  # ρ' of Cauchy
    v, _, bent = bent_step(monkeypatch, problem.residual, problem.start, loss=mslsq.Cauchy(0.5))
    second = torch.einsum("rij,i,j->r", hessian(problem.residual)(problem.start), v, v)
    direction = -jacfwd(problem.residual)(problem.start).T @ (weight * second)
    assert float((bent - v) @ direction) > 0  # A⁻¹ is positive definite
    solution = mslsq.least_squares(problem.residual, problem.start, loss=mslsq.Cauchy(0.5), solver=BENT)
    plain = mslsq.least_squares(problem.residual, problem.start, loss=mslsq.Cauchy(0.5))
    torch.testing.assert_close(solution.value, plain.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("linear", ["auto", mslsq.linear.SparseCholesky(), mslsq.linear.ConjugateGradient()])
def test_a_pose_graph_ends_at_the_minimum_of_straight_steps(linear):
    i = torch.arange(11)
    generator = torch.Generator().manual_seed(0)
    truth = mslsq.SE2.from_xyt(torch.stack((torch.arange(12.0), torch.zeros(12), 0.3 * torch.arange(12.0)), -1).to(F64))
    start = truth.retract(0.3 * torch.randn(12, 3, dtype=F64, generator=generator))
    pose = mslsq.Variable("pose", mslsq.SE2, count=12)
    noise = 0.05 * torch.randn(11, 3, dtype=F64, generator=generator)
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[i + 1], measured=(truth[:-1].inverse() @ truth[1:]).retract(noise)),
        mslsq.Between(pose[[0, 3]], pose[[11, 9]], measured=truth[[0, 3]].inverse() @ truth[[11, 9]], name="loops"),
        pose.fixed([0]),
    )
    solutions = [
        mslsq.solve(problem, {"pose": start}, solver=mslsq.LevenbergMarquardt(linear_solver=linear, acceleration=a))
        for a in (None, 0.75)
    ]
    assert all(bool(s.converged) for s in solutions)
    torch.testing.assert_close(solutions[1].cost, solutions[0].cost, rtol=1e-8, atol=1e-12)
    assert int(solutions[1].num_steps) <= int(solutions[0].num_steps) + 2


def test_implicit_derivatives_are_those_of_straight_steps():
    t = torch.linspace(0, 2, 20, dtype=F64)
    y = 2 * torch.exp(-1.3 * t) + 0.1 * torch.sin(9 * t)

    def fitted(y, solver):
        start = torch.tensor([1.0, -0.5], dtype=F64)
        return mslsq.least_squares(lambda p, y: p[0] * torch.exp(p[1] * t) - y, start, (y,), solver=solver).value

    bent, straight = (torch.func.jacrev(lambda y, s=solver: fitted(y, s))(y) for solver in (BENT, STRAIGHT))
    torch.testing.assert_close(bent, straight, rtol=1e-6, atol=1e-8)


def test_unrolled_refuses_with_a_sentence():
    y = torch.zeros(2, dtype=F64, requires_grad=True)
    with pytest.raises(AdjointOptionError, match="acceleration"):
        mslsq.least_squares(
            lambda x, y: PROBLEMS["rosenbrock"].residual(x) - y,
            PROBLEMS["rosenbrock"].start,
            (y,),
            solver=BENT,
            adjoint=mslsq.Unrolled(),
        )


@pytest.mark.parametrize("most", [0.0, -1.0, float("nan"), "0.75"])
def test_what_is_no_number_above_zero_is_refused(most):
    with pytest.raises(SolverOptionError, match="acceleration"):
        mslsq.LevenbergMarquardt(acceleration=most)


def test_solvers_with_and_without_share_no_graph():
    assert BENT.key != STRAIGHT.key


@pytest.mark.parametrize("name", ["one variable", "a variable for each block"])
def test_blocks_of_a_problem_are_bent_as_rows_of_one_residual(name):
    """Blocks that share their variable, and blocks that do not, alone and as a batch of problems."""
    t = torch.linspace(0, 2, 12, dtype=F64)
    y = 3 * torch.exp(-1.7 * t) + 0.3 + 0.05 * torch.sin(9 * t)
    start, shared = torch.tensor([1.0, 0.5, 0.0], dtype=F64), name == "one variable"
    p = mslsq.Variable("p", mslsq.Euclidean(3), count=None if shared else 2)

    @mslsq.cost
    def decay(p, t, y):
        return p[0] * torch.exp(-p[1] * t) + p[2] - y

    half = 1 if shared else 2  # two fits, of every other point each
    blocks = p if shared else p[torch.arange(12) % 2]
    problem = mslsq.Problem(decay(blocks, t=t, y=y))
    values = start if shared else start.expand(2, 3).contiguous()
    for solver in (BENT, STRAIGHT):
        expected = [
            mslsq.least_squares(lambda p, t, y: p[0] * torch.exp(-p[1] * t) + p[2] - y, start, (t[k::half], y[k::half]))
            for k in range(half)
        ]
        alone = mslsq.solve(problem, {"p": values}, solver=solver)
        batch = mslsq.solve(
            problem, {"p": torch.stack([values, 1.5 * values])}, in_dims=({"p": 0}, None), solver=solver
        )
        found = alone.value["p"].reshape(-1, 3)
        torch.testing.assert_close(found, torch.stack([e.value for e in expected]), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(batch.value["p"][0], alone.value["p"], rtol=1e-7, atol=1e-8)
        assert abs(int(batch.num_steps[0]) - int(alone.num_steps)) <= 1
        if shared:
            row = mslsq.least_squares(lambda p: p[0] * torch.exp(-p[1] * t) + p[2] - y, start, solver=solver)
            # One row of three unknowns is differentiated in reverse: a difference, off by a tenth of r'''.
            torch.testing.assert_close(alone.history.cost[:4], row.history.cost[:4], rtol=0.1, atol=1e-6)
            assert abs(int(alone.num_steps) - int(row.num_steps)) <= 1
