"""`coregister`: an elevation model laid on another, shift and vertical bias in one least-squares problem."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.dem import choosing
from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.change import changed, widened, width_of_half
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.fitting import FEWEST, Fitted, fit, through_levels
from mslsq.alignment.dem.heights import heights
from mslsq.alignment.dem.pair import Pair, pair_of
from mslsq.alignment.dem.polish import polish
from mslsq.alignment.dem.result import Coregistration, CoregistrationStatus, corrected, on_grid, shifted
from mslsq.alignment.dem.starts import best_starts, overlap_of
from mslsq.alignment.dem.statistics import ElevationStatistics, statistics
from mslsq.alignment.dem.uncertainty import Known, known
from mslsq.alignment.objective import LOSSES
from mslsq.alignment.pyramid import depth
from mslsq.validation import integer, number, one_of

CHANGES = 5
"""Times that a fit and the search for changed terrain alternate at most."""

UNAMBIGUOUS = 0.9
"""Share of the best start's score above which a start elsewhere is a rival."""

CHANCE = 4.0
"""Standard deviations of chance that the gradients which both models share must exceed, in every direction."""

LARGEST_ERROR = 1.0
"""Pixels: a horizontal standard error beyond this is no answer."""


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


def coregister(
    reference: Any,
    dem: Any,
    *,
    pixel_size: float | Sequence[float] | None = None,
    georeferences: Sequence[Georeference] | None = None,
    mask: Any = None,
    dem_mask: Any = None,
    bias: str = "offset",
    loss: str | None = "tukey",
    levels: int | str = "auto",
    min_overlap: float = 0.1,
    find_changes: bool = True,
) -> Coregistration:
    """Find the shift in x, y and z, and the vertical bias, that lay an elevation model on a reference.

    All unknowns are estimated together, by robust least squares on differences of elevation, coarse to fine, in place
    of corrections one after the other: a tilt that is removed first takes a part of the shift with it. Method:
    `docs/guide/elevation.md`; for the classical alternative see Nuth and Kääb, The Cryosphere 5 (2011) 271-290.

    Args:
        reference: (height, width) elevations in metres; a tensor or an array, NaN (or masked) where there are none.
        dem: (rows, columns), the model to be moved, of the same pixel size; its size may differ.
        pixel_size: metres, a number or (dx, dy); rows go south, and both first pixels are at the same place.
        georeferences: (of the reference, of the model) instead. Of a CRS in degrees a pixel has the metres that it has
            in the middle of the reference; with `pixel_size` those.
        mask: (height, width) on the reference's grid, true where terrain is stable (`stable_terrain` makes one).
        dem_mask: (rows, columns), true where `dem` is to be used.
        bias: what a vertical error may depend on: "offset", or one or several of "plane", "quadratic", "cubic" (in x
            and y), "scale", "elevation" (linear, cubic in the elevation) joined by "+"; or "auto", which takes the
            simplest that predicts left-out blocks as well as any.
        loss: "tukey", "cauchy", "huber", "geman_mcclure", or None for least squares; their scale is from the MAD.
        levels: of the pyramid, or "auto".
        min_overlap: share of the smaller model's data that must be compared.
        find_changes: leave out terrain where neighbouring residuals agree that it changed.

    Returns:
        The shift in metres, standard errors, coefficients, statistics; a status and a reason where the terrain or the
        overlap does not allow an answer. It never raises for bad terrain.

    Raises:
        CoregistrationError: arguments that make no sense: no data at all, wrong shapes, pixels of no size or of
            different sizes, two CRS, unknown names.

    >>> import torch
    >>> from mslsq.alignment import coregister
    >>> x, y = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="xy")
    >>> hills = lambda x, y: 40 * torch.sin(x / 7) * torch.cos(y / 9) + 25 * torch.sin((x + 2 * y) / 23)
    >>> found = coregister(hills(x, y), hills(x + 0.5, y) - 3, pixel_size=10.0)
    >>> [round(metres) for metres in found.shift.tolist()]  # half a pixel to the east, 3 m up
    [5, 0, 3]
    """
    one_of("coregister: loss", loss, [None, *LOSSES], CoregistrationError)
    number("coregister: min_overlap", min_overlap, least=0.0, most=1.0, error=CoregistrationError)
    if levels != "auto":
        integer("coregister: levels", levels, 1, 12, otherwise="'auto'", error=CoregistrationError)
    model = choosing.LARGEST if bias == "auto" else Bias.named(bias)
    pair = pair_of(reference, dem, pixel_size, georeferences, mask, dem_mask)
    if int((pair.known & pair.stable).sum()) < FEWEST:
        return _nothing(pair, model, bias, CoregistrationStatus.NO_DATA, "The mask leaves no stable pixel with data.")
    count = depth(*(min(a, b) for a, b in zip(pair.known.shape, pair.dem_known.shape, strict=True)))
    pyramids = Pyramids.of(pair, count if levels == "auto" else min(int(levels), count))
    index, starts = best_starts(pyramids, model, min_overlap)
    if not starts:
        return _nothing(
            pair, model, bias, CoregistrationStatus.LITTLE_OVERLAP,
            f"No shift lets {min_overlap:.0%} of the smaller model's data overlap stable terrain; with at least "
            f"{FEWEST} pixels; check the georeferences and the mask, or lower min_overlap.",
        )  # fmt: skip
    answer = _solve(pyramids, model, starts[0].fitted.at, index, loss, find_changes)
    if bias == "auto" and answer is not None:
        bias = choosing.choose(
            answer.fitted.samples, answer.robust, loss, answer.fitted.scale, answer.known.block
        )  # fmt: skip
        start = Solved(answer.robust.shift, answer.robust.bias[Bias.named(bias).within(model)])
        model = Bias.named(bias)
        answer = _solve(pyramids, model, start, 0, loss, find_changes)
    reason = "" if answer is None else not_seen(answer, pair)
    if reason:
        nowhere = Solved(np.zeros(2), np.zeros(model.count))
        answer = _solve(pyramids, model, nowhere, 0, loss, find_changes, held=True)
    if answer is None:
        return _nothing(
            pair, model, bias, CoregistrationStatus.LITTLE_OVERLAP,
            f"Fewer than {FEWEST} stable pixels have data in both models.",
        )  # fmt: skip
    rivals = [start.score / starts[0].score for start in starts[1:2] if starts[0].score > 0]
    overlap = overlap_of(pyramids, 0, len(answer.fitted.samples.pixels))
    status, reason = _judged(answer, overlap, min_overlap, rivals, reason)
    return _result(pyramids, model, bias, answer, status, reason, overlap)


