"""NIST's statistical reference data sets for nonlinear regression (StRD): reader and models.

Each ``.dat`` file states a model in words, two starts, the certified parameters with their standard deviations, the
certified residual sum of squares, and the data. :func:`read` turns one into a :class:`Regression`; the models of
fourteen sets are here as plain PyTorch functions ``model(p, t)`` of one parameter vector (n,) and the predictor (m,).

Source: National Institute of Standards and Technology, https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["MODELS", "MalformedFileError", "Regression", "read"]

Model = Callable[[Float[Tensor, "parameters"], Float[Tensor, "points"]], Float[Tensor, "points"]]


class MalformedFileError(ValueError):
    """A data file that does not follow its format; the message begins with ``file:line:``."""


@dataclass(frozen=True)
class Regression:
    """One certified nonlinear regression; all tensors are float64 on the CPU."""

    name: str
    starts: Float[Tensor, "2 parameters"]
    """The far and the near start."""
    certified: Float[Tensor, "parameters"]
    standard_deviations: Float[Tensor, "parameters"]
    residual_sum_of_squares: float
    """Σ (y − model)² at the certified parameters, twice the cost of a solve."""
    residual_standard_deviation: float
    t: Float[Tensor, "points"]
    y: Float[Tensor, "points"]

    @property
    def model(self) -> Model:
        """The set's model function; a ``KeyError`` that lists the known ones for any other set."""
        if self.name not in MODELS:
            raise KeyError(f"no model for the NIST set {self.name!r}; there are models for {', '.join(MODELS)}")
        return MODELS[self.name]

    def residual(self, p: Float[Tensor, "parameters"]) -> Float[Tensor, "points"]:
        """model(p, t) − y, in the dtype of p."""
        return self.model(p, self.t.to(p)) - self.y.to(p)

    def digits(self, p: Float[Tensor, "parameters"]) -> float:
        """NIST's score: the correct digits of the worst parameter, from 0 to 11 (as many are certified)."""
        relative = ((p.to(self.certified) - self.certified) / self.certified).abs().max().item()
        if math.isnan(relative):
            return 0.0
        return min(max(-math.log10(max(relative, 1e-300)), 0.0), 11.0)


