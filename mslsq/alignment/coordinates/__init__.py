"""Where rasters lie in the world: georeferences read, used as starts, and written."""

from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError

__all__ = ["Georeference", "GeoreferenceError"]
