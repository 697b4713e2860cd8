"""The library's block-sparse Cholesky beside the backends of `SparseCholesky`: SuperLU (SciPy) and, where installed,
MKL PARDISO (pip install pypardiso), CHOLMOD (pip install scikit-sparse or kvxopt, GPL) and MUMPS (python-mumps).

    OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 python benchmarks/sparse_cholesky.py --g2o ../shared/data/g2o --output table.md

Process CPU time on one thread, in milliseconds, the minimum of several runs: it is steadier than wall time where others
use the machine too. PARDISO's analysis holds what pypardiso takes to find MKL, 0.27 s each time. Every row factors the
same matrix: JᵀJ of random Jacobian blocks on the edges, plus 0.01 I.
"""

import argparse
import gzip
import platform
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import scipy
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import splu

from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.sparse.backends import lower_triangle
from mslsq.linear.sparse.multifrontal import factor, solve

PEERS = {"superlu": "SuperLU, ordered once", "pardiso": "MKL PARDISO", "cholmod": "CHOLMOD", "mumps": "MUMPS"}

Graph = tuple[np.ndarray, np.ndarray, np.ndarray]


def milliseconds(work: Callable[[], object], runs: int) -> float:
    """CPU time of the fastest of several runs after one to warm up."""
    work()
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return 1e3 * best


def pose_graph(path: Path, size: int) -> Graph:
    """Block sizes and edges of a g2o file whose vertices are numbered from 0."""
    with gzip.open(path, "rt") as lines:
        edges = np.array([line.split()[1:3] for line in lines if line.startswith("EDGE")], np.int64)
    return np.full(edges.max() + 1, size), edges[:, 0], edges[:, 1]


def grid(side: int, size: int) -> Graph:
    """Neighbours on a square grid."""
    g = np.arange(side * side).reshape(side, side)
    return (
        np.full(side * side, size),
        np.concatenate((g[1:].ravel(), g[:, 1:].ravel())),
        np.concatenate((g[:-1].ravel(), g[:, :-1].ravel())),
    )


def ring(poses: int, size: int) -> Graph:
    """A trajectory with a loop closure every ten poses."""
    rng = np.random.default_rng(0)
    closing = np.arange(10, poses, 10)
    return (
        np.full(poses, size),
        np.concatenate((np.arange(1, poses), closing)),
        np.concatenate((np.arange(poses - 1), rng.integers(0, closing - 1))),
    )


def normal_equations(structure: BlockStructure, graph: Graph, batch: int) -> np.ndarray:
    """JᵀJ + 0.01 I, J with one random block row per edge."""
    sizes, i, j = graph
    d = int(sizes[0])
    high, low = np.maximum(i, j), np.minimum(i, j)
    jacobian = np.random.default_rng(0).standard_normal((batch, len(i), d, 2 * d))
    products = jacobian.swapaxes(2, 3) @ jacobian
    values = np.zeros((batch, structure.num_values))
    within = np.arange(d * d).reshape(d, d)
    for a, x in enumerate((high, low)):
        for b, y in enumerate((high, low)):
            if (a, b) != (1, 0):
                at = structure.offset_of(x, y)[0][:, None, None] + within
                block = products[:, :, a * d : a * d + d, b * d : b * d + d]
                entry = np.arange(batch)[:, None, None, None] * structure.num_values
                np.add.at(values.reshape(-1), entry + at, block)
    values[:, structure.diagonal_index.numpy()] += 0.01
    return values


def to_scipy(structure: BlockStructure, values: np.ndarray) -> sp.csc_matrix:
    """One matrix in SciPy's form."""
    lower = sp.tril(sp.coo_matrix((values, structure.places), (structure.num_unknowns,) * 2)).tocsc()
    return sp.csc_matrix(lower + sp.tril(lower, -1).T)


