"""How the benchmarks measure: contestants take turns, medians of processor and wall time, tables to paste."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib import metadata
from typing import Any, NamedTuple

ONE_THREAD = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
"""What keeps PyTorch, BLAS and XLA to a single thread."""


class Timing(NamedTuple):
    """Medians in milliseconds; the processor time is that of all threads of the process."""

    cpu: float
    wall: float


def interleaved(contestants: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """All of them once, then all of them again, and so on: a burst of load from outside hits all alike."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant()
    for _ in range(repeats):
        for name, contestant in contestants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            contestant()
            samples[name].append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
    return {name: Timing(*map(statistics.median, zip(*taken, strict=True))) for name, taken in samples.items()}


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A Markdown table; numbers with three digits after the point below 10, one below 1000, none above."""
    texts = [list(map(str, header)), *[[_text(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in texts
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(f"\n{title}\n", *lines, sep="\n", flush=True)


def _text(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    if cell != cell:
        return "nan"
    return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.1f}" if abs(cell) < 1000 else f"{cell:.0f}"


def print_machine(packages: Sequence[str]) -> None:
    """Date, machine, versions and how busy the machine is."""
    load = ", ".join(f"{entry:.2f}" for entry in os.getloadavg())
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    print(f"{date.today()} · {_processor()}, {os.cpu_count()} cores · Python {platform.python_version()}, {versions}")
    print(f"load average at the start: {load} (a figure well above 0 means that others were working on the same cores)")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def for_each_thread_setting(script: str, arguments: Sequence[str]) -> int:
    """Run a benchmark with one thread and with as many as its libraries choose, each in a process of its own."""
    code = 0
    for label, extra in (("one thread", ONE_THREAD), ("default threads", {})):
        environment = {key: value for key, value in os.environ.items() if key not in ONE_THREAD} | extra
        print(f"\n## {label}", flush=True)
        code |= subprocess.run([sys.executable, script, *arguments, "--here"], env=environment).returncode
    load = ", ".join(f"{entry:.2f}" for entry in os.getloadavg())
    print(f"\nload average at the end: {load}")
    return code


def for_each_target(script: str, arguments: Sequence[str], targets: Iterable[str]) -> int:
    """Run a benchmark with one thread for each of these instruction sets of the kernels, in processes of their own."""
    code = 0
    for name in targets:
        environment = os.environ | ONE_THREAD | {"MSLSQ_TARGET": name}
        done = subprocess.run([sys.executable, script, *arguments, "--here"], env=environment)
        code |= done.returncode
        if done.returncode:
            print(f"\n{name}: not measured (the processor may lack it)", flush=True)
    return code
