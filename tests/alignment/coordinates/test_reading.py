"""Georeferences of files: what we read and write is what GDAL reads, pixel by pixel."""

import numpy as np
import pytest

from mslsq.alignment import Georeference, GeoreferenceError
from mslsq.alignment.canvas import Canvas
from mslsq.alignment.coordinates.outputs import write_georeferenced
from mslsq.alignment.coordinates.writing import georeferenced_copy
from mslsq.alignment.rasters import RasterError, read_raster, write_raster

rasterio = pytest.importorskip("rasterio")
tifffile = pytest.importorskip("tifffile")
PIL = pytest.importorskip("PIL.Image")

from rasterio.transform import Affine  # noqa: E402

VALUES = np.random.default_rng(0).integers(0, 200, (40, 30)).astype(np.uint8)
UPRIGHT = Affine(10.0, 0, 500000, 0, -20.0, 4600000)
TURNED = Affine(8.0, 6.0, 500000, 6.0, -8.0, 4600000)
WORLD_FILE = "2.0\n0.5\n0.5\n-2.0\n1000.0\n2000.0\n"


def write(path, transform=UPRIGHT, crs="EPSG:32632", values=VALUES, **options):
    profile = {"driver": "GTiff", "height": 40, "width": 30, "count": 1, "dtype": values.dtype, **options}
    with rasterio.open(path, "w", transform=transform, crs=crs, **profile) as dataset:
        dataset.write(values, 1)
    return path


def centres_by_rasterio(path):
    with rasterio.open(path) as dataset:
        return np.array([dataset.xy(0, 0), dataset.xy(30, 12)]), dataset.crs


@pytest.mark.parametrize("transform", [UPRIGHT, TURNED], ids=["upright", "turned"])
@pytest.mark.parametrize("point", [False, True], ids=["PixelIsArea", "PixelIsPoint"])
def test_a_geotiff_lies_where_gdal_has_it(tmp_path, transform, point):
    path = write(tmp_path / "a.tif", transform)
    if point:
        with rasterio.open(path, "r+") as dataset:
            dataset.update_tags(AREA_OR_POINT="Point")
    expected, _ = centres_by_rasterio(path)
    found = read_raster(path).georeference
    assert found.crs == "EPSG:32632" and found.source == "the GeoTIFF's tags"
    assert np.abs(found.to_world([[0, 0], [12, 30]]) - expected).max() < 1e-6
    with rasterio.open(path) as dataset:
        assert found.geotransform == pytest.approx(dataset.transform.to_gdal(), abs=1e-6)
    assert np.abs(found.to_pixel(expected) - [[0, 0], [12, 30]]).max() < 1e-9


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3035", "+proj=laea +lat_0=10 +lon_0=20 +datum=WGS84"])
def test_the_crs_is_gdals(tmp_path, crs):
    """By its code, or described."""
    path = write(tmp_path / "a.tif", Affine(0.01, 0, 5, 0, -0.01, 50), crs)
    found = read_raster(path).georeference.crs
    assert rasterio.crs.CRS.from_user_input(found) == centres_by_rasterio(path)[1]


@pytest.mark.parametrize(
    ("name", "world"), [("a.png", "a.pgw"), ("a.jpg", "a.jgw"), ("a.png", "a.pngw"), ("b.png", "b.wld")]
)
def test_a_world_file_is_of_centres(tmp_path, name, world):
    PIL.fromarray(VALUES).save(tmp_path / name)
    (tmp_path / world).write_text(WORLD_FILE)
    found = read_raster(tmp_path / name).georeference
    assert found.to_world([[0, 0], [1, 0], [0, 1]]).tolist() == [[1000, 2000], [1002, 2000.5], [1000.5, 1998]]
    assert found.crs is None and world in found.source
    expected, _ = centres_by_rasterio(tmp_path / name)
    assert np.abs(found.to_world([[0, 0], [12, 30]]) - expected).max() < 1e-9


