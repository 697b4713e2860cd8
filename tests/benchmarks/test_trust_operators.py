"""A sample of the long run of operators in residuals: none is silently wrong, none ends the process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *arguments: str) -> dict:
    out = tmp_path / "operators.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "trust_operators.py"), "--out", str(out), *arguments]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3000)
    assert done.returncode == 0, done.stderr[-2000:] + Path(f"{out}.log").read_text()[-2000:]
    return json.loads(out.read_text())


def silent(found: dict) -> list[str]:
    return [f"{line['check']}: {line['what']}" for line in found["defects"] if line["class"] in ("WRONG", "CRASHED")]


@pytest.mark.slow
def test_a_sample_of_operators_in_residuals_is_right_or_refused(tmp_path):
    found = run(tmp_path, "--seed", "7", "--count", "200")
    assert found["checks"] >= 150
    assert not silent(found), "\n".join(silent(found))


@pytest.mark.slow
def test_operators_that_pytorch_gets_wrong_are_right_in_residuals(tmp_path):
    names = "linalg_solve,linalg_det,cdist,nn_functional_grid_sample,addcmul,nn_functional_huber_loss"
    found = run(tmp_path, "--count", "60", "--only", names, "--dtypes", "float64", "--rounds", "3")
    assert found["counts"].get("right by rewriting", 0) > 10
    assert not silent(found), "\n".join(silent(found))


@pytest.mark.slow
def test_thousands_of_operators_in_residuals_are_right_or_refused(tmp_path):
    found = run(tmp_path, "--seed", "11", "--count", "5000", "--minutes", "40")
    assert not silent(found), "\n".join(silent(found))
