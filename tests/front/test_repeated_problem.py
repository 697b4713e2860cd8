"""Solves of a problem like the one before: answered by what is recorded at once, with all that a solve notices."""

import copy
import gc
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from types import MappingProxyType

import pytest
import torch

import mslsq
from mslsq.front import repeated_problem
from mslsq.front.alike_problems import ALIKE
from mslsq.front.answering import Call
from mslsq.linear import Cholesky
from mslsq.linearize.plan_cache import SHARED
from tests.front.test_short_loop import COUNT, F64, ring, same_solutions

OPTIONS = {"trace": "always", "linear_solver": Cholesky()}
SOLVER = mslsq.LevenbergMarquardt(**OPTIONS)
PYTHON = mslsq.LevenbergMarquardt(trace="never", linear_solver=Cholesky())


@pytest.fixture(scope="module", autouse=True)
def no_plans_of_other_tests():
    """What these tests have recorded serves them all."""
    SHARED.clear()
    ALIKE.clear()


@pytest.fixture
def answers(monkeypatch):
    """Whether each call was answered at once."""
    found, answered, call_of = [], repeated_problem.answered, Call.of

    def asked(*arguments):
        found.append(False)
        return call_of(*arguments)  # None of calls that are never answered at once

    def noted(call):
        answer = answered(call)
        found[-1] = answer is not None
        return answer

    monkeypatch.setattr(Call, "of", staticmethod(asked))
    monkeypatch.setattr(repeated_problem, "answered", noted)
    return found


@contextmanager
def nothing_known():
    """Without what other problems have shown."""
    known = SHARED._plans, ALIKE._known
    SHARED._plans, ALIKE._known = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        SHARED._plans, ALIKE._known = known


def expected(problem, start, data=None):
    """By a copy, of which nothing is known, step by step."""
    with nothing_known():
        return mslsq.solve(copy.deepcopy(problem), start, data, solver=PYTHON)


def assert_next(answers, problem, start, is_answered, data=None, solver=SOLVER):
    """The next solve is right, and answered at once or not."""
    found = mslsq.solve(problem, start, data, solver=solver)
    assert answers[-1] is is_answered
    same_solutions(found, expected(problem, start, data))


def known(answers, solves=4, **options):
    """A problem whose calls are known, and a start; after one solve by what it holds, after four by its identity."""
    problem, start = ring(**options)
    for _ in range(solves):
        mslsq.solve(problem, start, solver=SOLVER)
    assert solves == 1 or all(answers[1 - solves :])
    assert len(repeated_problem.known_of(problem)) == (solves == 4)
    return problem, start


def weighted(**options):
    weight = mslsq.SqrtInformation(torch.eye(3, dtype=F64).repeat(COUNT, 1, 1))
    return {"weight": weight, "loss": mslsq.Huber(0.1), **options}


def test_other_starts_are_answered_with_their_own_solutions(answers):
    problem, start = known(answers)
    for k in range(1, 4):
        moved = {"pose": start["pose"].retract(torch.full((COUNT, 3), 0.02 * k, dtype=F64))}
        assert_next(answers, problem, moved, True)


def test_numbers_of_data_weights_and_losses_are_read_in_every_call(answers):
    problem, start = known(answers, **weighted())
    between = problem["between"]
    with torch.no_grad():
        between.weight.value.mul_(2)
        assert_next(answers, problem, start, True)
        next(between.loss.buffers()).mul_(0.5)
        assert_next(answers, problem, start, True)
        next(between.buffers()).data[0, 0] += 0.3
        assert_next(answers, problem, start, True)


OTHER = ring(seed=5)[0]["between"]


def replace_data(problem):
    name = problem["between"].data_leaves[0].name
    setattr(problem["between"], name, getattr(OTHER, name).clone())


def replace_loss(problem):
    problem["between"].loss = mslsq.Cauchy(0.2)


def drop_loss(problem):
    problem["between"].loss = None


def replace_weight(problem):
    problem["between"].weight = mslsq.Scale(torch.tensor(3.0, dtype=F64))


def replace_tensor_of_weight(problem):
    problem["between"].weight.value = 3 * torch.eye(3, dtype=F64).repeat(COUNT, 1, 1)


def write_residual(problem):
    between = problem["between"]
    for closed_form in ("jacobians", "residual_and_jacobians", "broadcasts", "curvature"):
        setattr(between, closed_form, None)
    between.residual = lambda a, b, measured: 2 * type(between).residual(between, a, b, measured)


def write_index(problem):
    index = problem["between"].references[1].index
    index[0] = (index[0] + 1) % COUNT


def replace_index(problem):
    between = problem["between"]
    pose = between.references[0].variable
    between.references = (between.references[0], pose[(torch.arange(COUNT) + 2) % COUNT])


def replace_variable(problem):
    first, second = problem["between"].references
    problem["between"].references = (second, first)


def hold_more(problem):
    pose = problem["between"].references[0].variable
    problem.fixed = (*problem.fixed, pose.fixed([3]))


