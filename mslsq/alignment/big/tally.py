"""Count, mean, median, NMAD and RMSE of numbers that come in parts, none of which is kept.

Numbers are counted in bins that are even in asinh((x - middle) / spread): a 2,500th of the spread wide near the
middle, and that share of the distance far from it, so that a class of outliers has its median as well.
"""

import numpy as np
from jaxtyping import Float

from mslsq.alignment.dem.change import HALF, normal_width

REACH, BINS = 26.0, 1 << 17
"""asinh of the farthest distance that is told from others, in spreads (1e11 of them); and how many bins."""


class Bins:
    """A scale of bins, shared by classes."""

    def __init__(self, middle: float, spread: float) -> None:
        self.middle, self.spread = middle, max(spread, 1e-12)
        edges = np.linspace(-REACH, REACH, BINS + 1)
        self.edges = middle + self.spread * np.sinh(edges)

    def of(self, values: Float[np.ndarray, " n"]) -> np.ndarray:
        """The bin of every number."""
        at = (np.arcsinh((values - self.middle) / self.spread) + REACH) * (BINS / (2 * REACH))
        return np.clip(at, 0, BINS - 1).astype(np.int32)


class Tally:
    """Of one class."""

    def __init__(self, bins: Bins) -> None:
        self.bins, self.count, self.total, self.squares = bins, 0, 0.0, 0.0
        self.held = np.zeros(BINS, dtype=np.int64)

    def add(self, values: Float[np.ndarray, " n"], bins: np.ndarray) -> None:
        """Some more numbers, with their bins."""
        self.count += len(values)
        self.total += float(values.sum())
        self.squares += float(values @ values)
        self.held += np.bincount(bins, minlength=BINS)

    def summary(self) -> dict[str, float]:
        """As `measures.summary`."""
        if not self.count:
            return {"count": 0, **dict.fromkeys(("mean", "median", "nmad", "rmse"), float("nan"))}
        used = np.flatnonzero(self.held)
        low, high, weight = self.bins.edges[used], self.bins.edges[used + 1], self.held[used].astype(float)
        median = _median(low, high, weight)
        # Bins folded about the median; that in which it lies is cut there.
        inside = (low < median) & (median < high)
        share = np.where(inside, (median - low) / (high - low), (high <= median).astype(float))
        below, above = weight * share, weight * (1 - share)
        ends = np.concatenate([median - np.minimum(high, median), np.maximum(low, median) - median])
        tops = np.concatenate([median - np.minimum(low, median), np.maximum(high, median) - median])
        weights = np.concatenate([below, above])
        away = _median(ends[weights > 0], tops[weights > 0], weights[weights > 0])
        return {
            "count": self.count,
            "mean": self.total / self.count,
            "median": median,
            "nmad": 1.4826 * away,
            "rmse": float(np.sqrt(self.squares / self.count)),
        }

    def mode(self, share: float = HALF) -> tuple[float, float]:
        """Middle and sigma of the larger part of the numbers: their shortest half, or another share of them, as
        `dem.change` finds it."""
        used = np.flatnonzero(self.held)
        ends = np.unique(np.concatenate([self.bins.edges[used], self.bins.edges[used + 1]]))
        below = np.zeros(len(ends))
        below[np.searchsorted(ends, self.bins.edges[used + 1])] = self.held[used]
        below = np.cumsum(below)
        part = share * self.count
        begins = ends[below <= self.count - part]
        last, middle = (np.interp(below[: len(begins)] + of * part, below, ends) for of in (1.0, 0.5))
        shortest = int(np.argmin(last - begins))
        return float(middle[shortest]), max(float((last - begins)[shortest]) / normal_width(share), 1e-9)


def _median(
    low: Float[np.ndarray, " bins"], high: Float[np.ndarray, " bins"], weight: Float[np.ndarray, " bins"]
) -> float:
    """Of numbers that lie evenly in bins, which may overlap: where half of the weight is below."""
    ends = np.unique(np.concatenate([low, high]))
    density = weight / np.maximum(high - low, 1e-300)
    change = np.zeros(len(ends))
    np.add.at(change, np.searchsorted(ends, low), density)
    np.add.at(change, np.searchsorted(ends, high), -density)
    sums = np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(ends))])
    return float(np.interp(0.5 * weight.sum(), sums, ends))
