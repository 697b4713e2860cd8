"""Many fits from a file: those of `curve_fit`, in pieces, in processes, after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mslsq
from mslsq.front.fits.file_arrays import RESULTS

ROOT = Path(__file__).resolve().parents[3]
T = torch.linspace(0, 4, 16, dtype=torch.float64)


def decay(p, t):
    return p["amplitude"] * torch.exp(-p["rate"] * t) + p["offset"]


PLAIN = mslsq.LevenbergMarquardt(native="never")
"""Where a program need not be compiled."""
START = {"amplitude": 1.0, "rate": 1.0, "offset": 0.0}


def rows(count, dtype=np.float64):
    random = np.random.default_rng(0)
    clean = 2.0 * np.exp(-1.3 * T.numpy()) + 0.4
    return (clean + 0.02 * random.standard_normal((count, 16))).astype(dtype)


@pytest.fixture
def file(tmp_path):
    np.save(tmp_path / "y.npy", rows(50))
    return tmp_path / "y.npy"


def content(folder):
    return {name: (folder / f"{name}.npy").read_bytes() for name in RESULTS}


def test_results_are_those_of_curve_fit(file, tmp_path):
    found = mslsq.fit_file(decay, T, file, START, tmp_path / "fits", at_once=16)
    y = torch.from_numpy(np.load(file))
    solver = mslsq.LevenbergMarquardt(native="wait")
    fit = mslsq.curve_fit(decay, T, y, START, in_dims=(None, 0, None), solver=solver)
    assert found.names == ("amplitude", "rate", "offset") == fit.names
    assert found.converged == found.count == 50 and found.counts.keys() == {mslsq.Status(int(s)) for s in found.status}
    np.testing.assert_array_equal(found.parameters, torch.stack([*fit.value.values()], 1))
    np.testing.assert_allclose(found.standard_errors, torch.stack([*fit.standard_errors.values()], 1), rtol=1e-9)
    np.testing.assert_array_equal(found.cost, fit.solution.cost)
    np.testing.assert_array_equal(found.num_steps, fit.solution.num_steps)
    assert "50 of 50 fits converged" in found.message()


def test_a_bad_row_is_nan_with_its_status_and_its_neighbours_are_to_the_bit_what_they_were(file, tmp_path):
    good = mslsq.fit_file(decay, T, file, START, tmp_path / "good", at_once=16)
    y = np.load(file)
    y[3], y[20, 2], y[21, 2:], y[22, 5] = np.nan, np.inf, np.nan, np.nan
    np.save(file, y)
    found = mslsq.fit_file(decay, T, file, START, tmp_path / "bad", at_once=16)
    assert [mslsq.Status(int(found.status[row])).name for row in (3, 20, 21)] == ["SINGULAR", "NON_FINITE", "SINGULAR"]
    assert np.isnan(found.parameters[[3, 20, 21]]).all() and np.isnan(found.standard_errors[[3, 20, 21]]).all()
    assert np.isfinite(found.parameters[22]).all() and found.status[22] in (1, 2, 3)  # one missing point
    others = np.delete(np.arange(50), [3, 20, 21, 22])
    np.testing.assert_array_equal(found.parameters[others], good.parameters[others])
    assert found.converged == 47 and "singular" in found.message()


def test_a_row_that_curve_fit_refuses_does_not_keep_its_piece_from_being_fitted(file, tmp_path):
    starts = np.ones((50, 3))
    starts[0] = starts[17] = -1.0
    np.save(tmp_path / "p0.npy", starts)
    vector = lambda p, t: p[0] * torch.exp(-p[1] * t) + p[2]  # noqa: E731
    found = mslsq.fit_file(
        vector, T, file, tmp_path / "p0.npy", tmp_path / "fits", at_once=16, bounds=(0.0, None), solver=PLAIN
    )
    assert found.names == ("p[0]", "p[1]", "p[2]")
    assert np.flatnonzero(found.status == 0).tolist() == [0, 17]
    assert np.isnan(found.parameters[[0, 17]]).all() and found.converged == 48
    assert list(found.failures.values()) == [0] and "not made" in found.message()


def test_points_and_sigma_of_each_row_come_from_files(tmp_path):
    y, t = rows(20, np.float32), np.tile(T.numpy().astype(np.float32), (20, 1))
    t[5:] *= 1.5
    sigma = np.full_like(y, 0.02)
    sigma[7] = 0.04
    for name, array in (("y", y), ("t", t), ("sigma", sigma)):
        np.save(tmp_path / f"{name}.npy", array)
    files = tmp_path / "t.npy", tmp_path / "y.npy"
    options = {"sigma": str(tmp_path / "sigma.npy"), "absolute_sigma": True, "dtype": torch.float64, "solver": PLAIN}
    found = mslsq.fit_file(decay, *files, START, tmp_path / "fits", **options)
    for row in (2, 6, 7):
        one = [torch.from_numpy(array[row].astype(np.float64)) for array in (t, y, sigma)]
        fit = mslsq.curve_fit(decay, *one[:2], START, sigma=one[2], absolute_sigma=True)
        np.testing.assert_allclose(found.parameters[row], torch.stack([*fit.value.values()]), rtol=1e-6)
        np.testing.assert_allclose(found.standard_errors[row], torch.stack([*fit.standard_errors.values()]), rtol=1e-5)
    assert found.parameters.dtype == np.float64


def test_a_second_call_computes_nothing_and_another_model_or_other_data_are_refused(file, tmp_path):
    said = []
    first = mslsq.fit_file(decay, T, file, START, tmp_path / "fits", at_once=16)
    before = content(tmp_path / "fits")
    again = mslsq.fit_file(decay, T, file, START, tmp_path / "fits", at_once=16, progress=said.append)
    assert (said[0].kept, said[-1].done) == (4, 4) and len(said) == 1
    assert again.counts == first.counts and content(tmp_path / "fits") == before
    with pytest.raises(mslsq.errors.JournalError, match="model, options and data"):
        mslsq.fit_file(lambda p, t: 1.001 * decay(p, t), T, file, START, tmp_path / "fits", at_once=16)
    with pytest.raises(mslsq.errors.JournalError, match="at_once = 16, not 8"):
        mslsq.fit_file(decay, T, file, START, tmp_path / "fits", at_once=8)
    np.save(file, rows(50)[::-1])
    with pytest.raises(mslsq.errors.JournalError, match=r"fit_file\.y\.mtime_ns = "):
        mslsq.fit_file(decay, T, file, START, tmp_path / "fits", at_once=16)
    assert mslsq.fit_file(decay, T, file, START, tmp_path / "fits", at_once=16, resume=False).converged == 50


def test_results_that_are_gone_are_made_again(file, tmp_path):
    mslsq.fit_file(decay, T, file, START, tmp_path / "fits")
    before = content(tmp_path / "fits")
    (tmp_path / "fits" / "cost.npy").unlink()
    mslsq.fit_file(decay, T, file, START, tmp_path / "fits")
    assert content(tmp_path / "fits") == before


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((4, 3), int), "float32 or float64"),
        (np.zeros(4), r"\(fits, points\)"),
        (np.asfortranarray(np.zeros((4, 3))), "column by column"),
        (np.zeros((0, 3)), r"\(fits, points\)"),
    ],
)
def test_files_that_hold_no_rows_of_numbers_are_refused(tmp_path, array, says):
    np.save(tmp_path / "y.npy", array)
    with pytest.raises(mslsq.ProblemError, match=says):
        mslsq.fit_file(decay, T, tmp_path / "y.npy", START, tmp_path / "fits")
    assert not (tmp_path / "fits").exists()


def test_a_file_that_is_none_and_one_with_other_rows_are_refused(file, tmp_path):
    (tmp_path / "text.npy").write_text("1 2 3")
    with pytest.raises(mslsq.ProblemError, match=r"cannot be read as a \.npy file"):
        mslsq.fit_file(decay, T, tmp_path / "text.npy", START, tmp_path / "fits")
    np.save(tmp_path / "sigma.npy", np.ones((49, 16)))
    with pytest.raises(mslsq.ProblemError, match="sigma has 49 rows, y has 50"):
        mslsq.fit_file(decay, T, file, START, tmp_path / "fits", sigma=tmp_path / "sigma.npy")


SCRIPT = """
import sys, torch, mslsq

