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


UNDER_EDGES = 0.33
"""The same of a place by edges, which values need not agree about: 0.27 at most of 130 still pairs under other lights,
in other bands, or of which 30 % had moved (the half "choose"), 0.40 and 0.59 of two scenes on the pattern of one
sensor."""


def on_its_noise(linker: Linker, linked: Linked, few: bool) -> bool:
    """Does a map lie on the noise that both have at the same pixels? Asked of a place by values."""
    if not is_still(linker, linked):
        return False
    level = linker.finest(linked.fixed, linked.moving)
    noises = level.noise.variance, level.moving.noise.variance * math.exp(2 * float(linked.placed.value[0]))
    if min(noises) < LEAST:
        return False
    if few:
        residual, valid = residual_at(linked.placed.estimate, level)
        share = float(residual[valid].var(0).sum()) / sum(noises)
        if ONE_MAP < share < IN_COMMON:
            return True
    return _fall(linker, linked) >= FALLS


def under_its_edges(linker: Linker, linked: Linked) -> bool:
    """The same of a place by edges; the `linker` is that by values."""
    return is_still(linker, linked) and _fall(linker, linked) >= UNDER_EDGES


def is_still(linker: Linker, linked: Linked) -> bool:
    """Does a map lie on the very pixels that it lay on?"""
    still = linked.transform.new_tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    return corner_error(linked.transform, still, *linker.map(linked.fixed).mask.shape) <= STILL


def _fall(linker: Linker, linked: Linked) -> float:
    """By how much less detail correlates on the level `AVERAGES` than on the finest; 0 where there is none."""
    pair = linked.fixed, linked.moving
    count, frame, matrix = linker.count(*pair), linker.frame(linked.fixed), linked.placed.warp
    if count <= AVERAGES:
        return 0.0
    one, other = (linker.pyramid(index, count, of) for index, of in zip(pair, linker.units(*pair), strict=True))
    levels = (PairLevel.of(one[at], other[at], frame, at) for at in (0, AVERAGES))
    finest, averages = (level.judgement(matrix)["detail"] for level in levels)
    return finest - averages
