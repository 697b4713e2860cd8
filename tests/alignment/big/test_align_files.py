"""Files aligned by windows: as right as in memory, with honest errors, and every thing that is not used in words."""

import numpy as np
import pytest
import torch

from mslsq.alignment import AlignmentOptionError, Georeference, MapStatus, RasterError, align, align_files
from mslsq.alignment.big import refining
from mslsq.alignment.big.files import RasterFile
from tests.alignment.big.scans import HERE, TRUTH, corner_rms, scan, turned

rasterio = pytest.importorskip("rasterio")
pytestmark = pytest.mark.usefixtures("reduced")


def whole(path):
    """Values and mask of a file."""
    file = RasterFile.open(path)
    return file.read(0, 0, *file.size)


@pytest.mark.slow
def test_tiles_place_a_map_as_all_pixels_in_memory_do(pair):
    maps, masks = zip(*(whole(path) for path in pair), strict=True)
    in_memory = align(maps, masks=masks, model="sim2")
    found = align_files(pair, model="sim2", tiles=10)
    assert found.status.tolist() == [MapStatus.REFERENCE, MapStatus.ALIGNED]
    assert corner_rms(found.transforms[1], TRUTH) < 3 * float(found.corner_sigma[1]) < 0.05
    assert corner_rms(found.transforms[1], in_memory.transforms[1].numpy()) < 3 * float(found.corner_sigma[1])
    assert float(found.gain[1]) == pytest.approx(0.8, abs=2e-3)
    assert float(found.bias[1]) == pytest.approx(
        500, abs=10
    )  # the map is (height + 1500) / 0.8, the reference height + 2000
    assert found.tile_levels[-1].factor == 1 and 4 <= found.tile_levels[-1].tiles <= 10
    assert f"used {found.tile_levels[-1].tiles} tiles of 16" in found.message()
    assert "reduced to 1/4" in found.message()


@pytest.mark.slow
def test_headers_start_and_are_corrected(pair):
    found = align_files(pair, model="sim2", tiles=8, progress=lambda stage: None)
    place = found.world[1]
    assert place.shift == pytest.approx((-40.0, 30.0), abs=0.1)
    assert place.unit == "metre" and place.georeference.crs == HERE.crs
    ignored = align_files(pair, model="sim2", tiles=8, georeference=False)
    assert ignored.world == [] and corner_rms(ignored.transforms[1], TRUTH) < 0.05


@pytest.mark.slow
def test_fewer_tiles_have_larger_standard_errors(pair):
    few, many = (align_files(pair, model="sim2", tiles=tiles) for tiles in (4, 16))
    assert float(few.corner_sigma[1]) > 1.2 * float(many.corner_sigma[1])


@pytest.mark.slow
def test_the_same_call_has_the_same_answer(pair):
    first, second = (align_files(pair, model="sim2", tiles=6) for _ in range(2))
    assert torch.equal(first.transforms, second.transforms) and torch.equal(first.covariance, second.covariance)


@pytest.mark.slow
def test_a_start_is_in_pixels_of_the_files(pair):
    start = torch.stack([torch.eye(3, dtype=torch.float64), torch.from_numpy(TRUTH)])
    found = align_files(pair, model="sim2", tiles=4, init=start, georeference=False)
    assert corner_rms(found.transforms[1], TRUTH) < 0.1


@pytest.mark.slow
def test_three_files_are_refined_together(tmp_path):
    truths = [np.eye(3), turned(1.0, 1.0, -250, 30), turned(-1.5, 1.0, 200, 180)]
    paths = [scan(tmp_path / f"{i}.tif", truth, i, gain=1 + 0.2 * i) for i, truth in enumerate(truths)]
    found = align_files(paths, model="sim2", tiles=24)
    for index in (1, 2):
        assert corner_rms(found.transforms[index], truths[index]) < 3 * float(found.corner_sigma[index]) < 0.06
        assert float(found.gain[index]) == pytest.approx(1 + 0.2 * index, rel=5e-3)
    assert "tiles of" in found.reasons[2]


@pytest.mark.slow
def test_pixels_of_other_sizes_are_read_reduced(tmp_path):
    shift = np.array([[2.0, 0, 100.5], [0, 2, 61.5], [0, 0, 1]])
    header = Georeference(HERE.matrix @ np.linalg.inv(shift), HERE.crs)
    coarse = scan(tmp_path / "a.tif", np.eye(3), 1, size=(700, 700), header=HERE)
    fine = scan(tmp_path / "b.tif", shift, 2, size=(1400, 1300), header=header)
    found = align_files([coarse, fine], model="translation", tiles=12, init="auto")
    assert found.status[1] == MapStatus.ALIGNED
    by_model = align_files([coarse, fine], model="affine", tiles=12)
    assert corner_rms(by_model.transforms[1], shift, 700) < 0.1


