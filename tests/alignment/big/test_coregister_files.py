"""Elevation models in windows of their files: as right as in memory, honest of what was used, and written whole."""

from itertools import product

import numpy as np
import pytest
import torch

from mslsq.alignment import (
    CoregistrationError,
    CoregistrationStatus,
    Georeference,
    RasterError,
    coregister,
    coregister_blocks,
    coregister_files,
    coregister_files_blocks,
    write_coregistered,
)
from mslsq.alignment.big import coarse, overviews, passing
from mslsq.alignment.big.coregister_files import ElevationFile, StableTerrain
from mslsq.alignment.big.passing import Judged, Passes
from mslsq.alignment.big.settling import settle
from mslsq.alignment.big.tally import Bins, Tally
from mslsq.alignment.big.windows import Models
from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.change import Typical, middle_and_spread
from mslsq.alignment.dem.comparison import Pyramids, Solved
from mslsq.alignment.dem.pair import pair_of
from mslsq.alignment.dem.solving import solve
from mslsq.alignment.measures import summary
from tests.alignment.big.scans import HERE, scan

rasterio = pytest.importorskip("rasterio")
pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")

SIZE, PIXEL = 600, 2.0
SHIFT = np.array([1.3, -2.6, 4.0])
"""Metres."""


@pytest.fixture(autouse=True, scope="module")
def small():
    """Models of 600² are reduced by four, and passed over in windows of 256."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "PIXELS", 1 << 15)
        patch.setattr(passing, "WINDOW", 256)
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    moved = np.eye(3)
    moved[:2, 2] = -SHIFT[0] / PIXEL, SHIFT[1] / PIXEL
    size = (SIZE, SIZE)
    one = scan(folder / "a.tif", np.eye(3), 1, size=size, header=HERE, nodata=-9999)
    hole = lambda row, column: (row, column) == (1, 1)  # noqa: E731
    options = {"size": size, "header": HERE, "nodata": -9999}
    other = scan(folder / "b.tif", moved, 2, bias=-2000.0 + SHIFT[2], window=200, holes=hole, **options)
    return one, other


def read(path):
    with rasterio.open(path) as dataset:
        values = dataset.read(1).astype(float)
        return np.where(values == dataset.nodata, np.nan, values)


def rewritten(source, path, change, **profile):
    """A copy whose values are changed where it has any."""
    with rasterio.open(source) as dataset:
        values, options = dataset.read(1), dataset.profile | profile
    known = values != -9999
    out = np.where(known, change(values.astype(float)), -9999).astype(options["dtype"])
    with rasterio.open(path, "w", **options) as dataset:
        dataset.write(out, 1)
    return path


def in_memory(pair, **options):
    return coregister(*map(read, pair), georeferences=(HERE, HERE), **options)


@pytest.fixture(scope="module")
def found(pair, small):
    return coregister_files(*pair, memory="1.2GB")


@pytest.fixture(scope="module")
def whole(pair):
    return in_memory(pair)


@pytest.mark.slow
def test_tiles_find_what_all_pixels_in_memory_do(found, whole):
    assert found.status is CoregistrationStatus.COREGISTERED
    assert np.abs(found.shift - SHIFT).max() < 0.05
    assert (np.abs(found.shift - whole.shift) <= 2 * found.standard_errors).all()
    assert abs(found.shift[2] - whole.shift[2]) < 0.1 * whole.standard_errors[2] + 1e-3  # of all pixels, too
    assert np.allclose(found.georeference.matrix, whole.georeference.matrix, atol=0.02)
    assert "reduced to 1/4" in found.message() and "tiles of 25, 128 x 128 pixels" in found.message()


def test_statistics_are_those_of_all_pixels(found, whole):
    for of, other in ((found.before, whole.before), (found.after, whole.after)):
        for row, same in [(of.whole, other.whole), *zip(of.by_aspect.values(), other.by_aspect.values(), strict=True)]:
            assert row["count"] == pytest.approx(same["count"], rel=2e-3)
            for figure in ("median", "mean", "nmad", "rmse"):
                assert row[figure] == pytest.approx(same[figure], rel=5e-3, abs=0.02)
    assert found.before.whole["count"] == whole.before.whole["count"]


def test_what_is_written_is_what_memory_would_hold(pair, found, tmp_path, monkeypatch):
    monkeypatch.setattr(overviews, "SIDE", 256)
    path, changed = write_coregistered(found, tmp_path / "moved.tif", overviews=True)
    moved, expected = read(path), found.apply(read(pair[1]))
    assert np.array_equal(np.isfinite(moved), np.isfinite(expected))
    assert np.nanmax(np.abs(moved - expected)) < 1e-3  # float32
    with rasterio.open(path) as dataset:
        assert dataset.crs.to_epsg() == 32632 and dataset.nodata == -9999 and dataset.dtypes == ("float32",)
        assert np.allclose(dataset.transform.to_gdal(), HERE.geotransform)
        assert dataset.overviews(1) == overviews.factors_for((SIZE, SIZE)) != []
    assert read(changed).shape == (SIZE, SIZE) and changed.name == "moved_changed.tif"


def test_what_is_read_is_never_written(pair, found, tmp_path):
    (tmp_path / "link.tif").symlink_to(pair[1])
    before = [path.read_bytes() for path in pair]
    for path, name in ((pair[0], "a"), (pair[1].with_suffix(""), "b"), (tmp_path / "link.tif", "b")):
        with pytest.raises(RasterError, match=rf"{name}\.tif: this input would be overwritten; choose another path"):
            write_coregistered(found, path)
    with pytest.raises(RasterError, match="would be overwritten"):
        write_coregistered(found, tmp_path / "moved.tif", changed=pair[0])
    with pytest.raises(CoregistrationError, match=r"path and changed are both .*m\.tif; give two names"):
        write_coregistered(found, tmp_path / "m.tif", changed=tmp_path / "m.tif")
    assert [path.read_bytes() for path in pair] == before and [path.name for path in tmp_path.iterdir()] == ["link.tif"]


def test_a_write_that_is_ended_leaves_what_was_there(found, tmp_path):
    def ended(words, done, total):
        raise KeyboardInterrupt

    (tmp_path / "moved.tif").write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_coregistered(found, tmp_path / "moved.tif", progress=ended)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("moved.tif", "before")]


@pytest.mark.slow
def test_a_tilt_and_terrain_that_changed_are_told_apart(pair, tmp_path):
    y, x = np.mgrid[:SIZE, :SIZE] * 2.0 / (SIZE - 1) - 1
    lost = 40 / (1 + np.exp((np.hypot(x - 0.4, y - 0.3) - 0.25) / 0.02))
    dem = rewritten(pair[1], tmp_path / "b.tif", lambda values: values - 6 * x - lost)
    found, whole = coregister_files(pair[0], dem, bias="plane"), in_memory((pair[0], dem), bias="plane")
    assert np.abs(found.shift - whole.shift).max() < 0.05
    assert found.coefficients["x"] == pytest.approx(6.0, abs=0.1)
    assert found.changed_share == pytest.approx(whole.changed_share, rel=0.1)
    assert found.after.by_mask["changed"]["median"] == pytest.approx(whole.after.by_mask["changed"]["median"], rel=0.05)


@pytest.mark.slow
def test_masks_are_read_in_windows(pair, tmp_path):
    lost = np.zeros((SIZE, SIZE))
    lost[100:300, 250:550] = 30
    dem = rewritten(pair[1], tmp_path / "b.tif", lambda values: values - lost)
    with rasterio.open(pair[0]) as dataset:
        options = dataset.profile | {"dtype": "uint8", "nodata": None}
    with rasterio.open(tmp_path / "mask.tif", "w", **options) as dataset:
        dataset.write((lost == 0).astype(np.uint8), 1)
    found = coregister_files(pair[0], dem, mask=tmp_path / "mask.tif", find_changes=False)
    assert np.abs(found.shift - SHIFT).max() < 0.05
    assert found.after.by_mask["masked"]["median"] == pytest.approx(-30, abs=0.5)
    geopandas = pytest.importorskip("geopandas")
    from shapely.geometry import box

    corners = HERE.to_world([[249.5, 299.5], [549.5, 99.5]]).ravel()
    outlines = geopandas.GeoDataFrame(geometry=[box(*corners)], crs="EPSG:32632")
    same = coregister_files(pair[0], dem, mask=outlines, find_changes=False)
    assert np.allclose(same.shift, found.shift, atol=0.05)
    assert same.after.by_mask["masked"]["count"] == pytest.approx(found.after.by_mask["masked"]["count"], rel=0.02)


@pytest.mark.slow
def test_flat_terrain_has_a_height_alone(pair, tmp_path):
    random = np.random.default_rng(0)
    flat = [
        rewritten(pair[0], tmp_path / f"{name}.tif", lambda values, up=up: up + random.standard_normal(values.shape))
        for name, up in (("a", 100.0), ("b", 97.0))
    ]
    found = coregister_files(*flat)
    assert found.status is CoregistrationStatus.Z_ONLY and np.isnan(found.shift[:2]).all()
    assert found.shift[2] == pytest.approx(3.0, abs=0.02)


def test_a_header_far_away_is_not_believed(pair, tmp_path):
    far = rasterio.Affine.from_gdal(*HERE.moved(900.0, 0.0).geotransform)
    dem = rewritten(pair[1], tmp_path / "b.tif", lambda values: values, transform=far)
    found = coregister_files(pair[0], dem)
    assert found.status in (CoregistrationStatus.FAR_FROM_HEADER, CoregistrationStatus.LITTLE_OVERLAP)
    with pytest.raises(CoregistrationError, match="nothing was found to apply"):
        write_coregistered(found, tmp_path / "moved.tif")


def test_what_cannot_be_compared_is_refused(pair, tmp_path):
    apart = rasterio.Affine.from_gdal(*(600000.0, 3.0, 0.0, 5000000.0, 0.0, -3.0))
    other = rewritten(pair[1], tmp_path / "b.tif", lambda values: values, transform=apart)
    with pytest.raises(CoregistrationError, match="lie apart"):
        coregister_files(pair[0], other)
    bare = rewritten(pair[1], tmp_path / "c.tif", lambda values: values, transform=None, crs=None)
    with pytest.raises(CoregistrationError, match=r"c\.tif does not say where it lies; give pixel_size"):
        coregister_files(pair[0], bare)
    with pytest.raises(CoregistrationError, match="not both"):
        coregister_files(*pair, pixel_size=2.0)
    here = rasterio.crs.CRS.from_wkt('LOCAL_CS["here",UNIT["metre",1]]')
    strange = rewritten(pair[1], tmp_path / "d.tif", lambda values: values, crs=here)
    with pytest.raises(CoregistrationError, match=r"d\.tif cannot be seen on the pixels of .*a\.tif: is the CRS in"):
        coregister_files(pair[0], strange)
    empty = rewritten(pair[1], tmp_path / "e.tif", lambda values: 0 * values - 9999)
    with pytest.raises(CoregistrationError, match=r"e\.tif has no data: .* nodata value \(-9999.*a_nodata"):
        coregister_files(pair[0], empty)
    with rasterio.open(pair[1]) as dataset:
        part, options = dataset.read(1)[:, :20], dataset.profile | {"width": 20}
    with rasterio.open(tmp_path / "thin.tif", "w", **options) as out:
        out.write(part, 1)
    with pytest.raises(CoregistrationError, match=r"thin\.tif has 600 x 20 pixels, reduced to 150 x 5; at least 8"):
        coregister_files(pair[0], tmp_path / "thin.tif")
    with pytest.raises(RasterError, match="this is a folder; name a file in it"):
        coregister_files(pair[0], tmp_path)
    geopandas = pytest.importorskip("geopandas")
    from shapely.geometry import box

    elsewhere = geopandas.GeoDataFrame(geometry=[box(0, 0, 10, 10)], crs="EPSG:32632")
    with pytest.raises(CoregistrationError, match="no outline touches the raster"):
        coregister_files(*pair, mask=elsewhere)
    with rasterio.open(tmp_path / "mask.tif", "w", driver="GTiff", width=5, height=5, count=1, dtype="uint8") as out:
        out.write(np.ones((1, 5, 5), dtype=np.uint8))
    with pytest.raises(
        CoregistrationError, match="5 x 5 pixels, the reference 600 x 600, and one of them does not say"
    ):
        coregister_files(*pair, mask=tmp_path / "mask.tif")


@pytest.mark.slow
def test_small_models_are_coregistered_as_they_are_and_written(pair, whole, monkeypatch, tmp_path):
    monkeypatch.setattr(coarse, "PIXELS", 1 << 20)
    found = coregister_files(*pair)
    assert np.allclose(found.shift, whole.shift, atol=1e-9) and "whole models" in found.message()
    path, changed = write_coregistered(found, tmp_path / "moved.tif")
    assert np.nanmax(np.abs(read(path) - whole.apply(read(pair[1])))) < 1e-3
    assert np.array_equal(read(changed) > 0, whole.changed)


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).standard_normal(20_001) * 0.7 + 0.2,
        np.random.default_rng(1).standard_cauchy(5_000),
        300 + 20 * np.random.default_rng(2).standard_normal(5_000),
        np.full(10, 3.25),
        np.array([1.0]),
    ],
    ids=["normal", "heavy", "far", "constant", "one"],
)
def test_statistics_of_parts_are_those_of_all(values):
    bins = Bins(0.2, 0.5)
    tally = Tally(bins)
    for part in np.array_split(values, 7):
        tally.add(part, bins.of(part))
    expected, found = summary(values), tally.summary()
    scale = max(expected["nmad"], 0.5, abs(expected["median"]) * 1e-1)
    for figure in expected:
        assert found[figure] == pytest.approx(expected[figure], abs=2e-3 * scale)
    assert Tally(bins).summary()["count"] == 0
    middle, sigma = middle_and_spread(torch.from_numpy(values).double())
    assert tally.mode()[1] == pytest.approx(sigma, abs=2e-3 * scale)
    assert tally.mode()[0] == pytest.approx(middle, abs=0.2 * sigma + 2e-3 * scale)  # of halves many are as short


def test_places_of_tiles_are_those_of_the_reference():
    from mslsq.alignment.dem.slots import Slots

    corners = torch.tensor([[10.0, 20.0], [500.0, 40.0], [7.0, 300.0]])
    slots = Slots(16, 2, corners, (1000, 1000))
    pixels = torch.tensor([[3.0, 4.0], [19.0, 1.0], [15.0, 31.0]])
    assert slots.places(pixels).tolist() == [[13.0, 24.0], [503.0, 41.0], [22.0, 315.0]]


def test_windows_cover_the_reference_once(found):
    seen = np.zeros((SIZE, SIZE), dtype=int)
    for top, left, height, width in found.passes.boxes():
        seen[top : top + height, left : left + width] += 1
    assert (seen == 1).all() and len(found.passes.boxes()) == len(list(product(range(3), range(3))))
    assert isinstance(found.header, Georeference)


@pytest.mark.slow
def test_changed_terrain_is_looked_for_between_the_tiles(pair, tmp_path):
    """And windows without any data pass."""
    lost, holes = np.zeros((SIZE, SIZE)), np.zeros((SIZE, SIZE))
    lost[20:110, 20:110], holes[256:, 256:] = 40, np.nan
    with rasterio.open(pair[1]) as dataset:
        values, options = dataset.read(1), dataset.profile
    values = np.where(np.isnan(holes) | (values == -9999), -9999, values - lost).astype(values.dtype)
    with rasterio.open(tmp_path / "b.tif", "w", **options) as dataset:
        dataset.write(values, 1)
    found = coregister_files(pair[0], tmp_path / "b.tif", tiles=16)
    assert 0.02 < found.changed_share < 0.06
    assert abs(found.after.by_mask["unchanged"]["median"]) < 0.05


@pytest.mark.slow
def test_blocks_are_those_of_memory_and_the_field_is_written(pair, tmp_path):
    """A model that is bent by 1.5 m: every block is fitted from a window of the files, from what tiles found."""
    x = np.linspace(0, 2, 600)
    with rasterio.open(pair[1]) as dataset:
        values, options = dataset.read(1).astype(float), dataset.profile
    slope = np.gradient(np.where(values == -9999, np.nan, values), axis=1) / PIXEL
    bent = np.where((values == -9999) | np.isnan(slope), -9999, values + slope * 1.5 * (x - 1))
    with rasterio.open(tmp_path / "b.tif", "w", **options) as dataset:
        dataset.write(bent.astype(options["dtype"]), 1)
    files = pair[0], tmp_path / "b.tif"
    local = coregister_files_blocks(*files, block=200, memory="1.2GB", find_changes=False)
    whole = coregister_blocks(*map(read, files), georeferences=(HERE, HERE), block=200, find_changes=False)
    assert local.shifts.shape == whole.shifts.shape == (3, 3, 3) and np.array_equal(local.centres, whole.centres)
    known = np.isfinite(whole.shifts[..., 0])
    assert np.array_equal(known, np.isfinite(local.shifts[..., 0])) and known.sum() >= 8
    apart = np.abs(local.shifts - whole.shifts)[known]
    assert (apart < 0.1 * whole.standard_errors[known]).all()
    assert local.shifts[0, 2, 0] - local.shifts[0, 0, 0] == pytest.approx(2.0, abs=0.3)
    path, _ = write_coregistered(local, tmp_path / "moved.tif")
    moved, expected = read(path), local.apply(read(files[1]))
    assert np.array_equal(np.isfinite(moved), np.isfinite(expected))
    assert np.nanmax(np.abs(moved - expected)) < 2e-3
    with pytest.raises(CoregistrationError, match="is enough for one of 688 pixels"):
        coregister_files_blocks(*files, block=700, memory="1.2GB")
    with pytest.raises(CoregistrationError, match="these models were in memory"):
        write_coregistered(whole, tmp_path / "moved.tif")


def test_windows_settle_where_a_fit_in_memory_does(tmp_path, monkeypatch):
    """From a start that is off by more than tiles would be, with what is typical of other terrain."""
    side, moved = 256, np.eye(3)
    moved[:2, 2] = 0.4, -0.3
    files = [
        scan(tmp_path / name, matrix, seed, size=(side, side), header=HERE, nodata=-9999)
        for name, matrix, seed in (("a.tif", np.eye(3), 1), ("b.tif", moved, 2))
    ]
    y, x = np.mgrid[:side, :side] * 2.0 / (side - 1) - 1
    lost = 12 / (1 + np.exp((np.hypot(x - 0.4, y - 0.3) - 0.4) / 0.02))
    files[1] = rewritten(files[1], tmp_path / "c.tif", lambda values: values - 4 * x - lost)
    pair = pair_of(*map(read, files), None, (HERE, HERE), None, None)
    pyramids, bias = Pyramids.of(pair, 1), Bias.named("plane")
    start = Solved(np.array([-0.4, 0.3]), np.array([0.0, 4.0, 0.0]))
    whole = solve(pyramids, bias, start, 0, "tukey", True)
    models = Models(
        *map(ElevationFile.open, files), StableTerrain(None, None, HERE), pair.metres, pair.offset, HERE
    )  # fmt: skip
    other = [Typical(3.0, 0.3, 1.5), Typical(10.0, -0.4, 1.0)]
    off = Judged(Solved(start.shift + 0.02, start.bias + 0.2), 5.0, (3.0, 3.0), other, 0.0, 4.0)
    monkeypatch.setattr(passing, "WINDOW", 128)
    passes, errors = Passes(models, bias, pyramids.frame, 4, off), np.sqrt(np.diag(whole.known.covariance))
    settled = settle(passes, errors, "tukey", True, False, None)
    assert settled.last <= 0.1
    found = settled.judged.robust
    away = np.concatenate([found.shift - whole.robust.shift, found.bias - whole.robust.bias])
    assert (np.abs(away) <= 0.2 * errors).all() and settled.judged.scale == pytest.approx(whole.fitted.scale, rel=5e-3)
    passes = Passes(models, bias, pyramids.frame, 4, settled.judged)
    changed, margin = np.zeros((side, side), dtype=bool), passing.MARGIN
    for box in passes.boxes():
        top, left, height, width = box
        moved = passes.changed(Pyramids.of(passes.part(box, found.shift, (3.0, 3.0)), 1, pyramids.frame))
        changed[top : top + height, left : left + width] = moved[margin : margin + height, margin : margin + width]
    expected = whole.changed.numpy()
    assert 0.05 < expected.mean() < 0.4 and (changed ^ expected).mean() < 0.03 * expected.mean()
    steady = settle(passes, errors, "tukey", True, True, None).judged.robust  # with the shift held
    assert np.array_equal(steady.shift, found.shift)


@pytest.mark.slow
def test_blocks_beside_changed_terrain_are_fitted_on_the_pixels_of_memory(pair, tmp_path):
    """A model that is bent, tilted and has lost a hill: what the bias model lacks draws the border of the change."""
    y, x = np.mgrid[:SIZE, :SIZE] * 2.0 / (SIZE - 1) - 1
    with rasterio.open(pair[1]) as dataset:
        values, options = dataset.read(1).astype(float), dataset.profile
    slope = np.gradient(np.where(values == -9999, np.nan, values), axis=1) / PIXEL
    lost = 15 / (1 + np.exp((np.hypot(x + 0.5, y - 0.4) - 0.3) / 0.1))
    bent = np.where((values == -9999) | np.isnan(slope), -9999, values + 1.5 * slope * x - 4 * y - lost)
    with rasterio.open(tmp_path / "b.tif", "w", **options) as dataset:
        dataset.write(bent.astype(options["dtype"]), 1)
    files = pair[0], tmp_path / "b.tif"
    local = coregister_files_blocks(*files, block=150, bias="plane", memory="1.2GB")
    whole = coregister_blocks(*map(read, files), georeferences=(HERE, HERE), block=150, bias="plane")
    assert (np.abs(local.whole.shift - whole.whole.shift) <= 0.2 * local.whole.standard_errors).all()
    assert local.whole.changed_share == pytest.approx(whole.whole.changed.mean(), rel=0.1)
    known = np.isfinite(whole.shifts[..., 0])
    assert np.array_equal(known, np.isfinite(local.shifts[..., 0])) and known.sum() >= 12
    least = np.minimum(local.standard_errors, whole.standard_errors)[known]
    off = np.sort((np.abs(local.shifts - whole.shifts)[known] / least).ravel())
    assert off[-2] <= 1 and off[-1] <= 1.5  # one number of a block on the hill's border is 1.35 of its stated error off
