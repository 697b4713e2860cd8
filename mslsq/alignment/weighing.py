"""What speaks for a placement: the detail of blocks, their votes, and its lead over other places.

The lead takes longest, and is asked last, and only of what may be believed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mslsq.alignment.consensus import united
from mslsq.alignment.drift import drift
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.evidence import Evidence, clear, evidence, others_agree, strongest
from mslsq.alignment.leads import Pair, asked_lead
from mslsq.alignment.measures import corners, project
from mslsq.alignment.misfit import Misfit
from mslsq.alignment.models import MODELS
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.rivals import Standing
from mslsq.alignment.votes import elected, voting_level

VOTED = 0.2
"""Taken off the least correlation of edges where the votes of blocks are for a placement (`mslsq.alignment.votes`): in
another modality half of the edges have no like."""

VOTED_LEAD = 0.3
"""Of the lead that is asked over shifts, what is left where the votes are for it: what has moved fits elsewhere by as
much as it is large. It was 0.4 and more in scenes of which 30 % had moved (but of bricks), and 0.26 at most in windows
at night on others, which have the most votes of all without a match (the halves "choose")."""


FEW = 6.0
"""Blocks beyond the unknowns of the warp: fewer may all show one form that both scenes have in common. By edges other
suns, slices of heads and pictures in one round field had 4.9 at most, each on another."""

OTHERS = 0.5
"""What the other blocks must agree by, then: it was 0.45 at most where one was left of such a form. Of 165 placements
of maps with a match three are lost by that (half "choose" of `benchmarks/metric_pairs.py`)."""


STILL = 0.1
"""Pixels, root mean square over the corners: a map this near to where it was lies on the same pixels. What two other
scenes had in common of an instrument, at the same pixels of both, was laid at 0.06 px at most."""

BESIDE_MARKS = 0.8
"""What the blocks beside the strongest must agree by there, where parts alone speak for the placement. It was 0.73,
0.52, 0.34 and -0.11 for axes twice, hot pixels and a screenshot's header, and 0.86 and more for 14 of 15 scenes of
which 30 % had moved before a camera that had not (a wall of bricks: 0.69; the half "choose" of
`benchmarks/metric_pairs.py`)."""


NEARLY_STILL, BESIDE_MARKS_NEARLY = 1.0, 0.2
"""The same of a map that has moved by more than that, and by less than a pixel, as marks do where parts below them
pull: 0.0 of a screenshot's header, 0.35 and 0.46 of two scenes of which 30 % had moved."""


class Outgrown(NamedTuple):
    """What is known of a placement by a model that is too small, from the place of a larger one
    (`mslsq.alignment.outgrown`)."""

    misfit: Misfit
    standing: Standing
    """Of the larger model's place."""


def relieved(options: Options) -> tuple[float, float]:
    """The least correlation and the least detail of a placement that leads by `Metric.sure`, of one that has drifted,
    or that loops may still speak for."""
    of_ncc, of_detail = options.metric.relief
    return options.min_ncc - of_ncc, options.min_detail - of_detail


class Weighed(NamedTuple):
    """What speaks for a placement: the evidence, whether it suffices, its lead, and what was asked."""

    found: Evidence
    suffices: bool
    standing: Standing | None
    unknowns: int
    """Of the warp, that were fitted to what is seen."""
    min_ncc: float
    min_detail: float
    voted: bool = False
    """Is it the votes of blocks that speak for it?"""
    others: float | None = None
    """Of one form that both maps have in common, how well the blocks agree that do not show it."""
    marks: bool = False
    """May what agrees be marks of an instrument, at the same pixels of both? `others` is how well the rest agrees."""


