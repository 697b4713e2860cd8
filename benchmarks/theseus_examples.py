"""Theseus' own examples and tutorials, each call of their layers solved by Theseus and by this library.

    python benchmarks/theseus_examples.py CHECKOUT                 # a checkout of facebookresearch/theseus
    python benchmarks/theseus_examples.py CHECKOUT --only simple_example tutorial_01 --calls 20

It runs where Theseus is installed (scripts/install_theseus.sh; hydra-core and matplotlib besides, and kornia, OpenCV
and tqdm for the homographies). The files run as they are: `theseus.TheseusLayer` and the `optimize` of optimizers are
exchanged before (`peers/theseus_pairs.py`), which is the one line that a user changes. Calls after `--calls` are left
out. What an example would download is not there: what takes its place is named synthetic. The residual of Theseus'
issue 650 is written here as in the issue.

Costs are ½ Σ error² summed over the batch, of the first call; "worst" is the largest (ours − theirs) / theirs of any
problem in any call. Times are of processor, with the example's own options: of the first call, the median of calls 2 to
5, and that of the last third of all where there are nine or more; ratios are ours / theirs. With `--same-steps` every
call is solved once more with no more steps than Theseus has taken in it: the median of calls 2 and later, its ratio,
and the cost of the first call after those steps. Gradients are taken in all four modes on the first call's data: the
error of the derivative along a random direction, against central differences of converged solves.
"""

import argparse
import contextlib
import json
import os
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from timing import print_machine, print_table

GIGABYTES = 12
"""Of address space for one example: Theseus' backward through sparse solves takes more than that on some."""
SECONDS = 100
HERE = Path(__file__).resolve().parent
HYDRA = "hydra.run.dir=."
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "simple_example": ("examples/simple_example.py", ()),
    "backward_modes": ("examples/backward_modes.py", ()),
    "state_estimation_2d": ("examples/state_estimation_2d.py", ()),
    "motion_planning_2d": (
        "examples/motion_planning_2d.py",
        (HYDRA, "device=cpu", "train_data_size=2", "batch_size=2", "num_epochs=3"),
    ),
    "bundle_adjustment": ("examples/bundle_adjustment.py", (HYDRA,)),
    "pose_graph_synthetic": (
        "examples/pose_graph/pose_graph_synthetic.py",
        (
            HYDRA,
            "device=cpu",
            "profile=false",
            "savemat=false",
            "num_poses=64",
            "dataset_size=8",
            "batch_size=4",
            "inner_optim.linear_solver_cls=CholeskyDenseSolver",
        ),
    ),
    "inverse_kinematics": ("examples/inverse_kinematics.py", ()),
    "se2_planning": ("examples/se2_planning.py", ()),
    "tutorial_00": ("tutorials/00_introduction.ipynb", ()),
    "tutorial_01": ("tutorials/01_least_squares_optimization.ipynb", ()),
    "tutorial_02": ("tutorials/02_differentiating_theseus_layer.ipynb", ()),
    "tutorial_04": ("tutorials/04_motion_planning.ipynb", ()),
    "tutorial_05": ("tutorials/05_differentiable_motion_planning.ipynb", ()),
    "homography (synthetic)": (str(HERE / "peers/theseus_homography.py"), ()),
    "issue 650": (str(HERE / "peers/theseus_issue_650.py"), ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Theseus' examples, with Theseus and with mslsq.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--same-steps", action="store_true", help="every call once more, with as many steps as Theseus")
    parser.add_argument("--modes", nargs="*", help="of the gradients, those that are compared; all of them by default")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="after which a program is ended")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
        return
    print_machine(["theseus-ai", "torch", "numpy"])
    results = {name: outside(options, name) for name in options.only}
    tables(results)


