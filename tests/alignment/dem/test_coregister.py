"""Shift and bias of elevation models with a known answer."""

import numpy as np
import pytest
import torch

from mslsq.alignment import CoregistrationError, CoregistrationStatus, Georeference, coregister
from mslsq.alignment.dem.trimmed import _likelihood

PIXEL = 30.0


def off(found, made):
    """Errors in pixels east and north, and in metres up."""
    return np.abs(found.shift - made.shift) / [PIXEL, PIXEL, 1]


@pytest.mark.parametrize("d", [(0.0, 0.0), (0.4, -1.3), (-2.6, 0.5), (17.3, -21.8)])
def test_a_shift_is_found_to_a_few_thousandths_of_a_pixel(pair, d):
    made = pair(d)
    found = coregister(made.reference, made.dem, pixel_size=PIXEL)
    assert found.status is CoregistrationStatus.COREGISTERED
    assert (off(found, made) < [0.005, 0.005, 0.02]).all()
    assert found.nmad == pytest.approx(0.3 * 2**0.5, rel=0.15)
    assert found.nmad < 1.01 * found.nmad_before


def test_the_shift_is_added_to_the_coordinates_of_dem():
    x, y = np.meshgrid(np.arange(80.0), np.arange(80.0))
    hill = lambda x, y: 500 * np.exp(-((x - 40) ** 2 + (y - 40) ** 2) / 200)  # noqa: E731
    # dem shows the peak 3 columns farther west and 2 rows farther south, 7 m too high: it goes east, north and down.
    found = coregister(hill(x, y), hill(x + 3, y - 2) + 7, pixel_size=(10.0, 20.0))
    np.testing.assert_allclose(found.shift, [30.0, 40.0, -7.0], atol=0.02)


def test_georeferences_say_the_same_as_a_pixel_size_and_an_offset(pair):
    made = pair()
    first = Georeference.from_geotransform((5e5, 30, 0, 5e6, 0, -30), "EPSG:32633")
    second = Georeference.from_geotransform((5e5 + 300, 30, 0, 5e6 - 150, 0, -30), "EPSG:32633")
    plain = coregister(made.reference, made.dem, pixel_size=30.0)
    moved = coregister(made.reference, made.dem[5:, 10:], georeferences=(first, second))
    np.testing.assert_allclose(moved.shift, plain.shift, atol=0.1)
    np.testing.assert_allclose(
        moved.apply(made.dem[5:, 10:])[20:-20, 30:-20], plain.apply(made.dem)[20:-20, 30:-20], atol=0.1
    )


def test_rows_that_go_north_turn_the_sign_of_north(pair):
    made = pair()
    up = Georeference.from_geotransform((0, 30, 0, 0, 0, 30))
    found = coregister(made.reference, made.dem, georeferences=(up, up))
    np.testing.assert_allclose(found.shift, made.shift * [1, -1, 1], atol=0.2)


@pytest.mark.parametrize(
    ("bias", "error"),
    [
        ("plane", lambda made: 6 * made.x - 4 * made.y),
        ("quadratic", lambda made: 5 * (1.5 * made.x**2 - 0.5) - 3 * made.x * made.y),
        ("scale", lambda made: 0.03 * (made.dem + 4 - np.median(made.truth))),
        ("plane+elevation", lambda made: 5 * made.y + 0.02 * made.dem),
    ],
)
def test_a_bias_is_estimated_together_with_the_shift(pair, bias, error):
    made = pair()
    found = coregister(made.reference, made.dem - error(made), pixel_size=PIXEL, bias=bias)
    assert (off(found, made)[:2] < 0.01).all()
    left = found.apply(made.dem - error(made)) - made.truth
    assert abs(np.nanmean(left)) < 0.05
    assert np.nanstd(left) < 0.5


