"""A fit of the shift and the bias, and the search for terrain that changed, in turn; then polished, and how well it is
known."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.change import HALF, MARGIN, changed, widened
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.fitting import FEWEST, Fitted, fit, through_levels
from mslsq.alignment.dem.heights import heights
from mslsq.alignment.dem.polish import polish
from mslsq.alignment.dem.trimmed import better, lopsided, not_excluded, outside_of_share
from mslsq.alignment.dem.uncertainty import Known, known

SHARES = 0.5, 0.35
"""Of the terrain, of which a fit begins from what the better one agrees on."""

WIDER, LEAST_LEFT = 3.0, 0.2
"""Times the margin beside changed terrain, to see what its border does to the heights; and the share of the pixels that
must be left then."""

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
    share: float = HALF
    """Of the terrain, that says what is typical."""


class Separated(NamedTuple):
    """A fit, and the terrain that it says has changed and was not fitted."""

    fitted: Fitted
    changed: Bool[Tensor, "height width"]
    share: float = HALF


def solve(
    pyramids: Pyramids, model: Bias, start: Solved, first: int, loss: str | None, changes: bool, held: bool = False
) -> Answer | None:
    """Through the levels from `first`, then fits and the search for changed terrain in turn, polished and judged."""
    found = _from_everywhere(pyramids, model, start, first, loss, changes, held)
    if changes and found is not None:
        if model.count > 1:
            found = _or_from_unchanged(pyramids, model, found, start, first, loss, held)
        for share in SHARES:
            found = _or_from_share(pyramids, model, found, loss, held, share)
    if found is None:
        return None
    answer = _answered(pyramids, model, found, loss, held)
    return _doubted(pyramids, model, answer) if changes else answer


def _doubted(pyramids: Pyramids, model: Bias, answer: Answer) -> Answer:
    """The answer, known no better than what changed is: by how much the heights follow its border, which fades out
    below noise, by a bias that explains the terrain as well, and by how lopsided what is left is."""
    covariance = answer.known.covariance.copy()
    still = Comparison.of(pyramids.unsmoothed, 0, model, ~widened(answer.changed)).valid(answer.at.shift)
    doubts = (
        _border(pyramids, model, answer),
        not_excluded(Comparison.of(pyramids, 0, model), answer.at),
        lopsided(still, answer.at, float(np.sqrt(covariance[2, 2]))),
    )
    for away in doubts:
        if away is not None:
            covariance[2:, 2:] += np.outer(away, away)
    return answer._replace(known=answer.known._replace(covariance=covariance))


def _border(pyramids: Pyramids, model: Bias, answer: Answer) -> Float[np.ndarray, " columns"] | None:
    """What a margin `WIDER` times as wide does to the heights; None where it leaves too little."""
    if not bool(answer.changed.any()):
        return None
    still = Comparison.of(pyramids.unsmoothed, 0, model, ~widened(answer.changed, WIDER * MARGIN)).valid(
        answer.at.shift
    )
    if len(still.pixels) < max(FEWEST, LEAST_LEFT * len(answer.fitted.samples.pixels)):
        return None
    return heights(still, answer.fitted.samples, answer.robust).at.bias - answer.at.bias


def _answered(pyramids: Pyramids, model: Bias, found: Separated, loss: str | None, held: bool = False) -> Answer:
    unsmoothed = Comparison.of(pyramids.unsmoothed, 0, model, ~widened(found.changed))
    answer = _answer(pyramids, found.fitted, unsmoothed, loss, found.changed, held)
    return answer._replace(share=found.share)


def _from_everywhere(
    pyramids: Pyramids, model: Bias, start: Solved, first: int, loss: str | None, changes: bool, held: bool
) -> Separated | None:
    """From a fit of all terrain."""
    fitted = through_levels(pyramids, model, start, first, loss, held)
    if fitted is None or not changes:
        return None if fitted is None else Separated(fitted, torch.zeros_like(pyramids.pair.stable))
    return _separated(pyramids, model, Separated(fitted, torch.zeros_like(pyramids.pair.stable)), loss, held)


def _separated(
    pyramids: Pyramids, model: Bias, found: Separated, loss: str | None, held: bool, share: float = HALF
) -> Separated | None:
    """Fits and the search for changed terrain in turn."""
    whole, fitted, moved = Comparison.of(pyramids, 0, model), found.fitted, found.changed
    for _ in range(CHANGES):
        last, moved = moved, changed(whole, fitted.at, share)
        if int((moved ^ last).sum()) <= 1e-3 * len(whole.pixels):
            break
        fitted = fit(Comparison.of(pyramids, 0, model, ~moved), fitted.at, loss, held)
        if fitted is None:
            return None
    return Separated(fitted, moved, share)


def _or_from_unchanged(
    pyramids: Pyramids, model: Bias, found: Separated, start: Solved, first: int, loss: str | None, held: bool
) -> Separated:
    """The better of two: a bias that follows the surface may follow terrain that changed, and hides it. What an offset
    alone leaves over shows both; a fit that begins without it keeps what the bias explains, and leaves the rest out.
    Of two ends that agree with themselves the one is taken that says more of the terrain (`trimmed.better`)."""
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
    return other if better(whole, found.fitted.at, other.fitted.at) else found


def _or_from_share(
    pyramids: Pyramids, model: Bias, found: Separated, loss: str | None, held: bool, share: float
) -> Separated:
    """The better of two again, the other from the bias that the better half, or a third, of the terrain agrees on."""
    whole = Comparison.of(pyramids, 0, model)
    half = outside_of_share(whole, found.fitted.at, share)
    if half is None:
        return found
    outside, at = half
    begun = fit(Comparison.of(pyramids, 0, model, ~outside), at, loss, held)
    other = None if begun is None else _separated(pyramids, model, Separated(begun, outside), loss, held, share)
    if other is None:
        return found
    return other if better(whole, found.fitted.at, other.fitted.at) else found


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
