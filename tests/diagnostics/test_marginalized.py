"""Blocks that are marginalised leave what they say: solution and covariance of the rest are those of the whole."""

import numpy as np
import pytest
import torch

import mslsq
from mslsq import factors
from mslsq.diagnostics import SingularCovarianceError
from mslsq.manifolds import cat
from mslsq.problem import MarginalPrior, ProblemError, UnknownNameError

F64 = torch.float64


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@mslsq.cost
def linear(a, b, left, right, seen):
    return left @ a + right @ b - seen


X, Y = mslsq.Variable("x", mslsq.Euclidean(2), 6), mslsq.Variable("y", mslsq.Euclidean(3), 3)
OF_X, OF_Y = torch.tensor([0, 0, 1, 2, 3, 4, 5, 5, 1, 3]), torch.tensor([0, 1, 1, 1, 2, 2, 2, 0, 0, 1])
AT = {"x": numbers(6, 2), "y": numbers(3, 3, seed=2)}


def linear_problem(*more) -> mslsq.Problem:
    """A firm prior beside weak measurements."""
    data = {"left": numbers(10, 3, 2, seed=3), "right": numbers(10, 3, 3, seed=4), "seen": numbers(10, 3, seed=5)}
    firm = mslsq.Prior(X[[0]], target=torch.zeros(1, 2, dtype=F64), weight=1e4)
    return mslsq.Problem(linear(X[OF_X], Y[OF_Y], **data, weight=0.1), firm, *more)


@pytest.mark.parametrize("blocks", [{"x": [0]}, {"x": [0, 3], "y": [1]}, {"y": None}, {"x": slice(1, 5)}])
def test_of_a_linear_problem_solution_and_covariance_are_those_of_the_whole(blocks):
    problem = linear_problem()
    gone = {name: slice(None) if index is None else index for name, index in blocks.items()}
    stays = {name: np.delete(np.arange(len(AT[name])), gone.get(name, [])) for name in AT}
    smaller, values = mslsq.marginalized(problem, AT, blocks)
    whole, rest = mslsq.solve(problem, AT), mslsq.solve(smaller, values)
    assert {name: len(value) for name, value in values.items()} == {
        n: len(rows) for n, rows in stays.items() if len(rows)
    }
    for name, value in values.items():
        assert torch.equal(value, AT[name][stays[name]])
        assert torch.allclose(rest.value[name], whole.value[name][stays[name]], atol=1e-5)
        expected = mslsq.covariance(problem, whole, name, stays[name])
        assert torch.allclose(mslsq.covariance(smaller, rest, name), expected, rtol=1e-6, atol=1e-12)


def test_one_after_the_other_is_all_at_once():
    problem = linear_problem()
    once, values = mslsq.marginalized(problem, AT, {"x": [0, 1], "y": [0]})
    step, between = problem, AT
    for blocks in ({"x": [1]}, {"y": [0]}, {"x": [0]}):
        step, between = mslsq.marginalized(step, between, blocks)
    assert [cost.name for cost in step] == [cost.name for cost in once] == ["linear", "marginal_prior"]
    assert all(torch.equal(between[name], values[name]) for name in values)
    a, b = (mslsq.evaluate(one, values) for one in (step, once))
    information = [one["marginal_prior"].factor[0].T @ one["marginal_prior"].factor[0] for one in (step, once)]
    order = [[(r.variable.name, int(r.index)) for r in one["marginal_prior"].references] for one in (step, once)]
    assert order[0] == order[1]
    assert torch.allclose(*information, rtol=1e-9, atol=1e-12)
    assert torch.allclose(a.residuals["linear"], b.residuals["linear"])


def test_a_part_of_a_block_that_is_held_counts_as_known():
    problem = linear_problem(Y.fixed([1], components=[0, 2]), X.fixed([4]))
    whole = mslsq.solve(problem, AT)
    for blocks, stays in (({"x": [0, 3, 4]}, [1, 2, 5]), ({"y": [1]}, range(6)), ({"x": [5]}, range(5))):
        smaller, values = mslsq.marginalized(problem, AT, blocks)
        rest = mslsq.solve(smaller, values)
        assert torch.allclose(rest.value["x"], whole.value["x"][list(stays)], atol=1e-5)
        if "y" not in blocks:
            assert torch.equal(rest.value["y"][1, [0, 2]], AT["y"][1, [0, 2]])


