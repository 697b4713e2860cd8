"""TIFF: what bands mean is what the file says, and what cannot be kept is refused."""

import numpy as np
import pytest
import torch

from mslsq.alignment import rasters, scenes

tifffile = pytest.importorskip("tifffile")


def noise(*shape, high=256, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, high, shape).astype(dtype)


def stored(path, array, **options):
    tifffile.imwrite(path, array, metadata=None, **options)
    return rasters.read_raster(path)


def again(path, raster):
    second = rasters.read_raster(rasters.write_raster(path, raster.values, raster.mask, raster.kind))
    assert torch.equal(second.mask, raster.mask)
    assert torch.equal(second.values[:, second.mask], raster.values[:, raster.mask])
    return second


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((40, 50, 4), {"photometric": "rgb", "extrasamples": ["unspecified"]}),
        ((4, 40, 50), {"photometric": "minisblack", "planarconfig": "separate"}),
        ((40, 50, 2), {"photometric": "minisblack", "planarconfig": "contig"}),
        ((4, 40, 50), {"photometric": "rgb", "planarconfig": "separate", "extrasamples": ["unspecified"]}),
        ((40, 50, 6), {"photometric": "rgb", "extrasamples": ["unspecified"] * 3}),
    ],
)
def test_bands_that_the_file_does_not_call_alpha_are_data_now_and_when_written(tmp_path, shape, options):
    array = noise(*shape)
    raster = stored(tmp_path / "a.tif", array, **options)
    bands = array if options.get("planarconfig") == "separate" else array.transpose(2, 0, 1)
    assert np.array_equal(raster.values.numpy(), bands)
    assert raster.mask.all()
    assert again(tmp_path / "b.tif", raster).kind == raster.kind


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("place", [3, 4])
def test_alpha_is_the_band_that_the_file_names(tmp_path, dtype, place):
    full = np.iinfo(dtype).max
    array = noise(20, 30, 5, high=full, dtype=dtype)
    extra = ["unassalpha" if k == place else "unspecified" for k in (3, 4)]
    raster = stored(tmp_path / "a.tif", array, photometric="rgb", extrasamples=extra)
    assert np.array_equal(raster.mask.numpy(), array[..., place] >= full / 2)
    assert np.array_equal(raster.values.numpy(), np.delete(array, place, -1).transpose(2, 0, 1))
    again(tmp_path / "b.tif", raster)


def test_colours_multiplied_by_alpha_are_divided_by_it(tmp_path):
    array = np.full((4, 5, 4), (50, 100, 0, 128), np.uint8)
    raster = stored(tmp_path / "a.tif", array, photometric="rgb", extrasamples=["assocalpha"])
    assert raster.values[:, 0, 0].tolist() == [100, 199, 0]  # 255 v / 128
    assert raster.mask.all()


def test_white_may_be_zero_and_one_bit_is_black_and_white(tmp_path):
    array = noise(20, 32)
    raster = stored(tmp_path / "a.tif", array, photometric="miniswhite")
    assert np.array_equal(raster.values[0].numpy(), 255 - array.astype(int))
    for photometric in ("minisblack", "miniswhite"):
        bits = stored(tmp_path / "b.tif", array > 100, photometric=photometric)
        expected = (array > 100) ^ (photometric == "miniswhite")
        assert np.array_equal(bits.values[0].numpy(), 255 * expected)
        assert bits.kind.dtype == np.uint8
        again(tmp_path / "c.tif", bits)


