"""Does `"auto"` choose the faster of a Schur complement and a general factorisation, for every instruction set?

    OMP_NUM_THREADS=1 python benchmarks/solver_choice.py                       # the half on which nothing is chosen
    OMP_NUM_THREADS=1 python benchmarks/solver_choice.py --half choose
    MSLSQ_TARGET=avx2 OMP_NUM_THREADS=1 python benchmarks/solver_choice.py --here

Structures of bundle adjustments (who sees a point: neighbouring cameras, or any) and of maps of landmarks (poses along
a road, or in a town, where what they see is seen again much later): how many cameras or poses of which size, how often
a point is seen; the half comes from a hash of the name. One thread, processor time of one damped solve, the least of
several runs that take turns; the ratio of the chosen solver's time to that of the better one.
"""

import argparse
import hashlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from timing import for_each_target, print_machine, print_table

from mslsq.kernels import target
from mslsq.kernels.build import targets
from mslsq.linear import Schur, SparseCholesky
from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.choice import fastest_sparse

SEEN = {"rarely": (2, 3), "often": (4, 9), "always": (15, 40)}
ADJUSTMENTS = (("near", "any"), ("8", "25", "60", "150"), ("3", "6", "9"), ("rarely", "often"))
MAPS = (("road", "town"), ("50", "200", "700"), ("3", "6"), SEEN)
POINTS = {"near": 40, "any": 40, "road": 2, "town": 2}
"""For every camera or pose."""
RUNS = 15


def names(half: str | None = None) -> list[str]:
    """Of a half, `choose` or `claim`, or all."""
    every = map("-".join, itertools.chain(itertools.product(*ADJUSTMENTS), itertools.product(*MAPS)))
    return [name for name in every if half is None or half_of(name) == half]


def half_of(name: str) -> str:
    return ("choose", "claim")[hashlib.sha256(name.encode()).digest()[0] % 2]


def adjustment(name: str) -> tuple[BlockStructure, dict[str, np.ndarray]]:
    """The structure of a name: who sees-cameras-size-how often a point is seen."""
    who, cameras, size, often = name.split("-")
    n, rng = int(cameras), np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))
    points, depth = POINTS[who] * n, 2 if who in ("road", "town") and size == "3" else 3
    times = np.minimum(rng.integers(*SEEN[often], points, endpoint=True), n)
    if who in ("near", "road"):
        first = (rng.random(points) * (n - times + 1)).astype(int)
        camera = [f + np.arange(k) for f, k in zip(first, times, strict=True)]
    else:
        camera = [rng.choice(n, k, replace=False) for k in times]
    ahead = np.arange(n - 1) if who in ("road", "town") else np.arange(0)  # odometry
    sizes = np.concatenate((np.full(n, int(size)), np.full(points, depth)))
    rows = np.concatenate((n + np.arange(points).repeat(times), ahead + 1))
    structure = analyze(sizes, rows, np.concatenate((*camera, ahead)))
    return structure, {"camera": np.arange(n), "point": n + np.arange(points)}


def fastest(contestants: dict[str, Callable[[], object]], runs: int = RUNS) -> dict[str, float]:
    """Processor nanoseconds, the least of several runs that take turns."""
    least = dict.fromkeys(contestants, float("inf"))
    for run in range(runs + 1):
        for name, work in contestants.items():
            begin = time.thread_time()
            work()
            if run:
                least[name] = min(least[name], time.thread_time() - begin)
    return {name: 1e9 * taken for name, taken in least.items()}


def judged(name: str) -> tuple[str, float, float, float, float, float]:
    """The chosen solver, its time by that of the better one, and both times by estimate and measured, in ms."""
    structure, kinds = adjustment(name)
    chosen = fastest_sparse(structure, kinds)
    schur, direct = Schur("point").bound(structure, kinds), SparseCholesky().bound(structure, kinds)
    values = 0.1 * torch.rand(1, structure.num_values, dtype=torch.float64)
    values[:, structure.diagonal_index] += 10.0 * structure.block_sizes.max()
    rhs, damping = (torch.ones(1, structure.num_unknowns, dtype=torch.float64) for _ in range(2))
    solvers = {"Schur": schur, "SparseCholesky": direct}
    taken = fastest({key: lambda s=solver: s.solve(values, rhs, damping) for key, solver in solvers.items()})
    which = type(chosen).__name__
    estimates = schur.nanoseconds / 1e6, structure.elimination_nanoseconds / 1e6
    ratio = taken[which] / min(taken.values())
    return which, ratio, *estimates, taken["Schur"] / 1e6, taken["SparseCholesky"] / 1e6


def report(half: str) -> None:
    """The table of one instruction set, and its summary."""
    found = {name: judged(name) for name in names(half)}
    header = ("structure", "chosen", "/ best", "Schur est.", "general est.", "Schur", "general")
    print_table(f"{target()}, half '{half}', ms", header, [(name, *row) for name, row in found.items()])
    ratios = sorted((row[1], name) for name, row in found.items())
    print(f"{target()}, {half}: chosen / best median {statistics.median(r for r, _ in ratios):.2f}, ", end="")
    wrong = sum(r > 1 for r, _ in ratios)
    print(f"worst {ratios[-1][0]:.2f} ({ratios[-1][1]}), not the best {wrong} of {len(ratios)}", flush=True)


def main() -> int:
    """Every instruction set in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--here", action="store_true", help="one instruction set, in this process")
    arguments = parser.parse_args()
    if arguments.here:
        torch.set_num_threads(1)
        report(arguments.half)
        return 0
    print_machine(["torch", "numpy"])
    return for_each_target(__file__, sys.argv[1:], targets())


if __name__ == "__main__":
    sys.exit(main())
