"""Is a placement of one plan on another believed? By three figures, each at most 1 but for the lead, and their product.

The lead: the score of the placement over that of the best other one, of all rotations and shifts. In a row of equal
rooms it is 1. The support: the score over that of the smaller plan on itself. The agreement: of the walls whose place
the other map has seen, the share that has a wall within two cells, in the map where that is less.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.grids import inside, pixel_grid
from mslsq.alignment.measures import project
from mslsq.alignment.occupancy.cells import Cells
from mslsq.alignment.occupancy.search import Candidate

NEAR = 2.0
"""Cells: walls as near as this are the same, in maps that have drifted."""

ASKED = 1.0
"""Of the product. Chosen on two buildings of `benchmarks/robot_maps.py` (the half "choose")."""

COMMON = 0.5
"""Of what a place has in common: another one with less is no rival, a single room looks like others."""

SAME = 0.95
"""Of a place's score for what it has in common: another one with as much fits as well, at the steps of the search."""


class Trust(NamedTuple):
    """What speaks for a placement."""

    lead: float
    support: float
    agreement: float
    overlap: float
    """Of the smaller plan's known cells, the share that lies on known ones."""

    @property
    def product(self) -> float:
        return self.lead * self.support * self.agreement

    @property
    def words(self) -> str:
        return (
            f"It scores {self.lead:.2f} times the best other place and {self.support:.0%} of what it could; "
            f"{self.agreement:.0%} of the walls seen by both agree."
        )


def matched(reference: Cells, moving: Cells, matrix: Float[Tensor, "3 3"], near: float = NEAR) -> tuple[float, float]:
    """(agreement, overlap) of a placement, from pixels of the reference to those of the map."""
    shares, seen = [], []
    for one, other, warp in ((reference, moving, matrix), (moving, reference, torch.linalg.inv(matrix))):
        walls, known = _seen_by(one, other, warp)
        distance, seen_walls = walls
        shares.append(float((distance[seen_walls] <= near).double().mean()) if bool(seen_walls.any()) else 0.0)
        seen.append((int(known.count_nonzero()), int(one.known.count_nonzero())))
    # Seen from either plan the common area is the same: the larger share of the two is that of the smaller plan.
    return min(shares), max(common / max(whole, 1) for common, whole in seen)


def repeated(reference: Cells, moving: Cells, chosen: Candidate, others: Sequence[Candidate]) -> bool:
    """Is there another place that fits as well where both maps have seen, and only has less in common? In a row of
    equal rooms the place with the most rooms in common leads the others, and that is no evidence: it says how far the
    robots have seen."""
    common = matched(reference, moving, chosen.matrix)[1]
    for other in others:
        if other is chosen or other.score < COMMON * SAME * chosen.score:
            continue
        share = matched(reference, moving, other.matrix)[1]
        if share >= COMMON * common and other.score * common >= SAME * chosen.score * share:
            return True
    return False


def _seen_by(
    one: Cells, other: Cells, warp: Float[Tensor, "3 3"]
) -> tuple[tuple[Float[Tensor, " n"], Bool[Tensor, " n"]], Bool[Tensor, " m"]]:
    """For the wall cells of one plan the distance to the other's walls, and whether the other knows the place; and for
    all its known cells whether the other does."""
    places = []
    for chosen in (one.walls, one.known):
        cells = pixel_grid(chosen.shape[0], chosen.shape[1], one.distance)[chosen.reshape(-1)] * one.factor
        places.append(project(warp, cells) / other.factor)
    height, width = other.distance.shape
    column, row = torch.nan_to_num(places[0]).round().long().unbind(-1)
    distance = other.distance[row.clamp(0, height - 1), column.clamp(0, width - 1)]
    return (distance, inside(places[0], other.known)), inside(places[1], other.known)
