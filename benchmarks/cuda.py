"""The library on a GPU: fits, graphs and bundle adjustment beside the CPU of the same machine, and the floor.

    make cuda                                          # the tests on the GPU, then this
    python benchmarks/cuda.py --out benchmarks/results # writes cuda_<device>.md
    python benchmarks/cuda.py --device cpu --small     # what is measured, in small, without a GPU
    python benchmarks/cuda.py --look                   # is there a GPU?

The floor of a step is what its Jacobian alone costs the device: the bytes that are written and read once, at the speed
of a copy, and the flops of the products, at the speed of a large matrix product; both are measured first. A case that
cannot run is a sentence, not the end. The page is written after every case: what ends the process takes no figure away,
and what does not begin within `--minutes` says so.
"""

import sys

if "torch" in sys.modules and not hasattr(sys.modules["torch"], "tensor"):
    # A program beside this file is run, and its `import torch` looks for NVIDIA's package of this name.
    raise ImportError("benchmarks/cuda.py is not NVIDIA's package")

import argparse
import contextlib
import io
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_cudss import look
from timing import print_machine, print_table
from torch import Tensor

import mslsq
from mslsq.datasets import read_bal, read_g2o, ring_graph

DATA = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
REPEATS = 3
NATIVE: dict[str, Any] = {"native": "wait"}
REPLAYED: dict[str, Any] = {"trace": "always", "native": "never"}
WAYS = {"eager": {"trace": "never"}, "replayed": REPLAYED, "native": NATIVE}
CUDA_GRAPH = "CUDA graph"
"""A way on a GPU alone: what is replayed, captured."""
STEPS = 10
"""Of every solve: what is compared is the time of a step, not who stops first."""


@dataclass(frozen=True)
class Case:
    """Something to solve. `make(device, dtype, small)` returns what takes solver options and solves, and the bytes and
    flops of a step's Jacobian."""

    name: str
    make: Callable[[torch.device, torch.dtype, bool], tuple[Callable[[dict[str, Any]], Any], float, float]]


