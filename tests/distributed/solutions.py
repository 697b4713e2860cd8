"""Scenarios: the solution of many processes beside that of one."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from problems import (
    CONJUGATE,
    METHODS,
    PARAMETERS,
    START,
    TIMEOUT,
    compared,
    fit,
    own_graph,
    part_of_fit,
    rank,
    scenario,
    small_sphere,
    sphere,
)

import mslsq
from mslsq import distributed
from mslsq.datasets.bal import read_bal


@scenario
def dense() -> Any:
    problem = fit()
    return {
        method.__name__: compared(
            mslsq.solve(problem, START, solver=method()),
            distributed.solve(problem, START, solver=method(), timeout=TIMEOUT),
        )
        for method in METHODS
    }


@scenario
def robust() -> Any:
    problem = fit(loss=mslsq.Huber(0.1))
    return compared(mslsq.solve(problem, START), distributed.solve(problem, START))


@scenario
def graphs() -> Any:
    """A pose graph by every kind of linear solver."""
    problem, start = small_sphere()
    found = {}
    for name, linear in {
        "auto": "auto",
        "Cholesky": mslsq.linear.Cholesky(),
        "SparseCholesky": mslsq.linear.SparseCholesky(),
        "stored": mslsq.linear.ConjugateGradient(),
        "matrix-free": CONJUGATE,
    }.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(
            mslsq.solve(problem, start, solver=solver), distributed.solve(problem, start, solver=solver)
        )
    return found


@scenario
def users_own() -> Any:
    problem, start = own_graph()
    return compared(mslsq.solve(problem, start), distributed.solve(problem, start))


@scenario
def parts() -> Any:
    """Each rank has stated its own blocks; the first one alone has the prior."""
    bounds = [200 * k // dist.get_world_size() for k in range(dist.get_world_size() + 1)]
    own = part_of_fit(bounds[rank()], bounds[rank() + 1], prior=rank() == 0)
    return compared(mslsq.solve(fit(), START), distributed.solve(own, START, holds="part"))


@scenario
def fewer_blocks_than_ranks() -> Any:
    """One block: only the last rank has any."""
    problem = mslsq.Problem(mslsq.Prior(PARAMETERS, target=torch.ones(1, 3, dtype=torch.float64)))
    found = {}
    for name, linear in {"dense": "auto", "matrix-free": CONJUGATE}.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(mslsq.solve(problem, START), distributed.solve(problem, START, solver=solver))
    return found


@scenario
def twice() -> Any:
    """Again and again, with another start: the plan is kept on all ranks."""
    problem, found = fit(), []
    for k in range(3):
        start = {"p": START["p"] + 0.1 * k}
        found.append(compared(mslsq.solve(problem, start), distributed.solve(problem, start)))
    return found


@scenario
def exchanged() -> Any:
    """How many collectives a step of a dense fit makes, and bytes it gives; with a callback on one rank, too."""
    problem, found = fit(), {}
    for name, callback in {"plain": None, "watched": (lambda info: False) if rank() == 0 else None}.items():
        counts = []
        for steps in (1, 4):
            solver = mslsq.LevenbergMarquardt(max_steps=steps, ftol=0, gtol=0, xtol=0, callback=callback)
            distributed.solve(problem, START, solver=solver)
            before = distributed.traffic()
            assert int(distributed.solve(problem, START, solver=solver).num_steps) == steps
            after = distributed.traffic()
            counts.append((after.collectives - before.collectives, after.bytes - before.bytes))
        found[name] = [(many - few) / 3 for few, many in zip(*counts, strict=True)]
    return found


@scenario
def large() -> Any:
    """1e5 rows, a sphere of 400 poses, and a part of a real bundle adjustment."""
    found = {"rows": compared(mslsq.solve(fit(100_000), START), distributed.solve(fit(100_000), START))}
    problem, start = sphere(20, 20)
    for name, linear in {"sphere": "auto", "sphere, matrix-free": CONJUGATE}.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(
            mslsq.solve(problem, start, solver=solver), distributed.solve(problem, start, solver=solver)
        )
    return found


@scenario
def bundle() -> Any:
    """Eight cameras of Ladybug 49 and what three of them see; the first camera is held, priors hold the scale."""
    folder = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    path = folder / "bal" / "problem-49-7776-pre.txt.bz2"
    if not path.exists():
        return None
    scene = read_bal(path)
    near = scene.camera < 8
    seen = torch.bincount(scene.point[near], minlength=len(scene.points)) >= 3
    kept = near & seen[scene.point]
    numbers = seen.cumsum(0) - 1
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=8)
    point = mslsq.Variable("point", mslsq.Euclidean(3), count=int(seen.sum()))
    start = {"camera": scene.cameras[:8], "point": scene.points[seen]}
    costs = mslsq.SnavelyReprojection(
        camera[scene.camera[kept]], point[numbers[scene.point[kept]]], pixel=scene.pixels[kept]
    )
    strong = torch.tensor([1e3] * 9, dtype=torch.float64)
    priors = mslsq.Prior(
        camera[torch.arange(8)], target=start["camera"], weight=mslsq.Diagonal(1 / strong), name="cameras"
    )
    weak = mslsq.Prior(point[torch.arange(len(start["point"]))], target=start["point"], weight=0.3, name="points")
    problem = mslsq.Problem(costs, priors, weak, camera.fixed([0]))
    found = {}
    for name, linear in {
        "Schur": mslsq.linear.Schur(),
        "auto": "auto",
        "matrix-free": mslsq.linear.ConjugateGradient(matrix_free=True, max_iterations=5000),
    }.items():
        solver = mslsq.LevenbergMarquardt(linear_solver=linear)
        found[name] = compared(
            mslsq.solve(problem, start, solver=solver), distributed.solve(problem, start, solver=solver)
        )
    return found
