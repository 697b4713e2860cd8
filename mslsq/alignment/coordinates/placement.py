"""What an alignment says in coordinates of the world: shifts, corrected headers, and how far the old ones were off."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.coordinates.georeference import Georeference
from mslsq.alignment.coordinates.relating import Size, expected_overlap, relation
from mslsq.alignment.coordinates.ros import SOURCE as ROS
from mslsq.alignment.coordinates.systems import unit_of

CONVENTION = (
    "All in the coordinate reference system of the reference, X east or longitude first. geotransform: GDAL's six "
    "numbers for the map's own pixels, X = g0 + column*g1 + row*g2, Y = g3 + column*g4 + row*g5, from the outer corner "
    "of the first pixel; written into the map's header they put it where it was found. matrix: takes (X, Y, 1) as the "
    "map's own header has it to (X, Y, 1) where it was found. shift: what is to be ADDED to X and Y of the map's own "
    "header, at the middle of the map; sigma: its standard error along either axis. Of a homography there is a shift, "
    "and no geotransform."
)

METRES = "metre"
STRAIGHT = 1e-12
"""Entries of a matrix's last row below this, over the size of the map, are rounding."""


@dataclass(frozen=True, eq=False)
class WorldPlacement:
    """Where one map lies in the coordinates of the reference."""

    crs: str | None
    """Of the reference."""
    unit: str
    """Of `shift`: "metre", "degree"; "units" where the CRS is not known."""
    geotransform: tuple[float, float, float, float, float, float] | None
    """GDAL's six numbers for the map's own pixels, in the CRS of the reference. None of a homography."""
    matrix: Float[Tensor, "3 3"] | None
    """World (X, Y, 1) by the map's own header to where it was found; None without a header."""
    shift: tuple[float, float] | None
    """What is to be added to X and Y of the map's own header, at the middle of the map."""
    sigma: tuple[float, float]
    """Standard errors of the shift, along X and Y: of the reference's corners, in units of the CRS."""
    off: float | None
    """How far the header is off: mean distance of the map's corners, in pixels of the reference."""
    expected_overlap: float | None
    """Of the smaller map's area, the share that is common as the headers have it."""

    @property
    def georeference(self) -> Georeference | None:
        """The corrected header."""
        if self.geotransform is None:
            return None
        return Georeference.from_geotransform(self.geotransform, self.crs, "the alignment")

    def record(self) -> dict[str, Any]:
        """What `transforms.json` holds."""
        return {
            "crs": self.crs,
            "unit": self.unit,
            "geotransform": None if self.geotransform is None else list(self.geotransform),
            "matrix": None if self.matrix is None else self.matrix.tolist(),
            "shift": None if self.shift is None else list(self.shift),
            "sigma": [one if np.isfinite(one) else None for one in self.sigma],
            "header_off_px": self.off,
            "expected_overlap": self.expected_overlap,
        }


def world_placement(
    transform: Float[np.ndarray, "3 3"],
    reference: Georeference,
    size: Size,
    own: Georeference | None,
    other: Size,
    corner_sigma: float,
) -> WorldPlacement:
    """Of a map that is placed by `transform`, reference pixel to map pixel."""
    inverse = np.linalg.inv(transform)
    inverse = inverse / inverse[2, 2]
    straight = bool((np.abs(inverse[2, :2]) * max(other) < STRAIGHT).all())
    found = reference.matrix @ inverse
    header = None if own is None else relation(reference, size, own, other)
    matrix = shift = off = expected = None
    if header is not None:
        back = np.linalg.inv(header.matrix)  # map pixel to reference pixel, as the header has it
        matrix = found @ np.linalg.inv(reference.matrix @ back)
        matrix = matrix / matrix[2, 2]
        height, width = other
        outline = np.array([[0, 0, 1], [width - 1, 0, 1], [width - 1, height - 1, 1], [0, height - 1, 1.0]]).T
        moved = _flat(inverse @ outline) - _flat(back @ outline)
        off = float(np.linalg.norm(moved, axis=0).mean())
        middle = outline.mean(1, keepdims=True)
        apart = _flat(inverse @ middle) - _flat(back @ middle)  # in pixels, where no digits are lost
        x, y = (reference.matrix[:2, :2] @ apart).ravel().tolist()
        shift, expected = (x, y), expected_overlap(header.matrix, size, other)
    numbers = None
    if straight:
        inverse[2] = 0, 0, 1
        numbers = Georeference(reference.matrix @ inverse).geotransform
    spread = np.abs(reference.matrix[:2, :2]) @ np.full(2, corner_sigma / np.sqrt(2))
    sigma = float(spread[0]), float(spread[1])
    crs = reference.crs
    unit = METRES if reference.source == ROS else unit_of(crs)
    world = None if matrix is None else torch.from_numpy(matrix)
    return WorldPlacement(crs, unit, numbers, world, shift, sigma, off, expected)


def _flat(points: Float[np.ndarray, "3 n"]) -> Float[np.ndarray, "2 n"]:
    return points[:2] / points[2]


def world_placements(
    transforms: Sequence[Float[np.ndarray, "3 3"] | None],
    georeferences: Sequence[Georeference | None],
    sizes: Sequence[Size | None],
    reference: int,
    corner_sigmas: Sequence[float],
) -> list[WorldPlacement | None]:
    """Of all maps: None for those that were left out, and for all where the reference has no georeference."""
    base, size = georeferences[reference], sizes[reference]
    placements: list[WorldPlacement | None] = []
    for transform, own, other, sigma in zip(transforms, georeferences, sizes, corner_sigmas, strict=True):
        if base is None or size is None or transform is None or other is None:
            placements.append(None)
        else:
            placements.append(world_placement(transform, base, size, own, other, sigma))
    return placements
