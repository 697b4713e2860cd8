"""BAL's Ladybug 49-7776, thirty Levenberg-Marquardt steps, beside Ceres and GTSAM.

    python benchmarks/bundle_adjustment.py                         # everything: about ten minutes
    python benchmarks/bundle_adjustment.py --no-compile --threads 1

Needs the data sets (../shared/data beside the repository, or MSLSQ_DATA), `pip install gtsam`, and for Ceres g++ and
libceres-dev; a peer that is missing does not take part. Each takes exactly thirty steps from the file's start (all
tolerances zero), rejected ones counted, no robust loss. All costs are ½ Σ |predicted − measured pixel|² over all
observations, computed here in NumPy and float64 for every answer. GTSAM leaves out observations whose point lies
behind its camera, so it minimises another cost; the benchmark's own counts them, and what GTSAM says itself is shown in
its row; it takes one turn only, being ten times as slow.

"Steps to 13344.5" is the first step whose cost is not above that.
"""

import argparse
import bz2
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from linearize import Reprojected
from peers import ceres, gtsam_graphs
from peers.turns import Stopwatch, Taken, Turn, in_own_processes, limit_threads, shared_data, take_turns
from scipy.spatial.transform import Rotation
from timing import print_machine, print_table

import mslsq
from mslsq.datasets.bal import BundleAdjustment, read_bal

PROBLEM = "problem-49-7776-pre.txt.bz2"
STEPS = 30
GOAL = 13344.5
CERES = ("DENSE_SCHUR", "SPARSE_SCHUR", "ITERATIVE_SCHUR")

Values = tuple[np.ndarray, np.ndarray]
"""Cameras (cameras, 9) and points (points, 3), as BAL has them."""


def cost_of(scene: BundleAdjustment, values: Values) -> float:
    """½ Σ |predicted − measured|², computed in the same way for every solver."""
    cameras, points = (table.astype(np.float64) for table in values)
    seen_by = cameras[scene.camera.numpy()]
    seen = Rotation.from_rotvec(seen_by[:, :3]).apply(points[scene.point.numpy()]) + seen_by[:, 3:6]
    p = -seen[:, :2] / seen[:, 2:]
    n = (p**2).sum(1)
    predicted = (seen_by[:, 6] * (1 + n * (seen_by[:, 7] + n * seen_by[:, 8])))[:, None] * p
    return 0.5 * float(((predicted - scene.pixels.numpy()) ** 2).sum())


def solver(linear: Any = "auto", compiled: bool = False, native: Any = "never") -> mslsq.LevenbergMarquardt:
    """Thirty steps, whatever happens."""
    return mslsq.LevenbergMarquardt(
        max_steps=STEPS, ftol=0, gtol=0, xtol=0, linear_solver=linear, compile=compiled, native=native
    )


def autodiff_problem(scene: BundleAdjustment) -> mslsq.Problem:
    """The same problem as `scene.problem()`, its residual as a user writes it, differentiated automatically."""
    camera = mslsq.Variable("camera", mslsq.Euclidean(9), count=len(scene.cameras))
    point = mslsq.Variable("point", mslsq.Euclidean(3), count=len(scene.points))
    return mslsq.Problem(Reprojected(camera[scene.camera], point[scene.point], pixel=scene.pixels))


def own(
    scene: BundleAdjustment,
    method: Any,
    dtype: torch.dtype = torch.float64,
    again: bool = True,
    problem_of: Callable[[BundleAdjustment], mslsq.Problem] = BundleAdjustment.problem,
) -> Any:
    """This library, with a new Problem each time or one Problem for all turns."""
    start = {"camera": scene.cameras.to(dtype), "point": scene.points.to(dtype)}
    kept = problem_of(scene).to(dtype) if again else None

    def turn() -> Turn:
        watch = Stopwatch()
        built = problem_of(scene).to(dtype)
        build_cpu = watch.cpu
        solution = mslsq.solve(built if kept is None else kept, start, solver=method)
        cpu, wall = watch.cpu, watch.wall
        values = (solution.value["camera"].numpy(), solution.value["point"].numpy())
        return Turn(values, int(solution.num_steps), cpu, wall, build_cpu, solution.history.cost.tolist())

    return turn


def ceres_turn(program: ceres.Ceres, scene: BundleAdjustment, linear_solver: str, threads: int) -> Callable[[], Turn]:
    """Ceres' Levenberg-Marquardt with automatic derivatives, points eliminated first."""

    def turn() -> Turn:
        told = program.solve(linear_solver=linear_solver, ftol=0, steps=STEPS, threads=threads)
        split = scene.cameras.numel()
        values = (told.values[:split].reshape(-1, 9), told.values[split:].reshape(-1, 3))
        return Turn(values, told.steps, told.cpu, told.wall, told.build_cpu, told.costs)

    return turn


def gtsam_turn(path: Path) -> Callable[[], Turn]:
    """GTSAM's solver for structure from motion, points eliminated first; reading the file counts as construction,
    since it happens in one call. Solves once, however often it is asked."""

    @cache
    def turn() -> Turn:
        watch = Stopwatch()
        built = gtsam_graphs.bundle_adjustment(path)
        build_cpu = watch.cpu
        values, costs = gtsam_graphs.adjust(built, STEPS)
        cpu, wall = watch.cpu, watch.wall
        return Turn(gtsam_graphs.cameras_and_points(values), len(costs) - 1, cpu, wall, build_cpu, costs)

    return turn


