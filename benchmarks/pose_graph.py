"""Pose graphs from the file's start to the optimum, beside GTSAM and Ceres.

    python benchmarks/pose_graph.py                                  # everything: about a quarter of an hour
    python benchmarks/pose_graph.py --graphs intel --no-compile      # one graph, no waiting for the compiler

Needs the data sets (../shared/data beside the repository, or MSLSQ_DATA), `pip install gtsam`, and for Ceres g++ and
libceres-dev; a peer that is missing does not take part. Each gets the same graph in memory, builds a problem of it
and solves it; the time of building is included, and shown apart. A prior of sigma 1e-6 (Ceres: a constant) holds the
first pose. All costs are ½ Σ eᵀ Ω e with e the logarithm of measured⁻¹ a⁻¹ b, computed here by SciPy's rotations for
every answer.

"New" solves a new Problem each time. "Again" solves one Problem again and again: its plan is made and its step is
recorded; "compiled" is the same after torch.compile, what that took being in the column of the first solve. "Native"
is with native programs, which the first solve waits for. "Prepared" is the call of `mslsq.prepared`, which compares the
residual with the user's Python at its first and every hundredth call alone.
"""

import argparse
import hashlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import graph_families
import numpy as np
from peers import ceres, gtsam_graphs
from peers.turns import Stopwatch, Taken, Turn, in_own_processes, limit_threads, shared_data, take_turns
from scipy.spatial.transform import Rotation
from timing import print_machine, print_table

import mslsq
from mslsq.datasets.g2o import read_g2o
from mslsq.datasets.pose_graph import PoseGraph

GRAPHS = {
    "sphere2500": "sphere2500.g2o.gz",
    "parking-garage": "parking-garage.g2o.gz",
    "M3500": "input_M3500_g2o.g2o.gz",
    "intel": "intel.g2o.gz",
}
PEERS = ("GTSAM", "Ceres")
"""What a name begins with."""


def logarithms(poses: np.ndarray, measured: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """log(measured⁻¹ a⁻¹ b) of every edge, (edges, 3) in the plane or (edges, 6) in space."""
    a, b = poses[first], poses[second]
    if poses.shape[1] == 3:
        angle = b[:, 2] - a[:, 2] - measured[:, 2]
        angle -= 2 * np.pi * np.round(angle / (2 * np.pi))
        moved = _turned(-measured[:, 2], _turned(-a[:, 2], b[:, :2] - a[:, :2]) - measured[:, :2])
        half = angle / 2
        along = np.where(np.abs(half) > 1e-4, half / np.tan(np.where(half == 0, 1, half)), 1 - half**2 / 3)
        across = np.stack([moved[:, 1], -moved[:, 0]], 1)
        return np.column_stack([along[:, None] * moved + half[:, None] * across, angle])
    turn_a, turn_b, turn = (Rotation.from_quat(rows[:, 3:]) for rows in (a, b, measured))
    w = (turn.inv() * turn_a.inv() * turn_b).as_rotvec()
    moved = turn.inv().apply(turn_a.inv().apply(b[:, :3] - a[:, :3]) - measured[:, :3])
    squared = (w**2).sum(1)
    half = np.sqrt(np.where(squared > 1e-6, squared, 1)) / 2
    factor = np.where(squared > 1e-6, (1 - half / np.tan(half)) / (4 * half**2), 1 / 12 + squared / 720)
    across = np.cross(w, moved)
    return np.column_stack([moved - across / 2 + factor[:, None] * np.cross(w, across), w])


def _turned(angle: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * vectors[:, 0] - s * vectors[:, 1], s * vectors[:, 0] + c * vectors[:, 1]], 1)


def rows_of(poses: Any) -> np.ndarray:
    """x y theta, or x y z qx qy qz qw."""
    return (poses.xyt() if isinstance(poses, mslsq.SE2) else poses.normalized().storage).numpy()


