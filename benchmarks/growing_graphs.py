"""A pose graph that grows pose by pose, solved after each, beside GTSAM's iSAM2 and its batch Levenberg-Marquardt.

    python benchmarks/growing_graphs.py                    # a ring in the plane and a sphere in space, 10 to 500 poses
    python benchmarks/growing_graphs.py --poses 100        # shorter

Each new pose starts by its odometry from the one before, all others where the solve before has left them; then come all
edges to poses before it. "mslsq" is `Problem.extended` and `solve`; "ftol of GTSAM" the same with the tolerance at
which GTSAM's batch optimisation stops; "own residual" with a residual without Jacobians; "window" keeps the last 20
poses and marginalises the others, so that loop closures beyond it are left out and its cost is another. Times are of
one pose, what it takes to put the new factors together included; costs are those of the whole graph, computed here from
every answer. Needs `pip install gtsam`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peers import gtsam_graphs
from peers.turns import limit_threads
from timing import print_machine, print_table

import mslsq
from mslsq.datasets import PoseGraph, ring_graph, sphere_graph
from mslsq.manifolds import cat

WINDOW = 20
AROUND = 10
"""A figure at n poses is the median of those from n − 10 to n."""


OF_GTSAM = mslsq.LevenbergMarquardt(ftol=1e-5)
"""GTSAM's batch optimisation stops where the cost falls by less than this share; the default here is 1e-12."""


class Relative(mslsq.CostFunction):
    """`Between` as a user would write it."""

    def residual(self, a: Any, b: Any, measured: Any) -> torch.Tensor:
        return (measured.inverse() @ (a.inverse() @ b)).log()


class Growing:
    """A graph, and which of its edges come with which pose."""

    def __init__(self, graph: PoseGraph, count: int):
        later = torch.maximum(graph.first, graph.second)
        self.graph, self.kind, self.count = graph, type(graph.poses), count
        self.edges = [(later == number).nonzero()[:, 0] for number in range(count)]
        self.factor = torch.linalg.cholesky_ex(graph.information, upper=True)[0]
        self.steps = [None] + [self._step_to(number) for number in range(1, count)]

    def _step_to(self, number: int) -> int:
        own = self.edges[number]
        return int(own[(self.graph.first[own] == number - 1) & (self.graph.second[own] == number)][0])

    def whole(self, cost: type[mslsq.CostFunction] = mslsq.Between) -> mslsq.Problem:
        problem = self.first()
        for number in range(1, self.count):
            problem = problem.extended(self.measured(number, cost))
        return problem

    def first(self) -> mslsq.Problem:
        pose = mslsq.Variable("pose", self.kind, 1)
        return mslsq.Problem(mslsq.Prior(pose, target=self.graph.poses[:1], weight=1e6))

    def measured(
        self, number: int, cost: type[mslsq.CostFunction] = mslsq.Between, gone: int = 0
    ) -> mslsq.CostFunction:
        """The measurements that come with a pose; `gone` poses are no longer there."""
        own = self.edges[number]
        own = own[torch.minimum(self.graph.first[own], self.graph.second[own]) >= gone]
        pose = mslsq.Variable("pose", self.kind, number + 1 - gone)
        i, j = pose[self.graph.first[own] - gone], pose[self.graph.second[own] - gone]
        weight = mslsq.SqrtInformation(self.factor[own])
        return cost(i, j, measured=self.graph.measured[own], weight=weight)

    def start(self, poses: Any, number: int) -> dict[str, Any]:
        """What is known, and the new pose by its odometry."""
        return {"pose": cat([poses, poses[-1:] @ self.graph.measured[[self.steps[number]]]])}


def grown(
    growing: Growing, cost: type[mslsq.CostFunction], solver: mslsq.LevenbergMarquardt | None = None
) -> tuple[list[float], Any]:
    """Milliseconds of every pose, and the last solution."""
    problem, poses, taken = growing.first(), growing.graph.poses[:1], []
    for number in range(1, growing.count):
        start = time.process_time()
        problem = problem.extended(growing.measured(number, cost))
        poses = mslsq.solve(problem, growing.start(poses, number), solver=solver).value["pose"]
        taken.append(1e3 * (time.process_time() - start))
    return taken, poses


