"""What a new process needs before it has solved its first pose graph, phase by phase.

    python benchmarks/start_up.py                                    # sphere2500, five times
    python benchmarks/start_up.py --graphs intel --repeats 3

Needs the data sets (../shared/data beside the repository, or MSLSQ_DATA). One thread, default options. "Empty" means
the caches of mslsq's own: the byte code of its modules, kernels compiled on demand (where the package came without
them), Inductor's; those of PyTorch and NumPy were made when these were installed. "Warm" is the process after that. A
second solve, of the same problem, is shown for comparison: it is what the first would take if nothing were loaded,
planned or tried.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from peers.turns import shared_data
from pose_graph import GRAPHS
from timing import ONE_THREAD, print_machine, print_table

PHASES = ("import torch", "import mslsq", "read", "problem", "first solve", "second solve")

CODE = """
import json, resource, sys, time
sys.dont_write_bytecode = False
taken = {}
def now():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime, time.perf_counter()
def phase(name):
    global before
    after = now()
    taken[name] = [after[0] - before[0], after[1] - before[1]]
    before = now()
before = 0.0, now()[1]
import torch
phase("import torch")
sys.pycache_prefix = sys.argv[2]
import mslsq
from mslsq.datasets.g2o import read_g2o
phase("import mslsq")
graph = read_g2o(sys.argv[1])
phase("read")
problem = graph.problem()
phase("problem")
solution = mslsq.solve(problem, {"pose": graph.poses})
phase("first solve")
mslsq.solve(problem, {"pose": graph.poses})
phase("second solve")
print(json.dumps([taken, float(solution.cost)]))
"""


def new_process(graph: Path, folder: str) -> tuple[dict[str, list[float]], float]:
    """CPU and wall seconds of every phase, and the cost; caches are in `folder`."""
    caches = {"MSLSQ_CACHE_DIR": f"{folder}/kernels", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    command = [sys.executable, "-c", CODE, str(graph), f"{folder}/bytecode"]
    done = subprocess.run(command, env=os.environ | ONE_THREAD | caches, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process failed:\n{done.stderr}")
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def measured(name: str, repeats: int) -> list[list[object]]:
    """A row for empty and one for warm caches: CPU milliseconds of every phase, sums of CPU and wall time."""
    runs: dict[str, list[dict[str, list[float]]]] = {"empty": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for found in runs.values():
                phases, cost = new_process(shared_data() / "g2o" / GRAPHS[name], folder)
                found.append(phases)
    rows: list[list[object]] = []
    for caches, found in runs.items():
        cpu = [1e3 * median(run[phase][0] for run in found) for phase in PHASES]
        total, wall = (1e3 * median(sum(run[phase][k] for phase in PHASES[:-1]) for run in found) for k in (0, 1))
        rows.append([name, caches, f"{cost:.10g}", *cpu, total, wall])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=["sphere2500"], choices=list(GRAPHS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print_machine(["torch", "numpy"])
    print_table(
        "### A new process with one thread, to the end of its first solve: CPU ms by phase (medians)",
        ["graph", "caches", "cost", *PHASES, "all but the second, CPU ms", "wall ms"],
        [row for name in options.graphs for row in measured(name, options.repeats)],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
