"""The library on a GPU: fits, graphs and bundle adjustment beside the CPU of the same machine, and the floor.

    make cuda                                          # the tests on the GPU, then this
    python benchmarks/cuda.py --out benchmarks/results # writes cuda_<device>.md
    python benchmarks/cuda.py --device cpu --small     # what is measured, in small, without a GPU
    python benchmarks/cuda.py --look                   # is there a GPU?

The floor of a step is what its Jacobian alone costs the device: the bytes that are written and read once, at the speed
of a copy, and the flops of the products, at the speed of a large matrix product; both are measured first. A case that
cannot run is a sentence, not the end. The page is written after every case: what ends the process takes no figure away,
and what does not begin within `--minutes` says so.
"""

import sys

if "torch" in sys.modules and not hasattr(sys.modules["torch"], "tensor"):
    # A program beside this file is run, and its `import torch` looks for NVIDIA's package of this name.
    raise ImportError("benchmarks/cuda.py is not NVIDIA's package")

import argparse
import contextlib
import io
import itertools
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cuda_pairs
import torch
from cuda_cases import CASES, STEPS, Case
from cuda_cudss import look
from timing import print_machine, print_table

REPEATS = 3
NATIVE: dict[str, Any] = {"native": "wait"}
REPLAYED: dict[str, Any] = {"trace": "always", "native": "never"}
WAYS = {"eager": {"trace": "never"}, "replayed": REPLAYED, "native": NATIVE}
CUDA_GRAPH = "CUDA graph"
"""A way on a GPU alone: what is replayed, captured."""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, repeats: int | None = None) -> float:
    """The median of the wall time, after two calls that are not counted: what they make, later ones take."""
    for _ in range(2):
        work()
    wait(device)
    taken = []
    for _ in range(repeats or REPEATS):
        begin = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def speeds(device: torch.device, dtype: torch.dtype, small: bool) -> tuple[float, float]:
    """Bytes per second of a copy (read and written), flops per second of a matrix product."""
    n = 1 << (20 if small else 28)
    source = torch.zeros(n // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(source)
    side = 256 if small else 4096
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    copying = seconds(lambda: target.copy_(source), device, 5)
    return 2 * n / copying, 2 * side**3 / seconds(lambda: matrix @ matrix, device, 5)


class TimeIsOverError(RuntimeError):
    """The minutes that there were are over."""


def begin_before(end: float) -> None:
    """Raises TimeIsOverError after that time of the monotonic clock."""
    if time.monotonic() > end:
        raise TimeIsOverError("not measured, the minutes of --minutes are over")


def rows_of(case: Case, device: torch.device, dtype: torch.dtype, small: bool, end: float) -> list[tuple[Any, ...]]:
    """A line of the table for every way; what cannot run, or not begin before the end, says why. The CPU's time is
    taken once, with its native programs: by itself it would take them after some calls."""
    name = str(dtype).removeprefix("torch.")
    try:
        begin_before(end)
        made = case.make(device, dtype, small)
        copy, product = speeds(device, dtype, small)
        floor = max(made.moved / copy, made.flops / product)
        there = on_the_cpu(case, dtype, small) / STEPS
    except Exception as error:  # the next case may run
        return [(case.name, "", name, _words(error), "", "", "")]
    rows: list[tuple[Any, ...]] = []
    ways = WAYS | ({CUDA_GRAPH: REPLAYED} if device.type == "cuda" else {})
    for way, options in ways.items():
        os.environ["MSLSQ_CUDA_GRAPHS"] = str(int(way == CUDA_GRAPH))
        try:
            begin_before(end)
            missing = why_not_native(made.solve) if options is NATIVE else ""
            if missing:
                rows.append((case.name, way, name, f"not there: {missing}", "", "", ""))
                continue
            step = made.times * seconds(partial(made.solve, options), device) / STEPS
        except Exception as error:  # the next way may run
            rows.append((case.name, way, name, _words(error), 1e3 * there, "", ""))
            continue
        rows.append((case.name, way, name, 1e3 * step, 1e3 * there, there / step, step / floor))
    return rows


def on_the_cpu(case: Case, dtype: torch.dtype, small: bool) -> float:
    """Seconds of a whole solve there; what it is made of is gone afterwards."""
    host = torch.device("cpu")
    made = case.make(host, dtype, small)
    return made.times * seconds(partial(made.solve, NATIVE), host, 1)


def why_not_native(solve: Callable[[dict[str, Any]], Any]) -> str:
    """What a solve says of its native programs where none of them is there; empty where one is."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page):
        solve(NATIVE | {"verbose": True, "max_steps": 1})
    said = [line.strip() for line in page.getvalue().splitlines() if "native program" in line]
    if any("was compiled" in line for line in said):
        return ""
    return said[0] if said else "no program was begun"


def told(name: str, tell: Callable[[torch.device, bool], Any], device: torch.device, small: bool, end: float) -> str:
    """What is printed by a part that has tables of its own, or why it said nothing."""
    page = io.StringIO()
    try:
        begin_before(end)
        with contextlib.redirect_stdout(page):
            tell(device, small)
    except Exception as error:  # the other figures are there
        return f"{page.getvalue()}\n{name}: {_words(error)}\n"
    return page.getvalue()


def why_no_gpu() -> str:
    """Why PyTorch sees none, in a clause."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA (python -m pip install torch brings a build with it)"
    return f"torch {torch.__version__} finds none (torch.cuda.is_available() is False; does nvidia-smi show one?)"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:90]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a few of everything: does it run?")
    parser.add_argument("--look", action="store_true", help="is there a GPU? Nothing is measured")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no more is begun")
    parser.add_argument("--out", type=Path, help="folder of the page cuda_<device>.md")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"There is no GPU here: {why_no_gpu()}. --device cpu --small shows what is measured.")
        return 1
    if options.look:
        return 0
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rows: list[tuple[Any, ...]] = []
    end = time.monotonic() + 60 * options.minutes

    def write() -> None:
        if options.out is not None:
            path = options.out / f"cuda_{name.lower().replace(' ', '_')}.md"
            path.write_text(page_of(name, options.small, rows) + proof, encoding="utf-8")

    proof = told("cuDSS", look, device, options.small, end)  # first: what follows takes what has proved itself
    for case, dtype in itertools.product(CASES, (torch.float64, torch.float32)):
        print(f"{case.name}, {dtype} ...", file=sys.stderr, flush=True)
        rows += rows_of(case, device, dtype, options.small, end)
        write()
    proof += told("whole alignments", cuda_pairs.tell, device, options.small, end)
    write()
    print(page_of(name, options.small, rows) + proof)
    return 0


def page_of(name: str, small: bool, rows: list[tuple[Any, ...]]) -> str:
    """What has been measured so far."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page):
        print(f"# mslsq on {name}\n\n`python benchmarks/cuda.py{' --small' if small else ''}`\n")
        print_machine(["torch"])
        header = ("case", "way", "dtype", "ms a step", "ms on the CPU", "CPU / device", "times the floor")
        print_table(f"{STEPS} steps of Levenberg-Marquardt, wall time; the CPU by native programs", header, rows)
    return page.getvalue()


if __name__ == "__main__":
    sys.exit(main())
