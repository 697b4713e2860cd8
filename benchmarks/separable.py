"""Variable projection beside a fit of all parameters, on NIST's separable sets, from their far start and farther ones.

    MSLSQ_DATA=FOLDER python benchmarks/separable.py

Every set is started at its first start with the nonlinear parameters times 1, 3, 1/3 and 10 (the amplitudes of the fit
of all parameters as NIST starts them). Arrived: Σ r² within 1e-5 of the certified one. Steps of those starts from which
both arrive. The counts do not depend on the load of the machine.
"""

import argparse
import os
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mslsq
from mslsq.datasets import nist
from mslsq.front.fits.projection import eliminated

FACTORS = (1.0, 3.0, 1 / 3, 10.0)
Basis = Callable[[Tensor, Tensor], list[Tensor]]


class Separable(NamedTuple):
    nonlinear: list[int]
    """Which of NIST's parameters the basis takes."""
    basis: Basis


def _exponentials(p: Tensor, t: Tensor) -> list[Tensor]:
    return [(-rate * t).exp() for rate in p]


def _gaussians(p: Tensor, t: Tensor) -> list[Tensor]:
    return [(-p[0] * t).exp(), *((-(((t - p[k]) / p[k + 1]) ** 2)).exp() for k in (1, 3))]


def _rational(p: Tensor, t: Tensor) -> list[Tensor]:
    below = 1 + sum(p[k] * t ** (k + 1) for k in range(len(p)))
    return [t**k / below for k in range(len(p) + 1)]


def _cycles(p: Tensor, t: Tensor) -> list[Tensor]:
    angles = [2 * torch.pi * t / period for period in (12.0, *p)]
    return [torch.ones_like(t), *(f for angle in angles for f in (angle.cos(), angle.sin()))]


SETS: dict[str, Separable] = {
    "Misra1a": Separable([1], lambda p, t: [-(-p[0] * t).expm1()]),
    "Misra1b": Separable([1], lambda p, t: [1 - (1 + p[0] * t / 2) ** -2]),
    "Misra1c": Separable([1], lambda p, t: [1 - (1 + 2 * p[0] * t) ** -0.5]),
    "Misra1d": Separable([1], lambda p, t: [p[0] * t / (1 + p[0] * t)]),
    "DanWood": Separable([1], lambda p, t: [t ** p[0]]),
    "Lanczos1": Separable([1, 3, 5], _exponentials),
    "Lanczos2": Separable([1, 3, 5], _exponentials),
    "Lanczos3": Separable([1, 3, 5], _exponentials),
    "Gauss1": Separable([1, 3, 4, 6, 7], _gaussians),
    "Gauss2": Separable([1, 3, 4, 6, 7], _gaussians),
    "Gauss3": Separable([1, 3, 4, 6, 7], _gaussians),
    "Kirby2": Separable([3, 4], _rational),
    "Hahn1": Separable([4, 5, 6], _rational),
    "Thurber": Separable([4, 5, 6], _rational),
    "Nelson": Separable([2], lambda p, t: [torch.ones_like(t[:, 0]), -t[:, 0] * (-p[0] * t[:, 1]).exp()]),
    "MGH17": Separable([3, 4], lambda p, t: [torch.ones_like(t), *_exponentials(p, t)]),
    "ENSO": Separable([3, 6], _cycles),
    "MGH09": Separable([2, 3], lambda p, t: [t * t / (t * (t + p[0]) + p[1]), t / (t * (t + p[0]) + p[1])]),
    "MGH10": Separable([1, 2], lambda p, t: [(p[0] / (t + p[1])).exp()]),
    "BoxBOD": Separable([1], lambda p, t: [-(-p[0] * t).expm1()]),
    "Rat42": Separable([1, 2], lambda p, t: [1 / (1 + (p[0] - p[1] * t).exp())]),
    "Rat43": Separable([1, 2, 3], lambda p, t: [1 / (1 + (p[0] - p[1] * t).exp()) ** (1 / p[2])]),
    "Eckerle4": Separable([1, 2], lambda p, t: [(-0.5 * ((t - p[1]) / p[0]) ** 2).exp() / p[0]]),
    "Bennett5": Separable([1, 2], lambda p, t: [(p[0] + t) ** (-1 / p[1])]),
}
"""By name. (Roszman1 has a factor of −1/π that is not fitted, the models of Chwirut have no amplitude.)"""


def ended(residual: Any, start: Tensor, regression: nist.Regression, **options: Any) -> tuple[bool, int]:
    """Does it arrive, and in how many steps?"""
    solver = mslsq.LevenbergMarquardt(500, native="never", trace="never", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = mslsq.least_squares(residual, start, solver=solver)
    squares = 2 * float(solution.cost)
    certified = regression.residual_sum_of_squares
    return abs(squares - certified) <= max(1e-5 * certified, 1e-18), int(solution.num_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SETS))
    chosen = parser.parse_args().sets
    torch.set_num_threads(1)
    folder = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "nist"
    totals: dict[str, int] = {}
    print("| set | amplitudes, others | all parameters | accelerated | projection | both | steps where all arrive |")
    print("|---|---|---|---|---|---|---|")
    for name, (nonlinear, basis) in SETS.items():
        if name not in chosen or not (folder / f"{name}.dat").exists():
            continue
        data = nist.read(folder / f"{name}.dat")

        def projected(p: Tensor, basis: Basis = basis, data: nist.Regression = data) -> Tensor:
            return eliminated(torch.stack(basis(p, data.t), -1), data.y).residual

        found: dict[str, list[tuple[bool, int]]] = {"all": [], "accelerated": [], "projection": [], "both": []}
        for factor in FACTORS:
            start = data.starts[0].clone()
            start[nonlinear] *= factor
            found["all"].append(ended(data.residual, start, data))
            found["accelerated"].append(ended(data.residual, start, data, acceleration=0.75))
            found["projection"].append(ended(projected, start[nonlinear], data))
            found["both"].append(ended(projected, start[nonlinear], data, acceleration=0.75))
        both = [k for k in range(len(FACTORS)) if all(runs[k][0] for runs in found.values())]
        steps = " / ".join(
            str(statistics.median([runs[k][1] for k in both])) if both else "–" for runs in found.values()
        )
        counts = {who: sum(arrived for arrived, _ in runs) for who, runs in found.items()}
        totals = {who: totals.get(who, 0) + count for who, count in counts.items()}
        linear = len(data.certified) - len(nonlinear)
        print(
            f"| {name} | {linear}, {len(nonlinear)} |",
            " | ".join(map(str, counts.values())),
            f"| {steps} |",
            flush=True,
        )
    print("| total | |", " | ".join(map(str, totals.values())), "| |")


if __name__ == "__main__":
    main()
