"""Files: every kind read and written back, damaged ones refused in words."""

import numpy as np
import pytest
import torch

from mslsq.alignment import rasters
from mslsq.replacing import replacing, write_text

iio = pytest.importorskip("imageio.v3")
tifffile = pytest.importorskip("tifffile")


def picture(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    return random.standard_normal(shape).astype(dtype)


KINDS = [
    ("grey8.png", (20, 30), np.uint8),
    ("grey16.png", (20, 30), np.uint16),
    ("rgb.png", (20, 30, 3), np.uint8),
    ("rgba.png", (20, 30, 4), np.uint8),
    ("float.tif", (20, 30), np.float32),
    ("int16.tif", (20, 30), np.int16),
    ("rgb.tif", (20, 30, 3), np.uint8),
    ("bands.tif", (5, 20, 30), np.float32),
    ("map.npy", (20, 30), np.float64),
    ("channels.npy", (2, 20, 30), np.float32),
    ("picture.npy", (20, 30, 3), np.uint8),
]


def store(path, array):
    if path.suffix == ".tif":
        options = {"photometric": "rgb"} if array.shape[-1] == 3 else {"photometric": "minisblack"}
        options |= {"planarconfig": "separate"} if path.stem == "bands" else {}
        tifffile.imwrite(path, array, **options)
    elif path.suffix == ".npy":
        np.save(path, array)
    else:
        iio.imwrite(path, array)


@pytest.mark.parametrize(("name", "shape", "dtype"), KINDS)
def test_what_is_written_reads_back_bit_for_bit(tmp_path, name, shape, dtype):
    array = picture(shape, dtype)
    if name.startswith("rgba"):
        array[..., 3] = np.where(np.arange(30) < 10, 0, 255)
        array[..., :3] *= (array[..., 3:] > 0).astype(np.uint8)
    store(tmp_path / name, array)
    first = rasters.read_raster(tmp_path / name)
    assert first.values.dtype == torch.float64
    assert first.values.shape[1:] == (20, 30)
    assert first.kind.dtype == dtype
    written = rasters.write_raster(tmp_path / "again" / "copy.xyz", first.values, first.mask, first.kind)
    assert written.suffix == (tmp_path / name).suffix
    second = rasters.read_raster(written)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.mask, second.mask)
    assert second.kind.dtype == dtype


def test_alpha_is_the_mask(tmp_path):
    array = picture((20, 30, 4), np.uint8)
    array[..., 3] = np.where(np.arange(30) < 10, 0, 255)
    iio.imwrite(tmp_path / "a.png", array)
    raster = rasters.read_raster(tmp_path / "a.png")
    assert raster.values.shape[0] == 3
    assert not raster.mask[:, :10].any()
    assert raster.mask[:, 10:].all()


def test_nodata_and_georeference_survive(tmp_path):
    array = picture((20, 30), np.int16)
    array[3:6] = -32768
    scale, tie = (30.0, 30.0, 0.0), (0.0, 0.0, 0.0, 5e5, 4e6, 0.0)
    tags = [(33550, 12, 3, scale, True), (33922, 12, 6, tie, True), (42113, 2, 7, "-32768", True)]
    tifffile.imwrite(tmp_path / "a.tif", array, extratags=tags)
    raster = rasters.read_raster(tmp_path / "a.tif")
    assert not raster.mask[3:6].any()
    assert raster.mask[6:].all()
    assert raster.kind.nodata == -32768 and raster.georeference.pixel_size == pytest.approx((30.0, 30.0))
    out = rasters.write_raster(tmp_path / "b.tif", raster.values, raster.mask, raster.kind, raster.kind.geotags)
    again = rasters.read_raster(out)
    assert torch.equal(again.mask, raster.mask)
    assert again.kind.nodata == -32768
    assert {t[0]: t[3] for t in again.kind.geotags} == {33550: scale, 33922: tie}


def test_nan_is_masked(tmp_path):
    array = picture((20, 30), np.float32)
    array[0, 0] = np.nan
    array[1, 1] = np.inf
    np.save(tmp_path / "a.npy", array)
    mask = rasters.read_raster(tmp_path / "a.npy").mask
    assert int((~mask).sum()) == 2


def test_an_npz_of_several_arrays_asks_which(tmp_path):
    np.savez(tmp_path / "a.npz", height=np.zeros((5, 6)), slope=np.ones((5, 6)), dx=3.0)
    with pytest.raises(rasters.RasterError, match=r"a\.npz:height"):
        rasters.read_raster(tmp_path / "a.npz")
    assert rasters.read_raster(f"{tmp_path / 'a.npz'}:slope").values.sum() == 30


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.png", b"", "empty"),
        ("noise.png", b"not a picture at all", "cannot be read"),
        ("noise.tif", b"not a picture at all", "cannot be read"),
        ("noise.npy", b"not an array", "cannot be read"),
        ("table.csv", b"1,2,3", "not read"),
        ("cut.png", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_raster_is_refused_by_name(tmp_path, name, content, says):
    path = tmp_path / name
    if content is None:
        iio.imwrite(path, picture((50, 50), np.uint8))
        content = path.read_bytes()[:200]
    path.write_bytes(content)
    with pytest.raises(rasters.RasterError, match=says) as caught:
        rasters.read_raster(path)
    assert name in str(caught.value)


def test_missing_files_directories_and_wrong_arrays_are_refused(tmp_path):
    with pytest.raises(rasters.RasterError, match="no such file"):
        rasters.read_raster(tmp_path / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(rasters.RasterError, match="directory"):
        rasters.read_raster(tmp_path / "folder.png")
    for array, says in [(np.zeros(5), "shape"), (np.zeros((0, 4)), "no pixels"), (np.zeros((3, 4), complex), "real")]:
        np.save(tmp_path / "b.npy", array)
        with pytest.raises(rasters.RasterError, match=says):
            rasters.read_raster(tmp_path / "b.npy")


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_integers_are_rounded_and_clipped_not_wrapped(tmp_path):
    kind = rasters.Kind(".png", np.dtype(np.uint8))
    values = torch.tensor([[[-5.0, 3.6, 300.0]]])
    out = rasters.write_raster(tmp_path / "a.png", values, torch.ones(1, 3, dtype=torch.bool), kind)
    assert rasters.read_raster(out).values.flatten().tolist() == [0, 4, 255]
