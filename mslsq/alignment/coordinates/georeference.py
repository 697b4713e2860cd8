"""Where a raster lies in the world: the affine map of its pixel centres, and the coordinate reference system."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

SMALLEST_SINE = 1e-6
"""Of the angle between a raster's columns and rows: below it they point the same way."""


class GeoreferenceError(ValueError):
    """A georeference that cannot be used, or that a file cannot hold, with the reason and what to try."""


class UnknownSystemError(GeoreferenceError):
    """A text that names no coordinate reference system, or two between which there is no way."""


@dataclass(frozen=True, eq=False)
class Georeference:
    """Pixel (x, y, 1) of a raster to world (X, Y, 1), both of centres: pixel (0, 0) is the centre of the first one.

    X is east or longitude, Y north or latitude, whatever order the axes of the CRS have (traditional GIS order).

    Args:
        matrix: (3, 3), float64; its last row is (0, 0, 1).
        crs: the coordinate reference system as a text that `pyproj.CRS` reads ("EPSG:32632", WKT), or None where
            the file says none.
        source: how it was read, for messages: "the GeoTIFF's tags", "the world file a.tfw".

    Raises:
        GeoreferenceError: the matrix is not affine, not finite, or its pixels have no area.

    >>> from mslsq.alignment import Georeference
    >>> here = Georeference.from_geotransform((500000.0, 10.0, 0.0, 4600000.0, 0.0, -10.0), "EPSG:32632")
    >>> here.to_world([[0.0, 0.0]]).tolist()
    [[500005.0, 4599995.0]]
    """

    matrix: Float[np.ndarray, "3 3"]
    crs: str | None = None
    source: str = "given"

    def __post_init__(self) -> None:
        matrix = np.array(self.matrix, dtype=np.float64)
        if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or not np.array_equal(matrix[2], [0, 0, 1]):
            raise GeoreferenceError(
                f"{self.source}: its matrix must be finite, (3, 3), with last row (0, 0, 1), not {matrix.tolist()}."
            )
        columns, rows = np.linalg.norm(matrix[:2, :2], axis=0)
        if abs(np.linalg.det(matrix[:2, :2])) <= SMALLEST_SINE * columns * rows:
            raise GeoreferenceError(
                f"{self.source}: the pixels of this georeference have no area: a step along a row is "
                f"{matrix[:2, 0].tolist()}, down a column {matrix[:2, 1].tolist()}."
            )
        matrix.setflags(write=False)
        object.__setattr__(self, "matrix", matrix)

    @staticmethod
    def from_geotransform(
        geotransform: Sequence[float], crs: str | None = None, source: str = "given"
    ) -> "Georeference":
        """Of GDAL's six numbers: X = g0 + x g1 + y g2, Y = g3 + x g4 + y g5, with x and y from the outer corner of
        the first pixel."""
        g0, g1, g2, g3, g4, g5 = map(float, geotransform)
        return Georeference(np.array([[g1, g2, g0], [g4, g5, g3], [0, 0, 1]]) @ CORNER_TO_CENTRE, crs, source)

    @property
    def geotransform(self) -> tuple[float, float, float, float, float, float]:
        """GDAL's six numbers, of the outer corner of the first pixel."""
        (g1, g2, g0), (g4, g5, g3), _ = (self.matrix @ np.linalg.inv(CORNER_TO_CENTRE)).tolist()
        return g0, g1, g2, g3, g4, g5

    @property
    def pixel_size(self) -> tuple[float, float]:
        """The sides of a pixel along a row and down a column, in units of the CRS."""
        along, down = np.linalg.norm(self.matrix[:2, :2], axis=0).tolist()
        return along, down

    @property
    def mean_pixel_size(self) -> float:
        """The side of a square of a pixel's area, in units of the CRS."""
        return math.sqrt(abs(float(np.linalg.det(self.matrix[:2, :2]))))

    def to_world(self, pixels: Any) -> Float[np.ndarray, "n 2"]:
        """Pixels (x, y) as world coordinates (X, Y)."""
        return np.asarray(pixels, dtype=np.float64) @ self.matrix[:2, :2].T + self.matrix[:2, 2]

    def to_pixel(self, world: Any) -> Float[np.ndarray, "n 2"]:
        """World coordinates (X, Y) as pixels (x, y)."""
        # Relative to the first pixel: northings of 5e6 m would cost digits otherwise.
        return (np.asarray(world, dtype=np.float64) - self.matrix[:2, 2]) @ np.linalg.inv(self.matrix[:2, :2]).T

    def moved(self, left: float, top: float) -> "Georeference":
        """Of the raster whose first pixel is (left, top) of this one."""
        shift = np.array([[1.0, 0, left], [0, 1, top], [0, 0, 1]])
        return Georeference(self.matrix @ shift, self.crs, self.source)

    def reduced(self, factor: int) -> "Georeference":
        """Of the raster whose pixels are the means of blocks of `factor` x `factor` of these."""
        off = (factor - 1) / 2
        block = np.array([[factor, 0, off], [0, factor, off], [0, 0, 1.0]])
        return Georeference(self.matrix @ block, self.crs, self.source)

    def record(self) -> dict[str, Any]:
        """What `transforms.json` holds."""
        return {"geotransform": list(self.geotransform), "crs": self.crs, "source": self.source}


CORNER_TO_CENTRE = np.array([[1.0, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
"""Pixels counted from the first one's centre → pixels counted from its outer corner."""
