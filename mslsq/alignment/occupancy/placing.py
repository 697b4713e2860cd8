"""One occupancy map placed on another: searched for, solved and believed by walls and free space."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.belief import NAN, Placed
from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.estimate import Estimate, judge, sane
from mslsq.alignment.metrics import Occupancy
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.occupancy.belief import ASKED, Trust, matched, repeated
from mslsq.alignment.occupancy.cells import ACROSS, Cells, plan_of
from mslsq.alignment.occupancy.search import Candidate, apart, own_score, ranked
from mslsq.alignment.options import Options
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.prepared import Prepared
from mslsq.alignment.refine import Refined, refine
from mslsq.alignment.result import MapStatus, Stage
from mslsq.alignment.uncertainty import corner_sigma, tangent_covariance

WIDTHS = 3.0, 1.5
"""Cells: how near walls must be to pull at each other, in two solves. A start of the search is within two cells."""

DRIFTED = 2.0
"""Cells: the standard error at the corners of what is known, at least. Against hand-annotated points of six pairs of
offices the corners were 1.9 cells off, root mean square: residuals of maps that have drifted are no noise."""

HALF = 0.5
"""Of the walls that both have seen, the share that must agree where the place was said."""

WITNESS = 0.1
"""Of the diagonal of what is known. By chance one place of the search lies so near to where a header says once in some
seventy times (π 0.1² of twice the diagonal's square) without rotations, and with them in some thousand. No other place
that scores about as well may lie within twice of it: then the header says neither."""

WITNESSED = " Its georeference says this place, too."

REPEATED = " Where both maps have seen, another place fits as well: it has less in common."

EXACT = 0.9
"""Of the walls within one cell: then the maps have hardly drifted, and values may say the place more accurately."""

BY_CHANCE = 0.02
"""Of what a placement could score: what another place is taken to score at least. A lead over nothing is none."""

NO_PLAN = "(There are no walls, or no free space, in map {}: metric='occupancy' is for dark walls on light ground.)"


class ByWalls(NamedTuple):
    """A placement by walls, and what values may do for it."""

    placed: Placed
    exact: bool = False
    """The maps have hardly drifted: values may say the place more accurately."""
    doubted: bool = False
    """There is a place that walls alone do not hold, and none that fits as well where both maps have seen: values
    may hold it."""
    drift: float = NAN
    """Pixels: the standard error at the corners of what is known, at least."""


@dataclass(frozen=True)
class _Plans:
    """Two maps on the same coarse grid, and the normalised coordinates of the first."""

    reference: Cells
    moving: Cells
    frame: Frame
    options: Options

    def level(self, width: float) -> PairLevel:
        """Ridges along the walls of both, for least squares."""
        return PairLevel.of(self.reference.level(width), self.moving.level(width), self.frame, 0)


def place(
    fixed: Prepared,
    moving: Prepared,
    frame: Frame,
    options: Options,
    map_index: int,
    initial: Float[Tensor, "3 3"] | None = None,
    report: Callable[[Stage], None] | None = None,
    header: Float[Tensor, "3 3"] | None = None,
) -> ByWalls:
    """Place an occupancy map on another. `initial` (pixels) replaces the search, and what the search says of other
    places; `header` is a second witness: of the places that score alike it chooses. Never raises for bad content.

    Of `options`, `model`, `min_overlap`, `min_lead`, `init` and `max_steps` matter.
    """
    metric = options.metric
    assert isinstance(metric, Occupancy)
    plans = [plan_of(one, metric) for one in (fixed, moving)]
    for plan, which in zip(plans, ("that the others are placed on", str(map_index)), strict=True):
        if not plan.usable():
            why = NO_PLAN.format(which)
            return ByWalls(_refused(options, fixed.values, MapStatus.LOW_CORRELATION, why))
    factor = max(1, -(-max(plan.side for plan in plans) // ACROSS))
    one, other = (Cells.of(plan.without_specks(factor), factor, fixed.values) for plan in plans)
    pair = _Plans(one, other, frame, options)
    lead, support, witnessed, again = NAN, NAN, False, False
    if initial is None and options.init == "identity":
        initial = torch.eye(3, device="cpu").to(fixed.values)
    if initial is None:
        candidates = ranked(one, other, turns=options.model != "translation")
        if candidates[0].score <= 0:
            return ByWalls(_refused(options, fixed.values, MapStatus.NO_OVERLAP))
        said = None if header is None else _said(candidates, header, one, options.min_lead)
        chosen, witnessed = (candidates[0], False) if said is None else (said, True)
        second = max((entry.score for entry in candidates if entry is not chosen), default=0.0)
        most = min(own_score(one), own_score(other))
        lead, support = chosen.score / max(second, BY_CHANCE * most), chosen.score / most
        again = repeated(one, other, chosen, candidates)
        initial = chosen.matrix
    estimate, stages, leader = _solved(pair, Estimate(frame.from_pixels(initial), fixed.values.new_zeros(2), "walls"))
    if report is not None:
        for stage in stages:
            report(replace(stage, map=map_index))
    stages = [replace(stage, map=map_index) for stage in stages]
    placed = _believed(pair, estimate, leader, lead, support, stages, witnessed, again)
    exact = placed.status.ok and matched(one, other, frame.to_pixels(estimate.matrix), near=1.0)[0] >= EXACT
    doubted = placed.status in (MapStatus.AMBIGUOUS, MapStatus.LOW_CORRELATION) and lead == lead and not again
    return ByWalls(placed, exact, doubted, DRIFTED * factor)


def _said(
    candidates: Sequence[Candidate], header: Float[Tensor, "3 3"], reference: Cells, min_lead: float
) -> Candidate | None:
    """Of the places that score about as well as the best the one that the header says, if it says one and no other."""
    tied = [entry for entry in candidates if entry.score * max(min_lead, 1.0) >= candidates[0].score]
    distances = [apart(header, entry.matrix, reference) for entry in tied]
    if sum(distance <= 2 * WITNESS for distance in distances) != 1 or min(distances) > WITNESS:
        return None
    return tied[distances.index(min(distances))]


def _solved(pair: _Plans, estimate: Estimate) -> tuple[Estimate, list[Stage], Refined]:
    """The least squares of the ridges, wide ones first. The search has turned and moved the map: larger models start
    from a solve for those."""
    stages, leader, model = [], None, pair.options.model
    held = estimate.value.new_zeros(2)
    for index, width in enumerate(WIDTHS):
        level = pair.level(width)
        for name in ("se2", model) if index == 0 and model not in ("translation", "se2") else (model,):
            (leader,) = refine([estimate], level, name, "cauchy", held, pair.options.max_steps, "coarse")
            estimate = judge(leader.estimate, level)
            stages.append(
                Stage(
                    0, len(WIDTHS) - 1 - index, level.size, name, "cauchy", leader.rms, estimate.overlap, estimate.ncc
                )
            )
    assert leader is not None
    return estimate, stages, leader


def _believed(
    pair: _Plans,
    estimate: Estimate,
    leader: Refined,
    lead: float,
    support: float,
    stages: list[Stage],
    witnessed: bool,
    again: bool,
) -> Placed:
    """The placement with its figures, or why it is not believed."""
    options, frame = pair.options, pair.frame
    if not sane(estimate):
        return _refused(options, estimate.matrix, MapStatus.NOT_CONVERGED, leader.status.sentence, stages=stages)
    agreement, overlap = matched(pair.reference, pair.moving, frame.to_pixels(estimate.matrix))
    searched = lead == lead
    trust = Trust(lead, support, agreement, overlap) if searched else Trust(1.0, 1.0, agreement, overlap)
    words = trust.words if searched else f"{agreement:.0%} of the walls seen by both agree."
    words += WITNESSED if witnessed else REPEATED if again else ""
    refused = _doubt(options, trust, words, searched, witnessed, again, leader)
    if refused is not None:
        return _refused(options, estimate.matrix, *refused, estimate, agreement, lead, overlap, stages)
    covariance = _drifted(pair, estimate)
    sigma = corner_sigma(estimate, covariance, frame, options.model)
    reason = f"{MapStatus.ALIGNED.sentence} By walls and free space: {words[0].lower()}{words[1:]}"
    figures = estimate.ncc, agreement, trust.lead if searched else NAN, overlap, sigma
    return Placed(MapStatus.ALIGNED, estimate.matrix, estimate.value, covariance, *figures, stages, reason)


def _drifted(pair: _Plans, estimate: Estimate) -> Float[Tensor, "tangent tangent"]:
    """The covariance of the tangent, with standard errors of `DRIFTED` at the corners of what is known, or more."""
    options, frame, cells = pair.options, pair.frame, pair.reference
    covariance = tangent_covariance(estimate, pair.level(WIDTHS[-1]), options, estimate.value.new_zeros(2))
    top, bottom, left, right = (entry * cells.factor for entry in cells.box)
    at = covariance.new_tensor([[left, top], [right, top], [right, bottom], [left, bottom]])
    derivative = MODELS[options.model].from_matrix(estimate.matrix).derivative(frame.normalise(at))
    sigma = float(((derivative @ covariance) * derivative).sum() / 4) ** 0.5 * frame.half
    return covariance * max(DRIFTED * cells.factor / sigma, 1.0) ** 2


def _doubt(
    options: Options, trust: Trust, words: str, searched: bool, witnessed: bool, again: bool, leader: Refined
) -> tuple[MapStatus, str] | None:
    """What speaks against a placement."""
    if trust.overlap < options.min_overlap:
        why = f"(The best found overlaps {trust.overlap:.0%}, {options.min_overlap:.0%} is asked.)"
        return MapStatus.NO_OVERLAP, why
    if searched and not witnessed and options.min_lead > 0 and (again or trust.lead < options.min_lead):
        return MapStatus.AMBIGUOUS, f"({words})"
    least = ASKED if searched else HALF
    if trust.product < least and not (witnessed and trust.agreement >= HALF):
        return MapStatus.LOW_CORRELATION, f"({words} Their product is {trust.product:.2f}; {least:.2f} is asked.)"
    if leader.status in UNFINISHED:
        return MapStatus.NOT_CONVERGED, leader.status.sentence
    return None


def _refused(
    options: Options,
    like: Tensor,
    status: MapStatus,
    why: str = "",
    estimate: Estimate | None = None,
    agreement: float = NAN,
    lead: float = NAN,
    overlap: float = NAN,
    stages: list[Stage] | None = None,
) -> Placed:
    """A placement that is not believed, with the reason in words."""
    tangent = MODELS[options.model].tangent_dim
    matrix = torch.eye(3, device="cpu").to(like) if estimate is None else estimate.matrix
    ncc = NAN if estimate is None else estimate.ncc
    covariance, reason = like.new_full((tangent, tangent), NAN), f"{status.sentence} {why}".rstrip()
    figures = ncc, agreement, lead, overlap, NAN
    return Placed(status, matrix, like.new_zeros(2), covariance, *figures, stages or [], reason)
