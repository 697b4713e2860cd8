"""What `scripts/align.py` refuses of georeferences before the work begins, and what it says."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from mslsq.alignment import Georeference
from mslsq.alignment.rasters import Kind, Raster
from mslsq.alignment.scenes import Scene

pytest.importorskip("hydra")
ROOT = Path(__file__).resolve().parents[3]
HERE = Georeference.from_geotransform((500.0, 2, 0, 800, 0, -2), "EPSG:32632")
CONFIG = {
    "model": "affine",
    "output": "geotransform",
    "georeference": "auto",
    "reference": 0,
    "pixel_sizes": None,
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("align_script", ROOT / "scripts" / "align.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scene(*headers, suffixes=(".tif", ".tif")):
    rasters = [
        Raster(
            f"{i}{suffix}",
            torch.zeros(1, 9, 9),
            torch.ones(9, 9, dtype=torch.bool),
            Kind(suffix, np.dtype(np.uint8)),
            header,
            path=Path(f"{i}{suffix}"),
        )
        for i, (header, suffix) in enumerate(zip(headers, suffixes, strict=True))
    ]
    return Scene("maps", [one.name for one in rasters], rasters)


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({"model": "homography"}, scene(HERE, HERE), "model=homography is none"),
        ({"model": "piecewise"}, scene(HERE, HERE), "model=piecewise is none"),
        ({}, scene(None, HERE), r"the reference 0\.tif has no georeference"),
        ({"georeference": "ignore"}, scene(HERE, HERE), "no georeference that is used"),
        ({}, scene(HERE, HERE, suffixes=(".tif", ".npy")), r"1\.npy cannot hold a georeference"),
        ({"output": "geotransfrom"}, scene(HERE, HERE), "Did you mean 'geotransform'"),
        ({"georeference": "ingore"}, scene(HERE, HERE), "Did you mean 'ignore'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work_begins(script, changes, given, words):
    with pytest.raises(ValueError, match=words):
        script.refuse_headers_that_cannot_be_written(CONFIG | changes, given)


def test_what_can_be_written_is_not_refused(script):
    script.refuse_headers_that_cannot_be_written(CONFIG, scene(HERE, None))
    script.refuse_headers_that_cannot_be_written(CONFIG | {"output": "resampled"}, scene(None, None))


def test_pixel_sizes_of_files_are_those_of_the_headers(script):
    config = CONFIG | {"pixel_sizes": "files"}
    assert script.pixel_sizes_of(config, scene(HERE, HERE)) is None, "they come with the georeferences"
    plain = config | {"georeference": "ignore"}
    assert script.pixel_sizes_of(plain, scene(HERE, HERE)) == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"1\.tif has no georeference"):
        script.pixel_sizes_of(config, scene(HERE, None))
    with pytest.raises(ValueError, match="several projections"):
        script.pixel_sizes_of(plain, scene(HERE, Georeference(HERE.matrix, "EPSG:4326")))