def slid(growing: Growing) -> tuple[list[float], Any]:
    """The same with a window; what has left it stays where it was."""
    problem, poses, taken, left = growing.first(), growing.graph.poses[:1], [], []
    for number in range(1, growing.count):
        start = time.process_time()
        problem = problem.extended(growing.measured(number, gone=len(left)))
        values = mslsq.solve(problem, growing.start(poses, number)).value
        if len(values["pose"]) > WINDOW:
            left.append(values["pose"][:1])
            problem, values = mslsq.marginalized(problem, values, {"pose": [0]})
        poses = values["pose"]
        taken.append(1e3 * (time.process_time() - start))
    return taken, cat([*left, poses])


def of_gtsam(growing: Growing, incremental: bool) -> tuple[list[float], Any]:
    """iSAM2, or a batch optimisation from the last values for every pose."""
    import gtsam

    graph = growing.graph
    built, dimension = gtsam_graphs.pose_graph(graph), graph.dimension
    last = built.factors.size() - 1
    at, composed = ("atPose3", "calculateEstimatePose3") if dimension == 3 else ("atPose2", "calculateEstimatePose2")
    isam = gtsam.ISAM2(gtsam.ISAM2Params())
    everything, values, taken = gtsam.NonlinearFactorGraph(), gtsam.Values(), []
    for number in range(growing.count):
        start = time.process_time()
        new, guess = gtsam.NonlinearFactorGraph(), gtsam.Values()
        for edge in growing.edges[number].tolist() if number else [last]:
            new.add(built.factors.at(edge))
        if number == 0:
            guess.insert(0, getattr(built.start, at)(0))
        else:
            before = getattr(isam, composed)(number - 1) if incremental else getattr(values, at)(number - 1)
            guess.insert(number, before.compose(built.factors.at(growing.steps[number]).measured()))
        if incremental:
            isam.update(new, guess)
            values = isam.calculateEstimate()
        else:
            everything.push_back(new)
            values.insert(guess)
            values = gtsam.LevenbergMarquardtOptimizer(everything, values).optimize()
        taken.append(1e3 * (time.process_time() - start))
    rows = torch.from_numpy(np.asarray(gtsam_graphs.poses_of(values, growing.count, dimension)))
    return taken[1:], growing.kind(rows) if dimension == 3 else mslsq.SE2.from_xyt(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A graph that grows, beside GTSAM.")
    parser.add_argument("--poses", type=int, default=500)
    options = parser.parse_args(arguments)
    limit_threads(1)
    print_machine(["torch", "gtsam"])
    for name, graph in {"ring": ring_graph(laps=10, per_lap=50).graph, "sphere": sphere_graph(10, 50).graph}.items():
        growing = Growing(graph, min(options.poses, len(graph.ids)))
        contestants: dict[str, Callable[[], tuple[list[float], Any]]] = {
            "mslsq": lambda growing=growing: grown(growing, mslsq.Between),
            "mslsq, ftol of GTSAM": lambda growing=growing: grown(growing, mslsq.Between, OF_GTSAM),
            "mslsq, own residual": lambda growing=growing: grown(growing, Relative),
            f"mslsq, window of {WINDOW}": lambda growing=growing: slid(growing),
        }
        if gtsam_graphs.INSTALLED:
            contestants["GTSAM iSAM2"] = lambda growing=growing: of_gtsam(growing, True)
            contestants["GTSAM LM"] = lambda growing=growing: of_gtsam(growing, False)
        whole = growing.whole()
        best = float(mslsq.solve(whole, {"pose": graph.from_edges().poses[: growing.count]}).cost)
        counts = [count for count in (20, 50, 100, 200, 300, 400, 500) if count <= growing.count]
        rows = []
        for contestant, run in contestants.items():
            taken, poses = run()
            medians = [float(np.median(taken[max(count - 1 - AROUND, 0) : count - 1])) for count in counts]
            cost = float(whole.cost({"pose": poses}))
            at_the_end = ["–", "–"] if "window" in contestant else [f"{cost:.6g}", f"{cost / best - 1:.1e}"]
            rows.append([contestant, *medians, sum(taken) / 1e3, *at_the_end])
        header = ["ms per pose", *(f"at {count}" for count in counts), "all, s", "cost", "above the batch solution"]
        print_table(f"{name}, {growing.count} poses; batch solution {best:.6g}", header, rows)


if __name__ == "__main__":
    main()
