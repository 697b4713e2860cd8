"""Which hypotheses a pair starts from: the search on a coarse level, and a second look for shifts on finer ones."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment import starts
from mslsq.alignment.estimate import Estimate, apart, judge, with_values
from mslsq.alignment.models import Frame
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level
from mslsq.alignment.shifts import correlate_turned

SEARCH_SIDE = 64
"""The start search works on the first level whose longer side is at most this."""

CANDIDATES = 8
"""Starts that are refined on the coarsest level."""

LATE_SIDE = 300
"""Shifts are searched once more on every level up to this side, for maps whose detail a coarser level has lost: thin
walls of occupancy maps are found at 1/4 scale, and at 1/16 a false match outranks the true one."""

CERTAIN = 0.8
"""A hypothesis whose correlation and detail average this much needs no such second look."""


def search_level(reference: Sequence[Level], moving: Sequence[Level]) -> int:
    """The level that starts are searched on."""
    sides = [max(*one.size, *other.size) for one, other in zip(reference, moving, strict=True)]
    return next((i for i, side in enumerate(sides) if side <= SEARCH_SIDE), len(sides) - 1)


def plain_starts(reference: Sequence[Level], moving: Sequence[Level], frame: Frame) -> list[Estimate]:
    """The identity, and the phase correlation where it says something else: what most pairs are placed by. They are
    judged where a solve from there ends."""
    like = reference[0].raster
    at = search_level(reference, moving)
    shift = starts.phase_correlation(reference[at], moving[at])
    shift[:2, 2] *= reference[at].factor
    identity = torch.eye(3, dtype=like.dtype, device=like.device)
    found = [
        Estimate(matrix, like.new_zeros(2), origin)
        for origin, matrix in (("identity", identity), ("phase correlation", frame.from_pixels(shift)))
    ]
    return apart(found, frame)


def first_starts(
    reference: Sequence[Level],
    moving: Sequence[Level],
    frame: Frame,
    levels: Sequence[PairLevel],
    options: Options,
    initial: Float[Tensor, "3 3"] | None,
) -> list[Estimate]:
    """The starts to refine, `CANDIDATES` of them at most."""
    like = reference[0].raster
    zero = like.new_zeros(2)
    if initial is not None:
        return [judge(Estimate(frame.from_pixels(initial), zero, "given"), levels[-1])]
    if options.init == "identity":
        return [judge(Estimate(torch.eye(3, dtype=like.dtype, device=like.device), zero, "identity"), levels[-1])]
    at = search_level(reference, moving)
    coarse = reference[at]
    turns = options.model != "translation"
    if options.init == "phase":
        candidates = [("phase correlation", starts.phase_shift(coarse, moving[at]))]
    else:
        candidates = starts.search(
            coarse, moving[at], turns, options.model not in ("translation", "se2"), options.min_overlap
        )
    ranked = starts.rank(candidates, coarse, moving[at], 0.5 * options.min_overlap)
    ranked = starts.distinct(
        sorted(ranked, key=lambda s: s.origin not in ("identity", "phase correlation")), *coarse.size
    )
    shrink = torch.diag(like.new_tensor([coarse.factor, coarse.factor, 1.0]))
    out = []
    for start in ranked:
        pixel = shrink @ start.matrix @ torch.linalg.inv(shrink)
        out.append(judge(Estimate(frame.from_pixels(pixel), zero, start.origin), levels[at]))
    # Small motions are common: the identity and the phase correlation are refined whatever their rank (in a periodic
    # map, bricks, a start 2 px off on the coarsest level ranks below neighbouring bricks, and still leads to the true
    # one).
    plain = ("identity", "phase correlation")
    out = sorted(out, key=lambda h: (h.origin not in plain, h.overlap < 0.5 * options.min_overlap, -h.score))[
        :CANDIDATES
    ]
    return [judge(estimate, levels[-1]) for estimate in out]


def with_late_starts(
    hypotheses: list[Estimate],
    reference: Level,
    moving: Level,
    level: PairLevel,
    frame: Frame,
    options: Options,
    freedom: Float[Tensor, "2"],
) -> list[Estimate]:
    """The hypotheses, and a shift of this level's own before them where none is certain and it scores higher."""
    judged = sorted((judge(h, level) for h in hypotheses), key=lambda h: -h.score)
    if options.init not in ("auto", "search") or max(*level.size, *moving.size) > LATE_SIDE:
        return judged
    if judged[0].certainty >= CERTAIN:
        return judged
    shifts = [matrix for _, matrix in correlate_turned(reference, moving, [(0.0, 1.0)], 0.5 * options.min_overlap, 2)]
    shifts += [starts.phase_correlation(reference, moving, low_pass) for low_pass in (starts.LOW_PASS, 0.2)]
    grow = torch.diag(frame.centre.new_tensor([level.moving.factor, level.moving.factor, 1.0]))
    late = []
    for shift in shifts:
        matrix = frame.from_pixels(grow @ shift @ torch.linalg.inv(grow))
        late.append(judge(Estimate(matrix, judged[0].value, "late shift"), level))
    best = max(late, key=lambda h: (h.overlap >= 0.5 * options.min_overlap, h.score))
    if best.score <= judged[0].score or best.overlap < 0.5 * options.min_overlap:
        return judged
    return [with_values(best, level, freedom), judged[0]]
