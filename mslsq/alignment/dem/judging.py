"""What an answer is worth: whether the terrain shows a shift, whether it is the only one, and what headers say."""

import numpy as np

from mslsq.alignment.dem.pair import Pair
from mslsq.alignment.dem.result import CoregistrationStatus
from mslsq.alignment.dem.solving import Answer

UNAMBIGUOUS = 0.9
"""Share of the best start's score above which a start elsewhere is a rival."""

CHANCE = 4.0
"""Standard deviations of chance that the gradients which both models share must exceed, in every direction."""

KEPT = 0.5
"""Of a model's outline, what a shift must leave in place: a header that is farther off is about something else, and
terrain that agrees there says so against it."""

LARGEST_ERROR = 1.0
"""Pixels: a horizontal standard error beyond this is no answer."""


def not_seen(answer: Answer, pair: Pair) -> str:
    """Why a horizontal shift is not known; nothing where it is."""
    found = answer.known
    errors = np.sqrt(np.diag(found.covariance[:2, :2]))
    if found.common <= CHANCE * found.by_chance:
        return (
            "Only the vertical shift is known: in some direction the slopes of the two models have "
            f"{max(found.common, 0.0):.1%} in common, where chance has {max(found.by_chance, 0.0):.1%}. The terrain is "
            "flat, or an even slope, beside the noise, or the models do not show the same terrain."
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


def too_far(answer: Answer, pair: Pair, max_shift: float | str) -> str:
    """Why headers, or the user, forbid a shift; nothing where they do not."""
    metres = float(np.hypot(*pair.to_metres(answer.at.shift)))
    if max_shift != "auto":
        if metres <= float(max_shift):
            return ""
        return f"The models agree best after a shift of {metres:,.0f} m, more than max_shift={float(max_shift):,g} m."
    rows, columns = pair.dem.shape
    kept = np.clip(1 - np.abs(answer.at.shift) / [columns, rows], 0, 1).prod()
    if pair.header is None or kept >= KEPT:
        return ""
    return (
        f"The models agree after a shift of {metres:,.0f} m, and their georeferences say otherwise: of dem's outline "
        f"as its header has it {kept:.0%} would stay in place. Is the header right? If it is that wrong, allow the "
        f"shift by max_shift={1000 * np.ceil(metres / 1000):.0f} (metres)."
    )


def judged(
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
