"""Does the finest level put a map where coarser ones do? What stays at the pixels pulls the finest place aside.

Where a map is what the model says, the place of coarser levels is that of the finest one, but for their larger errors.
Repeated pixels, a dither that is the same in both maps, and maps of few values say something else on the finest level,
which averages of pixels do not: their residuals look like noise, and were up to 330 stated errors off. How far the
places are apart is what is not known of them (a test of specification; Hausman, 1978), and part of the stated error.
The place stays: of maps of two values the coarser one is often worse.
"""

from dataclasses import dataclass

from mslsq.alignment.candidates import CERTAIN
from mslsq.alignment.estimate import Estimate, judge, sane
from mslsq.alignment.leads import WIDE, Pair
from mslsq.alignment.measures import corner_error
from mslsq.alignment.refine import refine
from mslsq.alignment.twice import way_of
from mslsq.alignment.uncertainty import corner_sigma, tangent_covariance

COARSER = 1, 2
"""The levels that are asked."""

MOVED = 2.5
"""Standard errors of the finest place by which it is away from that of the next level, from which the errors of coarser
ones are asked: none of 111 pairs without any of this moved farther, and 75 of the 78 that were more than three off (the
half "choose")."""

PULLED = 1.2
"""The same, from which a pair is looked at for a grain (`mslsq.alignment.grain`): some three of four plain pairs have
less."""

STEPS = 15
"""Of a solve on a coarser level."""

APART = 2.5
"""Standard errors of a coarser place, from which the two are apart: 1.9 at most of 110 pairs of nine kinds without any
of this (the half "choose")."""


@dataclass(frozen=True)
class Apart:
    """How far a coarser level puts the corners, in pixels, and the side of its samples; 0 where it does not say."""

    pixels: float = 0.0
    side: float = 0.0
    moved: float = 0.0
    """Standard errors of the place that the finest level has moved it by."""

    @property
    def sentence(self) -> str:
        """To be added to a reason."""
        return (
            f" Averages of {self.side:.0f} x {self.side:.0f} pixels put it {self.pixels:.2g} px away, as where pixels "
            "that repeat, a dither or few values pull at it: the place is known to that."
        )


AGREES = Apart()


def coarser_place(pair: Pair, estimate: Estimate, sigma: float, least: float) -> Apart:
    """How far coarser levels put a place whose standard error is `sigma`, where that is more than errors explain, and
    more than the `least` that is known of it already.

    Their places are where their solves have ended on the way to the finest, to a tenth of their standard errors; or
    where one from the finest place ends, if that scores higher: of maps that were searched for, another hypothesis may
    have led there, 150 px away. Where that overlaps by little, its score counts for less, as of a lead: a sixth of a
    face agreed by chance with another part of it, by 0.99. Nor does it say anything where a finer level has preferred
    the place, and this one is certain of it: 79 % of a nebula agreed 176 px away on a level of 4 px alone.
    """
    next_one = pair.ends.get(COARSER[0])
    if next_one is None:
        return AGREES
    # Corners at ±1 are moved by the norm of what the matrices differ by, in the root mean square.
    moved = float((next_one.matrix - estimate.matrix).norm()) * pair.frame.half / max(sigma, 1e-300)
    found = Apart(moved=moved)
    if not moved > max(MOVED, least / max(sigma, 1e-300)):
        return found
    options, size, stands = pair.options, pair.reference[0].size, False
    here = pair.pixels(0, estimate.matrix)
    turns = way_of(here, size) is None
    for position in COARSER:
        there = pair.ends.get(position)
        if there is None:
            break
        level, reference = pair.levels[position], pair.reference[position]
        away = corner_error(pair.pixels(0, there.matrix), here, *size)
        if away <= level.factor:
            stands = True
        else:
            (again,) = refine([estimate], level, options.model, options.loss, pair.freedom, STEPS, "coarse")
            ends = [judge(each, level) for each in (there, again.estimate) if sane(each)]
            there = max(ends, key=lambda each: each.score * min(each.overlap / WIDE, 1.0) ** 0.5)
            local = ends[-1] if sane(again.estimate) else None
            if stands and local is not None and (turns or local.certainty >= CERTAIN):
                there = local
            stands = there is local
            away = corner_error(pair.pixels(0, there.matrix), here, *size)
        if not away > max(sigma, least, found.pixels):
            continue
        covariance = tangent_covariance(there, level, options, pair.freedom, reference=reference)
        if away > APART * corner_sigma(there, covariance, pair.frame, options.model):
            found = Apart(away, level.factor, moved)
    return found