def contestants(
    scene: BundleAdjustment, plain: Path, threads: int, compiled: bool, program: ceres.Ceres | None
) -> dict[str, Callable[[], Turn]]:
    """The solvers that are installed."""
    linear, waiting = mslsq.linear, solver(native="wait")
    them: dict[str, Callable[[], Turn]] = {
        "mslsq, new": own(scene, solver(), again=False),
        "mslsq, again": own(scene, solver()),
        "mslsq, again, float32": own(scene, solver(), torch.float32),
        "mslsq autodiff, again": own(scene, solver(), problem_of=autodiff_problem),
        "mslsq native, again": own(scene, waiting),
        "mslsq native, again, float32": own(scene, waiting, torch.float32),
        "mslsq autodiff native, again": own(scene, waiting, problem_of=autodiff_problem),
        "mslsq Schur dense, again": own(scene, solver(linear.Schur(eliminate="point", reduced="dense"))),
        "mslsq Schur sparse, again": own(scene, solver(linear.Schur(eliminate="point", reduced="sparse"))),
        "mslsq Schur iterative, again": own(scene, solver(linear.Schur(eliminate="point", reduced="iterative"))),
        "mslsq CG Schur-Jacobi, again": own(scene, solver(linear.ConjugateGradient("schur_jacobi"))),
    }
    if compiled:
        them["mslsq compiled"] = own(scene, solver(compiled=True, native="auto"))
        them["mslsq compiled, float32"] = own(scene, solver(compiled=True, native="auto"), torch.float32)
    if program is not None:
        for name in CERES:
            them[f"Ceres {name}"] = ceres_turn(program, scene, name, threads)
    if gtsam_graphs.INSTALLED:
        them["GTSAM LM, Schur"] = gtsam_turn(plain)
    return them


def measured(
    threads: int, repeats: int, compiled: bool, only: tuple[str, ...] = ()
) -> tuple[BundleAdjustment, dict[str, tuple[float, Taken]]]:
    """Cost and times of all solvers, or of those named in `only`."""
    path = shared_data() / "bal" / PROBLEM
    scene = read_bal(path)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "problem.txt"
        plain.write_bytes(bz2.decompress(path.read_bytes()))
        try:
            program = ceres.Ceres("ceres_bundle_adjustment", plain.read_text())
        except ceres.CeresError as error:
            print(f"without Ceres: {error}", flush=True)
            program = None
        try:
            them = contestants(scene, plain, threads, compiled, program)
            taken = take_turns({name: turn for name, turn in them.items() if not only or name in only}, repeats)
        finally:
            if program is not None:
                program.close()
    return scene, {name: (cost_of(scene, turn.last.values), turn) for name, turn in taken.items()}


def reached(costs: Any) -> str:
    """The first step at which the goal was met."""
    return next((str(step) for step, cost in enumerate(costs) if cost <= GOAL), "–")


def compare(threads: int, repeats: int, compiled: bool, only: tuple[str, ...] = ()) -> None:
    """The tables of one number of threads."""
    scene, found = measured(threads, repeats, compiled, only)
    peer = min((t.cpu for name, (_, t) in found.items() if name.startswith("Ceres")), default=float("nan"))
    rows = [
        [
            name,
            f"{cost:.7g}" + (f" (its own {turn.last.costs[-1]:.7g})" if name.startswith("GTSAM") else ""),
            turn.last.steps,
            reached(turn.last.costs),
            turn.build_cpu,
            turn.cpu,
            turn.wall,
            (turn.cpu - turn.build_cpu) / max(turn.last.steps, 1),
            f"{turn.cpu / peer:.2f}",
            turn.first.wall,
        ]
        for name, (cost, turn) in found.items()
    ]
    label = f"{threads} thread{'s' if threads > 1 else ''}"
    print_table(
        f"### {scene.name}: {len(scene.cameras)} cameras, {len(scene.points)} points, {len(scene.pixels)} "
        f"observations; {label}",
        [
            "",
            f"cost after {STEPS}",
            "steps",
            f"steps to {GOAL}",
            "build CPU ms",
            "total CPU ms",
            "total wall ms",
            "CPU ms per step",
            "CPU / Ceres",
            "first, wall ms",
        ],
        rows,
    )
    marks = [1, 2, 3, 5, 10, 15, 20, 25, 30]
    print_table(
        f"### Cost after a number of steps, as each solver counts them; {label}",
        ["", *map(str, marks)],
        [
            [name, *(f"{turn.last.costs[m]:.7g}" if m < len(turn.last.costs) else "" for m in marks)]
            for name, (_, turn) in found.items()
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile (a minute each)")
    parser.add_argument("--only", nargs="*", default=[], help="these contestants alone")
    parser.add_argument("--here", type=int, help="in this process, with this many threads")
    options = parser.parse_args()
    if options.here is None:
        print_machine(["torch", "gtsam"])
        return in_own_processes(__file__, sys.argv[1:], options.threads)
    limit_threads(options.here)
    compare(options.here, options.repeats, not options.no_compile, tuple(options.only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