def test_coefficients_are_those_of_the_bias(pair):
    made = pair()
    found = coregister(made.reference, made.dem - 6 * made.x + 4 * made.y, pixel_size=PIXEL, bias="plane")
    assert found.coefficients["x"] == pytest.approx(6, abs=0.1)
    assert found.coefficients["y"] == pytest.approx(-4, abs=0.1)
    assert found.coefficients["z"] == found.shift[2]
    stretched = coregister(made.reference, made.dem * 0.98, pixel_size=PIXEL, bias="scale")
    assert stretched.vertical_scale == pytest.approx(1 / 0.98, abs=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("biases", "error"),
    [
        (["offset"], lambda made: 0),
        (["plane"], lambda made: 6 * made.x - 4 * made.y),
        (["quadratic"], lambda made: 6 * (made.x**2 + made.y**2)),
        # elevations are smoothed in the model, so that of an error of 3 % of them a little is left over
        (["scale", "plane+scale", "elevation", "quadratic+elevation"], lambda made: 0.03 * made.dem),
    ],
)
def test_auto_takes_a_simple_model_that_predicts_left_out_blocks(pair, biases, error):
    made = pair()
    found = coregister(made.reference, made.dem - error(made), pixel_size=PIXEL, bias="auto")
    assert found.bias in biases
    assert (off(found, made)[:2] < 0.01).all()


def test_a_changed_quarter_moves_neither_shift_nor_height(pair):
    made = pair(noise=1.0)
    melt = 25 / (1 + np.exp((made.x + made.y + 0.7) / 0.05))  # about a quarter
    found = coregister(made.reference, made.dem - melt, pixel_size=PIXEL)
    assert (off(found, made) < [0.02, 0.02, 0.15]).all()
    assert found.changed[melt > 10].mean() > 0.8
    assert found.changed[melt < 0.01].mean() < 0.15
    kept = coregister(made.reference, made.dem - melt, pixel_size=PIXEL, mask=melt < 0.01, find_changes=False)
    assert (off(kept, made) < [0.01, 0.01, 0.08]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("bias", "error"), [("auto", 0.0), ("quadratic", 0.0), ("plane", 6.0)])
def test_a_bias_does_not_hide_terrain_that_changed(pair, bias, error):
    made = pair(noise=1.0, side=160, seed=3)
    melt = 25 / (1 + np.exp((made.x + made.y + 0.7) / 0.05))
    found = coregister(made.reference, made.dem - melt - error * made.x, pixel_size=PIXEL, bias=bias)
    assert (off(found, made)[:2] < 0.03).all()
    assert found.changed[melt > 10].mean() > 0.8
    left = found.apply(made.dem - melt - error * made.x) - made.truth
    assert abs(np.nanmean(left[melt < 0.01])) < 0.15


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", ["a quarter", "a side"])
def test_a_tilt_and_a_stretch_do_not_follow_a_change_whose_border_is_wide(pair, where):
    made = pair(noise=2.0, side=224, seed=7)
    ramps = {"a quarter": (made.x, made.y), "a side": (made.x + 0.4,)}[where]
    lowered = 20 / np.prod([1 + np.exp(10 * ramp) for ramp in ramps], axis=0)  # a border over a fifth of the side
    seen = 1.01 * made.dem - lowered - 6 * made.x - 3 * made.y
    found = coregister(made.reference, seen, pixel_size=PIXEL, bias="plane+scale")
    assert found.status is CoregistrationStatus.COREGISTERED
    assert (off(found, made)[:2] < 0.03).all()
    assert found.changed[lowered > 10].mean() > 0.9  # all but the rim, which is not compared
    left = found.apply(seen) - made.truth
    assert abs(np.nanmean(left[lowered < 0.1])) < 0.4  # 5 m, where the bias follows the change


@pytest.mark.parametrize("where", ["a side", "a strip"])
def test_a_change_of_nearly_half_of_the_terrain_below_the_noise_of_pixels_is_left_out(pair, where):
    made = pair(noise=2.0, side=160, seed=5)
    lowered = 5.0 * (np.abs(made.x) < 0.42 if where == "a strip" else made.x < -0.12)  # 3 sigma of a difference
    found = coregister(made.reference, made.dem - lowered - 4 * made.x, pixel_size=PIXEL, bias="plane")
    assert found.changed[lowered > 0].mean() > 0.9
    left = found.apply(made.dem - lowered - 4 * made.x) - made.truth
    assert abs(np.nanmean(left[lowered == 0])) < 0.2


