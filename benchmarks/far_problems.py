"""Problems with known minima and far starts: NIST's 54 runs, and Moré, Garbow and Hillstrom from x0, 10 x0, 100 x0.

To the thirty problems of `mslsq.datasets.classic` come the others of the paper, and more instances of those whose size
is free: 42, so 126 runs. A run has a half, "choose" or "claim", by a hash of the name of its problem: rules are chosen
on the one, claims are made on the other.

Source of the problems: J. J. Moré, B. S. Garbow and K. E. Hillstrom, ACM TOMS 7 (1981), numbers in brackets.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mslsq.datasets import nist
from mslsq.datasets.classic import PROBLEMS

F64 = torch.float64


@dataclass(frozen=True)
class Run:
    """A residual and a start, and what counts as arrived."""

    name: str
    problem: str
    residual: Callable[[Tensor], Tensor]
    start: Tensor
    minima: tuple[float, ...]
    """Known local minima of Σ r², the global one first."""
    regression: nist.Regression | None = None

    @property
    def half(self) -> str:
        """The half of its problem, whatever the start."""
        return "choose" if hashlib.sha256(self.problem.encode()).digest()[0] % 2 else "claim"

    def arrived(self, x: Tensor) -> str:
        """`"best"` at the global minimum, `"local"` at another that is known, else nothing. NIST's regressions ask for
        four digits of every parameter."""
        if not bool(torch.isfinite(x).all()):
            return ""
        if self.regression is not None:
            return "best" if self.regression.digits(x) >= 4 else ""
        squares = float(self.residual(x).square().sum())
        near = [abs(squares - least) <= max(1e-5 * least, 1e-8) for least in self.minima]
        return "best" if near[0] else "local" if any(near) else ""


def nist_runs(folder: Path | None = None) -> list[Run]:
    """Both starts of all of NIST's sets that are in the folder (`nist` in $MSLSQ_DATA)."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = folder or Path(os.environ.get("MSLSQ_DATA", beside)) / "nist"
    runs = []
    for name in nist.MODELS:
        if (folder / f"{name}.dat").exists():
            data = nist.read(folder / f"{name}.dat")
            minima = (data.residual_sum_of_squares,)
            runs += [Run(f"{name}-{k + 1}", name, data.residual, data.starts[k], minima, data) for k in (0, 1)]
    return runs


def classic_runs(factors: tuple[int, ...] = (1, 10, 100)) -> list[Run]:
    """The 42 instances, each from every multiple of its start (of ones where it is zero, as MINPACK does)."""
    instances = [(p.name, p.residual, p.start, p.minima) for p in PROBLEMS.values()]
    instances += [(name, residual, torch.tensor(start, dtype=F64), minima) for name, residual, start, minima in MORE]
    return [
        Run(f"{name} x{factor}", name, residual, _multiple(start, factor), minima)
        for name, residual, start, minima in instances
        for factor in factors
    ]


def _multiple(start: Tensor, factor: int) -> Tensor:
    return torch.full_like(start, float(factor)) if factor > 1 and not start.any() else factor * start


def _gulf(x: Tensor) -> Tensor:
    """Gulf research and development (11), m = 10."""
    t = torch.arange(1, 11, dtype=x.dtype) / 100
    y = 25 + (-50 * t.log()) ** (2 / 3)
    return (-((y - x[1]).abs() ** x[2]) / x[0]).exp() - t


def _extended_powell(x: Tensor) -> Tensor:
    """Extended Powell singular (22)."""
    a, b, c, d = x[0::4], x[1::4], x[2::4], x[3::4]
    return torch.cat([a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2])


def _penalty_1(x: Tensor) -> Tensor:
    """Penalty I (23)."""
    return torch.cat([1e-5**0.5 * (x - 1), ((x * x).sum() - 0.25)[None]])


def _penalty_2(x: Tensor) -> Tensor:
    """Penalty II (24)."""
    n, a = len(x), 1e-5**0.5
    i = torch.arange(2, n + 1, dtype=x.dtype)
    y = (i / 10).exp() + ((i - 1) / 10).exp()
    e = (x / 10).exp()
    weights = torch.arange(n, 0, -1, dtype=x.dtype)
    middle = a * (e[1:] + e[:-1] - y)
    low = a * (e[1:] - torch.tensor(-0.1, dtype=x.dtype).exp())
    return torch.cat([(x[0] - 0.2)[None], middle, low, ((weights * x * x).sum() - 1)[None]])


def _rank_one_zero(x: Tensor) -> Tensor:
    """Linear, rank one, with zero columns and rows (34), m = 10."""
    n = len(x)
    inner = (torch.arange(2, n, dtype=x.dtype) * x[1:-1]).sum()
    rows = torch.arange(1, 9, dtype=x.dtype) * inner - 1
    return torch.cat([-torch.ones_like(x[:1]), rows, -torch.ones_like(x[:1])])


def _watson(x: Tensor) -> Tensor:
    return PROBLEMS["watson"].residual(x)


def _chebyquad(x: Tensor) -> Tensor:
    return PROBLEMS["chebyquad"].residual(x)


def _almost_linear(x: Tensor) -> Tensor:
    return PROBLEMS["brown_almost_linear"].residual(x)


MORE: list[tuple[str, Callable[[Tensor], Tensor], list[float], tuple[float, ...]]] = [
    ("gulf", _gulf, [5.0, 2.5, 0.15], (0.0, 0.038)),
    ("extended_powell", _extended_powell, [3.0, -1.0, 0.0, 1.0] * 3, (0.0,)),
    ("penalty_1_4", _penalty_1, [1.0, 2.0, 3.0, 4.0], (2.24997750e-5,)),
    ("penalty_1_10", _penalty_1, [float(k) for k in range(1, 11)], (7.08765149e-5,)),
    ("penalty_2_4", _penalty_2, [0.5] * 4, (9.37629301e-6,)),
    ("penalty_2_10", _penalty_2, [0.5] * 10, (2.93660545e-4,)),
    ("linear_rank_one_zero", _rank_one_zero, [1.0] * 5, ((10 * 10 + 3 * 10 - 6) / (2 * (2 * 10 - 3)),)),
    ("watson_9", _watson, [0.0] * 9, (1.39976013e-6,)),
    ("watson_12", _watson, [0.0] * 12, (4.72238e-10,)),
    ("chebyquad_9", _chebyquad, [j / 10 for j in range(1, 10)], (0.0,)),
    ("chebyquad_10", _chebyquad, [j / 11 for j in range(1, 11)], (4.77271369e-3, 6.50395e-3)),
    ("brown_almost_linear_30", _almost_linear, [0.5] * 30, (0.0, 1.0)),
]