def read(path: str | Path) -> Regression:
    """Read one StRD file.

    Raises:
        FileNotFoundError: there is no such file.
        MalformedFileError: something is missing, unreadable or contradicts the file's own counts; the message names
            the file, the line, what was expected and what stands there.

    >>> regression = read("shared/data/nist/Misra1a.dat")  # doctest: +SKIP
    >>> regression.model(regression.certified, regression.t)  # doctest: +SKIP
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        where = path.read_bytes()[: error.start].count(b"\n") + 1
        raise MalformedFileError(f"{path}:{where}: not ASCII text, so not a NIST StRD file") from None

    name = _find(path, lines, r"Dataset Name:\s*(\w+)", "the line 'Dataset Name: ...'")[1].group(1)
    starts, certified, deviations = _read_parameters(path, lines)
    rss = _read_certified(path, lines, "Residual Sum of Squares")
    rsd = _read_certified(path, lines, "Residual Standard Deviation")
    y, t = _read_data(path, lines)

    line, match = _find(
        path, lines, r"Number of Observations:\s*(\d+)\s*$", "the line 'Number of Observations: <count>'"
    )
    if int(match.group(1)) != len(y):
        raise MalformedFileError(f"{path}:{line}: {match.group(1)} observations are announced, but {len(y)} follow")
    line, match = _find(path, lines, r"\s*(\d+)\s+Parameters?\b", "the line '<count> Parameters (b1 to ...)'")
    if int(match.group(1)) != len(certified):
        announced = match.group(1)
        raise MalformedFileError(f"{path}:{line}: {announced} parameters are announced, but {len(certified)} are given")

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return Regression(
        name=name,
        starts=torch.stack([column([pair[0] for pair in starts]), column([pair[1] for pair in starts])]),
        certified=column(certified),
        standard_deviations=column(deviations),
        residual_sum_of_squares=rss,
        residual_standard_deviation=rsd,
        t=column(t),
        y=column(y),
    )


def _read_parameters(path: Path, lines: list[str]) -> tuple[list[tuple[float, float]], list[float], list[float]]:
    """The rows ``b1 = start1 start2 certified deviation``."""
    starts, certified, deviations = [], [], []
    for number, line in enumerate(lines, start=1):
        match = re.match(r"\s*b(\d+)\s*=(.*)$", line)
        if match is None:
            continue
        if int(match.group(1)) != len(starts) + 1:
            raise MalformedFileError(f"{path}:{number}: expected b{len(starts) + 1} = ..., got {line.strip()!r}")
        row = _numbers(path, number, match.group(2), 4, "two starts, the certified value and its standard deviation")
        starts.append((row[0], row[1]))
        certified.append(row[2])
        deviations.append(row[3])
    if not starts:
        raise MalformedFileError(
            f"{path}:{max(len(lines), 1)}: the file ends without a parameter row "
            "'b1 = <start 1> <start 2> <certified> <deviation>'"
        )
    return starts, certified, deviations


def _read_certified(path: Path, lines: list[str], what: str) -> float:
    line, match = _find(path, lines, rf"{what}:(.*)$", f"the line '{what}: <number>'")
    return _numbers(path, line, match.group(1), 1, what.lower())[0]


def _read_data(path: Path, lines: list[str]) -> tuple[list[float], list[float]]:
    """The two columns after the heading ``Data:  y  x``."""
    heading, _ = _find(path, lines, r"Data:\s*y\s+x\s*$", "the heading 'Data:  y  x' of one response and one predictor")
    y, t = [], []
    for number, line in enumerate(lines[heading:], start=heading + 1):
        if line.strip():
            row = _numbers(path, number, line, 2, "one response and one predictor")
            y.append(row[0])
            t.append(row[1])
    if not y:
        raise MalformedFileError(
            f"{path}:{max(len(lines), 1)}: the file ends without data after the heading in line {heading}"
        )
    return y, t


def _find(path: Path, lines: list[str], pattern: str, what: str) -> tuple[int, re.Match[str]]:
    """The first line that matches, with its number."""
    for number, line in enumerate(lines, start=1):
        match = re.match(pattern, line)
        if match is not None:
            return number, match
    raise MalformedFileError(
        f"{path}:{max(len(lines), 1)}: the file ends without {what}; is it a NIST StRD regression file?"
    )


def _numbers(path: Path, line: int, text: str, count: int, what: str) -> list[float]:
    words = text.split()
    if len(words) != count:
        raise MalformedFileError(f"{path}:{line}: expected {what} ({count} numbers), got {text.strip()!r}")
    values = []
    for word in words:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise MalformedFileError(f"{path}:{line}: {word!r} is not a finite number, in {text.strip()!r} ({what})")
        values.append(value)
    return values


def _saturating_exponential(p: Tensor, t: Tensor) -> Tensor:
    """b1 (1 − exp(−b2 t)), by expm1: Misra1a has b2 t down to 0.04."""
    return -p[0] * (-p[1] * t).expm1()


def _misra1b(p: Tensor, t: Tensor) -> Tensor:
    """b1 (1 − (1 + b2 t/2)⁻²)"""
    return p[0] * (1 - (1 + p[1] * t / 2) ** -2)


def _chwirut(p: Tensor, t: Tensor) -> Tensor:
    """exp(−b1 t)/(b2 + b3 t)"""
    return (-p[0] * t).exp() / (p[1] + p[2] * t)


def _three_exponentials(p: Tensor, t: Tensor) -> Tensor:
    """b1 exp(−b2 t) + b3 exp(−b4 t) + b5 exp(−b6 t)"""
    return p[0] * (-p[1] * t).exp() + p[2] * (-p[3] * t).exp() + p[4] * (-p[5] * t).exp()


def _two_gaussians(p: Tensor, t: Tensor) -> Tensor:
    """b1 exp(−b2 t) + b3 exp(−(t − b4)²/b5²) + b6 exp(−(t − b7)²/b8²)"""
    first = p[2] * (-(((t - p[3]) / p[4]) ** 2)).exp()
    second = p[5] * (-(((t - p[6]) / p[7]) ** 2)).exp()
    return p[0] * (-p[1] * t).exp() + first + second


def _power(p: Tensor, t: Tensor) -> Tensor:
    """b1 t^b2"""
    return p[0] * t ** p[1]


def _quadratic_over_quadratic(p: Tensor, t: Tensor) -> Tensor:
    """(b1 + b2 t + b3 t²)/(1 + b4 t + b5 t²)"""
    return (p[0] + t * (p[1] + t * p[2])) / (1 + t * (p[3] + t * p[4]))


def _cubic_over_cubic(p: Tensor, t: Tensor) -> Tensor:
    """(b1 + b2 t + b3 t² + b4 t³)/(1 + b5 t + b6 t² + b7 t³)"""
    return (p[0] + t * (p[1] + t * (p[2] + t * p[3]))) / (1 + t * (p[4] + t * (p[5] + t * p[6])))


def _two_decays(p: Tensor, t: Tensor) -> Tensor:
    """b1 + b2 exp(−b4 t) + b3 exp(−b5 t)"""
    return p[0] + p[1] * (-p[3] * t).exp() + p[2] * (-p[4] * t).exp()


def _enso(p: Tensor, t: Tensor) -> Tensor:
    """b1 plus three cycles: of 12 months (b2, b3), of b4 months (b5, b6) and of b7 months (b8, b9)."""
    angle = 2 * math.pi * t

    def cycle(cosine: Tensor, sine: Tensor, phase: Tensor) -> Tensor:
        return cosine * phase.cos() + sine * phase.sin()

    return p[0] + cycle(p[1], p[2], angle / 12) + cycle(p[4], p[5], angle / p[3]) + cycle(p[7], p[8], angle / p[6])


MODELS: dict[str, Model] = {
    "Misra1a": _saturating_exponential,
    "Misra1b": _misra1b,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "Lanczos3": _three_exponentials,
    "Gauss1": _two_gaussians,
    "Gauss2": _two_gaussians,
    "DanWood": _power,
    "Kirby2": _quadratic_over_quadratic,
    "Hahn1": _cubic_over_cubic,
    "MGH17": _two_decays,
    "ENSO": _enso,
    "Thurber": _cubic_over_cubic,
    "BoxBOD": _saturating_exponential,
}
"""Model functions by the name of the set, from NIST's lower to its higher level of difficulty."""
