"""Solve pose graphs and bundle adjustment from the command line.

    python scripts/solve.py +experiment=pose_graph                       # a noisy sphere with known truth
    python scripts/solve.py +experiment=pose_graph file=graph.g2o        # your own, in the plane or in space
    python scripts/solve.py +experiment=bundle_adjustment file=problem.txt.bz2

Exit codes: 0 done; 1 nothing was solved (the cost did not fall, or is not finite); 2 the command is not valid;
3 no tolerance was met (with strict=true); 4 a file could not be written; 5 a job of a sweep (-m) did not end with 0:
the table says which; 130 interrupted (Ctrl-C): the best found by then is written.
"""

import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import torch
from command_line import (
    INTERRUPTED,
    LEFT_OUT,
    NOTHING_DONE,
    CommandError,
    console,
    errors,
    exit_with,
    start,
)
from omegaconf import DictConfig
from rich.markup import escape
from torch import Tensor

import mslsq
import mslsq.kernels
from mslsq.datasets import (
    PoseGraph,
    read_bal,
    read_g2o,
    read_toro,
    ring_graph,
    sphere_graph,
    write_bal,
    write_g2o,
)
from mslsq.plotting import Panel, plot_convergence, plot_views
from mslsq.replacing import write_text
from mslsq.validation import integer, number, one_of

LOSSES: dict[str, Callable[[float], mslsq.RobustLoss] | None] = {
    "l2": None,
    "huber": mslsq.Huber,
    "soft_l1": mslsq.SoftL1,
    "cauchy": mslsq.Cauchy,
    "arctan": mslsq.Arctan,
    "tukey": mslsq.Tukey,
    "geman_mcclure": mslsq.GemanMcClure,
    "welsch": mslsq.Welsch,
}
LINEAR_SOLVERS = {
    "auto": None,
    "cholesky": mslsq.linear.Cholesky,
    "sparse_cholesky": mslsq.linear.SparseCholesky,
    "schur": mslsq.linear.Schur,
    "conjugate_gradient": mslsq.linear.ConjugateGradient,
    "qr": mslsq.linear.QR,
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SHAPES = {"sphere": sphere_graph, "ring": ring_graph}
INITS = {
    "given": lambda graph: graph,
    "spanning_tree": PoseGraph.from_edges,
    "chordal": PoseGraph.from_chords,
}


def check_values(config: dict[str, Any]) -> None:
    """What the schema does not say: names that are known, and ranges."""
    for name, known in (
        ("task", TASKS),
        ("loss", LOSSES),
        ("init", INITS),
        ("linear_solver", LINEAR_SOLVERS),
        ("dtype", DTYPES),
    ):
        one_of(name, config[name], list(known))
    one_of("synthetic.shape", config["synthetic"]["shape"], list(SHAPES))
    integer("synthetic.seed", config["synthetic"]["seed"])
    for name in ("threads", "max_steps"):
        integer(name, config[name], 1)
    number("loss_scale", config["loss_scale"], above=0)
    if config["initial_damping"] is not None:
        number("initial_damping", config["initial_damping"], above=0)


def loss_of(config: dict[str, Any]) -> mslsq.RobustLoss | None:
    kind = LOSSES[config["loss"]]
    return None if kind is None else kind(float(config["loss_scale"]))


def show_step(info: Any) -> None:
    """One line per step."""
    cost, gradient, step, damping = (float(x) for x in (info.cost, info.gradient_norm, info.step_norm, info.damping))
    note = "" if not info.step or bool(info.accepted) else "  rejected"
    console.print(
        f"  step {info.step:>3}  cost {cost:<14.8g}  gradient {gradient:.2e}  length {step:.2e}  "
        f"damping {damping:.1e}{note}"
    )


class Interruption:
    """Ctrl-C ends a solve after the step it is in, so that what was found is not lost; a second one ends the command.

    >>> with Interruption() as interruption:                # doctest: +SKIP
    ...     solve(..., callback=lambda info: interruption.asked)
    """

    asked = False

    def __enter__(self) -> "Interruption":
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self._before)
        errors.print("[yellow]interrupted:[/] this step is the last; once more, and nothing is written.")


