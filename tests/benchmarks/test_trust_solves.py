"""A sample of the long run of whole solves: front doors, methods, dtypes, hidden state that changes between calls."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[2] / "benchmarks" / "trust_solves.py"


@pytest.fixture(scope="module")
def trust_solves():
    spec = importlib.util.spec_from_file_location("trust_solves", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["trust_solves"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["trust_solves"]


def test_the_cases_cover_every_pair_of_values(trust_solves):
    cases = trust_solves.pairwise(400, seed=0)
    axes = trust_solves.AXES
    for a, b in itertools.combinations(axes, 2):
        assert {(case[a], case[b]) for case in cases} == set(itertools.product(axes[a], axes[b]))


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(12))
def test_no_sample_is_wrong(trust_solves, number):
    case = trust_solves.pairwise(12, seed=7)[number]
    case |= {
        "trace": "auto" if number % 2 else "never",
        "callback": ("watch", "stop")[number % 3 == 0],
        "compile": "no",
    }
    verdict = trust_solves.run_case(case, seed=700 + number)
    assert verdict.outcome not in ("wrong", "crashed"), verdict


def test_the_rare_axes_change_no_other(trust_solves, monkeypatch):
    """A seed keeps its cases."""
    cases = trust_solves.pairwise(60, seed=3)
    assert {case["callback"] for case in cases} == set(trust_solves.RARE["callback"])
    assert 0 < sum(case["compile"] == "yes" for case in trust_solves.pairwise(200, seed=3)) < 20
    monkeypatch.setattr(trust_solves, "RARE", {})
    for case, plain in zip(cases, trust_solves.pairwise(60, seed=3), strict=True):
        assert {axis: case[axis] for axis in plain} == plain


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lie", ["cost", "steps"])
def test_a_callback_that_is_told_something_else_is_noticed(trust_solves, monkeypatch, lie):
    case = {axis: values[0] for axis, values in trust_solves.AXES.items()} | {"callback": "watch"}
    real = trust_solves.Watch.__call__

    def told(watch, info):
        return real(watch, info._replace(cost=info.cost * 1.1) if lie == "cost" else info._replace(step=info.step * 2))

    assert trust_solves.run_case(case, seed=1).outcome == "right"
    monkeypatch.setattr(trust_solves.Watch, "__call__", told)
    assert "callback" in trust_solves.run_case(case, seed=1).detail


def test_what_meets_its_own_gtol_alone_is_called_a_plateau(trust_solves):
    """A fit that ran away to p0 exp(-200 t) + p2: its gradient is below the gtol, and a column is all but gone."""
    case = {axis: values[0] for axis, values in trust_solves.AXES.items()} | {"dtype": "float32"}
    start = torch.tensor([1.0, 1.0, 0.5])
    y = trust_solves.prediction("exponential", start)
    gone = torch.tensor([-3.0, 200.0, float(y.mean())])

    def read(y):
        return 1.0

    assert trust_solves.judged(case, read, start, y, gone) == trust_solves.PLATEAU
    assert "SciPy" in trust_solves.judged(case, read, start, y, gone + torch.tensor([0.0, 0.0, 0.1]))
    assert "SciPy" in trust_solves.judged(case | {"dtype": "float64"}, read, start, y, gone)


@pytest.mark.filterwarnings("ignore")
def test_the_judge_notices_a_wrong_answer(trust_solves, monkeypatch):
    """A solver that stops at once and says that it has converged."""
    case = {axis: values[0] for axis, values in trust_solves.AXES.items()}
    real = trust_solves.value_of
    monkeypatch.setattr(trust_solves, "value_of", lambda solution: real(solution) + 0.3)
    assert trust_solves.run_case(case, seed=1).outcome == "wrong"
