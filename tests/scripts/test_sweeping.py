"""Sweeps: all jobs run, one table ends them."""

import csv
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hydra")
iio = pytest.importorskip("imageio.v3")
OmegaConf = pytest.importorskip("omegaconf").OmegaConf
sweeping = pytest.importorskip("sweeping")

ROOT = Path(__file__).resolve().parents[2]


def job(folder, name, overrides, code, figures=None):
    (folder / name).mkdir()
    begin = time.time()
    if figures:
        (folder / name / "metrics.json").write_text(json.dumps({"summary": figures}))
    sweeping.recorded(folder / name, overrides, begin, code)


def test_the_table_has_every_job_with_what_differs_and_what_came_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweeping, "console", sweeping.Console(width=200, highlight=False))
    job(tmp_path, "10", ["maps=[a]", "model=se2"], 0, {"aligned": 2, "median_corner_sigma_px": 0.01234, "seconds": 3.0})
    job(tmp_path, "9", ["maps=[a]", "model=afine"], 2)
    job(tmp_path, "11", ["maps=[a]", "model=sim2"], None)
    assert sweeping.conclude(tmp_path) == sweeping.SOME_FAILED
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines() if line.strip()]
    assert lines[1][:2] == ["9", "model=afine"]
    assert lines[2][:4] == ["10", "model=se2", "2", "0.01234"]
    assert lines[3][-1] == "killed"
    assert "2 of 3 jobs did not end with 0: 9 (2), 11 (killed)" in said.err
    with open(tmp_path / "sweep.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["job"] for row in rows] == ["9", "10", "11"]
    assert rows[1]["overrides"] == "maps=[a] model=se2"
    assert (rows[1]["median_corner_sigma_px"], rows[0]["exit_code"], rows[2]["exit_code"]) == ("0.01234", "2", "")


def test_figures_of_an_earlier_run_are_not_taken_for_those_of_a_failed_one(tmp_path):
    job(tmp_path, "0", ["model=se2"], 0, {"aligned": 2})
    os.utime(tmp_path / "0" / "metrics.json", (1, 1))
    assert sweeping.recorded(tmp_path / "0", [], time.time(), 0).figures == {}
    assert sweeping.recorded(tmp_path / "0", [], time.time(), 2, resumed=True).figures == {}
    assert sweeping.recorded(tmp_path / "0", [], time.time(), 0, resumed=True).figures == {"aligned": 2}


def test_consoles_are_sent_to_the_processes_of_a_launcher_by_their_names():
    for name in ("console", "errors"):
        assert pickle.loads(pickle.dumps(getattr(sweeping, name))) is getattr(sweeping, name)


def test_a_sweep_whose_jobs_all_end_with_0_ends_with_0(tmp_path):
    job(tmp_path, "0", [], 0)
    assert sweeping.conclude(tmp_path) == 0
    assert sweeping.conclude(tmp_path / "nothing") == 0


@pytest.mark.slow
def test_all_jobs_run_although_one_fails(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (70, 80), dtype=np.uint8)
    for name, x in (("a.png", 0), ("b.png", 5)):
        iio.imwrite(tmp_path / name, noise[:, x : x + 64])
    command = [sys.executable, str(ROOT / "scripts" / "align.py"), "-m", "maps=[a.png,b.png]", "quiet=true"]
    command += ["model=translation,afine,se2", "hydra.sweep.dir=out"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == sweeping.SOME_FAILED, done.stderr
    assert "Did you mean 'affine'?" in done.stderr
    rows = list(csv.DictReader((tmp_path / "out" / "sweep.csv").open(newline="")))
    assert [row["exit_code"] for row in rows] == ["0", "2", "0"]
    assert [row["aligned"] for row in rows] == ["1", "", "1"]
    assert "model=afine" in done.stdout
    done = subprocess.run([*command[:2], "resume=out"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == sweeping.SOME_FAILED
    assert done.stdout.count("this run is whole already") == 2


def test_jobs_in_a_python_of_their_own_find_the_modules_of_the_scripts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "known")
    hydra = OmegaConf.create({"sweep": {"dir": str(tmp_path)}, "overrides": {"task": []}})
    sweeping.Sweep().on_multirun_start(OmegaConf.create({"hydra": hydra}))
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(ROOT / "scripts"), "known"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("joblib", ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]),
        ("submitit", ["hydra/launcher=submitit_local"]),
    ],
)
def test_launchers_run_jobs_in_other_processes(tmp_path, plugin, options):
    pytest.importorskip(f"hydra_plugins.hydra_{plugin}_launcher")
    noise = np.random.default_rng(0).integers(0, 255, (70, 80), dtype=np.uint8)
    for name, x in (("a.png", 0), ("b.png", 5)):
        iio.imwrite(tmp_path / name, noise[:, x : x + 64])
    command = [sys.executable, str(ROOT / "scripts" / "align.py"), "-m", "maps=[a.png,b.png]", "quiet=true"]
    command += ["model=translation,afine", "hydra.sweep.dir=out", *options]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == sweeping.SOME_FAILED, done.stderr
    rows = list(csv.DictReader((tmp_path / "out" / "sweep.csv").open(newline="")))
    assert [(row["exit_code"], row["aligned"]) for row in rows] == [("0", "1"), ("2", "")]
    assert json.loads((tmp_path / "out" / "0" / "metrics.json").read_text())["summary"]["aligned"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [(["--cfg", "job"], "model: sim2"), (["-sc", "query=bash"], "model=")],
)
def test_hydras_own_flags_go_on_working(tmp_path, options, says):
    environment = os.environ | {"COMP_LINE": "python align.py mod", "COMP_POINT": "19", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "scripts" / "align.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
