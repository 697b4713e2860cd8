"""A model of other pixels or in another CRS, in windows of its file: as right as in memory, wherever it is cut."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mslsq.alignment import CoregistrationStatus, Georeference, coregister, coregister_files, write_coregistered
from mslsq.alignment.big import coarse, passing
from mslsq.alignment.big.elevations import StableTerrain
from mslsq.alignment.big.files import RasterFile
from mslsq.alignment.big.regridded import RegriddedFile
from mslsq.alignment.big.terrain import Terrain
from mslsq.alignment.coordinates.systems import transformed
from mslsq.alignment.dem.files import read_scene
from mslsq.alignment.dem.regridding import on_pixels_of
from tests.alignment.big.scans import HERE, scan

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("pyproj")

SIZE = 600
SHIFT = np.array([1.3, -2.6, 4.0])
"""Metres that make the model right."""

PIXELS = {"EPSG:32633": (1.5, 1.5), "EPSG:4326": (3.2e-5, 2.1e-5), "EPSG:32632": (4.6, 4.6)}
"""Of the other model, by its CRS: metres, and degrees (2.5 by 2.3 m)."""


def moved_model(path, crs, noise=1.0, hole=True, seed=7):
    """The terrain of `scan` on pixels of its own, its coordinates and heights off by `SHIFT`; int16 in centimetres."""
    side = HERE.to_world([[-20.0, -20.0], [SIZE + 20, -20.0], [SIZE + 20.0, SIZE + 20.0], [-20.0, SIZE + 20.0]])
    world = side if crs == HERE.crs else transformed(side, HERE.crs, crs)
    low, high, (dx, dy) = world.min(0), world.max(0), PIXELS[crs]
    columns, rows = np.ceil((high - low) / [dx, dy]).astype(int)
    header = Georeference.from_geotransform((low[0], dx, 0, high[1], 0, -dy), crs)
    y, x = np.mgrid[:rows, :columns]
    there = header.to_world(np.stack([x.ravel(), y.ravel()], -1))
    here = (there if crs == HERE.crs else transformed(there, crs, HERE.crs)) + SHIFT[:2]
    heights = Terrain(5, longest=200.0).at(torch.from_numpy(HERE.to_pixel(here))).numpy().reshape(rows, columns)
    heights = heights - SHIFT[2] + 2000 + noise * np.random.default_rng(seed).standard_normal(heights.shape)
    stored = np.rint((heights - 1500) / 0.1).astype(np.int32)
    if hole:
        stored[rows // 3 : rows // 2, columns // 3 : columns // 2] = -1
    profile = {"driver": "GTiff", "width": columns, "height": rows, "count": 1, "dtype": "int32", "nodata": -1}
    transform = rasterio.Affine.from_gdal(*header.geotransform)
    with rasterio.open(path, "w", transform=transform, crs=crs, **profile) as out:
        out.write(stored, 1)
        out.scales, out.offsets, out.units = (0.1,), (1500.0,), ("metre",)
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return scan(
        tmp_path_factory.mktemp("one") / "a.tif", np.eye(3), 1, size=(SIZE, SIZE), header=HERE, nodata=-9999, noise=1.0
    )


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(coarse, "PIXELS", 1 << 15)
    monkeypatch.setattr(passing, "WINDOW", 256)


def whole_of(path):
    with rasterio.open(path) as dataset:
        stored = dataset.read(1)
        return np.where(stored == -1, np.nan, 0.1 * stored + 1500)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("crs", PIXELS)
@pytest.mark.parametrize("pixels", [1.0, 3.0])
def test_windows_are_parts_of_what_memory_would_hold(crs, pixels, tmp_path):
    """Of a reference with `pixels` of those of `HERE`: of 6 m, so that the other is reduced first."""
    reference = Georeference(HERE.matrix @ np.diag([pixels, pixels, 1.0]), HERE.crs)
    file, size = RasterFile.open(moved_model(tmp_path / "b.tif", crs)), (round(SIZE / pixels),) * 2
    seen = RegriddedFile.around(file, reference, size)
    expected, here = on_pixels_of(reference, size, np.asarray(whole_of(file.path)), file.georeference)
    assert seen.size == expected.shape and np.array_equal(seen.georeference.matrix, here.matrix)
    compared = 0
    for top, left, height, width in ((-5, -7, 130, 150), (40, 60, 128, 128), (seen.size[0] - 90, 30, 128, 100)):
        values, known = seen.read(top, left, height, width)
        values = np.where(known, 0.1 * values[0] + 1500, np.nan)
        rows, columns = np.arange(top, top + height), np.arange(left, left + width)
        there = (rows >= 0) & (rows < seen.size[0]), (columns >= 0) & (columns < seen.size[1])
        inner = values[np.ix_(*there)]
        same = expected[np.ix_(rows[there[0]], columns[there[1]])]
        assert np.array_equal(np.isfinite(inner), np.isfinite(same))
        assert np.nanmax(np.abs(inner - same)) < 1e-6
        outside = np.isfinite(values) & ~np.outer(*there)
        assert not outside.any()
        compared += int(np.isfinite(inner).sum())
    assert compared > 20_000


@pytest.mark.slow
@pytest.mark.parametrize("crs", PIXELS)
def test_another_crs_or_pixel_size_is_found_as_in_memory(crs, reference, tmp_path):
    dem = moved_model(tmp_path / "b.tif", crs)
    found = coregister_files(reference, dem, memory="1.2GB")
    scene = read_scene(str(reference), str(dem), None, None, 0.0)
    whole = replace(coregister(scene.reference, scene.dem, **scene.geometry()), own=scene.own)
    assert found.status is CoregistrationStatus.COREGISTERED
    assert (np.abs(found.shift - whole.shift) <= 2 * found.standard_errors).all()
    assert np.abs(found.shift - SHIFT).max() < 0.1
    assert found.after.whole["count"] == pytest.approx(whole.after.whole["count"], rel=2e-3)
    assert found.nmad == pytest.approx(whole.nmad, rel=2e-2)
    assert "b.tif was resampled to the pixels of a.tif (cubic)" in found.message()
    record, same = found.record(), whole.record()
    assert (record["crs"] == same["crs"] and "corrected_geotransform" not in record) or crs == HERE.crs
    if crs == HERE.crs:
        own = RasterFile.open(dem).georeference
        assert np.allclose(found.georeference.matrix[:2, :2], own.matrix[:2, :2])
        assert np.allclose((found.georeference.matrix - own.matrix)[:2, 2], SHIFT[:2], atol=0.1)
    path, _ = write_coregistered(found, tmp_path / "moved.tif")
    with rasterio.open(path) as written, rasterio.open(reference) as given:
        assert written.transform == given.transform and written.crs == given.crs and written.shape == given.shape
        assert written.nodata == -1 and written.dtypes == ("float32",) and written.units == ("metre",)
        moved = np.where(written.read(1) == -1, np.nan, written.read(1))
    expected = whole.apply(scene.dem)
    assert (np.isfinite(moved) != np.isfinite(expected)).mean() < 1e-3
    assert np.nanmax(np.abs(moved - expected)) < 0.2 and np.nanmean(np.abs(moved - expected)) < 0.05


def test_a_mask_of_other_pixels_is_read_where_it_lies(tmp_path):
    coarser = rasterio.Affine.from_gdal(500000.0, 4.0, 0.0, 5000000.0, 0.0, -4.0)
    stable = np.ones((SIZE // 2, SIZE // 2), dtype=np.uint8)
    stable[:50, :100] = 0  # of pixels of 4 m: the first 100 rows and 200 columns
    profile = {"driver": "GTiff", "width": SIZE // 2, "height": SIZE // 2, "count": 1, "dtype": "uint8"}
    with rasterio.open(tmp_path / "mask.tif", "w", transform=coarser, crs="EPSG:32632", **profile) as out:
        out.write(stable, 1)
    terrain = StableTerrain.of(tmp_path / "mask.tif", 0.0, (SIZE, SIZE), HERE)
    mask = terrain.read(-10, -10, 200, 400)
    assert not mask[:110, :210].any()
    assert bool(mask[110:, 10:].all()) and bool(mask[10:, 210:].all())
    assert not bool(mask[:10].any()) and not bool(mask[:, :10].any())  # nothing is known there
    reduced = terrain.read(0, 0, SIZE // 4, SIZE // 4, 4)
    assert not reduced[:25, :50].any() and bool(reduced[25:].all())