def own(graph: Graph, batch: int, dtype: type, runs: int) -> dict[str, str]:
    """This library's row; times per matrix."""
    structure = analyze(*graph)
    plan = structure.elimination.packed
    values = torch.from_numpy(normal_equations(structure, graph, batch).astype(dtype))
    rhs = torch.from_numpy(np.random.default_rng(1).standard_normal((batch, structure.num_unknowns, 8)).astype(dtype))
    none, one = values.new_zeros(0), rhs[:, :, :1].contiguous()
    factored = factor(values, none, *plan)
    x = solve(*factored, one, *plan)[0].numpy()
    matrix = to_scipy(structure, values[0].numpy())
    residual = np.abs(matrix @ x - one[0].numpy()).max() / (abs(matrix).sum(1).max() * np.abs(x).max())
    return {
        "solver": f"mslsq block LLᵀ, {np.dtype(dtype).name}",
        "analysis": f"{milliseconds(lambda: analyze(*graph), 3):.1f}",
        "factor": f"{milliseconds(lambda: factor(values, none, *plan), runs) / batch:.3g}",
        "solve": f"{milliseconds(lambda: solve(*factored, one, *plan), runs) / batch:.3g}",
        "solve 8": f"{milliseconds(lambda: solve(*factored, rhs, *plan), runs) / batch:.3g}",
        "residual": f"{residual:.0e}",
    }


def peers(graph: Graph, runs: int) -> list[dict[str, str]]:
    """SciPy, and the backends that can be imported, on the first matrix of the batch."""
    structure = analyze(*graph)
    values = normal_equations(structure, graph, 1)[0]
    matrix = to_scipy(structure, values)
    rhs = np.random.default_rng(1).standard_normal((structure.num_unknowns, 8))
    scale = abs(matrix).sum(1).max()
    rows = []

    def lu():
        return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0, options={"SymmetricMode": True})

    def row(name, analysis, factoring, apply):
        x = apply(rhs[:, :1])
        rows.append(
            {
                "solver": name,
                "analysis": analysis,
                "factor": f"{milliseconds(factoring, runs):.3g}",
                "solve": f"{milliseconds(lambda: apply(rhs[:, :1].copy()), runs):.3g}",
                "solve 8": f"{milliseconds(lambda: apply(rhs), runs):.3g}",
                "residual": f"{np.abs(matrix @ x - rhs[:, :1]).max() / (scale * np.abs(x).max()):.0e}",
            }
        )

    factored = lu()
    row("SciPy splu, MMD, symmetric", "in factor", lu, factored.solve)
    lower, place = lower_triangle(structure)
    for backend, name in PEERS.items():
        factorization = import_module(f"mslsq.linear.sparse.backends.{backend}").Factorization
        try:
            foreign = factorization(lower)
        except ImportError:
            continue
        analysis = milliseconds(lambda made=factorization: made(lower), 3)
        foreign.factor(values[place])
        row(name, f"{analysis:.1f}", lambda own=foreign: own.factor(values[place]), foreign.solve)
    return rows


def processor() -> str:
    """The processor's name and vector width as Linux tells them."""
    described = Path("/proc/cpuinfo")
    if not described.exists():
        return platform.machine()
    lines = described.read_text().splitlines()
    fields = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    wide = "AVX-512" if "avx512f" in fields.get("flags", "") else "no AVX-512"
    return f"{fields.get('model name', platform.machine())} ({wide})"


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--g2o", type=Path, help="folder with sphere2500.g2o.gz")
    parser.add_argument("--output", type=Path, help="write the table there too")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()

    problems: dict[str, tuple[Graph, int]] = {}
    if options.g2o:
        problems["sphere2500, 2500 × 6"] = pose_graph(options.g2o / "sphere2500.g2o.gz", 6), 1
    problems["grid 100 × 100 × 2"] = grid(100, 2), 1
    problems["256 loops of 100 poses × 6, each"] = ring(100, 6), 256
    problems["grid 317 × 317 × 1"] = grid(317, 1), 1
    columns = ["problem", "solver", "analysis", "factor", "solve", "solve 8", "residual"]
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    for name, (graph, batch) in problems.items():
        runs = options.runs if len(graph[0]) < 50000 else 3
        rows = [own(graph, batch, np.float64, runs), own(graph, batch, np.float32, runs), *peers(graph, runs)]
        lines += [" | ".join([name, *(row[c] for c in columns[1:])]) for row in rows]
    table = "\n".join(f"| {line} |" for line in lines)
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    text = f"{processor()}; {versions}; one thread, CPU-ms, minimum of {options.runs}\n\n{table}\n"
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)


if __name__ == "__main__":
    main()
