"""What the first solve of a fresh process takes, with Theseus and with this library's bridge.

    python benchmarks/theseus_first_calls.py --rounds 3        # where Theseus is installed (scripts/install_theseus.sh)

Three of Theseus' own smallest programs, their problems written out: one call with a backward pass, in processes of
their own, in turns. Theseus maps a user's error function by `vmap`, whose first use imports Dynamo; here nothing of the
kind is imported. Figures are medians of processor time, in ms.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from timing import print_machine, print_table

SIDES = ("theseus", "mslsq")
PARTS = ("import torch", "import theseus", "import mslsq", "first call", "second call", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description="First solves of fresh processes.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(*options.inside)))
        return
    print_machine(["theseus-ai", "torch", "numpy"])
    rows: list[list[Any]] = []
    for program in PROGRAMS:
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            for side in SIDES:
                found[side].append(outside(program, side))
        for side in SIDES:
            rows.append([program, side, *(1e3 * statistics.median(one[part] for one in found[side]) for part in PARTS)])
    print_table("First solves of fresh processes", ["program", "with", *(f"{part}, ms" for part in PARTS)], rows)


def outside(program: str, side: str) -> dict[str, float]:
    """The parts of one process, in seconds."""
    command = [sys.executable, __file__, "--inside", program, side]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def inside(program: str, side: str) -> dict[str, float]:
    """Import, make the problem, solve and differentiate it twice."""
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    began = last = time.process_time()

    def done(part: str) -> None:
        nonlocal last
        now = time.process_time()
        parts[part] += now - last
        last = now

    import torch

    done("import torch")
    import theseus as th

    done("import theseus")
    if side == "mslsq":
        importlib.import_module("mslsq.interop.theseus")
    done("import mslsq")
    torch.manual_seed(0)
    layer, inputs, name = PROGRAMS[program](th, torch)
    if side == "mslsq":
        layer = sys.modules["mslsq.interop.theseus"].from_theseus_layer(layer)
    for part in ("first call", "second call"):
        values, _ = layer.forward(inputs(), optimizer_kwargs={"backward_mode": "implicit"})
        values[name].square().sum().backward()
        done(part)
    parts["all"] = time.process_time() - began
    return parts


def simple_example(th: Any, torch: Any) -> tuple[Any, Callable[[], dict[str, Any]], str]:
    points = torch.linspace(-1, 1, 20).view(1, -1)
    x, y = th.Variable(torch.randn_like(points), name="x"), th.Variable(0.5 * torch.exp(points), name="y")
    v = th.Vector(1, name="v")

    def error(optim_vars: Any, aux_vars: Any) -> Any:
        x, y = aux_vars
        return y.tensor - optim_vars[0].tensor * torch.exp(x.tensor)

    objective = th.Objective()
    weight = th.ScaleCostWeight(1.0)
    objective.add(th.AutoDiffCostFunction([v], error, 20, aux_vars=[x, y], cost_weight=weight))
    phi = torch.nn.Parameter(points + 0.1)
    layer = th.TheseusLayer(th.GaussNewton(objective, max_iterations=10))
    return layer, lambda: {"x": phi.clone(), "v": torch.ones(1, 1)}, "v"


def backward_modes(th: Any, torch: Any) -> tuple[Any, Callable[[], dict[str, Any]], str]:
    points = torch.rand((1, 10)).requires_grad_()
    data = (points.square() + 0.5 + 0.01 * torch.randn((1, 10))).detach()
    x, y = th.Variable(points, name="x"), th.Variable(data, name="y")
    a, b = th.Vector(1, name="a"), th.Vector(1, name="b")

    def error(optim_vars: Any, aux_vars: Any) -> Any:
        (a, b), (x, y) = optim_vars, aux_vars
        return y.tensor - (a.tensor * x.tensor.square() + b.tensor)

    objective = th.Objective()
    objective.add(th.AutoDiffCostFunction([a, b], error, 10, aux_vars=[x, y]))
    layer = th.TheseusLayer(th.GaussNewton(objective, max_iterations=15))
    return layer, lambda: {"a": 2 * torch.ones(1, 1), "b": torch.ones(1, 1), "x": points, "y": data}, "a"


def tutorial_00(th: Any, torch: Any) -> tuple[Any, Callable[[], dict[str, Any]], str]:
    x, y, a, b = (th.Vector(1, name=name) for name in ("x", "y", "a", "b"))
    objective = th.Objective()
    objective.add(th.Difference(x, a, th.ScaleCostWeight(2.0), name="c1"))
    objective.add(th.Difference(y, b, th.ScaleCostWeight(1.0), name="c2"))
    phi = torch.nn.Parameter(torch.ones(1, 1))
    one = torch.ones(1, 1)
    layer = th.TheseusLayer(th.LinearOptimizer(objective, th.CholeskyDenseSolver))
    return layer, lambda: {"x": one, "y": 2 * one, "a": 3 * phi, "b": one}, "x"


PROGRAMS = {"simple_example": simple_example, "backward_modes": backward_modes, "tutorial_00": tutorial_00}


if __name__ == "__main__":
    main()
