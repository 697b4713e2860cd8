"""A problem that is extended is the problem that would have been made at once."""

import copy
import pickle

import pytest
import torch
from torch import nn

import mslsq
from mslsq.manifolds import cat
from mslsq.native.store import STORE
from mslsq.problem import ProblemError

F64 = torch.float64


class Step(mslsq.CostFunction):
    """A user's own: the step from a to b, by automatic differentiation."""

    def residual(self, a, b, measured, scale=1.0):
        return scale * (measured.inverse() @ (a.inverse() @ b)).log()


@mslsq.cost
def seen(pose, place, measured, offset):
    return pose.inverse().act(place) + offset - measured


def poses(count: int, seed: int = 0) -> mslsq.SE2:
    return mslsq.SE2.random(count, generator=torch.Generator().manual_seed(seed), dtype=F64)


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


OFFSET = torch.tensor([0.1, 0.2], dtype=F64)
TRUTH, PLACES = poses(10), 2 * numbers(4, 2, seed=6)
OF_POSE, OF_PLACE = torch.arange(20) // 2, torch.arange(20) % 4
STEPS = TRUTH[:-1].between(TRUTH[1:]).retract(0.05 * numbers(9, 3))
SEEN = TRUTH[OF_POSE].inverse().act(PLACES[OF_PLACE]) + OFFSET + 0.05 * numbers(20, 2, seed=3)
START = {"pose": TRUTH.retract(0.1 * numbers(10, 3, seed=4)), "place": PLACES + 0.1 * numbers(4, 2, seed=5)}
SIGMA = numbers(20, seed=7).abs() + 0.1


def parts(first: int, last: int, places: int = 4, of_users=True):
    """What the poses from `first` to `last` - 1 bring."""
    pose = mslsq.Variable("pose", mslsq.SE2, last)
    place = mslsq.Variable("place", mslsq.Euclidean(2), places)
    before, own = max(first - 1, 0), OF_POSE.ge(first) & OF_POSE.lt(last)
    i, kind = torch.arange(before, last - 1), Step if of_users else mslsq.Between
    made = [
        kind(pose[i], pose[i + 1], measured=STEPS[before : last - 1], weight=2.0, loss=mslsq.Huber(0.5)),
        seen(
            pose[OF_POSE[own]],
            place[OF_PLACE[own]],
            measured=SEEN[own],
            offset=mslsq.Shared(OFFSET),
            weight=mslsq.Scale(1 / SIGMA[own]),
        ),
    ]
    return [*made, mslsq.Prior(place, target=PLACES, weight=0.1), pose.fixed([0])] if first == 0 else made


def grown(of_users=True) -> mslsq.Problem:
    problem = mslsq.Problem(*parts(0, 4, of_users=of_users))
    for count in range(5, 11):
        problem = problem.extended(*parts(count - 1, count, of_users=of_users))
    return problem


@pytest.mark.parametrize("of_users", [True, False])
def test_a_problem_that_grew_is_the_one_made_at_once(of_users):
    once, steps = mslsq.Problem(*parts(0, 10, of_users=of_users)), grown(of_users)
    assert repr(steps) == repr(once)
    assert {name: tensor.shape for name, tensor in steps.state_dict().items()} == {
        name: tensor.shape for name, tensor in once.state_dict().items()
    }
    assert torch.equal(steps.cost(START), once.cost(START))
    for own, other in zip(steps, once, strict=True):
        for a, b in zip(own.references, other.references, strict=True):
            assert torch.equal(torch.as_tensor(a.index), torch.as_tensor(b.index))
    a, b = mslsq.solve(steps, START), mslsq.solve(once, START)
    assert torch.equal(a.value["pose"].storage, b.value["pose"].storage) and bool(a.converged)


def test_the_solves_on_the_way_end_where_the_batch_does():
    """Each from the solution before, as a robot would."""
    problem, start = mslsq.Problem(*parts(0, 4)), START | {"pose": START["pose"][:4]}
    for count in range(5, 11):
        value = mslsq.solve(problem, start).value
        problem = problem.extended(*parts(count - 1, count))
        start = value | {"pose": cat([value["pose"], value["pose"][-1:] @ STEPS[[count - 2]]])}
    found, batch = mslsq.solve(problem, start), mslsq.solve(mslsq.Problem(*parts(0, 10)), start)
    assert float(found.cost) == pytest.approx(float(batch.cost), rel=1e-12)
    assert torch.allclose(found.value["place"], batch.value["place"], atol=1e-6)


def test_the_problem_that_was_extended_is_as_it_was():
    problem = mslsq.Problem(*parts(0, 4))
    before, start = copy.deepcopy(problem), START | {"pose": START["pose"][:4]}
    larger = problem.extended(*parts(4, 7))
    assert repr(problem) == repr(before) and torch.equal(problem.cost(start), before.cost(start))
    assert [len(one["seen"].measured) for one in (problem, larger)] == [8, 14]
    assert larger["seen"].offset is problem["seen"].offset  # what blocks share is not copied
    assert torch.equal(pickle.loads(pickle.dumps(larger))["seen"].measured, larger["seen"].measured)


