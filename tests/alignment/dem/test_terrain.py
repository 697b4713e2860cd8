"""Terrain that does not allow an answer: a status and a reason, never an exception."""

import numpy as np
import pytest

from mslsq.alignment import CoregistrationError, CoregistrationStatus, coregister

RNG = np.random.default_rng(5)
SIDE = 120
X, Y = np.meshgrid(np.arange(float(SIDE)), np.arange(float(SIDE)))


def noise(sigma=0.3):
    return sigma * RNG.standard_normal((SIDE, SIDE))


@pytest.mark.parametrize(
    ("reference", "dem", "up"),
    [
        (100 + noise(), 105 + noise(), -5.0),
        (np.full((SIDE, SIDE), 5.0), np.full((SIDE, SIDE), 7.0), -2.0),
        (3 * X + 2 * Y + noise(), 3 * X + 2 * Y + 4 + noise(), -4.0),
        (50 * np.sin(X / 9) + noise(), 50 * np.sin(X / 9) - 2 + noise(), 2.0),
    ],
    ids=["flat", "constant", "even slope", "valley"],
)
def test_terrain_that_shows_no_horizontal_shift_gives_z_alone(reference, dem, up):
    found = coregister(reference, dem, pixel_size=10.0)
    assert found.status is CoregistrationStatus.Z_ONLY
    assert "vertical shift" in found.reason
    assert np.isnan(found.shift[:2]).all() and np.isnan(found.standard_errors[:2]).all()
    assert found.shift[2] == pytest.approx(up, abs=0.05)
    assert np.nanmedian(found.apply(dem) - reference) == pytest.approx(0, abs=0.05)


def test_unrelated_terrain_is_not_coregistered(pair):
    found = coregister(pair(seed=1).reference, pair(seed=2).reference, pixel_size=30.0)
    assert found.status is CoregistrationStatus.Z_ONLY
    assert "do not show the same terrain" in found.reason


def test_models_without_common_pixels_have_no_answer(pair):
    made = pair()
    nothing = coregister(made.reference, made.dem, pixel_size=30.0, mask=np.zeros_like(made.dem, dtype=bool))
    assert nothing.status is CoregistrationStatus.NO_DATA
    assert "mask" in nothing.message()
    little = coregister(made.reference[:12, :12], made.dem, pixel_size=30.0, min_overlap=1.0)
    assert little.status is CoregistrationStatus.LITTLE_OVERLAP
    assert not little.status.ok and "less than min_overlap" in little.reason
    assert np.isnan(nothing.shift).all() and not nothing.status.ok
    with pytest.raises(CoregistrationError, match="nothing was found"):
        nothing.apply(made.dem)


def test_terrain_that_repeats_itself_is_ambiguous():
    waves = lambda x: 30 * np.sin(x / 6) * np.sin(Y / 6)  # noqa: E731
    found = coregister(waves(X) + noise(0.1), waves(X + 1) + noise(0.1), pixel_size=30.0)
    assert found.status in (CoregistrationStatus.AMBIGUOUS, CoregistrationStatus.COREGISTERED)
    if found.status.ok:  # the given place is preferred, a period away is a rival
        np.testing.assert_allclose(found.shift[:2], [30, 0], atol=1)


def test_a_record_is_of_plain_numbers(pair):
    import json

    made = pair()
    record = coregister(made.reference, made.dem, pixel_size=30.0, bias="plane").record()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["status"] == "coregistered"
    assert "add it to the coordinates of dem" in again["convention"]


def test_what_has_no_number_is_null_in_a_record():
    import json

    record = coregister(100 + noise(), 105 + noise(), pixel_size=10.0).record()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["shift_m"][:2] == [None, None] and "corrected_geotransform" not in again
