"""Bounded problems beside SciPy's `trf` and `dogbox`: where they end, how many evaluations, how long a thousand take.

    python benchmarks/bounds.py                  # about five minutes, one thread
    python benchmarks/bounds.py --half choose    # the half that rules are chosen on; claims are made on the other

Problems: the bounded ones of Gay (1984), as Ceres and others test them; every classic problem of Moré, Garbow and
Hillstrom, and every regression of NIST, in boxes drawn at random that cut off the minimum; a thousand decays with no,
one or two bounds met; a bundle adjustment whose focal lengths are bounded. The same start, in the box, for all. SciPy
has exact Jacobians (for the thousand decays in NumPy) and tolerances of 1e-15 (there its own). A cost is as good as
another if it is not above it by more than 1e-6 of it, or by 1e-12 of that at the start.
"""

import argparse
import hashlib
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from batched_fits import fits, residual
from peers.turns import shared_data
from scipy.optimize import least_squares as scipy_least_squares
from timing import interleaved, print_machine, print_table
from torch import Tensor

import mslsq
from mslsq.datasets import classic, nist
from mslsq.datasets.bal import read_bal

F64 = torch.float64
GAY = {
    "powell_badly_scaled": ([0, 1], [1, 9]),
    "brown_badly_scaled": ([0, 3e-5], [1e6, 100]),
    "beale": ([0.6, 0.5], [10, 100]),
    "helical_valley": ([-100, -1, -1], [0.8, 1, 1]),
    "gauss": ([0.398, 1, -0.5], [4.2, 2, 0.1]),
    "box_3d": ([0, 5, 0], [2, 9.5, 20]),
    "wood": ([-100] * 4, [0, 10, 100, 100]),
    "brown_dennis": ([-10, 0, -100, -20], [100, 15, 0, 0.2]),
    "biggs_exp6": ([0, 0, 0, 1, 0, 0], [2, 8, 1, 7, 5, 5]),
    "watson": ([-1e-5, 0, 0, 0, 0, -3, 0, -3, 0], [1e-5, 0.9, 0.1, 1, 1, 0, 4, 0, 2]),
}
"""D. M. Gay, "A trust region approach to linearly constrained optimization" (1984): his ten. Watson's has nine unknowns
there; its box is that of the test functions of the library utopia."""
FOCAL = 6
"""Where the focal length stands among the nine numbers of a camera."""
METHODS = {
    "LM": mslsq.LevenbergMarquardt(max_steps=1000),
    "Dogleg": mslsq.Dogleg(max_steps=1000),
}


class Boxed(NamedTuple):
    name: str
    residual: Callable[[Tensor], Tensor]
    start: Tensor
    lower: Tensor
    upper: Tensor


def half_of(name: str) -> str:
    return "choose" if hashlib.sha256(name.encode()).digest()[0] % 2 else "claim"


def of_gay() -> Iterator[Boxed]:
    for name, (lower, upper) in GAY.items():
        problem = classic.PROBLEMS[name]
        low, high = torch.tensor(lower, dtype=F64), torch.tensor(upper, dtype=F64)
        start = problem.start if name != "watson" else torch.zeros(9, dtype=F64)
        yield Boxed(name, problem.residual, start.clamp(low, high), low, high)


def cut(name: str, residual: Any, start: Tensor, minimum: Tensor, draws: int) -> Iterator[Boxed]:
    """Boxes around a start that leave the minimum out in about half of the entries."""
    for draw in range(draws):
        generator = torch.Generator().manual_seed(int(hashlib.sha256(f"{name}-{draw}".encode()).hexdigest()[:8], 16))
        share = 0.3 + 0.6 * torch.rand(len(start), generator=generator, dtype=F64)
        is_cut = torch.rand(len(start), generator=generator) < 0.5
        way = minimum - start
        edge = start + share * way
        room = 3 * way.abs() + 0.5 * start.abs() + 0.1
        lower = torch.where(is_cut & (way < 0), edge, torch.minimum(start, minimum) - room)
        upper = torch.where(is_cut & (way > 0), edge, torch.maximum(start, minimum) + room)
        yield Boxed(f"{name}-{draw}", residual, start, lower, upper)


