"""The training loop: steps, checkpoints that survive a kill, and a loss curve that is the same after one.

A batch is a function of (seed, step), the learning rate one of the step, and everything else that a step depends on is
in the checkpoint: parameters, the optimizer's moments, the state of the random generator. So a run that is killed and
resumed computes what it would have computed (`tests/training`).
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mslsq.replacing import replacing, write_text

CHECKPOINT = "checkpoint.pt"
WARM_UP = 0.05
"""Share of the steps over which the learning rate grows; then it falls along a cosine."""


class Task(Protocol):
    """What is trained: a module, and its loss at a step."""

    module: nn.Module

    def loss(self, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """The loss of the batch of this step, and figures for the curve."""
        ...


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn."""

    steps: int
    batch: int
    learning_rate: float
    minutes: float = math.inf
    checkpoint_every: int = 50

    def rate(self, step: int) -> float:
        warm = max(1.0, WARM_UP * self.steps)
        falling = max(0.0, (step - warm) / max(1.0, self.steps - warm))
        return self.learning_rate * min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * falling)))


@dataclass
class Progress:
    """Where a run stands; what a checkpoint holds besides parameters."""

    step: int
    seconds: float
    cpu_seconds: float
    rows: list[dict[str, float]]
    out_of_time: bool = False


class CheckpointError(ValueError):
    """A checkpoint is missing, is none, or belongs to another run."""


def train(
    task: Task, schedule: Schedule, seed: int, folder: Path, options: dict[str, Any], resume: bool = False
) -> Iterator[Progress]:
    """Take the steps; yields after each. `options` are what the curve depends on: a checkpoint with others is refused.

    A step whose gradient is not finite is left out (`skipped` in the curve): one hopeless batch must not end the run.
    """
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=schedule.learning_rate, weight_decay=1e-3)
    generator = torch.Generator().manual_seed(seed)
    progress = Progress(0, 0.0, 0.0, [])
    if resume:
        progress = restored(folder / CHECKPOINT, task, optimizer, generator, options)
    wall, cpu = time.perf_counter() - progress.seconds, time.process_time() - progress.cpu_seconds
    while progress.step < schedule.steps and not progress.out_of_time:
        step = progress.step
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss, figures = task.loss(step, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(task.module.parameters(), 1.0)
        usable = bool(torch.isfinite(norm))
        if usable:
            optimizer.step()
        progress.rows.append(
            {"step": step, "loss": loss.item(), **figures, "gradient_norm": norm.item(), "skipped": float(not usable)}
        )
        progress.step = step + 1
        progress.seconds, progress.cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        progress.out_of_time = progress.seconds > 60 * schedule.minutes
        last = progress.step == schedule.steps or progress.out_of_time
        if last or progress.step % schedule.checkpoint_every == 0:
            save(folder / CHECKPOINT, task, optimizer, generator, options, progress)
        yield progress
    write_curve(folder / "curve.csv", progress.rows)


def save(
    path: Path,
    task: Task,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    options: dict[str, Any],
    progress: Progress,
) -> None:
    """A checkpoint, atomically: a process killed while writing leaves the one before."""
    content = {
        "module": task.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
        "options": options,
        "step": progress.step,
        "seconds": progress.seconds,
        "cpu_seconds": progress.cpu_seconds,
        "rows": progress.rows,
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)


def restored(
    path: Path, task: Task, optimizer: torch.optim.Optimizer, generator: torch.Generator, options: dict[str, Any]
) -> Progress:
    """Everything as the checkpoint has it."""
    if not path.is_file():
        raise CheckpointError(f"there is no {path.name} in {path.parent}: nothing to resume.")
    try:
        content = torch.load(path, weights_only=True)
        before = content["options"]
    except Exception as error:
        raise CheckpointError(f"{path} is no checkpoint of this script ({type(error).__name__}: {error}).") from error
    changed = [name for name in {**before, **options} if before.get(name) != options.get(name)]
    if changed:
        listed = ", ".join(f"{name} was {before.get(name)!r}, is {options.get(name)!r}" for name in changed)
        raise CheckpointError(f"{path} belongs to a run with other options: {listed}.")
    task.module.load_state_dict(content["module"])
    optimizer.load_state_dict(content["optimizer"])
    generator.set_state(content["generator"])
    return Progress(content["step"], content["seconds"], content["cpu_seconds"], content["rows"])


def write_curve(path: Path, rows: list[dict[str, float]]) -> Path:
    """One line per step; floats in full, so that two runs can be compared."""
    names = list(rows[0]) if rows else ["step"]
    lines = [",".join(names), *(",".join(repr(row[name]) for name in names) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")
    return path


def smoothed(values: list[float], window: int) -> list[float]:
    """The mean of the last `window` values, for plots."""
    sums, out = 0.0, []
    for i, value in enumerate(values):
        sums += value - (values[i - window] if i >= window else 0.0)
        out.append(sums / min(i + 1, window))
    return out
