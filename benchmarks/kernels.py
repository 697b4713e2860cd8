"""What share of the processor's peak each compiled kernel reaches, for every instruction set that the processor has.

    OMP_NUM_THREADS=1 python benchmarks/kernels.py                # about two minutes
    MSLSQ_TARGET=avx2 OMP_NUM_THREADS=1 python benchmarks/kernels.py --here

One thread, CPU time, the minimum of several runs. The peaks are measured in the same process, with code for the same
instruction set: multiply-and-subtract on numbers that stay in registers, and reading an array as large as what the
kernel reads. The share is that of whichever binds: the time that the arithmetic would take at the one peak, or the
memory traffic at the other, whichever is longer, by the time taken. Only useful arithmetic counts (one multiplication
and one addition are two operations), not that on padding.

`--models` compares the times by which linear solvers are chosen (mslsq/linear/cost_models.py) with those of many
factorisations and solves instead; `solver_choice.py` judges the choice.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sparse_cholesky import Graph, grid, milliseconds, pose_graph, ring
from sparse_cholesky import normal_equations as values_of
from timing import for_each_target, print_machine, print_table

from mslsq.datasets.bal import read_bal
from mslsq.kernels import target
from mslsq.kernels.build import FLAGS, SOURCE, compiler, targets
from mslsq.linear.block_structure import analyze
from mslsq.linear.normal_products import NormalPlan, PairPlan, VariablePlan, normal_equations
from mslsq.linear.schur import Schur, by_kernels
from mslsq.linear.sparse.fronts import BELOW, PADDED, PADDED_BELOW, WIDTH
from mslsq.linear.sparse.multifrontal import factor, solve

PEAKS = """
#include "export.h"
#include "vectors.h"
#ifdef __aarch64__
#define REGISTER "w"
#else
#define REGISTER "v"
#endif
namespace mslsq { namespace MSLSQ_TARGET { namespace {
template <class T> void arithmetic(i64 repeat, T* out) {
    constexpr int W = FULL<T>;
    reg<T, W> a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{};
    reg<T, W> factor = load_register<W>(out), other = load_register<W>(out + W);
#define ONE(chain) chain -= factor * other; asm volatile("" : "+" REGISTER (factor))
    for (i64 r = 0; r < repeat; r++) {
        ONE(a); ONE(b); ONE(c); ONE(d); ONE(e); ONE(f); ONE(g); ONE(h); ONE(i); ONE(j);
        asm volatile("" : "+" REGISTER (a), "+" REGISTER (b), "+" REGISTER (c), "+" REGISTER (d), "+" REGISTER (e),
                          "+" REGISTER (f), "+" REGISTER (g), "+" REGISTER (h), "+" REGISTER (i), "+" REGISTER (j));
    }
    store_register<W>(out, a + b + c + d + e + f + g + h + i + j);
}
template <class T> void reading(i64 count, const T* from, T* out) {
    constexpr int CHAINS = 8, W = FULL<T>;
    reg<T, W> chain[CHAINS] = {};
    for (i64 i = 0; i + CHAINS * W <= count; i += CHAINS * W)
#pragma GCC unroll 8
        for (int k = 0; k < CHAINS; k++) chain[k] += load_register<W>(from + i + k * W);
    for (int k = 0; k < CHAINS; k++) store_register<W>(out + k * W, chain[k]);
}
}
MSLSQ_EXPORT(arithmetic, f64)(i64 repeat, double* out) { arithmetic<double>(repeat, out); }
MSLSQ_EXPORT(arithmetic, f32)(i64 repeat, float* out) { arithmetic<float>(repeat, out); }
MSLSQ_EXPORT(reading, f64)(i64 count, const double* from, double* out) { reading<double>(count, from, out); }
MSLSQ_EXPORT(reading, f32)(i64 count, const float* from, float* out) { reading<float>(count, from, out); }
}}
"""
CHAINS, RUNS = 10, 15
NAMES = {torch.float64: "f64", torch.float32: "f32"}


class Peaks:
    """What this processor does at most with one instruction set."""

    def __init__(self) -> None:
        self.target = target()
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "peaks.cpp", Path(folder) / "peaks.so"
            source.write_text(PEAKS)
            options = [*FLAGS, *targets()[self.target], f"-DMSLSQ_TARGET={self.target}", f"-I{SOURCE}", "-shared"]
            subprocess.run([*compiler(), *options, str(source), "-o", str(library)], check=True)
            self.library = ctypes.CDLL(str(library))

    def _function(self, name: str, dtype: torch.dtype) -> Callable[..., None]:
        return getattr(self.library, f"mslsq_{name}_{NAMES[dtype]}_{self.target}")

    def operations(self, dtype: torch.dtype) -> float:
        """Operations per millisecond."""
        out, repeat = torch.zeros(16 * CHAINS, dtype=dtype), 1_000_000
        work = self._function("arithmetic", dtype)
        taken = milliseconds(lambda: work(ctypes.c_int64(repeat), ctypes.c_void_p(out.data_ptr())), RUNS)
        lanes = {"avx512": 64, "avx2": 32}.get(self.target, 16) // dtype.itemsize
        return 2 * repeat * CHAINS * lanes / taken

    def read(self, numbers: int, dtype: torch.dtype) -> float:
        """Milliseconds to read as many numbers, one after the other."""
        numbers = max(numbers, 1024)
        data, out = torch.ones(numbers, dtype=dtype), torch.zeros(16 * CHAINS, dtype=dtype)
        work, passes = self._function("reading", dtype), max(1, 1_000_000 // numbers)
        arguments = ctypes.c_int64(numbers), ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(out.data_ptr())
        return milliseconds(lambda: [work(*arguments) for _ in range(passes)], RUNS) / passes


class Measured(NamedTuple):
    """One kernel on one problem."""

    kernel: str
    problem: str
    dtype: torch.dtype
    milliseconds: float
    operations: float
    numbers: int
    """Read at least once."""


def fronts_of(structure) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Width and rows below of every front, as they are and padded."""
    fronts = structure.elimination.fronts.numpy()
    return tuple(fronts[:, column].astype(float) for column in (WIDTH, BELOW, PADDED, PADDED_BELOW))


