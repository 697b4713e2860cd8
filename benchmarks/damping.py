"""Steps of Levenberg–Marquardt on families of pose graphs, beside Gauss–Newton and GTSAM's Levenberg–Marquardt.

    python benchmarks/damping.py --half claim                # all graphs of that half, of up to 400 poses
    python benchmarks/damping.py --half choose --largest 1500

Rules of damping are chosen on the half "choose" and judged on "claim" (`graph_families`). A method's steps are those
until its cost is within 1e-5 of the cost that it ends at; the figure is their ratio to those of the better of the two
peers that ends no higher. Needs `pip install gtsam`. Steps do not depend on the processor's load.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import NamedTuple

import graph_families
import torch
from peers import gtsam_graphs

import mslsq
from mslsq.datasets.pose_graph import PoseGraph

TOLERANCE = 1e-5
"""GTSAM stops where a step gains less than this share of the cost."""
SAME = 1e-3
"""Costs that differ by less than this share are of the same minimum."""


class Ended(NamedTuple):
    cost: float
    steps: int


def own(graph: PoseGraph, solver: mslsq.LevenbergMarquardt | mslsq.GaussNewton) -> Ended:
    """This library; rejected steps count."""
    solution = mslsq.solve(graph.problem(), {"pose": graph.poses}, solver=solver)
    history = solution.history.cost.reshape(-1)
    return ended(history[~history.isnan()].tolist())


def gtsam(graph: PoseGraph) -> Ended:
    """GTSAM with its defaults; the trials inside one of its iterations do not count."""
    return ended(gtsam_graphs.errors_of_steps(gtsam_graphs.pose_graph(graph), TOLERANCE))


def ended(costs: list[float]) -> Ended:
    """The last cost, and when it was all but reached."""
    return Ended(costs[-1], next(n for n, cost in enumerate(costs) if not cost > costs[-1] * (1 + TOLERANCE)))


CONTESTANTS: dict[str, Callable[[PoseGraph], Ended]] = {
    "LevenbergMarquardt": lambda graph: own(graph, mslsq.LevenbergMarquardt(max_steps=300)),
    "GaussNewton": lambda graph: own(graph, mslsq.GaussNewton(max_steps=100)),
    "GTSAM LM": gtsam,
}


def summary(name: str, found: dict[str, dict[str, Ended]]) -> str:
    """One row: ratios to the better peer, and how often its minimum is worse or better than GTSAM's."""
    ratios, worse, better = [], 0, 0
    for by_name in found.values():
        mine, peer = by_name[name], by_name["GTSAM LM"]
        worse += mine.cost > peer.cost * (1 + SAME)
        better += mine.cost < peer.cost * (1 - SAME)
        peers = [by_name[other] for other in ("GTSAM LM", "GaussNewton")]
        steps = [other.steps for other in peers if other.cost <= mine.cost * (1 + SAME)]
        if steps:
            ratios.append(mine.steps / max(min(steps), 1))
    ratios.sort()
    figures = statistics.median(ratios), ratios[int(0.9 * len(ratios))], ratios[-1]
    return f"| {name} | {len(ratios)} | " + " | ".join(f"{x:.2f}" for x in figures) + f" | {worse} | {better} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--largest", type=int, default=400, help="poses of the largest graphs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Ended]] = {}
    for name in graph_families.names(options.half):
        if int(name.split("-")[1]) > options.largest:
            continue
        graph = graph_families.graph(name)
        found[name] = {contestant: solve(graph) for contestant, solve in CONTESTANTS.items()}
        print(f"{name:30}", *(f"{who} {x.steps} ({x.cost:.6g})" for who, x in found[name].items()), flush=True)
    print("\n| | graphs | median | 90 % | worst | worse minima than GTSAM | better |")
    print("|---|---|---|---|---|---|---|")
    for contestant in CONTESTANTS:
        print(summary(contestant, found))


if __name__ == "__main__":
    main()
