"""Which solvers arrive from far starts: NIST's runs and Moré, Garbow and Hillstrom's problems, beside SciPy.

    MSLSQ_DATA=FOLDER python benchmarks/far_starts.py --set nist            # all sets in FOLDER/nist
    python benchmarks/far_starts.py --set classic --half claim              # one half of the problems
    python benchmarks/far_starts.py --set classic --only "mslsq LM" "SciPy trf" --each

Each contestant has the exact Jacobian, tolerances of 1e-15 (SciPy) or its own defaults (mslsq), and 2,000 evaluations.
Arrived means four digits of every parameter (NIST), or Σ r² within 1e-5 of a minimum (1e-8 where that is zero). The
counts do not depend on the load of the machine.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import scipy.optimize
import torch
from far_problems import Run, classic_runs, nist_runs
from torch.func import jacfwd

import mslsq

MOST = 2000


class Ended(NamedTuple):
    arrived: str
    """`"best"`, `"local"` or nothing."""
    evaluations: int
    said: str
    """The status."""


def own(run: Run, solver: Any) -> Ended:
    """This library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = mslsq.least_squares(run.residual, run.start, solver=solver)
    return Ended(
        run.arrived(solution.value), int(solution.num_evaluations), mslsq.Status(int(solution.status)).name.lower()
    )


def scipys(run: Run, method: Any) -> Ended:
    """SciPy's, with the exact Jacobian and tolerances at the rounding."""

    def residual(x: Any) -> Any:
        return run.residual(torch.from_numpy(x)).numpy()

    jacobian: Any = lambda x: jacfwd(run.residual)(torch.from_numpy(x)).numpy()  # noqa: E731

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            options: Any = {"x_scale": "jac", "ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15, "max_nfev": MOST}
            found = scipy.optimize.least_squares(residual, run.start.numpy(), jacobian, method=method, **options)
        except ValueError as error:  # LinAlgError is one
            return Ended("", 0, str(error)[:40])
    return Ended(run.arrived(torch.from_numpy(found.x)), int(found.nfev), str(found.status))


def contestants() -> dict[str, Callable[[Run], Ended]]:
    """By name."""
    own_options: Any = {"max_steps": MOST, "native": "never"}
    solvers = {
        "mslsq LM": mslsq.LevenbergMarquardt(**own_options),
        "mslsq LM, straight": mslsq.LevenbergMarquardt(acceleration=None, **own_options),
        "mslsq LM, accelerated": mslsq.LevenbergMarquardt(acceleration=0.75, **own_options),
        "mslsq Dogleg": mslsq.Dogleg(**own_options),
        "mslsq GN": mslsq.GaussNewton(**own_options),
    }
    found: dict[str, Callable[[Run], Ended]] = {
        name: lambda run, solver=solver: own(run, solver) for name, solver in solvers.items()
    }
    for method in ("trf", "lm", "dogbox"):
        found[f"SciPy {method}"] = lambda run, method=method: scipys(run, method)
    return found


def table(runs: list[Run], found: dict[str, dict[str, Ended]]) -> str:
    """One row for each contestant: arrivals, those at another known minimum, and evaluations of what all arrive at."""
    common = [run.name for run in runs if all(ended[run.name].arrived for ended in found.values())]
    lines = ["| | best minimum | another known | neither | median evaluations | the same, where all arrive | mean |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, ended in found.items():
        kinds = [ended[run.name].arrived for run in runs]
        counts = [ended[run.name].evaluations for run in runs if ended[run.name].arrived]
        shared = [ended[run].evaluations for run in common]
        figures = [kinds.count("best"), kinds.count("local"), kinds.count("")]
        figures += [statistics.median(x) if x else "–" for x in (counts, shared)]
        figures.append(round(statistics.mean(shared), 1) if shared else "–")
        lines.append(f"| {name} | " + " | ".join(map(str, figures)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("nist", "classic"), default="classic")
    parser.add_argument("--half", choices=("choose", "claim", "both"), default="both")
    parser.add_argument("--only", nargs="*", help="contestants")
    parser.add_argument("--problems", nargs="*", help="names of problems")
    parser.add_argument("--each", action="store_true", help="print every run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = nist_runs() if options.set == "nist" else classic_runs()
    runs = [run for run in runs if options.half in ("both", run.half)]
    runs = [run for run in runs if not options.problems or run.problem in options.problems]
    chosen = {name: solve for name, solve in contestants().items() if not options.only or name in options.only}
    found: dict[str, dict[str, Ended]] = {name: {} for name in chosen}
    for run in runs:
        for name, solve in chosen.items():
            found[name][run.name] = solve(run)
        if options.each or not all(ended[run.name].arrived for ended in found.values()):
            ended = [(name, by_run[run.name]) for name, by_run in found.items()]
            row = (f"{name}: {e.arrived or 'NO'} {e.evaluations} {e.said}" for name, e in ended)
            print(f"{run.name:28}", *row, sep=" | ", flush=True)
    print(f"\n{len(runs)} runs\n\n{table(runs, found)}")


if __name__ == "__main__":
    main()
