"""A link: one map placed on another, and whether the other maps agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.grids import frame_corners
from mslsq.alignment.linking import Linked
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.result import MapStatus
from mslsq.alignment.starts import Start


class LinkStatus(IntEnum):
    """What became of a link between two maps. Used ones are good; the value's sentence is for the user."""

    USED = 0
    UNDECIDED = 1
    REFUSED = 2
    CONTRADICTED = 3

    @property
    def sentence(self) -> str:
        """What happened."""
        return _SENTENCES[self]


_SENTENCES = {
    LinkStatus.USED: "Used: the two maps agree, and the other links do not contradict.",
    LinkStatus.UNDECIDED: "Not used: the two maps fit together in several places alike.",
    LinkStatus.REFUSED: "Not used: the two maps do not agree well enough.",
    LinkStatus.CONTRADICTED: "Not used: other links place the two maps differently.",
}

UNDECIDED_ALONE: frozenset[MapStatus] = frozenset({MapStatus.AMBIGUOUS})
"""What `pairwise.place` says of a pair that it leaves open. Such a link carries no map; where other links put the two
maps, the pair is asked again from there."""

DECISIVE = 0.6
"""A pair is left open where a second placement, elsewhere, has more than this share of the best one's support. True
placements have 2 to 4 times the score of the best false ones (`pairwise.BEATEN`)."""


@dataclass(frozen=True)
class Link:
    """Map `moving` placed on map `fixed` by their common pixels."""

    fixed: int
    moving: int
    linked: Linked
    predicted: bool
    """Did the search begin where other links put the map? Then that they agree does not say as much."""
    status: LinkStatus

    @staticmethod
    def of(linked: Linked, predicted: bool = False) -> "Link":
        """A link as the pair alone has it."""
        placed = linked.placed
        if placed.status.ok and bool(placed.covariance.isfinite().all()):
            status = LinkStatus.USED
        elif placed.status in UNDECIDED_ALONE:
            status = LinkStatus.UNDECIDED
        else:
            status = LinkStatus.REFUSED
        return Link(linked.fixed, linked.moving, linked, predicted, status)

    @property
    def pair(self) -> tuple[int, int]:
        return self.fixed, self.moving

    @property
    def is_open(self) -> bool:
        """Does the pair alone neither believe this placement nor rule it out?"""
        placed = self.linked.placed
        return not placed.status.ok and bool(placed.covariance.isfinite().all())

    @property
    def carries(self) -> bool:
        """May this link be believed, if the others agree? (One that they contradicted is asked again.)"""
        return self.status in (LinkStatus.USED, LinkStatus.CONTRADICTED)

    @property
    def support(self) -> float:
        """How much evidence the link has, as `starts.Start.score`: Fisher's z of its correlation (the mean of that of
        the whole and of the detail) times the root of the overlap."""
        placed = self.linked.placed
        certainty = 0.5 * (placed.ncc + placed.detail)
        return 0.0 if math.isnan(certainty) else Start("", placed.warp, certainty, max(placed.overlap, 0.0)).score

    @property
    def residuals(self) -> tuple[float, float]:
        """The root mean square of what the two maps do not have in common, in the values of the one and of the
        other."""
        stages = self.linked.placed.stages
        rms = stages[-1].rms[-1] if stages and stages[-1].rms else 0.0
        return rms * self.linked.spread, rms * self.linked.spread / float(self.linked.gain)

    def marked(self, status: LinkStatus) -> "Link":
        """The same with another status."""
        return replace(self, status=status)


TOLERANCE = 0.01
"""Of a map's longer side: how far links of a loop may be apart beside their standard errors. Maps are bent a little
(lenses, drift), which no standard error knows of; a wrong link is off by a tenth of the side or more, a repeated
texture by one of its periods."""

LEAST_TOLERANCE = 1.5
"""Pixels."""


def information(link: Link, frame: Frame, model: str, tolerance: float) -> Float[Tensor, "tangent tangent"]:
    """The inverse of the link's covariance with an error τ² (¼ Σ DᵀD)⁻¹ added, D the derivatives of the fixed map's
    corners: one that moves them by some `tolerance` τ in pixels.
    """
    warp = MODELS[model].from_matrix(link.linked.placed.warp)
    derivative = warp.derivative(frame_corners(frame)).flatten(0, 1) * frame.half
    floor = torch.linalg.inv(derivative.mT @ derivative / 4) * tolerance**2
    whole = torch.linalg.inv(link.linked.placed.covariance + floor)
    return 0.5 * (whole + whole.mT)


OUT_OF_LINE = 10.0
"""Times the variance of the noise of both maps: moving things and bent maps may take a pair there, another place of
the same texture lies far above (of a brick wall in 1 % noise, 40 times)."""


def in_line(links: Sequence[Link]) -> list[Link]:
    """The links whose residuals are such as the two maps' noise explains.

    What a map leaves in its best link bounds its noise: σ_ij² = σ_i² + σ_j² ≤ min_k σ_ik² + min_k σ_kj², where all
    links are true and the scene does not change.
    """
    least: dict[int, float] = {}
    for link in links:
        for index, residual in zip(link.pair, link.residuals, strict=True):
            least[index] = min(least.get(index, math.inf), residual**2)
    kept = []
    for link in links:
        (own, other), gain = link.residuals, float(link.linked.gain)
        if own**2 <= OUT_OF_LINE * (least[link.fixed] + gain**2 * least[link.moving]) or other == 0:
            kept.append(link)
    return kept
