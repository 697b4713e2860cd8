"""A sample of the long run of whole solves: front doors, methods, dtypes, hidden state that changes between calls."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(12))
def test_no_sample_is_wrong(trust_solves, number):
    case = {**trust_solves.pairwise(12, seed=7)[number], "trace": "auto" if number % 2 else "never"}
    verdict = trust_solves.run_case(case, seed=700 + number)
    assert verdict.outcome not in ("wrong", "crashed"), verdict


@pytest.mark.filterwarnings("ignore")
def test_the_judge_notices_a_wrong_answer(trust_solves, monkeypatch):
    """A solver that stops at once and says that it has converged."""
    case = {axis: values[0] for axis, values in trust_solves.AXES.items()}
    real = trust_solves.value_of
    monkeypatch.setattr(trust_solves, "value_of", lambda solution: real(solution) + 0.3)
    assert trust_solves.run_case(case, seed=1).outcome == "wrong"
