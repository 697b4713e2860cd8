"""Where a search for the shift begins: whole pixels of a coarse level, over all shifts at once."""

from typing import NamedTuple

import numpy as np
import torch

from mslsq.alignment import starts
from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.fitting import Fitted, fit
from mslsq.alignment.measures import ncc_and_detail
from mslsq.alignment.sampling import sample_at

SEARCH_SIDE = 256
"""Pixels: the search is on the first level whose longer side is no more."""

DETAIL_SIGMA = 4.0
KEPT = 4
"""Candidates that are refined on that level."""

APART = 3.0
"""Pixels of the level: refined shifts closer than this are one."""


class Start(NamedTuple):
    """A refined candidate: its score is Fisher's z of the detail's correlation times √overlap."""

    fitted: Fitted
    score: float
    overlap: float


def search_level(pyramids: Pyramids) -> int:
    """The finest level that is small enough."""
    for index, level in enumerate(pyramids.reference):
        if max(level.size) <= SEARCH_SIDE:
            return index
    return len(pyramids.reference) - 1


def candidates(pyramids: Pyramids, index: int, min_overlap: float) -> list[np.ndarray]:
    """Shifts in pixels, best first, that of the georeferences among them."""
    reference, dem = pyramids.reference[index], pyramids.dem[index]
    offset, factor = pyramids.pair.offset, reference.factor
    given = torch.eye(3, dtype=torch.float64, device="cpu")
    given[:2, 2] = torch.from_numpy(offset / factor)
    found = starts.search(reference, dem, False, False, min_overlap)
    ranked = starts.rank([("given", given), *found], reference, dem, min_overlap)
    kept = starts.distinct(ranked, *reference.size)
    shifts = [offset - factor * start.matrix[:2, 2].numpy() for start in kept if start.overlap >= min_overlap]
    return [np.zeros(2), *[shift for shift in shifts if np.abs(shift).max() > APART * factor]]


def best_starts(pyramids: Pyramids, bias: Bias, min_overlap: float) -> tuple[int, list[Start]]:
    """The level of the search, and its refined candidates that overlap enough, best first."""
    index = search_level(pyramids)
    comparison = Comparison.of(pyramids, index, bias)
    found: list[Start] = []
    for shift in candidates(pyramids, index, min_overlap)[: KEPT + 1]:
        fitted = fit(comparison, Solved(shift, np.zeros(bias.count)), "cauchy", rounds=3)
        if fitted is None:
            continue
        start = _judged(pyramids, index, fitted)
        if start.overlap >= min_overlap:
            found.append(start)
    found.sort(key=lambda start: -start.score)
    apart: list[Start] = []
    for start in found:
        near = APART * comparison.factor
        if all(np.abs(start.fitted.at.shift - other.fitted.at.shift).max() > near for other in apart):
            apart.append(start)
    return index, apart


def _judged(pyramids: Pyramids, index: int, fitted: Fitted) -> Start:
    samples = fitted.samples.valid(fitted.at.shift)
    rows, columns = samples.pixels[:, 1].long(), samples.pixels[:, 0].long()
    known = torch.zeros(samples.size, dtype=torch.bool, device="cpu")
    known[rows, columns] = True
    fixed, moved = samples.target.new_zeros((2, 1, *samples.size))
    fixed[0, rows, columns] = samples.target
    moved[0, rows, columns] = sample_at(samples.dem.coefficients, samples.positions(fitted.at.shift))[0]
    _, detail = ncc_and_detail(moved, fixed, known, DETAIL_SIGMA)
    overlap = overlap_of(pyramids, index, len(samples.pixels))
    return Start(fitted, float(np.arctanh(np.clip(detail, -0.999, 0.999))) * overlap**0.5, overlap)


def overlap_of(pyramids: Pyramids, index: int, samples: int) -> float:
    """Compared pixels as a share of the smaller model's data."""
    smaller = min(int(pyramids.reference[index].mask.sum()), int(pyramids.dem[index].mask.sum()))
    return samples / max(smaller, 1)
