"""Calls like the one before: small fits, a batch of fits, small pose graphs, a layer with its backward pass.

    python benchmarks/short_calls.py                 # five minutes
    python benchmarks/short_calls.py --only fit      # the cases whose name begins so

Every contestant has been called before the first figure until what it records is recorded, and what becomes a native
program is one: for some seconds. "No step" is a solve with `max_steps=0`: the way to the first step and back, with
every check. A turn is ten calls of one contestant, of which the mean counts: these are calls like the one before.
Peers are SciPy, and GTSAM through its Python interface where it is installed; each is given its problem ready-made.
"New problem" is the making of the problem and its solve; "GTSAM, LM, built" the same of GTSAM's factors and values.
One thread, processor time, medians of turns taken alternately; beside them the ratio to the peer of the case.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from graph_families import graph
from peers import gtsam_graphs
from scipy import optimize
from timing import interleaved, print_machine, print_table

import mslsq
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.native.processor import target

NO_STEP = mslsq.LevenbergMarquardt(max_steps=0)
GRAPHS = ("ring-10-mild-odometry", "grid-16-mild-odometry", "city-60-mild-odometry", "sphere-60-mild-odometry")
PEERS = ("scipy", "GTSAM")
TURN = 10
"""Calls of one contestant in a row."""
Contestants = dict[str, Callable[[], Any]]


def model(p: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Decay towards an offset, three parameters."""
    return p[0] * torch.exp(p[1] * t) + p[2] - y


