"""Nodata: every pixel that the tag means, no other, and the same ones again in what is written."""

import numpy as np
import pytest
import torch

from mslsq.alignment import rasters

tifffile = pytest.importorskip("tifffile")

LOWEST = np.finfo(np.float32).min


def stored(path, array, text, **options):
    tifffile.imwrite(path, array, extratags=[(42113, 2, len(text) + 1, text, True)], metadata=None, **options)
    return rasters.read_raster(path)


def holes(raster):
    return int((~raster.mask).sum())


def again(path, raster):
    return rasters.read_raster(rasters.write_raster(path, raster.values, raster.mask, raster.kind))


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("-3.40282346638529e+38", np.float32, LOWEST),  # GDAL's own, 15 digits
        ("-3.402823e+38", np.float32, LOWEST),  # seven digits: three units in the last place of float32 away
        ("-3.40282346638529e+38", np.float64, LOWEST),
        ("-9999.9", np.float32, -9999.9),
        ("0.1", np.float32, 0.1),
        ("0.1", np.float64, 0.1),
        ("1234567", np.float32, 1234567),
        ("-32768", np.int16, -32768),
        ("-9999.0", np.int16, -9999),
        ("4294967295", np.uint32, 4294967295),
        ("9223372036854775807", np.int64, 2**63 - 1),
        ("18446744073709551615", np.uint64, 2**64 - 1),
        ("nan", np.float32, np.nan),
        ("-1.#IND", np.float64, np.nan),
    ],
)
def test_what_the_tag_means_is_masked_and_written_so_that_it_is_masked_again(tmp_path, text, dtype, value):
    array = (np.random.default_rng(0).random((40, 50)) * 100).astype(dtype)
    array[:5] = np.array(value).astype(dtype)
    raster = stored(tmp_path / "a.tif", array, text)
    assert holes(raster) == 250
    assert not raster.mask[:5].any()
    second = again(tmp_path / "b.tif", raster)
    assert torch.equal(second.mask, raster.mask)
    assert torch.equal(second.values[:, raster.mask], raster.values[:, raster.mask])
    if value == value:  # and by another reader, in the numbers themselves
        assert (tifffile.imread(tmp_path / "b.tif")[:5] == np.array(value).astype(dtype)).all()


@pytest.mark.parametrize(
    ("text", "dtype"), [("-9999", np.uint8), ("256", np.uint8), ("nan", np.int16), ("0.5", np.int16)]
)
def test_a_value_that_no_pixel_can_have_masks_nothing_and_is_not_written(tmp_path, text, dtype):
    array = np.arange(200, dtype=dtype).reshape(10, 20)
    raster = stored(tmp_path / "a.tif", array, text)
    assert raster.kind.nodata is None
    assert raster.mask.all()
    raster.mask[0] = False
    out = rasters.write_raster(tmp_path / "b.tif", raster.values, raster.mask, raster.kind)
    with tifffile.TiffFile(out) as tiff:
        assert 42113 not in tiff.pages[0].tags  # -9999 clipped to 0 would be data


def test_a_tag_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(rasters.RasterError, match=r"a\.tif: its nodata value 'none' is no number"):
        stored(tmp_path / "a.tif", np.zeros((3, 4), np.float32), "none")


def test_data_that_round_to_nodata_stay_data(tmp_path):
    raster = stored(tmp_path / "a.tif", np.full((4, 5), 7, np.uint8), "0")
    values = torch.full((1, 4, 5), 0.4, dtype=torch.float64)
    out = rasters.write_raster(tmp_path / "b.tif", values, raster.mask, raster.kind)
    second = rasters.read_raster(out)
    assert second.mask.all()
    assert (second.values == 1).all()
    high = stored(tmp_path / "c.tif", np.full((4, 5), 7, np.uint8), "255")
    second = rasters.read_raster(rasters.write_raster(tmp_path / "d.tif", 300 + values, high.mask, high.kind))
    assert second.mask.all()
    assert (second.values == 254).all()
    for dtype in (np.float32, np.float64):
        real = stored(tmp_path / "e.tif", np.full((4, 5), 7, dtype), "-9999.9")
        second = rasters.read_raster(
            rasters.write_raster(tmp_path / "f.tif", 0 * values - 9999.9, real.mask, real.kind)
        )
        assert second.mask.all()


def test_black_is_no_data_in_a_colour_picture_only_where_all_bands_are(tmp_path):
    colour = np.full((4, 5, 3), (0, 80, 120), np.uint8)
    colour[0] = 0
    assert holes(stored(tmp_path / "rgb.tif", colour, "0", photometric="rgb")) == 5
    bands = np.ascontiguousarray(colour.transpose(2, 0, 1))
    options = {"photometric": "minisblack", "planarconfig": "separate"}
    assert holes(stored(tmp_path / "bands.tif", bands, "0", **options)) == 20


def test_whole_numbers_that_float64_cannot_hold_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[2**53 + 1, 0]]))
    with pytest.raises(rasters.RasterError, match="lose digits"):
        rasters.read_raster(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array([[2**53, -(2**31)]]))
    assert rasters.read_raster(tmp_path / "b.npy").values.flatten().tolist() == [2.0**53, -(2.0**31)]
    raster = stored(tmp_path / "c.tif", np.array([[2**63 - 1, 5]]), "9223372036854775807")  # masked: not data
    assert raster.mask.tolist() == [[False, True]]
