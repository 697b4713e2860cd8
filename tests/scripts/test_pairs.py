"""`pairs=` of scripts/align.py: a table of pairs in, a table of results out, resumable."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("hydra")
iio = pytest.importorskip("imageio.v3")
pairs = pytest.importorskip("pairs")
from command_line import CommandError  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    """Three overlapping maps, a table of three pairs, one of which has no file."""
    noise = np.random.default_rng(0).integers(0, 255, (70, 90), dtype=np.uint8)
    (tmp_path / "in").mkdir()
    for name, x in (("a", 0), ("b", 5), ("c", 9)):
        iio.imwrite(tmp_path / "in" / f"{name}.png", noise[:, x : x + 64])
    (tmp_path / "in" / "pairs.csv").write_text(
        "day,reference,map,initial,model\n1,a.png,b.png,,\n2,a.png,c.png,-8 0,translation\n3,a.png,missing.png,,\n"
    )
    return tmp_path


def started(folder, *options):
    command = [sys.executable, str(ROOT / "scripts" / "align.py"), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def test_a_table_has_paths_from_its_folder_starts_and_models(folder):
    table, more = pairs.read_table(folder / "in" / "pairs.csv")
    assert [Path(pair.map).name for pair in table] == ["b.png", "c.png", "missing.png"]
    assert Path(table[0].map).exists() and table[0].initial is None and table[0].model is None
    assert torch.equal(table[1].initial[:2, 2], torch.tensor([-8.0, 0.0], dtype=torch.float64))
    assert table[1].model == "translation" and more == [{"day": "1"}, {"day": "2"}, {"day": "3"}]
    assert pairs.initial_of("1 0 5, 0 1 6", "")[:2, 2].tolist() == [5.0, 6.0]
    assert pairs.initial_of("1 0 5 0 1 6 0 0 2", "")[2, 2] == 2.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("reference,moving\na,b\n", "no column map; the first line has reference, moving"),
        ("reference,map\n", "no pairs"),
        ("reference,map\na.png,\n", "line 2: reference and map are both needed"),
        ("reference,map,initial\na.png,b.png,1 2 3\n", "line 2: initial must be 2 numbers"),
        ("reference,map,initial\na.png,b.png,x y\n", "line 2: initial must be 2 numbers"),
    ],
)
def test_tables_that_are_not_valid_are_refused_in_words(tmp_path, text, says):
    (tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(CommandError, match=says):
        pairs.read_table(tmp_path / "pairs.csv")


def test_all_pairs_of_a_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found, _ = pairs.pairs_of("all", ["in/*.png"])
    assert [(Path(a).stem, Path(b).stem) for a, b, *_ in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    with pytest.raises(CommandError, match="1 maps are given"):
        pairs.pairs_of("all", ["in/a.png"])
    with pytest.raises(CommandError, match="leave maps out"):
        pairs.pairs_of("in/pairs.csv", ["in/a.png"])
    with pytest.raises(CommandError, match="cannot be read"):
        pairs.pairs_of("in/none.csv", [])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_run_that_was_killed_goes_on_and_ends_in_the_table_of_one_that_was_not(folder):
    options = ("pairs=in/pairs.csv", "model=se2", "quiet=true")
    killed = started(folder, *options, "hydra.run.dir=killed")
    journal, limit = folder / "killed" / ".progress" / "pairs.jsonl", time.monotonic() + 120
    while (not journal.exists() or journal.read_bytes().count(b"\n") < 2) and time.monotonic() < limit:
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = started(folder, "resume=killed", "n_jobs=2" if "joblib" in sys.modules else "n_jobs=1")
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    straight = started(folder, *options, "hydra.run.dir=straight")
    straight.communicate(timeout=300)
    assert straight.returncode == 0
    tables = []
    for name in ("killed", "straight"):
        with open(folder / name / "pairs.csv", newline="") as stream:
            tables.append([{**row, "seconds": ""} for row in csv.DictReader(stream)])
    assert tables[0] == tables[1]
    assert [row["status"] for row in tables[0]] == ["aligned", "aligned", "bad_input"]
    assert [row["day"] for row in tables[0]] == ["1", "2", "3"] and "no such file" in tables[0][2]["reason"]
    assert [round(float(row["t02"])) for row in tables[0][:2]] == [-5, -9]
    assert json.loads((folder / "killed" / "metrics.json").read_text())["summary"]["aligned"] == 2
    done = started(folder, "resume=killed")
    assert "nothing is done again" in done.communicate(timeout=300)[0]
