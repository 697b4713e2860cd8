"""A place that takes a new value again and again is left out of the key; its residual then runs without a graph."""

import threading
import types

import pytest
import torch
from torch import nn

import mslsq
from mslsq.front.plans import kept_for_callable
from mslsq.tracing.inplace import InPlaceResidualWarning
from mslsq.tracing.reading import reachable
from mslsq.tracing.reading.changes import Changes
from mslsq.tracing.reading.inputs import collect


class Settings:
    smoothness = 1.0
    other = 1.0


def reads_settings(x):
    return Settings.smoothness * x


def states(residual, change, values):
    """(key, reason) for every value."""
    changes, found = Changes(), []
    for value in values:
        change(value)
        found.append(changes.keyed("residual", collect(residual)))
    return found


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(Settings, "smoothness", 1.0)


def smoothness(value):
    Settings.smoothness = value


def test_the_third_new_value_of_a_place_takes_it_out_of_the_key_and_names_it():
    found = states(reads_settings, smoothness, range(8))
    assert [reason for _, reason in found[:3]] == ["", "", ""]
    assert all("attribute 'smoothness' of class 'Settings'" in reason for _, reason in found[3:])
    assert len({key for key, _ in found}) == 4


def test_going_back_and_forth_between_known_values_is_no_change():
    module = nn.Linear(2, 2)
    found = states(module, lambda k: module.train(bool(k % 2)), range(20))
    assert not any(reason for _, reason in found)
    assert len({key for key, _ in found}) == 2


def test_values_are_counted_place_by_place():
    own = {"mode": 0, "level": 0}
    found = states(lambda x: own["mode"] * own["level"] * x, lambda k: own.update(mode=k % 2, level=k // 2), range(6))
    assert not any(reason for _, reason in found)  # six states, of two and of three values


def test_what_else_a_residual_reads_stays_keyed():
    own = {"steady": 1.0, "restless": 1.0}

    def residual(x):
        return own["steady"] * own["restless"] * x

    found = states(residual, lambda k: own.update(restless=k), range(8))
    assert "closure cell 'own'['restless']" in found[-1][1] and "steady" not in found[-1][1]
    own["restless"], own["steady"] = 7, 2.0
    more = states(residual, lambda k: own.update(restless=k), range(8))
    assert more[-1][0] != found[-1][0]


def test_a_list_that_grows_is_named_as_a_whole():
    own = [[1.0]]
    found = states(lambda x: sum(own[0]) * x, lambda k: own[0].append(k), range(6))
    assert "closure cell 'own'[0] " in found[-1][1]
    assert found[-1][0] == found[-2][0]


def test_models_of_different_code_behind_one_front_door_are_not_taken_for_changes():
    models = [eval(f"lambda p, t: p * t + {number}") for number in range(8)]

    def wrapped(model):
        return lambda x: model(x, 1.0)

    changes = Changes()
    assert not any(changes.keyed("residual", collect(wrapped(model)))[1] for model in models)


def test_too_many_objects_are_a_reason_too(monkeypatch):
    monkeypatch.setattr(reachable, "MOST_OBJECTS", 10)
    parts = [types.SimpleNamespace(k=1.0) for _ in range(20)]
    _, reason = Changes().keyed("residual", collect(lambda x: parts[0].k * x))
    assert "closure cell 'parts'" in reason


def test_threads_share_the_memory_of_changes():
    changes, own = Changes(), [0.0]
    wrong = []

    def residual(x):
        return own[0] * x

    def work(number):
        try:
            for k in range(50):
                own[0] = float(number * 100 + k)
                changes.keyed("residual", collect(residual))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    assert "closure cell 'own'[0]" in changes.keyed("residual", collect(residual))[1]


@pytest.mark.parametrize("size", [3, 400])  # the large one has a graph of its own: its sparsity is looked for
@pytest.mark.parametrize("trace", ["always", "auto"])
def test_every_solve_uses_the_setting_of_its_moment(size, trace):
    y = torch.linspace(1, 2, size, dtype=torch.float64)

    def residual(x, y):
        return torch.cat([x - y, Settings.smoothness * x])

    solver = mslsq.LevenbergMarquardt(trace=trace)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 4.0, 1.0):
        Settings.smoothness = value
        solution = mslsq.least_squares(residual, torch.zeros_like(y), args=(y,), solver=solver)
        torch.testing.assert_close(solution.value, y / (1 + value**2), rtol=0, atol=1e-7)


def test_an_eager_plan_is_kept_only_if_it_holds_no_graph():
    def residual(x):
        r = torch.zeros(1, dtype=torch.float64)
        r[0] = Settings.smoothness * x[0] - 1  # written in place: captured as a graph
        return r

    with pytest.warns(InPlaceResidualWarning):
        for value in range(1, 9):
            Settings.smoothness = float(value)
            solution = mslsq.least_squares(residual, torch.zeros(1, dtype=torch.float64))
            assert abs(solution.value.item() - 1 / value) < 1e-8


def test_verbose_names_the_place(capsys):
    for value in range(1, 7):
        Settings.smoothness = float(value)
        mslsq.least_squares(reads_settings, torch.ones(2), solver=mslsq.LevenbergMarquardt(verbose=value == 6))
    assert "attribute 'smoothness' of class 'Settings' had a new value in 3 calls" in capsys.readouterr().out


def test_costs_of_a_problem_run_eagerly_once_their_state_keeps_changing(capsys):
    class Shrunk(mslsq.CostFunction):
        def residual(self, p, y):
            return torch.cat([p - y, Settings.smoothness * p])

    p = mslsq.Variable("p", mslsq.Euclidean(1), count=4)
    y = torch.arange(1.0, 5.0, dtype=torch.float64)[:, None]
    problem = mslsq.Problem(Shrunk(p[torch.arange(4)], y=y))
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        Settings.smoothness = value
        solver = mslsq.LevenbergMarquardt(trace="always", verbose=value == 6.0)
        solution = mslsq.solve(problem, {"p": torch.zeros_like(y)}, solver=solver)
        torch.testing.assert_close(solution.value["p"], y / (1 + value**2), rtol=0, atol=1e-7)
    assert "attribute 'smoothness' of class 'Settings'" in capsys.readouterr().out


def test_the_memory_of_changes_belongs_to_the_plans():
    assert kept_for_callable(reads_settings).changes is kept_for_callable(reads_settings).changes
