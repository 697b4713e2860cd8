"""The command line: what it writes, and what it says when nothing can be done."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

hydra = pytest.importorskip("hydra")
iio = pytest.importorskip("imageio.v3")
tifffile = pytest.importorskip("tifffile")

ROOT = Path(__file__).resolve().parents[2]


def run(*options, cwd=ROOT):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, str(ROOT / "scripts" / "align.py"), *map(str, options)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    """Crops of one picture as 8-bit RGBA, 16-bit PNG, float TIFF with nodata, and two that hold nothing."""
    from mslsq.alignment.synthetic import base_raster

    folder = tmp_path_factory.mktemp("crops")
    base = base_raster("coffee")
    a, b, c = base[100:228, 200:328], base[110:238, 190:318], base[95:223, 205:333]
    alpha = np.full(a.shape, 255, np.uint8)
    alpha[:20] = 0
    grey = np.rint(255 * a).astype(np.uint8)
    iio.imwrite(folder / "a.png", np.stack([grey, grey, grey, alpha], -1))
    iio.imwrite(folder / "b.png", np.rint(60000 * b).astype(np.uint16))
    heights = (1000 * c).astype(np.float32)
    heights[40:60, 40:60] = -9999
    tifffile.imwrite(folder / "c.tif", heights, extratags=[(42113, 2, 6, "-9999", True)])
    iio.imwrite(folder / "flat.png", np.full((64, 64), 7, np.uint8))
    (folder / "empty.png").write_bytes(b"")
    return folder


def test_bundled_rasters_are_aligned_and_everything_is_written(tmp_path):
    out = tmp_path / "run"
    options = [
        "bundled.rasters=[camera]",
        "bundled.count=2",
        "bundled.size=128",
        "bundled.shift=10",
        f"hydra.run.dir={out}",
    ]
    done = run("+experiment=multiscale", *options)
    assert done.returncode == 0, done.stderr
    written = ("transforms.json", "metrics.json", "metrics.csv", "mosaic.png", "overlay.png", "convergence.png")
    for name in (*written, "placements.png", "report.html"):
        assert (out / name).stat().st_size > 0
        assert name in done.stdout
    assert str(out) in done.stdout
    assert "level 0" in done.stdout
    summary = json.loads((out / "metrics.json").read_text())["summary"]
    assert summary["aligned"] == 1
    assert summary["largest_corner_error_px"] < 0.1
    content = json.loads((out / "transforms.json").read_text())
    assert "first pixel is (0, 0)" in content["convention"]
    assert np.array(content["maps"][1]["matrix"]).shape == (3, 3)
    assert len(list((out / "aligned").iterdir())) == 4


@pytest.mark.slow
def test_maps_of_every_kind_are_aligned_and_bad_ones_left_out_with_their_reason(tmp_path, crops):
    out = tmp_path / "run"
    names = ["a.png", "b.png", "empty.png", "c.tif", "flat.png"]
    done = run(
        f"maps=[{','.join(str(crops / n) for n in names)}]", "model=translation", f"hydra.run.dir={out}", "quiet=true"
    )
    assert done.returncode == 0, done.stderr
    maps = {record["name"]: record for record in json.loads((out / "transforms.json").read_text())["maps"]}
    assert [maps[name]["status"] for name in names] == ["reference", "aligned", "bad_input", "aligned", "constant"]
    assert "empty" in maps["empty.png"]["reason"]
    assert maps["flat.png"]["matrix"] is None
    # The crops start at (x, y) = (200, 100), (190, 110), (205, 95) of one picture; 8 bits round values to 0.4 %.
    assert np.allclose(np.array(maps["b.png"]["matrix"])[:2, 2], [10, -10], atol=0.02)
    assert np.allclose(np.array(maps["c.tif"]["matrix"])[:2, 2], [-5, 5], atol=0.02)
    assert abs(maps["b.png"]["gain"] * 60000 / 255 - 1) < 0.01
    assert iio.imread(out / "aligned" / "b.png").dtype == np.uint16
    assert iio.imread(out / "aligned" / "a.png").shape == (128, 128, 4)
    assert tifffile.imread(out / "aligned" / "c.tif").dtype == np.float32
    assert "flat.png" in done.stderr
    assert not [path for path in out.rglob(".*") if path.is_file()]


@pytest.mark.slow
def test_strict_turns_a_map_left_out_into_an_exit_code(tmp_path, crops):
    maps = f"maps=[{crops / 'a.png'},{crops / 'b.png'},{crops / 'flat.png'}]"
    done = run(maps, "model=translation", "strict=true", "quiet=true", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 3


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["maps=[{a}]"], 1, "one map was given"),
        (["maps=[{empty},{a}]"], 1, "1 of 2 maps can be read"),
        (["maps=[{flat},{a}]"], 1, "no map could be aligned"),
        (["maps=[{a},nowhere.png]"], 1, "no such file"),
        (["maps=[{folder}/*.xyz]"], 2, "no file matches"),
        (["maps=[{a},{b}]", "model=afine"], 2, "Did you mean 'affine'?"),
        (["maps=[{a},{b}]", "metric=gradient"], 2, "Did you mean 'gradients'?"),
        (["maps=[{a},{b}]", "min_overlap=7"], 2, "min_overlap"),
        (["maps=[{a},{b}]", "levels=-3"], 2, "levels"),
        (["maps=[{a},{b}]", "reference=z.png"], 2, "none of the maps"),
        (["maps=[{a},{b}]", "masks=[{a}]"], 2, "1 masks for 2 maps"),
        (["maps=[{a},{b}]", "+modle=affine"], 2, "Did you mean 'model'?"),
        (["+bundled.cuont=3"], 2, "Did you mean 'bundled.count'?"),
        (["bundled.cuont=3"], 2, "Did you mean 'bundled.count'?"),
        (["levels=1.5"], 2, "levels: Value '1.5' of type 'float'"),
        (["maps=[{a}"], 2, "input"),
        (["bundled.rasters=[lena]"], 2, "camera"),
        (["bundled.rasters=[]"], 2, "rasters"),
        (["bundled.size=-5"], 2, "size"),
        (["bundled.count=many"], 2, "count"),
        (["bundled.seed=-1"], 2, "seed"),
        (["threads=0"], 2, "threads"),
        (["quiet=perhaps"], 2, "quiet: Value 'perhaps' is not a valid bool"),
    ],
)
def test_a_command_that_is_not_valid_ends_in_a_message_and_an_exit_code(tmp_path, crops, capsys, options, code, says):
    names = {"folder": crops} | {name: crops / f"{name}.png" for name in ("a", "b", "empty", "flat")}
    from command_line import CONFIGURATION_ERRORS, attempt, refuse

    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        try:
            settings = hydra.compose("align", ["quiet=true", *(option.format(**names) for option in options)])
            found = attempt(script().run, settings, tmp_path)
        except CONFIGURATION_ERRORS as error:
            found = refuse(error)
    assert found == code
    assert says in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("names", "reason"), [(["flat", "a"], "the map is constant"), (["empty", "a"], "the file is empty"), (["a"], "")]
)
def test_where_nothing_can_be_aligned_the_report_says_why(tmp_path, crops, names, reason):
    from command_line import attempt

    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        maps = f"maps=[{','.join(str(crops / f'{name}.png') for name in names)}]"
        settings = hydra.compose("align", ["quiet=true", maps])
    assert attempt(script().run, settings, tmp_path) == 1
    page = (tmp_path / "report.html").read_text("utf-8")
    assert reason in page and "0 of" in page
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + len(names)


def script():
    """scripts/align.py as a module: starting an interpreter for every case would take seconds each."""
    spec = importlib.util.spec_from_file_location("align_script", ROOT / "scripts" / "align.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("option", "says"),
    [("modle=affine", "Did you mean 'model'?"), ("+experiment=multiscael", "Did you mean 'multiscale'?")],
)
def test_a_misspelt_option_or_experiment_is_refused_by_name(option, says):
    done = run(option)
    assert done.returncode == 2
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_runs_from_any_directory(tmp_path, crops):
    (tmp_path / "elsewhere").mkdir()
    maps = f"maps=[{crops / 'a.png'},{crops / 'b.png'}]"
    done = run(maps, "model=translation", "quiet=true", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "elsewhere" / "outputs").rglob("transforms.json"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes there")
def test_a_file_that_cannot_be_written_is_named_and_the_figures_are_there(tmp_path):
    """A limit of file sizes stands for a full disk; maps of noise exceed it, the figures do not."""
    import resource

    noise = np.random.default_rng(0).integers(0, 255, (400, 400), dtype=np.uint8)
    for name, x in (("a.png", 0), ("b.png", 5)):
        iio.imwrite(tmp_path / name, noise[:, x : x + 390])
    out, limit = tmp_path / "run", 100_000
    command = [sys.executable, str(ROOT / "scripts" / "align.py"), f"maps=[{tmp_path}/a.png,{tmp_path}/b.png]"]
    command += ["model=translation", "quiet=true", f"hydra.run.dir={out}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        timeout=300,
    )
    assert done.returncode == 4, done.stderr
    assert "aligned/a.png cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    maps = json.loads((out / "transforms.json").read_text())["maps"]
    assert np.allclose(np.array(maps[1]["matrix"])[:2, 2], [-5, 0], atol=0.05)
    assert (out / "metrics.json").exists()
    assert not [path for path in out.rglob("*.png") if path.is_file()]


@pytest.mark.slow
def test_maps_of_one_stem_have_masks_of_their_own(tmp_path, crops):
    iio.imwrite(tmp_path / "a.png", iio.imread(crops / "a.png"))
    tifffile.imwrite(tmp_path / "a.tif", iio.imread(crops / "b.png").astype(np.float32))
    out = tmp_path / "run"
    done = run("maps=[a.png,a.tif]", "model=translation", "quiet=true", f"hydra.run.dir={out}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {"a.png", "a.png.mask.png", "a.tif", "a.tif.mask.png"}
    assert {path.name for path in (out / "aligned").iterdir()} == names
    maps = json.loads((out / "transforms.json").read_text())["maps"]
    assert {file for record in maps for file in record["files"]} == {f"aligned/{name}" for name in names}
    done = run("maps=[a.png,a.tif]", "reference=a", f"hydra.run.dir={out}", cwd=tmp_path)
    assert done.returncode == 2
    assert "several maps" in done.stderr


def georeferenced(path: Path, raster: np.ndarray, side: float, projection: int) -> Path:
    keys = (1, 1, 0, 1, 3072, 0, 1, projection)
    corner = (0.0, 0.0, 0.0, 5e5, 4e6, 0.0)
    tags = [(33550, 12, 3, (side, side, 0.0), True), (33922, 12, 6, corner, True), (34735, 3, len(keys), keys, True)]
    tifffile.imwrite(path, raster.astype(np.float32), extratags=tags)
    return path


@pytest.mark.slow
def test_scales_that_the_georeference_of_files_contradicts_are_refused(tmp_path, crops):
    raster = tifffile.imread(crops / "c.tif")[64:]
    one = georeferenced(tmp_path / "one.tif", raster, 2.0, 32632)
    for side, says in ((2.0, "Aligned."), (3.0, "scale_range rule out")):
        other = georeferenced(tmp_path / f"other{side:g}.tif", raster, side, 32632)
        out = tmp_path / f"out{side:g}"
        done = run(f"maps=[{one},{other}]", "pixel_sizes=files", f"hydra.run.dir={out}", "quiet=true")
        assert done.returncode in (0, 1), done.stdout + done.stderr
        assert says in (out / "transforms.json").read_text()
    other = georeferenced(tmp_path / "other.tif", raster, 2.0, 32633)
    options = ["pixel_sizes=files", "georeference=ignore"]
    done = run(f"maps=[{one},{other}]", *options, f"hydra.run.dir={tmp_path / 'out'}")
    assert done.returncode == 2 and "several projections" in done.stdout + done.stderr
    done = run(f"maps=[{one},{crops / 'b.png'}]", "pixel_sizes=files", f"hydra.run.dir={tmp_path / 'out'}")
    assert done.returncode == 2 and "give numbers" in done.stdout + done.stderr


@pytest.mark.slow
def test_an_elevation_model_is_laid_on_another(tmp_path):
    out = tmp_path / "run"
    done = run("+experiment=dem", "dem.block=128", f"hydra.run.dir={out}")
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "metrics.json").read_text())
    assert found["status"] == "coregistered"
    assert np.abs(found["error_m"]).max() < 0.1  # of pixels of 30 m
    pictures = ["differences.png", "statistics.png", "local_shifts.png", "report.html"]
    for name in ("coregistered.npy", "changed.npy", "metrics.csv", "statistics.csv", "local_shifts.csv", *pictures):
        assert (out / name).stat().st_size > 0
        assert name in done.stdout
    corrected = np.load(out / "coregistered.npy")
    assert corrected.dtype == np.float32 and np.load(out / "changed.npy").shape == corrected.shape
    before = (out / "metrics.json").stat().st_mtime_ns
    done = run(f"resume={out}")
    assert done.returncode == 0 and "nothing is done again" in done.stdout, done.stderr
    (out / "report.html").unlink()  # as if it had been killed
    done = run(f"resume={out}")
    assert done.returncode == 0 and (out / "report.html").exists(), done.stderr
    assert (out / "metrics.json").stat().st_mtime_ns > before


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("dem.reference=a.tif", "both needed"),
        ("dem.bias=tilt", "bias='tilt'"),
        ("output=geotransform", "has other heights"),
    ],
)
def test_what_an_elevation_model_lacks_is_said(option, words, tmp_path):
    done = run("+experiment=dem", option, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert words in done.stderr
