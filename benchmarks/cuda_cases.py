"""What `cuda.py` solves: fits, graphs, bundle adjustment and pairs of maps, on a device of one's choice."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cuda_pairs
import torch
from torch import Tensor

import mslsq
from mslsq.datasets import read_bal, read_g2o, ring_graph

DATA = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
STEPS = 10
"""Of every solve: what is compared is the time of a step, not who stops first."""


class Made(NamedTuple):
    """Something to solve with options of a solver, and the bytes and flops of a step's Jacobian."""

    solve: Callable[[dict[str, Any]], Any]
    moved: float
    flops: float
    times: float = 1.0
    """A part stands for the whole: its time is multiplied. The bytes and flops are those of the whole."""


@dataclass(frozen=True)
class Case:
    """`make(device, dtype, small)`."""

    name: str
    make: Callable[[torch.device, torch.dtype, bool], Made]


def sum_of_peaks(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Two peaks: height, place and width of each."""
    return p[0] * torch.exp(-(((t - p[1]) / p[2]) ** 2)) + p[3] * torch.exp(-(((t - p[4]) / p[5]) ** 2)) - y


def fits(count: int, points: int) -> Callable[..., Made]:
    """Fits of six parameters: their number, and the points of each."""

    def make(device: torch.device, dtype: torch.dtype, small: bool) -> Made:
        batch, n = (min(count, 64), min(points, 256)) if small else (count, points)
        random = torch.Generator().manual_seed(0)
        t = torch.linspace(0, 1, n, dtype=dtype)
        truth = torch.tensor([1.0, 0.3, 0.1, 0.7, 0.7, 0.15], dtype=dtype)
        y = sum_of_peaks(truth, t, torch.zeros((), dtype=dtype)) + 0.01 * torch.randn(
            batch, n, dtype=dtype, generator=random
        )
        start, t, y = (truth * 1.1).to(device), t.to(device), y.to(device)
        size = t.element_size()

        def solve(options: dict[str, Any]) -> Any:
            if batch == 1:
                return mslsq.least_squares(sum_of_peaks, start, (t, y[0]), solver=solver(options))
            return mslsq.least_squares(sum_of_peaks, start, (t, y), in_dims=(None, None, 0), solver=solver(options))

        return Made(solve, 2.0 * batch * n * 7 * size, 2.0 * batch * n * 49)

    return make


def graphs(device: torch.device, dtype: torch.dtype, small: bool) -> Made:
    """1,024 rings of 100 poses, as one batch."""
    graph = ring_graph(laps=2, per_lap=5 if small else 50).graph
    count = 4 if small else 1024
    problem = graph.problem().to(device=device, dtype=dtype)
    poses = graph.poses.storage.to(device=device, dtype=dtype)
    start = mslsq.SE2(poses.expand(count, *poses.shape).contiguous())
    rows = 3.0 * count * sum(cost.num_blocks for cost in problem)

    def solve(options: dict[str, Any]) -> Any:
        return mslsq.solve(problem, {"pose": start}, in_dims=({"pose": 0}, None), solver=solver(options))

    return Made(solve, 2 * rows * 7 * poses.element_size(), 2 * rows * 36)


def sphere(device: torch.device, dtype: torch.dtype, small: bool) -> Made:
    """sphere2500 by conjugate gradients."""
    return sphere_by(mslsq.linear.ConjugateGradient(), device, dtype)


def sphere_by_cudss(device: torch.device, dtype: torch.dtype, small: bool) -> Made:
    """sphere2500 by block-sparse Cholesky: cuDSS on a GPU, our own kernels on the CPU."""
    return sphere_by(mslsq.linear.SparseCholesky("auto" if device.type == "cpu" else "cudss"), device, dtype)


def sphere_by(linear: mslsq.linear.LinearSolver, device: torch.device, dtype: torch.dtype) -> Made:
    graph = read_g2o(file_of("g2o/sphere2500.g2o"))
    problem = graph.problem().to(device=device, dtype=dtype)
    start = {"pose": type(graph.poses)(graph.poses.storage.to(device=device, dtype=dtype))}
    rows = 6.0 * sum(cost.num_blocks for cost in problem)

    def solve(options: dict[str, Any]) -> Any:
        return mslsq.solve(problem, start, solver=solver(options, linear_solver=linear))

    return Made(solve, 2 * rows * 13 * start["pose"].storage.element_size(), 2 * rows * 144)


def ladybug(device: torch.device, dtype: torch.dtype, small: bool) -> Made:
    """BAL 49, its points eliminated."""
    scene = read_bal(file_of("bal/problem-49-7776-pre.txt.bz2"))
    problem = scene.problem().to(device=device, dtype=dtype)
    start = {
        "camera": scene.cameras.to(device=device, dtype=dtype),
        "point": scene.points.to(device=device, dtype=dtype),
    }
    rows = 2.0 * sum(cost.num_blocks for cost in problem)

    def solve(options: dict[str, Any]) -> Any:
        return mslsq.solve(problem, start, solver=solver(options))

    return Made(solve, 2 * rows * 13 * start["point"].element_size(), 2 * rows * 144)


def pairs(device: torch.device, dtype: torch.dtype, small: bool) -> Made:
    """2,000 pairs of maps of 256², the finest level of an alignment; the CPU has a part of them."""
    count = cuda_pairs.count_on(device, small)
    rows = (count if small else cuda_pairs.COUNT) * (cuda_pairs.SMALL_SIDE if small else cuda_pairs.SIDE) ** 2.0
    steps = cuda_pairs.steps_of(count, device, dtype, small)

    def solve(options: dict[str, Any]) -> Any:
        return steps(solver(options))

    times = 1.0 if small else cuda_pairs.COUNT / count
    return Made(solve, 2 * rows * 7 * dtype.itemsize, 2 * rows * 49, times)


def file_of(name: str) -> Path:
    found = [DATA / name, DATA / f"{name}.gz", DATA / f"{name}.bz2"]
    for path in found:
        if path.exists():
            return path
    raise FileNotFoundError(f"{name} is not in {DATA} (beside the repository, or MSLSQ_DATA)")


def solver(options: dict[str, Any], **more: Any) -> mslsq.LevenbergMarquardt:
    return mslsq.LevenbergMarquardt(**{"early_stop": False, "max_steps": STEPS} | options | more)


CASES = [
    Case("65,536 fits of 6 parameters, 32 points", fits(65_536, 32)),
    Case("1,000,000 fits of 6 parameters, 32 points", fits(1_000_000, 32)),
    Case("one fit of 6 parameters, 10 million points", fits(1, 10_000_000)),
    Case("1,024 graphs of 100 poses", graphs),
    Case("sphere2500, conjugate gradients", sphere),
    Case("sphere2500, sparse Cholesky", sphere_by_cudss),
    Case("Ladybug 49-7776", ladybug),
    Case("2,000 alignment pairs of 256²", pairs),
]
