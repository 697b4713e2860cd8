"""A sphere of poses, its measurements on several processes: the solution of one, by direct and by iterative solvers.

    torchrun --nproc-per-node=2 examples/many_processes.py --laps 20

Every rank holds the whole problem here and takes its share of the measurements. `--own` states only those of each rank.
"""

import argparse
import dataclasses
import time

import torch

import mslsq
import mslsq.distributed
from mslsq import datasets

SOLVERS = {
    "direct": mslsq.LevenbergMarquardt(),
    "conjugate gradients": mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.ConjugateGradient(matrix_free=True)),
}


def part_of(graph: datasets.PoseGraph, rank: int, count: int) -> datasets.PoseGraph:
    """Every `count`-th measurement."""
    edges = slice(rank, None, count)
    return dataclasses.replace(
        graph,
        first=graph.first[edges],
        second=graph.second[edges],
        measured=graph.measured[edges],
        information=graph.information[edges],
    )


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--own", action="store_true", help="state the measurements of this rank alone")
    options = parser.parse_args(arguments)

    rank = mslsq.distributed.initialize()
    count = torch.distributed.get_world_size()
    graph = dataclasses.replace(datasets.sphere_graph(options.laps, 20).graph, fixed=torch.tensor([0]))
    start = {"pose": graph.poses}
    problem = (part_of(graph, rank, count) if options.own else graph).problem()
    costs = {}
    for name, solver in SOLVERS.items():
        before, begun = mslsq.distributed.traffic(), time.perf_counter()
        holds = "part" if options.own else "whole"
        solution = mslsq.distributed.solve(problem, start, holds=holds, solver=solver)
        seconds, after = time.perf_counter() - begun, mslsq.distributed.traffic()
        costs[name] = float(solution.cost)
        if rank == 0:
            calls, megabytes = after.collectives - before.collectives, (after.bytes - before.bytes) / 1e6
            print(
                f"{count} ranks, {name}: cost {costs[name]:.6f}, {int(solution.num_steps)} steps, {seconds:.1f} s, "
                f"{calls} collectives and {megabytes:.1f} MB a rank. {solution.message()}"
            )
    return costs


if __name__ == "__main__":
    main()
    torch.distributed.destroy_process_group()