def hold_part(problem):
    pose = problem["between"].references[0].variable
    problem.fixed = (*problem.fixed, pose.fixed([3], components="rotation"))


def hold_other(problem):
    problem.fixed[0].index[0] = 4


def another_cost(problem):
    pose = problem["between"].references[0].variable
    prior = mslsq.Prior(pose[torch.tensor([3])], target=mslsq.SE2.identity(1, dtype=F64))
    problem.costs.append(prior)
    problem.kinds[prior.name] = problem.kinds["between"]
    problem.num_rows[prior.name] = 3


def exchange_cost(problem):
    other = ring(seed=7)[0]["between"]
    other.references = problem["between"].references
    problem.costs[0] = other


def make_double(problem):
    problem["between"].weight.value.data = problem["between"].weight.value[:1].clone()[0]


CHANGES = [
    *(replace_data, replace_loss, drop_loss, replace_weight, replace_tensor_of_weight, write_residual, write_index),
    *(replace_index, replace_variable, hold_more, hold_part, hold_other, another_cost, exchange_cost, make_double),
]


NUMBERS = {replace_data, replace_tensor_of_weight}
"""Changes that leave a problem of the same kind."""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("solves", [1, 4])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_in_a_problem_is_noticed(answers, change, solves):
    problem, start = known(answers, solves, **weighted())
    change(problem)
    if solves == 4:
        ALIKE.clear()  # it is by identity alone that this one is known
    assert_next(answers, problem, start, solves == 1 and change in NUMBERS)
    mslsq.solve(problem, start, solver=SOLVER)
    same_solutions(mslsq.solve(problem, start, solver=SOLVER), expected(problem, start))


def test_bounds_that_a_variable_gets_are_noticed(answers):
    p = mslsq.Variable("p", mslsq.Euclidean(30))
    problem = mslsq.Problem(mslsq.Prior(p, target=torch.linspace(0, 1, 30, dtype=F64)[None]))
    start = {"p": torch.full((30,), 0.5, dtype=F64)}
    for _ in range(3):
        mslsq.solve(problem, start, solver=SOLVER)
    assert answers == [False, True, True]
    p.upper = 0.7
    assert float(mslsq.solve(problem, start, solver=SOLVER).value["p"].max()) == pytest.approx(0.7)
    assert answers[-1] is False


def test_other_calls_are_other_calls(answers):
    """Data, batches, options, adjoints, other names, layouts and types of a start, and global settings."""
    problem, start = known(answers)
    measured = problem["between"].measured
    assert_next(answers, problem, start, False, {"between": {"measured": OTHER.measured}})
    assert_next(answers, problem, start, True, {})
    twice = {"pose": mslsq.SE2(torch.stack([start["pose"].storage] * 2))}
    assert len(mslsq.solve(problem, twice, in_dims=(0, None), solver=SOLVER).cost) == 2
    assert not answers[-1]
    few = mslsq.LevenbergMarquardt(max_steps=1, **OPTIONS)
    assert int(mslsq.solve(problem, start, solver=few).num_steps) == 1 and not answers[-1]
    found = mslsq.solve(problem, {"pose": start["pose"].storage}, solver=SOLVER)
    assert type(found.value["pose"]) is torch.Tensor and not answers[-1]
    strided = {"pose": mslsq.SE2(torch.cat([start["pose"].storage] * 2, 1)[:, : start["pose"].storage.shape[1]])}
    mslsq.solve(problem, strided, solver=SOLVER)
    assert not answers[-1]
    mslsq.solve(problem, MappingProxyType(start), solver=SOLVER)
    assert not answers[-1]
    mslsq.solve(problem, start, solver=SOLVER, adjoint=mslsq.Unrolled())
    assert not answers[-1]
    with pytest.raises(mslsq.ProblemError):
        mslsq.solve(problem, {**start, "nothing": measured}, solver=SOLVER)
    with pytest.raises(mslsq.ProblemError):
        mslsq.solve(problem, {"pose": start["pose"].storage[:4]}, solver=SOLVER)
    assert_next(answers, problem, start, True)


def test_numbers_that_are_no_elements_are_refused(answers):
    problem, start = known(answers)
    storage = start["pose"].storage
    for _ in range(2):
        mslsq.solve(problem, {"pose": storage}, solver=SOLVER)
    assert answers[-1]
    with pytest.raises(mslsq.ProblemError):
        mslsq.solve(problem, {"pose": 3 * storage}, solver=SOLVER)


