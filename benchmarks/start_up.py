"""What a new process needs before it has solved its first problem, phase by phase.

    python benchmarks/start_up.py                                    # sphere2500 and the first calls, five times
    python benchmarks/start_up.py --graphs intel --calls fit --repeats 3

Needs the data sets (../shared/data beside the repository, or MSLSQ_DATA). One thread, default options. "Empty" means
the caches of mslsq's own: the byte code of its modules, kernels compiled on demand (where the package came without
them), Inductor's; those of PyTorch and NumPy were made when these were installed. "Warm" is the process after that,
"programs" one after a process that has waited for all native programs (`MSLSQ_NATIVE=wait`), which short solves never
begin with. A
second solve, of the same problem, is shown for comparison: it is what the first would take if nothing were loaded,
planned or tried. First calls are of residuals of one's own, in plain PyTorch; what the compiler takes beside a call is
in it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from peers.turns import shared_data
from pose_graph import GRAPHS
from timing import ONE_THREAD, print_machine, print_table

PHASES = ("import torch", "import mslsq", "data", "first solve", "second solve")

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
sys.pycache_prefix = sys.argv[1]
import mslsq
phase("import mslsq")
DATA
phase("data")
found = CALL
phase("first solve")
CALL
phase("second solve")
print(json.dumps([taken, float(found)]))
"""


@dataclass(frozen=True)
class Start:
    """What a new process does."""

    data: str
    """Code that makes the data..."""
    call: str
    """... and an expression that solves and gives a number."""


def graph(name: str) -> Start:
    """A pose graph of the data sets, with the library's own factor."""
    data = f"""
from mslsq.datasets.g2o import read_g2o
graph = read_g2o({str(shared_data() / "g2o" / GRAPHS[name])!r})
"""
    return Start(data, 'mslsq.solve(graph.problem(), {"pose": graph.poses}).cost')


FIT = """
torch.manual_seed(0)
t = torch.linspace(0, 1, 32, dtype=torch.float64)
y = 1.3 * torch.exp(-1.5 * t) + 0.3 + 0.01 * torch.randn(32, dtype=torch.float64)
start = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
def model(p, t):
    return p[0] * torch.exp(p[1] * t) + p[2]
def residual(p, t, y):
    return model(p, t) - y
"""
FITS = FIT + "many = y + 0.01 * torch.randn(1024, 32, dtype=torch.float64)\n"
IN_PLACE = (
    FIT
    + """
import warnings
warnings.simplefilter("ignore")
def written(p, t, y):
    out = torch.zeros(32, dtype=torch.float64)
    out[:16] = residual(p, t[:16], y[:16])
    out[16:] = residual(p, t[16:], y[16:])
    return out
"""
)
GRADIENT = (
    FIT
    + """
def gradient():
    given = y.clone().requires_grad_()
    mslsq.least_squares(residual, start, (t, given)).value.sum().backward()
    return given.grad.sum()
"""
)
OWN = """
weight = mslsq.SqrtInformation(torch.linalg.cholesky(graph.information).mT)
class Relative(mslsq.CostFunction):
    def residual(self, a, b, measured):
        return (measured.inverse() @ (a.inverse() @ b)).log()
def solved():
    pose = mslsq.Variable("pose", type(graph.poses), count=len(graph.ids))
    edges = Relative(pose[graph.first], pose[graph.second], measured=graph.measured, weight=weight)
    return mslsq.solve(mslsq.Problem(edges, pose.fixed(graph.fixed)), {"pose": graph.poses}).cost
"""

CALLS: dict[str, Callable[[], Start]] = {
    "fit": lambda: Start(FIT, "mslsq.least_squares(residual, start, (t, y)).cost"),
    "curve fit": lambda: Start(FIT, "mslsq.curve_fit(model, t, y, start).value.sum()"),
    "1,024 fits": lambda: Start(
        FITS, "mslsq.least_squares(residual, start, (t, many), in_dims=(None, None, 0)).cost.sum()"
    ),
    "fit, written in place": lambda: Start(IN_PLACE, "mslsq.least_squares(written, start, (t, y)).cost"),
    "fit with its gradient": lambda: Start(GRADIENT, "gradient()"),
    "intel, own residual": lambda: Start(graph("intel").data + OWN, "solved()"),
    "sphere2500, own residual": lambda: Start(graph("sphere2500").data + OWN, "solved()"),
}


def new_process(start: Start, folder: str, **environment: str) -> tuple[dict[str, list[float]], float]:
    """CPU and wall seconds of every phase, and the number that was found; caches are in `folder`."""
    caches = {"MSLSQ_CACHE_DIR": f"{folder}/kernels", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    code = CODE.replace("DATA", start.data).replace("CALL", start.call)
    command = [sys.executable, "-c", code, f"{folder}/bytecode"]
    variables = os.environ | ONE_THREAD | caches | environment
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process failed:\n{done.stderr}")
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def measured(name: str, start: Start, repeats: int) -> list[list[object]]:
    """A row for each kind of caches: CPU milliseconds of every phase, sums of CPU and wall time, and the first solve
    relative to `import torch`."""
    kinds = "empty", "warm", "programs"
    runs: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for kind, found in runs.items():
                if kind == "programs":
                    new_process(start, folder, MSLSQ_NATIVE="wait")
                phases, number = new_process(start, folder)
                found.append(phases)
    rows: list[list[object]] = []
    for caches, found in runs.items():
        cpu = [1e3 * median(run[phase][0] for run in found) for phase in PHASES]
        total, wall = (1e3 * median(sum(run[phase][k] for phase in PHASES[:-1]) for run in found) for k in (0, 1))
        ratio = median(run["first solve"][0] / run["import torch"][0] for run in found)
        rows.append([name, caches, f"{number:.10g}", *cpu, total, wall, f"{ratio:.2f}"])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=["sphere2500"], choices=list(GRAPHS))
    parser.add_argument("--calls", nargs="*", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print_machine(["torch", "numpy"])
    starts = {name: graph(name) for name in options.graphs} | {name: CALLS[name]() for name in options.calls}
    print_table(
        "### A new process with one thread, to the end of its first solve: CPU ms by phase (medians)",
        ["solve", "caches", "found", *PHASES, "all but the second, CPU ms", "wall ms", "first solve / import torch"],
        [row for name, start in starts.items() for row in measured(name, start, options.repeats)],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