def on_graph(name: str, graph: Graph, dtype: torch.dtype) -> Iterator[Measured]:
    """Factorisation and triangular solves."""
    structure = analyze(*graph)
    plan = structure.elimination.packed
    values = torch.from_numpy(values_of(structure, graph, 1)).to(dtype)
    none, rhs = values.new_zeros(0), torch.ones(1, structure.num_unknowns, 8, dtype=dtype)
    one = rhs[:, :, :1].contiguous()
    factored = factor(values, none, *plan)
    w, r, *_ = fronts_of(structure)
    stored = int((w * w / 2 + w * r).sum())
    operations = (w**3 / 3 + w**2 * r + w * r**2).sum()
    yield Measured("factor", name, dtype, milliseconds(lambda: factor(values, none, *plan), RUNS), operations, stored)
    for columns, right in ((1, one), (8, rhs)):
        taken = milliseconds(lambda right=right: solve(*factored, right, *plan), RUNS)
        yield Measured(f"solve, {columns}", name, dtype, taken, 4.0 * stored * columns, 2 * stored)


def seen(cameras: int, points: int, sightings: int, size: int) -> tuple[np.ndarray, Graph]:
    """A bundle adjustment: which blocks are points, each seen by as many neighbouring cameras, and the graph."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, cameras, points)
    camera = (first[:, None] + np.arange(sightings)) % cameras
    sizes = np.concatenate((np.full(cameras, size), np.full(points, 3)))
    edges = np.arange(points).repeat(sightings) + cameras, camera.ravel()
    return np.arange(cameras, cameras + points), (sizes, *edges)


def on_adjustment(name: str, points: np.ndarray, graph: Graph) -> Iterator[Measured]:
    """The elimination of the points."""
    structure = analyze(*graph)
    cameras = len(graph[0]) - len(points)
    solver = Schur(("point",)).bound(structure, {"camera": np.arange(cameras), "point": points})
    tables = solver.elimination.tables
    values = torch.rand(1, structure.num_values, dtype=torch.float64) * 0.1
    values[:, structure.diagonal_index] += 10.0
    none, rhs = values.new_zeros(0), torch.ones(1, structure.num_unknowns, dtype=torch.float64)
    sizes, point, camera = graph
    depth, width = sizes[points].astype(float), np.bincount(point, sizes[camera])[points]
    operations = (depth * width * (width + 1)).sum()  # one triangle of Y Y^T is enough
    operations += (depth * (depth + 2) * width).sum()
    taken = milliseconds(lambda: by_kernels.reduce(values, none, rhs, *tables.packed), RUNS)
    yield Measured("schur_reduce", name, torch.float64, taken, operations, structure.num_values)
    work, carried, *_ = by_kernels.reduce(values, none, rhs, *tables.packed)
    kept = torch.ones(1, tables.num_reduced, dtype=torch.float64)
    operations = (2 * depth * width + 2 * depth * (depth + 1)).sum()
    taken = milliseconds(lambda: by_kernels.back(values, work, carried, kept, *tables.packed), RUNS)
    yield Measured("schur_back", name, torch.float64, taken, operations, int((depth * width).sum()))


def on_blocks(name: str, graph: Graph, rows: int, dtype: torch.dtype) -> Iterator[Measured]:
    """From Jacobian blocks of two variables to normal equations."""
    sizes, *ends = graph
    above, below = np.maximum(*ends), np.minimum(*ends)
    structure, lanes = analyze(*graph), len(above)
    a, b, lane = int(sizes[above[0]]), int(sizes[below[0]]), torch.arange(lanes)

    def stored(i: np.ndarray, j: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(structure.offsets[structure.numbers_of(i, j)])

    parts = ((0, 0, a, a, above, above), (0, a, a, b, above, below), (a, a, b, b, below, below))
    columns = ((0, a, above), (a, b, below))
    starts = structure.starts
    plan = NormalPlan(
        structure.num_values,
        structure.num_unknowns,
        tuple(PairPlan(left, right, n, m, lane, stored(i, j)) for left, right, n, m, i, j in parts),
        tuple(VariablePlan(first, n, lane, torch.from_numpy(starts[block])) for first, n, block in columns),
    ).in_one_piece()
    jacobian, residual = torch.rand(1, rows, a + b, lanes, dtype=dtype), torch.rand(1, rows, lanes, dtype=dtype)
    taken = milliseconds(lambda: normal_equations(jacobian, residual, *plan.packed), RUNS)
    operations = 1.0 * lanes * rows * (a + b) * (a + b + 1 + 2)  # one triangle, and the gradient
    read = jacobian.numel() + residual.numel() + structure.num_values
    yield Measured("normal_equations", f"{name}, {lanes} × {rows} × ({a} + {b})", dtype, taken, operations, read)


def photographed(path: Path) -> tuple[np.ndarray, Graph]:
    """The same of a file of BAL."""
    scene = read_bal(path)
    cameras, points = len(scene.cameras), len(scene.points)
    sizes = np.concatenate((np.full(cameras, 9), np.full(points, 3)))
    return np.arange(cameras, cameras + points), (sizes, cameras + scene.point.numpy(), scene.camera.numpy())


def structures() -> Iterator[tuple[str, Graph]]:
    """Problems of many kinds for the model: grids, rings, complete graphs, random ones."""
    for size in (1, 2, 3, 6):
        for side in (14, 25, 44, 70):
            if side * size <= 220:
                yield f"grid {side} x {side} x {size}", grid(side, size)
        for poses in (300, 1000, 3000):
            yield f"ring {poses} x {size}", ring(poses, size)
        for blocks in (60, 120, 250):
            rows, columns = np.tril_indices(blocks, -1)
            yield f"complete {blocks} x {size}", (np.full(blocks, size), rows, columns)
        for blocks in (250, 900):
            rng = np.random.default_rng(blocks)
            rows = np.arange(1, blocks).repeat(2)
            yield f"random {blocks} x {size}", (np.full(blocks, size), rows, (rows * rng.random(len(rows))).astype(int))


def judge_model() -> None:
    """The times that are estimated, beside those measured."""
    ratios = []
    for name, graph in structures():
        structure = analyze(*graph)
        values = torch.from_numpy(values_of(structure, graph, 1))
        none, plan = values.new_zeros(0), structure.elimination.packed
        right = torch.ones(1, structure.num_unknowns, 1, dtype=torch.float64)
        taken = 1e6 * milliseconds(lambda v=values, n=none, p=plan, r=right: solve(*factor(v, n, *p), r, *p), 9)
        ratios.append((structure.elimination_nanoseconds / taken, name))
    ratios.sort()
    low, middle, high = (ratios[k] for k in (0, len(ratios) // 2, -1))
    print(f"{target()}: by the model / measured, {len(ratios)} structures: median {middle[0]:.2f}, ", end="")
    print(f"least {low[0]:.2f} ({low[1]}), most {high[0]:.2f} ({high[1]})")


def measure(data: Path) -> None:
    """The table of one instruction set."""
    peaks = Peaks()
    graphs = [("grid 60 × 60 × 6", grid(60, 6)), ("1,000 poses × 6, loops", ring(1000, 6))]
    rows, columns = np.tril_indices(200, -1)
    graphs.append(("complete, 200 × 6", (np.full(200, 6), rows, columns)))
    if (data / "g2o" / "sphere2500.g2o.gz").exists():
        graphs.insert(0, ("sphere2500, 2500 × 6", pose_graph(data / "g2o" / "sphere2500.g2o.gz", 6)))

    def results() -> Iterator[Measured]:
        for dtype in NAMES:
            for name, graph in graphs:
                yield from on_graph(name, graph, dtype)
            yield from on_blocks(graphs[0][0].partition(",")[0], graphs[0][1], 6, dtype)
        for cameras, points, sightings, size in ((49, 7776, 4, 9), (16, 22106, 4, 9), (60, 10000, 6, 6)):
            name = f"{cameras} cameras × {size}, {points} points seen {sightings} times"
            yield from on_adjustment(name, *seen(cameras, points, sightings, size))
        if (bal := data / "bal" / "problem-49-7776-pre.txt.bz2").exists():
            points, graph = photographed(bal)
            yield from on_adjustment("BAL 49-7776, cameras × 9", points, graph)
            for dtype in NAMES:
                yield from on_blocks("BAL 49-7776", graph, 2, dtype)

    table = []
    for of in results():  # the peaks are measured right after each kernel: the machine's speed changes with its load
        arithmetic = of.operations / peaks.operations(of.dtype)
        memory = peaks.read(of.numbers, of.dtype)
        binds = "arithmetic" if arithmetic > memory else "memory"
        speed = of.operations / of.milliseconds / 1e6
        share = max(arithmetic, memory) / of.milliseconds
        table.append((of.kernel, of.problem, NAMES[of.dtype], of.milliseconds, f"{speed:.1f}", binds, f"{share:.0%}"))
    known = ", ".join(f"{NAMES[d]} {peaks.operations(d) / 1e6:.1f}" for d in NAMES)
    print_table(
        f"{peaks.target}: measured peaks in Gflop/s: {known}",
        ("kernel", "problem", "type", "ms", "Gflop/s", "bound by", "share of the peak"),
        table,
    )


def main() -> int:
    """Every instruction set in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--models", action="store_true", help="judge the model of a front's time instead")
    parser.add_argument("--here", action="store_true", help="one instruction set, in this process")
    arguments = parser.parse_args()
    if arguments.here:
        torch.set_num_threads(1)
        if arguments.models:
            judge_model()
        else:
            measure(arguments.data)
        return 0
    print_machine(["torch", "numpy"])
    return for_each_target(__file__, sys.argv[1:], targets())


if __name__ == "__main__":
    sys.exit(main())