def test_derivatives_are_those_of_any_solve(answers):
    problem, start = known(answers, **weighted())
    name = problem["between"].data_leaves[0].name
    leaf = getattr(problem["between"], name).clone().requires_grad_()
    setattr(problem["between"], name, leaf)
    (gradient,) = torch.autograd.grad(mslsq.solve(problem, start, solver=SOLVER).value["pose"].storage.sum(), leaf)
    assert not answers[-1]
    other = expected(problem, start, {"between": {"measured": mslsq.SE2(leaf)}})
    (right,) = torch.autograd.grad(other.value["pose"].storage.sum(), leaf)
    torch.testing.assert_close(gradient, right, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        for _ in range(2):
            found = mslsq.solve(problem, start, solver=SOLVER)
    assert answers[-1] and not found.value["pose"].storage.requires_grad


def test_transforms_take_the_long_way(answers):
    problem, start = known(answers)

    def end(storage):
        return mslsq.solve(problem, {"pose": mslsq.SE2(storage)}, solver=SOLVER).value["pose"].storage

    batch = torch.stack([start["pose"].storage] * 2)
    torch.testing.assert_close(torch.func.vmap(end)(batch)[1], end(batch[1]))
    assert answers[-2:] == [False, True]


@pytest.mark.slow
def test_what_costs_of_a_user_read_is_compared(answers):
    class Own(mslsq.CostFunction):
        scale = 1.0

        def residual(self, a, b, measured):
            return self.scale * (measured.inverse() @ (a.inverse() @ b)).log()

    problem, start = ring()
    between = problem["between"]
    pose = between.references[0].variable
    own = mslsq.Problem(
        Own(*between.references, measured=mslsq.SE2(next(between.buffers()).clone()), name="own"), pose.fixed([0])
    )
    for scale in (1.0, 1.0, 2.0, 2.0):
        own["own"].scale = scale
        found = mslsq.solve(own, start, solver=SOLVER)
        assert answers[-1] is (len(answers) in (2, 4))
        torch.testing.assert_close(found.cost, expected(problem, start).cost * scale**2)
        answers.pop()  # that of the copy


def test_nothing_of_the_users_is_kept_alive(answers):
    problem, start = known(answers, **weighted())
    name = problem["between"].data_leaves[0].name
    references = [weakref.ref(getattr(problem["between"], name)), weakref.ref(start["pose"].storage)]
    setattr(problem["between"], name, getattr(OTHER, name).clone())
    del start
    gc.collect()
    assert all(reference() is None for reference in references)
    last = weakref.ref(problem)
    del problem
    gc.collect()
    assert last() is None


def test_copies_are_answered_for_what_they_hold(answers):
    problem, start = known(answers)
    copied = copy.deepcopy(problem)
    assert_next(answers, copied, start, True)
    hold_other(copied)
    assert_next(answers, copied, start, False)
    assert_next(answers, problem, start, True)


def test_an_environment_without_programs_and_interrupts_are_heeded(answers, monkeypatch):
    problem, start = known(answers)
    (one,) = repeated_problem.known_of(problem)
    recorded = one.answering.direct.plan.execution.graphs["step"]

    def interrupted(*tensors):
        raise KeyboardInterrupt

    monkeypatch.setattr(recorded, "_call", interrupted)
    with pytest.raises(mslsq.errors.SolveInterrupted) as caught:
        mslsq.solve(problem, start, solver=SOLVER)
    torch.testing.assert_close(caught.value.solution.value["pose"].storage, start["pose"].storage)


def small(scale=1.0):
    """A decay through 32 points: three unknowns, whose whole solve is one native program."""
    times = torch.linspace(0, 1, 32, dtype=F64)
    p = mslsq.Variable("p", mslsq.Euclidean(3))
    return mslsq.Problem(Reading(p, t=times, y=scale * torch.exp(-1.5 * times) + 0.3, name="reading"))


class Reading(mslsq.CostFunction):
    def residual(self, p, t, y):
        return (p[0] * torch.exp(p[1] * t) + p[2] - y)[None]


@pytest.mark.parametrize("is_layer", [False, True])
def test_a_whole_solve_answers_although_programs_of_blocks_would_pay_by_now(answers, is_layer):
    """They are not begun where the whole solve is a program, and were waited for in every call."""
    start, solver = {"p": torch.tensor([1.0, -1.0, 0.0], dtype=F64)}, mslsq.LevenbergMarquardt(native="wait")
    problem = small()
    layer = mslsq.LeastSquaresLayer(problem, solver=solver)

    def solved(values):
        return layer(values) if is_layer else mslsq.solve(problem, values, solver=solver)

    for _ in range(2):
        solved(start)
    plans = [plan.plain for plan in SHARED._plans.values() if plan.holds_whole]
    assert plans
    assert all(plan.whole.is_ready for plan in plans)
    for prospect in [prospect for plan in plans for prospect in plan.prospects.values()]:
        prospect.seconds = 60.0  # that they have cost: more than the compiler takes
    answers.clear()
    expected = torch.tensor([1.0, -1.5, 0.3], dtype=F64)
    for k in range(40):
        found = solved({"p": start["p"] + 0.01 * k})
        torch.testing.assert_close(found.value["p"], expected, atol=1e-7, rtol=1e-7)
    assert answers.count(False) <= 2  # every 32nd is compared with the user's Python
