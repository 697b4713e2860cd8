"""Numbers for no data that no header names: named in words, refused where sure, given as nodata=."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from mslsq.alignment import CoregistrationError, MapStatus, align, align_pairs, coregister, rasters
from mslsq.alignment.scenes import scene_from_files
from mslsq.alignment.undeclared import undeclared

SHIFT = (-6.0, -11.0)


@pytest.fixture(scope="module")
def maps():
    """Two views of one scene, values from 60 to 240, moved by `SHIFT`."""
    noise = np.random.default_rng(3).standard_normal((150, 150))
    scene = ndimage.gaussian_filter(noise, 2.0)
    scene = 60 + 180 * (scene - scene.min()) / np.ptp(scene)
    return scene[10:130, 10:130].copy(), scene[21:141, 16:136].copy()


def framed(one, number, width=12):
    out = np.full_like(one, number)
    out[width:-width, width:-width] = one[width:-width, width:-width]
    return out


def found(result):
    return result.transforms[1][:2, 2].numpy()


@pytest.mark.parametrize("number", [-9999.0, -32768.0, float(np.finfo(np.float32).min), 1e20, -3000.0])
def test_a_number_that_can_only_mean_no_data_is_refused_by_name(maps, number):
    a, b = (framed(one, number, 40) for one in maps)  # the frames alone would put one on the other
    result = align([a, b], model="translation")
    assert result.status.tolist() == [MapStatus.BAD_INPUT, MapStatus.BAD_INPUT]
    assert f"exactly {number:.8g}" in result.reasons[0]
    assert "nodata=" in result.reasons[0]
    masked = align([np.where(one == number, np.nan, one) for one in (a, b)], model="translation")
    np.testing.assert_allclose(found(masked), SHIFT, atol=0.01)


def test_black_borders_are_named_where_a_map_finds_no_place(maps):
    result = align([framed(one, 0.0) for one in maps], model="translation")
    assert result.status[1] == MapStatus.LOW_CORRELATION
    assert "36.0% of the pixels of this map hold exactly 0" in result.reasons[1]
    assert "of the reference hold exactly 0" in result.reasons[1]
    plain = align([maps[0], np.random.default_rng(1).standard_normal((120, 120))], model="translation")
    assert "hold exactly" not in plain.reasons[1]


@pytest.mark.parametrize("kind", ["classes", "saturated", "spikes", "plain"])
def test_what_may_be_data_is_not_taken_for_a_number_for_no_data(maps, kind):
    one = maps[0].copy()
    if kind == "classes":  # an occupancy grid
        one = np.choose((one > 100).astype(int) + (one > 180), [0.0, 205.0, 254.0])
    elif kind == "saturated":  # stars
        one[20:30, 20:30] = 65535.0
    elif kind == "spikes":
        one[40, 40:50] = -9999.0
    values = torch.from_numpy(one)[None]
    said = undeclared(values, torch.ones(120, 120, dtype=torch.bool), frames=True)
    assert said is None or not said.certain
    assert (said is not None) == (kind == "saturated")


@pytest.mark.parametrize("number", [-9999.0, 0.0, 1e20])
def test_elevations_with_a_border_of_it_are_refused(maps, number):
    a, b = (1500 + one for one in maps)
    with pytest.raises(CoregistrationError, match=rf"dem hold exactly {number:.8g}.*np\.where".replace("+", r"\+")):
        coregister(a, framed(b, number), pixel_size=30.0)
    with pytest.raises(CoregistrationError, match="of reference hold exactly"):
        coregister(framed(a, number), b, pixel_size=30.0)


def test_a_lake_is_terrain(maps):
    a, b = (0.1 * one for one in maps)
    a[60:90, 40:80], b[49:79, 34:74] = -20.0, -20.0
    result = coregister(a, b, pixel_size=30.0)
    assert result.status.ok
    np.testing.assert_allclose(result.shift[:2], [180.0, -330.0], atol=1.0)


def test_a_number_is_given_for_files_that_do_not_name_it(maps, tmp_path):
    iio = pytest.importorskip("imageio.v3")
    tifffile = pytest.importorskip("tifffile")
    paths = [str(tmp_path / name) for name in ("a.png", "b.tif")]
    iio.imwrite(paths[0], np.rint(framed(maps[0], 0.0)).astype(np.uint8))
    tifffile.imwrite(paths[1], framed(maps[1], 0.0).astype(np.float32))
    scene = scene_from_files(paths, nodata=0.0)
    assert [int(raster.mask.sum()) for raster in scene.rasters if raster is not None] == [96 * 96] * 2
    np.testing.assert_allclose(found(align(**scene.to_align(), model="translation")), SHIFT, atol=0.02)
    assert rasters.read_raster(paths[1], 0.0).kind.nodata == 0  # copies say it
    assert rasters.read_raster(paths[0], 300.0).mask.all()  # no pixel of this type can have it
    for number, ok in ((0.0, True), (None, False)):
        (answer,) = align_pairs([paths], model="translation", nodata=number)
        assert answer.ok is ok


def test_windows_know_it_too(maps, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    from mslsq.alignment.big.files import RasterFile

    path = tmp_path / "a.tif"
    stored = framed(maps[0], -9999.0).astype(np.float32)
    profile = {"driver": "GTiff", "height": 120, "width": 120, "count": 1, "dtype": "float32"}
    with rasterio.open(path, "w", **profile) as out:
        out.write(stored, 1)
        out.build_overviews([2, 4], rasterio.enums.Resampling.average)
    assert RasterFile.open(path).exact_overviews
    file = RasterFile.open(path, -9999.0)
    assert not file.exact_overviews  # they hold means of it
    values, known = file.read(0, 0, 60, 60, factor=2)
    assert int(known.sum()) == 48 * 48
    assert values[0, known].min() > 50


def test_black_corners_that_leave_a_map_its_place_are_named_too(maps):
    a, b = maps[0], maps[1].copy()
    rows, columns = np.indices(b.shape)
    b[(rows + columns < 30) | (rows + columns > 205)] = 0.0
    result = align([a, b], model="translation")
    assert result.status[1] == MapStatus.ALIGNED
    assert np.abs(found(result) - SHIFT).max() < 0.01
    assert "of this map hold exactly 0" in result.reasons[1]
    assert "of the reference" not in result.reasons[1]