def sum_of_peaks(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Two peaks: height, place and width of each."""
    return p[0] * torch.exp(-(((t - p[1]) / p[2]) ** 2)) + p[3] * torch.exp(-(((t - p[4]) / p[5]) ** 2)) - y


def fits(count: int, points: int) -> Callable[..., Any]:
    """Fits of six parameters: their number, and the points of each."""

    def make(device: torch.device, dtype: torch.dtype, small: bool) -> Any:
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

        return solve, 2.0 * batch * n * 7 * size, 2.0 * batch * n * 49

    return make


def graphs(device: torch.device, dtype: torch.dtype, small: bool) -> Any:
    """1,024 rings of 100 poses, as one batch."""
    graph = ring_graph(laps=2, per_lap=5 if small else 50).graph
    count = 4 if small else 1024
    problem = graph.problem().to(device=device, dtype=dtype)
    poses = graph.poses.storage.to(device=device, dtype=dtype)
    start = mslsq.SE2(poses.expand(count, *poses.shape).contiguous())
    rows = 3.0 * count * sum(cost.num_blocks for cost in problem)

    def solve(options: dict[str, Any]) -> Any:
        return mslsq.solve(problem, {"pose": start}, in_dims=({"pose": 0}, None), solver=solver(options))

    return solve, 2 * rows * 7 * poses.element_size(), 2 * rows * 36


def sphere(device: torch.device, dtype: torch.dtype, small: bool) -> Any:
    """sphere2500 by conjugate gradients."""
    return sphere_by(mslsq.linear.ConjugateGradient(), device, dtype)


def sphere_by_cudss(device: torch.device, dtype: torch.dtype, small: bool) -> Any:
    """sphere2500 by block-sparse Cholesky: cuDSS on a GPU, our own kernels on the CPU."""
    return sphere_by(mslsq.linear.SparseCholesky("auto" if device.type == "cpu" else "cudss"), device, dtype)


def sphere_by(linear: mslsq.linear.LinearSolver, device: torch.device, dtype: torch.dtype) -> Any:
    graph = read_g2o(file_of("g2o/sphere2500.g2o"))
    problem = graph.problem().to(device=device, dtype=dtype)
    start = {"pose": type(graph.poses)(graph.poses.storage.to(device=device, dtype=dtype))}
    rows = 6.0 * sum(cost.num_blocks for cost in problem)

    def solve(options: dict[str, Any]) -> Any:
        return mslsq.solve(problem, start, solver=solver(options, linear_solver=linear))

    return solve, 2 * rows * 13 * start["pose"].storage.element_size(), 2 * rows * 144


def ladybug(device: torch.device, dtype: torch.dtype, small: bool) -> Any:
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

    return solve, 2 * rows * 13 * start["point"].element_size(), 2 * rows * 144


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
]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float:
    """The median of the wall time, after a call that is not counted."""
    work()
    wait(device)
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def speeds(device: torch.device, dtype: torch.dtype, small: bool) -> tuple[float, float]:
    """Bytes per second of a copy (read and written), flops per second of a matrix product."""
    n = 1 << (20 if small else 28)
    source = torch.zeros(n // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(source)
    side = 256 if small else 4096
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    copying = seconds(lambda: target.copy_(source), device, 5)
    return 2 * n / copying, 2 * side**3 / seconds(lambda: matrix @ matrix, device, 5)


class TimeIsOverError(RuntimeError):
    """The minutes that there were are over."""


def begin_before(end: float) -> None:
    """Raises TimeIsOverError after that time of the monotonic clock."""
    if time.monotonic() > end:
        raise TimeIsOverError("not measured, the minutes of --minutes are over")


def rows_of(case: Case, device: torch.device, dtype: torch.dtype, small: bool, end: float) -> list[tuple[Any, ...]]:
    """A line of the table for every way; what cannot run, or not begin before the end, says why. The CPU's time is
    taken once, by its default way."""
    name = str(dtype).removeprefix("torch.")
    try:
        begin_before(end)
        solve, moved, flops = case.make(device, dtype, small)
        copy, product = speeds(device, dtype, small)
        floor = max(moved / copy, flops / product)
        host = torch.device("cpu")
        on_host, *_ = case.make(host, dtype, small)
        there = seconds(lambda: on_host({}), host, 1) / STEPS
    except Exception as error:  # the next case may run
        return [(case.name, "", name, _words(error), "", "", "")]
    rows: list[tuple[Any, ...]] = []
    ways = WAYS | ({CUDA_GRAPH: REPLAYED} if device.type == "cuda" else {})
    for way, options in ways.items():
        os.environ["MSLSQ_CUDA_GRAPHS"] = str(int(way == CUDA_GRAPH))
        try:
            begin_before(end)
            missing = why_not_native(solve) if options is NATIVE else ""
            if missing:
                rows.append((case.name, way, name, f"not there: {missing}", "", "", ""))
                continue
            step = seconds(partial(solve, options), device) / STEPS
        except Exception as error:  # the next way may run
            rows.append((case.name, way, name, _words(error), 1e3 * there, "", ""))
            continue
        rows.append((case.name, way, name, 1e3 * step, 1e3 * there, there / step, step / floor))
    return rows


def why_not_native(solve: Callable[[dict[str, Any]], Any]) -> str:
    """What a solve says of its native programs where none of them is there; empty where one is."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page):
        solve(NATIVE | {"verbose": True, "max_steps": 1})
    said = [line.strip() for line in page.getvalue().splitlines() if "native program" in line]
    if any("was compiled" in line for line in said):
        return ""
    return said[0] if said else "no program was begun"


def cudss(device: torch.device, small: bool, end: float) -> str:
    """Has cuDSS proved itself? It is taken by itself from then on."""
    page = io.StringIO()
    try:
        begin_before(end)
        with contextlib.redirect_stdout(page):
            look(device, small)
    except Exception as error:  # the other figures are there
        return f"\ncuDSS: {_words(error)}\n"
    return page.getvalue()


def why_no_gpu() -> str:
    """Why PyTorch sees none, in a clause."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA (python -m pip install torch brings a build with it)"
    return f"torch {torch.__version__} finds none (torch.cuda.is_available() is False; does nvidia-smi show one?)"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:90]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a few of everything: does it run?")
    parser.add_argument("--look", action="store_true", help="is there a GPU? Nothing is measured")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no more is begun")
    parser.add_argument("--out", type=Path, help="folder of the page cuda_<device>.md")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"There is no GPU here: {why_no_gpu()}. --device cpu --small shows what is measured.")
        return 1
    if options.look:
        return 0
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rows: list[tuple[Any, ...]] = []
    end = time.monotonic() + 60 * options.minutes
    proof = cudss(device, options.small, end)  # first: what follows takes what has proved itself
    for case, dtype in itertools.product(CASES, (torch.float64, torch.float32)):
        print(f"{case.name}, {dtype} ...", file=sys.stderr, flush=True)
        rows += rows_of(case, device, dtype, options.small, end)
        if options.out is not None:
            path = options.out / f"cuda_{name.lower().replace(' ', '_')}.md"
            path.write_text(page_of(name, options.small, rows) + proof, encoding="utf-8")
    print(page_of(name, options.small, rows) + proof)
    return 0


def page_of(name: str, small: bool, rows: list[tuple[Any, ...]]) -> str:
    """What has been measured so far."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page):
        print(f"# mslsq on {name}\n\n`python benchmarks/cuda.py{' --small' if small else ''}`\n")
        print_machine(["torch"])
        header = ("case", "way", "dtype", "ms a step", "ms on the CPU", "CPU / device", "times the floor")
        print_table(f"{STEPS} steps of Levenberg-Marquardt, wall time; the CPU as it is by default", header, rows)
        print("\nThe alignment computes on the CPU wherever its maps are, so that its pairs are not measured here.")
    return page.getvalue()


if __name__ == "__main__":
    sys.exit(main())