def test_the_better_of_two_answers_leaves_most_of_the_terrain_narrow_not_half_of_it():
    random = np.random.default_rng(0)
    terrain = np.sort(0.1 * random.standard_normal(80)), np.sort(4.0 * random.random(64))
    kept = _likelihood(np.sort(np.concatenate(terrain)), 6.0)
    through = _likelihood(np.sort(1.2 * random.standard_normal(144)), 6.0)  # a tilt that follows the change
    assert kept > through + 0.1


def test_holes_and_blunders_are_left_out_and_stay_holes(pair):
    made = pair()
    rng = np.random.default_rng(1)
    dem, reference = made.dem.copy(), made.reference.copy()
    dem[40:70, 20:60], reference[90:100] = np.nan, np.nan
    dem[rng.random(dem.shape) < 0.005] = -9999
    found = coregister(reference, dem, pixel_size=PIXEL)
    assert (off(found, made) < [0.01, 0.01, 0.05]).all()
    out = found.apply(dem)
    assert np.isnan(out[45:65, 25:55]).all()
    assert np.isfinite(out[90:100, 70:]).mean() > 0.9


def test_a_masked_array_a_tensor_and_integers_are_read(pair):
    made = pair()
    masked = np.ma.masked_less(made.reference, -150)
    found = coregister(masked, torch.from_numpy(made.dem).float(), pixel_size=PIXEL)
    assert (off(found, made) < [0.01, 0.01, 0.05]).all()
    whole = coregister(made.reference.round().astype(np.int16), made.dem.round().astype(np.int32), pixel_size=PIXEL)
    assert (off(whole, made) < [0.02, 0.02, 0.1]).all()


NAN = np.full((40, 40), np.nan)
HILLS = np.random.default_rng(0).standard_normal((40, 40)).cumsum(0).cumsum(1)
DEGREES = Georeference.from_geotransform((10, 1e-3, 0, 45, 0, -1e-3), "EPSG:4326")
BEYOND = Georeference.from_geotransform((10, 1e-3, 0, 95, 0, -1e-3), "EPSG:4326")
NOWHERE = Georeference.from_geotransform((10, 1e-3, 0, 45, 0, -1e-3), "EPSG:99999999")
METRES = Georeference.from_geotransform((0, 30, 0, 0, 0, -30), "EPSG:32633")
COARSE = Georeference.from_geotransform((0, 60, 0, 0, 0, -60), "EPSG:32633")
OTHER = Georeference.from_geotransform((0, 30, 0, 0, 0, -30), "EPSG:32634")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reference": NAN}, "reference has no data"),
        ({"dem": NAN}, "dem has no data"),
        ({"dem": HILLS[:3]}, "at least 8"),
        ({"dem": HILLS[0]}, r"\(height, width\)"),
        ({"dem": np.stack([HILLS] * 3)}, "choose one band"),
        ({"dem": "hills.tif"}, "coregister_files takes files"),
        ({"dem": object()}, "no array"),
        ({"pixel_size": 0}, "positive"),
        ({"pixel_size": (30, -30)}, "rows are taken to go south"),
        ({"pixel_size": "30 m"}, "pixel_size"),
        ({"pixel_size": None}, "give pixel_size"),
        ({"mask": np.ones((3, 3))}, "a mask has a value per pixel"),
        ({"bias": "planar"}, "plane"),
        ({"bias": "plane+tilt"}, "plane"),
        ({"loss": "l1"}, "loss"),
        ({"min_overlap": 2}, "min_overlap"),
        ({"levels": 0}, "levels"),
        ({"max_shift": "far"}, "max_shift"),
        ({"pixel_size": None, "georeferences": (BEYOND, BEYOND)}, "no latitude"),
        ({"pixel_size": None, "georeferences": (NOWHERE, NOWHERE)}, "names no coordinate reference system"),
        ({"pixel_size": None, "georeferences": (METRES, COARSE)}, "pixels of 30 x 30, dem of 60 x 60"),
        ({"pixel_size": None, "georeferences": (METRES, OTHER)}, "reproject"),
        ({"georeferences": (METRES, METRES)}, "not both"),
        ({"pixel_size": None, "georeferences": (METRES,)}, "two Georeference"),
    ],
)
def test_wrong_arguments_are_refused_with_words(given, words):
    with pytest.raises(CoregistrationError, match=words):
        coregister(**{"reference": HILLS, "dem": HILLS, "pixel_size": 30.0} | given)


