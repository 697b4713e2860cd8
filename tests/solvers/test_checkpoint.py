"""A solve that was stopped goes on from its file, in another process too, and ends where it would have ended."""

import subprocess
import sys
import warnings

import pytest
import torch

import mslsq
from mslsq import Status
from mslsq.errors import CheckpointError

T = torch.linspace(0, 1, 20, dtype=torch.float64)


def residual(p, y):
    return p[0] * torch.exp(-p[1] * T) + p[2] - y


START = torch.tensor([[1.0, 6.0, 0.3], [9.0, 0.4, -5.0]], dtype=torch.float64)
Y = torch.stack((2 * torch.exp(-1.5 * T), 3 * torch.exp(-4 * T) + 0.1 + 0.05 * torch.cos(9 * T)))


def solved(solver, y=Y, **options):
    return mslsq.least_squares(residual, START, (y,), in_dims=(0, 0), solver=solver, **options)


@pytest.mark.parametrize("method", [mslsq.LevenbergMarquardt, mslsq.Dogleg, mslsq.GaussNewton])
@pytest.mark.parametrize("trace", ["always", "never"])
def test_the_rest_of_the_steps_are_those_of_one_solve(method, trace, tmp_path):
    options = {"trace": trace, "native": "never"}
    whole = solved(method(**options))
    checkpoint = mslsq.Checkpoint(tmp_path / "solve", seconds=0)
    for steps in (2, 3, 5):
        part = solved(method(max_steps=steps, checkpoint=checkpoint, **options))
        assert int(part.num_steps.max()) <= steps
    assert checkpoint.file.exists()
    rest = solved(method(checkpoint=checkpoint, **options))
    assert not checkpoint.file.exists()
    assert torch.equal(rest.value, whole.value) and torch.equal(rest.status, whole.status)
    assert torch.equal(rest.num_steps, whole.num_steps)
    assert torch.equal(rest.history.cost.nan_to_num(-1), whole.history.cost.nan_to_num(-1))


def test_the_file_is_written_as_steps_go_on(tmp_path):
    checkpoint = mslsq.Checkpoint(str(tmp_path / "solve"), seconds=0)
    there = []
    solver = mslsq.LevenbergMarquardt(
        checkpoint=checkpoint, callback=lambda info: there.append(checkpoint.file.exists())
    )
    solution = solved(solver)
    assert bool(solution.converged.all()) and not there[0] and all(there[1:])
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, sys, torch, mslsq
torch.set_default_dtype(torch.float64)
t = torch.linspace(0, 1, 20)
def residual(p, y):
    return p[0] * torch.exp(-p[1] * t) + p[2] - y
steps = []
def callback(info):
    steps.append(info)
    if len(steps) == 6 and sys.argv[2] == "killed":
        os._exit(9)
