"""Steps of Levenberg–Marquardt under robust losses, beside Ceres: pose graphs and bundle adjustment.

    python benchmarks/robust_steps.py                # graphs of up to 60 poses of the half "claim", and Ladybug 49

Needs g++ and libceres-dev. Both minimise the same cost from the same start: ½ Σ ρ(|U e|²) over the edges of a graph,
and over the observations of a bundle adjustment. The steps are those until the cost is within 1e-4 of that at which it
ends, rejected ones counted. Where the two end in different minima (by more than 1e-3) their steps are not compared. In
a bundle adjustment, which neither ends in as many steps, they are those to within 1e-3 of the better cost after forty.
Steps depend neither on the processor nor on its load.
"""

import argparse
import bz2
import statistics
from collections.abc import Sequence
from typing import Any

import graph_families
import torch
from peers import ceres
from peers.turns import shared_data
from pose_graph import ceres_text
from timing import print_table

import mslsq
from mslsq.datasets.bal import read_bal

LOSSES = {
    "huber": mslsq.Huber,
    "soft_l1": mslsq.SoftL1,
    "cauchy": mslsq.Cauchy,
    "arctan": mslsq.Arctan,
    "tukey": mslsq.Tukey,
}
SCALES = {"graphs": 2.0, "bundle adjustment": 1.0}
NEAR, SAME, CLOSE = 1e-4, 1e-3, 1e-3


def reached(costs: Sequence[float], target: float) -> int | None:
    """The first step whose cost is not above the target."""
    return next((n for n, cost in enumerate(costs) if cost <= target), None)


def own(problem: mslsq.Problem, start: dict[str, Any], steps: int) -> list[float]:
    solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(max_steps=steps, ftol=1e-9))
    cost = solution.history.cost.reshape(-1)
    return cost[~cost.isnan()].tolist()


def graphs(half: str, largest: int) -> list[tuple]:
    """A row per loss."""
    names = [n for n in graph_families.names(half) if int(n.split("-")[1]) <= largest]
    ratios: dict[str, list[float]] = {name: [] for name in LOSSES}
    worse, better = dict.fromkeys(LOSSES, 0), dict.fromkeys(LOSSES, 0)
    scale = SCALES["graphs"]
    for graph in map(graph_families.graph, names):
        with ceres.Ceres("ceres_pose_graph", ceres_text(graph)) as program:
            for name, kind in LOSSES.items():
                ours = own(graph.problem(loss=kind(scale)), {"pose": graph.poses}, 200)
                options = {"residual": "log", "ftol": 1e-9, "steps": 200, "threads": 1, "loss": name, "scale": scale}
                theirs = program.solve(**options).costs
                if abs(ours[-1] - theirs[-1]) > SAME * theirs[-1]:
                    worse[name] += ours[-1] > theirs[-1]
                    better[name] += ours[-1] < theirs[-1]
                    continue
                one, other = (reached(costs, costs[-1] * (1 + NEAR)) for costs in (ours, theirs))
                ratios[name].append(max(one or 0, 1) / max(other or 0, 1))
    return [
        (name, len(r), statistics.median(r), statistics.quantiles(r, n=10)[-1], max(r), worse[name], better[name])
        for name, r in ratios.items()
    ]


def bundle_adjustment(steps: int = 40) -> list[tuple]:
    """A row per loss, on Ladybug 49-7776."""
    path = shared_data() / "bal" / "problem-49-7776-pre.txt.bz2"
    scene, scale, rows = read_bal(path), SCALES["bundle adjustment"], []
    start = {"camera": scene.cameras, "point": scene.points}
    with ceres.Ceres("ceres_bundle_adjustment", bz2.decompress(path.read_bytes()).decode()) as program:
        for name, kind in LOSSES.items():
            solver = mslsq.LevenbergMarquardt(max_steps=steps, ftol=0, gtol=0, xtol=0)
            cost = mslsq.solve(scene.problem(loss=kind(scale)), start, solver=solver).history.cost.reshape(-1)
            ours = cost[~cost.isnan()].tolist()
            options = {"linear_solver": "DENSE_SCHUR", "ftol": 0, "steps": steps, "threads": 1}
            theirs = program.solve(**options, loss=name, scale=scale).costs
            target = min(ours[-1], theirs[-1]) * (1 + CLOSE)
            one, other = reached(ours, target), reached(theirs, target)
            rows.append((name, f"{ours[-1]:.1f}", f"{theirs[-1]:.1f}", str(one), str(other)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--largest", type=int, default=60, help="poses of the largest graphs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_table(
        f"Pose graphs of the half {arguments.half!r}: steps divided by those of Ceres",
        ("loss", "graphs", "median", "90 %", "worst", "worse minima", "better"),
        graphs(arguments.half, arguments.largest),
    )
    print_table(
        "Ladybug 49-7776: the cost after forty steps, and the step at which it is within 1e-3 of the better one",
        ("loss", "mslsq", "Ceres", "steps", "steps of Ceres"),
        bundle_adjustment(),
    )


if __name__ == "__main__":
    main()
