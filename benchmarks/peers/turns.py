"""How contestants that time themselves take turns, how many threads they get, and where the data sets are."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """One whole solve; milliseconds, the processor time that of all threads."""

    values: Any
    """What was found, in the form that the benchmark's own cost function takes."""
    steps: int
    cpu: float
    """Construction included."""
    wall: float
    build_cpu: float
    """Of the construction alone."""
    costs: Sequence[float] = ()
    """After every step, where the contestant tells."""


class Stopwatch:
    """Processor and wall time since it was made, in milliseconds."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    @property
    def cpu(self) -> float:
        return 1e3 * (time.process_time() - self._cpu)

    @property
    def wall(self) -> float:
        return 1e3 * (time.perf_counter() - self._wall)


class Taken(NamedTuple):
    """What a contestant's turns came to: the first one, which warms up, apart; medians of the others."""

    last: Turn
    first: Turn
    cpu: float
    wall: float
    build_cpu: float


def take_turns(contestants: dict[str, Callable[[], Turn]], repeats: int) -> dict[str, Taken]:
    """All of them once to warm up, then `repeats` rounds of all: a burst of load from outside hits all alike."""
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, contestant in contestants.items():
            turns[name].append(contestant())
    taken = {}
    for name, (first, *others) in turns.items():
        cpu, wall, build = (
            statistics.median(getattr(t, field) for t in others) for field in ("cpu", "wall", "build_cpu")
        )
        taken[name] = Taken(others[-1], first, cpu, wall, build)
    return taken


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """As many threads for all libraries; call it before anything is computed. (GTSAM's wheel has one thread only.)"""
    for name in THREADS:
        os.environ[name] = str(threads)
    import torch

    torch.set_num_threads(threads)


def in_own_processes(script: str, arguments: Sequence[str], settings: Sequence[int]) -> int:
    """Run a benchmark again with each number of threads, in a process of its own."""
    code = 0
    for threads in settings:
        print(f"\n## {threads} thread{'s' if threads > 1 else ''}", flush=True)
        environment = os.environ | {name: str(threads) for name in THREADS}
        command = [sys.executable, script, *arguments, "--here", str(threads)]
        code |= subprocess.run(command, env=environment).returncode
    load = ", ".join(f"{entry:.2f}" for entry in os.getloadavg())
    print(f"\nload average at the end: {load}")
    return code


def shared_data() -> Path:
    """The folder of data sets: `MSLSQ_DATA`, or `../shared/data` beside the repository; exits where there is none."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("MSLSQ_DATA", beside)).expanduser()
    if not folder.is_dir():
        sys.exit(f"no data sets in {folder}: put them there, or set MSLSQ_DATA to their folder")
    return folder
