"""The fit of all pixels, pass by pass: a step and what is typical of the residuals from each, until both settle.

Tiles find a shift and a bias to within their own standard errors. What changed is judged by residuals there and by what
is typical of them, so that a fit of tiles and one of all pixels may draw the border of a change elsewhere, and blocks
beside it are then fitted on other pixels. A pass over both files makes one step of the iteration that a fit in memory
makes (`dem.polish`), with what the pass before has found to be changed left out, and counts the residuals and the means
of neighbourhoods in bins. Nothing of a window is kept but these sums.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mslsq.alignment.big.passing import Judged, Passes, Progress, in_window
from mslsq.alignment.big.tally import Bins, Tally
from mslsq.alignment.dem.change import FEWEST, MOST, SIGMAS, Neighbourhoods, Typical
from mslsq.alignment.dem.comparison import Comparison, Pyramids, Solved
from mslsq.alignment.dem.polish import FARTHEST, System, instruments, system

PASSES = 8
"""Over both files, at most."""

ENOUGH = 0.1
"""Standard errors of the tiles: a step below this in every unknown is the last one."""

LEAST_ERROR = 1e-4
"""Pixels, and spreads of the elevation: standard errors of models without noise are not asked for more."""

LEAST_SLOPE = 0.1
"""Share of the weights' system that Newton's must have left in every direction; of normal noise Tukey's loss leaves a
half."""


class Settled(NamedTuple):
    """What windows are judged by, and how far the last step went, in standard errors of the tiles."""

    judged: Judged
    last: float


class _Sums(NamedTuple):
    """Of one pass: the step's system, residuals, means of neighbourhoods, and pixels: those that changed, and all."""

    system: System
    residuals: Tally
    means: dict[float, Tally]
    changed: int
    known: int


def settle(
    passes: Passes,
    errors: Float[np.ndarray, " unknowns"],
    loss: str | None,
    changes: bool,
    held: bool,
    progress: Progress | None,
) -> Settled:
    """From where the tiles' fit ended.

    Args:
        passes: judged by the tiles.
        errors: standard errors of the tiles, of the shift in pixels and of the bias.
        loss, changes: of the fit.
        held: the shift stays.
        progress: called with "settling pass 1" and so on.
    """
    judged, last = passes.by, float("inf")
    free = slice(2, None) if held else slice(None)
    least = np.array([1.0] * 2 + [passes.frame.unit] * passes.bias.count) * LEAST_ERROR
    errors = np.maximum(np.where(np.isfinite(errors), errors, np.inf), least)
    start = judged.robust.shift
    for number in range(1, PASSES + 1):
        sums = _pass(replace(passes, judged=judged), loss, f"settling pass {number}", progress)
        if sums.residuals.count < FEWEST:
            return Settled(passes.by, 0.0)
        typical = _typical(sums, judged.share) if changes else []
        step = _step(sums.system, free)
        at = Solved(judged.robust.shift + step[:2], judged.robust.bias + step[2:])
        if not np.isfinite(step).all() or np.abs(at.shift - start).max() > FARTHEST:
            return Settled(passes.by, float("inf"))
        scale = max(sums.residuals.summary()["nmad"], 1e-9 * passes.frame.unit)
        judged = judged._replace(robust=at, scale=scale, neighbourhoods=typical)
        last = float((np.abs(step) / errors)[free].max())
        changes = changes and bool(typical)
        if last <= ENOUGH:
            break
    return Settled(judged, last)


def _pass(passes: Passes, loss: str | None, words: str, progress: Progress | None) -> _Sums:
    judged = passes.by
    at, unknowns, bins = judged.robust, 2 + passes.bias.count, Bins(0.0, judged.scale)
    nothing = System(np.zeros((unknowns, unknowns)), np.zeros(unknowns), np.zeros((unknowns, unknowns)))
    sums = _Sums(nothing, Tally(bins), {sigma: Tally(bins) for sigma in SIGMAS}, 0, 0)
    for box in passes.each(words, progress):
        pair = passes.part(box, at.shift, judged.steps)
        if not bool((pair.known & pair.stable).any() and pair.dem_known.any()):
            continue
        pyramids, inside = Pyramids.of(pair, 1, passes.frame), in_window(pair, box)
        samples = Comparison.of(pyramids, 0, passes.bias).valid(at.shift)
        near = Neighbourhoods.seen(samples, at)
        moved = near.beyond(judged.neighbourhoods)
        for sigma, mean, seen in near.means:
            _count(sums.means[sigma], mean[seen & inside].numpy())
        used = near.known & inside & ~moved
        samples = samples.chosen(samples.at(used))
        if len(samples.pixels):
            more = system(samples, instruments(pyramids, samples), at, loss, judged.scale)
            sums = sums._replace(system=sums.system.plus(more))
            _count(sums.residuals, near.residual[used].numpy())
        changed, known = (int((one & near.known & inside).sum()) for one in (moved, near.known))
        sums = sums._replace(changed=sums.changed + changed, known=sums.known + known)
    return sums


def _step(of: System, free: slice) -> Float[np.ndarray, " unknowns"]:
    """Newton's, as there are few passes; where the loss bends too much for it, that of the weights."""
    weighed, slope, gradient = of.weighed[free, free], of.slope[free, free], of.gradient[free]
    step = np.zeros(len(of.gradient))
    towards = np.linalg.lstsq(weighed, slope, rcond=None)[0]
    bent = np.linalg.eigvals(towards).real.min() < LEAST_SLOPE
    step[free] = -np.linalg.lstsq(weighed if bent else slope, gradient, rcond=None)[0]
    return step


def _count(tally: Tally, values: np.ndarray) -> None:
    tally.add(values, tally.bins.of(values))


def _typical(sums: _Sums, share: float) -> Sequence[Typical]:
    """As `dem.change` has it; nothing where most has changed."""
    if sums.changed > MOST * sums.known:
        return []
    return [Typical(sigma, *tally.mode(share)) for sigma, tally in sums.means.items() if tally.count >= FEWEST]
