"""`resume=FOLDER`: what was done is not done again, and nothing of another run is taken for it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mslsq.alignment import align, synthetic
from mslsq.alignment.mosaics import cut, ring

pytest.importorskip("hydra")
resuming = pytest.importorskip("resuming")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"model": "se2", "resume": None, "quiet": False, "bundled": {"count": 2}}


@pytest.fixture(scope="module")
def results():
    """Two maps; six placed jointly, with links; two that bend."""
    pair = synthetic.make_pair("camera", "translation", seed=1, size=96)
    mosaic = cut(synthetic.base_raster("camera") / 1.0, ring(6, 62, (250, 250)), size=100, seed=1, model="translation")
    maps = [pair.reference, pair.moving]
    return [
        align(maps, model="translation"),
        align(mosaic.maps, model="translation"),
        align(maps, model="piecewise", init="identity"),
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"a picture")
    return path


def resumed(folder, **changes):
    return OPTIONS | {"resume": str(folder)} | changes


def test_a_kept_result_comes_back_to_the_bit(tmp_path, results):
    run = resuming.Resumable(tmp_path, OPTIONS, [])
    for number, result in enumerate(results):
        run.keep(number, result)
        found = resuming.Resumable(tmp_path, resumed(tmp_path), []).kept(number)
        for name in ("transforms", "covariance", "gain", "status"):
            assert torch.equal(getattr(found, name).nan_to_num(), getattr(result, name).nan_to_num())
        assert (found.reasons, found.sizes, found.stages) == (result.reasons, result.sizes, result.stages)
        assert [(link.pair, link.status) for link in found.links] == [(link.pair, link.status) for link in result.links]
        points = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
        assert result.aligned and torch.equal(found.to_map(1, points), result.to_map(1, points))


def test_a_half_written_result_is_none_and_nothing_in_a_file_is_run(tmp_path, results):
    run = resuming.Resumable(tmp_path, OPTIONS, [])
    run.keep(0, results[0])
    path = tmp_path / ".progress" / "scene-0.pt"
    path.write_bytes(path.read_bytes()[:1000])
    assert run.kept(0) is None

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save(Harm(), path)
    assert run.kept(0) is None and not (tmp_path / "harm").exists()
    torch.save([1], path)
    assert run.kept(0) is None and run.kept(1) is None


def test_other_options_and_inputs_are_refused_in_words(tmp_path, file):
    folder = tmp_path / "run"
    resuming.Resumable(folder, OPTIONS, [file])
    again = resuming.Resumable(folder, resumed(folder, quiet=True), [file])
    assert not again.is_whole
    with pytest.raises(resuming.ResumeError, match="that run has model='se2', not 'sim2'"):
        resuming.Resumable(folder, resumed(folder, model="sim2"), [file])
    with pytest.raises(resuming.ResumeError, match=r"that run has bundled\.count=2, not 3"):
        resuming.Resumable(folder, resumed(folder, bundled={"count": 3}), [file])
    with pytest.raises(resuming.ResumeError, match="was an input of that run"):
        resuming.Resumable(folder, resumed(folder), [])
    with pytest.raises(resuming.ResumeError, match=r"b\.png is no input of that run"):
        resuming.Resumable(folder, resumed(folder), [file, tmp_path / "b.png"])
    with pytest.raises(resuming.ResumeError, match=r"leave hydra\.run\.dir out"):
        resuming.Resumable(tmp_path / "x" / "y", resumed(folder), [file])
    os.utime(file, (5, 5))
    resuming.Resumable(folder, resumed(folder), [file])  # another time, the same content
    file.write_bytes(b"a Picture")
    with pytest.raises(resuming.ResumeError, match=r"a\.png has changed"):
        resuming.Resumable(folder, resumed(folder), [file])
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"torch": "1.0"}))
    with pytest.raises(resuming.ResumeError, match=r"with torch 1\.0"):
        resuming.Resumable(folder, resumed(folder), [file])


def test_a_run_is_whole_only_while_all_its_files_are_as_they_were(tmp_path, file):
    folder = tmp_path / "run"
    run = resuming.Resumable(folder, OPTIONS, [file])
    run.keep(0, align([torch.zeros(8, 8), torch.zeros(8, 8)]))
    written = folder / "aligned" / "a.png"
    written.parent.mkdir()
    written.write_bytes(b"aligned")
    run.finish([written], 3)
    assert not (folder / ".progress").exists()
    again = resuming.Resumable(folder, resumed(folder), [file])
    assert again.is_whole and again.code == 3
    written.write_bytes(b"aligneD")
    assert not resuming.Resumable(folder, resumed(folder), [file]).is_whole
    written.unlink()
    assert not resuming.Resumable(folder, resumed(folder), [file]).is_whole
    assert not resuming.Resumable(folder, OPTIONS, [file]).is_whole  # without resume all is done again


def test_resume_takes_the_options_that_are_not_given_from_the_run(tmp_path):
    resuming.Resumable(tmp_path, OPTIONS, [], ["+experiment=multiscale", "model=se2"])
    assert resuming.with_recorded(["model=se2"]) == ["model=se2"]
    assert resuming.with_recorded(["resume=null"]) == ["resume=null"]
    given = f"resume={tmp_path}"
    assert resuming.with_recorded([given]) == ["+experiment=multiscale", "model=se2", given]
    found = resuming.with_recorded([given, "model=sim2"])
    assert found == ["+experiment=multiscale", given, "model=sim2"]
    assert resuming.with_recorded(["-m", given]) == ["-m", "+experiment=multiscale", "model=se2", given]
    assert resuming.with_recorded([given, "--multirun"])[0] == "--multirun"  # argparse wants the others together
    with pytest.raises(resuming.ResumeError, match="there is no run in this folder"):
        resuming.with_recorded([f"resume={tmp_path / 'elsewhere'}"])


def command(*options):
    return [sys.executable, str(ROOT / "scripts" / "align.py"), *map(str, options)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_run_that_was_killed_goes_on_and_ends_as_it_would_have(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    options = [
        "bundled.rasters=[camera,retina]",
        "bundled.count=2",
        "bundled.size=128",
        "bundled.shift=5",
        "quiet=true",
    ]
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    process = subprocess.Popen(command(*options, f"hydra.run.dir={killed}"), env=environment, stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 240
    while not (killed / ".progress" / "scene-0.pt").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "transforms.json").exists()
    runs = {"env": environment, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command(f"resume={killed}"), **runs)
    assert done.returncode == 0, done.stderr
    assert "camera: solved already" in done.stdout
    assert subprocess.run(command(*options, f"hydra.run.dir={straight}"), **runs).returncode == 0
    assert (killed / "transforms.json").read_text() == (straight / "transforms.json").read_text()
    assert sorted(path.name for path in killed.iterdir()) == sorted(path.name for path in straight.iterdir())
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*.png")}
    done = subprocess.run(command(f"resume={killed}"), **runs)
    assert done.returncode == 0 and "nothing is done again" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in killed.rglob("*.png")}
