"""The tables that FitBenchmarking's results go into."""

import importlib.util
from pathlib import Path
from typing import Any

TABLES = Path(__file__).resolve().parents[2] / "benchmarks" / "fitbenchmarking" / "tables.py"
SPEC = importlib.util.spec_from_file_location("tables_of_fitbenchmarking", TABLES)
assert SPEC and SPEC.loader
tables: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


def record(problem: str, minimizer: str, cost: float, seconds: float, flag: int = 0) -> dict:
    return {
        "problem": problem,
        "minimizer": minimizer,
        "cost": cost,
        "seconds": seconds,
        "evaluations": 7,
        "flag": flag,
    }


def test_only_those_that_found_the_minimum_count_for_the_time():
    text = tables.table(
        [
            record("a", "quick", 2.0, 0.1),  # converged elsewhere
            record("a", "slow", 1.0, 1.0),
            record("a", "slower", 1.00001, 4.0),
            record("b", "quick", float("inf"), float("inf"), 3),
            record("b", "slow", 1.0, 1.0, 1),
            record("b", "slower", 1.0, 1.5),
        ]
    )
    quick, slow, slower = (line.split(" | ") for line in text.splitlines()[2:])
    assert quick[1:5] == ["2", "0", "0", "1"]
    assert slow[1:7] == ["2", "2", "1", "0", "1.0", "2"]
    assert slower[1:7] == ["2", "2", "2", "0", "2.8", "1"]


def test_equations_are_solved_by_every_cost_that_is_all_but_zero():
    records = [record("a", "exact", 0.0, 1.0), record("a", "near", 1e-15, 2.0), record("a", "far", 1e-9, 3.0)]
    found = [line.split(" | ")[2] for line in tables.table(records).splitlines()[2:]]
    assert found == ["1", "1", "0"]


def test_profiles_are_shares_of_all_problems():
    text = tables.profile(
        [
            record("a", "quick", 1.001, 0.1),  # near, not at the minimum
            record("a", "slow", 1.0, 1.0),
            record("b", "quick", 2.0, 0.1),
            record("b", "slow", 2.0, 0.4),
        ]
    )
    quick, slow = (line.strip("| ").split(" | ")[1:] for line in text.splitlines()[2:])
    assert quick == ["50", "50", "100", "100", "50", "50", "50", "50", "50"]
    assert slow == ["100", "100", "100", "100", "50", "50", "100", "100", "100"]
