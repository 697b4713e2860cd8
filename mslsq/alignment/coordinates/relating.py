"""Where a pixel of one raster is in another, as their georeferences have it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mslsq.alignment.coordinates.georeference import Georeference, UnknownSystemError
from mslsq.alignment.coordinates.systems import same_system, transformed

NODES = 33
"""Along each side: of the grid that an affine map between two CRS is fitted on."""

Size = tuple[int, int]
"""Height and width."""


class Relation(NamedTuple):
    """Pixel (x, y, 1) of one raster to pixel of another, and how far an affine map is from the truth: 0 within one
    CRS, else distances in pixels of the other over what both show."""

    matrix: Float[np.ndarray, "3 3"]
    largest: float = 0.0
    rms: float = 0.0


def relation(fixed: Georeference, size: Size, moving: Georeference, other: Size) -> Relation | None:
    """Pixels of `fixed` to those of `moving`; None where the CRS of the one says nothing of the other's place, or is
    none that is known."""
    try:
        return _relation(fixed, size, moving, other)
    except UnknownSystemError:
        return None


def _relation(fixed: Georeference, size: Size, moving: Georeference, other: Size) -> Relation | None:
    if same_system(fixed.crs, moving.crs):
        # About the first pixel: the difference of two origins keeps the digits that their product would lose.
        inner = np.linalg.inv(moving.matrix[:2, :2])
        matrix = np.eye(3)
        matrix[:2, :2] = inner @ fixed.matrix[:2, :2]
        matrix[:2, 2] = inner @ (fixed.matrix[:2, 2] - moving.matrix[:2, 2])
        return Relation(matrix)
    assert fixed.crs is not None and moving.crs is not None
    here = _nodes(size)
    there = moving.to_pixel(transformed(fixed.to_world(here), fixed.crs, moving.crs))
    finite = np.isfinite(there).all(-1)
    both = finite & (there >= -0.5).all(-1) & (there <= np.array([other[1], other[0]]) - 0.5).all(-1)
    if both.sum() >= 9:  # enlarge what both show: from its corners a grid as fine again
        low, high = here[both].min(0), here[both].max(0)
        here = _nodes(size, low, high)
        there = moving.to_pixel(transformed(fixed.to_world(here), fixed.crs, moving.crs))
        finite = np.isfinite(there).all(-1)
    if finite.sum() < 9:
        return None
    here, there = here[finite], there[finite]
    centre, spread = here.mean(0), max(float(np.ptp(here)), 1.0)
    design = np.concatenate([(here - centre) / spread, np.ones((len(here), 1))], 1)
    found = np.linalg.lstsq(design, there, rcond=None)[0].T
    matrix = np.eye(3)
    matrix[:2, :2] = found[:, :2] / spread
    matrix[:2, 2] = found[:, 2] - matrix[:2, :2] @ centre
    off = np.linalg.norm(here @ matrix[:2, :2].T + matrix[:2, 2] - there, axis=1)
    return Relation(matrix, float(off.max()), float(np.sqrt((off**2).mean())))


def _nodes(size: Size, low: object = None, high: object = None) -> Float[np.ndarray, "n 2"]:
    """A grid of pixels (x, y) over a raster, or over a part of it."""
    left, top = np.zeros(2) if low is None else np.asarray(low)
    right, bottom = (size[1] - 1, size[0] - 1) if high is None else np.asarray(high)
    x, y = np.meshgrid(np.linspace(left, right, NODES), np.linspace(top, bottom, NODES))
    return np.stack([x.ravel(), y.ravel()], -1)


def expected_overlap(matrix: Float[np.ndarray, "3 3"], size: Size, other: Size) -> float:
    """The area that two rasters share under a placement, as a share of the smaller one's: by Sutherland and Hodgman
    (1974), of the quadrilateral of the one cut by the other's sides."""
    height, width = other
    polygon = _project(matrix, _outline(size))
    whole = abs(_area(polygon))
    for axis, sign, limit in ((0, 1, -0.5), (0, -1, -(width - 0.5)), (1, 1, -0.5), (1, -1, -(height - 0.5))):
        polygon = _cut(polygon, sign * polygon[:, axis] - limit) if len(polygon) else polygon
    smaller = max(min(whole, float(height * width)), 1e-300)
    return min(abs(_area(polygon)) / smaller, 1.0) if len(polygon) else 0.0


def _outline(size: Size) -> Float[np.ndarray, "4 2"]:
    height, width = size
    return np.array([[-0.5, -0.5], [width - 0.5, -0.5], [width - 0.5, height - 0.5], [-0.5, height - 0.5]])


def _project(matrix: Float[np.ndarray, "3 3"], points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    moved = np.concatenate([points, np.ones((len(points), 1))], 1) @ matrix.T
    return moved[:, :2] / moved[:, 2:]


def _cut(polygon: Float[np.ndarray, "n 2"], distance: Float[np.ndarray, " n"]) -> Float[np.ndarray, "m 2"]:
    """The part of a polygon on which the distance to a line is not negative."""
    kept = []
    for here, there, a, b in zip(polygon, np.roll(polygon, -1, 0), distance, np.roll(distance, -1), strict=True):
        if a >= 0:
            kept.append(here)
        if (a >= 0) != (b >= 0):
            kept.append(here + (there - here) * (a / (a - b)))
    return np.array(kept).reshape(-1, 2)


def _area(polygon: Float[np.ndarray, "n 2"]) -> float:
    x, y = polygon.T
    return 0.5 * float(x @ np.roll(y, -1) - y @ np.roll(x, -1))
