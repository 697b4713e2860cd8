"""Elevation models from files: what headers say, grids that differ, and what is written."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from mslsq.alignment import CoregistrationError, CoregistrationStatus, coregister, coregister_blocks
from mslsq.alignment.dem.files import read_scene
from mslsq.alignment.dem.outputs import write_coregistration

rasterio = pytest.importorskip("rasterio")
warp = pytest.importorskip("rasterio.warp")

HERE = rasterio.Affine(30, 0, 500000, 0, -30, 5100000)


def written(path, values, crs="EPSG:32632", transform=HERE, nodata=-9999.0, dtype="float32", **options):
    """A GeoTIFF; NaN as nodata."""
    filled = values if nodata is None else np.where(np.isnan(values), nodata, values)
    profile = {"driver": "GTiff", "height": values.shape[0], "width": values.shape[1], "count": 1, "dtype": dtype}
    with rasterio.open(path, "w", crs=crs, transform=transform, nodata=nodata, **profile, **options) as file:
        file.write(filled.astype(dtype), 1)
    return str(path)


def solved(scene, **options):
    return coregister(scene.reference, scene.dem, mask=scene.mask, **scene.geometry(), **options)


def test_what_is_written_has_the_place_the_nodata_and_the_tiles_of_the_files(pair, tmp_path):
    made = pair()
    dem = made.dem.copy()
    dem[30:50, 60:90] = np.nan
    tiles = {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"}
    scene = read_scene(
        written(tmp_path / "reference.tif", made.reference),
        written(tmp_path / "dem.tif", dem, nodata=-32768, **tiles), None, None, 0.0,
    )  # fmt: skip
    found = solved(scene)
    paths = write_coregistration(scene, found, None, tmp_path / "out", {"bias": "offset"})
    assert {path.name for path in paths} >= {
        "coregistered.tif", "changed.tif", "metrics.csv", "statistics.csv", "report.html", "differences.png",
    }  # fmt: skip
    with rasterio.open(tmp_path / "out" / "coregistered.tif") as file:
        assert file.transform == HERE and file.crs.to_epsg() == 32632
        assert file.nodata == -32768 and file.block_shapes == [(64, 64)]
        values = file.read(1, masked=True)
    assert values.mask[35:45, 65:85].all()
    assert abs(np.ma.mean(values - made.truth)) < 0.02
    (row,) = csv.DictReader((tmp_path / "out" / "metrics.csv").open())
    assert row["status"] == "coregistered" and float(row["east_m"]) == pytest.approx(12, abs=0.2)
    rows = list(csv.DictReader((tmp_path / "out" / "statistics.csv").open()))
    whole = next(row for row in rows if row["by"] == "whole")
    assert float(whole["nmad_after"]) == pytest.approx(found.nmad) and int(float(whole["count_after"])) > 10_000
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert (
        "Differences by terrain" in page
        and page.count("data:image") >= 6
        and "http://" not in page.replace("http://www.w3.org", "")
    )


def test_models_without_a_nodata_value_have_one_afterwards(pair, tmp_path):
    made = pair()
    paths = [
        written(tmp_path / name, one, nodata=None)
        for name, one in (("a.tif", made.reference), ("b.tif", made.dem))
    ]  # fmt: skip
    scene = read_scene(*paths, None, None, 0.0)
    write_coregistration(scene, solved(scene), None, tmp_path / "out")
    with rasterio.open(tmp_path / "out" / "coregistered.tif") as file:
        assert np.isnan(file.nodata)


def test_scale_and_offset_of_a_file_make_metres_and_feet_are_refused(pair, tmp_path):
    made = pair()
    plain, stored = written(tmp_path / "a.tif", made.reference), tmp_path / "b.tif"
    written(stored, np.round((made.dem + 1000) / 0.05), dtype="int16", nodata=-32768)
    with rasterio.open(stored, "r+") as file:
        file.scales, file.offsets = (0.05,), (-1000.0,)
    found = solved(read_scene(plain, str(stored), None, None, 0.0))
    np.testing.assert_allclose(found.shift, made.shift, atol=0.2)
    with rasterio.open(stored, "r+") as file:
        file.units = ("ft",)
    with pytest.raises(CoregistrationError, match="are in ft"):
        read_scene(plain, str(stored), None, None, 0.0)


@pytest.mark.parametrize("crs", ["EPSG:32632", "EPSG:4326", "EPSG:3035"])
def test_another_crs_or_pixel_size_is_brought_to_the_reference(pair, crs, tmp_path):
    made = pair(side=192)
    plain, other = written(tmp_path / "a.tif", made.reference), tmp_path / "b.tif"
    step = 2.7e-4 if crs == "EPSG:4326" else 20.0
    bounds = warp.transform_bounds("EPSG:32632", crs, 500000, 5100000 - 192 * 30, 500000 + 192 * 30, 5100000)
    size = [round((bounds[2] - bounds[0]) / step), round((bounds[3] - bounds[1]) / step)]
    there, values = rasterio.Affine(step, 0, bounds[0], 0, -step, bounds[3]), np.full(size[::-1], np.nan)
    warp.reproject(
        made.dem, values, src_transform=HERE, src_crs="EPSG:32632", dst_transform=there, dst_crs=crs,
        dst_nodata=np.nan, resampling=warp.Resampling.cubic,
    )  # fmt: skip
    scene = read_scene(plain, written(other, values, crs=crs, transform=there), None, None, 0.0)
    assert "was resampled" in scene.note and "b.tif" in scene.note
    found = solved(scene)
    assert found.status is CoregistrationStatus.COREGISTERED
    np.testing.assert_allclose(found.shift, made.shift, atol=1.0)  # of pixels of 30 m, resampled twice
    record = replace(found, own=scene.own).record()
    if crs == "EPSG:32632":  # the header of the model's own pixels
        assert record["corrected_geotransform"][1] == pytest.approx(20)
        assert record["corrected_geotransform"][0] == pytest.approx(bounds[0] + found.shift[0])
    else:
        assert "corrected_geotransform" not in record


def test_models_that_lie_apart_are_refused(pair, tmp_path):
    made, away = pair(), rasterio.Affine(20, 0, 600000, 0, -20, 5100000)
    plain = written(tmp_path / "a.tif", made.reference)
    with pytest.raises(CoregistrationError, match="lie apart"):
        read_scene(plain, written(tmp_path / "b.tif", made.dem, transform=away), None, None, 0.0)


def test_a_mask_of_other_pixels_is_read_where_it_lies(pair, tmp_path):
    made = pair()
    names = [written(tmp_path / f"{k}.tif", one) for k, one in enumerate((made.reference, made.dem))]
    stable = np.ones((64, 64))
    stable[:16, :32] = 0  # of pixels of 60 m: the first 32 rows and 64 columns
    coarse = written(tmp_path / "mask.tif", stable, transform=rasterio.Affine(60, 0, 500000, 0, -60, 5100000))
    mask = read_scene(*names, coarse, None, 0.0).mask
    assert not mask[:32, :64].any() and mask[32:].all() and mask[:, 64:].all()
    shifted = written(tmp_path / "shifted.tif", np.ones((128, 128)), transform=HERE @ rasterio.Affine.translation(8, 0))
    mask = read_scene(*names, shifted, None, 0.0).mask
    assert not mask[:, :8].any() and mask[:, 8:].all()


def test_blocks_are_a_table_and_a_record(pair, tmp_path):
    made = pair()
    names = [written(tmp_path / f"{k}.tif", one) for k, one in enumerate((made.reference, made.dem))]
    scene = read_scene(*names, None, None, 0.0)
    local = coregister_blocks(scene.reference, scene.dem, block=64, **scene.geometry())
    write_coregistration(scene, local.whole, local, tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "local_shifts.csv").open()))
    assert len(rows) == 4 and float(rows[0]["x"]) == pytest.approx(500000 + 30 * 32)
    assert float(rows[3]["east_m"]) == pytest.approx(12, abs=1)
    again = json.loads(json.dumps(local.record(), allow_nan=False))
    assert len(again["blocks"]) == 4 and again["blocks"][0]["reason"] == ""


def test_a_result_shows_itself(pair, tmp_path):
    made = pair()
    found = coregister(made.reference, made.dem, pixel_size=30.0, bias="plane")
    page = found.report(
        tmp_path / "report.html", made.reference, made.dem, options={"bias": "plane"}, title="A <b> pair"
    )
    text = page.read_text("utf-8")
    assert "A &lt;b&gt; pair" in text and "bias x" in text and "<b>" not in text
    figure = found.plot(made.reference, made.dem, path=tmp_path / "figure.png")
    assert len(figure.axes) == 4 and (tmp_path / "figure.png").stat().st_size > 10_000
    assert "slope 0-5 deg" in found._repr_html_()


def test_a_result_that_has_nothing_says_so_in_its_report(pair, tmp_path):
    made = pair()
    nothing = coregister(made.reference, made.dem, pixel_size=30.0, mask=np.zeros_like(made.dem, dtype=bool))
    text = nothing.report(tmp_path / "report.html", made.reference, made.dem).read_text("utf-8")
    assert "no stable pixel" in text
    with pytest.raises(CoregistrationError, match="nothing was found"):
        nothing.plot(made.reference, made.dem)