@pytest.mark.slow
def test_a_model_error_widens_the_standard_errors(tmp_path):
    """A map that is bent by half a pixel: pixels' noise alone would say a fiftieth of it."""
    straight = scan(tmp_path / "a.tif", np.eye(3), 1)
    bent = turned(0.0, 1.0, 0.0, 0.0)
    bent[2, 0] = 1e-6  # a homography, seen by a similarity
    other = scan(tmp_path / "b.tif", bent, 2)
    found = align_files([straight, other], model="sim2", tiles=30, georeference=False)
    true = align_files([straight, other], model="homography", tiles=30, georeference=False)
    assert corner_rms(true.transforms[1], bent) < 3 * float(true.corner_sigma[1])
    assert float(found.corner_sigma[1]) > 2 * float(true.corner_sigma[1])


def test_files_without_overlap_are_left_out_and_nothing_is_refined(tmp_path):
    paths = [scan(tmp_path / "a.tif", np.eye(3), 1), scan(tmp_path / "b.tif", turned(0, 1, 5000, 0), 2)]
    found = align_files(paths, model="translation")
    assert not MapStatus(int(found.status[1])).ok and bool(found.transforms[1].isnan().all())
    assert found.tile_levels == [] and found.reasons[1].startswith("Left out")


@pytest.mark.slow
def test_a_file_smaller_than_a_tile_is_aligned_by_all_of_it(tmp_path):
    truth = np.array([[1.0, 0, -300.25], [0, 1, -410.5], [0, 0, 1]])
    paths = [scan(tmp_path / "a.tif", np.eye(3), 1), scan(tmp_path / "b.tif", truth, 2, size=(200, 180))]
    start = torch.stack([torch.eye(3, dtype=torch.float64), torch.from_numpy(truth)])
    found = align_files(paths, model="translation", init=start)
    assert found.status[1] == MapStatus.ALIGNED
    assert corner_rms(found.transforms[1], truth) < 4 * float(found.corner_sigma[1])


def test_several_crs_are_refused_and_the_way_out_is_named(tmp_path):
    other = Georeference(HERE.matrix, "EPSG:32633")
    paths = [scan(tmp_path / "a.tif", np.eye(3), 1, header=HERE), scan(tmp_path / "b.tif", TRUTH, 2, header=other)]
    with pytest.raises(AlignmentOptionError, match=r"b\.tif is in another coordinate.*gdalwarp"):
        align_files(paths)


@pytest.mark.slow
def test_a_truncated_file_is_left_out_with_its_reason(tmp_path, pair):
    torn = tmp_path / "torn.tif"
    torn.write_bytes(pair[1].read_bytes()[:-300_000])
    found = align_files([pair[0], torn, pair[1]], model="sim2", tiles=8)
    assert found.status.tolist()[1:] == [MapStatus.BAD_INPUT, MapStatus.ALIGNED]
    assert "torn.tif: rows" in found.reasons[1]
    with pytest.raises(RasterError, match=r"the reference cannot be used: .*torn\.tif"):
        align_files([torn, pair[1]])


def test_tiles_that_cannot_be_read_are_counted(pair, monkeypatch):
    def damaged(source, tile, options):
        if tile == (1, 1):
            raise RasterError("rows 256 to 512")
        return read(source, tile, options)

    read = refining.information
    monkeypatch.setattr(refining, "information", damaged)
    found = align_files(pair, model="sim2", tiles=4)
    assert "1 tiles could not be read" in found.message()


def test_where_a_fine_level_is_not_believed_the_coarse_place_stays(pair, monkeypatch):
    monkeypatch.setattr(refining.Refining, "_doubt", lambda self, *rest: "nothing agrees.")
    found = align_files(pair, model="sim2", tiles=4)
    assert "not used for the place: nothing agrees." in found.message()
    assert found.reasons[1].endswith("Of the reduced rasters alone.")
    coarse = found.coarse
    assert torch.equal(found.transforms[1], coarse.transform(1))
    assert float(found.corner_sigma[1]) == pytest.approx(4 * float(coarse.result.corner_sigma[1]))
    assert corner_rms(found.transforms[1], TRUTH) < 4 * float(found.corner_sigma[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masks": []}, "no option 'masks'"),
        ({"min_overlp": 0.2}, "Did you mean 'min_overlap'"),
        ({"model": "piecewise"}, "needs maps in memory"),
        ({"metric": "gradients"}, "needs maps in memory"),
        ({"metric": "auto"}, "needs maps in memory"),
        ({"tiles": 0}, "tiles"),
        ({"memory": "1MB"}, "at least 1.2 GB"),
        ({"reference": 2}, "reference"),
    ],
)
def test_options_that_make_no_sense_are_refused(pair, options, words):
    with pytest.raises(AlignmentOptionError, match=words):
        align_files(pair, **options)
