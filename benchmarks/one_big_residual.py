"""Large sparse residuals in `least_squares`: time per step and peak memory, with the dense form beside them.

    python benchmarks/one_big_residual.py > benchmarks/results/one_big_residual.md

Every row is a process of its own on one thread: the first solve with all planning, the median over later ones of CPU
time per step, and the peak memory of the whole process, Python, PyTorch and the library included.

- **maps** is Theseus issue #650: eight maps of 256 cells, all 56 ordered pairs v_ij · m_i − m_j and a prior on map 0,
  14,592 residuals of 2,048 unknowns, as one vector. `in place` is the literal code of the report (an error tensor
  filled slice by slice), `batch over cells` what a user writes who has seen that no cell touches another.
- **membrane** is a square grid of unknowns with data, exp(u) − d, and sinh of the differences of neighbours.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timing import ONE_THREAD, print_machine, print_table

MAPS, CELLS = 8, 256
PAIRS = [(i, j) for i in range(MAPS) for j in range(MAPS) if i != j]
PROBLEMS = {
    "maps, one vector, in place": "maps in_place",
    "maps, one vector, out of place": "maps out_of_place",
    "maps, batch over cells": "maps batched",
    "maps, one vector, dense Jacobian given": "maps dense",
    "membrane 32 × 32": "membrane 32 sparse",
    "membrane 32 × 32, dense Jacobian given": "membrane 32 dense",
    "membrane 100 × 100": "membrane 100 sparse",
    "membrane 317 × 317": "membrane 317 sparse",
    "membrane 317 × 317, with gradient of the data": "membrane 317 gradient",
    "membrane 1000 × 1000": "membrane 1000 sparse",
}
QUICK = ("maps in_place", "maps out_of_place", "membrane 32 sparse")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small rows, as a check that it runs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", metavar="PROBLEM", help="one problem, here; prints a line of JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.repeats)))
        return 0
    print("# One big residual\n\n`benchmarks/one_big_residual.py`, one thread.", end=" ")
    print_machine(["torch", "numpy", "scipy"])
    rows = []
    for title, problem in PROBLEMS.items():
        if options.quick and problem not in QUICK:
            continue
        command = [sys.executable, __file__, "--measure", problem, "--repeats", str(options.repeats)]
        done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True)
        if done.returncode:
            print(f"\n{title}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        columns = ("size", "non-zeros", "derivatives", "parts", "first s", "steps", "ms a step", "peak MB", "cost")
        rows.append([title, *(figures[name] for name in columns)])
    header = ["problem", "residuals × unknowns", "non-zeros", "derivatives", "parts"]
    print_table("", [*header, "first solve s", "steps", "CPU ms a step", "peak MB", "cost"], rows)
    return 0


def measured(problem: str, repeats: int) -> dict[str, Any]:
    """The figures of one problem."""
    import torch

    import mslsq
    from mslsq.front.plans import kept_for_callable

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, *rest = problem.split()
    solve, residual, size = maps(rest[0]) if name == "maps" else membrane(int(rest[0]), rest[1])
    start = time.process_time()
    solution = solve()
    first = time.process_time() - start
    samples = []
    for _ in range(1 if first > 20 else repeats):
        start = time.process_time()
        solution = solve()
        samples.append(1e3 * (time.process_time() - start) / int(solution.num_steps.max()))
    plan = next(iter(kept_for_callable(residual).plans._plans.values()))
    structure, found = plan.structure, plan.compressed
    assert bool(mslsq.Solution.converged.fget(solution).all())  # pyright: ignore[reportOptionalCall]
    return {
        "size": size,
        "non-zeros": f"{found.sets.nnz:,}" if found else "–",
        "derivatives": found.jacobian.colors if found else "–",
        "parts": f"{structure.num_components} × {structure.size:,}",
        "first s": first,
        "steps": int(solution.num_steps.max()),
        "ms a step": statistics.median(samples),
        "peak MB": round(peak_megabytes()),
        "cost": f"{float(solution.cost.sum()):.10g}",
    }


def peak_megabytes() -> float:
    """The peak memory of this process; `getrusage` would count that of the process it was forked from."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux; macOS counts in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


Prepared = tuple[Callable[[], Any], Callable[..., Any], str]
"""A solve, its residual, and its size in words."""


def maps(form: str) -> Prepared:
    import torch

    import mslsq

    generator = torch.Generator().manual_seed(0)
    truth = 1 + 0.3 * torch.rand(MAPS, CELLS, generator=generator, dtype=torch.float64)
    ratios = truth[None] / truth[:, None]
    ratios = ratios + 0.03 * torch.randn(ratios.shape, generator=generator, dtype=torch.float64)
    first, second = torch.tensor(PAIRS).T

    def in_place(x: torch.Tensor, v: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        error = torch.zeros((len(PAIRS) + 1) * CELLS, dtype=x.dtype)
        for row, (i, j) in enumerate(PAIRS):
            mine, other = x[i * CELLS : (i + 1) * CELLS], x[j * CELLS : (j + 1) * CELLS]
            error[row * CELLS : (row + 1) * CELLS] = v[i, j] * mine - other
        error[len(PAIRS) * CELLS :] = x[:CELLS] - prior
        return error

    def out_of_place(x: torch.Tensor, v: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        m = x.reshape(MAPS, CELLS)
        return torch.cat([(v[first, second] * m[first] - m[second]).reshape(-1), m[0] - prior])

    def of_a_cell(m: torch.Tensor, v: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        return torch.cat([v[first, second] * m[first] - m[second], (m[0] - prior)[None]])

    start = torch.ones(MAPS * CELLS, dtype=torch.float64)
    args = (ratios, truth[0])
    size = f"{(len(PAIRS) + 1) * CELLS:,} × {MAPS * CELLS:,}"
    if form == "batched":
        cells, data, dims = start.reshape(MAPS, CELLS), args, (1, 2, 0)
        return lambda: mslsq.least_squares(of_a_cell, cells, data, in_dims=dims), of_a_cell, f"{CELLS} of 57 × 8"
    if form == "dense":
        jac = torch.func.jacfwd(out_of_place)
        return lambda: mslsq.least_squares(out_of_place, start, args, jac=jac), out_of_place, size
    residual = in_place if form == "in_place" else out_of_place
    return lambda: mslsq.least_squares(residual, start, args), residual, size


def membrane(side: int, form: str) -> Prepared:
    import torch

    import mslsq

    generator = torch.Generator().manual_seed(0)
    along = torch.linspace(0, 6, side, dtype=torch.float64)
    shape = torch.outer(along.sin(), (along / 1.5).cos())
    data = shape.exp() + 0.1 * torch.randn(side, side, generator=generator, dtype=torch.float64)

    def residual(u: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        parts = (u.exp() - data, torch.sinh(u[:, 1:] - u[:, :-1]), torch.sinh(u[1:] - u[:-1]))
        return torch.cat([part.reshape(-1) for part in parts])

    start = torch.zeros(side, side, dtype=torch.float64)
    size = f"{3 * side**2 - 2 * side:,} × {side**2:,}"
    jac = torch.func.jacfwd(residual) if form == "dense" else None

    def solve() -> Any:
        given = data.clone().requires_grad_(form == "gradient")
        solution = mslsq.least_squares(residual, start, (given,), jac=jac)
        if form == "gradient":
            solution.value.square().sum().backward()
        return solution

    return solve, residual, size


if __name__ == "__main__":
    sys.exit(main())
