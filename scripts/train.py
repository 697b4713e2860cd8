"""Train networks end to end through a solve.

    python scripts/train.py +experiment=learned_alignment               # features for alignment; ten minutes
    python scripts/train.py +experiment=learned_features                # features for metric=learned; 15 minutes
    python scripts/train.py +experiment=pose_graph_weights              # weights of a pose graph; under a minute
    python scripts/train.py +experiment=learned_alignment resume=DIR    # go on after a kill

Exit codes: 0 done; 1 training led nowhere (the loss is not finite); 2 the command is not valid; 4 a file could not
be written; 5 a job of a sweep (-m) did not end with 0: the table says which; 130 interrupted (Ctrl-C): the last
checkpoint is whole.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

import hydra
import torch
from command_line import NOTHING_DONE, console, errors, exit_with, start
from omegaconf import DictConfig
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from training import pictures
from training.learned_alignment import LearnedAlignment
from training.learned_features import LearnedFeaturesTask
from training.loop import Schedule, train
from training.pose_graph_weights import PoseGraphWeights

from mslsq.replacing import write_text
from mslsq.validation import integer, number, one_of

TASKS = {
    "learned_alignment": LearnedAlignment,
    "learned_features": LearnedFeaturesTask,
    "pose_graph_weights": PoseGraphWeights,
}
SHOWN = {"learned_alignment": "median_px_", "learned_features": "step_error", "pose_graph_weights": "error"}
"""Columns of the curve that are drawn beside the loss, by how they begin."""
WHOLE = {"seed": 0, "threads": 1, "steps": 1, "batch": 1, "checkpoint_every": 1}
"""Integers, and the least that each may be."""


def check_values(config: dict[str, Any]) -> None:
    """What the schema does not say: names that are known, and ranges."""
    for name, least in WHOLE.items():
        integer(name, config[name], least)
    for name in ("minutes", "learning_rate"):
        number(name, config[name], above=0)
    one_of("task", config["task"], list(TASKS))


def run(config: dict[str, Any], folder: Path) -> int:
    """The whole command; returns the exit code."""
    check_values(config)
    torch.set_num_threads(config["threads"])
    resume = config["resume"] is not None
    folder = Path(config["resume"]) if resume else folder
    name = config["task"]
    schedule = Schedule(
        config["steps"], config["batch"], config["learning_rate"], config["minutes"], config["checkpoint_every"]
    )
    options = {key: config[key] for key in ("task", "seed", "steps", "batch", "learning_rate")}
    tested = ("test_pairs", "intensity", "test_batches", "test_graphs")
    options |= {f"{name}.{key}": value for key, value in config[name].items() if key not in tested}
    task = TASKS[name](config[name], schedule, config["seed"])
    count = sum(parameter.numel() for parameter in task.module.parameters())
    console.print(f"[bold]{name}[/]: {count} parameters, {schedule.steps} steps of {schedule.batch}")
    rows: list[dict[str, float]] = []
    seconds = cpu_seconds = 0.0
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, disable=config["quiet"],
    )  # fmt: skip
    with bar:
        line = bar.add_task("training", total=schedule.steps)
        for progress in train(task, schedule, config["seed"], folder, options, resume):
            rows, seconds, cpu_seconds = progress.rows, progress.seconds, progress.cpu_seconds
            recent = [row["loss"] for row in rows[-20:]]
            bar.update(line, completed=progress.step, description=f"training, loss {sum(recent) / len(recent):.3f}")
            if not config["quiet"] and not console.is_terminal and progress.step % schedule.checkpoint_every == 0:
                console.print(f"  step {progress.step}/{schedule.steps}, loss {sum(recent) / len(recent):.4f}")
    if not rows:
        errors.print("[red]nothing to do:[/] the checkpoint is at its last step; more steps need a new run.")
        return NOTHING_DONE
    stopped = len(rows) < schedule.steps
    if stopped:
        errors.print(f"[yellow]stopped[/] after {config['minutes']:g} minutes, at step {len(rows)}.")
    begin = time.perf_counter()
    with console.status("testing", spinner="dots") as status:
        figures, written = task.evaluate(folder, lambda line: status.update(line))
    figures |= {"steps": len(rows), "stopped_early": stopped, "train_seconds": seconds}
    figures |= {"train_cpu_seconds": cpu_seconds, "test_seconds": time.perf_counter() - begin}
    figures |= {"final_loss": rows[-1]["loss"], "skipped_steps": int(sum(row["skipped"] for row in rows))}
    columns = [column for column in rows[0] if column.startswith(SHOWN[name])]
    written.append(pictures.curve(rows, columns, folder / "loss.png"))
    written += [folder / "curve.csv", folder / "checkpoint.pt", folder / "metrics.json"]
    write_text(written[-1], json.dumps(figures, indent=2) + "\n")
    for key, value in figures.items():
        if not isinstance(value, dict):
            console.print(f"  {key:<28} {value:.4g}" if isinstance(value, float) else f"  {key:<28} {value}")
    console.print(escape(f"{len(written)} files written to {folder}"))
    for path in written:
        console.print(f"  {path.name}")
    if not math.isfinite(rows[-1]["loss"]):
        errors.print("[red]the loss is not finite:[/] try a smaller learning_rate.")
        return NOTHING_DONE
    return 0


@hydra.main(version_base="1.3", config_path="../configs", config_name="train")
def main(settings: DictConfig) -> int:
    return exit_with(run, settings)


if __name__ == "__main__":
    start(main, __doc__ or "", "train", list(TASKS))
