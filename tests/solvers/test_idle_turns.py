"""Turns that no residual sees: their columns of J are rounding, and neither scale steps nor stop other variables."""

import pytest
import torch

import mslsq

F64 = torch.float64
UP = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
SOLVERS = {"lm": mslsq.LevenbergMarquardt, "dogleg": mslsq.Dogleg}


class Vertical(mslsq.CostFunction):
    """A rotation from directions of the vertical: the turn about that is free."""

    def residual(self, pose, seen):
        turned = pose if isinstance(pose, mslsq.SO3) else pose.rotation
        return turned.act(UP.to(seen)) - seen


def verticals(kind, noise, dtype=F64, seed=0, grad=False):
    """Four poses, three directions each: the problem, a start, and the least cost; with `grad`, what is seen instead
    of that."""
    generator = torch.Generator().manual_seed(seed)
    pose = mslsq.Variable("pose", kind, count=4)
    start = kind.exp(0.5 * torch.randn(4, kind.tangent_dim, dtype=F64, generator=generator))
    seen = UP + noise * torch.randn(3, 4, 3, dtype=F64, generator=generator)
    best = torch.nn.functional.normalize(seen.mean(0), dim=-1)
    least = 0.5 * float(((best - seen) ** 2).sum())
    seen = seen.reshape(12, 3).to(dtype).requires_grad_(grad)
    problem = mslsq.Problem(Vertical(pose[torch.arange(12) % 4], seen=seen))
    return problem, {"pose": start.to(dtype)}, seen if grad else least


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", [mslsq.SO3, mslsq.SE3], ids=["SO3", "SE3"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_rotations_from_a_vertical_converge(kind, noise, solver):
    problem, start, least = verticals(kind, noise)
    solution = mslsq.solve(problem, start, solver=SOLVERS[solver](native="never"))
    assert bool(solution.converged)
    assert float(solution.cost) == pytest.approx(least, rel=1e-9, abs=1e-20)
    assert int(solution.num_steps) <= 15


@pytest.mark.parametrize("linear", [mslsq.linear.QR(), mslsq.linear.SparseCholesky()], ids=["qr", "sparse"])
def test_every_storage_holds_idle_turns(linear):
    problem, start, least = verticals(mslsq.SO3, 0.1, seed=1)
    solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(linear_solver=linear, native="never"))
    assert bool(solution.converged)
    assert float(solution.cost) == pytest.approx(least, rel=1e-9)


def test_gauss_newton_and_numbers_of_float32_converge():
    problem, start, least = verticals(mslsq.SO3, 0.1, torch.float32)
    for solver in (mslsq.GaussNewton(native="never"), mslsq.LevenbergMarquardt(native="never")):
        solution = mslsq.solve(problem, start, solver=solver)
        assert bool(solution.converged)
        assert float(solution.cost) == pytest.approx(least, rel=1e-5)


def test_an_idle_turn_has_no_derivative():
    problem, start, seen = verticals(mslsq.SO3, 0.1, grad=True)
    with pytest.warns(mslsq.errors.NotDifferentiableWarning):
        value = mslsq.solve(problem, start).value["pose"].storage
    (slope,) = torch.autograd.grad(value.sum(), seen)
    assert bool(torch.isnan(slope).any())


class Held(mslsq.CostFunction):
    """One angle by a weight of 1e5, another by 1e-5: rows of their own."""

    def residual(self, pose, target):
        return (target.inverse() @ pose).log() * torch.tensor([1e5, 1.0, 1e-5], dtype=F64)


def test_an_angle_of_little_weight_is_not_idle():
    pose = mslsq.Variable("pose", mslsq.SO3)
    target = mslsq.SO3.exp(torch.tensor([[0.3, -0.2, 0.4]], dtype=F64))
    start = target[0].retract(torch.tensor([0.0, 0.0, 0.3], dtype=F64))
    solution = mslsq.solve(mslsq.Problem(Held(pose, target=target)), {"pose": start})
    assert float((target[0].inverse() @ solution.value["pose"]).log().norm()) < 1e-9


class Moved(mslsq.CostFunction):
    def residual(self, pose, point, seen):
        return pose.act(point) - seen


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_a_scene_in_other_units_turns_its_pose(unit):
    generator = torch.Generator().manual_seed(2)
    pose = mslsq.Variable("pose", mslsq.SE3)
    points = unit * torch.randn(8, 3, dtype=F64, generator=generator)
    turned = mslsq.SO3.exp(torch.tensor([0.3, -0.2, 0.4], dtype=F64))
    seen = turned.act(points) + unit * torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    problem = mslsq.Problem(Moved(pose, point=points, seen=seen))
    solution = mslsq.solve(problem, {"pose": mslsq.SE3.identity(dtype=F64)})
    assert float((turned.inverse() @ solution.value["pose"].rotation).log().norm()) < 1e-8
