"""One hypothesis about a pair of maps, and how it is judged on a level."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment import starts
from mslsq.alignment.models import Frame
from mslsq.alignment.pair_level import PairLevel, correlations
from mslsq.alignment.passes import LARGEST_LOG_GAIN
from mslsq.kernels import Kernel, may_read

_SPREADS_OF_BOTH = Kernel("spreads_of_both", "nnTT?d")

CORNERS = (-1.0, -1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (0.0, 0.0, 1.0)
"""Of the reference's square in normalised coordinates, and its middle."""


@dataclass(frozen=True)
class Estimate:
    """One hypothesis: a warp (normalised matrix), its values, and how it does on the level it was last judged on."""

    matrix: Float[Tensor, "3 3"]
    value: Float[Tensor, "2"]
    origin: str
    ncc: float = 0.0
    detail: float = 0.0
    overlap: float = 0.0

    @property
    def certainty(self) -> float:
        """The mean of the correlations of the whole and of the detail."""
        return 0.5 * (self.ncc + self.detail)

    @property
    def score(self) -> float:
        """As `starts.Start.score`, of the certainty."""
        return starts.Start(self.origin, self.matrix, self.certainty, self.overlap).score


def judge(estimate: Estimate, level: PairLevel) -> Estimate:
    """The estimate with its masked correlations and overlap on this level."""
    return replace(estimate, **level.judgement(estimate.matrix))


def with_overlap(estimate: Estimate, level: PairLevel) -> Estimate:
    """The estimate with correlation and overlap alone: at a third of the time, where nothing is decided by them."""
    return replace(estimate, **level.kept("overlap", estimate.matrix, level.overlapping))


def with_values(estimate: Estimate, level: PairLevel, freedom: Float[Tensor, "2"]) -> Estimate:
    """Gain and bias from the means and standard deviations over the overlap: the start of the joint refinement.

    The ratio of standard deviations, not the regression slope: it is positive, and noise does not attenuate it.
    """
    count, (wide, high), (spread, mean) = _spreads(level, *level.look(estimate.matrix))
    if count < 2:
        return replace(estimate, value=torch.zeros_like(estimate.value))
    ratio = wide / max(spread, 1e-9)
    log_gain = 0.0 if math.isnan(ratio) else math.log(min(max(ratio, math.exp(-3)), math.exp(3))) * float(freedom[0])
    bias = (high - math.exp(log_gain) * mean) * float(freedom[1])
    return replace(estimate, value=estimate.value.new_tensor([log_gain, bias]))


def _spreads(
    level: PairLevel, sampled: Float[Tensor, "n channels"], valid: Bool[Tensor, " n"]
) -> tuple[int, tuple[float, float], tuple[float, float]]:
    """How many numbers are valid in both maps, and standard deviation and mean of the reference's and of the map's."""
    values = sampled.T
    if may_read(values, level.planes, valid) and values.dtype == level.planes.dtype:
        found = np.empty(5)
        _SPREADS_OF_BOTH(*values.shape, level.planes, values.contiguous(), valid, found)
        count, wide, high, spread, mean = found.tolist()
        return int(count), (wide, high), (spread, mean)
    of_both = [numbers[valid].reshape(-1) for numbers in (level.target, sampled)]
    count = of_both[0].numel()
    if count < 2:
        return count, (0.0, 0.0), (0.0, 0.0)
    (wide, high), (spread, mean) = (map(float, torch.std_mean(numbers)) for numbers in of_both)
    return count, (wide, high), (spread, mean)


def sane(estimate: Estimate) -> bool:
    """Are warp and values finite, the gain a number whose square there is, and is the warp not turned over?"""
    rows, value = estimate.matrix.tolist(), estimate.value.tolist()
    if not all(math.isfinite(entry) for row in [*rows, value] for entry in row) or value[0] > LARGEST_LOG_GAIN:
        return False
    (a, b, _), (c, d, _), (g, h, i) = rows
    if i == 0 or (a * d - b * c) / i**2 < 0.02:
        return False
    return all(g * x + h * y + i > 1e-9 for x, y, _ in CORNERS)


def moved_share(estimate: Estimate, level: PairLevel, frozen: Bool[Tensor, " n"]) -> float:
    """Which share of the samples that a solve froze is valid no more, or newly so."""
    return int((level.look(estimate.matrix)[1] ^ frozen).count_nonzero()) / max(int(frozen.count_nonzero()), 1)


def no_worse(new: Estimate, old: Estimate, level: PairLevel, frozen: Bool[Tensor, " n"], min_overlap: float) -> bool:
    """May the new estimate replace the old? Judged on samples valid in both, so that shrinking the overlap never pays.

    The correlations of the whole and of the detail over that intersection must not fall (by more than rounding), nor
    the overlap below `min_overlap` where it was above, nor may the warp have turned over or left the finite numbers.
    """
    if not sane(new):
        return False
    sampled, valid = level.look(new.matrix)
    before, _ = level.look(old.matrix)
    both = valid & frozen
    if level.share(valid, new.matrix) < min_overlap <= level.share(frozen, old.matrix) or int(both.sum()) < 16:
        return False
    return sum(correlations(sampled, both, level)) >= sum(correlations(before, both, level)) - 2e-3


def apart(ranked: Sequence[Estimate], frame: Frame) -> list[Estimate]:
    """In order, without those whose corners are within two pixels of an earlier one's."""
    if len(ranked) == 1:
        return list(ranked)
    kept: list[tuple[Estimate, list[complex]]] = []
    for estimate in ranked:
        where = _corners_under(estimate.matrix.tolist())
        distances = (sum(abs(z - other) for z, other in zip(where, there, strict=True)) for _, there in kept)
        if all(not distance / 4 * frame.half <= 2.0 for distance in distances):
            kept.append((estimate, where))
    return [estimate for estimate, _ in kept]


def _corners_under(matrix: list[list[float]]) -> list[complex]:
    """Where a warp takes the corners of the reference, as x + iy; NaN for one on or behind the horizon."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    out = []
    for x, y, _ in CORNERS[:4]:
        depth = g * x + h * y + i
        ahead = depth > 1e-9
        out.append(complex((a * x + b * y + c) / depth, (d * x + e * y + f) / depth) if ahead else complex(math.nan, 0))
    return out