checkpoint = mslsq.Checkpoint(sys.argv[1], seconds=0)
solver = mslsq.LevenbergMarquardt(checkpoint=checkpoint, callback=callback, native="never")
y = 3 * torch.exp(-4 * t) + 0.1 + 0.05 * torch.cos(9 * t)
solution = mslsq.least_squares(residual, torch.tensor([9.0, 0.4, -5.0]), (y,), solver=solver)
print(int(solution.num_steps), len(steps), *solution.value.tolist())
"""


@pytest.mark.slow
def test_a_killed_process_loses_only_the_steps_since_the_last_writing(tmp_path):
    def run(file, how):
        command = [sys.executable, "-c", KILLED, str(tmp_path / file), how]
        return subprocess.run(command, capture_output=True, text=True)

    whole = run("other", "whole")
    assert whole.returncode == 0, whole.stderr
    assert run("solve", "killed").returncode == 9
    rest = run("solve", "rest")
    assert rest.returncode == 0, rest.stderr
    total, seen, *value = rest.stdout.split()
    assert total == whole.stdout.split()[0] and value == whole.stdout.split()[2:]
    assert int(seen) < int(total) + 1


def test_an_interrupt_keeps_the_file(tmp_path):
    checkpoint = mslsq.Checkpoint(tmp_path / "solve", seconds=3600)
    steps = []

    def callback(info):
        steps.append(info)
        if len(steps) == 4:
            raise KeyboardInterrupt

    solver = mslsq.LevenbergMarquardt(checkpoint=checkpoint, callback=callback, on_interrupt="return")
    assert int(solved(solver).status.max()) == Status.INTERRUPTED
    assert checkpoint.file.exists()
    rest = solved(mslsq.LevenbergMarquardt(checkpoint=checkpoint))
    assert bool(rest.converged.all()) and not checkpoint.file.exists()


@pytest.mark.parametrize(
    "other",
    [
        lambda solver: solved(solver, Y + 1e-9),
        lambda solver: solved(mslsq.Dogleg(checkpoint=solver.checkpoint)),
        lambda solver: mslsq.least_squares(residual, START + 1, (Y,), in_dims=(0, 0), solver=solver),
        lambda solver: solved(solver, bounds=(-10.0, 10.0)),
    ],
    ids=["data", "solver", "start", "bounds"],
)
def test_the_file_of_another_solve_is_not_taken(other, tmp_path):
    checkpoint = mslsq.Checkpoint(tmp_path / "solve")
    solved(mslsq.LevenbergMarquardt(max_steps=3, checkpoint=checkpoint))
    with pytest.raises(CheckpointError, match="belongs to another solve"):
        other(mslsq.LevenbergMarquardt(checkpoint=checkpoint))
    assert checkpoint.file.exists()


def test_a_residual_that_has_changed_is_noticed(tmp_path):
    checkpoint = mslsq.Checkpoint(tmp_path / "solve")
    solver = mslsq.LevenbergMarquardt(max_steps=3, checkpoint=checkpoint)
    mslsq.least_squares(lambda p: torch.stack((p[0] ** 3 - 2, p[0] - 5)), torch.tensor([9.0]), solver=solver)
    with pytest.raises(CheckpointError, match="has another cost"):
        mslsq.least_squares(lambda p: torch.stack((p[0] ** 3 - 3, p[0] - 5)), torch.tensor([9.0]), solver=solver)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 damaged"])
def test_a_damaged_file_is_called_so(content, tmp_path):
    checkpoint = mslsq.Checkpoint(tmp_path / "solve")
    checkpoint.file.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        solved(mslsq.LevenbergMarquardt(checkpoint=checkpoint))
    assert checkpoint.file.read_bytes() == content


def test_a_folder_that_is_not_there_is_said_before_the_solve(tmp_path):
    with pytest.raises(CheckpointError, match="no folder"):
        solved(mslsq.LevenbergMarquardt(checkpoint=mslsq.Checkpoint(tmp_path / "nowhere" / "solve")))


def test_a_file_that_cannot_be_written_ends_no_solve(tmp_path, monkeypatch):
    def full(content, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    checkpoint = mslsq.Checkpoint(tmp_path / "solve", seconds=0)
    with pytest.warns(UserWarning, match="could not be written"):
        solution = solved(mslsq.LevenbergMarquardt(checkpoint=checkpoint))
    assert bool(solution.converged.all()) and list(tmp_path.iterdir()) == []


def test_a_solve_that_is_differentiated_goes_on_too(tmp_path):
    checkpoint = mslsq.Checkpoint(tmp_path / "solve")
    solved(mslsq.LevenbergMarquardt(max_steps=3, checkpoint=checkpoint))
    y = Y.clone().requires_grad_()
    solved(mslsq.LevenbergMarquardt(checkpoint=checkpoint), y).value.sum().backward()
    other = Y.clone().requires_grad_()
    solved(mslsq.LevenbergMarquardt(), other).value.sum().backward()
    assert y.grad is not None and other.grad is not None
    assert torch.allclose(y.grad, other.grad, atol=1e-9)


def test_what_cannot_go_on_says_so(tmp_path):
    checkpoint = mslsq.Checkpoint(tmp_path / "solve")
    solver = mslsq.LevenbergMarquardt(checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="needs all of them"), warnings.catch_warnings():
        solved(solver, Y.clone().requires_grad_(), adjoint=mslsq.Unrolled())
    with pytest.raises(ValueError, match="rounds"):
        mslsq.AugmentedLagrangian(solver)
    with pytest.raises(ValueError, match="path"):
        mslsq.Checkpoint(3)  # type: ignore[arg-type]
