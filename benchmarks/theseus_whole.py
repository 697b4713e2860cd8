"""Theseus' own examples as whole scripts, with Theseus and with this library: what a user waits for.

    python benchmarks/theseus_whole.py CHECKOUT --only simple_example tutorial_00 --rounds 3

Every script runs in processes of its own, in turns: as it is, and with `theseus.TheseusLayer` exchanged for
`from_theseus_layer` of it, the one line that a user changes. A figure is the processor time of its process from start
to end, imports, first calls and plots included; a table has the medians. What runs without an end within `--seconds` of
the wall is left out. Programs that call an optimizer without a layer (tutorial_01 in parts) run that with Theseus.
"""

import argparse
import contextlib
import os
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from theseus_examples import PROGRAMS, cells, link_of_data
from timing import print_machine, print_table

SIDES = ("theseus", "mslsq")


def main() -> None:
    parser = argparse.ArgumentParser(description="Whole scripts, with Theseus and with mslsq.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--inside", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.checkout, options.only[0], options.inside)
        return
    print_machine(["theseus-ai", "torch", "numpy"])
    rows: list[list[Any]] = []
    for name in options.only:
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            for side in SIDES:
                found[side] += outside(options, name, side)
        if not all(found.values()):
            rows.append([name, "no end", "no end", "–"])
            continue
        theirs, ours = (statistics.median(found[side]) for side in SIDES)
        rows.append([name, theirs, ours, ours / theirs])
    print_table("Whole scripts", ["program", "Theseus, s", "mslsq, s", "ratio"], rows)


def outside(options: argparse.Namespace, name: str, side: str) -> list[float]:
    """Processor seconds of one process; empty where it has failed or not ended."""
    command = [sys.executable, __file__, str(options.checkout.resolve()), "--only", name, "--inside", side]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, timeout=options.seconds, check=True
            )
        except subprocess.TimeoutExpired:
            return []
        except subprocess.CalledProcessError as error:
            print(f"{name}, {side}: {(error.stderr.decode().strip().splitlines() or ['failed'])[-1][:160]}")
            return []
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]


def inside(checkout: Path, name: str, side: str) -> None:
    """Run one program."""
    if side == "mslsq":
        exchange()
    path, arguments = PROGRAMS[name]
    program = checkout / path
    sys.path[:0] = [str(program.parent), str(checkout)]
    sys.argv = [str(program), *arguments]
    with contextlib.suppress(SystemExit):
        if program.suffix == ".ipynb":
            os.chdir(program.parent)
            exec(compile(cells(program), str(program), "exec"), {"__name__": "__main__"})
        else:
            link_of_data(checkout)
            runpy.run_path(str(program), run_name="__main__")


def exchange() -> None:
    """Put this library's layer in the place of Theseus'."""
    import theseus as th

    from mslsq.interop.theseus import from_theseus_layer

    original = th.TheseusLayer
    th.TheseusLayer = lambda *args, **options: from_theseus_layer(original(*args, **options))


if __name__ == "__main__":
    main()
