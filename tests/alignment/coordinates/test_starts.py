"""Georeferences as starts: whatever the pixels, the directions and the CRS are, and whether they are right or wrong."""

import math

import numpy as np
import pytest
import torch

from mslsq.alignment import AlignmentOptionError, Georeference, MapStatus, align
from tests.alignment.coordinates.world import DEGREES, UTM32, UTM33, shifted

SIZE = (160, 160)


def header_of(world, size, turn=0.0, crs=UTM32, east=190.0, north=180.0):
    """Of a map whose pixels have `size` metres, turned; in another CRS along that one's own axes."""
    c, s = math.cos(turn), math.sin(turn)
    matrix = np.array([[size * c, size * s, world.east + east], [size * s, -size * c, world.north - north], [0, 0, 1]])
    here = Georeference(matrix, UTM32)
    if crs == UTM32:
        return here
    pyproj = pytest.importorskip("pyproj")
    way = pyproj.Transformer.from_crs(UTM32, crs, always_xy=True)
    first = way.transform(*here.to_world([[0, 0]])[0])
    step = (size / 74_000, -size / 111_000) if crs == DEGREES else (size, -size)
    return Georeference(np.array([[step[0], 0, first[0]], [0, step[1], first[1]], [0, 0, 1]]), crs)


def truth_between(fixed, moving, points):
    """Pixels of the reference as pixels of the map, by pyproj."""
    there = fixed.to_world(points)
    if fixed.crs != moving.crs:
        pyproj = pytest.importorskip("pyproj")
        there = np.stack(pyproj.Transformer.from_crs(fixed.crs, moving.crs, always_xy=True).transform(*there.T), -1)
    return moving.to_pixel(there)


def error_of(result, fixed, moving):
    """The largest distance, in pixels of the map, over what both show."""
    x, y = np.meshgrid(np.linspace(45, 150, 5), np.linspace(35, 150, 5))
    points = np.stack([x.ravel(), y.ravel()], -1)
    found = result.to_map(1, torch.from_numpy(points)).numpy()
    return float(np.linalg.norm(found - truth_between(fixed, moving, points), axis=1).max())


