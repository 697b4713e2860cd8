"""Steps of Levenberg–Marquardt on families of pose graphs, beside Gauss–Newton and GTSAM's Levenberg–Marquardt.

    python benchmarks/damping.py --half claim                # all graphs of that half, of up to 400 poses
    python benchmarks/damping.py --half claim --draws 4      # with four further draws of the long noises
    python benchmarks/damping.py --half choose --largest 1500

Rules of damping are chosen on the half "choose" and judged on "claim" (`graph_families`). Two figures, both ratios to
the better of the two peers that ends no higher:

- Steps: those until a method's cost is within 1e-5 of the cost that it ends at. GTSAM ends where a step gains less than
  1e-5 of the cost, which along a valley is early, and the trials inside one of its steps do not count.
- Trials: those until the cost is within 1e-5 of the higher of the two ends, which both reach. GTSAM's trials count as
  rejected steps of this library do.

Needs `pip install gtsam`. Steps do not depend on the processor's load.
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
    costs: list[float]
    """At the start and after every step."""
    trials: list[int]
    """Up to each of these."""

    @property
    def cost(self) -> float:
        return self.costs[-1]

    @property
    def steps(self) -> int:
        """Until the last cost was all but reached."""
        return self._first(self.cost)

    def trials_to(self, cost: float) -> int:
        """Until this cost was all but reached."""
        return self.trials[self._first(cost)]

    def _first(self, cost: float) -> int:
        return next(n for n, x in enumerate(self.costs) if not x > cost * (1 + TOLERANCE))


def own(graph: PoseGraph, solver: mslsq.LevenbergMarquardt | mslsq.GaussNewton) -> Ended:
    """This library; rejected steps count."""
    solution = mslsq.solve(graph.problem(), {"pose": graph.poses}, solver=solver)
    history = solution.history.cost.reshape(-1)
    costs = history[~history.isnan()].tolist()
    return Ended(costs, list(range(len(costs))))


def gtsam(graph: PoseGraph) -> Ended:
    """GTSAM with its defaults."""
    return Ended(*gtsam_graphs.errors_of_steps(gtsam_graphs.pose_graph(graph), TOLERANCE))


CONTESTANTS: dict[str, Callable[[PoseGraph], Ended]] = {
    "LevenbergMarquardt": lambda graph: own(graph, mslsq.LevenbergMarquardt(max_steps=300)),
    "GaussNewton": lambda graph: own(graph, mslsq.GaussNewton(max_steps=100)),
    "GTSAM LM": gtsam,
}


def by_steps(mine: Ended, peers: list[Ended]) -> float:
    return mine.steps / max(min(peer.steps for peer in peers), 1)


def by_trials(mine: Ended, peers: list[Ended]) -> float:
    ends = [max(mine.cost, peer.cost) for peer in peers]
    return max(mine.trials_to(end) / max(peer.trials_to(end), 1) for peer, end in zip(peers, ends, strict=True))


def summary(name: str, found: dict[str, dict[str, Ended]], ratio: Callable[[Ended, list[Ended]], float]) -> str:
    """One row: ratios to the better peer, and how often its minimum is worse or better than GTSAM's."""
    ratios, worse, better = [], 0, 0
    for by_name in found.values():
        mine, peer = by_name[name], by_name["GTSAM LM"]
        worse += mine.cost > peer.cost * (1 + SAME)
        better += mine.cost < peer.cost * (1 - SAME)
        peers = [by_name[other] for other in ("GTSAM LM", "GaussNewton")]
        peers = [other for other in peers if other.cost <= mine.cost * (1 + SAME)]
        if peers:
            ratios.append(ratio(mine, peers))
    ratios.sort()
    figures = statistics.median(ratios), statistics.mean(ratios), ratios[int(0.9 * len(ratios))], ratios[-1]
    above = sum(x > 2 for x in ratios)
    return (
        f"| {name} | {len(ratios)} | " + " | ".join(f"{x:.2f}" for x in figures) + f" | {above} | {worse} | {better} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--largest", type=int, default=400, help="poses of the largest graphs")
    parser.add_argument("--draws", type=int, default=0, help="further draws of the long noises")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Ended]] = {}
    for name in graph_families.names(options.half, options.draws):
        if int(name.split("-")[1]) > options.largest:
            continue
        graph = graph_families.graph(name)
        found[name] = {contestant: solve(graph) for contestant, solve in CONTESTANTS.items()}
        print(f"{name:30}", *(f"{who} {x.steps} ({x.cost:.6g})" for who, x in found[name].items()), flush=True)
    for figure, ratio in (("Steps", by_steps), ("Trials", by_trials)):
        print(f"\n| {figure} | graphs | median | mean | 90 % | worst | above 2 | worse minima than GTSAM | better |")
        print("|---|---|---|---|---|---|---|---|---|")
        for contestant in CONTESTANTS:
            print(summary(contestant, found, ratio))


if __name__ == "__main__":
    main()
