"""How often a solve reads a number from its device, which waits for everything that was asked of the device before."""

from collections import Counter

import pytest
import torch

import mslsq
from mslsq.linearize.plan import Plan
from mslsq.private import DispatchMode, operator_name
from mslsq.solvers.linear_choice import Automatic, Named

F64 = torch.float64
READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique_dim", "_unique2"}


class Reads(DispatchMode):
    """Counts the operations that a device would be waited for, by the step that the solve is at."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.by_step: Counter[int] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if operator_name(func) in READS:
            self.by_step[self.step] += 1
        return func(*args, **(kwargs or {}))


def curves(batch: int = 3):
    t = torch.linspace(0, 2, 12, dtype=F64)
    rate = torch.linspace(0.5, 1.5, batch, dtype=F64)
    return t, torch.exp(-rate[:, None] * t) + 0.01 * torch.sin(9 * t)


def batch_of_fits(solver):
    t, y = curves()
    start = torch.tensor([2.0, 0.1], dtype=F64)
    return mslsq.least_squares(
        lambda p, y: p[0] * torch.exp(-p[1] * t) - y, start, (y,), in_dims=(None, 0), solver=solver
    )


def chain(solver, count=400):
    """A chain of poses: block-sparse."""
    generator = torch.Generator().manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE2, count=count)
    i = torch.arange(count - 1)
    measured = mslsq.SE2.exp(0.3 * torch.randn(count - 1, 3, generator=generator, dtype=F64))
    far = torch.arange(count - 7)
    loops = mslsq.SE2.exp(0.3 * torch.randn(count - 7, 3, generator=generator, dtype=F64))
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[i + 1], measured=measured),
        mslsq.Between(pose[far], pose[far + 7], measured=loops, name="loops"),
        pose.fixed([0]),
    )
    return mslsq.solve(problem, {"pose": mslsq.SE2.exp(torch.zeros(count, 3, dtype=F64))}, solver=solver)


PROBLEMS = {"a batch of fits": batch_of_fits, "a block-sparse graph": chain}
METHODS = (mslsq.LevenbergMarquardt, mslsq.GaussNewton, mslsq.Dogleg)


def reads_by_step(monkeypatch, solve, solver) -> tuple[Counter, int]:
    """The reads between a step and the next, as on a device; and how many steps there were."""
    from mslsq.solvers.runner import Runner

    monkeypatch.setattr(Plan, "is_on_cpu", property(lambda plan: False))  # what a step asks a CPU costs nothing
    for kind in (Automatic, Named):
        monkeypatch.setattr(kind, "chosen", as_on_the_cpu(kind))
    solve(solver)  # whatever is planned is planned once
    reads = Reads()
    step = Runner.step

    def counted(self, state, bends=False):
        reads.step += 1
        return step(self, state, bends)

    monkeypatch.setattr(Runner, "step", counted)
    with reads:
        solution = solve(solver)
    assert int(solution.num_steps.max()) >= 3
    return reads.by_step, reads.step


def as_on_the_cpu(kind):
    chosen = kind.chosen
    return lambda self, size, sparse, on_cpu=True: chosen(self, size, sparse, True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("trace", ["never", "always"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_step_reads_one_number(monkeypatch, problem, method, trace):
    by_step, steps = reads_by_step(monkeypatch, PROBLEMS[problem], method(max_steps=6, trace=trace))
    inside = [by_step[number] for number in range(1, steps)]
    assert inside == [1] * (steps - 1)


@pytest.mark.parametrize("trace", ["never", "always"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_without_early_stop_no_step_reads_anything(monkeypatch, problem, trace):
    solver = mslsq.LevenbergMarquardt(max_steps=6, early_stop=False, trace=trace)
    by_step, steps = reads_by_step(monkeypatch, PROBLEMS[problem], solver)
    assert steps == 6
    assert not any(by_step[number] for number in range(1, steps))
    assert not by_step[steps]  # nor the end: the answer stays on the device


def test_the_count_sees_a_question(monkeypatch):
    solver = mslsq.LevenbergMarquardt(max_steps=6, callback=lambda info: bool(info.cost.sum() < 0))
    by_step, _ = reads_by_step(monkeypatch, batch_of_fits, solver)
    assert by_step[2] == 2
