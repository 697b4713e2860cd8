"""A pair of pyramids, and how far a placement stands out there from every other shift and rotation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.candidates import LATE_SIDE, search_level
from mslsq.alignment.estimate import Estimate
from mslsq.alignment.evidence import evidence
from mslsq.alignment.measures import corners, project
from mslsq.alignment.models import Frame
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level
from mslsq.alignment.rivals import SYMMETRIES, TURNS, Standing, turned
from mslsq.alignment.rivals import standing as standing_of

CLEAR = 0.9
"""Reliability (`evidence.Evidence`) of the level that starts are searched on, below which coarser ones are asked for a
lead, too: noise lowers scores. Eight more of 988 true placements are believed then (lights in fog). Without noise more
than the lead that is asked was reached by chance on a coarser level: by floor plans, 1.7 (half "choose" of
`benchmarks/alignment_truth.py`, as `WIDE`)."""

WIDE = 0.5
"""Of a smaller overlap more lead is asked, by the root of its share of this: the fewer samples decide, the more their
scores scatter. Of the placements without a match whose detail agreed, those with a lead of more than 1 overlapped by
19 to 27 %, but for one."""


TURNED = 0.4
"""Of the lead that is asked over shifts, what is asked over other rotations, each of which has as many rivals again. Of
389 true placements (halves "choose" of `benchmarks/alignment_truth.py` and `benchmarks/metric_pairs.py`) three lead by
less, lights in fog and a smooth photograph, and so do arcs that lie on themselves: by 0.3 at most (the rim of a cup, 19
and 29 px off)."""


LOOSE = 0.25
"""Samples of the level that starts are searched on: standard error of the corners from which a place may be one of many
along an arc. Arcs that lay on themselves elsewhere had 1.9 to 3.7."""

UNTURNED = "identity", "phase correlation"
"""Origins of placements that no rotation was searched for."""


@dataclass(frozen=True)
class Pair:
    """Two pyramids, standardised, and how one is to be placed on the other."""

    reference: Sequence[Level]
    moving: Sequence[Level]
    levels: Sequence[PairLevel]
    frame: Frame
    options: Options
    freedom: Float[Tensor, "2"]
    ends: dict[int, Estimate] = field(default_factory=dict, kw_only=True)
    """The best hypothesis where each level has put it."""
    fitting: set[int] = field(default_factory=set, kw_only=True)
    """Levels on which its score was what chance has, where the model fits."""

    @property
    def searched(self) -> int:
        """The level that starts are searched on."""
        return search_level(self.reference, self.moving)

    def stretch(self, matrix: Float[Tensor, "3 3"]) -> tuple[float, float]:
        """The least and the largest scale of a warp (normalised) at the middle of the reference: pixels of the map per
        pixel of the reference."""
        along = torch.linalg.svdvals(matrix[:2, :2] - matrix[:2, 2:] @ matrix[2:, :2] / matrix[2, 2]) / matrix[2, 2]
        return float(along[1]), float(along[0])

    def allows(self, matrix: Float[Tensor, "3 3"]) -> bool:
        """Does the scale of a warp lie in `scale_range`?"""
        if self.options.scale_range is None:
            return True
        (least, most), (low, high) = self.options.scale_range, self.stretch(matrix)
        return least <= low and high <= most

    def before_horizon(self, matrix: Float[Tensor, "3 3"]) -> bool:
        """Does a warp (normalised) put all of the map somewhere? A homography may put a corner beyond its horizon."""
        at = corners(*self.moving[0].size, like=matrix)
        return bool(project(torch.linalg.inv(self.pixels(0, matrix)), at).isfinite().all())

    def least(self, position: int) -> float:
        """The overlap asked on a level. Blurring takes two pixels off every border, of a coarse level too: half of the
        overlap will do there."""
        return self.options.min_overlap if position == 0 else 0.5 * self.options.min_overlap

    def standing(self, matrix: Float[Tensor, "3 3"], least: float) -> Standing:
        """How far a placement (normalised) stands out from every other shift: on the level that starts are searched on,
        and where its lead is not the `least`, on coarser ones if noise hides the detail of this one, and on finer ones,
        which hold four times the detail and take four times as long."""
        position = self.searched
        best = self.standing_on(position, matrix)
        if best.lead < least and evidence(self.levels[position], matrix).reliability < CLEAR:
            coarser = [self.standing_on(level, matrix) for level in range(position + 1, len(self.levels))]
            best = max([best, *coarser], key=lambda standing: standing.lead)
        while best.lead < least and position > 0:
            position -= 1
            if max(*self.reference[position].size, *self.moving[position].size) > LATE_SIDE:
                break
            best = max(best, self.standing_on(position, matrix), key=lambda standing: standing.lead)
        return best

    def standing_on(self, position: int, matrix: Float[Tensor, "3 3"]) -> Standing:
        """The same on one level."""
        reference, moving = self.reference[position], self.moving[position]
        return standing_of(reference, moving, self.pixels(position, matrix), 0.5 * self.options.min_overlap)

    def rival_turned(self, matrix: Float[Tensor, "3 3"], sure: bool) -> Standing | None:
        """How far a placement leads over other rotations, on the level where it leads by the most; None of a model that
        does not turn.

        A place that is `sure`, as it is known to a fraction of a sample and no rotation was searched for, is not one of
        many along an arc: then only what repeats itself around a middle is asked about, at an eighth of the time.

        The level below that on which starts are searched for is asked first: it takes a fourth of the time and suffices
        for most. Then, where it does not lead by `asked_over_turns`, that one, and the next finer one.
        """
        if self.options.model == "translation":
            return None
        at, found = self.searched, []
        turns = SYMMETRIES if sure else TURNS
        for position in range(min(at + 1, len(self.levels) - 1), max(at - 1, 0) - 1, -1):
            reference, moving = self.reference[position], self.moving[position]
            if found and max(*reference.size, *moving.size) > LATE_SIDE:
                break
            found.append(
                turned(reference, moving, self.pixels(position, matrix), 0.5 * self.options.min_overlap, turns)
            )
            if found[-1].lead >= asked_over_turns(self.options):
                break
        return max(found, key=lambda standing: standing.lead)

    def sure(self, estimate: Estimate, sigma: float) -> bool:
        """Is its place known to a fraction of a sample, and not from a search of rotations? `sigma` is the standard
        error of the corners."""
        factor = self.reference[self.searched].factor
        return estimate.origin in UNTURNED and sigma < LOOSE * factor

    def pixels(self, position: int, matrix: Float[Tensor, "3 3"]) -> Float[Tensor, "3 3"]:
        """A warp (normalised) between the pixels of one level."""
        return self.frame.to_pixels(matrix, self.reference[position].factor)


def asked_over_turns(options: Options) -> float:
    """The least lead of a placement over other rotations, whatever its overlap: one that is small turns about itself
    with little change, so that its own neighbours score more."""
    return TURNED * options.min_lead


def asked_lead(options: Options, overlap: float) -> float:
    """The least lead over shifts of a placement with this overlap."""
    return options.min_lead * max(1.0, (WIDE / max(overlap, 1e-3)) ** 0.5)