def test_a_tiff_with_a_world_file_alone_has_that(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", VALUES)
    (tmp_path / "a.tfw").write_text(WORLD_FILE)
    assert read_raster(tmp_path / "a.tif").georeference.to_world([[0, 0]]).tolist() == [[1000, 2000]]


@pytest.mark.parametrize(
    ("world", "words"),
    [
        ("1 0 0 1 0\n", "6 numbers are expected, it has 5"),
        ("1 0 0 x 0 0", "could not convert"),
        ("2.0\n1.0\n4.0\n2.0\n0\n0\n", "no area"),
        ("0 0 0 0 0 0", "no area"),
        ("nan 0 0 -1 0 0", "must be finite"),
    ],
)
def test_a_damaged_header_is_not_used_and_said(tmp_path, world, words):
    PIL.fromarray(VALUES).save(tmp_path / "a.png")
    (tmp_path / "a.pgw").write_text(world)
    raster = read_raster(tmp_path / "a.png")
    assert raster.georeference is None and words in raster.note


def test_no_header_is_none(tmp_path):
    PIL.fromarray(VALUES).save(tmp_path / "a.png")
    assert read_raster(tmp_path / "a.png").georeference is None
    write(tmp_path / "b.tif", Affine.identity(), None)
    raster = read_raster(tmp_path / "b.tif")
    assert raster.georeference is None and not raster.note


@pytest.mark.parametrize("point", [False, True])
@pytest.mark.parametrize("tiled", [False, True])
def test_a_corrected_header_leaves_the_rest_as_it_is(tmp_path, point, tiled):
    options = {"compress": "lzw", "predictor": 2, "nodata": 7}
    options |= {"tiled": True, "blockxsize": 16, "blockysize": 32} if tiled else {}
    path = write(tmp_path / "a.tif", **options)
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(AREA_OR_POINT="Point" if point else "Area", MINE="kept")
    wanted = Georeference.from_geotransform((1.5, 0.5, 0.1, 8.0, -0.1, -0.5), "EPSG:4326")
    assert georeferenced_copy(path, tmp_path / "b.tif", wanted) == [tmp_path / "b.tif"]
    with rasterio.open(path) as old, rasterio.open(tmp_path / "b.tif") as new:
        assert new.transform.to_gdal() == pytest.approx(wanted.geotransform, abs=1e-12)
        assert new.crs == rasterio.crs.CRS.from_epsg(4326) and new.tags()["MINE"] == "kept"
        assert (old.read() == new.read()).all()
        for name in ("dtype", "nodata", "compress", "tiled"):
            assert old.profile[name] == new.profile[name]
        assert old.block_shapes == new.block_shapes
    assert read_raster(tmp_path / "b.tif").georeference.geotransform == pytest.approx(wanted.geotransform, abs=1e-12)


def test_a_picture_has_its_georeference_beside_it(tmp_path):
    PIL.fromarray(VALUES).save(tmp_path / "a.png")
    wanted = Georeference.from_geotransform((1.5, 0.5, 0.1, 8.0, -0.1, -0.5), "EPSG:32632")
    names = [path.name for path in georeferenced_copy(tmp_path / "a.png", tmp_path / "b.png", wanted)]
    assert names == ["b.png", "b.pgw", "b.png.aux.xml"]
    with rasterio.open(tmp_path / "b.png") as dataset:
        assert dataset.crs == rasterio.crs.CRS.from_epsg(32632)
        assert dataset.transform.to_gdal() == pytest.approx(wanted.geotransform, abs=1e-12)
    again = read_raster(tmp_path / "b.png").georeference
    assert again.crs == "EPSG:32632" and again.geotransform == pytest.approx(wanted.geotransform, abs=1e-12)


def test_what_lies_beside_a_geotiff_overrules_its_tags_in_what_is_written_too(tmp_path):
    """As GDAL has it."""
    write(tmp_path / "a.tif")
    text = "<PAMDataset><SRS>EPSG:3035</SRS><GeoTransform>5, 2, 0, 9, 0, -2</GeoTransform></PAMDataset>"
    (tmp_path / "a.tif.aux.xml").write_text(text)
    raster = read_raster(tmp_path / "a.tif")
    assert raster.georeference.crs == "EPSG:3035" and raster.georeference.source == "a.tif.aux.xml"
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert dataset.transform.to_gdal() == raster.georeference.geotransform == (5, 2, 0, 9, 0, -2)
    canvas = Canvas(3, 4, 10, 12)
    values, known = raster.values[:, 4:14, 3:15], raster.mask[4:14, 3:15]
    (path,) = write_georeferenced(tmp_path / "out" / "b.tif", values, known, raster.kind, raster, canvas)
    with rasterio.open(path) as dataset:
        assert dataset.crs == rasterio.crs.CRS.from_epsg(3035)
        assert dataset.transform.to_gdal() == (11, 2, 0, 1, 0, -2)


def test_an_array_holds_no_georeference(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    with pytest.raises(GeoreferenceError, match="hold no georeference"):
        georeferenced_copy(tmp_path / "a.npy", tmp_path / "b.npy", Georeference(np.eye(3)))


@pytest.mark.parametrize("compress", ["lzw", "deflate", "zstd", None])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_raster_is_written_in_the_tiles_and_the_compression_it_was_read_in(tmp_path, compress, dtype):
    options = {"tiled": True, "blockxsize": 32, "blockysize": 16, "nodata": 7}
    options |= {"compress": compress, "predictor": 3 if dtype == np.float32 else 2} if compress else {}
    path = write(tmp_path / "a.tif", values=VALUES.astype(dtype), **options)
    raster = read_raster(path)
    out = write_raster(tmp_path / "b.tif", raster.values, raster.mask, raster.kind, raster.kind.geotags)
    with rasterio.open(path) as old, rasterio.open(out) as new:
        assert (old.read() == new.read()).all()
        for name in ("dtype", "nodata", "crs", "transform", "tiled"):
            assert old.profile[name] == new.profile[name], name
        assert old.profile.get("compress") == new.profile.get("compress")
        assert old.block_shapes == new.block_shapes


def test_a_turned_photograph_with_a_world_file_is_not_laid_anywhere(tmp_path):
    picture = PIL.fromarray(VALUES)
    exif = picture.getexif()
    exif[274] = 6
    picture.save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "a.jgw").write_text(WORLD_FILE)
    raster = read_raster(tmp_path / "a.jpg")
    assert raster.georeference is None and "turned" in raster.note


def test_a_yaml_of_something_else_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1\n")
    with pytest.raises(RasterError, match="ROS map is expected"):
        read_raster(tmp_path / "a.yaml")
