"""How a solve grows: SE(3) pose graphs from a thousand to a million between factors, and a thousand small ones at once.

    python benchmarks/scaling.py                          # about ten minutes
    python benchmarks/scaling.py --edges 1479 100000      # some sizes only

The graphs are spirals on a sphere, 40 poses a lap: odometry, and a measurement from every second pose to the one a lap
on; the start is the truth moved by noise. Each size runs in a process of its own, with one thread, so that peak memory
is its own: that of the process at the end, less what it took with the graph in memory and 1,000 poses solved.
"Build" is the median of five; where freed memory is kept, the later ones find that of those before: the first of a
process takes 12 ms or 23 for 100,000 edges, as 29 MB happen to be free or not. "Analysis" is what the first solve of a
Problem takes more than the later ones: structure, ordering, plans, nothing recorded. Milliseconds per step are those of
the later solves (the median of five; of one from 300,000 edges on) of three steps each. Between the
solves two arrays of the size of all Jacobians are added: what the memory of the machine allows just then.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from dataclasses import replace
from typing import Any

import torch
from peers import gtsam_graphs
from peers.turns import Stopwatch, limit_threads
from timing import print_machine, print_table

import mslsq
import mslsq.kernels
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.datasets.synthetic_graphs import sphere_graph

PER_LAP = 40
EDGES = (1_479, 10_000, 100_000, 300_000, 1_000_000)
STEPS, BUILDS = 3, 5
LINEAR = {"auto": 10**9, "auto, freed memory kept": 10**9, "conjugate gradients": 10_000}
"""The linear solvers of the table, and the largest size for each: many iterations on graphs that are long and thin."""


def spiral(edges: int) -> PoseGraph:
    """A graph of about that many edges, 1.48 per pose: exactly 1,000 poses for 1,479."""
    poses = 1000 if edges == 1479 else round((edges + 1 + PER_LAP / 2) / 1.5)
    made = sphere_graph(laps=-(-poses // PER_LAP), per_lap=PER_LAP, sigma_translation=0.05, sigma_rotation=0.02)
    graph, truth = made.graph, made.truth[:poses]
    closing = graph.second - graph.first == PER_LAP
    kept = (graph.second < poses) & (~closing | (graph.first % 2 == 0))
    noise = 0.02 * torch.randn(poses, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return replace(
        graph,
        poses=truth.retract(noise),
        first=graph.first[kept],
        second=graph.second[kept],
        measured=graph.measured[kept],
        information=graph.information[kept],
        ids=graph.ids[:poses],
    )


def steps(linear: Any = "auto", trace: Any = "never") -> mslsq.LevenbergMarquardt:
    """Three steps, whatever happens."""
    return mslsq.LevenbergMarquardt(max_steps=STEPS, ftol=0, gtol=0, xtol=0, linear_solver=linear, trace=trace)


class Streaming:
    """Adding two arrays of the size of a graph's Jacobians: as long as memory takes, whatever the code of a step."""

    def __init__(self, edges: int):
        self._terms = torch.rand(2, edges, 2 * 6 * 6, dtype=torch.float64)
        self._sum = torch.zeros_like(self._terms[0])
        self._turns = max(1, 1_000_000 // edges)
        """Enough to be measured."""

    def milliseconds(self) -> float:
        """Processor time of one addition."""
        watch = Stopwatch()
        for _ in range(self._turns):
            torch.add(*self._terms, out=self._sum)
        return watch.cpu / self._turns


def peak() -> float:
    """Of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def solver_of(name: str) -> mslsq.LevenbergMarquardt:
    """The linear solvers that the table compares."""
    return steps("auto" if name.startswith("auto") else mslsq.linear.ConjugateGradient())


def measure(edges: int, linear: str) -> dict[str, float]:
    """One size, in this process."""
    if "kept" in linear:
        mslsq.kernels.keep_freed_memory()
    small, graph = spiral(1479), spiral(edges)
    mslsq.solve(small.problem(), {"pose": small.poses}, solver=solver_of(linear))  # what is imported late
    streaming = Streaming(len(graph.measured))
    before = peak()
    problem, builds = None, []
    for _ in range(BUILDS):
        problem = None  # its memory is free for the next
        watch = Stopwatch()
        problem = graph.problem()
        builds.append(watch.cpu)
    assert problem is not None
    solves, streamed, result = [], [], None
    for _ in range(2 if edges >= 300_000 else 6):
        watch = Stopwatch()
        result = mslsq.solve(problem, {"pose": graph.poses}, solver=solver_of(linear))
        solves.append(watch.cpu)
        streamed.append(streaming.milliseconds())
    assert result is not None
    again = statistics.median(solves[1:])
    taken = int(result.num_steps)
    return {
        "poses": len(graph.ids),
        "edges": len(graph.measured),
        "build": statistics.median(builds),
        "analysis": max(solves[0] - again, 0.0),
        "step": again / taken,
        "streaming": statistics.median(streamed[1:]),
        "steps": taken,
        "memory": peak() - before,
        "cost": float(result.cost),
    }


def in_own_process(edges: int, linear: str) -> dict[str, float] | None:
    """One size, in a process of its own; None where it failed, with what it said."""
    command = [sys.executable, __file__, "--one", str(edges), "--linear", linear]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{edges} edges, {linear}: {(done.stderr.strip().splitlines() or ['killed'])[-1]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def table(sizes: list[int]) -> None:
    """A row per size and linear solver."""
    rows = []
    for linear in LINEAR:
        for edges in sizes:
            if edges > LINEAR[linear]:
                continue
            found = in_own_process(edges, linear)
            if found is None:
                continue
            count = found["edges"]
            rows.append(
                [
                    linear,
                    f"{found['poses']:,}",
                    f"{count:,}",
                    found["build"],
                    found["analysis"],
                    found["step"],
                    f"{1e3 * found['step'] / count:.2f}",
                    f"{found['memory']:.0f}",
                    f"{1e3 * found['memory'] / count:.1f}",
                    f"{found['cost']:.8g}",
                ]
            )
    header = ["linear solver", "poses", "edges", "build", "analysis", "step", "step, µs per edge", "peak MB"]
    print_table(
        f"### One graph, one thread; CPU ms; {STEPS} steps",
        [*header, "kB per edge", "cost"],
        rows,
    )


def batch_rows(graphs: int, poses: int, repeats: int) -> list[list[Any]]:
    """A number of graphs of one structure with measurements of their own, as one batch, and one after the other."""
    made = sphere_graph(laps=poses // 20, per_lap=20)
    graph, truth = made.graph, made.truth
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(graphs, 2, len(graph.measured), 6, generator=generator, dtype=torch.float64)
    start = truth.retract(0.02 * noise[:, 0, :poses])
    measured = (truth[graph.first].inverse() @ truth[graph.second]).retract(0.02 * noise[:, 1])  # type: ignore[operator]
    problem = graph.problem()
    rows = []
    for name, trace in (("one batch, eager", "never"), ("one batch, recorded", "always")):
        taken = []
        for _ in range(repeats + 1):
            watch = Stopwatch()
            solution = mslsq.solve(
                problem,
                {"pose": start},
                {"between": {"measured": measured}},
                in_dims=({"pose": 0}, {"between": {"measured": 0}}),
                solver=steps(trace=trace),
            )
            taken.append(watch.cpu)
            cost = float(solution.cost.sum())
        rows.append(_batch_row(name, graphs, statistics.median(taken[1:]), cost, peak()))
    few = min(graphs, 16)
    costs = 0.0
    watch = Stopwatch()
    for entry in range(few):
        one = mslsq.solve(
            problem, {"pose": start[entry]}, {"between": {"measured": measured[entry]}}, solver=steps(trace="never")
        )
        costs += float(one.cost)
    rows.append(_batch_row(f"{few} of them, one by one, eager", few, watch.cpu, costs, peak()))
    if gtsam_graphs.INSTALLED:
        watch = Stopwatch()
        costs = 0.0
        for entry in range(few):
            alone = replace(graph, poses=start[entry], measured=measured[entry])
            costs += gtsam_graphs.error_after(gtsam_graphs.pose_graph(alone), STEPS)
        rows.append(_batch_row(f"{few} of them, GTSAM LM, built again", few, watch.cpu, costs, peak()))
    return rows


def _batch_row(name: str, graphs: int, taken: float, cost: float, memory: float) -> list[Any]:
    return [name, graphs, taken / STEPS, 1e3 * taken / STEPS / graphs, f"{cost / graphs:.6f}", f"{memory:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, nargs="*", default=list(EDGES))
    parser.add_argument("--graphs", type=int, default=1024, help="size of the batch")
    parser.add_argument("--one", type=int, help="one size, in this process")
    parser.add_argument("--linear", default="auto")
    options = parser.parse_args()
    limit_threads(1)
    if options.one is not None:
        print(json.dumps(measure(options.one, options.linear)))
        return 0
    print_machine(["torch", "gtsam"])
    table(options.edges)
    print_table(
        f"### {options.graphs} graphs of 100 poses, {STEPS} steps each, one thread",
        ["", "graphs", "CPU ms per step", "µs per step and graph", "mean cost", "peak MB of the process"],
        batch_rows(options.graphs, 100, 3),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
