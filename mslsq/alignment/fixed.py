"""Noise that stays at the pixels: the thresholds of a dither, the pattern of a sensor. It lies on itself where a map
lies on the very pixels that it lay on, whatever the scene does; and it is the sharpest detail that there is.

Two signs tell such a place. Behind averages of pixels, which leave less of white noise, a scene agrees better, and a
scene that has moved agrees less. And of two maps of few values the residuals have less than half of the white noise
that both maps show: noise of two instants has all of it. (A map of other values may be compared with itself.)
"""

import math

from mslsq.alignment.linking import Linked, Linker
from mslsq.alignment.measures import corner_error
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.spread import residual_at

LEAST = 0.02
"""Of a map's variance behind the prefilter, the white noise from which it is asked: 0.005 and less of pictures."""

STILL = 1.0
"""Pixels that the corners have moved by at most."""

AVERAGES, FALLS = 2, 0.14
"""The level whose detail is compared, and by how much less than on the finest one it correlates: 0.15 to 0.3 of five
places on the noise of both, 0.13 at most of scenes of which a fourth had moved, with all noise in common (drawn from
the half "choose"); other scenes rise."""

IN_COMMON, ONE_MAP = 0.5, 1e-3
"""Of the white noise of both maps, what the residuals hold at most; and at least: with less the maps are one."""


def on_its_noise(linker: Linker, linked: Linked, few: bool) -> bool:
    """Does a map lie on the noise that both have at the same pixels? Asked of a place by values."""
    level, matrix = linker.finest(linked.fixed, linked.moving), linked.placed.warp
    noises = level.noise.variance, level.moving.noise.variance * math.exp(2 * float(linked.placed.value[0]))
    still = linked.transform.new_tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    size = linker.map(linked.fixed).mask.shape
    if min(noises) < LEAST or not corner_error(linked.transform, still, size[0], size[1]) <= STILL:
        return False
    if few:
        residual, valid = residual_at(linked.placed.estimate, level)
        share = float(residual[valid].var(0).sum()) / sum(noises)
        if ONE_MAP < share < IN_COMMON:
            return True
    pair, count = (linked.fixed, linked.moving), linker.count(linked.fixed, linked.moving)
    if count <= AVERAGES:
        return False
    one, other = (
        linker.pyramid(index, count, of)[AVERAGES] for index, of in zip(pair, linker.units(*pair), strict=True)
    )
    coarse = PairLevel.of(one, other, linker.frame(linked.fixed), AVERAGES)
    return level.judgement(matrix)["detail"] - coarse.judgement(matrix)["detail"] >= FALLS
