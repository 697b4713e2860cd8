"""`transforms.json` applied again: to rasters of the same pixels and of others, and to points both ways."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mslsq.alignment import Georeference, LeftOutError, TransformsError, align, read_transform
from mslsq.alignment.coordinates.applying import applied, moved_points
from mslsq.alignment.outputs import Aligned, write_all
from mslsq.alignment.rasters import Kind, Raster, read_raster, write_raster
from mslsq.alignment.scenes import scene_from_files
from tests.alignment.coordinates.world import UTM32, shifted

rasterio = pytest.importorskip("rasterio")
ROOT = Path(__file__).resolve().parents[3]


def save(path, values, georeference=None):
    kind = Kind(".tif", np.dtype(np.float32))
    array = torch.from_numpy(np.atleast_3d(values).astype(np.float64).transpose(2, 0, 1))
    write_raster(path, array, array.isfinite().all(0), kind)
    if georeference is not None:
        with rasterio.open(path, "r+") as dataset:
            dataset.transform = rasterio.Affine.from_gdal(*georeference.geotransform)
            dataset.crs = georeference.crs
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, world, reference):
    """A map turned by 30 degrees with pixels of half the size, its header wrong by 3 m, aligned and written."""
    folder = tmp_path_factory.mktemp("run")
    c, s = math.cos(math.radians(30)), math.sin(math.radians(30))
    matrix = np.array([[0.5 * c, 0.5 * s, world.east + 170], [0.5 * s, -0.5 * c, world.north - 190], [0, 0, 1]])
    true = Georeference(matrix, UTM32)
    header = shifted(true, 3, -2)
    a = save(folder / "a.tif", world.seen(reference, (160, 160)), reference)
    b = save(folder / "b.tif", world.seen(true, (230, 220), seed=1), header)
    scene = scene_from_files([str(a), str(b)])
    maps, masks = [one.values for one in scene.rasters], [one.mask for one in scene.rasters]
    headers = [one.georeference for one in scene.rasters]
    result = align(maps, masks=masks, model="se2", georeferences=headers)
    assert result.aligned == [0, 1], result.message()
    for output in ("resampled", "geotransform"):
        write_all([Aligned(scene, result)], folder / output, 1.0, {}, output)
    return folder, result, true


@pytest.mark.slow
def test_the_file_says_what_the_result_does(run):
    folder, result, true = run
    found = read_transform(folder / "resampled" / "transforms.json", "b")
    points = torch.tensor([[30.0, 40.0], [100.0, 90.0]]).double()
    assert torch.allclose(found.to_map(points), result.to_map(1, points))
    assert torch.allclose(found.to_reference(found.to_map(points)), points)
    record = json.loads((folder / "resampled" / "transforms.json").read_text())["maps"][1]["world"]
    assert record["geotransform"] == pytest.approx(true.geotransform, abs=0.05)
    assert record["shift"] == pytest.approx([-3, 2], abs=0.05) and record["unit"] == "metre"


def test_gdal_reads_the_corrected_header_where_the_map_is(run):
    folder, _, true = run
    with (
        rasterio.open(folder / "geotransform" / "aligned" / "b.tif") as corrected,
        rasterio.open(folder / "b.tif") as given,
    ):
        assert (corrected.read() == given.read()).all() and corrected.crs == given.crs
        assert np.abs(np.array(corrected.xy(50, 60)) - true.to_world([[60, 50]])[0]).max() < 0.05
    files = [one["files"] for one in json.loads((folder / "geotransform" / "transforms.json").read_text())["maps"]]
    assert files == [[], ["aligned/b.tif"]]


def test_gdal_lays_the_resampled_map_on_the_reference(run, reference):
    folder, _, _ = run
    with rasterio.open(folder / "resampled" / "aligned" / "b.tif") as moved, rasterio.open(folder / "a.tif") as given:
        assert moved.transform == given.transform and moved.crs == given.crs and moved.shape == given.shape
        a, b = given.read(1), moved.read(1)
        both = np.isfinite(a) & np.isfinite(b)
        assert both.mean() > 0.4 and np.corrcoef(a[both], b[both])[0, 1] > 0.99


def test_points_go_both_ways_in_pixels_and_in_the_world(run):
    folder, _, true = run
    found = read_transform(folder / "resampled" / "transforms.json")
    there = np.array([[60.0, 50.0], [110.0, 120.0]])
    here = moved_points(found, there, to_map=False, world=False)
    assert np.abs(moved_points(found, here, to_map=True, world=False) - there).max() < 1e-6
    as_the_header_has_it = true.to_world(there) + np.array([3, -2])
    corrected = moved_points(found, as_the_header_has_it, to_map=False, world=True)
    assert np.abs(corrected - true.to_world(there)).max() < 0.05
    assert np.abs(moved_points(found, corrected, to_map=True, world=True) - as_the_header_has_it).max() < 1e-5


def test_classes_stay_classes_and_other_pixel_sizes_go_by_their_header(run):
    """A raster of the map at a quarter of its resolution lies where the map does."""
    folder, _, _ = run
    found = read_transform(folder / "resampled" / "transforms.json", 1)
    b = read_raster(folder / "b.tif")
    classes = (torch.arange(b.mask.numel()).reshape(1, *b.mask.shape) // 997 % 5).double()
    seen, known = applied(found, Raster("classes", classes, b.mask, b.kind), nearest=True)
    assert set(seen[0][known].tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0}
    y, x = np.mgrid[0:230, 0:220].astype(float)
    ramp = torch.from_numpy(x + 2 * y)[None]
    fine, known = applied(found, Raster("ramp", ramp, b.mask, b.kind))
    low = ramp[:, :228, :220].reshape(1, 57, 4, 55, 4).mean((2, 4))
    coarser = b.georeference.moved(1.5, 1.5).matrix @ np.diag([4, 4, 1])
    raster = Raster("low", low, torch.ones(57, 55, dtype=torch.bool), b.kind, Georeference(coarser, UTM32))
    coarse, also = applied(found, raster)
    both = known & also
    assert int(both.sum()) > 5000 and float((fine - coarse)[0][both].abs().median()) < 0.02


def test_a_bend_is_undone(run):
    from dataclasses import replace

    from mslsq.alignment import Bend

    folder, _, _ = run
    generator = torch.Generator().manual_seed(0)
    shifts = torch.randn(2, 11, 11, generator=generator, dtype=torch.float64)
    bend = Bend(shifts, 159 / 8, (160, 160), torch.zeros(242, 242))
    found = replace(read_transform(folder / "resampled" / "transforms.json"), bend=bend)
    points = 20 + 120 * torch.rand(50, 2, generator=generator, dtype=torch.float64)
    assert torch.allclose(found.to_reference(found.to_map(points)), points, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "words"),
    [("c.tif", "no map 'c.tif'. Did you mean"), ("7", "no map 7"), (7, "it has 0 a.tif, 1 b.tif")],
)
def test_a_map_that_is_not_there_is_named(run, name, words):
    with pytest.raises(TransformsError, match=words):
        read_transform(run[0] / "resampled" / "transforms.json", name)


def test_what_is_no_transforms_file_is_refused(tmp_path):
    with pytest.raises(TransformsError, match="cannot be read"):
        read_transform(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("[1")
    with pytest.raises(TransformsError, match="this is no transforms"):
        read_transform(tmp_path / "a.json")


def test_a_map_that_was_left_out_cannot_be_applied(run, tmp_path):
    content = json.loads((run[0] / "resampled" / "transforms.json").read_text())
    content["maps"][1] |= {"matrix": None, "status": "low_correlation", "reason": "Left out: nothing fits."}
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(LeftOutError, match="nothing fits"):
        read_transform(tmp_path / "t.json", "b.tif")


@pytest.fixture
def script(monkeypatch):
    """`scripts/apply.py`, called with a command line."""
    pytest.importorskip("hydra")
    spec = importlib.util.spec_from_file_location("apply_script", ROOT / "scripts" / "apply.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(*line):
        monkeypatch.setattr(sys, "argv", ["apply.py", *map(str, line)])
        return module.main()

    return call


def test_the_command_moves_rasters_and_points(run, tmp_path, script):
    folder, _, true = run
    (tmp_path / "p.csv").write_text("name,x,y\noak,60,50\nelm,110,120\n")
    transforms = folder / "resampled" / "transforms.json"
    line = [transforms, "--map", "b", "--rasters", folder / "b.tif", "--points", tmp_path / "p.csv"]
    assert script(*line, "--out", tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"b.tif", "b.mask.png", "p.csv"}
    with rasterio.open(tmp_path / "out" / "b.tif") as again, rasterio.open(folder / "resampled/aligned/b.tif") as first:
        assert again.transform == first.transform and again.crs == first.crs
        assert np.allclose(again.read(), first.read(), equal_nan=True)
    header, oak, _ = (tmp_path / "out" / "p.csv").read_text().splitlines()
    assert header == "name,x,y" and oak.startswith("oak,")
    pixel = np.array(oak.split(",")[1:], float)
    assert np.abs(pixel * [1, -1] + [rasterio.open(folder / "a.tif").xy(0, 0)] - true.to_world([[60, 50]])).max() < 0.05


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "nothing to apply"),
        (["--points", "none.csv"], 2, "none.csv: cannot be read"),
        (["--points", "bad.csv"], 2, "bad.csv, line 3: 'abc' is no number"),
        (["--points", "lon.csv"], 2, "one column is to be named 'x'; it has lon, lat"),
        (["--rasters", "none.tif"], 2, "there is no such file"),
        (["--map", "q", "--points", "bad.csv"], 2, "no map 'q'"),
        (["--points", "bad.csv", "--out", "."], 2, "overwrite an input"),
    ],
)
def test_errors_name_the_thing(run, tmp_path, monkeypatch, capsys, script, options, code, words):
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("x,y\n1,2\nabc,3\n")
    Path("lon.csv").write_text("lon,lat\n1,2\n")
    out = [] if "--out" in options else ["--out", "out"]
    assert script(run[0] / "resampled" / "transforms.json", *options, *out) == code
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not Path("out").exists()


def test_help_explains(capsys, script):
    with pytest.raises(SystemExit) as end:
        script("--help")
    said = capsys.readouterr().out
    assert end.value.code == 0 and "Exit codes: 0 done; 1 the map was left out" in said and "--nearest" in said
