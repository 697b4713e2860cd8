"""Stacks of pages: each page a raster of its own, none of them taken for colours or alpha, or for the whole file."""

import numpy as np
import pytest

from mslsq.alignment import RasterError
from mslsq.alignment.rasters import read_raster
from mslsq.alignment.stacks import every_page

tifffile = pytest.importorskip("tifffile")
pytestmark = pytest.mark.filterwarnings("ignore:.*are stored as RGB:DeprecationWarning")

TYPES = [np.uint8, np.uint16, np.float32]


def stack(pages, dtype, high=200):
    return np.random.default_rng(pages).uniform(0, high, (pages, 24, 32)).astype(dtype)


def of_all_pages(path):
    return [read_raster(one) for one in every_page(f"{path}:all")]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pages", [1, 2, 3, 4, 5])
def test_every_page_of_a_stack_that_tifffile_wrote_is_a_raster(tmp_path, pages, dtype):
    path, array = tmp_path / "stack.tif", stack(pages, dtype)
    tifffile.imwrite(path, array)
    rasters = of_all_pages(path)
    assert len(rasters) == pages
    for raster, page in zip(rasters, array, strict=True):
        assert np.array_equal(raster.values.numpy(), page[None]) and bool(raster.mask.all())
        assert not (raster.kind.colours or raster.kind.alpha)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pages", [2, 4, 5])
def test_no_page_is_taken_for_the_whole(tmp_path, pages, dtype):
    tifffile.imwrite(tmp_path / "stack.tif", stack(pages, dtype))
    with pytest.raises(RasterError, match=r"stack\.tif:all"):
        read_raster(tmp_path / "stack.tif")


@pytest.mark.parametrize("high", [1, 200])
def test_a_fourth_elevation_model_is_no_alpha(tmp_path, high):
    path = tmp_path / "stack.tif"
    for options in ({}, {"metadata": None}, {"tile": (16, 16)}, {"bigtiff": True}):
        tifffile.imwrite(path, stack(4, np.float32, high), **options)
        with pytest.raises(RasterError, match="red, green, blue and alpha"):
            read_raster(path)
    with pytest.raises(RasterError, match="no page '4'; it has the pages 0 to 3"):
        read_raster(f"{path}:4")


def test_three_elevation_models_are_no_colours_and_three_planes_of_bytes_are(tmp_path):
    tifffile.imwrite(tmp_path / "stack.tif", stack(3, np.float32))
    with pytest.raises(RasterError, match=r"what tifffile\.imwrite makes of a stack"):
        read_raster(tmp_path / "stack.tif")
    assert len(read_raster(f"{tmp_path / 'stack.tif'}:colours").values) == 3
    planes = stack(3, np.uint8)
    tifffile.imwrite(tmp_path / "rgb.tif", planes, photometric="rgb", planarconfig="separate")
    raster = read_raster(tmp_path / "rgb.tif")
    assert raster.kind.colours and np.array_equal(raster.values.numpy(), planes)


@pytest.mark.parametrize("bands", [3, 4])
@pytest.mark.parametrize("dtype", TYPES[:2])
def test_colours_beside_each_other_are_one_raster(tmp_path, bands, dtype):
    path = tmp_path / "rgb.tif"
    tifffile.imwrite(path, np.full((24, 32, bands), np.iinfo(dtype).max, dtype))
    raster = read_raster(path)
    assert raster.kind.colours and len(raster.values) == 3 and raster.kind.alpha == (bands == 4)


def test_planes_of_colours_and_alpha_are_read_where_they_are_said_to_be_ones(tmp_path):
    path, array = tmp_path / "rgba.tif", stack(4, np.uint8)
    array[3] = np.where(array[3] > 100, 255, 0)
    options = {"photometric": "rgb", "extrasamples": ["unassalpha"], "planarconfig": "separate"}
    tifffile.imwrite(path, array, metadata=None, **options)
    said = read_raster(path)
    assert np.array_equal(said.mask.numpy(), array[3] == 255) and len(said.values) == 3
    tifffile.imwrite(path, array, **options)
    assert np.array_equal(read_raster(f"{path}:colours").mask.numpy(), array[3] == 255)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 24, 32), {"imagej": True}),
        ((2, 3, 24, 32), {"imagej": True, "metadata": {"axes": "TCYX"}}),
        ((4, 24, 32), {"ome": True}),
        ((2, 3, 24, 32), {"ome": True, "metadata": {"axes": "ZCYX"}, "photometric": "minisblack"}),
        ((4, 24, 32), {"bigtiff": True, "photometric": "minisblack"}),
    ],
    ids=["imagej", "imagej hyperstack", "ome", "ome hyperstack", "bigtiff"],
)
def test_stacks_of_other_kinds_have_their_pages_in_order(tmp_path, shape, options):
    path = tmp_path / "stack.tif"
    array = np.arange(np.prod(shape)).reshape(shape).astype(np.uint16)
    tifffile.imwrite(path, array, **options)
    pages = array.reshape(-1, *shape[-2:])
    rasters = of_all_pages(path)
    assert len(rasters) == len(pages)
    assert all(np.array_equal(raster.values.numpy()[0], page) for raster, page in zip(rasters, pages, strict=True))
    with pytest.raises(RasterError, match=f"holds {len(pages)} pictures"):
        read_raster(path)


@pytest.mark.parametrize("options", [{"imagej": True}, {"photometric": "minisblack", "metadata": {"axes": "QYX"}}])
def test_pages_that_only_a_description_knows_of_are_refused(tmp_path, options):
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, stack(4, np.uint16), truncate=True, **options)
    for name in (path, f"{path}:0"):
        with pytest.raises(RasterError, match="holds 4 pictures in 1 page"):
            read_raster(name)
