"""Statistics of elevation differences: of all, by slope, by aspect, and by the classes of a mask.

The NMAD (1.4826 times the median absolute deviation from the median) is the spread that blunders do not move (Höhle and
Höhle, 2009, ISPRS J. 64:398).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mslsq.alignment.measures import summary

SLOPES = (0.0, 5.0, 10.0, 20.0, 30.0, 45.0, 90.0)
"""Degrees between classes."""

ASPECTS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")
"""Classes of 45°, centred on these directions; the aspect is the direction that a slope faces."""

FLAT = 2.0
"""Degrees: below this slope there is no aspect."""


@dataclass(frozen=True)
class ElevationStatistics:
    """Of differences in metres: `whole`, and by class; each has count, mean, median, nmad, rmse (NaN of nothing)."""

    whole: Mapping[str, float]
    by_slope: Mapping[str, Mapping[str, float]]
    by_aspect: Mapping[str, Mapping[str, float]]
    by_mask: Mapping[str, Mapping[str, float]]

    def record(self) -> dict[str, Any]:
        """As nested dicts."""
        return {
            "whole": dict(self.whole),
            "by_slope": {name: dict(row) for name, row in self.by_slope.items()},
            "by_aspect": {name: dict(row) for name, row in self.by_aspect.items()},
            "by_mask": {name: dict(row) for name, row in self.by_mask.items()},
        }


def slope_and_aspect(
    elevation: Float[np.ndarray, "height width"], metres: Float[np.ndarray, "2 2"]
) -> tuple[Float[np.ndarray, "height width"], Float[np.ndarray, "height width"]]:
    """Degrees: the slope, and the direction downhill clockwise from north; by central differences, NaN beside holes.

    `metres` (2, 2) takes a step in pixels (column, row) to one east and north.
    """
    down, along = np.gradient(elevation)
    east, north = np.einsum("ij,jhw->ihw", np.linalg.inv(metres).T, np.stack([along, down]))
    return np.degrees(np.arctan(np.hypot(east, north))), np.degrees(np.arctan2(-east, -north)) % 360.0


def classes(
    known: Bool[np.ndarray, "height width"],
    faces: tuple[Float[np.ndarray, "height width"], Float[np.ndarray, "height width"]],
    stable: Bool[np.ndarray, "height width"],
    changed: Bool[np.ndarray, "height width"],
) -> Iterator[tuple[str, str, Bool[np.ndarray, "height width"]]]:
    """(kind, class, its pixels) of all statistics; kind is "whole" once, then "by_slope", "by_aspect" and "by_mask".
    `faces` is what `slope_and_aspect` says."""
    used = known & stable
    yield "whole", "", used
    slope, aspect = faces
    for low, high in pairwise(SLOPES):
        yield "by_slope", f"{low:g}-{high:g} deg", used & (slope >= low) & (slope < high)
    steep = used & (slope >= FLAT)
    octant = np.where(np.isfinite(aspect), np.floor(np.nan_to_num(aspect) / 45 + 0.5) % 8, -1)
    for number, name in enumerate(ASPECTS):
        yield "by_aspect", name, steep & (octant == number)
    yield "by_mask", "stable", used
    yield "by_mask", "masked", known & ~stable
    yield "by_mask", "unchanged", used & ~changed
    yield "by_mask", "changed", used & changed


def gathered(rows: Iterable[tuple[str, str, Mapping[str, float]]]) -> ElevationStatistics:
    """The statistics of all classes, in the order of `classes`."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    for kind, name, row in rows:
        found.setdefault(kind, {})[name] = row
    return ElevationStatistics(found["whole"][""], found["by_slope"], found["by_aspect"], found["by_mask"])


def statistics(
    difference: Float[np.ndarray, "height width"],
    elevation: Float[np.ndarray, "height width"],
    metres: Float[np.ndarray, "2 2"],
    stable: Bool[np.ndarray, "height width"],
    changed: Bool[np.ndarray, "height width"],
) -> ElevationStatistics:
    """Of all differences that are numbers; `whole` and the classes of terrain on stable terrain alone.

    Args:
        difference: metres, NaN where there is none.
        elevation: the reference, for slope and aspect.
        metres: pixels to metres.
        stable: what the mask says.
        changed: what was taken for changed terrain; a class of its own.
    """
    of_classes = classes(np.isfinite(difference), slope_and_aspect(elevation, metres), stable, changed)
    return gathered((kind, name, summary(difference[where])) for kind, name, where in of_classes)