def test_degrees_are_taken_with_the_metres_of_a_pixel(pair):
    made = pair()
    found = coregister(made.reference, made.dem, georeferences=(DEGREES, DEGREES), pixel_size=30.0)
    assert (off(found, made) < [0.005, 0.005, 0.02]).all()


def test_degrees_are_metres_at_the_middle_of_the_reference(pair):
    pyproj = pytest.importorskip("pyproj")
    made, step = pair(), 1 / 3600
    where = Georeference.from_geotransform((7.5, step, 0, 46.25, 0, -step), "EPSG:4326")
    found = coregister(made.reference, made.dem, georeferences=(where, where))
    (x, y), geod = where.to_world([[63.5, 63.5]])[0], pyproj.Geod(ellps="WGS84")
    east, north = geod.inv(x - step / 2, y, x + step / 2, y)[2], geod.inv(x, y - step / 2, x, y + step / 2)[2]
    np.testing.assert_allclose(found.shift[:2], [0.4 * east, 1.3 * north], rtol=0.01)
    record = found.record()
    np.testing.assert_allclose(record["shift_in_crs"], [0.4 * step, 1.3 * step], rtol=0.01)
    np.testing.assert_allclose(record["corrected_geotransform"][0], 7.5 + record["shift_in_crs"][0], rtol=1e-12)
    feet = Georeference.from_geotransform((9e5, 100, 0, 2e5, 0, -100), "EPSG:2263")  # US survey feet
    found = coregister(made.reference, made.dem, georeferences=(feet, feet))
    np.testing.assert_allclose(found.shift[:2], [40 * 0.3048006, 130 * 0.3048006], rtol=0.01)


def test_the_corrected_header_lies_on_the_reference(pair):
    made = pair(d=(3.0, -2.0))
    turned = Georeference(np.array([[26.0, 15, 5e5], [15, -26, 5e6], [0, 0, 1]]), "EPSG:32633")
    found = coregister(made.reference, made.dem, georeferences=(turned, turned))
    # dem's pixel (10, 20) shows what the reference's pixel (13, 18) does
    np.testing.assert_allclose(found.georeference.to_world([[10.0, 20.0]]), turned.to_world([[13.0, 18.0]]), atol=0.2)
    assert coregister(made.reference, made.dem, pixel_size=30.0).georeference is None


def test_a_header_that_is_far_off_is_asked_about(pair):
    made = pair(d=(40.0, -30.0))
    here = Georeference.from_geotransform((5e5, 30, 0, 5e6, 0, -30), "EPSG:32633")
    near = coregister(made.reference, made.dem, georeferences=(here, here))  # half of the model stays where it was
    assert near.status is CoregistrationStatus.COREGISTERED
    wrong = here.moved(-40.0, 0.0)  # 80 of 128 columns from the true place
    refused = coregister(made.reference, made.dem, georeferences=(here, wrong))
    assert refused.status is CoregistrationStatus.FAR_FROM_HEADER and not refused.status.ok
    assert np.isnan(refused.shift).all() and "max_shift=" in refused.reason
    with pytest.raises(CoregistrationError, match="otherwise"):
        refused.apply(made.dem)
    asked = float(refused.reason.partition("max_shift=")[2].split()[0])
    allowed = coregister(made.reference, made.dem, georeferences=(here, wrong), max_shift=asked)
    assert allowed.status is CoregistrationStatus.COREGISTERED
    np.testing.assert_allclose(allowed.shift[:2], [2400, 900], atol=1.0)
    refused = coregister(made.reference, made.dem, pixel_size=PIXEL, max_shift=1000)
    assert "1,500 m, more than max_shift=1,000 m" in refused.reason


def test_a_masked_model_stays_masked_where_it_is_applied(pair):
    made = pair()
    masked = np.ma.masked_array(made.dem, np.zeros(made.dem.shape, dtype=bool))
    masked[40:60, 40:60] = -9999
    masked[40:60, 40:60] = np.ma.masked
    found = coregister(made.reference, masked, pixel_size=PIXEL)
    assert np.isnan(found.apply(masked)[45:55, 45:55]).all()
