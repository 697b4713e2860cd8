"""Fits of every size as native programs from start to end: one, a thousand of two kinds, a million.

    python benchmarks/whole_solves.py                      # about two minutes, one thread
    MSLSQ_TARGET=avx2 python benchmarks/whole_solves.py    # for another instruction set: avx512, avx2, baseline
    python benchmarks/whole_solves.py --million 0          # without the million fits

The decays are those of `batched_fits.py`. A peak is a round Gaussian on 15 × 15 pixels: amplitude, centre, width and
background, 5 parameters, with noise of a fiftieth of the amplitude. SciPy gets the same starts and exact Jacobians;
`leastsq` is MINPACK with as little around it as SciPy has. Times are processor time of one thread, medians of turns.
"""

import argparse
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from batched_fits import (
    MAX_STEPS,
    Fits,
    fits,
    optimistix_contestants,
    optimistix_functions,
    residual,
    scipy_contestant,
    solve_mslsq,
)
from scipy.optimize import least_squares as scipy_least_squares
from scipy.optimize import leastsq
from timing import Timing, interleaved, print_machine, print_table

import mslsq

NATIVE = mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, native="wait")
PYTHON = mslsq.LevenbergMarquardt(max_steps=MAX_STEPS, trace="always", native="never")


def table(title: str, times: dict[str, Timing], notes: dict[str, Any]) -> None:
    """Times, and how many times the native ones they are."""
    native = times["mslsq native"].cpu
    rows = [[name, time.cpu, time.cpu / native, notes.get(name, "")] for name, time in times.items()]
    print_table(title, ["", "CPU ms", "times native", ""], rows)


def decays(case: str, size: int, repeats: int) -> None:
    given = fits(case, size)
    contestants: dict[str, Callable[[], Any]] = {
        "mslsq native": lambda: solve_mslsq(given, NATIVE),
        "mslsq replayed": lambda: solve_mslsq(given, PYTHON),
    }
    if importlib.util.find_spec("optimistix"):
        contestants["optimistix LM"] = optimistix_contestants(given)["optimistix LM"]
    contestants["SciPy lm, loop"] = scipy_contestant(given)
    native, replayed = solve_mslsq(given, NATIVE), solve_mslsq(given, PYTHON)
    steps = int((native.num_steps == replayed.num_steps).sum())
    statuses = int((native.status == replayed.status).sum())
    note = f"steps equal to those of Python: {steps}, statuses: {statuses} of {size}"
    table(f"### {size} decays, {case} starts", interleaved(contestants, repeats), {"mslsq native": note})


