"""Has cuDSS proved itself on this GPU? `make cuda` asks; `python benchmarks/cuda_cudss.py` by itself.

Two things are looked at, of systems like those of pose graphs in float64. One large matrix by itself, and 1,000 small
ones of one structure: one after the other, and together in one call. Each has to solve what dense factors solve, to
1e-9 of the solution, and to find a matrix without a factor wherever it stands, with no harm to the others. What is
right, and faster than dense factors (and together faster than one after the other), is kept in the user's folder:
`linear.SparseCholesky()` and `linear_solver="auto"` take it on this kind of GPU from then on.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from timing import print_table
from torch import Tensor

from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.sparse.backends.analysis import lower_triangle
from mslsq.linear.sparse.backends.cudss import Factorization
from mslsq.linear.sparse.backends.cudss_proof import What, record

TOLERANCE = 1e-9
"""Of solutions, relative to the largest entry. Conditions are about 100."""
REPEATS = 5
HEADER = ("systems", "way", "ms", "dense / this", "right")

Solving = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(batch, entries) of lower triangles and (batch, size, 1) to solutions, and which matrices have a factor."""


@dataclass(frozen=True)
class Seen:
    """What a way came to."""

    systems: str
    way: str
    seconds: float
    is_right: bool

    def row(self, dense: "Seen") -> tuple[object, ...]:
        """Of the table."""
        right = "yes" if self.is_right else "no"
        return self.systems, self.way, 1e3 * self.seconds, dense.seconds / self.seconds, right


class Systems:
    """Matrices of one structure: a ring of poses with some links across, diagonally dominant."""

    def __init__(self, poses: int, tangent: int, batch: int, device: torch.device):
        self.structure = ring(poses, tangent, device)
        self.lower, _ = lower_triangle(self.structure)
        random = torch.Generator().manual_seed(0)
        columns = np.repeat(np.arange(self.lower.size), np.diff(self.lower.indptr))
        self.row, self.column = (torch.from_numpy(np.asarray(x)).to(device) for x in (self.lower.rows, columns))
        entries = torch.randn(batch, len(self.lower.rows), dtype=torch.float64, generator=random).to(device)
        diagonal = torch.from_numpy(self.lower.indptr[:-1]).to(device)
        sums = torch.zeros(batch, self.lower.size, dtype=torch.float64, device=device)
        sums.index_add_(1, self.row, entries.abs()).index_add_(1, self.column, entries.abs())
        entries[:, diagonal] = 1.05 * sums
        self.entries, self.diagonal = entries, diagonal
        self.rhs = torch.randn(batch, self.lower.size, 1, dtype=torch.float64, generator=random).to(device)

    def by_dense(self, entries: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
        """The peer, and the judge: what stands in where there is no cuDSS."""
        whole = entries.new_zeros(len(entries), self.lower.size, self.lower.size)
        whole[:, self.row, self.column] = entries
        factor, info = torch.linalg.cholesky_ex(whole)
        return torch.cholesky_solve(rhs, factor), info == 0

    def spoiled(self, places: list[int], pivot: int) -> Tensor:
        """The matrices, at these places with a pivot that is not positive."""
        entries = self.entries.clone()
        entries[places, self.diagonal[pivot]] = -1.0
        return entries


def ring(poses: int, tangent: int, device: torch.device) -> BlockStructure:
    ends = np.arange(poses), (np.arange(poses) + 1) % poses
    across = np.arange(0, poses // 2, 7), np.arange(0, poses // 2, 7) + poses // 2
    pairs = [np.concatenate(x) for x in zip(ends, across, strict=True)]
    low, high = np.minimum(*pairs), np.maximum(*pairs)
    return analyze(np.full(poses, tangent), high, low, device=device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The median of the wall time, after a call that is not counted."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    taken = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        wait()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def is_right(solve: Solving, systems: Systems) -> bool:
    """Does it solve what dense factors solve, and find what has no factor at the first, the last and other places?"""
    last, size = len(systems.entries) - 1, systems.lower.size
    for places, pivot in (([], 0), ([0], 0), ([last], size - 1), ([last // 2], size // 2), ([0, last // 3, last], 1)):
        entries = systems.spoiled(sorted(set(places)), pivot)
        found, definite = solve(entries, systems.rhs)
        expected, known = systems.by_dense(entries, systems.rhs)
        if not torch.equal(definite, known):
            return False
        far = (found - expected)[known].abs().amax((1, 2)) > TOLERANCE * expected[known].abs().amax((1, 2))
        if bool(far.any()) or not bool(found[known].isfinite().all()):
            return False
    return True


def seen(systems: Systems, name: str, way: str, solve: Solving) -> Seen:
    right = way == "dense" or is_right(solve, systems)
    return Seen(name, way, seconds(lambda: solve(systems.entries, systems.rhs), systems.rhs.device), right)


def prove(device: torch.device, small: bool = False) -> tuple[list[tuple[object, ...]], list[What]]:
    """Lines of a table, and what has proved itself."""
    large = Systems(40 if small else 1500, 6, 1, device)
    batch = Systems(12 if small else 100, 3, 5 if small else 1000, device)
    alone, together = (
        [Factorization(systems.lower, device, together=which) for which in (False, True)] for systems in (large, batch)
    )
    name, names = f"one of {large.lower.size} unknowns", f"{len(batch.entries)} of {batch.lower.size} unknowns"
    dense, sparse = (seen(large, name, *way) for way in (("dense", large.by_dense), ("cuDSS", alone[0].solve)))
    dense_batch, singly, at_once = (
        seen(batch, names, *way)
        for way in (
            ("dense", batch.by_dense),
            ("cuDSS, one after the other", together[0].solve),
            ("cuDSS, together", together[1].solve),
        )
    )
    proved: list[What] = []
    if sparse.is_right and singly.is_right and sparse.seconds < dense.seconds:
        proved.append("alone")
        if at_once.is_right and at_once.seconds < min(singly.seconds, dense_batch.seconds):
            proved.append("together")
    rows = [one.row(dense) for one in (dense, sparse)]
    return rows + [one.row(dense_batch) for one in (dense_batch, singly, at_once)], proved


def look(device: torch.device, small: bool = False) -> list[What]:
    """Measure, print, keep what has proved itself. ImportError where there is no cuDSS."""
    rows, proved = prove(device, small)
    print_table("cuDSS: factor and solve, float64, wall time", HEADER, rows)
    print(f"\nProved: {', '.join(proved) or 'nothing'}; kept in {record(device, proved)}.")
    return proved


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here.")
    look(torch.device("cuda"))
