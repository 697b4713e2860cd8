"""Calls like the one before: answered by their program at once, with all that a call notices otherwise."""

import contextlib
import dataclasses
import functools
import gc
import weakref

import pytest
import torch

import mslsq
from mslsq.front import answering_residuals, closed_costs, plans, repeated_residual
from mslsq.front.answering_residuals import Known
from mslsq.linearize.agreement import NonDeterministicResidualError
from tests.front.answers import noted
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
T = torch.linspace(0, 2, 20, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
SOLVER = mslsq.LevenbergMarquardt(native="wait", trace="always")


class Hidden:
    """A number that no key of a plan can hold: the seed of a generator."""

    def __init__(self, number):
        self._generator = torch.Generator()
        self.put(number)

    def put(self, number):
        self._generator.manual_seed(round(number * 2**40))

    def __call__(self):
        return self._generator.initial_seed() / 2**40


@pytest.fixture
def answers(monkeypatch):
    """Whether each call was answered at once; nothing is known of calls before."""
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())
    return noted(monkeypatch, repeated_residual)


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def measured(seed):
    noise = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return (1 + 0.1 * seed) * torch.exp(-1.3 * T) + 0.4 + 0.01 * noise


def assert_same(found, expected):
    torch.testing.assert_close(found.value, expected.value, rtol=1e-9, atol=1e-12)
    for name in ("cost", "gradient_norm"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-9)
    for name in ("status", "num_steps", "num_evaluations", "differentiable"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assert found.history.cost.shape == expected.history.cost.shape
    assert type(found.value) is type(expected.value) and found.value.shape == expected.value.shape


def test_other_numbers_are_answered_with_their_own_solution(answers):
    for seed in range(4):
        start = START + 0.1 * seed
        found = mslsq.least_squares(decay, start, (T * (1 + 0.1 * seed), measured(seed)), solver=SOLVER)
        python = mslsq.LevenbergMarquardt(native="never")
        assert_same(found, mslsq.least_squares(decay, start, (T * (1 + 0.1 * seed), measured(seed)), solver=python))
    assert answers[0:8:2] == [False, True, True, True]


@pytest.mark.parametrize("change", [1e-8, 0.5])
def test_what_changes_unseen_is_noticed(answers, change):
    hidden, y = Hidden(0.5), 2 * torch.exp(-0.7 * T)

    def residual(p, y):
        return p[0] * torch.exp(-hidden() * T) - y

    for rate in (0.5, 0.5, 0.5 + change, 0.5 + change, 0.5 + change):
        hidden.put(rate)
        basis = torch.exp(-hidden() * T)
        solution = mslsq.least_squares(residual, torch.zeros(1, dtype=F64), (y,), solver=SOLVER)
        torch.testing.assert_close(solution.value, (basis @ y / (basis @ basis))[None], rtol=1e-11, atol=0)
    assert answers[:3] == [False, True, False]


def test_a_change_of_the_derivative_alone_is_noticed(answers):
    hidden = Hidden(0.0)

    def residual(p):
        return torch.cat([p - 1, p - 3 - hidden() * (p - p.detach())])

    for share in (0.0, 0.0, 0.5):
        hidden.put(share)
        mslsq.least_squares(residual, torch.zeros(1, dtype=F64), solver=SOLVER)
    assert answers == [False, True, False]


def test_a_residual_that_drifts_is_refused(answers):
    hidden = Hidden(1.0)

    def drifting(p):
        hidden.put(hidden() + 0.5)
        return torch.cat([p - hidden(), 0.1 * p])

    with pytest.raises(NonDeterministicResidualError, match="drifting"):
        for _ in range(4):
            mslsq.least_squares(drifting, torch.zeros(2, dtype=F64), solver=SOLVER)


def test_what_the_key_holds_is_another_call(answers):
    """A closure's number, a default, the global settings, other shapes and other options."""

    def made(power):
        return lambda p, y: p[0] * torch.exp(p[1] * T) * power + p[2] - y

    one, two = made(1.0), made(2.0)
    first = mslsq.least_squares(one, START, (measured(0),), solver=SOLVER)
    second = mslsq.least_squares(two, START, (measured(0),), solver=SOLVER)
    torch.testing.assert_close(second.value[0], first.value[0] / 2, rtol=1e-6, atol=0)
    again = mslsq.least_squares(made(1.0), START, (measured(0),), solver=SOLVER)
    assert answers == [False, False, True]
    torch.testing.assert_close(again.value, first.value, rtol=0, atol=0)
    few = mslsq.LevenbergMarquardt(native="wait", trace="always", max_steps=1)
    assert int(mslsq.least_squares(one, START, (measured(0),), solver=few).num_steps) == 1
    strided = torch.stack([measured(0), measured(0)], 1)[:, 0]
    torch.testing.assert_close(mslsq.least_squares(one, START, (strided,), solver=SOLVER).value, first.value)
    assert answers[3:] == [False, False]


def test_tensors_that_a_residual_holds_are_read_in_every_call(answers):
    class Holding:
        def __init__(self, y):
            self.y = y

        def __call__(self, p):
            return decay(p, T, self.y)

    holder = Holding(measured(0))
    for seed in range(3):
        holder.y = measured(seed)
        expected = mslsq.least_squares(decay, START, (T, measured(seed)), solver=mslsq.LevenbergMarquardt())
        found = mslsq.least_squares(holder, START, solver=SOLVER)
        torch.testing.assert_close(found.value, expected.value, rtol=1e-6, atol=1e-9)
    assert answers[1::2] == [False, True, True]


class Rate(torch.nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, p, t, y):
        return p[0] * torch.exp(-self.rate * t) + p[1] - y


def with_rate(p, t, y, rate):
    return p[0] * torch.exp(-rate * t) + p[1] - y


def test_partials_and_objects_that_are_made_again_are_answered(answers):
    y, start = 2 * torch.exp(-1.3 * T), torch.ones(2, dtype=F64)
    for make in (Rate, lambda rate: functools.partial(with_rate, rate=rate)):
        answers.clear()
        for rate in (1.3, 1.3, 1.3, 0.5, 1.3):
            basis = torch.stack([torch.exp(-rate * T), torch.ones_like(T)], -1)
            found = mslsq.least_squares(make(rate), start, (T, y), solver=SOLVER)
            torch.testing.assert_close(found.value, torch.linalg.lstsq(basis, y).solution, rtol=1e-9, atol=1e-12)
        assert answers == [False, True, True, False, True]


def test_objects_of_a_class_that_live_are_kept_apart(answers):
    y, start = 2 * torch.exp(-1.3 * T), torch.ones(2, dtype=F64)
    models = [Rate(0.5 + 0.1 * k) for k in range(5)]
    for _ in range(3):
        answers.clear()
        for model in models:
            mslsq.least_squares(model, start, (T, y), solver=SOLVER)
    assert all(answers)


def test_trees_and_numbers_are_arguments_like_others(answers):
    def residual(p, data, power):
        return {"r": p["a"] * torch.exp(p["b"] * data["t"]) ** power - data["y"]}

    start = {"a": torch.tensor(1.0, dtype=F64), "b": torch.tensor([-1.0], dtype=F64)}
    data = {"t": T, "y": 2 * torch.exp(-1.5 * T)}
    for power in (1, 1, 2, 2):
        found = mslsq.least_squares(residual, start, (data, power), solver=SOLVER)
        torch.testing.assert_close(found.value["b"] * power, torch.tensor([-1.5], dtype=F64))
        assert found.value["a"].shape == () and list(found.value) == ["a", "b"]
    assert answers == [False, True, False, True]


def test_derivatives_are_those_of_any_call(answers):
    for _ in range(3):
        mslsq.least_squares(decay, START, (T, measured(0)), solver=SOLVER)
    y = measured(1).requires_grad_()
    (gradient,) = torch.autograd.grad(mslsq.least_squares(decay, START, (T, y), solver=SOLVER).value.sum(), y)
    python = mslsq.LevenbergMarquardt(native="never")
    (expected,) = torch.autograd.grad(mslsq.least_squares(decay, START, (T, y), solver=python).value.sum(), y)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        assert not mslsq.least_squares(decay, START, (T, y), solver=SOLVER).value.requires_grad
    jacobian = torch.func.jacrev(lambda y: mslsq.least_squares(decay, START, (T, y), solver=SOLVER).value)(measured(1))
    torch.testing.assert_close(jacobian.sum(0), expected, rtol=1e-6, atol=1e-9)


def test_a_start_at_the_solution_says_what_it_says_otherwise(answers):
    """No gradient at all: a parameter without influence is warned about."""

    def residual(p):
        return torch.cat([p[:1] - 1, 0 * p[1:]])

    start = torch.tensor([1.0, 0.0], dtype=F64)
    found = [mslsq.least_squares(residual, start, solver=SOLVER) for _ in range(3)]
    assert not any(answers) and all(int(one.num_steps) == 0 for one in found)


def test_curve_fit_is_answered_with_its_statistics(answers):
    def model(p, t):
        return p[0] * torch.exp(p[1] * t) + p[2]

    for seed in range(3):
        fit = mslsq.curve_fit(model, T, measured(seed), START, solver=SOLVER)
        expected = mslsq.curve_fit(model, T, measured(seed), START, solver=mslsq.LevenbergMarquardt(native="never"))
        torch.testing.assert_close(fit.value, expected.value, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(fit.covariance, expected.covariance, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(fit.standard_errors, expected.standard_errors, rtol=1e-6, atol=1e-9)
    assert answers[0::2] == [False, True, True]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("max_steps", [0, 6, 99])
def test_an_answer_says_all_that_a_solution_says_and_can_be_saved(answers, tmp_path, dtype, max_steps):
    start, given = START.to(dtype), (T.to(dtype), measured(1).to(dtype))
    solvers = [mslsq.LevenbergMarquardt(max_steps=max_steps, native=native) for native in ("wait", "never")]
    for _ in range(3):
        found = mslsq.least_squares(decay, start, given, solver=solvers[0])
    assert answers[-1]
    torch.save(found, tmp_path / "solution.pt")
    found = torch.load(tmp_path / "solution.pt", weights_only=False)
    expected = mslsq.least_squares(decay, start, given, solver=solvers[1])
    steps = int(found.num_steps)
    assert dtype == torch.float32 or steps == int(expected.num_steps)  # steps of float32 end in its rounding
    accuracy = {"rtol": 1e-6, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-4}
    for name in ("cost", "gradient_norm", "step_norm", "damping"):
        column, whole = getattr(found.history, name), getattr(expected.history, name)
        assert column.dtype == dtype and column.shape == whole.shape
        assert column[steps + 1 :].isnan().all()
        torch.testing.assert_close(column[:1], whole[:1], equal_nan=True, **accuracy)
    assert found.history.accepted.dtype == torch.bool and not found.history.accepted[steps + 1 :].any()
    assert found.history.accepted[:1].equal(expected.history.accepted[:1])


def test_nothing_of_the_users_is_kept_alive(answers):
    """A code lives as long as its module: what is known by it must not hold data."""

    class Data:
        def __init__(self):
            self.y = measured(0)

    data, scale = Data(), torch.ones(20, dtype=F64)
    for _ in range(2):
        mslsq.least_squares(lambda p, s: s * decay(p, T, data.y), START, (scale,), solver=SOLVER)
    assert answers == [False, True]
    references = [weakref.ref(data), weakref.ref(data.y), weakref.ref(scale)]
    del data, scale
    gc.collect()
    assert all(reference() is None for reference in references)


def test_a_program_that_has_been_given_up_is_asked_no_more(answers):
    mslsq.least_squares(decay, START, (T, measured(0)), solver=SOLVER)
    (known,) = plans.kept_for_callable(decay).calls
    assert isinstance(known, Known)
    known.direct.plan.plain.whole.give_up()
    found = mslsq.least_squares(decay, START, (T, measured(0)), solver=SOLVER)
    assert answers == [False, False] and bool(found.converged)


def test_calls_with_derivatives_between_others_are_no_obstacle(answers):
    y = measured(0)
    for differentiated in (False, False, True, False, True, False):
        mslsq.least_squares(decay, START, (T, y.requires_grad_(differentiated)), solver=SOLVER)
    assert answers == [False, True, False, True, True, True]  # the second of them is answered at once, too


def test_an_environment_without_programs_has_none(answers, monkeypatch):
    for _ in range(2):
        mslsq.least_squares(decay, START, (T, measured(0)), solver=SOLVER)
    monkeypatch.setenv("MSLSQ_NATIVE", "never")
    mslsq.least_squares(decay, START, (T, measured(0)), solver=SOLVER)
    assert answers == [False, True, False]


@pytest.mark.usefixtures("cxx")
@pytest.mark.parametrize("most", [3, 100, 101, 300])
def test_fits_of_many_steps_have_all_of_their_history(most):
    """Room is made for a hundred steps at first."""

    def residual(p):
        return torch.stack([p[0] ** 4 - 1e-12 * p[1], 1e-3 * p[1] ** 3])

    start = torch.tensor([5.0, 7.0], dtype=torch.float64)
    solver = mslsq.LevenbergMarquardt(max_steps=most, ftol=0.0, xtol=0.0, gtol=0.0)
    expected = mslsq.least_squares(residual, start, solver=dataclasses.replace(solver, native="never"))
    for _ in range(4):
        found = mslsq.least_squares(residual, start, solver=dataclasses.replace(solver, native="wait"))
    assert int(found.num_steps) == int(expected.num_steps) == most
    assert found.history.cost.shape == (most + 1,) and bool(found.history.accepted[1:].any())
    torch.testing.assert_close(found.history.cost, expected.history.cost, rtol=1e-6, atol=1e-300)
    assert torch.equal(found.history.accepted, expected.history.accepted)


@pytest.mark.parametrize("agrees", [True, False])
def test_closed_code_is_compared_in_turn_at_the_solution(answers, monkeypatch, agrees):
    """A comparison in turn evaluates the residual once; one that finds a difference warns, and its call goes on."""
    turns, compare = [], answering_residuals.agrees

    def compared(*arguments):
        found = compare(*arguments)
        turns.append((arguments[-1], found))
        return found and agrees

    monkeypatch.setattr(closed_costs, "CHECKED_EVERY", 3)
    monkeypatch.setattr(closed_costs, "_OPEN", weakref.WeakSet())  # other tests' trust in `decay` stays
    monkeypatch.setattr(answering_residuals, "agrees", compared)
    expects = contextlib.nullcontext() if agrees else pytest.warns(closed_costs.UnseenChangeWarning, match="'decay'")
    with expects:
        for seed in range(5):
            found = mslsq.least_squares(decay, START, (T, measured(seed)), solver=SOLVER)
    assert turns[:1] == [(True, True)]
    python = mslsq.LevenbergMarquardt(native="never")
    assert_same(found, mslsq.least_squares(decay, START, (T, measured(4)), solver=python))
