"""`scripts/align.py` on files that `memory=` says are too big: they are read in windows."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

hydra = pytest.importorskip("hydra")
pytest.importorskip("rasterio")
pytest.importorskip("rich")
import big  # noqa: E402

from mslsq.alignment.big import coarse  # noqa: E402
from tests.alignment.big.scans import HERE, TRUTH, scan  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("align_script", ROOT / "scripts" / "align.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("big")
    return [
        scan(folder / "a.tif", np.eye(3), 1, size=(700, 700), dtype="uint16", nodata=0, header=HERE),
        scan(folder / "b.tif", TRUTH, 2, size=(700, 700), dtype="uint16", nodata=0, header=HERE),
    ]


def config_of(*options):
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return OmegaConf.to_container(hydra.compose("align", overrides=list(options)), throw_on_missing=False)


def test_files_are_too_big_where_memory_says_so(paths, monkeypatch):
    maps = [str(path) for path in paths]
    assert not big.too_big(config_of(), maps)
    monkeypatch.setattr(big, "fits_whole", lambda pixels, memory: pixels < 2 * 700**2)
    assert big.too_big(config_of(), maps) and not big.too_big(config_of(), maps[:1])
    assert not big.too_big(config_of(), [])
    with pytest.raises(ValueError, match="a size like '4GB'"):
        big.too_big(config_of("memory=some"), maps)
    with pytest.raises(ValueError, match="Did you mean 'median'"):
        big.too_big(config_of("mosaic=medain"), maps)


@pytest.mark.slow
def test_a_run_in_windows_writes_figures_mosaic_coverage_and_report(script, paths, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(big, "fits_whole", lambda pixels, memory: False)
    monkeypatch.setattr(script, "too_big", big.too_big)
    monkeypatch.setattr(coarse, "PIXELS", 1 << 16)
    text = ",".join(map(str, paths))
    config = config_of(f"maps=[{text}]", "output=geotransform", "memory=1.2GB")
    assert script.run(config, tmp_path) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("in windows:", "memory=1.2GB has room for 20 tiles", "used ", " tiles of 9", "reduced to 1/4"):
        assert words in said
    for name in ("mosaic.tif", "mosaic_coverage.tif", "report.html", "metrics.csv", "metrics.json", "aligned/b.tif"):
        assert (tmp_path / name).stat().st_size > 0
    record = json.loads((tmp_path / "transforms.json").read_text("utf-8"))
    assert np.allclose(record["maps"][1]["matrix"], TRUTH, atol=0.2)
    assert record["maps"][1]["size"] == [700, 700] and record["maps"][1]["files"] == ["aligned/b.tif"]
    again = config | {"resume": str(tmp_path)}
    assert script.run(again, tmp_path) == 0 and "this run is whole already" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "mosaic.tif").unlink()  # as if it had been killed before
    assert script.run(again, tmp_path) == 0 and (tmp_path / "mosaic.tif").exists()
    with pytest.raises(ValueError, match="has model='sim2', not 'se2'"):
        script.run(again | {"model": "se2"}, tmp_path)


@pytest.mark.parametrize("name", ["coregistered.tif", "CHANGED.TIF"])
def test_an_elevation_model_that_the_run_would_replace_is_refused(tmp_path, name):
    import elevation

    (tmp_path / name).write_bytes(b"not read")
    (tmp_path / "link.tif").symlink_to(tmp_path / name)
    for dem in (tmp_path / name, tmp_path / "link.tif"):
        config = config_of("task=dem", f"dem.reference={tmp_path / 'a.tif'}", f"dem.dem={dem}")
        with pytest.raises(ValueError, match=rf"{dem.name}: this input would be overwritten; choose another hydra"):
            elevation.run_dem(config, tmp_path)
    assert (tmp_path / name).read_bytes() == b"not read"


@pytest.mark.parametrize("option", ["masks=[m.png]", "pixel_sizes=files"])
def test_options_that_need_maps_in_memory_are_named(script, paths, tmp_path, monkeypatch, option):
    monkeypatch.setattr(big, "fits_whole", lambda pixels, memory: False)
    monkeypatch.setattr(script, "too_big", big.too_big)
    config = config_of(f"maps=[{','.join(map(str, paths))}]") | dict([option.split("=")])
    with pytest.raises(ValueError, match=r"needs maps in memory.*memory=4GB"):
        script.run(config, tmp_path)


@pytest.mark.slow
def test_elevation_models_beyond_memory_are_coregistered_in_windows(script, tmp_path, monkeypatch, capsys):
    import elevation

    shifted = np.eye(3)
    shifted[:2, 2] = 1.5, -0.7
    size = (320, 320)
    one, other = (
        scan(tmp_path / f"{name}.tif", matrix, seed, size=size, header=HERE, nodata=-9999)
        for name, matrix, seed in (("a", np.eye(3), 1), ("b", shifted, 2))
    )
    monkeypatch.setattr(elevation, "BYTES_PER_PIXEL", 10**6)
    monkeypatch.setattr(coarse, "PIXELS", 1 << 14)
    config = config_of("task=dem", f"dem.reference={one}", f"dem.dem={other}", "dem.block=160", "memory=1.2GB")
    folder = tmp_path / "out"
    folder.mkdir()
    written, code = elevation.run_dem(config, folder)
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0 and "in windows" in said and "tiles of 9" in said and "writing: 1 of 1 windows" in said
    assert "4 of 4 blocks show a shift of their own" in said
    names = {path.name for path in written}
    assert names >= {
        "local_shifts.png",
        "local_shifts.csv",
        "coregistered.tif",
        "changed.tif",
        "report.html",
        "metrics.json",
        "metrics.csv",
        "statistics.csv",
    }
    record = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert np.allclose(record["shift_m"][:2], [-3.0, -1.4], atol=0.1) and "tiles of 9" in record["note"]
    assert len(record["blocks"]["blocks"]) == 4 and "<h2>Blocks</h2>" in (folder / "report.html").read_text("utf-8")
    assert not elevation._in_windows(config["dem"], 10**13)
