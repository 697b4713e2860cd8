"""Many tasks: failures, killed processes, interrupts and kills of the whole run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mslsq import parallel
from mslsq.parallel.outcome import Progress

ROOT = Path(__file__).resolve().parents[2]


def squared(item):
    """Its square; 3 is refused, and of 4 there is none that JSON has."""
    if item == 3:
        raise ValueError("three is not squared")
    return float("nan") if item == 4 else {"square": item**2, "threads": torch.get_num_threads()}


def by_index(outcomes):
    return {outcome.index: outcome for outcome in outcomes}


def test_one_failing_item_is_a_sentence_and_the_others_go_on():
    found = by_index(parallel.run(squared, range(6)))
    assert [found[index].ok for index in range(6)] == [True, True, True, False, False, True]
    assert found[5].result == {"square": 25, "threads": 1}
    assert found[3].error.startswith("ValueError: three is not squared (") and "line" in found[3].error
    assert "not JSON compliant" in found[4].error


def test_progress_counts_and_estimates():
    said = []
    list(parallel.run(squared, range(4), progress=said.append))
    assert [(one.done, one.failed) for one in said] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1)]
    assert said[0].remaining is None and said[-1].remaining == 0
    assert Progress(10, 4, 0, 2, 6.0).remaining == 18.0  # 3 s each of those that this run has computed


def test_a_finished_item_is_not_computed_again_and_a_failed_one_is_tried_again(tmp_path):
    calls = []

    def work(item):
        calls.append(item)
        return squared(item)

    path = tmp_path / "journal.jsonl"
    first = by_index(parallel.run(work, range(4), journal=path))
    calls.clear()
    again = by_index(parallel.run(work, range(4), journal=path))
    assert calls == [3]
    assert [again[index].kept for index in range(4)] == [True, True, True, False]
    assert [again[index].result for index in range(4)] == [first[index].result for index in range(4)]
    with pytest.raises(parallel.JournalError, match="items = 4, not 5"):
        parallel.run(work, range(5), journal=path)
    assert not any(outcome.kept for outcome in parallel.run(work, range(4), journal=path, resume=False))


def test_a_loop_that_is_left_keeps_what_was_done(tmp_path):
    path = tmp_path / "journal.jsonl"
    for outcome in parallel.run(squared, range(3), journal=path):
        assert outcome.index == 0
        break
    assert [outcome.kept for outcome in parallel.run(squared, range(3), journal=path)] == [True, False, False]


@pytest.mark.parametrize("n_jobs", [0, True, 1.5, "2"])
def test_n_jobs_is_a_whole_number_but_zero(n_jobs):
    with pytest.raises(ValueError, match="n_jobs must be a positive integer, or -1"):
        parallel.run(squared, [1], n_jobs=n_jobs)


def test_without_joblib_one_process_works_and_two_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    assert len(list(parallel.run(squared, [1, 2]))) == 2
    with pytest.raises(parallel.JoblibMissingError, match=r"pip install 'mslsq\[parallel\]'"):
        parallel.run(squared, [1, 2], n_jobs=2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_process_is_said_and_its_items_are_done_again_or_reported(tmp_path):
    pytest.importorskip("joblib")
    once = tmp_path / "once"

    def work(item):
        if item == 2 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return [squared(item), os.getpid(), os.environ.get("OPENBLAS_NUM_THREADS")]

    found = by_index(parallel.run(work, [0, 1, 2, 3, 5, 6, 7, 8], n_jobs=2, journal=tmp_path / "journal"))
    assert len(found) == 8
    assert "was killed, and again when it ran alone (SIGKILL)" in found[4].error
    assert "three is not squared" in found[3].error
    assert "A process was killed while this item was in work (SIGKILL)" in found[2].note
    good = [found[index] for index in (0, 1, 2, 5, 6, 7)]
    assert [outcome.result[0]["square"] for outcome in good] == [0, 1, 4, 36, 49, 64]
    assert all(o.result[0]["threads"] == 1 and o.result[2] == "1" and o.result[1] != os.getpid() for o in good)


SCRIPT = """
import sys, time
from mslsq.parallel import run

def work(item):
    open(f"begun-{item}", "a").write("x")
    time.sleep(0.1)
    return item

if __name__ == "__main__":
    try:
        for outcome in run(work, range(30), n_jobs=int(sys.argv[1]), journal="journal.jsonl"):
            print(outcome.index, outcome.kept, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def ended_early(folder, n_jobs, end):
    """A run that a signal ends after its first five items; what it has printed."""
    (folder / "work.py").write_text(SCRIPT)
    command = [sys.executable, "work.py", str(n_jobs)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"cwd": folder, "env": environment, "start_new_session": True, "text": True}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    lines = [process.stdout.readline() for _ in range(5)]
    end(process)
    rest, errors = process.communicate(timeout=60)
    again = subprocess.run(command, capture_output=True, timeout=120, **options)
    assert again.returncode == 0, again.stderr
    return [*lines, *rest.splitlines()], errors, [line.split() for line in again.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signals to groups there")
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_after_a_sigkill_every_item_is_there_once(tmp_path, n_jobs):
    def end(process):
        process.send_signal(signal.SIGKILL)

    lines, _, again = ended_early(tmp_path, n_jobs, end)
    assert sorted(int(index) for index, _ in again) == list(range(30))
    kept = {int(index) for index, kept in again if kept == "True"}
    assert {int(line.split()[0]) for line in lines} <= kept
    assert all((tmp_path / f"begun-{index}").read_text() == "x" for index in kept)


def children(parent):
    """Numbers of processes below one, by Linux."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            if int(rest.rpartition(")")[2].split()[1]) == parent:
                found += [int(number), *children(int(number))]
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are listed as Linux does")
def test_processes_that_have_only_just_begun_end_with_their_parent(tmp_path):
    """By themselves they would wait five minutes for something to do."""
    pytest.importorskip("joblib")
    (tmp_path / "work.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "work.py", "2"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    while len(begun := children(process.pid)) < 3:  # two, and what looks after their memory
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    end = time.monotonic() + 100
    while any(Path(f"/proc/{number}").exists() for number in begun) and time.monotonic() < end:
        time.sleep(0.1)
    assert time.monotonic() < end


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signals to groups there")
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_control_c_ends_cleanly_and_keeps_what_is_done(tmp_path, n_jobs):
    def end(process):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group has it

    begin = time.monotonic()
    lines, errors, again = ended_early(tmp_path, n_jobs, end)
    assert lines[-1] == "interrupted" and "Traceback" not in errors
    assert time.monotonic() - begin < 60
    assert {int(line.split()[0]) for line in lines[:-1]} <= {int(i) for i, kept in again if kept == "True"}
    records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()[1:]]
    assert sorted(record["item"] for record in records) == list(range(30))