def with_gradient(solve: Callable[[torch.Tensor], mslsq.Solution], data: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of all solutions in the data."""
    data = data.detach().requires_grad_()
    solve(data).value.sum().backward()
    assert data.grad is not None
    return data.grad


def gradient_table(
    title: str, contestants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], repeats: int
) -> None:
    """Of pairs of a solve and of one with its gradient; each pair for itself, so that both find the caches alike."""
    rows = []
    for name, (solve, both) in contestants.items():
        times = interleaved({"solve": solve, "both": both}, repeats)
        alone, joint = times["solve"].cpu, times["both"].cpu
        rows.append([name, alone, joint, joint - alone, (joint - alone) / alone])
    print_table(title, ["", "solve CPU ms", "with gradient", "on top", "share of the solve"], rows)


def decay_gradients(size: int, repeats: int) -> None:
    """Of many fits and of one, in all data."""
    given = fits("well-posed", size)

    def solve(y: torch.Tensor) -> mslsq.Solution:
        return solve_mslsq(Fits(given.t, y, given.start), NATIVE)

    def solve_one(y: torch.Tensor) -> mslsq.Solution:
        return mslsq.least_squares(residual, given.start, (given.t, y), solver=NATIVE)

    contestants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "mslsq native": (lambda: solve(given.y), lambda: with_gradient(solve, given.y))
    }
    if importlib.util.find_spec("optimistix"):
        import jax

        function, y = optimistix_functions(given)["optimistix LM"]
        forward = jax.jit(lambda y: function(y)[0])
        both = jax.jit(jax.grad(lambda y: function(y)[0].sum()))
        contestants["optimistix LM"] = (
            lambda: np.asarray(jax.block_until_ready(forward(y))),
            lambda: np.asarray(jax.block_until_ready(both(y))),
        )
        apart = np.abs(with_gradient(solve, given.y).numpy() - np.asarray(both(y))).max()
        print(f"\nlargest difference of gradients from optimistix's: {apart:.1e}")
    gradient_table(f"### {size} decays, gradient of the sum of all solutions in all data", contestants, 5 * repeats)
    single = {"mslsq native": (lambda: solve_one(given.y[0]), lambda: with_gradient(solve_one, given.y[0]))}
    gradient_table("### One decay, the same", single, 20 * repeats)


def one_decay(repeats: int) -> None:
    """A single fit after the first calls."""
    given = fits("well-posed", 1)
    t, y, start = given.t, given.y[0], given.start
    prepared = mslsq.prepared(residual, start, (t, y), solver=NATIVE)

    def minpack() -> Any:
        points, data = t.numpy(), y.numpy()
        return leastsq(
            lambda p: p[0] * np.exp(p[1] * points) + p[2] - data,
            start.numpy(),
            Dfun=lambda p: decay_jacobian(p, points),
        )

    contestants: dict[str, Callable[[], Any]] = {
        "mslsq native": lambda: mslsq.least_squares(residual, start, (t, y), solver=NATIVE),
        "mslsq native, prepared": lambda: prepared(start, (t, y)),
        "mslsq replayed": lambda: mslsq.least_squares(residual, start, (t, y), solver=PYTHON),
        "SciPy leastsq": minpack,
    }
    table("### One decay", interleaved(contestants, 10 * repeats), {})


def decay_jacobian(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    exponential = np.exp(p[1] * t)
    return np.stack((exponential, p[0] * t * exponential, np.ones_like(t)), 1)


GRID = torch.stack(torch.meshgrid(*[torch.arange(15.0, dtype=torch.float64)] * 2, indexing="ij"))


def peak(p: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """The residual of one peak."""
    squared = (GRID[0] - p[1]) ** 2 + (GRID[1] - p[2]) ** 2
    return p[0] * torch.exp(-0.5 * squared / p[3] ** 2) + p[4] - image


def peaks(size: int, repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    amplitude, width, background = 1 + torch.rand(3, size, generator=generator, dtype=torch.float64)
    centre = 5 + 4 * torch.rand(size, 2, generator=generator, dtype=torch.float64)
    truth = torch.column_stack((amplitude, centre, width, background))
    clean = torch.stack([peak(p, torch.zeros(15, 15, dtype=torch.float64)) for p in truth])
    images = clean + 0.02 * torch.randn(size, 15, 15, generator=generator, dtype=torch.float64)
    start = torch.tensor([1.5, 7.0, 7.0, 1.5, 1.5], dtype=torch.float64)

    def solve(solver: Any) -> mslsq.Solution:
        return mslsq.least_squares(peak, start, (images,), in_dims=(None, 0), solver=solver)

    rows, columns = (axis.reshape(-1).numpy() for axis in GRID)

    def shape(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        squared = (rows - p[1]) ** 2 + (columns - p[2]) ** 2
        return squared, np.exp(-0.5 * squared / p[3] ** 2)

    def jacobian(p: np.ndarray, data: np.ndarray) -> np.ndarray:
        squared, bell = shape(p)
        slope = p[0] * bell / p[3] ** 2
        parts = bell, slope * (rows - p[1]), slope * (columns - p[2]), slope * squared / p[3], np.ones_like(bell)
        return np.stack(parts, 1)

    def scipy_loop() -> list[Any]:
        return [
            scipy_least_squares(
                lambda p, data: p[0] * shape(p)[1] + p[4] - data,
                start.numpy(),
                jac=jacobian,  # pyright: ignore[reportArgumentType]
                method="lm",
                args=(data,),
            ).x
            for data in images.reshape(size, -1).numpy()
        ]

    contestants: dict[str, Callable[[], Any]] = {
        "mslsq native": lambda: solve(NATIVE),
        "mslsq replayed": lambda: solve(PYTHON),
        "SciPy lm, loop": scipy_loop,
    }
    apart = np.abs(solve(NATIVE).value.numpy() - np.stack(scipy_loop())).max()
    table(f"### {size} peaks", interleaved(contestants, repeats), {"mslsq native": f"from SciPy's at most {apart:.1e}"})

    def solve_images(images: torch.Tensor) -> mslsq.Solution:
        return mslsq.least_squares(peak, start, (images,), in_dims=(None, 0), solver=NATIVE)

    pair = lambda: solve_images(images), lambda: with_gradient(solve_images, images)
    gradient_table(f"### {size} peaks, gradient in all pixels", {"mslsq native": pair}, repeats)


def million(size: int) -> None:
    """Time and memory of very many fits; at most 20 steps, of which the history keeps every one."""
    solver = mslsq.LevenbergMarquardt(max_steps=20, native="wait")
    solve_mslsq(fits("well-posed", 100), solver)
    given: Fits = fits("well-posed", size)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    solution = solve_mslsq(given, solver)
    seconds = time.process_time() - begin
    kept = [solution.value, solution.cost, solution.status, solution.num_steps, *solution.history.columns]
    results = sum(x.numel() * x.element_size() for x in kept) / 2**20
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    header = ["fits", "CPU s", "converged", "data MiB", "results MiB", "the process grew by MiB"]
    data = given.y.numel() * given.y.element_size() / 2**20
    print_table(f"### {size:,} decays", header, [[size, seconds, int(solution.converged.sum()), data, results, grown]])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--million", type=int, default=1_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(("torch", "jax", "optimistix", "scipy"))
    print(f"instruction set: {os.environ.get('MSLSQ_TARGET', 'the best that the processor has')}")
    for case in ("well-posed", "hard"):
        decays(case, arguments.size, arguments.repeats)
    decay_gradients(arguments.size, arguments.repeats)
    one_decay(arguments.repeats)
    peaks(1000, arguments.repeats)
    if arguments.million:
        million(arguments.million)
    return 0


if __name__ == "__main__":
    sys.exit(main())
