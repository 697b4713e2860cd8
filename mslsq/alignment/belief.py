"""Is the end of a search believed? Overlap, detail, convergence, and that no other placement fits as well."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

import mslsq
from mslsq.alignment.coarser import AGREES, PULLED, Apart, coarser_place
from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.dissent import doubt as doubt_of_parts
from mslsq.alignment.dissent import form_alone
from mslsq.alignment.drift import drift, even
from mslsq.alignment.estimate import Estimate, with_overlap
from mslsq.alignment.evenness import unevenness
from mslsq.alignment.evidence import Evidence, clear
from mslsq.alignment.leads import Pair, asked_lead, asked_over_turns
from mslsq.alignment.misfit import FITS, Misfit, larger_models, misfit
from mslsq.alignment.models import MODELS
from mslsq.alignment.options import Options
from mslsq.alignment.passes import NormalEquations
from mslsq.alignment.pulls import are_tailed, by_blocks
from mslsq.alignment.refine import Refined
from mslsq.alignment.repeats import FAR_AHEAD, REPEATED, repeated
from mslsq.alignment.result import MapStatus, Stage
from mslsq.alignment.rivals import Standing
from mslsq.alignment.twice import seen_twice, way_of
from mslsq.alignment.uncertainty import corner_sigma, tangent_covariance
from mslsq.alignment.vague import why_vague
from mslsq.alignment.weighing import VOTED_LEAD, Outgrown, Weighed, weighed

COARSE = 3
"""Halvings: where detail agrees on such a level alone, it is not noise that hides the finer one (averages of 64 pixels
hold an eighth of it), and the residuals of the finest level say nothing of the error."""

FAR_OFF = 3.0
"""Standard errors, as noise has them, that the corners are off by where a larger model fits, from which that alone says
how well the place is known: what blocks pull by is then the misfit itself."""

DRIFT = 2.0
"""Samples of such a level: the least standard error of the corners. Floor plans bent by 6 px (no rigid fit is better
than 5 px) were placed 16 and 19 px off where detail of 8 px agreed: half of the map lay on itself, the rest beside."""


@dataclass(frozen=True)
class Placed:
    """The result for one pair; in the standardised values that the pair was given in."""

    status: MapStatus
    warp: Float[Tensor, "3 3"]
    value: Float[Tensor, "2"]
    covariance: Float[Tensor, "tangent tangent"]
    """NaN where the placement is refused, but for one that is still possible."""
    ncc: float
    detail: float
    """The agreement of `evidence`; NaN where it was not asked."""
    lead: float
    """Of `rivals`; NaN where it was not asked."""
    overlap: float
    corner_sigma: float
    stages: list[Stage]
    reason: str
    drift: float = 0.0
    """Pixels that the corners are off by, as parts of the maps have it that fit better elsewhere, or larger models; 0
    without."""
    fitting: str = ""
    """The larger model that fits, where the one asked for does not (`misfit.Misfit.model`)."""
    marks: bool = False
    """Is it refused as what agrees may be marks of an instrument, at the same pixels of both maps?"""
    pulled: bool = False
    """May something at the pixels pull at it? The finest level has moved it by more than noise mostly does, or its
    residuals have tails."""
    apart: Apart = AGREES
    """What coarser levels say of what stays at the pixels."""
    uneven: float = 0.0
    """Which share of the residuals varies slowly over the map; 0 where the model does not fit, or parts do not
    agree."""

    @property
    def estimate(self) -> Estimate:
        """The warp and the values, as a solve has them."""
        return Estimate(self.warp, self.value, "placed")


NAN = float("nan")


class Precision(NamedTuple):
    """How well a placement is determined."""

    covariance: Float[Tensor, "tangent tangent"]
    sigma: float
    """Standard error of the corners, in pixels."""
    off: float
    """How far they have drifted, or are off by a larger model."""
    reason: str
    fitting: str
    """The larger model that fits, if this one does not."""
    place: Estimate
    """Where the maps lie on each other: as the larger model has it, where this one does not fit."""
    known: float
    """Standard error of the corners there, of that model. What is off by the smaller one is no doubt of the place."""
    apart: Apart
    """How far coarser levels put it, and how far the finest one has moved it."""


def refused(
    pair: Pair,
    estimate: Estimate,
    stages: list[Stage],
    status: MapStatus,
    why: str = "",
    detail: float = NAN,
    lead: float = NAN,
    precision: Precision | None = None,
    better: Misfit = FITS,
    marks: bool = False,
) -> Placed:
    """A placement that is not believed, with the reason in words; `precision` of one that is still possible; the
    `better` model that is known to fit."""
    tangent = MODELS[pair.options.model].tangent_dim
    covariance, sigma, off = (
        (estimate.matrix.new_full((tangent, tangent), NAN), NAN, 0.0) if precision is None else precision[:3]
    )
    reason = f"{status.sentence} {why}".rstrip() + better.sentence
    found = estimate.ncc, detail, lead, estimate.overlap
    figures = covariance, *found, sigma
    return Placed(status, estimate.matrix, estimate.value, *figures, stages, reason, off, better.model, marks)


def believed(
    pair: Pair, estimate: Estimate, leader: Refined, stages: list[Stage], outgrown: Outgrown | None = None
) -> Placed:
    """The estimate with how well it is determined, or why it is not believed. `leader` is the solve it came from; of a
    model that is known to be too small, on a coarse level."""
    estimate = with_overlap(estimate, pair.levels[0])
    if estimate.overlap < pair.options.min_overlap:
        why = f"(The best found overlaps {estimate.overlap:.0%}, {pair.options.min_overlap:.0%} is asked.)"
        return refused(pair, estimate, stages, MapStatus.NO_OVERLAP, why)
    if not pair.allows(estimate.matrix):
        low, high = pair.stretch(estimate.matrix)
        why = "(It is {:.3g} to {:.3g}; {:.3g} to {:.3g} is allowed.)".format(
            low, high, *pair.options.scale_range or ()
        )
        return refused(pair, estimate, stages, MapStatus.WRONG_SCALE, why)
    weighing = weighed(pair, estimate, outgrown)
    found, standing = weighing.found, weighing.standing
    ahead = NAN if standing is None else standing.lead
    asked = asked_lead(pair.options, estimate.overlap)
    least = VOTED_LEAD * asked if weighing.voted else asked
    doubt = _doubt(pair.options, estimate, None if outgrown else leader, weighing) or _rivalry(standing, least)
    # Where it stands out, and its detail is a little too weak, loops through other maps may tell. Not of ambiguous
    # ones: where a texture repeats, loops close on wrong bricks too.
    # Nor of one form in two scenes: the rim of an aperture closes them, too.
    possible = standing is not None and standing.lead >= asked and leader.status not in UNFINISHED
    possible = possible and weighing.others is None
    precision = _precision(pair, estimate, leader, found, outgrown) if doubt is None or possible else None
    if precision is not None and standing is not None:
        # The places along an arc are told from others by their precision, so that it is known first.
        turned = pair.rival_turned(precision.place.matrix, pair.sure(precision.place, precision.known))
        rivals = [(standing, asked), *([] if turned is None else [(turned, asked_over_turns(pair.options))])]
        contested = None if turned is None else _rivalry(*rivals[1])
        if contested is None and doubt is None and outgrown is None:
            contested = _repetition(pair, estimate, rivals)
        if contested is not None:
            doubt, precision = contested, None
    if doubt is not None:
        better = FITS if outgrown is None else outgrown.misfit
        marks = weighing.marks
        return refused(pair, estimate, stages, *doubt, found.agreement, ahead, precision, better, marks)
    assert precision is not None  # it is asked of all that is not doubted
    covariance, sigma, off, reason, fitting, _, _, apart = precision
    # Maps that bend, drift or do not fit the model disagree in parts, too; that has been said.
    parts = pair.options.metric.values and off == 0 and not fitting and not pair.options.bends
    at = clear(pair.levels, pair.options.prefilter), estimate.matrix
    if parts and pair.options.searches and (form := form_alone(pair.levels, *at)):
        return refused(pair, estimate, stages, MapStatus.AMBIGUOUS, form, found.agreement, ahead)
    if not sigma < 2 * pair.frame.half:  # less may be mended by a curve of values or by edges, and is judged after them
        vague = why_vague(sigma, pair.frame, reason)
        unknown = refused(pair, estimate, stages, MapStatus.AMBIGUOUS, vague, found.agreement, ahead)
        return replace(unknown, fitting=fitting)
    figures = estimate.ncc, found.agreement, ahead, estimate.overlap, sigma
    placed = MapStatus.ALIGNED, estimate.matrix, estimate.value, covariance
    uneven = unevenness(pair.levels[0], estimate) if pair.options.metric.values and off == 0 and not fitting else 0.0
    reason += doubt_of_parts(pair.levels, *at) if parts else ""
    reason += seen_twice(pair.levels[0], estimate, way_of(pair.pixels(0, estimate.matrix), pair.reference[0].size))
    pulled = pair.options.metric.values and (apart.moved > PULLED or are_tailed(estimate, pair.levels[0]))
    return Placed(*placed, *figures, stages, reason, off, fitting, pulled=pulled, apart=apart, uneven=uneven)


def _doubt(
    options: Options, estimate: Estimate, leader: Refined | None, weighing: Weighed
) -> tuple[MapStatus, str] | None:
    """What speaks against a placement by itself: its detail, or a solve without an end (None where that says
    nothing)."""
    found = weighing.found
    if weighing.marks:
        why = (
            f"(It lies on the same pixels as before, and beside its strongest blocks agrees by {weighing.others:.2f}: "
            "what agrees may be marks of an instrument, as hot pixels, axes or a header. Mask them, or say "
            'init="identity" if both were seen from one place.)'
        )
        return MapStatus.AMBIGUOUS, why
    if weighing.others is not None:
        why = (
            f"(The {found.blocks} strongest blocks may show one form that both maps have in common; the others agree "
            f"by {weighing.others:.2f}.)"
        )
        return MapStatus.LOW_CORRELATION, why
    if estimate.ncc < weighing.min_ncc or not weighing.suffices:
        why = (
            f"(The best found, over an overlap of {estimate.overlap:.0%}, has {estimate.ncc:.2f}, and "
            f"{found.agreement:.2f} in the detail of its {found.blocks} strongest blocks; {weighing.min_ncc:.2f} and "
            f"{found.asked(weighing.min_detail, weighing.unknowns):.2f} are asked.)"
        )
        return MapStatus.LOW_CORRELATION, why
    # To a sample of a coarse level, the place where the steps ran out on the finest is as good as its minimum.
    near = leader is None or found.position >= COARSE or leader.crept(options.correlated)
    if leader is not None and leader.status in UNFINISHED and not (near and leader.status == mslsq.Status.MAX_STEPS):
        return MapStatus.NOT_CONVERGED, leader.status.sentence
    return None


def _rivalry(standing: Standing | None, least: float) -> tuple[MapStatus, str] | None:
    """What other placements say against it, where they were asked."""
    if standing is None or standing.lead >= least:
        return None
    why = (
        f"({_where(standing)} the map scores {standing.rival:.2f}, here {standing.score:.2f}: a lead of "
        f"{standing.lead:.2f}; {least:.2f} is asked.)"
    )
    return MapStatus.AMBIGUOUS, why


def _repetition(
    pair: Pair, estimate: Estimate, rivals: Sequence[tuple[Standing, float]]
) -> tuple[MapStatus, str] | None:
    """What other places, each with the lead that is asked over it, say against one that leads them by its ends
    alone."""
    for standing, asked in rivals:
        if standing.lead >= FAR_AHEAD * asked:
            continue
        share = repeated(pair, estimate, standing, clear(pair.levels, pair.options.prefilter))
        if share >= REPEATED:
            alike = f"{share:.0%} of the blocks that agree here agree there, too: what is seen repeats itself"
            return MapStatus.AMBIGUOUS, f"({_where(standing)}: {alike}.)"
    return None


def _where(standing: Standing) -> str:
    """Where a rival lies."""
    x, y = standing.shift
    return f"Turned by {standing.turn:.0f}°" if standing.turn else f"Moved by ({x:.0f}, {y:.0f}) px"


def _precision(
    pair: Pair, estimate: Estimate, leader: Refined, found: Evidence, outgrown: Outgrown | None
) -> Precision:
    """How well it is determined, and what is to be said of that."""
    # A solve that ended no better than it began was taken back: its normal equations are of another place.
    normal = leader.normal if leader.estimate.matrix is estimate.matrix and outgrown is None else None
    options = pair.options
    # Of a model that has been outgrown a coarse level tells the shape, which is scaled to how far it is off.
    covariance, sigma = _determined(pair, estimate, options, 0 if outgrown is None else pair.searched, normal)
    reason = MapStatus.ALIGNED.sentence
    size = pair.levels[found.position].factor
    first = clear(pair.levels, options.prefilter)
    off, better = 0.0, FITS if outgrown is None else outgrown.misfit
    if outgrown is None and not options.bends:
        better = misfit(pair.levels, estimate, options, pair.freedom, first, pair.fitting)
        # Where a larger model agrees in every part, it is not the map that has drifted.
        if better.warp is None or not even(pair.levels[first], better.warp):
            off = drift(pair.levels, estimate.matrix, first)
    elsewhere = better.warp is not None and pair.before_horizon(better.warp)
    if outgrown is None and not (elsewhere and better.off > FAR_OFF * sigma):
        covariance, sigma = _pulled(pair, estimate, options, covariance, sigma)
    drifted = max(off, DRIFT * size if found.position >= COARSE else 0.0)
    least = max(drifted, better.off)
    if found.position >= COARSE:
        reason += f" Only detail of {size} px and more agrees, as in maps that have drifted."
    elif off > sigma:
        reason += " Parts of it fit better elsewhere, as in maps that have drifted."
    reason += better.sentence
    place, known = estimate, sigma
    if better.warp is not None and elsewhere:
        place = replace(estimate, matrix=better.warp)
        largest = replace(options, model=larger_models(options.model)[-1])
        shape, known = _determined(pair, place, largest, pair.searched)
        known = known if pair.searched else _pulled(pair, place, largest, shape, known)[1]
    apart = AGREES if outgrown is not None or options.bends else coarser_place(pair, estimate, sigma, least)
    if least > sigma and least >= apart.pixels:
        reason += f" The place is known to some {least:.2g} px."
        covariance, sigma = covariance * (least / sigma) ** 2, least
    elif apart.pixels > sigma:
        reason += apart.sentence
        covariance, sigma = covariance * (apart.pixels / sigma) ** 2, apart.pixels
    return Precision(covariance, sigma, least, reason, better.model, place, max(known, drifted), apart)


def _determined(
    pair: Pair, estimate: Estimate, options: Options, position: int, normal: NormalEquations | None = None
) -> tuple[Float[Tensor, "tangent tangent"], float]:
    """The covariance of a place, and the standard error of its corners, as noise of the pixels of one level has them.
    (A coarse level's are too large: its samples are less correlated than those that are prefiltered.)"""
    level, reference = pair.levels[position], pair.reference[position]
    covariance = tangent_covariance(estimate, level, options, pair.freedom, normal, reference)
    return covariance, corner_sigma(estimate, covariance, pair.frame, options.model)


def _pulled(
    pair: Pair, estimate: Estimate, options: Options, covariance: Float[Tensor, "tangent tangent"], sigma: float
) -> tuple[Float[Tensor, "tangent tangent"], float]:
    """The same of the finest level, whichever is more of what noise has and what the pulls of blocks say."""
    if not options.metric.values:
        return covariance, sigma
    for seen in by_blocks(estimate, pair.levels[0], options, pair.freedom, pair.reference[0]):
        wide = corner_sigma(estimate, seen, pair.frame, options.model)
        if wide > sigma:
            covariance, sigma = seen, wide
    return covariance, sigma
