"""Does what agrees repeat itself, so that it agrees elsewhere as well?

In a row of equal rooms, one room farther on, all but the ends agree. By its score the row leads there by two or three,
as the ends do not fit; and where they are is how far each robot has seen. So the map is moved to where the best other
place is: of the blocks that agree at the placement (`mslsq.alignment.consensus`), those that agree there, too, show
what repeats itself. What has moved is no repetition: its blocks agree in one of the two places. Nor do blocks repeat
that differ by noise alone here, and by far more there: stains tell the squares of a chessboard.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.consensus import ENOUGH, ENTIRELY, SIDE
from mslsq.alignment.estimate import Estimate, sane
from mslsq.alignment.evidence import compared_in
from mslsq.alignment.grids import similarity_about, translation
from mslsq.alignment.leads import Pair
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.refine import refine
from mslsq.alignment.rivals import Standing
from mslsq.alignment.spread import residual_at

REPEATED = 0.6
"""Share of the blocks that agree at a placement from which it is one of several. Of some 250 placements of maps with a
match (half "choose" of `benchmarks/alignment_truth.py` and `benchmarks/metric_pairs.py`) it was at most 0.58 (windows
at night), of rows of equal rooms 0.67 and more."""

FAR_AHEAD = 4.0
"""Times the lead that is asked over shifts: of a placement that leads by more nothing is asked, as it takes a tenth of
a pair's time. Rows of three to five rooms led by 2 to 5."""

AS_WELL = 0.03
"""By how much less a block may agree there: an equal one agrees as well, but for its interpolation."""

HIDDEN = 0.5
"""Of the blocks, which must agree for that: of fewer it is not specks alone that hide the rest."""

AROUND = tuple((x, y) for y in (-1.0, 0.0, 1.0) for x in (-1.0, 0.0, 1.0))
"""Samples: shifts that are compared on a level, as the place is known to a sample of the coarser one. (From some
samples off, where thin walls alone fit, a solve goes astray.)"""

STEPS = 5
"""Of the solve on the finest level."""

SETTLES = 15
"""Of the solve of the warp there, before what it leaves is compared with noise: 0.2 px aside would leave more."""

NOISE_ALONE, MORE, FEW = 1.5, 10.0, 0.1
"""Times the white noise of both maps: in the median of the blocks that seem to repeat at a placement, and in all but a
few of them where its rival lies, from which they do not. There all but a tenth had 34 and 46 times of it in two
chessboards with stains (looked at: they are of the half "claim"), 0.5 to 5.4 in 20 towers of which many windows are
alike (half "choose"), and once in equal rooms."""

ALIKE = 0.5
"""Where the maps correlate by less on the next coarser level, the rival is not asked: few blocks can agree there."""


def repeated(pair: Pair, estimate: Estimate, rival: Standing, first: int) -> float:
    """Of the blocks of the level `first` that agree under a placement, the share that agrees as well where the rival
    lies, over the share of all that agrees: where specks hide half of the blocks here, they hide others there. 0 where
    few agree."""
    finest = pair.levels[first]
    here = _agreement(finest, estimate.matrix)
    agreeing = here >= ENTIRELY
    if agreeing.sum() < ENOUGH:
        return 0.0
    moved = _moved_to(pair, estimate, rival, first)
    if moved is None:
        return 0.0
    there = _agreement(finest, moved)
    as_well = agreeing & (there >= np.maximum(here - AS_WELL, ENTIRELY))
    share = float(as_well.sum() / agreeing.sum() / max(agreeing.sum() / (here > -1).sum(), HIDDEN))
    other = replace(estimate, matrix=moved)
    return 0.0 if share >= REPEATED and _differs(pair, estimate, other, finest, as_well) else share


def _differs(
    pair: Pair, here: Estimate, there: Estimate, level: PairLevel, blocks: Bool[np.ndarray, "rows columns"]
) -> bool:
    """Do two maps differ by their noise alone at one place, and at the best one around another by far more in most of
    the `blocks` that seem to repeat? Not at the ends of what repeats, which may be as far as each map has seen."""
    noise = level.noise.variance + level.moving.noise.variance * math.exp(2 * float(here.value[0]))
    if not noise > 0 or float(np.median(_squares(here, level)[blocks])) > NOISE_ALONE * noise:
        return False
    held = torch.zeros_like(pair.freedom)  # a gain and a bias are those of the maps, wherever they lie
    (solved,) = refine([there], level, pair.options.model, "cauchy", held, SETTLES, "finest")
    return sane(solved.estimate) and float(np.quantile(_squares(solved.estimate, level)[blocks], FEW)) >= MORE * noise


def _squares(estimate: Estimate, level: PairLevel) -> Float[np.ndarray, "rows columns"]:
    """The mean square of the residuals in every block, channels added up; 0 where nothing is known."""
    residual, valid = residual_at(estimate, level)
    known = valid.to(residual.dtype)
    seen = torch.stack([residual.square().sum(-1) * known, known]).reshape(1, 2, *level.grid)
    total, count = torch.nn.functional.avg_pool2d(seen, SIDE, ceil_mode=True, divisor_override=1)[0]
    return (total / count.clamp(min=1.0)).numpy(force=True)


def _moved_to(pair: Pair, estimate: Estimate, rival: Standing, first: int) -> Float[Tensor, "3 3"] | None:
    """The warp (normalised) of a rival, of which a shift on some coarse level is known: from level to level by the best
    of the shifts around, and on the finest by a solve; None where the maps are not alike there."""
    warp, (x, y) = pair.frame.to_pixels(estimate.matrix), rival.shift
    turn = similarity_about(rival.about, rival.about, math.radians(rival.turn), 1.0, warp)
    other, finest = warp @ turn @ translation(-x, -y, warp), pair.levels[first]
    for level in reversed([level for level in pair.levels[first + 1 :] if level.factor < rival.factor]):
        around = [other @ translation(level.factor * right, level.factor * down, warp) for right, down in AROUND]
        fits = [level.overlapping(pair.frame.from_pixels(at))["ncc"] for at in around]
        other = around[fits.index(max(fits))]
        if level.index == first + 1 and max(fits) < ALIKE:
            return None
    start = replace(estimate, matrix=pair.frame.from_pixels(other))
    (solved,) = refine([start], finest.thinned, "translation", pair.options.loss, pair.freedom, STEPS, "coarse")
    way = (pair.frame.to_pixels(solved.estimate.matrix) - other)[:2, 2]
    near = sane(solved.estimate) and float(way.norm()) <= 2 * finest.factor
    return solved.estimate.matrix if near else start.matrix


def _agreement(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Float[np.ndarray, "rows columns"]:
    """How well each block agrees under a warp; -1 where nothing is known or shown."""
    blocks = compared_in(level, matrix, SIDE)
    agreement = np.full([-(-count // SIDE) for count in level.grid], -1.0)
    agreement[*blocks.at.astype(np.int64).T] = blocks.correlation
    return agreement