def of_classics() -> Iterator[Boxed]:
    for name, problem in classic.PROBLEMS.items():
        found = mslsq.least_squares(problem.residual, problem.start, solver=METHODS["LM"]).value
        yield from cut(name, problem.residual, problem.start, found, 4)


def of_nist() -> Iterator[Boxed]:
    for path in sorted((shared_data() / "nist").glob("*.dat")):
        data = nist.read(path)
        for number, start in enumerate(data.starts):
            yield from cut(f"{data.name}-{number}", data.residual, start, data.certified, 2)


def by_scipy(boxed: Boxed, method: str) -> tuple[float, int]:
    jacobian = torch.func.jacfwd(boxed.residual)

    def of(x: np.ndarray) -> np.ndarray:
        return boxed.residual(torch.as_tensor(x)).numpy()

    try:
        with np.errstate(all="ignore"):
            found = scipy_least_squares(
                of,
                boxed.start.numpy(),
                lambda x: jacobian(torch.as_tensor(x)).numpy(),  # pyright: ignore[reportArgumentType]
                (boxed.lower.numpy(), boxed.upper.numpy()),
                method=method,
                x_scale="jac",
                xtol=1e-15,
                ftol=1e-15,
                gtol=1e-15,
                max_nfev=1000,
            )
    except ValueError:  # its residual is not finite at a point tried
        return math.inf, 0
    return float(found.cost), int(found.nfev)


def compared(title: str, problems: list[Boxed]) -> None:
    costs: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    starts, claims = [], dict.fromkeys(METHODS, 0)
    for boxed in problems:
        starts.append(0.5 * float(boxed.residual(boxed.start).square().sum()))
        for name, solver in METHODS.items():
            found = mslsq.least_squares(
                boxed.residual, boxed.start, bounds=(boxed.lower, boxed.upper), solver=solver, adjoint=mslsq.Detached()
            )
            costs.setdefault(name, []).append(float(found.cost))
            counts.setdefault(name, []).append(int(found.num_evaluations))
            claims[name] += bool(found.converged)
        for method in ("trf", "dogbox"):
            cost, evaluations = by_scipy(boxed, method)
            costs.setdefault(f"SciPy {method}", []).append(cost)
            counts.setdefault(f"SciPy {method}", []).append(evaluations)
    best = [min(per_method) for per_method in zip(*costs.values(), strict=True)]
    rows = []
    for name, own in costs.items():
        good = [c <= b * (1 + 1e-6) + 1e-12 * s for c, b, s in zip(own, best, starts, strict=True)]
        of_trf = [a / b for a, b, g in zip(counts[name], counts["SciPy trf"], good, strict=True) if g and b]
        rows.append(
            [name, f"{sum(good)} of {len(good)}", claims.get(name, ""), statistics.median(of_trf or [math.nan])]
        )
        missed = [p.name for p, g in zip(problems, good, strict=True) if not g]
        if name in METHODS and missed:
            print(f"{name} is above the best: {', '.join(missed)}")
    print_table(title, ["", "as low as the best", "converged", "evaluations / trf's, median"], rows)


