"""Maps with a grain: pixels that repeat, the thresholds of a dither, few values. It stays at the pixels of both maps.

Behind a Gaussian of one pixel such a grain is the sharpest detail that there is, and lays pixels on pixels: by up to
half of what repeats, with residuals like noise. Behind a wider one little is left of it, and of the scene enough to
place by. So a pair of which the finest level, or the tails of its residuals, say that there may be a grain, is looked
at, and placed once more from where it lies.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.fixed import on_its_noise, under_its_edges
from mslsq.alignment.linking import NEAR, SQUARED, Linked, Linker
from mslsq.alignment.metrics import SquaredDifference
from mslsq.alignment.options import Options
from mslsq.alignment.result import MapStatus

WIDER = 3.0
"""Pixels: the Gaussian behind which a pair with a grain is placed. Averages held over 3, 4 and 5 pixels were 0.17, 0.31
and 0.96 px off in the median behind 1 px, 0.013, 0.029 and 0.18 behind 2, 0.012, 0.028 and 0.037 behind 3, and as much
behind 4 (the half "choose")."""

LINES = 40
"""Rows, and columns, that are looked at."""

COMB = 0.15
"""Of the squared differences of neighbours, added up over lines: by how much the amplitude at the frequency of a comb
is above the mean. 0.03 to 0.26 of plain maps, which seldom have one period, and that a whole one; 0.6 and more where
pixels repeat, 0.15 to 0.3 where stars are few, or noise is as strong as what repeats (the half "choose"). Twice as much
is asked of a period that is not whole."""

SHARP = 0.6
"""Of that amplitude, the one at twice the frequency at least."""

ONE_TOOTH = 0.75
"""Teeth on the length of a line, by which a whole period may be missed."""

LONGEST = 6.5
"""Pixels, of a period."""

SAME = 0.03
"""By what share the periods of two maps may differ."""

VALUES, SAMPLES = 16, 512
"""Different values at most, of that number of samples, of a map that has few."""


ON_NOISE = (
    "(It lies as it lay, and what agrees is noise at the same pixels of both maps, as the thresholds of a dither or "
    "the pattern of a sensor: the scene may have moved. Average pixels, or say init='identity' if both were seen "
    "from one place.)"
)


def link(linker: Linker, fixed: int, moving: int, initial: Tensor | None = None) -> tuple[Linker, Linked]:
    """`linker.link`; behind a wider Gaussian, with the linker that has it, where the two maps have a grain in
    common."""
    linked, options = linker.link(fixed, moving, initial), linker.options
    placed = linked.placed
    if not placed.status.ok or options.bends:
        return linker, linked
    if options.metric.values and not (placed.pulled and can_be_wider(options)):
        return linker, linked
    linked, found = unless_on_noise(linker, linked), in_common(linker, fixed, moving)
    if found is None or not linked.placed.status.ok:
        return linker, linked
    wider = found.linker
    again = wider.link(fixed, moving, linked.transform, trusted=True)
    away = linker.apart(again, linked)
    if not (again.placed.status.ok and away <= max(NEAR * max(linker.map(fixed).mask.shape), placed.corner_sigma)):
        return linker, linked
    why = f" {found.what}: placed behind a Gaussian of {WIDER:.0f} px, {away:.2g} px from where the pixels lay it."
    return wider, replace(again, placed=replace(again.placed, lead=placed.lead)).explained(why)


def unless_on_noise(linker: Linker, linked: Linked) -> Linked:
    """A place that was looked for; refused, where it is that of noise which both maps have at the same pixels."""
    placed, options = linked.placed, linker.options
    if not (placed.status.ok and options.searches):
        return linked
    if options.metric.values:
        maps = linker.map(linked.fixed), linker.map(linked.moving)
        few = placed.pulled and all(has_few_values(one.values.numpy(force=True)) for one in maps)
        on_noise = placed.pulled and on_its_noise(linker, linked, few)
    else:
        on_noise = under_its_edges(linker.by(SQUARED), linked)
    if not on_noise:
        return linked
    status = MapStatus.AMBIGUOUS
    # Loops close on such places, too: they are not to be counted.
    known = {"covariance": torch.full_like(placed.covariance, math.nan), "corner_sigma": math.nan}
    return replace(linked, placed=replace(placed, status=status, reason=f"{status.sentence} {ON_NOISE}", **known))


class Grain(NamedTuple):
    """What two maps have in common, and the linker with the wider Gaussian."""

    linker: Linker
    what: str
    """To be said."""


def can_be_wider(options: Options) -> bool:
    """Are values compared behind a Gaussian that is narrower? With none at all the pixels are what is asked for."""
    return isinstance(options.metric, SquaredDifference) and 0 < options.prefilter < WIDER


def in_common(linker: Linker, fixed: int, moving: int) -> Grain | None:
    """The grain of two maps, if they have one in common, and a wider Gaussian may take it out."""
    options = linker.options
    if not can_be_wider(options):
        return None
    maps = linker.map(fixed).values.numpy(force=True), linker.map(moving).values.numpy(force=True)
    few = all(map(has_few_values, maps))
    period = 0.0 if few else repeated_every(*maps)
    if not (few or period):
        return None
    # A loss that knows outliers holds on to pixels that are equal: of seven values to 15 stated errors.
    loss = None if few else options.loss
    wider = replace(linker, options=replace(options, prefilter=WIDER, loss=loss))
    what = "Both maps have few values" if few else f"The pixels of both maps repeat, every {period:.2g}"
    return Grain(wider, what)


def has_few_values(raster: Float[np.ndarray, "channels height width"]) -> bool:
    """Has a map few different values?"""
    samples = raster.reshape(-1)[:: max(1, raster.size // SAMPLES) | 1]
    return len(np.unique(samples)) <= VALUES


def repeated_every(
    one: Float[np.ndarray, "channels height width"], other: Float[np.ndarray, "channels height width"]
) -> float:
    """The period, in pixels, by which the pixels of both maps repeat along rows or columns, as the differences of
    neighbours have it: a comb, whose teeth are in phase however strong each is. 0 where they do not."""
    periods = []
    for raster in (one, other):
        strength, count, length = max(_comb(lines) for lines in (raster, raster.swapaxes(1, 2)))
        whole = abs(length / round(length / count) - count) < ONE_TOOTH if count else False
        if strength < (COMB if whole else 2 * COMB):
            return 0.0
        periods.append(length / count)
    return periods[0] if math.isclose(*periods, rel_tol=SAME) else 0.0


def _comb(raster: Float[np.ndarray, "channels lines along"]) -> tuple[float, int, int]:
    """How strong the strongest comb along the last axis is, how many teeth it has, and on which length."""
    few = raster[:, :: max(1, raster.shape[1] // LINES)]
    steps = few[..., 1:] - few[..., :-1]
    energy = np.einsum("clx,clx->x", steps, steps)
    whole, first = float(energy.sum()), math.ceil(len(energy) / LONGEST)
    if not whole > 0:
        return 0.0, 0, len(energy)
    amplitudes = np.abs(np.fft.rfft(energy)) / whole
    count = first + int(amplitudes[first:].argmax())
    twice = min(2 * count, len(energy) - 2 * count)
    # Teeth of one pixel are as strong at twice the frequency; threads of a cloth and cells of honey are not.
    if amplitudes[max(twice - 1, 0) : twice + 2].max() < SHARP * amplitudes[count]:
        return 0.0, 0, len(energy)
    return float(amplitudes[count] - amplitudes[first:].mean()), count, len(energy)
