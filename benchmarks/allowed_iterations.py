"""What it costs conjugate gradients not to look whether they are solved, as on a device that is asked once a step.

    python benchmarks/allowed_iterations.py      # three minutes; the table of benchmarks/results/allowed_iterations.md

Counted on a CPU: a step makes the iterations that it is allowed (`mslsq.linear.iterative.allowance`), beside steps that
look after every ten, as they did on a device before. Numbers of iterations hang on no clock.
"""

import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from distributed import network
from timing import print_machine, print_table
from torch import Tensor

import mslsq
from mslsq.datasets import read_bal, read_g2o, ring_graph, sphere_graph
from mslsq.linear.iterative import torch_operators
from mslsq.linear.iterative.allowance import Allowance
from mslsq.linear.iterative.conjugate_gradients import INTERVAL, Iterated, conjugate_gradients

DATA = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
STEPS = 30


class Rationed(mslsq.linear.ConjugateGradient):
    """Is told before each step what it is allowed, as the loop does on a device."""

    def to_accuracy(self, accuracy: Tensor) -> mslsq.linear.ConjugateGradient:
        assert self.allowance is not None
        allowed = self.allowance.next(accuracy, torch.ones_like(accuracy, dtype=torch.bool))
        self.allowance.iterations = self.allowance.iterations if allowed is None else int(allowed)
        return super().to_accuracy(accuracy)


def problems() -> Iterator[tuple[str, mslsq.Problem, dict[str, Any]]]:
    for name, synthetic in (
        ("ring, 4 laps of 40", ring_graph(laps=4, per_lap=40)),
        ("ring, 10 laps of 50", ring_graph(laps=10, per_lap=50)),
        ("sphere, 5 laps of 50", sphere_graph(5, 50)),
    ):
        yield name, synthetic.graph.problem(), {"pose": synthetic.graph.poses}
    yield "network of 200 poses", *network(2000)
    for path in sorted((DATA / "g2o").glob("*3D.g2o*")) + sorted((DATA / "g2o").glob("sphere2500*")):
        graph = read_g2o(path)
        yield path.name.split(".")[0], graph.problem(), {"pose": graph.poses}
    for path in sorted((DATA / "bal").glob("dubrovnik*7-pre*")) + sorted((DATA / "bal").glob("problem*")):
        scene = read_bal(path)
        yield path.name.split("-pre")[0], scene.problem(), {"camera": scene.cameras, "point": scene.points}


def solved(problem: mslsq.Problem, start: dict[str, Any], linear: Any) -> tuple[int, int, float]:
    """Steps, iterations made, and the cost that is come to."""
    made: list[int] = []

    def counted(*args: Any, **options: Any) -> Iterated:
        found = conjugate_gradients(*args, **options)
        looks = math.ceil(int(found.iterations.max()) / INTERVAL) * INTERVAL
        made.append(looks if found.residuals is None else found.residuals.shape[1])
        return found

    options: dict[str, Any] = {"max_steps": STEPS, "native": "never", "trace": "never", "acceleration": None}
    with patch.object(torch_operators, "conjugate_gradients", counted), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(linear_solver=linear, **options))
    return int(solution.num_steps), sum(made), float(solution.cost)


def main() -> None:
    torch.set_num_threads(1)
    print_machine(["torch"])
    rows = []
    for name, problem, start in problems():
        for preconditioner in ("block_jacobi", "jacobi"):
            looks = solved(problem, start, mslsq.linear.ConjugateGradient(preconditioner))
            rationed = solved(problem, start, Rationed(preconditioner, allowance=Allowance()))
            both = [x for pair in zip(looks, rationed, strict=True) for x in pair]
            costs = [f"{cost:.8g}" for cost in both[4:]]
            rows.append([name, preconditioner, *both[:4], rationed[1] / looks[1], *costs])
            print("  ".join(map(str, rows[-1])), flush=True)
    head = ["problem", "preconditioner", "steps, looking", "steps, allowed", "iterations, looking"]
    head += ["iterations, allowed", "ratio", "cost, looking", "cost, allowed"]
    print_table(f"At most {STEPS} steps", head, rows)


if __name__ == "__main__":
    main()
