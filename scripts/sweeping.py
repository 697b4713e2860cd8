"""A sweep (`-m`): what every job leaves behind, and the table that ends it."""

import csv
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mslsq.replacing import NotWrittenError, write_text

SOME_FAILED, INTERRUPTED = 5, 130
"""Exit codes of a sweep: some job's is not 0; Ctrl-C."""

WITH_FIGURES = (0, 1, 3)
"""Exit codes of jobs that came to their end."""

RECORD, TABLE, SWEEP = "job.json", "sweep.csv", "sweep.json"
SHOWN = (
    "maps", "aligned", "median_corner_sigma_px", "median_corner_error_px", "cells_answered", "views_placed",
    "start_cost", "final_cost", "num_steps", "converged", "steps", "final_loss", "east_m", "north_m", "up_m",
    "nmad_m",
)  # fmt: skip
"""The figures of `metrics.json` that the printed table has, where jobs have them; `sweep.csv` has all."""


class Named(Console):
    """A console that is pickled by its name: launchers that run jobs in other processes send what `main` refers to."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(soft_wrap=True, highlight=False, **options)
        self._own_name = name

    def __reduce__(self) -> str:
        return self._own_name


console = Named("console")
errors = Named("errors", stderr=True)


@dataclass(frozen=True)
class Job:
    """One job of a sweep. `code` is None while it runs, and after it was killed."""

    name: str
    overrides: list[str]
    code: int | None = None
    seconds: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The exit code, or that there is none."""
        return "killed" if self.code is None else str(self.code)


def recorded(folder: Path, overrides: Sequence[str], begin: float, code: int | None, resumed: bool = False) -> Job:
    """What a job leaves behind in its folder: at its start (`code` None), and at its end with the figures of the
    `metrics.json` that it has written since `begin` (seconds since the epoch), or, if it is `resumed`, before."""
    metrics, figures = folder / "metrics.json", {}
    # two seconds: some file systems keep no finer times
    if code in WITH_FIGURES and metrics.exists() and (resumed or metrics.stat().st_mtime >= begin - 2):
        content = json.loads(metrics.read_text("utf-8"))
        content = content.get("summary", content)
        figures = {key: value for key, value in content.items() if isinstance(value, int | float | str | None)}
    seconds = None if code is None else round(time.time() - begin, 2)
    job = Job(folder.name, list(overrides), code, seconds, figures)
    write_text(folder / RECORD, json.dumps(asdict(job), indent=2) + "\n")
    return job


def jobs_of(folder: Path) -> list[Job]:
    """Every job that has begun, in the order of their numbers."""
    found = [Job(**json.loads(path.read_text("utf-8"))) for path in folder.glob(f"*/{RECORD}")]
    return sorted(found, key=lambda job: (int(job.name) if job.name.isdigit() else sys.maxsize, job.name))


def differing(jobs: Sequence[Job]) -> list[list[str]]:
    """Of every job's overrides those that not all have."""
    common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    return [[override for override in job.overrides if override not in common] for job in jobs]


def conclude(folder: Path) -> int:
    """Prints the table and writes `sweep.csv`; returns the exit code of the sweep."""
    jobs = jobs_of(folder)
    if not jobs:
        return 0
    console.print()
    console.print(_table(jobs))
    try:
        write_text(folder / TABLE, _csv(jobs))
        console.print(f"the table is in {escape(str(folder / TABLE))}")
    except NotWrittenError as error:
        errors.print(f"[red]error:[/] {escape(str(error.filename))} {escape(str(error.strerror))}.")
        return SOME_FAILED
    failed = [job for job in jobs if job.code != 0]
    if failed:
        names = ", ".join(f"{job.name} ({job.state})" for job in failed)
        errors.print(f"[red]{len(failed)} of {len(jobs)} jobs did not end with 0:[/] {escape(names)}.")
    return SOME_FAILED if failed else 0


def _table(jobs: Sequence[Job]) -> Table:
    shown = [name for name in SHOWN if any(name in job.figures for job in jobs)]
    table = Table(box=None, header_style="bold")
    for name in ("job", "overrides", *shown, "seconds", "exit code"):
        table.add_column(name.replace("_", " "), justify="left" if name == "overrides" else "right")
    for job, overrides in zip(jobs, differing(jobs), strict=True):
        figures = [_shown(job.figures.get(name)) for name in shown]
        state = job.state if job.code == 0 else f"[red]{job.state}[/]"
        table.add_row(escape(job.name), escape(" ".join(overrides)), *figures, _shown(job.seconds), state)
    return table


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _csv(jobs: Sequence[Job]) -> str:
    """One row per job: all overrides, all figures."""
    names = list(dict.fromkeys(name for job in jobs for name in job.figures if name != "seconds"))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["job", "overrides", *names, "seconds", "exit_code"])
    for job in jobs:
        rows.writerow(
            [job.name, " ".join(job.overrides), *(job.figures.get(name) for name in names), job.seconds, job.code]
        )
    return text.getvalue()


def _let_jobs_import() -> None:
    """A launcher that starts a new Python for a job (submitit) sends `main` by value, and by name the modules that it
    imports from this folder."""
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), known)))


class Sweep(Callback):
    """Hydra's callback, named in `configs/`: notes a sweep's command line, and ends it with its table and exit code."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _let_jobs_import()
        folder, arguments = Path(config.hydra.sweep.dir), ["--multirun", *config.hydra.overrides.task]
        if not (folder / SWEEP).exists() or not config.get("resume"):
            write_text(folder / SWEEP, json.dumps({"arguments": arguments}, indent=2) + "\n")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        code = conclude(Path(config.hydra.sweep.dir))
        if code:
            sys.exit(code)
