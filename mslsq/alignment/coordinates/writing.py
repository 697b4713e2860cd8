"""Georeferences into files: GeoTIFF's tags, world files, GDAL's .aux.xml, a ROS map's yaml."""

import shutil
import warnings
from pathlib import Path
from xml.sax.saxutils import escape

from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.reading import INSTALL
from mslsq.alignment.coordinates.ros import RosMap, yaml_of
from mslsq.replacing import replacing, write_text

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
TIFFS = (".tif", ".tiff")


def can_hold(path: Path) -> bool:
    """Is there a way to say where a file of this type lies?"""
    return path.suffix.lower() in (*PICTURES, *TIFFS)


def georeferenced_copy(source: Path, target: Path, georeference: Georeference) -> list[Path]:
    """A copy of a file, every pixel as it is, with another header; the files written. (`source` may be the `target`.)

    Raises:
        GeoreferenceError: the type of file has no place for one, or the CRS cannot be written.
        NotWrittenError: of the file system.
    """
    if not can_hold(source):
        raise GeoreferenceError(f"{source}: files of type {source.suffix} hold no georeference; save it as GeoTIFF.")
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        inside = source.suffix.lower() in TIFFS and _into_tiff(temporary, source, georeference)
    return [target] if inside else [target, *write_beside(target, georeference)]


def _into_tiff(file: Path, named: Path, georeference: Georeference) -> bool:
    """Write the tags into a file; False where rasterio is missing and a world file will do."""
    try:
        import rasterio
        from rasterio.crs import CRS
        from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError
    except ImportError:
        from mslsq.alignment.rasters import read_raster

        if read_raster(file).kind.geotags:
            raise GeoreferenceError(f"{named}: to change a GeoTIFF's header, rasterio is needed: {INSTALL}.") from None
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)  # that is why it is opened
            dataset = rasterio.open(file, "r+")
        with dataset:
            dataset.transform = rasterio.Affine.from_gdal(*georeference.geotransform)
            if georeference.crs is not None:
                dataset.crs = CRS.from_user_input(georeference.crs)
    except (CRSError, RasterioError) as error:
        raise GeoreferenceError(f"{named}: its header cannot be changed ({error}).") from error
    return True


def write_beside(path: Path, georeference: Georeference) -> list[Path]:
    """A world file, and where there is a CRS GDAL's .aux.xml."""
    suffix = path.suffix.lstrip(".")
    world = path.with_suffix(f".{suffix[0]}{suffix[-1]}w")
    (a, b, c), (d, e, f), _ = georeference.matrix.tolist()
    write_text(world, "".join(f"{number:.17g}\n" for number in (a, d, b, e, c, f)))
    if georeference.crs is None:
        return [world]
    sidecar = path.with_name(path.name + ".aux.xml")
    write_text(sidecar, f"<PAMDataset>\n  <SRS>{escape(georeference.crs)}</SRS>\n</PAMDataset>\n")
    return [world, sidecar]


def write_yaml(picture: Path, height: int, georeference: Georeference, ros: RosMap) -> Path:
    """The yaml of a ROS map beside its picture."""
    path = picture.with_suffix(".yaml")
    write_text(path, yaml_of(picture.name, height, georeference, ros))
    return path