def test_weights_and_scales_that_differ_become_one_for_each_block():
    x = mslsq.Variable("x", mslsq.Euclidean(2), 3)
    near = lambda number, **options: mslsq.Prior(  # noqa: E731
        x[[number]], target=torch.full((1, 2), float(number), dtype=F64), **options
    )
    problem = mslsq.Problem(near(0, weight=2.0, loss=mslsq.Huber(1.0)))
    same = problem.extended(near(1, weight=2.0, loss=mslsq.Huber(1.0)))
    other = same.extended(near(2, weight=3.0, loss=mslsq.Huber(0.5)))
    assert same["prior"].weight.value.ndim == 0
    assert other["prior"].weight.value.tolist() == [2, 2, 3]
    assert other["prior"].loss.scale.tolist() == [1, 1, 0.5]
    at = {"x": numbers(3, 2)}
    alone = [
        mslsq.Problem(near(k, weight=w, loss=mslsq.Huber(c))).cost(at)
        for k, w, c in ((0, 2.0, 1.0), (1, 2.0, 1.0), (2, 3.0, 0.5))
    ]
    assert float(other.cost(at)) == pytest.approx(float(sum(alone)), rel=1e-14)


def test_constraints_and_held_blocks_grow_too():
    x = mslsq.Variable("x", mslsq.Euclidean(1), 2)
    norm = mslsq.cost(lambda a, bound: a - bound)
    on = lambda v, k: mslsq.Equality(norm(v[[k]], bound=torch.full((1, 1), k + 1.0, dtype=F64), name="on"))  # noqa: E731
    problem = mslsq.Problem(mslsq.Prior(x, target=torch.zeros(2, 1, dtype=F64)), on(x, 0))
    y = mslsq.Variable("x", mslsq.Euclidean(1), 4)
    larger = problem.extended(mslsq.Prior(y[[2, 3]], target=torch.zeros(2, 1, dtype=F64)), on(y, 2), y.fixed([3]))
    found = mslsq.solve(larger, {"x": torch.full((4, 1), 7.0, dtype=F64)})
    assert found.value["x"].flatten().tolist() == pytest.approx([1, 0, 3, 7])


def test_a_parameter_that_blocks_share_stays_one():
    net = nn.Linear(2, 2).double()
    learned = mslsq.cost(lambda x, net, y: net(x) - y)
    x = mslsq.Variable("x", mslsq.Euclidean(2), 2)
    new = lambda k: learned(x[[k]], net=net, y=torch.ones(1, 2, dtype=F64), name="learned")  # noqa: E731
    larger = mslsq.Problem(new(0)).extended(new(1))
    assert {id(p) for p in larger.parameters()} == {id(p) for p in net.parameters()}
    mslsq.solve(larger, {"x": torch.zeros(2, 2, dtype=F64)}).cost.backward()
    assert all(p.grad is not None for p in net.parameters())


def test_native_programs_are_those_of_the_smaller_problem():
    solver = mslsq.LevenbergMarquardt(native="wait")
    problem, start = mslsq.Problem(*parts(0, 9)), {"pose": START["pose"][:9], "place": START["place"]}
    mslsq.solve(problem, start, solver=solver)
    programs = set(STORE._builds)
    larger = problem.extended(*parts(9, 10))
    found = mslsq.solve(larger, START, solver=solver)
    assert programs and set(STORE._builds) == programs
    plain = mslsq.solve(larger, START, solver=mslsq.LevenbergMarquardt(native="never"))
    assert float(found.cost) == pytest.approx(float(plain.cost), rel=1e-12)


def prior(**options):
    x = mslsq.Variable("x", mslsq.Euclidean(2), options.pop("count", 3), options.pop("lower", None))
    return mslsq.Prior(x[[0]], target=torch.zeros(1, 2, dtype=F64), **options)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (lambda: prior(weight=mslsq.Diagonal(torch.ones(2, dtype=F64))), ["'prior'", "class of its weight", "prior_2"]),
        (lambda: prior(loss=mslsq.Huber(1.0)), ["'prior'", "class of its loss"]),
        (lambda: prior(count=4, lower=0.0), ["'x'", "lower bounds"]),
        (lambda: mslsq.Equality(prior()), ["'prior'", "constraint"]),
        (lambda: mslsq.Variable("x", mslsq.Euclidean(2), 3), ["takes cost functions"]),
        (
            lambda: mslsq.Prior(
                mslsq.Variable("x", mslsq.Euclidean(3), 3)[[0]], target=torch.zeros(1, 3, dtype=F64), name="other"
            ),
            ["'x'", "different"],
        ),
        (
            lambda: mslsq.Prior(
                mslsq.Variable("x", mslsq.Euclidean(2), 3)[[0]], target=mslsq.Shared(torch.zeros(2, dtype=F64))
            ),
            ["'prior'", "Shared"],
        ),
    ],
)
def test_what_does_not_fit_is_said(more, words):
    problem = mslsq.Problem(prior())
    with pytest.raises(ProblemError) as caught:
        problem.extended(more())
    for word in words:
        assert word in str(caught.value)


def test_shared_data_that_differ_are_said():
    one = mslsq.Problem(*parts(0, 4))
    pose, place = mslsq.Variable("pose", mslsq.SE2, 5), mslsq.Variable("place", mslsq.Euclidean(2), 4)
    other = seen(pose[[4]], place[[0]], measured=SEEN[:1], offset=mslsq.Shared(torch.zeros(2, dtype=F64)), weight=1.0)
    with pytest.raises(ProblemError, match=r"'seen'.*'offset', which all blocks share.*seen_2"):
        one.extended(other)
