"""Many starts as a batch on named problems with several minima, beside the one start that the problem comes with.

    python benchmarks/multi_start.py

64 starts, sampled with the defaults of `mslsq.multi_start` (within bounds where the table says so); nothing was chosen
on these problems. "Best" is the least cost of all rows of the problem. Times are processor times of one thread, the
second call; they depend on the machine.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mslsq
from mslsq.datasets.classic import PROBLEMS

F64 = torch.float64
T = torch.linspace(0, 1, 60, dtype=F64)
NOISE = 0.05 * torch.randn(60, dtype=F64, generator=torch.Generator().manual_seed(0))


class Case(NamedTuple):
    residual: Callable[[Tensor], Tensor]
    start: Tensor
    bounds: Any = None
    squares: float | None = None
    """The least known Σ r²."""


def _wave(count: int) -> Case:
    true = torch.tensor([1.0, 31.0, 0.4, 0.7, 12.0, 1.1][: 3 * count], dtype=F64).reshape(count, 3)

    def waves(p: Tensor) -> Tensor:
        return sum(a * torch.sin(w * T + phase) for a, w, phase in p)  # pyright: ignore[reportReturnType]

    y = waves(true) + NOISE
    lower, upper = ([0.05, 0.0, -3.2] * count, [3.0, 60.0, 3.2] * count)
    box = tuple(torch.tensor(side, dtype=F64) for side in (lower, upper))
    return Case(lambda x: waves(x.reshape(count, 3)) - y, torch.tensor([1.0, 20.0, 0.0] * count, dtype=F64), box)


def _bells() -> Case:
    centres = torch.tensor([0.2, 0.5, 0.75], dtype=F64)

    def model(p: Tensor) -> Tensor:
        return (p[:3] * torch.exp(-(((T[:, None] - p[3:]) / 0.05) ** 2))).sum(-1)

    y = model(torch.cat([torch.tensor([1.0, 0.6, 1.4], dtype=F64), centres])) + 0.2 * NOISE
    start = torch.tensor([1.0, 1.0, 1.0, 0.9, 0.92, 0.94], dtype=F64)
    box = torch.zeros(6, dtype=F64), torch.tensor([3.0] * 3 + [1.0] * 3, dtype=F64)
    return Case(lambda x: model(x) - y, start, box)


def cases() -> dict[str, Case]:
    """By name."""
    found = {"one wave, its frequency": _wave(1), "two waves": _wave(2), "three bells": _bells()}
    for name, factor in (
        ("freudenstein_roth", 1),
        ("trigonometric", 1),
        ("chebyquad", 10),
        ("osborne_2", 10),
        ("biggs_exp6", 100),
        ("bard", 100),
        ("beale", 10),
        ("box_3d", 100),
    ):
        problem = PROBLEMS[name]
        title = name if factor == 1 else f"{name} from {factor} x0"
        found[title] = Case(problem.residual, factor * problem.start, None, problem.minima[0])
    return found


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        "| problem | Σ r² from one start | best of 64 | known | starts there | distinct minima | failed | ms: one, 64 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    solver = mslsq.LevenbergMarquardt(max_steps=300, native="never")
    for name, case in cases().items():
        times, results = [], []
        for solve in (
            lambda: mslsq.least_squares(case.residual, case.start, bounds=case.bounds, solver=solver),  # noqa: B023
            lambda: mslsq.multi_start(case.residual, case.start, starts=64, bounds=case.bounds, solver=solver),  # noqa: B023
        ):
            solve()
            begun = time.process_time()
            results.append(solve())
            times.append(1e3 * (time.process_time() - begun))
        alone, many = results
        count = many.minima.count
        known = "–" if case.squares is None else f"{case.squares:.4g}"
        print(
            f"| {name} | {2 * float(alone.cost):.4g} | {2 * float(many.solution.cost):.4g} | {known} | "
            f"{int(count[0])} | {int((count > 0).sum())} | {int(many.num_failed)} | {times[0]:.0f}, {times[1]:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