CASES = {
    "the same grid": (1.0, 0.0, UTM32, 1),
    "half the pixel size": (0.5, 0.0, UTM32, 1),
    "twice the pixel size": (2.0, 0.0, UTM32, 2),
    "turned by 30 degrees": (1.0, math.radians(30), UTM32, 1),
    "another zone": (1.0, 0.0, UTM33, 1),
    "degrees, and other pixels": (0.7, 0.0, DEGREES, 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", ["translation", "sim2"])
def test_a_header_that_is_a_little_wrong_is_corrected(world, reference, case, model):
    """By 3 m: the truth is found to a tenth of a pixel, and said as a shift in metres."""
    size, turn, crs, every = CASES[case]
    true = header_of(world, size, turn, crs)
    pixels = (round(120 / size), round(120 / size))
    maps = [world.seen(reference, SIZE), world.seen(true, pixels, seed=1, every=every)]
    wrong = shifted(true, 3.0 / (74_000 if crs == DEGREES else 1), -2.0 / (111_000 if crs == DEGREES else 1))
    result = align(maps, model=model, georeferences=[reference, wrong])
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    assert error_of(result, reference, true) * size < 0.03
    assert 0.5 < float(result.overlap[1]) <= 1.0
    place = result.world[1]
    assert place.unit == "metre" and place.off == pytest.approx(math.hypot(3, 2), rel=0.05)
    if crs == UTM32:
        assert place.shift == pytest.approx((-3.0, 2.0), abs=0.05), "what is to be added to the header"
        corrected = place.georeference
        assert np.abs(corrected.to_world([[0, 0], [50, 60]]) - true.to_world([[0, 0], [50, 60]])).max() < 0.1
        moved = np.append(wrong.to_world([[50, 60]])[0], 1) @ place.matrix.numpy().T
        assert np.abs(moved[:2] - true.to_world([[50, 60]])[0]).max() < 0.1


def test_a_header_wrong_by_thirty_pixels_is_corrected(world, reference):
    true = header_of(world, 1.0)
    maps = [world.seen(reference, SIZE), world.seen(true, (120, 120), seed=1)]
    result = align(maps, model="translation", georeferences=[reference, shifted(true, 24.0, 18.0)])
    assert error_of(result, reference, true) < 0.05
    assert result.world[1].shift == pytest.approx((-24.0, -18.0), abs=0.05)


@pytest.mark.parametrize("size", [1.0, 0.5])
def test_a_header_that_is_wholly_wrong_is_contradicted_in_words(world, reference, size):
    """The search still runs, at the pixel size that the header says."""
    true = header_of(world, size)
    maps = [world.seen(reference, SIZE), world.seen(true, (round(120 / size), round(120 / size)), seed=1)]
    result = align(maps, model="se2", georeferences=[reference, shifted(true, 3000.0, 0.0)])
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    assert error_of(result, reference, true) * size < 0.03
    assert "But its georeference says another place, 3000.0 px from here" in result.reasons[1]


def test_a_map_that_matches_nowhere_says_that_its_header_was_tried(world, reference):
    noise = np.random.default_rng(3).standard_normal((120, 120))
    result = align([world.seen(reference, SIZE), noise], georeferences=[reference, header_of(world, 1.0)])
    assert not MapStatus(int(result.status[1])).ok and result.world[1] is None
    assert "Where its georeference puts it, it was tried first" in result.reasons[1]


def test_a_map_without_a_crs_is_taken_to_have_that_of_the_reference(world, reference):
    true = header_of(world, 0.5)
    maps = [world.seen(reference, SIZE), world.seen(true, (240, 240), seed=1)]
    result = align(maps, model="translation", georeferences=[reference, Georeference(true.matrix)])
    assert error_of(result, reference, true) * 0.5 < 0.1


def test_georeferences_of_some_maps_help_those(world, reference):
    """Of three maps, together: one has none, one half the pixel size."""
    fine, plain = header_of(world, 0.5), header_of(world, 1.0, east=140, north=150)
    maps = [world.seen(reference, SIZE), world.seen(fine, (240, 240), seed=1), world.seen(plain, (130, 130), seed=2)]
    result = align(maps, model="translation", georeferences=[reference, shifted(fine, 4, 0), None])
    assert result.aligned == [0, 1, 2], result.message()
    assert error_of(result, reference, fine) * 0.5 < 0.1
    assert result.world[2].shift is None and result.world[2].geotransform is not None


def test_of_maps_that_are_placed_together_the_one_with_a_wrong_header_is_named(world, reference):
    right, wrong = header_of(world, 1.0, east=140, north=150), header_of(world, 1.0)
    maps = [world.seen(reference, SIZE), world.seen(right, (130, 130), seed=2), world.seen(wrong, (120, 120), seed=1)]
    result = align(maps, model="translation", georeferences=[reference, right, shifted(wrong, 0.0, 5000.0)])
    assert result.aligned == [0, 1, 2], result.message()
    assert "But its georeference says another place, 5000.0 px from here" in result.reasons[2]
    assert "georeference" not in result.reasons[1]


def test_pixels_that_were_repeated_are_not_counted_as_measurements(world, reference):
    """Twice the pixel size: a quarter of the measurements. The error over its standard error stays near one."""
    true = header_of(world, 2.0)
    scores = []
    for seed in range(6):
        maps = [world.seen(reference, SIZE, seed=seed), world.seen(true, (60, 60), seed=seed + 10, every=2)]
        result = align(maps, model="translation", georeferences=[reference, true])
        off = result.to_map(1, torch.tensor([[80.0, 80.0]]).double()).numpy() - truth_between(
            reference, true, np.array([[80.0, 80.0]])
        )
        scores.append(np.linalg.norm(off) * 2 / float(result.corner_sigma[1]))
    assert np.median(scores) < 3


def test_a_start_of_the_user_comes_before_the_headers(world, reference):
    """In the map's own pixels; the header is 3 km off and still says the pixel size."""
    true = header_of(world, 0.5)
    maps = [world.seen(reference, SIZE), world.seen(true, (240, 240), seed=1)]
    start = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    start[1] = torch.from_numpy(np.linalg.inv(true.matrix) @ reference.matrix)
    start[1, :2, 2] += 6.0
    headers = [reference, shifted(true, 3000.0, 0.0)]
    result = align(maps, model="translation", georeferences=headers, init=start)
    assert error_of(result, reference, true) * 0.5 < 0.03
    assert "georeference" not in result.reasons[1]


def test_maps_are_added_to_a_result_with_georeferences(world, reference):
    fine, plain = header_of(world, 0.5), header_of(world, 1.0, east=140, north=150)
    maps = [world.seen(reference, SIZE), world.seen(fine, (240, 240), seed=1), world.seen(plain, (130, 130), seed=2)]
    headers = [reference, fine, plain]
    first = align(maps[:2], model="translation", georeferences=headers[:2])
    both = align(maps, model="translation", georeferences=headers, previous=first)
    assert torch.equal(both.transforms[:2], first.transforms) and both.aligned == [0, 1, 2]
    assert both.world[2].off < 0.05 and both.world[1].off < 0.05


def test_what_is_no_georeference_is_refused(reference):
    maps = [torch.rand(32, 32), torch.rand(32, 32)]
    with pytest.raises(AlignmentOptionError, match="1 georeferences for 2 maps"):
        align(maps, georeferences=[reference])
    with pytest.raises(AlignmentOptionError, match=r"from_geotransform"):
        align(maps, georeferences=[reference, (0, 1, 0, 0, 0, -1)])


def test_a_scale_that_the_header_contradicts_is_refused(world, reference):
    """A header that says pixels of 0.7 m where they are of 1 m."""
    true = header_of(world, 1.0)
    lie = Georeference(true.matrix @ np.diag([0.7, 0.7, 1]), UTM32)
    maps = [world.seen(reference, SIZE), world.seen(true, (120, 120), seed=1)]
    result = align(maps, georeferences=[reference, lie], scale_range=(0.9, 1.1))
    assert result.status[1] == MapStatus.WRONG_SCALE, result.reasons[1]
    result = align(maps, georeferences=[reference, lie], pixel_sizes=[1.0, 1.0], scale_range=(0.9, 1.1))
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]


def test_what_no_affine_map_says_of_two_crs_is_in_the_standard_errors(world):
    """40 km in degrees and in UTM: nothing is seen of the pixels, the headers alone differ by a curve."""
    pytest.importorskip("pyproj")
    from mslsq.alignment.coordinates.relating import relation

    wide = Georeference.from_geotransform((9.0, 0.002, 0, 48.0, 0, -0.002), DEGREES)
    metres = Georeference.from_geotransform((500_000, 200, 0, 5_316_000, 0, -200), UTM32)
    found = relation(wide, (200, 200), metres, (200, 150))
    x, y = np.meshgrid(np.linspace(20, 120, 5), np.linspace(20, 150, 5))
    points = np.stack([x.ravel(), y.ravel()], -1)
    off = points @ found.matrix[:2, :2].T + found.matrix[:2, 2] - truth_between(wide, metres, points)
    assert 0.1 < np.linalg.norm(off, axis=1).max() < 1.2 * found.largest
    rng = np.random.default_rng(0)
    import scipy.ndimage

    base = scipy.ndimage.gaussian_filter(rng.standard_normal((260, 260)), 2.5)
    y, x = np.mgrid[0:200, 0:150].astype(float)
    there = np.stack([x.ravel(), y.ravel()], -1)
    here = truth_between(metres, wide, there)
    moved = scipy.ndimage.map_coordinates(base, [here[:, 1] + 20, here[:, 0] + 20], order=3).reshape(200, 150)
    result = align([base[20:220, 20:220], moved], model="translation", georeferences=[wide, metres], min_detail=0.3)
    assert result.status[1] == MapStatus.ALIGNED, result.reasons[1]
    assert "differ from an affine map" in result.reasons[1]
    assert float(result.corner_sigma[1]) > 0.3 * found.rms


def test_a_crs_that_is_not_known_is_of_no_use_and_no_harm(world, reference):
    """The text of a damaged .prj: its map is searched for, and the others are placed as ever."""
    pytest.importorskip("pyproj")
    other = header_of(world, 1.0)
    damaged = Georeference(other.matrix, "EPSG:99999999 and more")
    maps = [world.seen(reference, SIZE), world.seen(other, (120, 120), seed=1), world.seen(other, (120, 120), seed=2)]
    result = align(maps, model="translation", georeferences=[reference, damaged, other])
    assert (result.status[1:] == MapStatus.ALIGNED).all(), result.reasons
    assert error_of(result, reference, other) < 0.03
    assert "no place in the reference's coordinate reference system" in result.reasons[1]
    assert result.world[1].shift is None and result.world[2].shift is not None
