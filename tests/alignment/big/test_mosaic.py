"""The mosaic of files is that of maps in memory, whatever the windows; half of one is never left behind."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from mslsq.alignment import FilesAlignment, RasterError, align_files, write_mosaic
from mslsq.alignment.big import mosaic as room
from mslsq.alignment.big import overviews
from mslsq.alignment.big.files import RasterFile, small_cache
from mslsq.alignment.canvas import blend, resample
from mslsq.alignment.result import empty
from mslsq.replacing import NotWrittenError
from tests.alignment.big.scans import HERE, scan, turned

rasterio = pytest.importorskip("rasterio")


@pytest.fixture(scope="module")
def placed(pair, tmp_path_factory):
    """A placement of the pair by its reduced rasters, for which accuracy does not matter."""
    return align_files(pair, model="sim2", tiles=4)


def read(path):
    with small_cache(), rasterio.open(path) as dataset:
        return dataset.read(1), dataset.profile


@pytest.mark.slow
def test_it_is_the_mean_of_the_maps_as_in_memory(placed, pair, tmp_path, monkeypatch):
    monkeypatch.setattr(overviews, "SIDE", 512)
    written = write_mosaic(placed, tmp_path / "m.tif", overviews=True)
    layers = []
    for i, path in enumerate(pair):
        file = RasterFile.open(path)
        values, known = resample(*file.read(0, 0, *file.size), placed.transforms[i], written.canvas)
        layers.append((placed.gain[i] * values + placed.bias[i], known))
    mean, known = blend(layers)
    values, profile = read(written.mosaic)
    count, _ = read(written.coverage)
    assert np.array_equal(count, sum(known.numpy().astype(int) for _, known in layers))
    assert np.array_equal(values == 0, ~known.numpy()) and written.known == int(known.sum())
    off = np.abs(values - mean[0].numpy())[known.numpy()]
    assert np.quantile(off, 0.999) <= 0.51 and off.max() < 30, "of the border of a hole some pixels differ"
    assert profile["nodata"] == 0 and profile["dtype"] == "uint16" and profile["compress"] == "deflate"
    assert (profile["tiled"], profile["blockxsize"]) == (True, 256)
    for path in (written.mosaic, written.coverage):
        with small_cache(), rasterio.open(path) as dataset:
            assert dataset.overviews(1) == overviews.factors_for(values.shape) != []
    there = HERE.moved(written.canvas.left, written.canvas.top)
    assert profile["crs"].to_epsg() == 32632 and np.allclose(profile["transform"].to_gdal(), there.geotransform)


@pytest.mark.parametrize("how", ["mean", *(pytest.param(one, marks=pytest.mark.slow) for one in ("median", "feather"))])
def test_windows_leave_no_trace(placed, tmp_path, monkeypatch, how):
    whole, _ = read(write_mosaic(placed, tmp_path / "a.tif", blend=how, feather=60).mosaic)
    monkeypatch.setattr(room, "WINDOW", 512)
    parts, _ = read(write_mosaic(placed, tmp_path / "b.tif", blend=how, feather=60).mosaic)
    off = np.abs(whole.astype(float) - parts)
    assert np.quantile(off, 0.9999) <= 1 and off.max() < 30


def test_a_feather_has_no_seam_where_a_mean_has_one(tmp_path):
    """Two flat maps of 100 and 200 that overlap by half."""
    paths = []
    for index, value in enumerate((100.0, 200.0)):
        paths.append(tmp_path / f"{index}.tif")
        with rasterio.open(
            paths[-1], "w", driver="GTiff", height=300, width=600, count=1, dtype="float32", tiled=True,
            transform=rasterio.Affine.from_gdal(*HERE.geotransform),
        ) as out:  # fmt: skip
            out.write(np.full((1, 300, 600), value, np.float32))
    flat = flat_result(paths, [np.eye(3), turned(0, 1, -300, 0)])
    mean, _ = read(write_mosaic(flat, tmp_path / "mean.tif").mosaic)
    feathered, profile = read(write_mosaic(flat, tmp_path / "f.tif", blend="feather", feather=150).mosaic)
    assert set(np.unique(mean[100])) == {100.0, 150.0, 200.0}
    assert np.isnan(profile["nodata"])
    row = feathered[150]
    assert np.abs(np.diff(row)).max() < 2 and row[0] == 100 and row[-1] == 200
    assert row[450] == pytest.approx(150, abs=1)


def flat_result(paths, matrices):
    """A placement that nothing has looked for."""
    files = [RasterFile.open(path) for path in paths]
    like, count = torch.zeros((), dtype=torch.float64), len(paths)
    entries = empty(count, 0, "sim2", 4, like) | {"transforms": torch.from_numpy(np.stack(matrices))}
    entries |= {"gain": torch.ones(count), "bias": torch.zeros(count)}
    status = torch.tensor([0] + [1] * (count - 1))
    return FilesAlignment(**entries, status=status, reference=0, model="sim2", reasons=[""] * count, stages=[],
                          files=files)  # fmt: skip


def test_the_median_leaves_one_wrong_map_out(tmp_path):
    paths = [scan(tmp_path / f"{i}.tif", np.eye(3), 1, size=(300, 300), noise=0.0) for i in range(3)]
    with rasterio.open(paths[2], "r+") as dataset:
        dataset.write(np.full((1, 300, 300), 9999, np.float32))
    result = flat_result(paths, [np.eye(3)] * 3)
    (median, _), (right, _) = read(write_mosaic(result, tmp_path / "m.tif", blend="median").mosaic), read(paths[0])
    assert np.abs(median - right)[2:-2, 2:-2].max() < 1e-2
    mean, _ = read(write_mosaic(result, tmp_path / "n.tif").mosaic)
    assert np.abs(mean - right).min() > 1000


def test_without_nodata_holes_are_in_the_mask_and_what_is_clipped_is_said(tmp_path):
    paths = [scan(tmp_path / f"{i}.tif", np.eye(3), 1, size=(300, 300), dtype="uint16") for i in range(2)]
    result = flat_result(paths, [np.eye(3), turned(0, 1, -100, -50, 300)])
    result.gain[1], result.bias[1] = 100.0, 0.0
    written = write_mosaic(result, tmp_path / "m.tif")
    with rasterio.open(written.mosaic) as dataset:
        known = dataset.read_masks(1) > 0
    count, _ = read(written.coverage)
    assert np.array_equal(known, count > 0) and not known.all()
    assert any("are beyond what uint16 holds, and are clipped" in note for note in written.notes)
    assert any("no nodata value" in note for note in written.notes)


def test_a_damaged_map_leaves_no_mosaic_behind(placed, pair, tmp_path):
    torn = tmp_path / "torn.tif"
    torn.write_bytes(pair[1].read_bytes()[:-300_000])
    broken = replace(placed, files=[placed.files[0], replace(placed.files[1], path=torn)])
    folder = tmp_path / "out"
    with pytest.raises(RasterError, match=r"torn\.tif: rows"):
        write_mosaic(broken, folder / "m.tif")
    assert list(folder.iterdir()) == []


def test_what_is_read_is_never_written(placed, pair, tmp_path):
    before = [path.read_bytes() for path in pair]
    (tmp_path / "m_coverage.tif").symlink_to(pair[1])  # beside m.tif
    for path in (pair[0], tmp_path / "m.tif"):
        with pytest.raises(RasterError, match="this input would be overwritten; choose another path"):
            write_mosaic(placed, path)
    assert [path.read_bytes() for path in pair] == before


def test_a_folder_that_cannot_be_written_to_is_named(placed, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(NotWrittenError, match="cannot be written"):
        write_mosaic(placed, blocked / "m.tif")


FULL = """
import resource, signal, sys
from mslsq.alignment.big.terrain import Scan
from tests.alignment.big.test_mosaic import flat_result
from mslsq.alignment import write_mosaic
from mslsq.replacing import NotWrittenError
import numpy as np
result = flat_result([sys.argv[1]] * 2, [np.eye(3)] * 2)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    write_mosaic(result, sys.argv[2])
except NotWrittenError as error:
    print("refused:", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2_000, 300_000, 600_000])
def test_a_full_disk_is_said_and_leaves_nothing(pair, tmp_path, limit):
    """Files may have `limit` bytes; the mosaic would have a million."""
    run = [sys.executable, "-c", FULL, str(pair[0]), str(tmp_path / "m.tif"), str(limit)]
    done = subprocess.run(run, capture_output=True, text=True, env=dict(os.environ), cwd=os.getcwd())
    assert "refused:" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_killed_leaves_no_file_of_that_name(placed, tmp_path):
    def killed(done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_mosaic(placed, tmp_path / "m.tif", progress=killed)
    assert list(tmp_path.iterdir()) == []
