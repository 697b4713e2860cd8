"""Real files: an elevation model and its moved copy with one header, and floor plans as maps of ROS."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from mslsq.alignment import Georeference, align
from mslsq.alignment.coordinates.outputs import write_headers
from mslsq.alignment.output_names import output_names
from mslsq.alignment.outputs import Aligned, write_all
from mslsq.alignment.rasters import read_raster
from mslsq.alignment.scenes import scene_from_files
from tests.alignment.coordinates.world import shifted

rasterio = pytest.importorskip("rasterio")
DATA = Path(os.environ.get("MSLSQ_DATA", Path(__file__).resolve().parents[3].parent / "shared" / "data")) / "maps"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")


def result_of(scene, **options):
    return align(
        [one.luminance() for one in scene.rasters],
        masks=[one.mask for one in scene.rasters],
        georeferences=[one.georeference for one in scene.rasters],
        **options,
    )


@needs_data
def test_the_header_of_a_moved_elevation_model_is_corrected(tmp_path):
    """By exactly 3 columns east and 5 rows south; gdal reads the same."""
    folder = DATA / "demcompare_srtm"
    scene = scene_from_files([str(folder / f"srtm_{name}.tif") for name in ("ref", "blurred_and_shifted")])
    result = result_of(scene, model="translation")
    side = scene.rasters[0].georeference.pixel_size[0]
    assert result.world[1].shift == pytest.approx((3 * side, -5 * side), abs=0.01 * side)
    write_headers(scene, result, tmp_path, output_names([scene], [0])[0])
    with (
        rasterio.open(tmp_path / "aligned" / "srtm_blurred_and_shifted.tif") as corrected,
        rasterio.open(folder / "srtm_blurred_and_shifted.tif") as given,
        rasterio.open(folder / "srtm_ref.tif") as reference,
    ):
        assert (corrected.read() == given.read()).all() and corrected.crs == reference.crs
        row, column = reference.index(*corrected.xy(100, 200))
        assert (row, column) == (105, 203)


@needs_data
def test_an_elevation_model_of_three_times_the_pixel_size_lies_where_it_is_cut_from():
    """Every way round: with the finer one, or the coarser one, as the reference."""
    heights = read_raster(DATA / "demcompare_srtm" / "srtm_ref.tif").values[0, 200:500, 200:500]
    coarse = heights.reshape(100, 3, 100, 3).mean((1, 3))
    fine = heights[31:260, 37:280]
    where = Georeference.from_geotransform((0, 3, 0, 0, 0, -3))
    wrong = Georeference.from_geotransform((37 + 5.25, 1, 0, -31 - 4.5, 0, -1))
    for maps, headers, sign in (((coarse, fine), (where, wrong), 1), ((fine, coarse), (wrong, where), -1)):
        result = align(maps, model="translation", georeferences=headers)
        assert result.world[1].shift == pytest.approx((-5.25 * sign, 4.5 * sign), abs=0.03)
        assert float(result.overlap[1]) > 0.9


@pytest.mark.slow
@needs_data
def test_floor_plans_become_one_map_of_ros(tmp_path):
    """Two crops of one plan, the second by 123 pixels to the right: their pixels in one frame, and back."""
    pytest.importorskip("yaml")
    from PIL import Image

    errors = {3: (0.0, 0.0), 4: (0.6, -0.4)}
    for number, (x, y) in {3: (0, 0), 4: (123, -4)}.items():
        grey = np.asarray(Image.open(DATA / "fr079" / f"fr079_freeform_crop{number}.jpg").convert("L"))
        cells = np.where(grey < 100, 0, np.where(grey > 245, 254, 205)).astype(np.uint8)
        Image.fromarray(cells).save(tmp_path / f"{number}.pgm")
        left, bottom = 0.05 * x + errors[number][0], -0.05 * (y + len(cells)) + errors[number][1]
        (tmp_path / f"{number}.yaml").write_text(
            f"image: {number}.pgm\nresolution: 0.05\norigin: [{left}, {bottom}, 0]\nnegate: 0\n"
            "occupied_thresh: 0.65\nfree_thresh: 0.196\n"
        )
    scene = scene_from_files([str(tmp_path / "3.yaml"), str(tmp_path / "4.yaml")])
    result = result_of(scene, model="translation", metric="occupancy")
    assert result.world[1].shift == pytest.approx((-0.6, 0.4), abs=0.05) and result.world[1].unit == "metre"
    elsewhere = [scene.rasters[0].georeference, shifted(scene.rasters[1].georeference, 40, 30)]
    maps, masks = [one.luminance() for one in scene.rasters], [one.mask for one in scene.rasters]
    alone = align(maps, masks=masks, georeferences=elsewhere, model="translation", metric="occupancy")
    assert alone.aligned == [0], "walls alone do not suffice here: the header was a witness"
    write_all([Aligned(scene, result)], tmp_path / "out", 1.0, {})
    merged, first = read_raster(tmp_path / "out" / "mosaic.yaml"), scene.rasters[0]
    wall = torch.nonzero((first.values[0] == 0) & first.mask)[::50].flip(-1).double().numpy()
    column, row = merged.georeference.to_pixel(first.georeference.to_world(wall)).round().astype(int).T
    seen = merged.values[0][row, column]
    assert float((seen == 0).double().mean()) > 0.8 and set(seen.unique().tolist()) <= {0.0, 205.0, 255.0}
    again = read_raster(tmp_path / "out" / "aligned" / "4.yaml").georeference
    assert np.abs(again.matrix - first.georeference.matrix).max() < 1e-9
    write_headers(scene, result, tmp_path / "kept", output_names([scene], [0])[0])
    kept = read_raster(tmp_path / "kept" / "aligned" / "4.yaml")
    assert torch.equal(kept.values, scene.rasters[1].values)
    assert kept.georeference.to_world([[0, 0]])[0] == pytest.approx([0.05 * 123.5, 0.05 * 3.5], abs=0.05)
