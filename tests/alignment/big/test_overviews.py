"""Overviews in what is written."""

import numpy as np
import pytest
import torch

from mslsq.alignment.big import overviews
from mslsq.alignment.big.overviews import add_overviews, build_overviews, factors_for
from mslsq.alignment.kinds import Kind
from mslsq.alignment.rasters import write_raster

rasterio = pytest.importorskip("rasterio")


@pytest.fixture
def small(monkeypatch):
    """Rasters of more than 64 pixels are large."""
    monkeypatch.setattr(overviews, "SIDE", 64)
    monkeypatch.setattr(overviews, "SMALLEST", 32)


def test_factors_end_where_a_screen_shows_the_raster():
    assert factors_for((2048, 300)) == []
    assert factors_for((2049, 300)) == [2, 4, 8, 16]  # 129 pixels
    assert factors_for((20_000, 20_000))[-1] == 128


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
@pytest.mark.parametrize(("name", "like"), [("mosaic", "mean"), ("changed", "nearest")])
def test_they_are_means_of_blocks_or_of_classes_single_pixels(small, tmp_path, name, like):
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (1, 128, 96))).double()
    kind = Kind(".tif", np.dtype(np.float32), nodata=None)
    path = write_raster(tmp_path / f"{name}.tif", values, torch.ones(128, 96, dtype=torch.bool), kind)
    untouched = write_raster(tmp_path / "small.tif", values[:, :64, :64], torch.ones(64, 64, dtype=torch.bool), kind)
    before = untouched.stat().st_mtime_ns, untouched.stat().st_ino
    add_overviews([path, untouched, tmp_path / "metrics.json"])
    assert (untouched.stat().st_mtime_ns, untouched.stat().st_ino) == before
    with rasterio.open(path) as dataset:
        assert dataset.overviews(1) == [2, 4]
        assert np.array_equal(dataset.read(1), values[0])
    with rasterio.open(path, overview_level=0) as dataset:
        half = dataset.read(1)
    blocks = values[0].numpy().reshape(64, 2, 48, 2)
    if like == "mean":
        assert np.allclose(half, blocks.mean((1, 3)))
    else:
        assert np.isin(half, (0, 1)).all() and (np.abs(half - blocks.mean((1, 3))) < 1).all()
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([path.name, "small.tif"])


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_holes_are_no_data_and_the_mask_has_overviews_too(small, tmp_path):
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", height=80, width=80, count=1, dtype="uint8") as out,
    ):
        out.write(np.full((80, 80), 200, np.uint8), 1)
        mask = np.ones((80, 80), bool)
        mask[:40] = False
        out.write_mask(mask)
    assert build_overviews(tmp_path / "a.tif") == [2, 4]
    with rasterio.open(tmp_path / "a.tif", overview_level=0) as dataset:
        assert (dataset.read_masks(1)[:20] == 0).all() and (dataset.read_masks(1)[20:] == 255).all()
        assert (dataset.read(1)[20:] == 200).all()
    assert [one.name for one in tmp_path.iterdir()] == ["a.tif"]
