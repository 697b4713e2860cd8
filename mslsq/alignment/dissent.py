"""Of what is to be seen, about how much do two maps disagree where one was laid on the other?

Blocks disagree where things have moved, where one map is covered, and where two scenes have a form in common and
nothing else: a dial, a rim, the letterhead of two sheets. Noise hides a block if what the map that shows more has there
is no more than noise; a block that one map shows and the other does not is no hidden one. Of a scene that has not
changed none disagrees then.

A form is told by its votes. Of a scene of which a part has moved or is covered, the rest is seen to lie best where it
was laid, of all places, block by block; a rim or a frame lies as well a little farther on.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.evidence import ROUNDING, SHOWS, block_energies, block_means, compared
from mslsq.alignment.noise import in_blocks
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.votes import SIDE, Votes, votes, voting_level

NOT_AT_ALL = 0.3
"""Correlation below which a block does not agree, over what noise leaves of it."""

NOT_HIDDEN = 0.7
"""What noise leaves of a correlation in the blocks that are asked."""

NODES = 24
"""Of the curve of values, equally many samples between each two."""

FEWEST = 24
"""Blocks that are asked at least: two of twelve disagreed in a street at night."""

GLANCE = 0.05
"""Of the larger blocks, which evidence has compared already: where fewer disagree, noise or not, nothing is asked."""

DISAGREES = 0.12
"""Of the blocks that noise does not hide, the share from which it is said: 0.10 at most under a gamma, 0.17 to 0.57 of
20 forms in common (0.05 and 0.08 of tunnels and records), 0.16 to 0.38 where 30 % of a scene had moved (half
"choose")."""

OWN = 0.13
"""Of the blocks that vote, the share that lies best where it was laid, and says something of its own, below which it
is a form; of places that edges have found, by edges and by values. It was 0.05 to 0.17 of 16 forms (half "choose";
stamps, medals and clocks have 0.21 to 0.41 and are not told), of two modalities 0.15 and more. With 0.2 five of 480
true pairs of eight kinds were lost, with 0.13 one (half "claim")."""


class Dissent(NamedTuple):
    """What the blocks of a level say that noise does not hide."""

    share: float
    """Of them, those that do not agree."""
    blocks: int


def suspected(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> bool:
    """Do blocks enough disagree, of those that evidence has compared, that it is worth to ask?"""
    seen = compared(level, matrix).correlation
    return len(seen) > 0 and float((seen < NOT_AT_ALL).mean()) >= GLANCE


def dissent(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Dissent:
    """How many blocks disagree under a warp; of values that are inverted, inverted. The level keeps the last answer."""
    return level.kept("dissent", matrix, partial(_counted, level))


def _counted(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Dissent:
    sampled, valid = level.look(matrix)
    one, other = (values.T.reshape(-1, *level.grid) for values in (sampled, level.target))
    known = valid.reshape(level.grid)
    noises = in_blocks((level.moving.noise, level.noise), SIDE, level.stride)
    # As either map has it, by a curve of values, that the other should show.
    there, back = _agreement(one, other, known, noises), _agreement(other, one, known, noises[::-1])
    asked = np.isfinite(there) | np.isfinite(back)
    if asked.sum() < FEWEST:
        return Dissent(0.0, int(asked.sum()))
    # As they are, too: under a shade values have no curve, and blocks agree.
    energy, product = block_energies(one, other, known, SIDE)
    plain = (product / np.sqrt(np.maximum(energy.prod(0), ROUNDING**4)))[asked]
    plain = -plain if np.median(plain) < 0 else plain
    agreement = np.fmax(np.fmax(there, back)[asked], plain)
    return Dissent(float((agreement < NOT_AT_ALL).mean()), int(asked.sum()))


def _agreement(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    known: Bool[Tensor, "height width"],
    noises: list[float],
) -> Float[np.ndarray, " blocks"]:
    """The correlation of the detail of each block with what is expected of it, over what noise leaves of that; NaN
    where nothing is expected that noise does not hide. Expected is the mean of the other map's values where this one
    has this value: of what a gamma or a shade has flattened there is nothing to be seen."""
    expected, gain = _expected(one, other, known)
    energy, product = block_energies(expected, other, known, SIDE)
    of_gain = block_means(gain.square().sum(0), known, SIDE)
    signal = np.maximum(energy[0] - noises[0] * of_gain, 0.0)
    faint = SHOWS * np.sqrt(energy[1]).mean() if len(product) else 0.0
    left = signal / np.sqrt(np.maximum((signal + noises[0] * of_gain) * (signal + noises[1]), ROUNDING**4))
    asked = (signal > max(faint, ROUNDING) ** 2) & (left >= NOT_HIDDEN)
    found = product / np.sqrt(np.maximum(energy.prod(0), ROUNDING**4)) / np.maximum(left, NOT_HIDDEN)
    return np.where(asked, found, np.nan)


def _expected(
    one: Float[Tensor, "channels height width"],
    other: Float[Tensor, "channels height width"],
    known: Bool[Tensor, "height width"],
) -> tuple[Float[Tensor, "channels height width"], Float[Tensor, "channels height width"]]:
    """The mean of the other map's values given this one's, channel by channel, along a curve of `NODES`; and its
    slope."""
    expected, gain = torch.zeros_like(one), torch.zeros_like(one)
    for channel, (x, y) in enumerate(zip(one, other, strict=True)):
        seen = x[known].numpy(force=True).astype(np.float64)
        nodes = np.unique(np.quantile(seen, np.linspace(0, 1, NODES + 1)))
        if len(nodes) < 3:
            continue
        which = np.clip(np.searchsorted(nodes, seen, side="right") - 1, 0, len(nodes) - 2)
        count = np.maximum(np.bincount(which, minlength=len(nodes) - 1), 1)
        at, mean = (
            np.bincount(which, values, len(nodes) - 1) / count
            for values in (seen, y[known].numpy(force=True).astype(np.float64))
        )
        values = x.numpy(force=True)
        expected[channel] = torch.from_numpy(np.interp(values, at, mean)).to(x)
        slopes = np.gradient(mean, at)
        gain[channel] = torch.from_numpy(np.interp(values, at, slopes)).to(x)
    return expected, gain


def form_alone(levels: Sequence[PairLevel], first: int, matrix: Float[Tensor, "3 3"]) -> str:
    """What speaks for a form in a place by values, `first` being the finest level that is asked; empty if nothing
    does."""
    if not suspected(levels[first], matrix):
        return ""
    level = voting_level(levels, first)
    return of_form([level], level, matrix)


def of_form(voting: Sequence[PairLevel], by_values: PairLevel, matrix: Float[Tensor, "3 3"]) -> str:
    """What speaks for a form, as fewer blocks than the share `OWN` lie best there by any of these levels."""
    found = dissent(by_values, matrix)
    if found.share < DISAGREES:
        return ""
    best = max((votes(level, matrix) for level in voting), key=_own)
    if _own(best) >= OWN:
        return ""
    return (
        f"(Of the blocks that show more than noise {found.share:.0%} do not agree at all, and {best.own:.0f} of "
        f"{best.blocks} lie best where they were laid: it may be one form that both maps have in common. Mask it, or "
        "give a start (init) if it is what is meant.)"
    )


def _own(elected: Votes) -> float:
    return elected.own / max(elected.blocks, 1)


def doubt(levels: Sequence[PairLevel], first: int, matrix: Float[Tensor, "3 3"]) -> str:
    """What is to be said of a place that is believed, and about which a part of the maps disagrees; empty without."""
    if not suspected(levels[first], matrix):
        return ""
    share = dissent(voting_level(levels, first), matrix).share
    return words(share, "of what is to be seen") if share >= DISAGREES else ""


def words(share: float, what: str) -> str:
    """A sentence about the share that does not agree."""
    return (
        f" There {share:.0%} {what} does not agree: things have moved or are covered, or the maps have only a form in "
        "common."
    )