def solve(
    problem: mslsq.Problem, start: dict[str, Any], config: dict[str, Any]
) -> tuple[mslsq.Solution, dict[str, Any]]:
    """The solution of one problem, and its figures."""
    dtype, linear_solver = DTYPES[config["dtype"]], LINEAR_SOLVERS[config["linear_solver"]]
    problem, start = problem.to(dtype), {name: value.to(dtype) for name, value in start.items()}
    interruption = Interruption()

    def after_step(info: Any) -> bool:
        if not config["quiet"]:
            show_step(info)
        return interruption.asked

    solver = mslsq.LevenbergMarquardt(
        max_steps=config["max_steps"],
        ftol=config["ftol"],
        initial_damping=config["initial_damping"],
        linear_solver="auto" if linear_solver is None else linear_solver(),
        compile=config["compile"],
        callback=after_step,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    with interruption:
        solution = mslsq.solve(problem, start, solver=solver, adjoint=mslsq.Detached())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    costs = solution.history.cost[: int(solution.num_steps) + 1].tolist()
    figures = {
        "start_cost": costs[0],
        "final_cost": float(solution.cost),
        "steps": int(solution.num_steps),
        "status": mslsq.Status(int(solution.status)).name.lower(),
        "converged": bool(solution.converged),
        "interrupted": interruption.asked,
        "gradient_norm": float(solution.gradient_norm),
        "loss": config["loss"],
        "linear_solver": config["linear_solver"],
        "dtype": config["dtype"],
        "seconds": wall,
        "cpu_seconds": cpu,
        "costs": costs,
    }
    console.print("Interrupted." if interruption.asked else escape(solution.message()))
    return solution, figures


def finish(figures: dict[str, Any], written: list[Path], folder: Path, config: dict[str, Any]) -> int:
    """Write the figures, say what was written, and choose the exit code."""
    written = [*written, folder / "metrics.json"]
    plain = {name: _plain(value) for name, value in figures.items()}
    write_text(written[-1], json.dumps(plain, indent=2) + "\n")
    for name, value in figures.items():
        if not isinstance(value, list):
            console.print(f"  {name:<24} {value:.10g}" if isinstance(value, float) else f"  {name:<24} {value}")
    console.print(f"{len(written)} files written to {escape(str(folder))}")
    for path in written:
        console.print(f"  {path.name}")
    if figures["interrupted"]:
        return INTERRUPTED
    start, final = figures["start_cost"], figures["final_cost"]
    if not math.isfinite(final) or (final >= start and not figures["converged"]):
        errors.print(f"[red]nothing was solved:[/] the cost was {start:.6g} and is {final:.6g}.")
        return NOTHING_DONE
    return LEFT_OUT if config["strict"] and not figures["converged"] else 0


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def graph_of(config: dict[str, Any]) -> tuple[PoseGraph, Any]:
    """The user's graph, or one that is made up, with its truth."""
    if config["file"]:
        toro = ".graph" in Path(config["file"]).suffixes
        graph, truth = (read_toro if toro else read_g2o)(config["file"]), None
    else:
        options = dict(config["synthetic"])
        made = SHAPES[options.pop("shape")](**options)
        graph, truth = made.graph, made.truth
    if not len(graph.measured):
        raise CommandError(f"{config['file']}: the graph has no edges, so there is nothing to solve.")
    return INITS[config["init"]](graph), truth


def run_pose_graph(config: dict[str, Any], folder: Path) -> int:
    """Poses from relative poses."""
    begin = time.perf_counter()
    graph, truth = graph_of(config)
    problem = graph.problem(loss_of(config))
    reading = time.perf_counter() - begin
    console.print(
        f"[bold]{escape(graph.name)}[/]: {len(graph.ids)} poses in {graph.dimension} dimensions, "
        f"{len(graph.measured)} edges"
    )
    parts, placed = len(graph.part.unique()), len(graph.part[graph.fixed].unique()) or 1
    if parts > placed:
        errors.print(
            f"[yellow]the graph is in {parts} parts[/] that no edge joins: each is solved, but nothing says where they "
            "are to each other."
        )
    solution, figures = solve(problem, {"pose": graph.poses}, config)
    solved = graph.at(solution.value["pose"])
    figures = {
        "name": graph.name,
        "dimension": graph.dimension,
        "poses": len(graph.ids),
        "edges": len(graph.measured),
        "parts": parts,
        "reading_seconds": reading,
        **figures,
    }
    if truth is not None:
        figures["start_position_error"] = position_error(graph.poses, truth)
        figures["final_position_error"] = position_error(solved.poses, truth)
    edges = torch.stack([graph.first, graph.second], -1)
    panels = [
        Panel(f"before: cost {figures['start_cost']:.6g}", graph.poses.translation, edges),
        Panel(f"after: cost {figures['final_cost']:.6g}", solved.poses.translation, edges),
    ]
    written = [
        write_g2o(folder / "solved.g2o", solved),
        plot_views(panels, folder / "before_after.png"),
        plot_convergence(solution.history, graph.name, folder / "convergence.png"),
    ]
    return finish(figures, written, folder, config)


def position_error(poses: Any, truth: Any) -> float:
    """Root mean square distance from the true positions."""
    return float((poses.translation - truth.translation).square().sum(-1).mean().sqrt())


def run_bundle_adjustment(config: dict[str, Any], folder: Path) -> int:
    """Cameras and points from observations."""
    if not config["file"]:
        raise CommandError("bundle adjustment needs file=..., a problem in the BAL text format (.txt, .gz, .bz2).")
    if config["init"] != "given":
        raise CommandError(f"init={config['init']!r} is for pose graphs; bundle adjustment starts as given.")
    begin = time.perf_counter()
    scene = read_bal(config["file"])
    problem = scene.problem(loss_of(config))
    reading = time.perf_counter() - begin
    console.print(
        f"[bold]{escape(scene.name)}[/]: {len(scene.cameras)} cameras, {len(scene.points)} points, "
        f"{len(scene.pixels)} observations"
    )
    solution, figures = solve(problem, {"camera": scene.cameras, "point": scene.points}, config)
    solved = scene.at(solution.value["camera"], solution.value["point"])
    figures = {
        "name": scene.name,
        "cameras": len(scene.cameras),
        "points": len(scene.points),
        "observations": len(scene.pixels),
        "reading_seconds": reading,
        **figures,
    }
    panels = [
        Panel(f"before: cost {figures['start_cost']:.6g}", centres(scene.cameras), points=scene.points),
        Panel(f"after: cost {figures['final_cost']:.6g}", centres(solved.cameras), points=solved.points),
    ]
    written = [
        write_bal(folder / "solved.txt", solved),
        plot_views(panels, folder / "before_after.png"),
        plot_convergence(solution.history, scene.name, folder / "convergence.png"),
    ]
    return finish(figures, written, folder, config)


def centres(cameras: Tensor) -> Tensor:
    """Where the cameras stand: −exp(w)⁻¹ t."""
    return -mslsq.SO3.exp(cameras[:, :3]).inverse().act(cameras[:, 3:6])


TASKS = {"pose_graph": run_pose_graph, "bundle_adjustment": run_bundle_adjustment}


def run(config: dict[str, Any], folder: Path) -> int:
    """The whole command; returns the exit code."""
    check_values(config)
    torch.set_num_threads(config["threads"])
    mslsq.kernels.keep_freed_memory()
    return TASKS[config["task"]](config, folder)


@hydra.main(version_base="1.3", config_path="../configs", config_name="solve")
def main(settings: DictConfig) -> int:
    return exit_with(run, settings)


if __name__ == "__main__":
    start(main, __doc__ or "", "solve", list(TASKS))
