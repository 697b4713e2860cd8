"""NIST's statistical reference data sets for nonlinear regression (StRD): reader and models.

Each ``.dat`` file states a model in words, two starts, the certified parameters with their standard deviations, the
certified residual sum of squares, and the data. :func:`read` turns one into a :class:`Regression`; ``MODELS`` has the
models of all 27 sets as plain PyTorch functions ``model(p, t)`` of one parameter vector (n,) and the predictor (m,),
of Nelson two predictors (m, 2).

Source: National Institute of Standards and Technology, https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.datasets import nist_models
from mslsq.datasets.nist_models import Model

__all__ = ["MODELS", "MalformedFileError", "Regression", "read"]

MODELS: dict[str, Model] = nist_models.MODELS
"""The model functions by the name of their set: ``model(p, t)``."""


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
    t: Float[Tensor, "points *predictors"]
    """(points,); where there are two predictors (points, 2)."""
    y: Float[Tensor, "points"]
    """What the model is of: the response, or its logarithm (Nelson)."""

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
    if any(re.search(r"\blog\[y\]\s*=", text) for text in lines):
        y = [math.log(value) if value > 0 else math.nan for value in y]

    line, match = _find(
        path, lines, r"Number of Observations:\s*(\d+)\s*$", "the line 'Number of Observations: <count>'"
    )
    if int(match.group(1)) != len(y):
        raise MalformedFileError(f"{path}:{line}: {match.group(1)} observations are announced, but {len(y)} follow")
    line, match = _find(path, lines, r"\s*(\d+)\s+Parameters?\b", "the line '<count> Parameters (b1 to ...)'")
    if int(match.group(1)) != len(certified):
        announced = match.group(1)
        raise MalformedFileError(f"{path}:{line}: {announced} parameters are announced, but {len(certified)} are given")

    def column(values: list[float] | list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device="cpu")

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


def _read_data(path: Path, lines: list[str]) -> tuple[list[float], list[float] | list[list[float]]]:
    """The column of the response and that of the predictor, or those of two, after the heading ``Data:  y  x``."""
    heading, match = _find(
        path,
        lines,
        r"Data:\s*y\s+(x|x1\s+x2)\s*$",
        "the heading 'Data:  y  x' (or 'y  x1  x2') of one response and one or two predictors",
    )
    count = len(match.group(1).split())
    columns = f"one response and {('one predictor', 'two predictors')[count - 1]}"
    rows = [
        _numbers(path, number, line, 1 + count, columns)
        for number, line in enumerate(lines[heading:], start=heading + 1)
        if line.strip()
    ]
    if not rows:
        raise MalformedFileError(
            f"{path}:{max(len(lines), 1)}: the file ends without data after the heading in line {heading}"
        )
    return [row[0] for row in rows], [row[1] if count == 1 else row[1:] for row in rows]  # pyright: ignore[reportReturnType]


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
