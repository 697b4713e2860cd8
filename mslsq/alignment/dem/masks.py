"""Outlines of terrain that moves (glaciers, lakes, landslides) as a mask on a raster's grid."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.dem.errors import CoregistrationError


def stable_terrain(
    outlines: str | Path | Any, shape: tuple[int, int], georeference: Georeference, buffer: float = 0.0
) -> Bool[np.ndarray, "height width"]:
    """True outside of the outlines, for `coregister(mask=...)`. Needs geopandas and rasterio.

    Args:
        outlines: a vector file that geopandas reads (Shapefile, GeoPackage, GeoJSON), or a GeoDataFrame. They are
            brought into the raster's CRS where both have one.
        shape: (height, width) of the reference.
        georeference: of the reference.
        buffer: units of the CRS by which outlines are widened.

    Raises:
        CoregistrationError: a package is missing, the file cannot be read, or no outline touches the raster.
    """
    return Outlines.read(outlines, georeference.crs, buffer).outside(shape, georeference, needed=True)


@dataclass(frozen=True)
class Outlines:
    """Geometries in the CRS of a raster."""

    geometries: Any
    crs: str
    """What the outlines were in, for messages."""

    @staticmethod
    def read(outlines: str | Path | Any, crs: str | None, buffer: float = 0.0) -> "Outlines":
        """A vector file, or a GeoDataFrame, widened by `buffer`.

        Raises:
            CoregistrationError: a package is missing, or the file cannot be read.
        """
        try:
            import geopandas
        except ImportError as error:
            raise _missing(error) from None
        frame: Any = outlines
        if isinstance(outlines, str | Path):
            try:
                frame = geopandas.read_file(outlines)
            except Exception as error:  # drivers raise anything at all
                raise CoregistrationError(f"stable_terrain: {outlines} cannot be read ({error}).") from error
        said = str(frame.crs)
        if frame.crs is not None and crs is not None:
            frame = frame.to_crs(crs)
        geometries = frame.geometry.dropna()
        return Outlines(geometries.buffer(buffer) if buffer else geometries, said)

    def outside(
        self, shape: tuple[int, int], georeference: Georeference, needed: bool = False
    ) -> Bool[np.ndarray, "height width"]:
        """True where no outline touches a pixel.

        Raises:
            CoregistrationError: rasterio is missing; or one is `needed`, and there is none.
        """
        try:
            from rasterio.features import geometry_mask
            from rasterio.transform import Affine
        except ImportError as error:
            raise _missing(error) from None
        g0, g1, g2, g3, g4, g5 = georeference.geotransform
        outside = np.ones(shape, dtype=bool)
        if len(self.geometries):
            outside = geometry_mask(self.geometries, shape, Affine(g1, g2, g0, g4, g5, g3), all_touched=True)
        if needed and bool(outside.all()):
            raise CoregistrationError(
                "stable_terrain: no outline touches the raster; are both in the same CRS? The outlines have "
                f"{self.crs}, the raster {georeference.crs}."
            )
        return np.asarray(outside)


def _missing(error: ImportError) -> CoregistrationError:
    return CoregistrationError(
        f"stable_terrain: outlines need geopandas and rasterio ({error}): pip install 'mslsq[geo]'."
    )
