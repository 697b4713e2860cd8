"""Is the model too small, as the level has it that starts are searched on? Then other starts and finer levels need not
be asked.

A translation on a turned map agrees nowhere well: it was searched for in every place on every level, at four to seven
times the time of the model that fits. So before a search the degrees of freedom go on growing, from the places where
the model has ended. If the largest model agrees there, in every part, and stands out from all other places, then the
place is known, and the model is either right there (and goes on to finer levels) or too small.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mslsq.alignment.candidates import CERTAIN
from mslsq.alignment.drift import even
from mslsq.alignment.estimate import Estimate, apart, judge, sane
from mslsq.alignment.evidence import clear
from mslsq.alignment.leads import Pair, asked_lead
from mslsq.alignment.misfit import STEPS, Misfit, Nesting, larger_models, may_be_too_small
from mslsq.alignment.refine import Refined, refine
from mslsq.alignment.weighing import Outgrown

STEPS_BETWEEN = 5
"""Of a model between the one that is asked for and the largest, on the coarsest level, where it only leads on."""

SEEN = 0.1
"""Samples of that level: by how much a larger model must move the corners. Less is for finer levels to tell."""

SURELY = 0.25
"""The same, from which that level alone says so. Below, the next finer one must reject the model, too: threads that a
coarse level has samples too few for moved the corners by 0.1 of them, where the model was right."""

FINER = 1
"""Halvings from that level to the one on which all parts must agree: a place that is known to a tenth of a sample
there is known to a fifth of a sample of this one."""


class Instead(NamedTuple):
    """What the model itself makes of the place where the largest one agrees."""

    estimate: Estimate
    leader: Refined
    outgrown: Outgrown | None
    """None where the model fits there."""


def by_chance(pair: Pair, estimate: Estimate, position: int) -> float:
    """The probability of as large a score of the model on this level, where it fits; 1 where it is not asked."""
    if pair.options.bends or not may_be_too_small(pair.options, pair.levels):
        return 1.0
    return Nesting(pair.levels, pair.options, pair.freedom, position).by_chance(pair.levels[position], estimate)


def instead(pair: Pair, estimates: Sequence[Estimate], position: int, grow: bool) -> Instead | None:
    """The place where the largest model agrees on a level; None if that is nowhere.

    Args:
        estimates: of the model that is asked for, on this level, or where it is to `grow` on the coarsest one.
    """
    if pair.options.bends or not may_be_too_small(pair.options, pair.levels):
        return None
    largest = _largest(pair, estimates, position, grow)
    if largest is None:
        return None
    level, loss = pair.levels[position], pair.options.loss if position else None
    (leader,) = refine([largest], level, pair.options.model, loss, pair.freedom, STEPS, "coarse")
    if not sane(leader.estimate):
        return None
    own = judge(leader.estimate, level)
    first = max(position, clear(pair.levels, pair.options.prefilter))
    nesting = Nesting(pair.levels, pair.options, pair.freedom, first)
    off, noise = nesting.apart(own, largest), nesting.noise(largest)
    if off < SEEN * level.factor or not nesting.rejected(own, pair.options.model, largest, noise):
        return Instead(own, leader, None)
    if off < SURELY * level.factor and not nesting.rejects(_finer(pair, position), own, largest):
        return Instead(own, leader, None)
    asked = asked_lead(pair.options, largest.overlap)
    standing = pair.standing(largest.matrix, asked)
    if standing.lead < asked:
        return None
    return Instead(own, leader, Outgrown(Misfit(off, nesting.smallest(largest, noise), largest.matrix), standing))


def _largest(pair: Pair, estimates: Sequence[Estimate], position: int, grow: bool) -> Estimate | None:
    """The largest model, if it is certain on the level and agrees in every part."""
    names, coarsest = larger_models(pair.options.model), len(pair.levels) - 1
    found = list(estimates)
    for at in range(coarsest if grow else position, position - 1, -1):
        level, loss = pair.levels[at], pair.options.loss if at else None
        for name in names if grow and at == coarsest else names[-1:]:
            steps = STEPS if name == names[-1] else STEPS_BETWEEN
            refined = refine(found, level, name, loss, pair.freedom, steps, "coarse")
            found = [one.estimate for one in refined if sane(one.estimate)]
    judged = apart(sorted((judge(one, level) for one in found), key=lambda h: -h.score), pair.frame)
    if not judged or judged[0].detail < CERTAIN or judged[0].overlap < pair.least(position):
        return None
    if not pair.allows(judged[0].matrix):
        return None
    # A bend of a pixel or two is hardly one on this level, and leaves parts that agree less on a finer one.
    return judged[0] if even(pair.levels[_finer(pair, position)], judged[0].matrix) else None


def _finer(pair: Pair, position: int) -> int:
    """The next finer level, where a prefilter leaves detail on it."""
    return max(position - FINER, min(position, clear(pair.levels, pair.options.prefilter)))