def measured(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """32 times and (count, 32) measurements."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 1, 32, dtype=torch.float64)
    noise = torch.randn(count, 32, dtype=torch.float64, generator=generator)
    scale = 1 + torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return t, scale * torch.exp(-1.5 * t) + 0.3 + 0.01 * noise


def fit() -> Contestants:
    """One fit of 32 points."""
    t, y = measured(1)
    start, args = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64), (t, y[0])
    times, values = t.numpy(), y[0].numpy()

    def residual(p: np.ndarray) -> np.ndarray:
        return p[0] * np.exp(p[1] * times) + p[2] - values

    prepared = mslsq.prepared(model, start, args)
    without_step = mslsq.prepared(model, start, args, solver=NO_STEP)
    return {
        "mslsq": lambda: mslsq.least_squares(model, start, args),
        "mslsq, no step": lambda: mslsq.least_squares(model, start, args, solver=NO_STEP),
        "mslsq, prepared": lambda: prepared(start, args),
        "mslsq, prepared, no step": lambda: without_step(start, args),
        "scipy leastsq": lambda: optimize.leastsq(residual, [1.0, -1.0, 0.0]),
        "scipy least_squares, lm": lambda: optimize.least_squares(residual, [1.0, -1.0, 0.0], method="lm"),
    }


def curve(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The decay alone, as `curve_fit` takes it."""
    return p[0] * torch.exp(p[1] * t) + p[2]


def curve_fit() -> Contestants:
    """One curve fit of 32 points, with its covariance."""
    t, y = measured(1)
    start = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    times, values, sigma = t.numpy(), y[0].numpy(), torch.full((32,), 0.01, dtype=torch.float64)
    errors = sigma.numpy()

    def model(t: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
        return a * np.exp(b * t) + c

    return {
        "mslsq": lambda: mslsq.curve_fit(curve, t, y[0], start),
        "mslsq, sigma": lambda: mslsq.curve_fit(curve, t, y[0], start, sigma=sigma),
        "mslsq, a lambda": lambda: mslsq.curve_fit(lambda p, t: curve(p, t), t, y[0], start),
        "scipy curve_fit": lambda: optimize.curve_fit(model, times, values, [1.0, -1.0, 0.0]),
        "scipy curve_fit, sigma": lambda: optimize.curve_fit(model, times, values, [1.0, -1.0, 0.0], errors),
    }


def fits() -> Contestants:
    """1,024 fits of 32 points."""
    t, y = measured(1024)
    start, in_dims = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64), (None, None, 0)
    return {
        "mslsq": lambda: mslsq.least_squares(model, start, (t, y), in_dims=in_dims),
        "mslsq, no step": lambda: mslsq.least_squares(model, start, (t, y), in_dims=in_dims, solver=NO_STEP),
    }


def pose_graph(name: str) -> Contestants:
    """A pose graph of 10 to 60 poses, one Problem solved again and again, and a new Problem each time; of the library's
    own factor, and of one that is written as a residual alone.

    The ring of 10 begins at its solution: all that it takes is the way to the first step and back.
    """
    poses = graph(name)
    problem, own, start = poses.problem(), with_own_residual(poses), {"pose": poses.poses}
    prepared = mslsq.prepared(problem, start)
    contestants: Contestants = {
        "mslsq": lambda: mslsq.solve(problem, start),
        "mslsq, no step": lambda: mslsq.solve(problem, start, solver=NO_STEP),
        "mslsq, prepared": lambda: prepared(start),
        "mslsq, new problem": lambda: mslsq.solve(poses.problem(), start),
        "mslsq, own residual": lambda: mslsq.solve(own, start),
        "mslsq, own residual, new problem": lambda: mslsq.solve(with_own_residual(poses), start),
    }
    if gtsam_graphs.INSTALLED:
        built = gtsam_graphs.pose_graph(poses)
        contestants["GTSAM, LM"] = lambda: gtsam_graphs.optimize(built, "LM")
        contestants["GTSAM, LM, built"] = lambda: gtsam_graphs.optimize(gtsam_graphs.pose_graph(poses), "LM")
    return contestants


class RelativePose(mslsq.CostFunction):
    """A relative pose as a user writes it."""

    def residual(self, a: Any, b: Any, measured: Any) -> torch.Tensor:
        return (measured.inverse() @ (a.inverse() @ b)).log()


def with_own_residual(poses: PoseGraph) -> mslsq.Problem:
    """The problem of a graph that fixes nothing, its edges by `RelativePose`."""
    pose = mslsq.Variable("pose", type(poses.poses), count=len(poses.ids))
    weight = mslsq.SqrtInformation.from_information(poses.information)
    edges = RelativePose(pose[poses.first], pose[poses.second], measured=poses.measured, weight=weight)
    anchor = mslsq.Scale(torch.full((), 1e6, dtype=torch.float64))
    return mslsq.Problem(edges, mslsq.Prior(pose[[0]], target=poses.poses[:1].normalized(), weight=anchor))


class Reading(mslsq.CostFunction):
    """A measurement of a decay."""

    def residual(self, p: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (p[0] * torch.exp(p[1] * t) + p[2] - y)[None]


def layer() -> Contestants:
    """A layer in a network: forward, and forward with the gradient in all measurements."""
    t, y = measured(1)
    p = mslsq.Variable("p", mslsq.Euclidean(3))
    problem = mslsq.Problem(Reading(p, t=t, y=y[0], name="reading"))
    solve_layer = mslsq.LeastSquaresLayer(problem)
    start = {"p": torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)}

    def with_gradient() -> None:
        given = y[0].clone().requires_grad_()
        solve_layer(start, data={"reading": {"y": given}}).value["p"].sum().backward()

    return {"mslsq": lambda: solve_layer(start), "mslsq, with gradient": with_gradient}


CASES: dict[str, Callable[[], Contestants]] = {
    "fit": fit,
    "curve fit": curve_fit,
    "fits": fits,
    **{f"graph {name}": lambda name=name: pose_graph(name) for name in GRAPHS},
    "layer": layer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the beginning of the names of cases")
    parser.add_argument(
        "--warm-up", type=float, default=10.0, help="seconds of every contestant, before the first figure"
    )
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(["torch", "scipy", "gtsam"])
    print(f"instruction set: {target()}")
    rows = []
    for name, case in CASES.items():
        if not name.startswith(options.only):
            continue
        contestants = case()
        for who, contestant in contestants.items():
            begin = time.perf_counter()
            while time.perf_counter() - begin < (0.1 if who.startswith(PEERS) else options.warm_up):
                contestant()
        turns = {who: lambda contestant=contestant: _turn(contestant) for who, contestant in contestants.items()}
        taken = {who: timing.cpu / TURN for who, timing in interleaved(turns, options.repeats).items()}
        peer = next((taken[who] for who in taken if who.startswith(PEERS)), None)
        rows += [[name, who, cpu, "" if peer is None else cpu / peer] for who, cpu in taken.items()]
    print_table("Short calls, milliseconds of processor time", ["case", "contestant", "ms", "/ peer"], rows)


def _turn(contestant: Callable[[], Any]) -> None:
    for _ in range(TURN):
        contestant()


if __name__ == "__main__":
    main()