class Separated(NamedTuple):
    """A fit, and the terrain that it says has changed and was not fitted."""

    fitted: Fitted
    changed: Bool[Tensor, "height width"]


def _solve(
    pyramids: Pyramids, model: Bias, start: Solved, first: int, loss: str | None, changes: bool, held: bool = False
) -> Answer | None:
    """Through the levels from `first`, then fits and the search for changed terrain in turn, polished and judged."""
    found = _from_everywhere(pyramids, model, start, first, loss, changes, held)
    if changes and model.count > 1 and found is not None:
        found = _or_from_unchanged(pyramids, model, found, start, first, loss, held)
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


def solve_finest(
    pyramids: Pyramids, comparison: Comparison, unsmoothed: Comparison, start: Solved, loss: str | None
) -> Answer | None:
    """Of some samples of the finest level alone; `unsmoothed` are those of both models as they were given."""
    fitted = fit(comparison, start, loss)
    nowhere = torch.zeros(comparison.size, dtype=torch.bool)
    return None if fitted is None else _answer(pyramids, fitted, unsmoothed, loss, nowhere, False)


def _answer(
    pyramids: Pyramids, fitted: Fitted, unsmoothed: Comparison, loss: str | None, moved: Tensor, held: bool
) -> Answer:
    robust = polish(pyramids, fitted, loss, held).at
    refitted = heights(unsmoothed, fitted.samples, robust)
    found = known(pyramids, fitted.samples, robust, refitted, loss, fitted.scale, held)
    return Answer(fitted, refitted.at, found, moved, held, fitted.converged, robust)


