"""How long the steps of a first solve will take, from linearizations of few blocks."""

import pytest
import torch

import mslsq
from mslsq.linearize import forecast
from mslsq.solvers import planning

T = torch.linspace(0, 1, 7, dtype=torch.float64)


@pytest.fixture
def forecasts(monkeypatch):
    """What is forecast where a call takes 3 ms, and 10 µs more for each lane."""
    found = []

    def looked(*arguments):
        found.append(forecast.seconds_of_steps(*arguments))
        return 0.0

    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    monkeypatch.setattr(planning, "seconds_of_steps", looked)
    measure = forecast._seconds_of_few

    def seconds(block, values, inputs, count):
        taken, lanes = measure(block, values, inputs, count)
        assert taken > 0 and count <= lanes < count + block.term.num_blocks
        return 3e-3 + 1e-5 * lanes, lanes

    monkeypatch.setattr(forecast, "_seconds_of_few", seconds)
    return found


class Step(mslsq.CostFunction):
    """A residual without a Jacobian of its own."""

    def residual(self, a, b, measured):
        return torch.sin(b - a) - measured


def chain(count: int) -> mslsq.Solution:
    place = mslsq.Variable("place", mslsq.Euclidean(2), count=count + 1)
    number = torch.arange(count)
    measured = torch.linspace(0, 0.5, 2 * count, dtype=torch.float64).reshape(count, 2)
    problem = mslsq.Problem(Step(place[number], place[number + 1], measured=measured), place.fixed([0]))
    return mslsq.solve(problem, {"place": torch.zeros(count + 1, 2, dtype=torch.float64)})


@pytest.mark.parametrize("count", [2000, 5000])
def test_it_grows_with_the_blocks_of_a_problem(forecasts, count):
    assert chain(count).converged
    assert forecasts == [pytest.approx(5 * (3e-3 + 1e-5 * count))]


def test_what_a_process_loads_at_its_first_linearization_is_not_forecast(forecasts, monkeypatch):
    """With it few lanes took longer than many, and nothing at all was expected of 2,500 poses."""
    measure, calls = forecast._seconds_of_few, []

    def loading(*arguments):
        seconds, lanes = measure(*arguments)
        calls.append(lanes)
        return seconds + (1.0 if len(calls) == 1 else 0.0), lanes

    monkeypatch.setattr(forecast, "_seconds_of_few", loading)
    assert chain(2000).converged
    assert forecasts == [pytest.approx(5 * (3e-3 + 1e-5 * 2000))]


def test_it_grows_with_the_problems_of_a_batch(forecasts):
    def residual(p, y):
        return p[0] * torch.exp(p[1] * T) - y

    y = torch.linspace(1, 2, 3000, dtype=torch.float64)[:, None] * torch.exp(-T)
    solver = mslsq.LevenbergMarquardt(max_steps=3)
    mslsq.least_squares(residual, torch.ones(2, dtype=torch.float64), (y,), in_dims=(None, 0), solver=solver)
    assert forecasts == [pytest.approx(3 * (3e-3 + 1e-5 * 3000))]


def test_it_grows_with_problems_of_few_blocks_each(forecasts):
    place = mslsq.Variable("place", mslsq.Euclidean(1), count=6)
    number = torch.arange(5)
    measured = torch.linspace(0, 0.5, 5 * 400, dtype=torch.float64).reshape(400, 5, 1)
    problem = mslsq.Problem(Step(place[number], place[number + 1], measured=measured[0]), place.fixed([0]))
    start = {"place": torch.zeros(6, 1, dtype=torch.float64)}
    mslsq.solve(problem, start, {"step": {"measured": measured}}, in_dims=(None, 0))
    assert forecasts == [pytest.approx(5 * (3e-3 + 1e-5 * 2000))]


def test_few_blocks_and_jacobians_in_closed_form_are_not_measured(forecasts):
    chain(100)
    place = mslsq.Variable("place", mslsq.Euclidean(1), count=3000)
    problem = mslsq.Problem(mslsq.Prior(place[torch.arange(3000)], target=torch.ones(3000, 1, dtype=torch.float64)))
    mslsq.solve(problem, {"place": torch.zeros(3000, 1, dtype=torch.float64)})
    assert set(forecasts) == {0.0}  # none of what another test has begun with


def test_a_solve_that_wants_no_programs_is_not_measured(forecasts):
    def residual(p, y):
        return p * y

    for solver in (mslsq.LevenbergMarquardt(native="never"), mslsq.LevenbergMarquardt(native="wait")):
        y = torch.ones(2000, 1, dtype=torch.float64)
        mslsq.least_squares(residual, torch.ones(1, dtype=torch.float64), (y,), in_dims=(None, 0), solver=solver)
    assert forecasts == []