def cost_of(graph: PoseGraph, poses: np.ndarray) -> float:
    """½ Σ eᵀ Ω e, computed in the same way for every solver."""
    errors = logarithms(poses, rows_of(graph.measured), graph.first.numpy(), graph.second.numpy())
    return 0.5 * float(np.einsum("ea,eab,eb->", errors, graph.information.numpy(), errors))


class LogMapBetween(mslsq.CostFunction):
    """A relative pose as a user writes it, its Jacobians left to automatic differentiation."""

    def residual(self, a: Any, b: Any, measured: Any) -> Any:
        return (measured.inverse() @ (a.inverse() @ b)).log()


def autodiff_problem(graph: PoseGraph) -> mslsq.Problem:
    """The same problem as `graph.problem()`."""
    pose = mslsq.Variable("pose", type(graph.poses), count=len(graph.ids))
    weight = mslsq.SqrtInformation.from_information(graph.information)
    between = LogMapBetween(
        pose[graph.first], pose[graph.second], measured=graph.measured.normalized(), weight=weight, name="between"
    )
    return mslsq.Problem(between, mslsq.Prior(pose[[0]], target=graph.poses[:1].normalized(), weight=1e6))


def own(
    graph: PoseGraph,
    solver: Any,
    problem_of: Callable[[PoseGraph], mslsq.Problem] = PoseGraph.problem,
    again: bool = True,
    prepared: bool = False,
) -> Callable[[], Turn]:
    """This library, with a new Problem each time or one Problem for all turns, perhaps prepared."""
    kept = problem_of(graph) if again else None
    start = {"pose": graph.poses}
    call = mslsq.prepared(problem_of(graph), start, solver=solver) if prepared else None

    def turn() -> Turn:
        watch = Stopwatch()
        built = problem_of(graph)
        build_cpu = watch.cpu
        problem = built if kept is None else kept
        solution = mslsq.solve(problem, start, solver=solver) if call is None else call(start)
        cpu, wall = watch.cpu, watch.wall
        return Turn(rows_of(solution.value["pose"]), int(solution.num_steps), cpu, wall, build_cpu)

    return turn


def gtsam_turn(graph: PoseGraph, method: str) -> Callable[[], Turn]:
    """GTSAM with its defaults."""

    def turn() -> Turn:
        watch = Stopwatch()
        built = gtsam_graphs.pose_graph(graph)
        build_cpu = watch.cpu
        values, steps = gtsam_graphs.optimize(built, method)
        cpu, wall = watch.cpu, watch.wall
        return Turn(gtsam_graphs.poses_of(values, len(graph.ids), graph.dimension), steps, cpu, wall, build_cpu)

    return turn


def ceres_text(graph: PoseGraph) -> str:
    """The input of peers/ceres_pose_graph.cc."""
    poses, measured = rows_of(graph.poses), rows_of(graph.measured)
    roots = np.linalg.cholesky(graph.information.numpy()).swapaxes(1, 2).reshape(len(measured), -1)
    edges = np.column_stack([graph.first.numpy(), graph.second.numpy(), measured, roots])
    lines = [f"{graph.dimension} {len(poses)} {len(edges)}"]
    lines += [" ".join(map(repr, row)) for table in (poses, edges) for row in table.tolist()]
    return "\n".join(lines)


def ceres_turn(program: ceres.Ceres, graph: PoseGraph, residual: str, threads: int) -> Callable[[], Turn]:
    """Ceres' Levenberg-Marquardt with a sparse Cholesky; ftol 1e-8, since with its default of 1e-6 it stops on intel
    2 % above the optimum."""

    def turn() -> Turn:
        told = program.solve(residual=residual, ftol=1e-8, steps=200, threads=threads)
        return Turn(told.values.reshape(len(graph.ids), -1), told.steps, told.cpu, told.wall, told.build_cpu)

    return turn


