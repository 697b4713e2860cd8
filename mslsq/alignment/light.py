"""Where values leave residuals that vary slowly over the map, as light and curves of values do: the place without them.

Least squares spends the place on what gain and bias do not explain: a vignette that both maps have, or a lamp beside
one, moved it by up to a pixel, 13 stated errors. So local means are taken from the residuals, and the next solve
ends where the rest of them has it; the means are those at the place that is left, so that this is done again until
little more is to come. What is still to come, as a geometric series has it, is added to the error that is stated.
(`metric="auto"` asks edges there, which light leaves alone.) A gamma was up to 11 stated errors off: where a curve of
values explains what is left, and no light does, the place is that along the curve (`mslsq.alignment.along_curves`).
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mslsq.alignment import grain
from mslsq.alignment.along_curves import AlongCurves
from mslsq.alignment.curves import Curve, curve_between, is_curved
from mslsq.alignment.estimate import Estimate, sane
from mslsq.alignment.evenness import UNEVEN, slow_part
from mslsq.alignment.linking import NEAR, Linked, Linker
from mslsq.alignment.metrics import SquaredDifference
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.refine import refine
from mslsq.alignment.spread import of_objects

STEPS, ROUNDS = 10, 4
"""Of each solve, which begins near its end; and solves at most."""

DOUBTED = 0.1
"""Share of the residuals' energy that varies slowly, below which nothing is asked: 0.04 to 0.09 under a gain and a bias
alone, 0.11 to 0.8 under a gamma (the half "choose" of `benchmarks/metric_pairs.py`)."""

LIT = 0.5
"""Share of the residuals' energy that varies slowly, from which it is taken for light. It was 0.75 to 0.95 under a
vignette, a lamp or clouds, 0.2 to 0.5 where 30 % of a scene had moved, 0.2 to 0.8 under a gamma (a curve of values
explains more of that, and less of light: the halves "choose" of `benchmarks/light.py` and `metric_pairs.py`)."""

SETTLED = 0.2
"""Standard errors: after a shorter way no other solve follows."""

SHRINKS = 0.75
"""At most, by what each way is shorter than the one before."""


def is_lit(level: PairLevel, estimate: Estimate, uneven: float) -> bool:
    """Is it light that the residuals of a placement vary slowly by, as that share of them does?"""
    return uneven >= LIT and not of_objects(estimate, level) and _explained(curve_between(level, estimate)) < uneven


def _explained(curve: Curve | None) -> float:
    """The share of the residuals' energy that a curve of values explains."""
    return 0.0 if curve is None else curve.explained


def link(linker: Linker, fixed: int, moving: int, initial: Tensor | None = None) -> Linked:
    """`grain.link`, without what a gain and a bias do not explain."""
    return evened(*grain.link(linker, fixed, moving, initial))


def evened(linker: Linker, linked: Linked) -> Linked:
    """Without what a gain and a bias do not explain, if that is a curve of values or light; else with what it may have
    done in the error: of values, as they are or inverted, where the model fits and parts agree."""
    placed, uneven = linked.placed, linked.placed.uneven
    values = isinstance(linker.options.metric, SquaredDifference)
    if not (placed.status.ok and values) or linker.options.bends or uneven < DOUBTED:
        return linked
    level = linker.finest(linked.fixed, linked.moving)
    curve, doubt = curve_between(level, placed.estimate), 0.0
    explained = _explained(curve)
    lit = uneven >= LIT and explained < uneven and not of_objects(placed.estimate, level)
    if not lit and is_curved(level, placed.estimate, curve):
        bent = AlongCurves(linker, linked, NEAR * max(level.size)).placed()
        if bent.share < UNEVEN:
            return bent.linked
        doubt = linker.apart(bent.linked, linked)
        linked = linked if doubt > 0 else bent.linked  # with a wider error, where no curve's place is believed
    slow = uneven >= LIT or (uneven >= UNEVEN and explained >= uneven) or doubt > 0
    return _lit(linker, linked, level, lit, doubt) if slow else linked  # the loss deals with what has moved


def _lit(linker: Linker, linked: Linked, level: PairLevel, lit: bool, doubt: float) -> Linked:
    """Without what varies slowly in the residuals, if that is light; else with how far that would move it, and with
    another `doubt` in pixels, in the error."""
    placed = linked.placed
    there, ways = _without_slow_part(linker, linked, level)
    moved = linker.apart(there, linked)
    settles = lit and bool(ways) and ways[-1] <= ways[0] and moved <= NEAR * max(level.size)
    rest = float(to_come(ways[-1], ways[-2] if len(ways) > 1 else 0.0)) if settles else moved
    sigma = math.hypot(placed.corner_sigma, rest, doubt)
    how = "light does" if lit else "light or a curve of values has them"
    why = f" Of its residuals {placed.uneven:.0%} vary slowly over the map, as {how}: "
    why += f"without them it lies {moved:.2g} px away" + (", and is placed there." if settles else ".")
    found = there if settles else linked
    stated = replace(
        found.placed,
        covariance=placed.covariance * (sigma / placed.corner_sigma) ** 2,
        corner_sigma=sigma,
        reason=placed.reason + why,
    )
    return replace(found, placed=stated)


def to_come(last: ArrayLike, before: ArrayLike) -> Any:
    """Of the ways of two solves, one after the other, what follows them as a geometric series has it."""
    shrinks = np.minimum(last / np.maximum(before, 1e-300), SHRINKS)
    return last * shrinks / (1 - shrinks)


def _without_slow_part(linker: Linker, linked: Linked, level: PairLevel) -> tuple[Linked, list[float]]:
    """Where solves without local means end, one after the other, and the pixels at the corners between them. Gain and
    bias stay: the means are as much theirs."""
    options, frame, ways, at = linker.comparison, linker.frame(linked.fixed), [], linked
    freedom = level.planes.new_tensor(options.freedom)
    estimate = linked.placed.estimate
    for _ in range(ROUNDS):
        even = replace(level, planes=level.planes + slow_part(level, estimate), _last={})
        (found,) = refine([estimate], even, options.model, None, freedom, STEPS, "finest")
        if not sane(found.estimate):
            break
        estimate = found.estimate
        placed = replace(at.placed, warp=estimate.matrix)
        there = replace(at, placed=placed, transform=frame.to_pixels(estimate.matrix))
        ways.append(linker.apart(there, at))
        at = there
        if ways[-1] < SETTLED * linked.placed.corner_sigma:
            break
    return at, ways