def drive(count: int, seed: int = 0):
    """A robot in the plane: its true poses, measured steps and measured places."""
    turn = mslsq.SE2.from_xyt(torch.tensor([[1.0, 0.0, 0.2]], dtype=F64))
    truth = [mslsq.SE2.identity(1, dtype=F64)]
    for _ in range(count - 1):
        truth.append(truth[-1] @ turn)
    truth = cat(truth)
    steps = truth[:-1].between(truth[1:]).retract(0.02 * numbers(count - 1, 3, seed=seed + 1))
    return truth, steps, truth.translation + 0.1 * numbers(count, 2, seed=seed + 2)


def parts(first: int, count: int, offset: int, steps, seen):
    """What pose `count` - 1 of a window brings whose first pose is the robot's pose number `offset`."""
    pose = mslsq.Variable("pose", mslsq.SE2, count)
    own = torch.arange(first, count)
    made = [factors.Position(pose[own], measured=seen[own + offset], weight=10.0)]
    if count > 1:
        i = torch.arange(max(first - 1, 0), count - 1)
        made.append(mslsq.Between(pose[i], pose[i + 1], measured=steps[i + offset], weight=50.0))
    return made


def test_a_window_that_slides_ends_close_to_the_batch():
    """Linearised at solutions of windows of five poses: the last pose to a hundredth of its standard deviation, its
    covariance to half a per cent."""
    truth, steps, seen = drive(30)
    problem, values = mslsq.Problem(*parts(0, 1, 0, steps, seen)), {"pose": truth[:1].retract(0.1 * numbers(1, 3))}
    problem = problem.extended(mslsq.Prior(problem.variables["pose"][[0]], target=truth[:1], weight=30.0))
    gone = 0
    for number in range(1, 30):
        before = len(values["pose"])
        problem = problem.extended(*parts(before, before + 1, gone, steps, seen))
        start = {"pose": cat([values["pose"], values["pose"][-1:] @ steps[[number - 1]]])}
        window = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(trace="never", native="never"))
        assert bool(window.converged)
        values = window.value
        if number >= 5 and number < 29:
            problem, values = mslsq.marginalized(problem, values, {"pose": [0]})
            gone += 1
    assert len(values["pose"]) == 6 and gone == 24
    pose = mslsq.Variable("pose", mslsq.SE2, 30)
    firm = mslsq.Prior(pose[[0]], target=truth[:1], weight=30.0)
    whole = mslsq.Problem(*parts(0, 30, 0, steps, seen), firm)
    batch = mslsq.solve(whole, {"pose": truth})
    expected, found = mslsq.covariance(whole, batch, "pose", 29), mslsq.covariance(problem, window, "pose", 5)
    apart = batch.value["pose"][-1].local(values["pose"][-1]) / expected.diagonal().sqrt()
    assert float(apart.abs().max()) < 0.01
    assert torch.allclose(found, expected, rtol=5e-3, atol=1e-7)


def test_a_robust_loss_enters_as_it_does_in_the_solver():
    """At a solution the gradient of what remains is zero, whatever the loss."""
    x = mslsq.Variable("x", mslsq.Euclidean(1), 3)
    i = torch.tensor([0, 0, 1])
    steps = mslsq.Difference(
        x[i],
        x[torch.tensor([1, 2, 2])],
        measured=torch.tensor([[1.0], [2.5], [7.0]], dtype=F64),
        loss=mslsq.Cauchy(0.5),
    )
    problem = mslsq.Problem(steps, mslsq.Prior(x, target=numbers(3, 1), weight=0.3))
    value = mslsq.solve(problem, {"x": numbers(3, 1)}).value
    smaller, values = mslsq.marginalized(problem, value, {"x": [0]})
    again = mslsq.solve(smaller, values)
    assert torch.allclose(again.value["x"], values["x"], atol=1e-6)


def test_derivatives_reach_what_stays():
    """The data of costs that stay; the prior is a constant."""
    x = mslsq.Variable("x", mslsq.Euclidean(1), 3)
    measured = torch.ones(2, 1, dtype=F64, requires_grad=True)
    steps = mslsq.Difference(x[[0, 1]], x[[1, 2]], measured=measured)
    problem = mslsq.Problem(steps, mslsq.Prior(x[[0]], target=torch.zeros(1, 1, dtype=F64)))
    smaller, values = mslsq.marginalized(problem, {"x": numbers(3, 1)}, {"x": [0]})
    found = mslsq.solve(smaller, values).value["x"]
    (slope,) = torch.autograd.grad(found[1].sum(), measured)
    assert slope.flatten().tolist() == pytest.approx([0, 1])


class Tilted(mslsq.CostFunction):
    """Poses, products and single blocks together."""

    def residual(self, pose, body, gain, seen):
        moved = pose.act(body["place"]) * gain.exp()
        return torch.cat((moved, body["turn"].log())) - seen


