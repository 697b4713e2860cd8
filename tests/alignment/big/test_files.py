"""Windows of files: what is read is what the file holds, reduced pixels are means, and damage has a reason."""

import numpy as np
import pytest
import torch

from mslsq.alignment import RasterFile
from mslsq.alignment.kinds import RasterError
from tests.alignment.big.scans import HERE

rasterio = pytest.importorskip("rasterio")


def written(path, array, **options):
    bands = array if array.ndim == 3 else array[None]
    options = {"tiled": True, "blockxsize": 16, "blockysize": 16, "transform": HERE_AFFINE} | options
    with rasterio.open(
        path, "w", driver="GTiff", height=bands.shape[1], width=bands.shape[2], count=len(bands), dtype=bands.dtype,
        **options,
    ) as out:  # fmt: skip
        out.write(bands)
    return path


HERE_AFFINE = rasterio.Affine.from_gdal(*HERE.geotransform)


@pytest.fixture
def numbers():
    return np.random.default_rng(0).integers(1, 4000, (70, 90)).astype(np.int16)


def test_a_window_holds_the_files_own_numbers_and_knows_what_is_no_data(tmp_path, numbers):
    numbers[10:14, 20] = -9999
    file = RasterFile.open(written(tmp_path / "a.tif", numbers, nodata=-9999, crs="EPSG:32632"))
    values, known = file.read(8, 15, 20, 30)
    inside = numbers[8:28, 15:45]
    assert np.array_equal(known.numpy(), inside != -9999)
    assert np.array_equal(values[0].numpy()[known], inside[inside != -9999])
    assert file.georeference.crs == "EPSG:32632" and file.size == (70, 90)
    assert np.allclose(file.georeference.geotransform, HERE.geotransform)


def test_outside_of_the_raster_nothing_is_known(tmp_path, numbers):
    file = RasterFile.open(written(tmp_path / "a.tif", numbers))
    values, known = file.read(-5, 80, 20, 30)
    assert int(known.sum()) == 15 * 10
    assert np.array_equal(values[0, 5:, :10].numpy(), numbers[:15, 80:])


def test_a_reduced_pixel_is_the_mean_of_the_data_in_its_block(tmp_path, numbers):
    numbers[:4, :3] = -1
    file = RasterFile.open(written(tmp_path / "a.tif", numbers, nodata=-1))
    values, known = file.read(0, 0, *file.reduced(4), 4)
    blocks = np.where(numbers < 0, np.nan, numbers.astype(float))[:68, :88].reshape(17, 4, 22, 4)
    assert np.allclose(values[0, :17, :22].numpy()[1:], np.nanmean(blocks, (1, 3))[1:])
    assert not bool(known[0, 0]), "a quarter of a block is no pixel"
    assert bool(known[17, 0]) and bool(known[0, 22]), "half of a block at the border is"
    part, _ = file.read(3, 5, 6, 7, 4)
    assert torch.equal(part, values[:, 3:9, 5:12])


def test_rows_are_reduced_some_at_a_time_with_the_same_numbers(tmp_path, numbers, monkeypatch):
    file = RasterFile.open(written(tmp_path / "a.tif", numbers))
    whole = file.read(0, 0, *file.reduced(3), 3)
    monkeypatch.setattr("mslsq.alignment.big.files.CHUNK", 1)
    assert all(torch.equal(*both) for both in zip(whole, file.read(0, 0, *file.reduced(3), 3), strict=True))


def test_overviews_are_read_where_they_divide_the_factor(tmp_path, numbers):
    path = written(tmp_path / "a.tif", numbers[:64, :88])
    without = RasterFile.open(path).read(0, 0, 16, 22, 4)[0]
    with rasterio.open(path, "r+") as dataset:
        dataset.build_overviews([2, 4], rasterio.enums.Resampling.average)
    file = RasterFile.open(path)
    assert file.overviews == (2, 4)
    reduced = file.read(0, 0, 16, 22, 4)[0]
    assert 0 < float((reduced - without).abs().max()) <= 1.0, "overviews of whole numbers are rounded"


def test_overviews_whose_blocks_are_not_whole_are_not_used(tmp_path, numbers):
    path = written(tmp_path / "a.tif", numbers)
    without = RasterFile.open(path).read(0, 0, 18, 23, 4)[0]
    with rasterio.open(path, "r+") as dataset:
        dataset.build_overviews([2, 4], rasterio.enums.Resampling.average)
    file = RasterFile.open(path)
    assert file.overviews == (2, 4) and file.exact_overviews == (2,)
    assert float((file.read(0, 0, 18, 23, 4)[0] - without).abs().max()) <= 0.5


def test_alpha_masks_and_nan_are_no_data(tmp_path):
    colours = np.random.default_rng(0).integers(0, 255, (4, 32, 32)).astype(np.uint8)
    colours[3] = 255
    colours[3, :5] = 0
    file = RasterFile.open(written(tmp_path / "rgba.tif", colours, photometric="RGB", alpha="YES"))
    assert file.bands == (1, 2, 3)
    assert file.kind.colours
    assert not bool(file.read(0, 0, 5, 32)[1].any()) and bool(file.read(5, 0, 27, 32)[1].all())
    grey = file.grey(5, 0, 27, 32)[0][0].numpy()
    assert np.allclose(grey, np.einsum("chw,c->hw", colours[:3, 5:], [0.2126, 0.7152, 0.0722]))
    heights = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    heights[3, 4] = np.nan
    file = RasterFile.open(written(tmp_path / "nan.tif", heights))
    values, known = file.read(0, 0, 32, 32)
    assert not bool(known[3, 4]) and int(known.sum()) == 32 * 32 - 1 and bool(values.isfinite().all())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.write_bytes(b"II*\0" + b"x" * 40), "cannot be read in windows"),
        (lambda path: written(path, np.zeros((20, 20), np.complex64)), "real numbers"),
    ],
)
def test_what_is_no_raster_is_refused_with_its_reason(tmp_path, make, words):
    make(tmp_path / "a.tif")
    with pytest.raises(RasterError, match=words):
        RasterFile.open(tmp_path / "a.tif")


def test_a_truncated_file_names_the_window_that_cannot_be_read(tmp_path):
    path = written(tmp_path / "a.tif", np.random.default_rng(0).random((256, 256)), blockxsize=64, blockysize=64)
    path.write_bytes(path.read_bytes()[:-200_000])
    file = RasterFile.open(path)
    with pytest.raises(RasterError, match=r"rows 192 to 256, columns 0 to 64 cannot be read"):
        file.read(192, 0, 64, 64)


def test_a_stack_is_not_read_as_its_first_page(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    array = np.random.default_rng(0).random((4, 64, 64)).astype(np.float32)
    tifffile.imwrite(tmp_path / "pages.tif", array, photometric="minisblack")
    with pytest.raises(RasterError, match="this file holds 4"):
        RasterFile.open(tmp_path / "pages.tif")
    with pytest.warns(DeprecationWarning):
        tifffile.imwrite(tmp_path / "planes.tif", array, tile=(16, 16))
    with pytest.raises(RasterError, match="red, green, blue and alpha"):
        RasterFile.open(tmp_path / "planes.tif")
