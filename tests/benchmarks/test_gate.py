"""The gate of the benchmarks: passes on its own baseline, fails on every kind of regression."""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GATE = Path(__file__).resolve().parents[2] / "benchmarks" / "gate.py"
SPEC = importlib.util.spec_from_file_location("gate_of_benchmarks", GATE)
assert SPEC and SPEC.loader
gate: Any = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = gate
SPEC.loader.exec_module(gate)

BASELINE = {
    "pose_graph/sphere2500/mslsq LM": {"steps": 9.0, "cost": 675.7009629, "ratio": 0.9},
    "bundle_adjustment/49-7776/float32": {"cost_float32": 13345.0, "ratio": 0.5},
}


def changed(name: str, kind: str, value: float | None) -> dict[str, dict[str, float]]:
    """The baseline with one number replaced, or left out."""
    metrics = copy.deepcopy(BASELINE)
    if value is None:
        del metrics[name][kind]
    else:
        metrics[name][kind] = value
    return metrics


def failures(metrics: dict[str, dict[str, float]]) -> list[tuple[str, str]]:
    return [(finding.name, finding.kind) for finding in gate.compare(metrics, BASELINE) if finding.failed]


def test_the_baseline_is_as_good_as_itself() -> None:
    assert failures(BASELINE) == []


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("pose_graph/sphere2500/mslsq LM", "steps", 11.0),
        ("pose_graph/sphere2500/mslsq LM", "cost", 675.7029),
        ("pose_graph/sphere2500/mslsq LM", "cost", float("nan")),
        ("pose_graph/sphere2500/mslsq LM", "ratio", 1.4),
        ("bundle_adjustment/49-7776/float32", "cost_float32", 13360.0),
        ("pose_graph/sphere2500/mslsq LM", "cost", None),
    ],
)
def test_one_number_that_is_worse_or_gone_fails_and_is_named(name: str, kind: str, value: float | None) -> None:
    assert failures(changed(name, kind, value)) == [(name, kind)]


def test_better_numbers_noise_and_a_peer_that_is_not_installed_pass() -> None:
    name = "pose_graph/sphere2500/mslsq LM"
    assert failures(changed(name, "steps", 5.0)) == []
    assert failures(changed(name, "ratio", 1.0)) == []
    assert failures(changed(name, "cost", 675.70096291)) == []
    assert failures(changed(name, "ratio", None)) == []


def test_the_command_fails_on_a_regression_of_the_committed_baseline(tmp_path: Path) -> None:
    committed = json.loads(gate.BASELINE.read_text())
    slower = copy.deepcopy(committed)
    name = next(name for name, numbers in slower["metrics"].items() if "ratio" in numbers)
    slower["metrics"][name]["ratio"] *= 2
    for metrics, expected in ((committed, 0), (slower, 1)):
        measured = tmp_path / "measured.json"
        measured.write_text(json.dumps(metrics))
        done = subprocess.run([sys.executable, GATE, "--measured", measured], capture_output=True, text=True)
        assert done.returncode == expected, done.stdout
    assert f"WORSE    {name}, ratio" in done.stdout