@pytest.mark.slow
def test_products_groups_and_single_blocks():
    kind = {"place": mslsq.Euclidean(3), "turn": mslsq.SO3}
    pose, body = mslsq.Variable("pose", mslsq.SE3, 2), mslsq.Variable("body", kind, 3)
    gain = mslsq.Variable("gain", mslsq.Euclidean(1))
    i, j = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    g = torch.Generator().manual_seed(0)
    values = {
        "pose": mslsq.SE3.random(2, generator=g, dtype=F64),
        "body": {"place": numbers(3, 3), "turn": mslsq.SO3.random(3, generator=g, dtype=F64)},
        "gain": numbers(1, seed=9),
    }
    moved = values["pose"][i].act(values["body"]["place"][j]) * values["gain"].exp()
    seen = torch.cat((moved, values["body"]["turn"][j].log()), -1) + 0.05 * numbers(6, 6)
    problem = mslsq.Problem(
        Tilted(pose[i], body[j], gain, seen=seen),
        mslsq.Prior(pose, target=values["pose"]),
        mslsq.Prior(gain, target=values["gain"][None], name="prior_of_gain"),
    )
    value = mslsq.solve(problem, values).value
    smaller, rest = mslsq.marginalized(problem, value, {"pose": [0], "gain": None})
    assert list(rest) == ["pose", "body"] and rest["body"]["turn"].shape == (3,)
    mslsq.check_jacobian(smaller["marginal_prior"])
    assert isinstance(smaller["marginal_prior"], MarginalPrior)
    again = mslsq.solve(smaller, rest)
    assert int(again.num_steps) <= 2
    expected = mslsq.covariance(problem, value, "body")
    assert torch.allclose(mslsq.covariance(smaller, rest, "body"), expected, rtol=1e-4, atol=1e-6)


def test_the_next_window_runs_on_the_plan_of_the_one_before():
    """Of the same size and structure: nothing is planned again."""
    from mslsq.front.alike_problems import ALIKE

    x = mslsq.Variable("x", mslsq.Euclidean(2), 4)
    made = mslsq.Difference(x[[0, 1, 2]], x[[1, 2, 3]], measured=numbers(3, 2))
    problem, values = mslsq.Problem(made, mslsq.Prior(x[[0]], target=numbers(1, 2))), {"x": numbers(4, 2)}
    ALIKE.clear()
    kinds = []
    for _ in range(6):
        values = mslsq.solve(problem, values).value
        kinds.append(len(ALIKE))
        problem, values = mslsq.marginalized(problem, values, {"x": [0]})
        more = mslsq.Difference(x[[2]], x[[3]], measured=numbers(1, 2))
        problem, values = problem.extended(more), {"x": torch.cat((values["x"], numbers(1, 2)))}
    assert kinds[-1] == kinds[-2] <= 2


def bounded() -> mslsq.Problem:
    x = mslsq.Variable("x", mslsq.Euclidean(2), 2, lower=0.0)
    return mslsq.Problem(mslsq.Prior(x, target=numbers(2, 2)))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: mslsq.marginalized(linear_problem(), AT, {"z": [0]}), UnknownNameError, ["'z'", "'x'"]),
        (lambda: mslsq.marginalized(linear_problem(), {"x": AT["x"]}, {"x": [0]}), ProblemError, ["'y'"]),
        (
            lambda: mslsq.marginalized(linear_problem(), {"x": AT["x"][None], "y": AT["y"]}, {"x": [0]}),
            ProblemError,
            ["'x'", "(6, 2)", "batch"],
        ),
        (lambda: mslsq.marginalized(linear_problem(), AT, {"x": [6]}), ProblemError, ["'x'", "6"]),
        (lambda: mslsq.marginalized(linear_problem(), AT, {"x": None, "y": None}), ProblemError, ["no cost"]),
        (
            lambda: mslsq.marginalized(bounded(), {"x": torch.ones(2, 2, dtype=F64)}, {"x": [0]}),
            ProblemError,
            ["bounds"],
        ),
        (
            lambda: mslsq.marginalized(
                linear_problem(mslsq.Equality(mslsq.cost(lambda a: a)(X[[1]], name="rest"))), AT, {"x": [1]}
            ),
            ProblemError,
            ["'rest'", "constraint"],
        ),
        (
            lambda: mslsq.marginalized(
                mslsq.Problem(mslsq.cost(lambda a: a.sum()[None])(X, name="sums")), {"x": AT["x"]}, {"x": [1]}
            ),
            SingularCovarianceError,
            ["'x'", "determine"],
        ),
    ],
)
def test_what_cannot_be_is_said(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
