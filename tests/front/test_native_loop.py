"""Prepared pose graphs whose start and steps are one native call each end where the loop of every solve ends."""

import dataclasses
import threading

import pytest
import torch

import mslsq
from mslsq.native.graphs import prospect
from mslsq.solvers import native_loop, short_loop
from tests.front.test_short_loop import SOLVERS, loops, ring, same_solutions  # noqa: F401

F64 = torch.float64
CALLS = 40
"""After which every program has been compared and taken up."""

pytestmark = pytest.mark.usefixtures("cxx")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Programs are begun after a few steps."""
    monkeypatch.setattr(prospect, "OPERATIONS", 2000)


def ready(found, solver, seed=0, dtype=F64, **options):
    """A prepared ring in the native loop, and its start."""
    problem, start = ring(seed, dtype, **options)
    solve = mslsq.prepared(problem, start, solver=dataclasses.replace(solver, native="wait"))
    for _ in range(CALLS):
        solve(start)
        if found and isinstance(found[-1], native_loop.Ended):
            return problem, solve, start
    raise AssertionError("the native loop has not been reached")


def expected(problem, start, solver):
    return mslsq.solve(problem, start, solver=dataclasses.replace(solver, native="never", trace="never"))


@pytest.mark.parametrize(
    "solver",
    [SOLVERS[0], *(pytest.param(solver, marks=pytest.mark.slow) for solver in SOLVERS[1:])],
    ids=lambda solver: type(solver).__name__,
)
def test_solves_end_as_those_of_python(loops, solver):  # noqa: F811
    problem, solve, start = ready(loops, solver)
    right, _ = None, loops.clear()
    for k in range(3):
        moved = {"pose": start["pose"].retract(0.02 * k * torch.ones(9, 3, dtype=F64))}
        right = expected(problem, moved, solver)
        same_solutions(solve(moved), right, rtol=1e-9)
    assert right is not None and int(right.num_steps) > 2
    assert all(isinstance(found, native_loop.Ended) for found in loops)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, mslsq.Huber(0.02)])
def test_losses_and_weights_are_solved_alike(loops, loss):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0], loss=loss, weight=mslsq.Scale(torch.tensor(3.0, dtype=F64)))
    same_solutions(solve(start), expected(problem, start, SOLVERS[0]), rtol=1e-9)
    assert isinstance(loops[-1], native_loop.Ended)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("most", [0, 1, 2])
def test_steps_that_run_out_are_said(loops, most):  # noqa: F811
    solver = dataclasses.replace(SOLVERS[0], max_steps=most)
    if most == 0:  # no step is ever recorded
        problem, start = ring()
        solve = mslsq.prepared(problem, start, solver=dataclasses.replace(solver, native="wait"))
        for _ in range(CALLS):
            solve(start)
    else:
        problem, solve, start = ready(loops, solver)
    found = solve(start)
    same_solutions(found, expected(problem, start, solver), rtol=1e-9)
    assert int(found.status) == mslsq.Status.MAX_STEPS and found.history.cost.shape == (most + 1,)


@pytest.mark.slow
def test_a_start_at_the_solution_is_not_the_users_memory(loops):  # noqa: F811
    solver = dataclasses.replace(SOLVERS[0], gtol=1e-4)
    problem, solve, start = ready(loops, solver)
    there = {"pose": solve(start).value["pose"]}
    found = solve(there)
    assert isinstance(loops[-1], native_loop.Ended) and int(found.num_steps) == 0
    same_solutions(found, expected(problem, there, solver), rtol=1e-9)
    kept = found.value["pose"].storage.clone()
    there["pose"].storage.zero_()
    assert torch.equal(found.value["pose"].storage, kept)


def test_solutions_are_not_touched_by_the_next_solve(loops):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0])
    found = [solve({"pose": start["pose"].retract(0.01 * k * torch.ones(9, 3, dtype=F64))}) for k in range(4)]
    for k, solution in enumerate(found):  # figures are read now
        moved = {"pose": start["pose"].retract(0.01 * k * torch.ones(9, 3, dtype=F64))}
        same_solutions(solution, expected(problem, moved, SOLVERS[0]), rtol=1e-9)


@pytest.mark.slow
def test_starts_in_other_layouts_are_read_as_they_are(loops):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0])
    storage = start["pose"].storage
    strided = torch.stack((storage, torch.full_like(storage, torch.nan)), -1)[..., 0]
    strided = mslsq.prepared(problem, {"pose": mslsq.SE2(strided)}, solver=solve._fixed.task.solver), strided
    for _ in range(CALLS):
        found = strided[0]({"pose": mslsq.SE2(strided[1])})
    same_solutions(found, expected(problem, start, SOLVERS[0]), rtol=1e-9)


@pytest.mark.slow
def test_float32_is_solved_in_itself(loops):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0], dtype=torch.float32)
    found, right = solve(start), expected(problem, start, SOLVERS[0])
    assert isinstance(loops[-1], native_loop.Ended) and found.cost.dtype == torch.float32
    assert found.history.cost.dtype == torch.float32
    assert abs(int(found.num_steps) - int(right.num_steps)) <= 1  # where rounding ends it
    torch.testing.assert_close(found.cost, right.cost, rtol=1e-3, atol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupt_has_the_best_point(loops, monkeypatch, after):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0])
    call = solve._fixed.direct.loop.native[0][2].step
    function, taken = call.function, []

    def interrupted(*arguments):
        taken.append(1)
        if len(taken) > after:
            function(*arguments)  # which has written, but not been looked at
            raise KeyboardInterrupt
        return function(*arguments)

    object.__setattr__(call, "function", interrupted)
    try:
        with pytest.raises(mslsq.errors.SolveInterrupted) as caught:
            solve(start)
    finally:
        object.__setattr__(call, "function", function)
    found = caught.value.solution
    few = dataclasses.replace(SOLVERS[0], max_steps=after)
    torch.testing.assert_close(found.value["pose"].storage, expected(problem, start, few).value["pose"].storage)
    assert int(found.status) == mslsq.Status.INTERRUPTED and int(found.num_steps) == after
    assert int(found.history.cost.isfinite().sum()) == after + 1
    same_solutions(solve(start), expected(problem, start, SOLVERS[0]), rtol=1e-9)


def test_what_a_call_is_not_for_goes_to_the_graph(loops):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0])
    call = solve._fixed.direct.loop.native[0][2].step
    function = call.function
    object.__setattr__(call, "function", lambda *arguments: 1)
    try:
        found = solve(start)
    finally:
        object.__setattr__(call, "function", function)
    assert isinstance(loops[-1], short_loop.Stepped)
    same_solutions(found, expected(problem, start, SOLVERS[0]), rtol=1e-9)


def test_threads_do_not_share_memory(loops):  # noqa: F811
    problem, solve, start = ready(loops, SOLVERS[0])
    starts = [{"pose": start["pose"].retract(0.01 * k * torch.ones(9, 3, dtype=F64))} for k in range(4)]
    right = [expected(problem, moved, SOLVERS[0]).value["pose"].storage for moved in starts]
    found = [[] for _ in starts]

    def run(k):
        for _ in range(20):
            found[k].append(solve(starts[k]).value["pose"].storage)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own, one in zip(found, right, strict=True):
        for storage in own:
            torch.testing.assert_close(storage, one, rtol=1e-9, atol=1e-11)
