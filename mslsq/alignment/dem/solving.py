"""A fit of the shift and the bias, and the search for terrain that changed, in turn; then polished, and how well it is
known."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.change import changed, widened, width_of_half
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.fitting import Fitted, fit, through_levels
from mslsq.alignment.dem.heights import heights
from mslsq.alignment.dem.polish import polish
from mslsq.alignment.dem.trimmed import outside_of_half
from mslsq.alignment.dem.uncertainty import Known, known

CHANGES = 5
"""Times that a fit and the search for changed terrain alternate at most."""


class Answer(NamedTuple):
    """A fit that was polished and judged."""

    fitted: Fitted
    at: Solved
    known: Known
    changed: Bool[Tensor, "height width"]
    held: bool
    settled: bool
    robust: Solved
    """Where the loss ended: the shift of `at`, and the bias that most pixels have."""


class Separated(NamedTuple):
    """A fit, and the terrain that it says has changed and was not fitted."""

    fitted: Fitted
    changed: Bool[Tensor, "height width"]


def solve(
    pyramids: Pyramids, model: Bias, start: Solved, first: int, loss: str | None, changes: bool, held: bool = False
) -> Answer | None:
    """Through the levels from `first`, then fits and the search for changed terrain in turn, polished and judged."""
    found = _from_everywhere(pyramids, model, start, first, loss, changes, held)
    if changes and model.count > 1 and found is not None:
        found = _or_from_unchanged(pyramids, model, found, start, first, loss, held)
        found = _or_from_half(pyramids, model, found, loss, held)
    return None if found is None else _answered(pyramids, model, found, loss, held)


def _answered(pyramids: Pyramids, model: Bias, found: Separated, loss: str | None, held: bool = False) -> Answer:
    unsmoothed = Comparison.of(pyramids.unsmoothed, 0, model, ~widened(found.changed))
    return _answer(pyramids, found.fitted, unsmoothed, loss, found.changed, held)


def _from_everywhere(
    pyramids: Pyramids, model: Bias, start: Solved, first: int, loss: str | None, changes: bool, held: bool
) -> Separated | None:
    """From a fit of all terrain."""
    fitted = through_levels(pyramids, model, start, first, loss, held)
    if fitted is None or not changes:
        return None if fitted is None else Separated(fitted, torch.zeros_like(pyramids.pair.stable))
    return _separated(pyramids, model, Separated(fitted, torch.zeros_like(pyramids.pair.stable)), loss, held)


def _separated(pyramids: Pyramids, model: Bias, found: Separated, loss: str | None, held: bool) -> Separated | None:
    """Fits and the search for changed terrain in turn."""
    whole, (fitted, moved) = Comparison.of(pyramids, 0, model), found
    for _ in range(CHANGES):
        last, moved = moved, changed(whole, fitted.at)
        if int((moved ^ last).sum()) <= 1e-3 * len(whole.pixels):
            break
        fitted = fit(Comparison.of(pyramids, 0, model, ~moved), fitted.at, loss, held)
        if fitted is None:
            return None
    return Separated(fitted, moved)


def _or_from_unchanged(
    pyramids: Pyramids, model: Bias, found: Separated, start: Solved, first: int, loss: str | None, held: bool
) -> Separated:
    """The better of two: a bias that follows the surface may follow terrain that changed, and hides it. What an offset
    alone leaves over shows both; a fit that begins without it keeps what the bias explains, and leaves the rest out.
    Of two ends that agree with themselves the one is taken whose larger half of residuals is the narrower (least median
    of squares; Rousseeuw, 1984)."""
    constant = Solved(start.shift, start.bias[:1])
    simple = _from_everywhere(pyramids, Bias(), constant, first, loss, True, held)
    if simple is None or not bool(simple.changed.any()):
        return found
    at = Solved(simple.fitted.at.shift, np.append(simple.fitted.at.bias, np.zeros(model.count - 1)))
    begun = fit(Comparison.of(pyramids, 0, model, ~simple.changed), at, loss, held)
    other = None if begun is None else _separated(pyramids, model, Separated(begun, simple.changed), loss, held)
    if other is None:
        return found
    whole = Comparison.of(pyramids, 0, model)
    return min(found, other, key=lambda one: width_of_half(whole, one.fitted.at))


def _or_from_half(pyramids: Pyramids, model: Bias, found: Separated, loss: str | None, held: bool) -> Separated:
    """The better of two again, the other from the bias that the better half of the terrain agrees on."""
    whole = Comparison.of(pyramids, 0, model)
    half = outside_of_half(whole, found.fitted.at)
    if half is None:
        return found
    outside, at = half
    begun = fit(Comparison.of(pyramids, 0, model, ~outside), at, loss, held)
    other = None if begun is None else _separated(pyramids, model, Separated(begun, outside), loss, held)
    if other is None:
        return found
    return min(found, other, key=lambda one: width_of_half(whole, one.fitted.at))


def solve_finest(
    pyramids: Pyramids, comparison: Comparison, unsmoothed: Comparison, start: Solved, loss: str | None
) -> Answer | None:
    """Of some samples of the finest level alone; `unsmoothed` are those of both models as they were given."""
    fitted = fit(comparison, start, loss)
    nowhere = torch.zeros(comparison.size, dtype=torch.bool, device="cpu")
    return None if fitted is None else _answer(pyramids, fitted, unsmoothed, loss, nowhere, False)


def _answer(
    pyramids: Pyramids, fitted: Fitted, unsmoothed: Comparison, loss: str | None, moved: Tensor, held: bool
) -> Answer:
    robust = polish(pyramids, fitted, loss, held).at
    refitted = heights(unsmoothed, fitted.samples, robust)
    found = known(pyramids, fitted.samples, robust, refitted, loss, fitted.scale, held)
    return Answer(fitted, refitted.at, found, moved, held, fitted.converged, robust)
