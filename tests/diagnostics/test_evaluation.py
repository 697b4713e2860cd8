"""Cost and residuals of a problem at given values, against the same written out."""

import pytest
import torch
from torch import Tensor

import mslsq

F64 = torch.float64


class Line(mslsq.CostFunction):
    def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([p[0] + p[1] * t - y, 0.1 * p[0]])


class SumsTo(mslsq.CostFunction):
    def residual(self, p: Tensor, total: Tensor) -> Tensor:
        return p.sum()[None] - total


T = torch.linspace(0, 1, 7, dtype=F64)
Y = 2.0 - T + torch.tensor([0, 0, 3.0, 0, 0, 0, 0], dtype=F64)
P = torch.tensor([0.5, 0.25], dtype=F64)


def line(loss=None, weight=2.0):
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    return p, Line(p, t=T, y=Y, weight=weight, loss=loss, name="line")


def written_out(p, y=Y):
    return 2.0 * torch.stack([p[0] + p[1] * T - y, 0.1 * p[0].expand(7)], -1)


def test_cost_and_residuals_are_those_written_out():
    p, fit = line()
    prior = mslsq.Prior(p, target=mslsq.Shared(torch.ones(2, dtype=F64)), weight=3.0, name="prior")
    found = mslsq.evaluate(mslsq.Problem(fit, prior), {"p": P})
    torch.testing.assert_close(found.residuals["line"], written_out(P))
    assert found.residuals["prior"].shape == (1, 2)
    torch.testing.assert_close(found.costs["line"], 0.5 * written_out(P).square().sum())
    torch.testing.assert_close(found.costs["prior"], 0.5 * (3 * (P - 1)).square().sum())
    torch.testing.assert_close(found.cost, found.costs["line"] + found.costs["prior"])
    assert int(found.block_costs["line"].argmax()) == 2
    assert repr(found).startswith("Evaluation(cost=") and "prior=" in repr(found)


def test_the_cost_is_that_of_a_solution_with_a_loss():
    _, fit = line(mslsq.Huber(0.5))
    problem = mslsq.Problem(fit)
    solution = mslsq.solve(problem, {"p": P})
    found = mslsq.evaluate(problem, solution.value)
    torch.testing.assert_close(found.cost, solution.cost)
    assert float(found.cost) < 0.5 * float(found.residuals["line"].square().sum()), "residuals are before the loss"


def test_derivatives_in_values_and_data():
    _, fit = line(mslsq.Cauchy(1.0))
    problem = mslsq.Problem(fit)

    def cost(p, y):
        return mslsq.evaluate(problem, {"p": p}, data={"line": {"y": y}}).cost

    assert torch.autograd.gradcheck(cost, (P.clone().requires_grad_(), Y.clone().requires_grad_()))
    by_torch = torch.func.grad(lambda p: 0.5 * torch.log1p(written_out(p).square().sum(-1)).sum())(P)
    torch.testing.assert_close(torch.func.grad(cost)(P, Y), by_torch)


@pytest.mark.parametrize("blocks", [1, 7])
def test_a_batch_is_one_after_the_other(blocks):
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    problem = mslsq.Problem(Line(p, t=T[:blocks], y=Y[:blocks], name="line"))
    starts = torch.stack([P, P + 1, -P])
    found = mslsq.evaluate(problem, {"p": starts}, in_dims=(0, None))
    assert found.cost.shape == (3,) and found.residuals["line"].shape == (3, blocks, 2)
    assert found.block_costs["line"].shape == (3, blocks) and "(3,)" in repr(found)
    for k, start in enumerate(starts):
        alone = mslsq.evaluate(problem, {"p": start})
        torch.testing.assert_close(found.cost[k], alone.cost)
        torch.testing.assert_close(found.residuals["line"][k], alone.residuals["line"])
    mapped = torch.func.vmap(lambda start: mslsq.evaluate(problem, {"p": start}).cost)(starts)
    torch.testing.assert_close(mapped, found.cost)


