"""Is it one form that two scenes have in common, and nothing else?

Edges lay the rim of a dial on that of another one, or a dish on a dish. What agrees then agrees all but entirely, by
edges and by values alike, as it is the same thing in the same light; and the rest does not agree at all. Of another
modality most blocks agree in part. Scenes of which parts have moved look like a form; but there blocks enough that
agree say something of their own, as along a rim they do not, and of those that do not agree several lie best in one
other place (`mslsq.alignment.votes`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment import dissent
from mslsq.alignment.evidence import clear, compared_in
from mslsq.alignment.linking import Linked, Linker
from mslsq.alignment.metrics import SquaredDifference
from mslsq.alignment.models import MODELS
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.votes import SIDE, elected, votes, voting_level

NOT_AT_ALL, ENTIRELY = 0.3, 0.9
"""Correlations below and above which a block does not agree, and does entirely."""

REST = 0.4, 0.3
"""Shares of the blocks that do not agree, by edges and by values, from which a form is suspected. Of eleven dials,
dishes, records and portholes that were laid on others 0.43 to 0.57 by edges, of which more blocks agreed entirely than
in part, and 0.32 to 0.55 by values (half "choose"). Of 30 pairs of other modalities or under light one had more blocks
that agreed entirely than in part and 0.4 that did not, none by values, too."""

MOVED = 0.1
"""Of the blocks that do not agree, the share with one other place in common where things have moved: 0.2 and more in
scenes of which 30 % had, 0.03 to 0.06 of four medals."""

PARTLY = 2.0
"""Times as many blocks agree in part as entirely in 17 of 20 pairs of other modalities; 0.2 to 1.5 times in forms and
marks that two scenes have in common (half "choose")."""


class Shares(NamedTuple):
    """Of the blocks that show something."""

    none: float
    part: float
    entire: float


def shares(level: PairLevel, matrix: Float[Tensor, "3 3"]) -> Shares:
    """How many blocks agree not at all, in part and entirely; of values that are inverted, inverted."""
    seen = compared_in(level, matrix, SIDE).correlation
    if not len(seen):
        return Shares(0.0, 0.0, 0.0)
    seen = -seen if np.median(seen) < 0 else seen
    none, entire = float((seen < NOT_AT_ALL).mean()), float((seen >= ENTIRELY).mean())
    return Shares(none, 1 - none - entire, entire)


def of_another_kind(linker: Linker, linked: Linked) -> bool:
    """Do most blocks agree in part, as those of two modalities do, and not entirely, as marks at the same pixels do?"""
    seen = shares(_voting(linker, linked), linked.placed.warp)
    return seen.part >= PARTLY * seen.entire


def form_alone(linker: Linker, linked: Linked, levels: Sequence[PairLevel]) -> str:
    """What speaks for a form in a pair that edges have placed, `levels` being its `voting_levels`; empty if nothing
    does."""
    matrix = linked.placed.warp
    by_edges = shares(levels[0], matrix)
    if by_edges.none < REST[0] or by_edges.entire < by_edges.part:
        return ""
    by_values, found = shares(levels[1], matrix), votes(levels[0], matrix)
    own = elected(levels[0], matrix, MODELS[linker.options.model].tangent_dim)
    if by_values.none < REST[1] or (own and found.rival >= MOVED * by_edges.none * found.blocks):
        return ""
    return (
        f"(Of its small blocks {by_edges.entire:.0%} agree entirely and {by_edges.none:.0%} not at all, and nothing "
        "has moved: it may be one form that both maps have in common.)"
    )


def form_contradicted(linked: Linked, levels: Sequence[PairLevel]) -> str:
    """What speaks for a form in a pair that edges have found, whatever has placed it: of what values show much does not
    agree there, and too few blocks lie best there, by edges and by values alike (`mslsq.alignment.dissent`)."""
    return dissent.of_form(levels, levels[1], linked.placed.warp)


def disagreeing(linked: Linked, levels: Sequence[PairLevel]) -> str:
    """What is to be said of a place that edges have found, where values disagree about a part; empty without."""
    share = dissent.dissent(levels[1], linked.placed.warp).share
    return dissent.words(share, "of what values show") if share >= dissent.DISAGREES else ""


def voting_levels(linker: Linker, linked: Linked) -> list[PairLevel]:
    """The levels on which blocks vote, by edges and by values. They keep what they are asked."""
    return [_voting(one, linked) for one in (linker, linker.by(SquaredDifference()))]


def _voting(linker: Linker, linked: Linked) -> PairLevel:
    """The level on which blocks vote."""
    pair = linked.fixed, linked.moving
    count, frame = linker.count(*pair), linker.frame(linked.fixed)
    fixed, moving = (linker.pyramid(index, count, of) for index, of in zip(pair, linker.units(*pair), strict=True))
    levels = [PairLevel.of(one, other, frame, at) for at, (one, other) in enumerate(zip(fixed, moving, strict=True))]
    return voting_level(levels, clear(levels, linker.options.prefilter))
