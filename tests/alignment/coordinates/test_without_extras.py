"""What works without rasterio and pyproj, and what is said of the rest."""

import sys

import numpy as np
import pytest
import torch

from mslsq.alignment import AlignmentOptionError, Georeference, GeoreferenceError, align
from mslsq.alignment.coordinates import systems
from mslsq.alignment.coordinates.writing import georeferenced_copy
from mslsq.alignment.rasters import read_raster

tifffile = pytest.importorskip("tifffile")
HERE = Georeference.from_geotransform((500.0, 2, 0, 800, 0, -2), "EPSG:32632")
TAGS = [(33550, 12, 3, (2.0, 2.0, 0.0), True), (33922, 12, 6, (0.0, 0.0, 0.0, 500.0, 800.0, 0.0), True)]


@pytest.fixture(autouse=True)
def without(monkeypatch):
    for name in ("rasterio", "pyproj"):
        monkeypatch.setitem(sys.modules, name, None)
    systems._system.cache_clear()
    systems._transformer.cache_clear()


def test_one_crs_needs_neither():
    """Also with other pixel sizes; the unit alone is not known."""
    base = torch.rand(90, 90, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smooth = torch.nn.functional.avg_pool2d(base[None, None], 5, 1)[0, 0]
    result = align([smooth, smooth], model="translation", georeferences=[HERE, HERE])
    assert result.aligned == [0, 1] and result.world[1].unit == "units"


def test_several_crs_are_refused_with_what_to_install():
    maps, there = [torch.rand(40, 40), torch.rand(40, 40)], Georeference(HERE.matrix, "EPSG:4326")
    with pytest.raises(AlignmentOptionError, match=r"need pyproj: pip install 'mslsq\[geo\]'"):
        align(maps, georeferences=[HERE, there])


def test_a_geotiff_is_read_and_one_without_a_header_gets_a_world_file(tmp_path):
    values = np.zeros((9, 9), np.uint8)
    keys = (1, 1, 0, 1, 3072, 0, 1, 32632)
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=[*TAGS, (34735, 3, 8, keys, True)])
    found = read_raster(tmp_path / "a.tif").georeference
    assert found.crs == "EPSG:32632" and found.geotransform == pytest.approx(HERE.geotransform)
    with pytest.raises(GeoreferenceError, match="rasterio is needed"):
        georeferenced_copy(tmp_path / "a.tif", tmp_path / "b.tif", HERE)
    assert not (tmp_path / "b.tif").exists()
    tifffile.imwrite(tmp_path / "c.tif", values)
    names = [path.name for path in georeferenced_copy(tmp_path / "c.tif", tmp_path / "d.tif", HERE)]
    assert names == ["d.tif", "d.tfw", "d.tif.aux.xml"]
    assert read_raster(tmp_path / "d.tif").georeference.geotransform == pytest.approx(HERE.geotransform)


def test_a_described_crs_is_not_guessed(tmp_path):
    keys = (1, 1, 0, 1, 3072, 0, 1, 32767)
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((9, 9), np.uint8), extratags=[*TAGS, (34735, 3, 8, keys, True)])
    raster = read_raster(tmp_path / "a.tif")
    assert raster.georeference is None and "needs rasterio" in raster.note