def not_seen(answer: Answer, pair: Pair) -> str:
    """Why a horizontal shift is not known; nothing where it is."""
    found = answer.known
    errors = np.sqrt(np.diag(found.covariance[:2, :2]))
    if found.common <= CHANCE * found.by_chance:
        return (
            f"Only the vertical shift is known: in some direction the slopes of the two models have {found.common:.1%} "
            f"in common, where chance has {found.by_chance:.1%}. The terrain is flat, or an even slope, beside the "
            "noise, or the models do not show the same terrain."
        )
    if not np.isfinite(errors).all():
        return (
            f"Only the vertical shift is known: the overlap has {found.cells} cells with data, too few to say how "
            "well a horizontal one is."
        )
    if errors.max() > LARGEST_ERROR:
        return (
            f"Only the vertical shift is known: a horizontal one would have a standard error of {errors.max():.1f} "
            f"pixels ({errors.max() * pair.pixel:.1f} m)."
        )
    return ""


def _judged(
    answer: Answer, overlap: float, min_overlap: float, rivals: list[float], reason: str
) -> tuple[CoregistrationStatus, str]:
    if overlap < min_overlap:
        return (
            CoregistrationStatus.LITTLE_OVERLAP,
            f"{overlap:.0%} of the smaller model's data are compared, less than min_overlap={min_overlap:.0%}.",
        )
    if reason:
        return CoregistrationStatus.Z_ONLY, reason
    if not answer.settled:
        return CoregistrationStatus.NOT_CONVERGED, "The fit did not settle; try another bias model, or a mask."
    if rivals and rivals[0] > UNAMBIGUOUS:
        return (
            CoregistrationStatus.AMBIGUOUS,
            f"Another shift fits nearly as well (score {rivals[0]:.0%} of the best): the terrain repeats itself.",
        )
    return CoregistrationStatus.COREGISTERED, "Coregistered."


def _result(
    pyramids: Pyramids,
    model: Bias,
    name: str,
    answer: Answer,
    status: CoregistrationStatus,
    reason: str,
    overlap: float,
) -> Coregistration:
    pair, found = pyramids.pair, answer.known
    to_metres = np.eye(3)
    to_metres[:2, :2] = pair.metres
    covariance = to_metres @ found.covariance[:3, :3] @ to_metres.T
    shift = np.append(pair.to_metres(answer.at.shift), answer.at.bias[0])
    if answer.held:
        shift[:2] = np.nan
        covariance[:2], covariance[:, :2] = np.nan, np.nan
    errors = np.sqrt(np.diag(found.covariance)[2:])
    empty = ElevationStatistics({}, {}, {}, {})
    result = Coregistration(
        shift, covariance, dict(zip(model.names, answer.at.bias.tolist(), strict=True)),
        dict(zip(model.names, errors.tolist(), strict=True)), name, status, reason, overlap, answer.changed.numpy(),
        found.correlation_length * pair.pixel, empty, empty, pyramids.frame, pair.metres, pair.offset,
        (int(pair.known.shape[0]), int(pair.known.shape[1])), pair.header,
    )  # fmt: skip
    return _with_statistics(result, pair)


def _with_statistics(result: Coregistration, pair: Pair) -> Coregistration:
    """Of the differences dem - reference, before any shift and after."""
    nan = torch.full_like(pair.dem, float("nan"))
    dem = torch.where(pair.dem_known, pair.dem, nan)
    reference = torch.where(pair.known, pair.reference, torch.full_like(pair.reference, float("nan")))
    before = on_grid(dem, result.shape, pair.offset) - reference
    after = corrected(result, shifted(result, dem)) - reference
    of = lambda difference: statistics(  # noqa: E731
        difference.numpy(), reference.numpy(), pair.metres, pair.stable.numpy(), result.changed
    )
    return replace(result, before=of(before), after=of(after))


def _nothing(pair: Pair, model: Bias, name: str, status: CoregistrationStatus, reason: str) -> Coregistration:
    """A result that has a reason alone."""
    none = dict.fromkeys(model.names, float("nan"))
    height, width = (int(side) for side in pair.known.shape)
    nowhere = np.zeros((height, width), dtype=bool)
    nan = np.full((height, width), np.nan)
    empty = statistics(nan, pair.reference.numpy(), pair.metres, pair.stable.numpy(), nowhere)
    return Coregistration(
        np.full(3, np.nan), np.full((3, 3), np.nan), none, none, name, status, reason, 0.0,
        nowhere, float("nan"), empty, empty,
        Pyramids.of(pair, 1).frame, pair.metres, pair.offset, (height, width), pair.header,
    )  # fmt: skip