def weighed(pair: Pair, estimate: Estimate, outgrown: Outgrown | None) -> Weighed:
    """What speaks for an estimate. Its lead is that of the larger model, where this one is too small."""
    options, unknowns = pair.options, MODELS[pair.options.model].tangent_dim
    plain, best = (options.min_ncc, options.min_detail), relieved(options)
    first = clear(pair.levels, options.prefilter)
    levels = pair.levels if options.metric.coarse else pair.levels[: first + 1]

    def by_blocks(
        levels: Sequence[PairLevel], standing: Standing | None, least: tuple[float, float], unknowns: int = unknowns
    ) -> Weighed:
        found = strongest(levels, estimate.matrix, least[1], first, unknowns, options.metric.arcs)
        return Weighed(*found, standing, unknowns, *least)

    if outgrown is not None:  # its parts fit better elsewhere, as the larger model has it
        return by_blocks(pair.levels, outgrown.standing, best)
    if not options.searches or options.min_lead == 0:
        return by_blocks(levels, None, plain)
    # Where a lead decides, other placements have been fitted by the same unknowns.
    hopeful = by_blocks(pair.levels, None, best, unknowns if options.metric.values else 0)

    def agreed() -> bool:
        return options.metric.values and united(pair.levels[first], estimate.matrix, options.min_detail, unknowns)

    def voted() -> bool:
        if not elected(voting_level(pair.levels, first), estimate.matrix, unknowns):
            return False
        # Not of a part of the scene alone: the median of the larger blocks must not be that of chance.
        return agreed() if options.metric.values else evidence(pair.levels[first], estimate.matrix).agreement >= best[1]

    by_votes = best[0] if options.metric.values else min(best[0], plain[0] - VOTED)
    hope = estimate.ncc >= best[0] and (hopeful.suffices or agreed())
    if not hope and (options.metric.values or estimate.ncc < by_votes or not voted()):
        return hopeful._replace(min_ncc=plain[0], min_detail=plain[1])
    asked = asked_lead(options, estimate.overlap)
    standing = pair.standing(estimate.matrix, asked)
    found, hopeful = by_blocks(levels, standing, plain), hopeful._replace(standing=standing)
    ahead, sure = standing.lead >= asked, standing.lead >= options.metric.sure
    enough = ahead and found.suffices and estimate.ncc >= found.min_ncc

    def beside(weighing: Weighed) -> Weighed:
        return _beside_marks(pair, first, estimate, _beside_a_form(pair.levels[first], estimate, unknowns, weighing))

    if options.metric.values and ahead:
        if enough:
            return found
        if agreed():
            return beside(found._replace(suffices=True))
        # Parts that do not agree where they are, and do elsewhere, are the same parts: the map has drifted.
        return beside(hopeful) if drift(pair.levels, estimate.matrix, first) > 0 else found
    if not options.metric.values and (enough or (hope and sure)):
        found = beside(hopeful if hope and sure else found)
        if found.suffices:
            return found
    if standing.lead >= VOTED_LEAD * asked and voted():
        voting = found._replace(suffices=True, min_ncc=by_votes, voted=True, others=None)
        return _beside_marks(pair, first, estimate, voting)
    return found


def _beside_a_form(level: PairLevel, estimate: Estimate, unknowns: int, weighing: Weighed) -> Weighed:
    """What agrees may be one form that two scenes have in common, the rim of a disc or of an aperture: where it is
    little, the blocks beside it must agree, too. (Values see what is inside, edges may not.)"""
    left = weighing.found.independent - unknowns
    if left >= FEW:
        return weighing
    others = others_agree(level, estimate.matrix)
    return weighing if left >= 1 and others >= OTHERS else weighing._replace(suffices=False, others=others)


def _beside_marks(pair: Pair, first: int, estimate: Estimate, weighing: Weighed) -> Weighed:
    """Where a map lies on the very pixels that it lay on, or nearly, and parts alone speak for that, they may be marks
    of an instrument: hot pixels of one sensor, the axes of two plots. So the blocks beside the strongest must agree,
    too.

    Edges are not asked: those of another modality do not, and two sensors of one camera may see the same pixels."""
    if not (pair.options.metric.values and weighing.suffices):
        return weighing
    moved = _moved_by(pair, estimate)
    if moved > NEARLY_STILL:
        return weighing
    others = others_agree(pair.levels[first], estimate.matrix)
    asked = BESIDE_MARKS if moved <= STILL else BESIDE_MARKS_NEARLY
    return weighing if others >= asked else weighing._replace(suffices=False, others=others, marks=True)


def _moved_by(pair: Pair, estimate: Estimate) -> float:
    """Pixels that the corners have moved by, root mean square; infinite for one that has left the finite numbers."""
    at = corners(*pair.reference[0].size, like=estimate.matrix)
    moved = (project(pair.pixels(0, estimate.matrix), at) - at).square().sum(-1).mean().sqrt()
    return float(torch.nan_to_num(moved, nan=math.inf))