def test_palettes_are_colours_and_their_nodata_is_alpha(tmp_path):
    table = noise(3, 256).astype(np.uint16) * 257
    array = noise(20, 30)
    tag = (42113, 2, 3, "77", True)
    raster = stored(tmp_path / "a.tif", array, photometric="palette", colormap=table, extratags=[tag])
    assert np.array_equal(raster.values.numpy(), table[:, array] // 257)
    assert np.array_equal(raster.mask.numpy(), array != 77)
    again(tmp_path / "b.tif", raster)


def test_inks_are_colours(tmp_path):
    array = noise(20, 30, 4)
    raster = stored(tmp_path / "a.tif", array, photometric="separated")
    c, k = array[..., :3] / 255, array[..., 3:] / 255
    assert np.array_equal(raster.values.numpy().transpose(1, 2, 0), np.rint(255 * (1 - c) * (1 - k)))
    again(tmp_path / "b.tif", raster)


def test_other_colour_spaces_are_refused(tmp_path):
    with pytest.raises(rasters.RasterError, match=r"CIELAB.*convert it to RGB"):
        stored(tmp_path / "a.tif", noise(20, 30, 3), photometric="cielab")


def test_several_pages_are_refused_and_overviews_are_not(tmp_path):
    pages = noise(5, 20, 30)
    with pytest.raises(rasters.RasterError, match="5 pictures"):
        stored(tmp_path / "a.tif", pages, photometric="minisblack")
    with tifffile.TiffWriter(tmp_path / "imagej.tif", imagej=True) as tiff:
        tiff.write(pages.astype(np.uint16))
    with pytest.raises(rasters.RasterError, match="5 pictures"):
        rasters.read_raster(tmp_path / "imagej.tif")
    with tifffile.TiffWriter(tmp_path / "b.tif") as tiff:
        tiff.write(pages[0], photometric="minisblack", metadata=None)
        tiff.write(pages[0][::2, ::2], photometric="minisblack", subfiletype=1, metadata=None)
    assert np.array_equal(rasters.read_raster(tmp_path / "b.tif").values[0].numpy(), pages[0])


def test_one_page_of_a_stack_is_named_by_number_or_name_and_every_page_is_a_map(tmp_path):
    pages = noise(3, 20, 30)
    path = tmp_path / "stack.tif"
    with tifffile.TiffWriter(path) as tiff:
        for page, name in zip(pages, ("red", "green", "blue"), strict=True):
            tags = [(285, 2, 0, name, False)]
            tiff.write(page, photometric="minisblack", metadata=None, extratags=tags)
            tiff.write(page[::2, ::2], photometric="minisblack", subfiletype=1, metadata=None)
            tiff.write(page > 100, photometric="mask", subfiletype=4, metadata=None)
    for number, name in enumerate(("red", "green", "blue")):
        for key in (number, name):
            raster = rasters.read_raster(f"{path}:{key}")
            assert np.array_equal(raster.values[0].numpy(), pages[number])
            assert np.array_equal(raster.mask.numpy(), pages[number] > 100)
            assert raster.name == f"stack.tif:{key}" and raster.path is None
    with pytest.raises(
        rasters.RasterError, match=r"3 pictures.*stack\.tif:0', or .*stack\.tif:red', or every one .*:all'"
    ):
        rasters.read_raster(path)
    with pytest.raises(rasters.RasterError, match=r"no page 'gren'; it has the pages 0 to 2, named red.*mean 'green'"):
        rasters.read_raster(f"{path}:gren")
    with pytest.raises(rasters.RasterError, match="no page '3'"):
        rasters.read_raster(f"{path}:3")
    scene = scenes.scene_from_files([f"{path}:all"])
    assert scene.names == ["stack.tif:0", "stack.tif:1", "stack.tif:2"]
    assert set(scene.files) == {path} and len(scene.to_align()["maps"]) == 3


def test_the_masks_of_gdal_are_read_inside_and_beside_the_file(tmp_path):
    array, mask = noise(20, 32), noise(20, 32) > 100
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        tiff.write(array, photometric="minisblack", metadata=None)
        tiff.write(mask, photometric="mask", subfiletype=4, metadata=None)
    assert np.array_equal(rasters.read_raster(tmp_path / "a.tif").mask.numpy(), mask)
    tifffile.imwrite(tmp_path / "b.tif", array, metadata=None)
    tifffile.imwrite(tmp_path / "b.tif.msk", mask.astype(np.uint8) * 255, metadata=None)
    assert np.array_equal(rasters.read_raster(tmp_path / "b.tif").mask.numpy(), mask)


def test_scale_and_offset_of_the_values_survive_and_statistics_do_not(tmp_path):
    items = ['<Item name="SCALE" sample="0" role="scale">0.1</Item>', '<Item name="STATISTICS_MAXIMUM">9</Item>']
    text = f"<GDALMetadata>{''.join(items)}</GDALMetadata>"
    tag = (42112, 2, len(text) + 1, text, True)
    raster = stored(tmp_path / "a.tif", noise(20, 30, high=9, dtype=np.int16), extratags=[tag])
    again(tmp_path / "b.tif", raster)
    with tifffile.TiffFile(tmp_path / "b.tif") as tiff:
        written = tiff.pages[0].tags[42112].value
    assert items[0] in written
    assert items[1] not in written


@pytest.mark.parametrize("byteorder", [">", "<"])
@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u4", "i8", "f2", "f4", "f8"])
def test_every_real_type_and_byte_order_comes_back_bit_for_bit(tmp_path, dtype, byteorder):
    array = np.random.default_rng(0).normal(0, 30, (20, 30)).astype(np.int8).astype(dtype)
    raster = stored(tmp_path / "a.tif", array, byteorder=byteorder)
    assert np.array_equal(raster.values[0].numpy(), array.astype(np.float64))
    assert raster.kind.dtype == np.dtype(dtype)
    again(tmp_path / "b.tif", raster)


def test_numbers_beyond_the_type_are_its_largest_and_never_wrap_or_vanish(tmp_path):
    known = torch.ones(1, 3, dtype=torch.bool)
    for dtype in (np.int16, np.uint32, np.int64, np.uint64, np.float16, np.float32):
        kind = rasters.Kind(".npy", np.dtype(dtype))
        limits = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
        values = torch.tensor([[[-1e300, 1e300, 5.0]]], dtype=torch.float64)
        out = np.load(rasters.write_raster(tmp_path / "a.npy", values, known, kind))
        assert out[0].tolist() == [limits.min, limits.max, 5]


def test_packed_files_are_read(tmp_path):
    pytest.importorskip("imagecodecs")
    array = noise(32, 48)
    for compression in ("lzw", "zstd", "deflate", "packbits"):
        raster = stored(tmp_path / "a.tif", array, compression=compression)
        assert np.array_equal(raster.values[0].numpy(), array), compression
    smooth = np.rint(np.add.outer(np.arange(32), np.arange(48)) * 2).astype(np.uint8)
    assert np.abs(stored(tmp_path / "b.tif", smooth, compression="jpeg").values[0].numpy() - smooth).max() < 10


def test_without_the_codecs_the_error_says_what_to_install(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", noise(32, 48), metadata=None)

    def missing(page):
        raise ValueError("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TiffPage, "asarray", missing)
    with pytest.raises(rasters.RasterError, match=r"a\.tif.*pip install imagecodecs"):
        rasters.read_raster(tmp_path / "a.tif")