def thousand(size: int, repeats: int) -> None:
    """Decays a exp(b t) + c: no bound met, one, two."""
    given = fits("well-posed", size)
    options = {"in_dims": (None, None, 0), "adjoint": mslsq.Detached()}
    solver = mslsq.LevenbergMarquardt(max_steps=200, trace="always")
    free = mslsq.least_squares(residual, given.start, (given.t, given.y), solver=solver, **options)
    middle = free.value.median(0).values
    met = {"none": [False] * 3, "one": [False, True, False], "two": [True, True, False]}
    boxes = {
        name: (-1e3 * torch.ones_like(middle), torch.where(torch.tensor(flags), middle, 1e3))
        for name, flags in met.items()
    }
    t, rows = given.t.numpy(), []

    def jacobian(p: np.ndarray) -> np.ndarray:
        exponential = np.exp(p[1] * t)
        return np.stack([exponential, p[0] * t * exponential, np.ones_like(t)], 1)

    for name, box in boxes.items():

        def own(bounds: Any = box, native: Any = "wait") -> mslsq.Solution:
            solver = mslsq.LevenbergMarquardt(max_steps=200, trace="always", native=native)
            return mslsq.least_squares(
                residual, given.start, (given.t, given.y), solver=solver, bounds=bounds, project_start=True, **options
            )

        def scipy(box: Any = box) -> list[float]:
            low, high = (side.numpy() for side in box)
            start = np.clip(given.start.numpy(), low, high)
            return [
                scipy_least_squares(
                    lambda p, y=y: p[0] * np.exp(p[1] * t) + p[2] - y,
                    start,
                    jacobian,  # pyright: ignore[reportArgumentType]
                    (low, high),
                ).cost
                for y in given.y[:64].numpy()
            ]

        found, theirs = own(), torch.tensor(scipy(), dtype=F64)
        times = interleaved(
            {
                "Python": lambda own=own: own(native="never"),
                "native": own,
                "without": lambda own=own: own(None),
                "trf": scipy,
            },
            repeats,
        )
        above = int((found.cost[:64] > theirs * (1 + 1e-6)).sum())
        met = (found.active != 0).sum(-1).to(F64).mean()
        rows.append(
            [
                name,
                float(met),
                times["Python"].cpu,
                times["native"].cpu,
                times["without"].cpu,
                times["trf"].cpu * size / 64,
                f"{int(found.converged.sum())} converged, {above} of 64 above trf's cost",
            ]
        )
    heading = ["bounds", "met per fit", "in Python", "native", "native, without bounds", "SciPy trf, loop", ""]
    print_table(f"### {size} decays of 32 points, CPU ms", heading, rows)


def focal_lengths(repeats: int) -> None:
    """Ladybug 49 with the focal length of every camera within a hundredth of the median."""
    path = shared_data() / "bal" / "problem-49-7776-pre.txt.bz2"
    if not path.exists():
        print("Ladybug 49: not measured, its data are not here")
        return
    scene = read_bal(path)
    problem = scene.problem()
    start = {"camera": scene.cameras, "point": scene.points}
    middle = float(scene.cameras[:, FOCAL].median())
    sides = []
    for share, nothing in ((0.99, -math.inf), (1.01, math.inf)):
        side = torch.full((9,), nothing, dtype=F64)
        side[FOCAL] = share * middle
        sides.append(side)
    solver = mslsq.LevenbergMarquardt(max_steps=20)

    def solved(data: Any) -> mslsq.Solution:
        return mslsq.solve(problem, start, data, solver=solver, project_start=True, adjoint=mslsq.Detached())

    wide = {"bounds": {"camera": (-1e9, 1e9)}}
    contestants = {
        "without bounds": lambda: solved(None),
        "none met": lambda: solved(wide),
        "focal lengths bounded": lambda: solved({"bounds": {"camera": tuple(sides)}}),
    }
    found = {name: contestant() for name, contestant in contestants.items()}
    times = interleaved(contestants, repeats)
    rows = [
        [
            name,
            float(found[name].cost),
            int(found[name].num_steps),
            int((found[name].active["camera"] != 0).sum()) if found[name].active else 0,
            times[name].cpu,
            times[name].cpu / times["without bounds"].cpu,
        ]
        for name in contestants
    ]
    heading = ["", "cost", "steps", "bounds met", "CPU ms", "times that without bounds"]
    print_table("### Ladybug 49-7776, 20 steps of Levenberg–Marquardt", heading, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "claim"), default="claim")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine(["mslsq", "torch", "scipy"])
    compared("### Gay's bounded problems", list(of_gay()))
    for title, problems in (("Classics", of_classics()), ("NIST", of_nist())):
        chosen = [boxed for boxed in problems if half_of(boxed.name.split("-")[0]) == arguments.half]
        compared(f"### {title} in random boxes, half {arguments.half!r}", chosen)
    thousand(arguments.size, arguments.repeats)
    focal_lengths(arguments.repeats)


if __name__ == "__main__":
    main()
