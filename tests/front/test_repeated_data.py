"""Solves with `data=` like the one before: answered at once with the numbers of this call, or stated where they are
other calls."""

import gc
import weakref

import pytest
import torch

import mslsq
from mslsq.front.alike_problems import ALIKE
from mslsq.problem.errors import ProblemError
from tests.front.test_repeated_problem import (
    OTHER,
    SOLVER,
    answers,  # noqa: F401
    assert_next,
    no_plans_of_other_tests,  # noqa: F401
    weighted,
)
from tests.front.test_short_loop import COUNT, F64, ring

pytestmark = pytest.mark.usefixtures("nothing_is_known_yet")


@pytest.fixture
def nothing_is_known_yet():
    ALIKE.clear()


OTHERS = OTHER.data_arguments(dict(OTHER.named_buffers()))["measured"]


def moved(k):
    return OTHERS.retract(torch.full((COUNT, 3), 0.01 * k, dtype=F64))


def given(k=0, weight=None):
    own = {"measured": moved(k)}
    return {"between": own if weight is None else {**own, "weight": weight}}


def test_the_numbers_of_this_call_are_solved_for(answers):  # noqa: F811
    problem, start = ring(**weighted())
    mslsq.solve(problem, start, given(), solver=SOLVER)
    for k in range(1, 5):
        assert_next(answers, problem, start, True, given(k))
    data = given()
    storage = data["between"]["measured"].storage
    for _ in range(2):
        assert_next(answers, problem, start, True, data)
        storage[:, 0] += 0.1  # written in place between two calls
    assert_next(answers, problem, start, True, data)
    assert_next(answers, problem, start, True, {"between": {"measured": mslsq.SE2(storage + 0.0)}})


@pytest.mark.slow
def test_without_data_and_with_others_it_is_another_call(answers):  # noqa: F811
    problem, start = ring(**weighted())
    weight = 2 * torch.eye(3, dtype=F64).repeat(COUNT, 1, 1)
    calls = [
        None,
        given(1),
        given(1, weight),
        {"between": {"weight": weight}},
        {"between": {"loss.scale": weight[0, 0, 0]}},
    ]
    for k in range(3):
        for data in calls:
            assert_next(answers, problem, start, k > 0, data)
    problem["between"].weight.value.mul_(0.5)  # what is not replaced is the problem's own, as it is now
    for data in calls:
        assert_next(answers, problem, start, True, data)


def test_the_other_problems_that_are_alike_have_their_own_data(answers):  # noqa: F811
    for seed in range(4):
        problem, start = ring(seed=seed, **weighted())
        assert_next(answers, problem, start, seed > 0, given(seed))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"betwen": {"measured": moved(1)}}, "betwen"),
        ({"between": {"measurd": moved(1)}}, "measurd"),
        ({"between": {"measured": moved(1)[1:]}}, "shape"),
        ({"between": {"measured": mslsq.SE2(moved(1).storage.float())}}, "float32"),
        ({"between": {"measured": mslsq.SO3.random(COUNT, dtype=F64)}}, "SO3"),
        ({"between": [moved(1)]}, "dict"),
        ({"between": {"measured": moved(1).storage.to_sparse()}}, "dense"),
        ([moved(1)], "dict"),
        ({"bounds": {"pose": (None, None), "posse": (None, None)}}, "posse"),
    ],
)
def test_what_is_wrong_is_said_as_in_the_first_call(answers, data, message):  # noqa: F811
    problem, start = ring()
    plain = {"between": {"measured": moved(0).storage}}
    for first in (given(), plain):
        mslsq.solve(problem, start, first, solver=SOLVER)
    with pytest.raises(ProblemError, match=message):
        mslsq.solve(problem, start, data, solver=SOLVER)
    assert answers[-1] is False
    for first in (given(), plain):
        assert_next(answers, problem, start, True, first)


@pytest.mark.slow
def test_one_tensor_in_two_places_is_stated_and_right(answers):  # noqa: F811
    problem, start = ring()
    pose = problem["between"].references[0].variable
    prior = mslsq.Between(pose[[1]], pose[[2]], measured=moved(0)[:1], name="first")
    other = mslsq.Between(pose[[4]], pose[[6]], measured=moved(0)[:1], name="second")
    problem = mslsq.Problem(problem["between"], prior, other, pose.fixed([0]))
    one = moved(2).storage[:1]
    for _ in range(3):
        assert_next(answers, problem, start, False, {"first": {"measured": one}, "second": {"measured": one}})
    two = {"first": {"measured": one}, "second": {"measured": one.clone()}}
    assert_next(answers, problem, start, False, two)
    assert_next(answers, problem, start, True, two)
    # Known of two tensors, given one for both: it has the place of both.
    assert_next(answers, problem, start, True, {"first": {"measured": one}, "second": {"measured": one}})


def test_no_data_are_kept_alive(answers):  # noqa: F811
    problem, start = ring()
    data = given()
    storage = weakref.ref(data["between"]["measured"].storage)
    for _ in range(3):
        mslsq.solve(problem, start, data, solver=SOLVER)
    assert answers[-1]
    del data
    gc.collect()
    assert storage() is None
