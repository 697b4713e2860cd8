"""Names of outputs: as many files as maps and masks, whatever the inputs are called."""

import numpy as np
import pytest
import torch

from mslsq.alignment.output_names import output_names, refuse_to_overwrite_inputs
from mslsq.alignment.rasters import Kind, Raster, RasterError
from mslsq.alignment.scenes import Scene, distinct, scene_from_files

Image = pytest.importorskip("PIL.Image")


def scene(*names):
    rasters = []
    for name in names:
        suffix = ".npy" if ".npz" in name else "." + name.rsplit(".", 1)[-1].lower()
        kind = Kind(suffix, np.dtype(np.uint8))
        rasters.append(Raster(name, torch.zeros(1, 2, 2), torch.ones(2, 2, dtype=torch.bool), kind))
    return Scene("maps", list(names), rasters)


@pytest.mark.parametrize(
    "names",
    [
        ["a.png", "a.tif"],
        ["a.png", "A.PNG"],
        ["a.png", "a.mask.png", "a.mask.tif"],
        ["a.png.mask.png", "a.png", "a.tif"],
        ["b.npz:x/y", "b.npz:x_y", "b.npz_x_y.npy"],
        ["é.png", "e\u0301.png"],
        ["x" * 200 + ".png", "x" * 200 + ".tif", "x" * 199 + "y.png"],
        ["a-2.png", "a.png", "a.png", "a-2.tif"],
    ],
)
def test_no_two_outputs_share_a_file(names):
    (files,) = output_names([scene(*names)], [0])
    written = [part.casefold() for file in files for part in file]
    assert len(set(written)) == 2 * len(names)
    assert all(len(part) < 256 and not set(part) & set('/\\:*?"<>|') for part in written)


def test_a_map_whose_name_is_its_own_keeps_it():
    (files,) = output_names([scene("a.png", "v1.2.tif")], [0])
    assert files == [("a.png", "a.mask.png"), ("v1.2.tif", "v1.2.mask.png")]


def test_scenes_of_one_raster_do_not_write_over_each_other():
    first, second = output_names([scene("a.png", "b.png"), scene("a.png", "b.png")], [0, 0])
    assert len({*first, *second}) == 4


def test_a_map_is_told_apart_from_one_that_is_called_like_its_number():
    assert len(set(distinct(["a.png", "a.png", "0-a.png", "1-a.png"]))) == 4


def test_an_output_that_would_replace_an_input_is_refused_before_the_work_begins(tmp_path):
    folder = tmp_path / "aligned"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / name)
    maps = scene_from_files([str(folder / "a.png"), str(folder / "b.png")])
    refuse_to_overwrite_inputs([maps], [0], tmp_path / "elsewhere")
    with pytest.raises(RasterError, match=r"a\.png: this input would be overwritten"):
        refuse_to_overwrite_inputs([maps], [0], tmp_path)


def test_a_mask_that_jpeg_has_blurred_is_refused(tmp_path):
    mask = np.zeros((32, 32), np.uint8)
    mask[:, 13:] = 255
    Image.fromarray(mask).save(tmp_path / "a.png")
    Image.fromarray(mask).save(tmp_path / "mask.jpg", quality=50)
    with pytest.raises(RasterError, match=r"mask\.jpg.*save it as PNG"):
        scene_from_files([str(tmp_path / "a.png")], [str(tmp_path / "mask.jpg")])
    known = scene_from_files([str(tmp_path / "a.png")], [str(tmp_path / "a.png")]).rasters[0].mask
    assert torch.equal(known, torch.from_numpy(mask > 0))