def contestants(graph: PoseGraph, threads: int, compiled: bool, program: ceres.Ceres | None) -> dict[str, Any]:
    """The solvers that are installed."""
    lm = mslsq.LevenbergMarquardt(native="never")
    loose = mslsq.LevenbergMarquardt(ftol=1e-6, native="never")
    waiting = mslsq.LevenbergMarquardt(ftol=1e-6, native="wait")
    them = {
        "mslsq LM, new": own(graph, lm, again=False),
        "mslsq LM, again": own(graph, lm),
        "mslsq LM, again, ftol 1e-6": own(graph, loose),
        "mslsq GN, again, ftol 1e-6": own(graph, mslsq.GaussNewton(ftol=1e-6, native="never")),
        "mslsq LM autodiff, again, ftol 1e-6": own(graph, loose, autodiff_problem),
        "mslsq LM native, again, ftol 1e-6": own(graph, waiting),
        "mslsq GN native, again, ftol 1e-6": own(graph, mslsq.GaussNewton(ftol=1e-6, native="wait")),
        "mslsq LM autodiff native, again, ftol 1e-6": own(graph, waiting, autodiff_problem),
        "mslsq LM autodiff native, prepared, ftol 1e-6": own(graph, waiting, autodiff_problem, prepared=True),
    }
    if compiled:
        fast = mslsq.LevenbergMarquardt(ftol=1e-6, compile=True)
        them["mslsq LM compiled, ftol 1e-6"] = own(graph, fast)
        them["mslsq GN compiled, ftol 1e-6"] = own(graph, mslsq.GaussNewton(ftol=1e-6, compile=True))
        them["mslsq LM autodiff compiled, ftol 1e-6"] = own(graph, fast, autodiff_problem)
    if gtsam_graphs.INSTALLED:
        them["GTSAM LM"] = gtsam_turn(graph, "LM")
        them["GTSAM GN"] = gtsam_turn(graph, "GN")
    if program is not None:
        them["Ceres LM, log map"] = ceres_turn(program, graph, "log", threads)
        them["Ceres LM, first order"] = ceres_turn(program, graph, "first_order", threads)
    return them


def measured(
    graph: PoseGraph, threads: int, repeats: int, compiled: bool, only: tuple[str, ...] = (), settled: bool = False
) -> dict[str, tuple[float, Taken]]:
    """Cost and times of all solvers on one graph, or of those named in `only`; perhaps of those of this library once
    their steps are native programs, too, which solves again and again come to."""
    try:
        program = ceres.Ceres("ceres_pose_graph", ceres_text(graph))
    except ceres.CeresError as error:
        print(f"without Ceres: {error}", flush=True)
        program = None
    try:
        them = contestants(graph, threads, compiled, program)
        them = {name: turn for name, turn in them.items() if not only or name in only}
        taken = take_turns(them, repeats)
        if settled:
            for name in OWN_RESIDUAL:
                settle(them[name])
            late = take_turns(them, repeats)
            taken = {
                name: turn._replace(cpu=min(turn.cpu, late[name].cpu)) if name.startswith(PEERS) else turn
                for name, turn in taken.items()
            }
            taken |= {f"{name}, settled": late[name] for name in OWN_RESIDUAL}
    finally:
        if program is not None:
            program.close()
    return {name: (cost_of(graph, turn.last.values), turn) for name, turn in taken.items()}


SETTLING_SECONDS = 12.0
"""The steps of a graph become a native program once 200,000 operations of PyTorch have been done for them."""


def settle(turn: Callable[[], Turn]) -> None:
    """Solve again and again, and leave the compiler time, until a solve takes no less than before."""
    begin, least = time.monotonic(), float("inf")
    while time.monotonic() - begin < SETTLING_SECONDS:
        for _ in range(40):
            last = turn()
        time.sleep(1.0)
        if last.cpu > 0.95 * least and time.monotonic() - begin > SETTLING_SECONDS / 2:
            return
        least = min(least, last.cpu)


def read(name: str) -> PoseGraph:
    """One of the graphs."""
    return read_g2o(shared_data() / "g2o" / GRAPHS[name])


def fastest_peer(found: dict[str, tuple[float, Taken]]) -> float:
    """CPU time of the fastest peer that reached the optimum to 1 %; NaN where there is none. (Ceres' first-order
    residual has its own optimum: that of parking-garage costs 0.04 % more.)"""
    best = min(cost for cost, _ in found.values())
    times = [t.cpu for name, (cost, t) in found.items() if name.startswith(PEERS) and cost <= 1.01 * best]
    return min(times, default=float("nan"))