def decay(p, t):
    return p["amplitude"] * torch.exp(-p["rate"] * t) + p["offset"]

if __name__ == "__main__":
    start = {"amplitude": 1.0, "rate": 1.0, "offset": 0.0}
    t = torch.linspace(0, 4, 16, dtype=torch.float64)
    said = lambda progress: print(progress.done, progress.kept, flush=True)
    mslsq.fit_file(decay, t, "y.npy", start, sys.argv[1], n_jobs=int(sys.argv[2]), at_once=512, progress=said)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_after_a_sigkill_the_files_are_to_the_byte_those_of_a_run_that_was_not_killed(tmp_path):
    pytest.importorskip("joblib")
    y = rows(40_000)
    y[::1000] = np.nan
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "fit.py").write_text(SCRIPT)
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, "text": True}
    command = [sys.executable, "fit.py"]
    killed = subprocess.Popen([*command, "killed", "2"], stdout=subprocess.PIPE, **options)
    while int(killed.stdout.readline().split()[0]) < 7:
        pass
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    again = subprocess.run([*command, "killed", "2"], capture_output=True, timeout=300, **options)
    assert again.returncode == 0, again.stderr
    done, kept = map(int, again.stdout.splitlines()[0].split())
    assert done == kept and 7 <= kept < 79
    straight = subprocess.run([*command, "straight", "1"], capture_output=True, timeout=300, **options)
    assert straight.returncode == 0, straight.stderr
    assert content(tmp_path / "killed") == content(tmp_path / "straight")