def outside(options: argparse.Namespace, name: str) -> list[dict[str, Any]] | str:
    """The records of one program, run in a process of its own; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "records.json"
        command = [sys.executable, __file__, str(options.checkout.resolve()), "--inside", str(report), "--only", name]
        command += ["--calls", str(options.calls), *(["--no-gradients"] if options.no_gradients else [])]
        command += ["--modes", *options.modes] if options.modes else []
        command += ["--same-steps"] if options.same_steps else []
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        limit = (GIGABYTES << 30, GIGABYTES << 30)
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=options.seconds,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
            )
        except subprocess.TimeoutExpired:
            return json.loads(report.read_text()) if report.exists() else f"no end within {options.seconds} s"
        if report.exists():
            return json.loads(report.read_text())
        return (done.stderr.strip().splitlines() or ["no call of a layer"])[-1][:160]


def inside(options: argparse.Namespace) -> None:
    """Run one program, and write down what its layers did, after every call."""
    from peers import theseus_pairs as pairs

    report = Path(options.inside)
    pairs.LIMITS |= {"calls": options.calls, "same steps": options.same_steps}
    if options.no_gradients:
        pairs.MODES = {}
    if options.modes:
        pairs.MODES = {mode: pairs.MODES[mode] for mode in options.modes}
    pairs.LISTENERS.append(lambda: report.write_text(json.dumps([asdict(record) for record in pairs.RECORDS])))
    pairs.exchange()
    (name,) = options.only
    path, arguments = PROGRAMS[name]
    program = options.checkout / path
    sys.path[:0] = [str(program.parent), str(options.checkout)]
    sys.argv = [str(program), *arguments]
    with contextlib.suppress(pairs.Enough, SystemExit):
        if program.suffix == ".ipynb":
            os.chdir(program.parent)
            exec(compile(cells(program), str(program), "exec"), {"__name__": "__main__"})
        else:
            link_of_data(options.checkout)
            runpy.run_path(str(program), run_name="__main__")


def cells(notebook: Path) -> str:
    """The code of a notebook, without its magics."""
    content = json.loads(notebook.read_text())
    code = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    return "\n".join(line for text in code for line in text.splitlines() if not line.lstrip().startswith(("%", "!")))


def link_of_data(checkout: Path) -> None:
    """Two programs look for data in the working directory; those of the tutorials are of the kind that
    motion_planning_2d.py takes."""
    data = checkout / "tutorials/data/motion_planning_2d"
    for place in ("expts/motion-planning-2d/dataset", "tutorials/data/motion_planning_2d"):
        link = Path.cwd() / place
        if data.exists() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(data)


def tables(results: dict[str, list[dict[str, Any]] | str]) -> None:
    solves, modes = [], []
    for name, records in results.items():
        if isinstance(records, str):
            solves.append([name, records, *["–"] * 15])
            continue
        for number, record in enumerate(records):
            label = name if len(records) == 1 else f"{name}, layer {number + 1}"
            solves.append([label, *row(record)])
            for mode, (theirs, ours, their_error, our_error, apart) in record["gradients"].items():
                modes.append([label, mode, 1e3 * theirs, 1e3 * ours, *map(small, (their_error, our_error, apart))])
    header = ["program", "cost functions → terms", "unknowns", "batch", "calls", "cost Theseus", "cost mslsq", "worst"]
    for when in ("first", "calls 2–5", "late"):
        header += [f"{when}, ms (Theseus, mslsq)", "ratio"]
    header += ["same steps: ms", "ratio", "cost"]
    print_table("Solves", header, solves)
    header = ["program", "mode", "Theseus ms", "mslsq ms", "error of Theseus", "error of mslsq", "difference"]
    print_table("Gradients", header, modes)


def row(record: dict[str, Any]) -> list[Any]:
    theirs, ours, costs = record["theirs"], record["ours"], record["costs"]
    if not costs:
        return ["no call ended", *["–"] * 15]
    count = len(costs)
    parts = (slice(0, 1), slice(1, 5), slice(-(count // 3), None) if count >= 9 else slice(0, 0))
    short = record["short"][1:]
    return [
        f"{record['cost_functions']} → {record['terms']}",
        record["unknowns"],
        record["batch"],
        count,
        f"{costs[0][0]:.7g}",
        f"{costs[0][1]:.7g}",
        small(record["worst"]),
        *[cell for part in parts for cell in beside(theirs[part], ours[part])],
        1e3 * statistics.median(short) if short else "–",
        statistics.median(short) / statistics.median(theirs[1:]) if short else "–",
        f"{record['short_costs'][0]:.7g}" if short else "–",
    ]


def beside(theirs: list[float], ours: list[float]) -> list[Any]:
    """Median milliseconds of some calls of both, and their ratio."""
    if not theirs:
        return ["–", "–"]
    medians = statistics.median(theirs), statistics.median(ours)
    return [", ".join(f"{1e3 * seconds:.3g}" for seconds in medians), medians[1] / medians[0]]


def small(value: float) -> str:
    return "–" if value != value else f"{value:.1e}"


if __name__ == "__main__":
    main()