def compare(name: str, threads: int, repeats: int, compiled: bool, only: tuple[str, ...] = ()) -> None:
    """The table of one graph."""
    graph = read(name)
    found = measured(graph, threads, repeats, compiled, only)
    best, peer = min(cost for cost, _ in found.values()), fastest_peer(found)
    rows = [
        [
            who,
            f"{cost:.10g}",
            f"{cost / best - 1:.0e}",
            turn.last.steps,
            turn.build_cpu,
            turn.cpu,
            turn.wall,
            f"{turn.cpu / peer:.2f}",
            turn.first.wall,
        ]
        for who, (cost, turn) in found.items()
    ]
    start = cost_of(graph, rows_of(graph.poses))
    print_table(
        f"### {name}: {len(graph.ids)} poses, {len(graph.measured)} edges, cost {start:.10g} at the start; {threads} "
        f"thread{'s' if threads > 1 else ''}",
        [
            "",
            "cost",
            "excess",
            "steps",
            "build CPU ms",
            "total CPU ms",
            "total wall ms",
            "CPU / peer",
            "first, wall ms",
        ],
        rows,
    )


OWN_RESIDUAL = ("mslsq LM autodiff native, again, ftol 1e-6", "mslsq LM autodiff native, prepared, ftol 1e-6")


def compare_families(count: int, threads: int, repeats: int) -> None:
    """A user's own residual on a number of graphs of the half of the families on which nothing was chosen, drawn evenly
    from all; by their size the medians of its time as a share of the fastest peer's, where one got there."""
    peers = ("GTSAM LM", "GTSAM GN", "Ceres LM, log map", "Ceres LM, first order")
    names = sorted(graph_families.names("claim"), key=lambda name: hashlib.sha256(f"drawn {name}".encode()).digest())
    rows, shares = [], {}
    for name in names[:count]:
        found = measured(graph_families.graph(name), threads, repeats, False, (*OWN_RESIDUAL, *peers), settled=True)
        best, peer = min(cost for cost, _ in found.values()), fastest_peer(found)
        own_cpu = [found[who][1].cpu for who in (*OWN_RESIDUAL, *[f"{who}, settled" for who in OWN_RESIDUAL])]
        cost, taken = found[OWN_RESIDUAL[0]]
        for size in (name.split("-")[1], "all") if math.isfinite(peer) else ():  # NaN: no peer came to the best cost
            shares.setdefault(size, []).append([cpu / peer for cpu in own_cpu])
        rows.append([name, f"{cost / best - 1:.0e}", taken.last.steps, *own_cpu, peer, f"{own_cpu[2] / peer:.2f}"])
    kinds = ["calls 2 to 6", "prepared", "settled", "settled, prepared"]
    heads = ["", "excess", "steps", *[f"{kind}, CPU ms" for kind in kinds], "fastest peer CPU ms", "settled / peer"]
    print_table("### Held-out half of the families", heads, rows)
    medians = [
        [size, len(values), *(f"{statistics.median(column):.2f}" for column in zip(*values, strict=True))]
        for size, values in shares.items()
    ]
    print_table("### Medians of CPU / peer by size", ["poses", "graphs", *kinds], medians)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile (a minute per graph)")
    parser.add_argument("--only", nargs="*", default=[], help="these contestants alone")
    parser.add_argument(
        "--families", type=int, default=0, help="number of graphs of graph_families.py to solve instead"
    )
    parser.add_argument("--here", type=int, help="in this process, with this many threads")
    options = parser.parse_args()
    if options.here is None:
        print_machine(["torch", "gtsam"])
        return in_own_processes(__file__, sys.argv[1:], options.threads)
    limit_threads(options.here)
    if options.families:
        compare_families(options.families, options.here, options.repeats)
        return 0
    for name in options.graphs:
        compare(name, options.here, options.repeats, not options.no_compile, tuple(options.only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
