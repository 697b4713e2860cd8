"""Is a place known well enough to be called one? What its stated error, at the end of all that widens it, says."""

from mslsq.alignment.models import Frame
from mslsq.alignment.result import MapStatus

SHARE = 0.1
"""Of the reference's longer side: the standard error of the corners from which a place is not known. Of 2,400 true
pairs of twelve kinds (half "claim") two are lost by it, which stated 0.18 and 1.1, and three that lay elsewhere; of 208
scenes none. Forms and headers that were laid on others, and nothing else, were known to 0.14, 0.22 and 1.2. Of
homographies that overlap by 15 to 40 % it was 0.01 at most."""


def why_vague(sigma: float, frame: Frame, said: str) -> str:
    """What speaks against a place with this standard error of the reference's corners, in pixels, and what has been
    said of it, which may have widened that; empty if nothing does."""
    side = 2 * frame.half
    if sigma < SHARE * side:
        return ""
    # It may be anywhere along that direction: the end of one line on another, in two charts that have nothing else.
    undetermined = "(Its detail leaves a direction of the place undetermined.)"
    known = (
        f"(The place is known to {sigma:.2g} px alone, {sigma / side:.0%} of the reference's side; neither a start nor "
        "min_lead changes that, more detail in common does.)"
    )
    return (known if sigma < side else undetermined) + said.removeprefix(MapStatus.ALIGNED.sentence)