def test_constraints_show_their_residuals_and_cost_nothing():
    p, fit = line()
    total = torch.tensor([3.0], dtype=F64)
    problem = mslsq.Problem(fit, mslsq.Inequality(SumsTo(p, total=total, name="total")))
    found = mslsq.evaluate(problem, {"p": P})
    torch.testing.assert_close(found.residuals["total"], torch.tensor([[0.75 - 3.0]], dtype=F64))
    torch.testing.assert_close(found.cost, found.costs["line"])
    assert list(found.residuals) == ["line", "total"] and list(found.costs) == ["line"]


def test_poses_of_a_graph():
    pose = mslsq.Variable("pose", mslsq.SE2, count=3)
    step = mslsq.SE2.exp(torch.tensor([1.0, 0.2, 0.1], dtype=F64))
    measured = mslsq.SE2(step.storage.expand(2, -1))
    between = mslsq.Between(pose[[0, 1]], pose[[1, 2]], measured=measured, name="odometry")
    problem = mslsq.Problem(between, pose.fixed([0]))
    start = mslsq.SE2.identity(3, dtype=F64)
    found = mslsq.evaluate(problem, {"pose": start})
    assert found.residuals["odometry"].shape == (2, 3) and float(found.cost) > 0
    along = mslsq.SE2(torch.stack([start.storage[0], step.storage, (step @ step).storage]))
    assert float(mslsq.evaluate(problem, {"pose": along}).cost) == pytest.approx(0, abs=1e-20)


def test_what_is_wrong_is_said():
    problem = mslsq.Problem(line()[1])
    with pytest.raises(mslsq.ProblemError, match="'q'"):
        mslsq.evaluate(problem, {"q": P})
    with pytest.raises(TypeError, match="Problem"):
        mslsq.evaluate(lambda p: p, {"p": P})


def test_numbers_that_are_not_finite_are_given_back():
    problem = mslsq.Problem(line()[1])
    found = mslsq.evaluate(problem, {"p": torch.tensor([float("nan"), 0.0], dtype=F64)})
    assert bool(found.cost.isnan())


def test_a_problem_answers_its_cost_and_its_raw_residuals():
    """As the costs return them; weighted ones are those of `evaluate`."""
    x = mslsq.Variable("x", mslsq.Euclidean(2), 3)
    target = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    weight = torch.tensor([[1.0, 2.0], [3.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    prior = mslsq.Prior(x, target=target, weight=mslsq.Diagonal(weight), loss=mslsq.Huber(1.0))
    step = mslsq.Difference(x[[0, 1]], x[[1, 2]], measured=target[:2], name="step")
    ring = mslsq.cost(lambda x: (x @ x - 1).reshape(1))(x[0], name="ring")
    problem = mslsq.Problem(prior, step, mslsq.Equality(ring))
    values = {"x": torch.full((3, 2), 0.5, dtype=torch.float64)}
    found, known = problem.residuals(values), mslsq.evaluate(problem, values)
    assert list(found) == ["prior", "step", "ring"]
    torch.testing.assert_close(found["prior"], values["x"] - target)
    torch.testing.assert_close(known.residuals["prior"], weight * (values["x"] - target))
    torch.testing.assert_close(found["step"], -target[:2])
    torch.testing.assert_close(found["ring"], torch.tensor([[-0.5]], dtype=torch.float64))
    torch.testing.assert_close(problem.cost(values), known.cost)
    other = {"prior": {"target": values["x"]}}
    assert not problem.residuals(values, other)["prior"].any()
    assert float(problem.cost(values, other)) == pytest.approx(0.5 * float(target[:2].square().sum()))
    gradient = torch.func.grad(lambda v: problem.cost({"x": v}))(values["x"])
    torch.testing.assert_close(gradient, torch.func.grad(lambda v: mslsq.evaluate(problem, {"x": v}).cost)(values["x"]))
